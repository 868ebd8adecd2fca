"""The headers compile alone, under every standard and with every warning an embedder may insist on."""

from __future__ import annotations

import re
import shutil

import pytest

import qpi_distill as qpi
from toolchain import run

FLAGS = ["-pedantic-errors", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror", "-fsyntax-only"]
C_FLAGS = ["-Wstrict-prototypes", "-Wmissing-prototypes", "-Wc++-compat"]
CXX_FLAGS = ["-Wold-style-cast", "-Wzero-as-null-pointer-constant"]


@pytest.mark.parametrize("standard", ["c99", "c11", "c17"])
@pytest.mark.parametrize("program", ["gcc", "clang"])
@pytest.mark.parametrize("times", [1, 2])
def test_c(tmp_path, program, standard, times):
    check(tmp_path / "header.c", program, standard, times, C_FLAGS)


@pytest.mark.parametrize("standard", ["c++11", "c++14", "c++17", "c++20"])
@pytest.mark.parametrize("program", ["g++", "clang++"])
@pytest.mark.parametrize("times", [1, 2])
def test_cxx(tmp_path, program, standard, times):
    check(tmp_path / "header.cpp", program, standard, times, CXX_FLAGS)


@pytest.mark.parametrize("standard", ["c++17", "c++20"])
@pytest.mark.parametrize("program", ["g++", "clang++"])
@pytest.mark.parametrize("times", [1, 2])
def test_cxx_wrapper(tmp_path, program, standard, times):
    check(tmp_path / "wrapper.cpp", program, standard, times, CXX_FLAGS, header="qpi_distill.hpp")


def test_the_wrapper_reaches_every_function(package):
    """What C++ people cannot call without the C header is missing from theirs."""
    header = (package / "include/qpi_distill.h").read_text(encoding="utf-8")
    functions = re.findall(r"^QPI_API [^(;]*?\b(qpi_\w+)\(", header, re.MULTILINE)
    assert len(functions) > 40
    code = re.sub(r"//.*", "", (package / "include/qpi_distill.hpp").read_text(encoding="utf-8"))
    assert [name for name in functions if not re.search(rf"\b{name}\b", code)] == []


def check(source, program, standard, times, flags, header="qpi_distill.h"):
    if not shutil.which(program):
        pytest.skip(f"{program} is not installed")
    source.write_text(f"#include <{header}>\n" * times, encoding="utf-8")
    run([program, f"-std={standard}", *FLAGS, *flags, "-I", qpi.get_include(), source])


def test_it_includes_no_cuda_header(package):
    text = "".join(path.read_text(encoding="utf-8") for path in (package / "include").rglob("*.h"))
    assert "#include <cuda" not in text
    standard = text.index("#include <stddef.h>")
    assert standard < text.index('extern "C"')
