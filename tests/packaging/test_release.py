"""What a release needs besides the sources: a configuration that gives the right wheels, files that agree."""

from __future__ import annotations

import re
import tomllib

import pytest

import qpi_distill as qpi
from toolchain import ROOT, find, run


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_cibuildwheel_takes_the_configuration_and_gives_two_wheels_a_machine(machine):
    """It only lists them: to build them takes Docker."""
    command = [find("cibuildwheel"), "--platform", "linux", "--archs", machine, "--print-build-identifiers", ROOT]
    assert run(command).split() == [f"cp311-manylinux_{machine}", f"cp314t-manylinux_{machine}"]


def test_wheels_are_for_manylinux_2_28_on_both_machines():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["cibuildwheel"]
    assert settings["archs"] == ["x86_64", "aarch64"]
    assert {settings["linux"][f"manylinux-{machine}-image"] for machine in settings["archs"]} == {"manylinux_2_28"}


def test_citation_and_changelog_are_of_this_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.+)$", citation, re.MULTILINE)[1] == qpi.__version__
    assert re.search(r"^license: (.+)$", citation, re.MULTILINE)[1] == "Apache-2.0"
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)[1]
    assert newest == qpi.__version__
