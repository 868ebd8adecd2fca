"""Where the driver's header is on this machine, for the tests that compile against it."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import pytest


def cuda_include() -> Path:
    """The folder of cuda.h: of a toolkit, or of one that pip has installed. Skips the test where there is none."""
    site = Path(sysconfig.get_path("purelib"))
    toolkits = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    for folder in (*toolkits, Path("/usr/local/cuda"), *sorted(site.glob("nvidia/cu1*")), site / "nvidia/cuda_runtime"):
        if (folder / "include/cuda.h").is_file():
            return folder / "include"
    pytest.skip("there is no cuda.h here")
