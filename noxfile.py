"""What `nox` runs: the linters, the documentation, one wheel, its checks, and the test suite against that wheel."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2024.10"
nox.options.sessions = ["lint", "docs", "wheel", "tests"]
nox.options.error_on_missing_interpreters = True

PROJECT = nox.project.load_toml("pyproject.toml")
C_FOLDERS = ("cuda", "src", "python", "tests", "examples", "benchmarks")
C_SUFFIXES = {".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp"}


def wheel_folder(session: nox.Session) -> Path:
    """Where session `wheel` leaves what `tests` installs."""
    return Path(session.cache_dir) / "wheel"


def built_wheel(session: nox.Session) -> Path:
    wheels = sorted(wheel_folder(session).glob("qpi_distill-*.whl"))
    if len(wheels) != 1:
        session.error("there is no wheel yet: run `nox -s wheel` first")
    return wheels[0]


def adapter_tests(framework: str) -> list[str]:
    return sorted(str(path) for path in Path("tests/adapters").glob(f"test_{framework}*.py"))


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff, clang-format and cython-lint; `nox -s lint -- --fix` mends what they can mend."""
    fix = "--fix" in session.posargs
    session.install(*PROJECT["project"]["optional-dependencies"]["lint"])
    session.run("ruff", "check", *(["--fix"] if fix else []), ".")
    session.run("ruff", "format", *([] if fix else ["--check"]), ".")
    sources = sorted(str(path) for folder in C_FOLDERS for path in Path(folder).rglob("*") if path.suffix in C_SUFFIXES)
    session.run("clang-format", *(["-i"] if fix else ["--dry-run", "-Werror"]), *sources)
    session.run("cython-lint", "src", "examples", "tests")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation, warnings being errors; `nox -s docs -- serve` shows it while you write."""
    session.install(*PROJECT["project"]["optional-dependencies"]["docs"])
    # Not --quiet: warnings that are not shown are not counted either.
    site = session.posargs or ["build", "--site-dir", str(Path(session.cache_dir) / "site")]
    session.run("mkdocs", *site, env={"NO_MKDOCS_2_WARNING": "1"})  # mkdocs-material announces its successor


@nox.session
def wheel(session: nox.Session) -> None:
    """Build the wheel once, for every GPU generation."""
    folder = wheel_folder(session)
    shutil.rmtree(folder, ignore_errors=True)
    session.run("python", "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(folder), ".")


@nox.session
def torch(session: nox.Session) -> None:
    """Test the torch adapter and its examples against the wheel; apart, because torch is large."""
    path = built_wheel(session)
    session.install(f"{path}[torch-examples]", "hypothesis>=6.100", "ml_dtypes>=0.4", "pytest>=8")
    session.run("python", "-m", "pytest", *adapter_tests("torch"), *session.posargs, env={"OMP_NUM_THREADS": "2"})


@nox.session
def jax(session: nox.Session) -> None:
    """Test the JAX adapter and its example against the wheel; apart, because JAX is large."""
    path = built_wheel(session)
    session.install(f"{path}[jax]", "flatbuffers", "hypothesis>=6.100", "pytest>=8")
    session.run("python", "-m", "pytest", *adapter_tests("jax"), *session.posargs)


@nox.session
def distributed(session: nox.Session) -> None:
    """Test the data-parallel part, with processes connected by gloo and by MPI, against the wheel."""
    path = built_wheel(session)
    session.install(f"{path}[mpi,torch]", "mpich>=4.2", "hypothesis>=6.100", "pytest>=8", "nvidia-cuda-nvrtc>=13,<14")
    tests = ["tests/distributed", "tests/tools/test_multi_gpu.py"]
    session.run("python", "-m", "pytest", *tests, *session.posargs, env={"OMP_NUM_THREADS": "1"})


@nox.session
def tests(session: nox.Session) -> None:
    """Install the wheel with its test extra and run pytest; arguments after `--` go to pytest."""
    path = built_wheel(session)
    session.install(f"{path}[test]")
    env = {"QPI_WHEEL": str(path)}
    workers = "2" if (os.cpu_count() or 1) >= 2 else "0"
    session.run("python", "-m", "pytest", "-n", workers, "--dist", "loadgroup", *session.posargs, env=env)


@nox.session
def same(session: nox.Session) -> None:
    """Build the CPU wheel twice in different places: both have to be the same bytes. Takes minutes; not by default."""
    session.run("python", "tools/reproducible.py")
