"""The installed library: what it exports, what it needs, and that every version number is the same one."""

from __future__ import annotations

import ctypes
import importlib.metadata
import re
from pathlib import Path

import pytest

import qpi_distill as qpi
from toolchain import ROOT, find, run


@pytest.fixture(scope="module")
def header(package):
    return (package / "include/qpi_distill.h").read_text(encoding="utf-8")


def dynamic_symbols(path):
    """Names that a shared object defines for others."""
    lines = run([find("nm"), "-D", "--defined-only", "--format=posix", path]).splitlines()
    return {line.split()[0] for line in lines}


def dynamic_section(path, tag):
    return re.findall(rf"\({tag}\)[^\[]*\[([^\]]*)\]", run([find("readelf"), "-d", "-W", path]))


def modules(package):
    found = sorted(package.glob("_*.abi3.so"))
    assert found
    return found


def test_path_helpers_lead_to_what_they_name(package):
    assert Path(qpi.get_include(), "qpi_distill.h").is_file()
    assert Path(qpi.get_library()).is_file()
    assert Path(qpi.get_library()).parent == Path(qpi.get_library_dir())
    assert Path(qpi.get_cmake_dir(), "qpi_distillConfig.cmake").is_file()
    assert Path(qpi.get_pkgconfig_dir(), "qpi_distill.pc").is_file()
    assert (package / "c_api.pxd").is_file()


def test_it_exports_what_the_header_declares_and_nothing_else(header):
    declared = set(re.findall(r"^QPI_API [^(;]*?\b(qpi_\w+)\(", header, re.MULTILINE))
    assert len(declared) > 20
    assert dynamic_symbols(qpi.get_library()) == declared


def test_modules_export_their_initialiser_and_nothing_else(package):
    for path in modules(package):
        assert dynamic_symbols(path) == {f"PyInit_{path.name.split('.')[0]}"}


def test_it_needs_no_cuda_library(package):
    system = {
        "libstdc++.so.6",
        "libgcc_s.so.1",
        "libc.so.6",
        "libm.so.6",
        "libpthread.so.0",
        "libdl.so.2",
        "librt.so.1",
    }
    for path in [Path(qpi.get_library()), *modules(package)]:
        needed = {name for name in dynamic_section(path, "NEEDED") if not name.startswith("ld-linux")}
        assert needed <= system | {"libqpi_distill.so"}, path


def test_modules_find_the_library_beside_them(package):
    for path in modules(package):
        assert set(dynamic_section(path, "RUNPATH") + dynamic_section(path, "RPATH")) <= {"$ORIGIN/lib"}, path
    assert dynamic_section(qpi.get_library(), "RUNPATH") == dynamic_section(qpi.get_library(), "RPATH") == []


def test_no_path_of_the_build_machine_stays_in_the_binaries(package):
    for path in [Path(qpi.get_library()), *modules(package)]:
        assert str(ROOT).encode() not in path.read_bytes(), path


def test_one_version(header, package):
    numbers = [
        int(re.search(rf"#define QPI_VERSION_{part} (\d+)", header).group(1)) for part in ("MAJOR", "MINOR", "PATCH")
    ]
    version = ".".join(map(str, numbers))
    assert importlib.metadata.version("qpi-distill") == version
    assert qpi.__version__ == version
    config = (package / "lib/cmake/qpi_distill/qpi_distillConfigVersion.cmake").read_text(encoding="utf-8")
    assert f'set(PACKAGE_VERSION "{version}")' in config
    library = ctypes.CDLL(qpi.get_library())
    assert library.qpi_version() == numbers[0] * 10000 + numbers[1] * 100 + numbers[2]
    assert library.qpi_abi() == int(re.search(r"#define QPI_ABI (\d+)", header).group(1))
    assert f"## {version} " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_entry_points():
    points = importlib.metadata.distribution("qpi-distill").entry_points
    assert {(point.group, point.name, point.value) for point in points} == {
        ("console_scripts", "qpi-distill", "qpi_distill.cli:main"),
        ("cmake.prefix", "qpi_distill", "qpi_distill"),
    }
