"""The Rust crate: built from its sources alone, without network, linked to the installed library."""

from __future__ import annotations

import os
import shutil
import sys

import pytest

from toolchain import ROOT, find, run

IGNORED = shutil.ignore_patterns("target")


@pytest.fixture(scope="module")
def crate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rust") / "crate"
    shutil.copytree(ROOT / "examples/rust", folder, ignore=IGNORED)
    return folder


def cargo(crate, *arguments, **env):
    program = find("cargo")
    # A test run answers for its own warnings, not for what the user's shell says to compilers.
    environment = {**os.environ, "CARGO_TARGET_DIR": str(crate / "target"), "RUSTFLAGS": "-D warnings", **env}
    return run([program, *arguments, "--offline", "--locked"], cwd=crate, env=environment)


@pytest.mark.xdist_group("rust")
def test_it_has_no_dependencies(crate):
    assert (crate / "Cargo.lock").read_text(encoding="utf-8").count("[[package]]") == 1


@pytest.mark.xdist_group("rust")
def test_program_and_numbers(crate):
    """build.rs asks the interpreter for the package."""
    assert "agree on 8 of 8 states" in cargo(crate, "run", "--quiet", PYTHON=sys.executable)
    assert "7 passed" in cargo(crate, "test", "--quiet", PYTHON=sys.executable)


@pytest.mark.xdist_group("rust")
def test_a_named_folder_is_taken_without_python(crate, package):
    cargo(crate, "build", "--quiet", QPI_DISTILL_ROOT=str(package), PYTHON="/nonexistent")


@pytest.mark.xdist_group("rust")
def test_sources_are_formatted(crate):
    program = find("rustfmt")
    run([program, "--check", "--edition", "2021", *sorted(crate.rglob("src/*.rs")), crate / "build.rs"], cwd=crate)
