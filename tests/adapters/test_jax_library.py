"""The shared object with the handlers: its declarations of XLA's interface, what it exports, what it needs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import qpi_distill as qpi
from toolchain import ROOT, compiler, find, run

LIBRARY = Path(qpi.get_library_dir(), "libqpi_jax.so")
HEADER = ROOT / "src/jax/xla_ffi.h"


def compile_abi(folder: Path, header: str) -> str:
    """Compile the comparison with a version of our header; its output."""
    jax = pytest.importorskip("jax")
    (folder / "src/jax").mkdir(parents=True)
    (folder / "src/jax/xla_ffi.h").write_text(header, encoding="utf-8")
    includes = [f"-I{folder}", f"-isystem{jax.ffi.include_dir()}"]
    program = folder / "abi"
    run([compiler("c++"), "-std=c++17", *includes, ROOT / "tests/adapters/jax_abi.cpp", "-o", program])
    return run([program])


def test_declarations_are_those_of_the_header_that_jax_ships(tmp_path):
    major, minor = map(int, compile_abi(tmp_path, HEADER.read_text(encoding="utf-8")).split("."))
    newest = int(re.search(r"kNewestMinor = (\d+);", HEADER.read_text(encoding="utf-8")).group(1))
    assert (major, minor) <= (0, newest), "a newer version of XLA's interface: compare, then raise kNewestMinor"


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        ("  kF16 = 10,", "  kF16 = 12,"),
        ("  int64_t rank;", "  int32_t rank;"),
        ("between_stream_and_ordinal[12]", "between_stream_and_ordinal[11]"),
    ],
)
def test_a_wrong_declaration_does_not_compile(tmp_path, found, wrong):
    header = HEADER.read_text(encoding="utf-8")
    assert found in header
    with pytest.raises(AssertionError, match="static assertion failed"):
        compile_abi(tmp_path, header.replace(found, wrong))


def test_it_exports_the_handlers_and_nothing_else():
    lines = run([find("nm"), "-D", "--defined-only", "--format=posix", LIBRARY]).splitlines()
    expected = {f"qpi_jax_{what}_{platform}" for what in ("distill", "commit") for platform in ("cpu", "cuda")}
    assert {line.split()[0] for line in lines} == expected


def test_it_needs_the_library_beside_it_and_neither_xla_nor_python():
    dynamic = run([find("readelf"), "-d", "-W", LIBRARY])
    needed = set(re.findall(r"\(NEEDED\)[^\[]*\[([^\]]*)\]", dynamic))
    assert {"libqpi_distill.so"} <= needed <= {"libqpi_distill.so", "libstdc++.so.6", "libgcc_s.so.1", "libc.so.6"}
    assert set(re.findall(r"\((?:RUNPATH|RPATH)\)[^\[]*\[([^\]]*)\]", dynamic)) == {"$ORIGIN"}


def test_importing_the_package_imports_no_jax():
    import sys

    code = "import sys, qpi_distill; assert not {'jax', 'jaxlib', 'qpi_distill.jax'} & set(sys.modules)"
    run([sys.executable, "-c", code])
