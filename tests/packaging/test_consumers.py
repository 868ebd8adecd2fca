"""Strangers who use the installed package: plain C and C++, CMake, scikit-build-core, Cython."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import qpi_distill as qpi
from toolchain import ROOT, build, cmake, compiler, find, run

FOLDER = Path(__file__).parent
EXAMPLES = ROOT / "examples"
C_FLAGS = ["-std=c99", "-pedantic-errors", "-Wall", "-Wextra", "-Werror"]
CXX_FLAGS = ["-std=c++17", "-pedantic-errors", "-Wall", "-Wextra", "-Werror"]


def test_c_example(tmp_path):
    program = build([EXAMPLES / "c/distill.c"], tmp_path / "distill", *C_FLAGS)
    assert "agree on 8 of 8 states" in run([program])


def test_cpp_example(tmp_path):
    program = build([EXAMPLES / "cpp/distill.cpp"], tmp_path / "distill", *CXX_FLAGS, language="c++")
    output = run([program])
    assert re.search(r"after 100 observations of 64 rows", output), output


def test_cpp_wrapper(tmp_path):
    """Every part of qpi_distill.hpp with its numbers, its errors and its rules of ownership."""
    program = build([FOLDER / "cpp/wrapper.cpp"], tmp_path / "wrapper", *CXX_FLAGS, language="c++")
    assert "keeps its word" in run([program])


@pytest.mark.parametrize("language", ["c", "cpp"])
def test_pkg_config(tmp_path, language):
    source, compile_as = {"c": ("c/distill.c", "c"), "cpp": ("cpp/distill.cpp", "c++")}[language]
    answer = pkg_config("--cflags", "--libs", "qpi_distill").split()
    libraries = pkg_config("--variable=libdir", "qpi_distill").strip()
    flags = CXX_FLAGS if language == "cpp" else C_FLAGS
    program = tmp_path / "distill"
    rpath = f"-Wl,-rpath,{libraries}"
    run([compiler(compile_as), *flags, EXAMPLES / source, "-o", program, *answer, rpath, "-lm"])
    run([program])


def test_pkg_config_knows_the_version_and_may_be_moved(tmp_path, package):
    assert pkg_config("--modversion", "qpi_distill").strip() == qpi.__version__
    moved = tmp_path / "elsewhere"
    shutil.copytree(package / "lib/pkgconfig", moved / "lib/pkgconfig")
    shutil.copytree(package / "include", moved / "include")
    for variable, folder in (("includedir", "include"), ("libdir", "lib")):
        answer = pkg_config(f"--variable={variable}", "qpi_distill", path=moved / "lib/pkgconfig").strip()
        assert Path(answer).resolve() == (moved / folder).resolve()


@pytest.mark.parametrize("libdir", ["lib", "lib/x86_64-linux-gnu", "/opt/libraries"])
def test_pkg_config_of_a_system_install(tmp_path, libdir):
    """Relative to the file where the library's folder is, absolute where that is; configured, not built."""
    options = ["-DQPI_CUDA=OFF", "-DCMAKE_INSTALL_PREFIX=/usr/local", f"-DCMAKE_INSTALL_LIBDIR={libdir}"]
    ninja = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={find('ninja')}"]
    run([find("cmake"), "-S", ROOT, "-B", tmp_path, *ninja, *options])
    folder = Path("/usr/local", libdir)
    text = (tmp_path / "qpi_distill.pc").read_text(encoding="utf-8").replace("${pcfiledir}", str(folder / "pkgconfig"))
    values = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
    libraries, headers = (values[name].replace("${prefix}", values["prefix"]) for name in ("libdir", "includedir"))
    assert os.path.normpath(libraries) == str(folder)
    assert os.path.normpath(headers) == "/usr/local/include"


def pkg_config(*arguments, path=None):
    env = {**os.environ, "PKG_CONFIG_PATH": str(path or qpi.get_pkgconfig_dir())}
    return run([find("pkg-config", "pkgconf"), *arguments], env=env)


@pytest.mark.parametrize("language", ["c", "cpp"])
def test_cmake_example(tmp_path, language):
    cmake(EXAMPLES / language, tmp_path / "build", f"-Dqpi_distill_DIR={qpi.get_cmake_dir()}")
    run([tmp_path / "build/distill"])


def test_cmake_package_may_be_moved(tmp_path, package):
    """No absolute path in it: an installation copied elsewhere serves from there."""
    moved = tmp_path / "elsewhere/qpi"
    for folder in ("include", "lib"):
        shutil.copytree(package / folder, moved / folder)
    cmake(EXAMPLES / "c", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={moved}")
    linked = run([find("ldd"), tmp_path / "build/distill"])
    assert str(moved / "lib/libqpi_distill.so") in linked
    run([tmp_path / "build/distill"])


def test_cmake_package_refuses_another_minor_version(tmp_path, package):
    project = tmp_path / "project"
    project.mkdir()
    (project / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\nproject(p C)\nfind_package(qpi_distill 0.999 CONFIG)\n"
        "if(qpi_distill_FOUND)\n  message(FATAL_ERROR found)\nendif()\n"
        'find_package(qpi_distill CONFIG REQUIRED)\nmessage(STATUS "cuda=${qpi_distill_WITH_CUDA}")\n'
        "if(qpi_distill_WITH_CUDA AND NOT EXISTS ${qpi_distill_SEED_FATBIN})\n  message(FATAL_ERROR fatbin)\nendif()\n",
        encoding="utf-8",
    )
    cmake(project, tmp_path / "build", f"-DCMAKE_PREFIX_PATH={package}")


def test_cython_example(tmp_path):
    """Built by scikit-build-core, which finds the CMake package by the entry point; cimports the installed .pxd."""
    site = tmp_path / "site"
    source = tmp_path / "source"
    shutil.copytree(EXAMPLES / "cython", source)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps"]
    run([*pip, "--target", site, source])
    program = "import distill_table; print(distill_table.agreement())"
    # Installed for real it lies beside qpi_distill; here the loader is told where that is.
    env = {**os.environ, "PYTHONPATH": str(site), "LD_LIBRARY_PATH": qpi.get_library_dir()}
    assert run([sys.executable, "-c", program], env=env).strip() == "1.0"


def test_three_lines_of_cython(tmp_path, package):
    """The smallest module that cimports the package, compiled by hand."""
    (tmp_path / "three.pyx").write_text(
        "from qpi_distill.c_api cimport qpi_abi\n\ndef abi():\n    return qpi_abi()\n", encoding="utf-8"
    )
    run([sys.executable, "-m", "cython", "-3", "-I", package.parent, "three.pyx"], cwd=tmp_path)
    include = run([sys.executable, "-c", "import sysconfig; print(sysconfig.get_path('include'))"]).strip()
    build([tmp_path / "three.c"], tmp_path / "three.so", "-shared", "-fPIC", f"-I{include}")
    program = "import three, ctypes, qpi_distill as qpi; assert three.abi() == ctypes.CDLL(qpi.get_library()).qpi_abi()"
    run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(tmp_path)})


def test_a_failed_call_says_why(tmp_path):
    """The error path of the C example, seen by a user: a name, an argument, no crash."""
    source = (EXAMPLES / "c/distill.c").read_text(encoding="utf-8")
    broken = source.replace("problem.reduction = QPI_REDUCTION_SUM;", "")
    assert broken != source
    (tmp_path / "broken.c").write_text(broken, encoding="utf-8")
    program = build([tmp_path / "broken.c"], tmp_path / "broken", *C_FLAGS)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.match(r"QPI_ERROR_\w+: .*reduction", done.stderr), done.stderr
