"""The two other ways to install: from the sdist, and editable. Both without CUDA here, for the time it takes."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

import pytest

from toolchain import ROOT, run

WITHOUT_CUDA = {**os.environ, "QPI_CUDA": "OFF"}

CHECK = """
import ctypes, sys
from pathlib import Path
import numpy as np
import qpi_distill as qpi

print(qpi.__file__)
for path in (qpi.get_include(), qpi.get_library_dir(), qpi.get_library(), qpi.get_cmake_dir(), qpi.get_pkgconfig_dir()):
    assert Path(path).exists(), path
    assert sys.argv[1] in path, path
assert Path(qpi.get_include(), "qpi_distill.h").is_file()
assert Path(qpi.get_include()).with_name("c_api.pxd").is_file()
try:
    qpi.ISV(device="cuda")
except qpi.errors.DeviceError as error:
    print("DeviceError:", error)
else:
    raise AssertionError("a GPU from a build without CUDA")
"""


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """A virtual environment that sees the packages of this one, for builds without isolation."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin/python"
    site = Path(run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip())
    # Under a name that sorts after those of the packages installed here, so that those are found first.
    (site / "zz_outer.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return python


def install(python, *arguments):
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-build-isolation", "--no-deps"]
    run([*pip, "--ignore-installed", *arguments], env=WITHOUT_CUDA, timeout=1200)


@pytest.fixture(scope="session")
def sdist(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sdist")
    run([sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", folder, ROOT], env=WITHOUT_CUDA)
    (path,) = folder.glob("*.tar.gz")
    return path


def tracked_files():
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    return set(done.stdout.splitlines())


def test_sdist_holds_the_sources_and_no_build_product(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in ("CMakeLists.txt", "pyproject.toml", "LICENSE", "README.md", "cmake/exports.map", "PKG-INFO"):
        assert name in names
    assert not [name for name in names if name.endswith((".so", ".o", ".whl", ".pyc", ".fatbin"))]
    tracked = {name for name in tracked_files() if not name.startswith(".")}
    assert tracked <= names
    assert names - tracked <= {"PKG-INFO"} | untracked(names)


def untracked(names):
    """Files of a working tree that git would not ignore but does not know yet."""
    done = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return names & set(done.stdout.splitlines())


@pytest.mark.xdist_group("source")
def test_install_from_sdist(sdist, environment, tmp_path):
    install(environment, sdist)
    output = run([environment, "-c", CHECK, str(environment.parents[1])], cwd=tmp_path)
    assert "DeviceError:" in output


@pytest.mark.xdist_group("source")
def test_editable_install(environment, tmp_path):
    install(environment, "--editable", ROOT)
    output = run([environment, "-c", CHECK, str(environment.parents[1])], cwd=tmp_path)
    assert str(ROOT / "python/qpi_distill/__init__.py") in output
