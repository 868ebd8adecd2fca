"""Where the package is installed, and the wheel it came from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import qpi_distill as qpi


@pytest.fixture(scope="session")
def package() -> Path:
    """The folder with the library, the header and the compiled modules."""
    return Path(qpi.get_include()).parent


@pytest.fixture(scope="session")
def with_cuda() -> bool:
    """Whether this build holds the GPU backend; one without it has no device code to look at."""
    if not Path(qpi.get_library_dir(), "qpi_seed_kernels.fatbin").exists():
        pytest.skip("the library was built without CUDA")
    return True


@pytest.fixture(scope="session")
def wheel() -> Path:
    """The wheel under test. Session `tests` of noxfile.py names it."""
    path = os.environ.get("QPI_WHEEL")
    if not path:
        pytest.skip("QPI_WHEEL does not name a wheel; `nox` builds one and runs these tests")
    return Path(path)
