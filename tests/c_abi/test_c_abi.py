"""The C programs of this folder: built as C99 and as C++ against the installed package, and together with the library's
own sources under the sanitizers."""

from __future__ import annotations

import os
import platform
import re
import shutil
from pathlib import Path

import pytest

import qpi_distill as qpi
from toolchain import ROOT, build, cmake, find, run

FOLDER = Path(__file__).parent
PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.c"))
WARNINGS = ["-pedantic-errors", "-Wall", "-Wextra", "-Werror", "-O1"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_c99(tmp_path, program):
    run([build([FOLDER / f"{program}.c"], tmp_path / program, "-std=c99", *WARNINGS)])


@pytest.mark.parametrize("standard", ["c++11", "c++20"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_cxx(tmp_path, program, standard):
    source = tmp_path / f"{program}.cpp"
    shutil.copy(FOLDER / f"{program}.c", source)
    flags = [f"-std={standard}", *WARNINGS, f"-I{FOLDER}"]
    run([build([source], tmp_path / program, *flags, language="c++")])


def sanitized(folder, sanitizers):
    """Library and programs, instrumented, without CUDA."""
    cmake(
        ROOT,
        folder,
        "-DQPI_CUDA=OFF",
        "-DQPI_TESTS=ON",
        "-DCMAKE_BUILD_TYPE=Release",
        "-DCMAKE_CXX_FLAGS_RELEASE=-O1",
        "-DCMAKE_C_FLAGS_RELEASE=-O1",
        f"-DQPI_SANITIZE={sanitizers}",
    )
    return folder / "tests/c_abi"


@pytest.fixture(scope="session")
def address(tmp_path_factory):
    return sanitized(tmp_path_factory.mktemp("address"), "address;undefined")


@pytest.fixture(scope="session")
def thread(tmp_path_factory):
    return sanitized(tmp_path_factory.mktemp("thread"), "thread")


@pytest.mark.xdist_group("address")
@pytest.mark.parametrize("program", PROGRAMS)
def test_address_and_undefined_behaviour_sanitizer(address, program):
    options = {"ASAN_OPTIONS": "detect_leaks=1:strict_string_checks=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
    run([address / program], env={**os.environ, **options})


@pytest.mark.xdist_group("thread")
@pytest.mark.parametrize("program", ["bound", "smoke", "threads"])
def test_thread_sanitizer(thread, program):
    # Its shadow memory does not fit beside every random address layout of a kernel.
    fixed = [shutil.which("setarch"), platform.machine(), "-R"] if shutil.which("setarch") else []
    run([*fixed, thread / program], env={**os.environ, "TSAN_OPTIONS": "halt_on_error=1"})


@pytest.mark.xdist_group("address")
def test_a_system_install_carries_the_abi_in_its_soname(address, tmp_path):
    run([find("cmake"), "--install", address.parents[1], "--prefix", tmp_path])
    header = (tmp_path / "include/qpi_distill.h").read_text(encoding="utf-8")
    abi = re.search(r"#define QPI_ABI (\d+)", header).group(1)
    (library,) = tmp_path.rglob("libqpi_distill.so")
    assert library.resolve().name == f"libqpi_distill.so.{qpi.__version__}"
    assert library.with_name(f"libqpi_distill.so.{abi}").is_symlink()
    assert f"[libqpi_distill.so.{abi}]" in run([find("readelf"), "-d", library])
