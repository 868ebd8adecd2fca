"""Puts the package where the other stages import it from: a folder of its own, built from this tree or from a wheel."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

from .process import Clock, run, say, tail

MOST_SECONDS = 420
DISTRIBUTIONS = (
    "qpi-distill",
    "numpy",
    "cuda-core",
    "cuda-bindings",
    "torch",
    "triton",
    "cupy-cuda13x",
    "jax",
    "numba-cuda",
    "nccl4py",
    "nvidia-nccl-cu13",
    "pytest",
    "hypothesis",
    "scikit-build-core",
    "cython",
)
PROBE = f"""
import json, platform
from importlib import metadata
versions = {{"python": platform.python_version()}}
for name in {DISTRIBUTIONS!r}:
    try:
        versions[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
import qpi_distill
print(json.dumps({{"file": qpi_distill.__file__, "versions": versions, "info": qpi_distill.info()}}, default=str))
"""


class Failed(RuntimeError):
    """The package cannot be had; the message says why."""


@dataclass
class Package:
    """What the stages run with."""

    env: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    file: str = ""


def install(
    root: Path, work: Path, logs: Path, clock: Clock, *, wheel: Path | None, nvcc: str | None, architectures: str
) -> Path:
    """Install into `work`/site and return that folder.

    Parameters
    ----------
    root, work, logs : Path
        The source tree, the folder for what is built, and the one for logs.
    clock : Clock
        The time that is left.
    wheel : Path, optional
        Install this file instead of building.
    nvcc : str, optional
        The CUDA compiler; None: left to the build.
    architectures : str
        For CMAKE_CUDA_ARCHITECTURES.
    """
    site = work / "site"
    shutil.rmtree(site, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--disable-pip-version-check"]
    pip += ["--no-cache-dir", "--target", site]
    env = {}
    if wheel is not None:
        command = [*pip, wheel.resolve()]
    else:
        if nvcc is not None:
            env = {"QPI_SYSTEM_CUDA": "1", "CUDACXX": nvcc}
        settings = {"build-dir": work / "cmake", "cmake.define.CMAKE_CUDA_ARCHITECTURES": architectures}
        options = [f"--config-settings={key}={value}" for key, value in settings.items()]
        command = [*pip, "--verbose", "--no-build-isolation", *options, root]
    done = run(command, logs / "build.log", limit=clock.left(MOST_SECONDS), cwd=work, env=env)
    if done.code != 0:
        errors = [line for line in done.text.splitlines() if re.search(r"\b(?:error|Error|ERROR)\b", line)]
        raise Failed("\n".join([f"pip install: {done.how}", *errors[:20], "[...]", tail(done.text, 12)]))
    say(f"installed in {done.seconds:.0f} s")
    return site


def probe(logs: Path, clock: Clock, site: Path | None) -> Package:
    """Import the package in a child process and look at what it is.

    Parameters
    ----------
    logs : Path
        The folder for logs.
    clock : Clock
        The time that is left.
    site : Path, optional
        Where it was installed; None: whatever this interpreter finds.
    """
    package = Package()
    if site is not None:
        paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
        package.env["PYTHONPATH"] = os.pathsep.join(paths)
    done = run([sys.executable, "-c", PROBE], logs / "import.log", limit=clock.left(120), cwd=logs, env=package.env)
    if done.code != 0:
        raise Failed(f"import qpi_distill: {done.how}\n{tail(done.text, 15)}")
    seen = json.loads(next(line for line in done.text.splitlines() if line.startswith('{"file"')))
    package.versions, package.file = seen["versions"], seen["file"]
    if site is not None and site.resolve() not in Path(package.file).resolve().parents:
        raise Failed(f"another installation comes first: {package.file}")
    return package
