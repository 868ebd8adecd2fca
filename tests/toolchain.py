"""Compilers and child processes for the tests that build something against the installed package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import qpi_distill as qpi

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = Path(sys.executable).parent


def run(command: Sequence[object], *, timeout: float = 600, **options) -> str:
    """Run a program that has to succeed; its output, which is also what a failure shows."""
    command = [str(part) for part in command]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout, check=False, **options
    )
    assert done.returncode == 0, f"{' '.join(command)}\nexited with {done.returncode}\n{done.stdout}"
    return done.stdout


def find(*names: str) -> str:
    """The first of these programs, next to the interpreter or on PATH; skips the test where there is none."""
    path = os.pathsep.join((str(SCRIPTS), os.environ.get("PATH", os.defpath)))
    for name in names:
        found = shutil.which(name, path=path)
        if found:
            return found
    pytest.skip(f"none of these programs is installed: {', '.join(names)}")


def compiler(language: str) -> str:
    """The C or C++ compiler of this machine."""
    return find(os.environ.get("CC", "cc"), "gcc") if language == "c" else find(os.environ.get("CXX", "c++"), "g++")


def build(sources: Sequence[Path], program: Path, *flags: str, language: str = "c") -> Path:
    """Compile and link a program against the installed header and library, without CMake."""
    libraries = qpi.get_library_dir()
    run(
        [
            compiler(language),
            *flags,
            f"-I{qpi.get_include()}",
            *sources,
            *("-o", program),
            *(f"-L{libraries}", "-lqpi_distill", f"-Wl,-rpath,{libraries}", "-lm", "-pthread"),
        ]
    )
    return program


def cmake(source: Path, build_folder: Path, *definitions: str) -> None:
    """Configure and build a CMake project."""
    program = find("cmake")
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={find('ninja')}"]
    run([program, "-S", source, "-B", build_folder, *generator, *definitions])
    run([program, "--build", build_folder], timeout=1200)
