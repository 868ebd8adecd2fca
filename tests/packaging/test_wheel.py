"""The wheel as a file: its tags, its contents, its metadata, and what the auditors say."""

from __future__ import annotations

import email
import json
import re
import stat
import zipfile

import pytest

from toolchain import ROOT, find, run

SUFFIXES = {".cu", ".py", ".pyi", ".typed", ".pxd", ".h", ".hpp", ".so", ".cmake", ".pc", ".fatbin"}


@pytest.fixture(scope="module")
def archive(wheel):
    with zipfile.ZipFile(wheel) as opened:
        yield opened


@pytest.fixture(scope="module")
def metadata(archive):
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(archive.read(name))


def test_one_wheel_serves_every_python_from_3_11_on(wheel):
    assert re.fullmatch(r"qpi_distill-[0-9.]+-cp311-abi3-[a-z0-9_.]+\.whl", wheel.name)


def test_it_holds_what_embedders_need(archive):
    modules = {path.stem for path in (ROOT / "src/cython/qpi_distill").glob("*.pyx")}
    assert modules
    wanted = {
        "qpi_distill/py.typed",
        "qpi_distill/distributed/fold.cu",
        "qpi_distill/c_api.pxd",
        "qpi_distill/include/qpi_distill.h",
        "qpi_distill/include/qpi_distill.hpp",
        *(f"qpi_distill/include/qpi_distill/{name}.h" for name in ("isv_manifest", "laws", "flight_manifest")),
        "qpi_distill/lib/libqpi_distill.so",
        "qpi_distill/lib/libqpi_jax.so",
        "qpi_distill/lib/cmake/qpi_distill/qpi_distillConfig.cmake",
        "qpi_distill/lib/cmake/qpi_distill/qpi_distillConfigVersion.cmake",
        "qpi_distill/lib/cmake/qpi_distill/qpi_distillTargets.cmake",
        "qpi_distill/lib/pkgconfig/qpi_distill.pc",
        *(f"qpi_distill/{module}.abi3.so" for module in modules),
        *(f"qpi_distill/{path.relative_to(ROOT / 'python/qpi_distill')}" for path in python_sources()),
    }
    assert wanted <= set(archive.namelist())


def python_sources():
    return [path for path in (ROOT / "python/qpi_distill").rglob("*.py*") if path.suffix in {".py", ".pyi"}]


def test_it_holds_the_seed_kernels(archive, with_cuda):
    assert "qpi_distill/lib/qpi_seed_kernels.fatbin" in archive.namelist()


def test_it_holds_nothing_else(archive):
    for entry in archive.infolist():
        if ".dist-info/" in entry.filename:
            continue
        assert entry.filename.startswith("qpi_distill/"), entry.filename
        assert any(entry.filename.endswith(suffix) for suffix in SUFFIXES), entry.filename
        assert not stat.S_ISLNK(entry.external_attr >> 16), entry.filename


def test_compiled_modules_have_stubs(archive):
    names = set(archive.namelist())
    for path in (ROOT / "src/cython/qpi_distill").glob("*.pyx"):
        assert f"qpi_distill/{path.stem}.pyi" in names


def test_the_library_is_there_once(archive):
    libraries = [name for name in archive.namelist() if "libqpi_distill" in name]
    assert libraries == ["qpi_distill/lib/libqpi_distill.so"]


def test_it_stays_small(wheel):
    assert wheel.stat().st_size < 16 * 2**20


def test_runtime_dependencies(metadata):
    required = {re.sub(r"\s", "", line) for line in metadata.get_all("Requires-Dist") if "extra ==" not in line}
    assert {frozenset(re.split(r"(?<=[a-z])(?=[<>=])|,", line)) for line in required} == {
        frozenset({"numpy", ">=1.26"}),
        frozenset({"cuda-core", ">=1.0", "<2"}),
        frozenset({"cuda-bindings", ">=13.0", "<14"}),
    }


def test_metadata(archive, metadata):
    assert metadata["Name"] == "qpi-distill"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert (
        metadata.get_payload(decode=True).decode().strip() == (ROOT / "README.md").read_text(encoding="utf-8").strip()
    )
    assert {"demo", "pretty", "test"} <= set(metadata.get_all("Provides-Extra"))
    (licence,) = [name for name in archive.namelist() if name.endswith(".dist-info/licenses/LICENSE")]
    assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()


def test_abi3audit_finds_no_violation(wheel):
    run([find("abi3audit"), "--strict", "--verbose", wheel])


def test_auditwheel_finds_no_foreign_library(wheel):
    output = run([find("auditwheel"), "show", "--json", wheel])
    report = json.loads(output[output.index("{") :])
    assert report["external_libs"] == {}
    assert re.fullmatch(r"manylinux_2_\d+_\w+", report["overall_tag"])
    assert set(report["versioned_symbols"]) <= {"libc.so.6", "libgcc_s.so.1", "libm.so.6", "libstdc++.so.6"}
