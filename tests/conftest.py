"""Markers, profiles, and the devices that tests run on."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import hypothesis
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import backends

MARKERS = {
    "gpu": "needs an NVIDIA GPU and a library built with CUDA",
    "gpu2": "needs two NVIDIA GPUs",
    "sanitizer": "small enough to run under compute-sanitizer",
    "huge": "needs about 10 GB of GPU memory",
    "xdist_group": "tests that share a worker, where pytest-xdist is installed",
}

# Other people's libraries are used there, and what they deprecate is not ours to mend.
FOREIGN_FOLDERS = ("gpu", "adapters")
FOREIGN = [f"ignore::{kind}" for kind in ("DeprecationWarning", "FutureWarning", "UserWarning")]

hypothesis.settings.register_profile(
    "default", deadline=None, derandomize=True, max_examples=60, suppress_health_check=list(hypothesis.HealthCheck)
)
hypothesis.settings.register_profile(
    "deep", parent=hypothesis.settings.get_profile("default"), derandomize=False, max_examples=1000, print_blob=True
)
hypothesis.settings.load_profile(os.environ.get("QPI_TEST_PROFILE", "default"))


def pytest_configure(config):
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


def pytest_collection_modifyitems(items):
    tests = Path(__file__).parent
    for item in items:
        if item.path.parent.name in FOREIGN_FOLDERS and tests in item.path.parents:
            for warning in FOREIGN:
                item.add_marker(pytest.mark.filterwarnings(warning))


def pytest_generate_tests(metafunc):
    """A test that takes ``backend`` runs on the CPU and, where there is one, on a GPU."""
    if "backend" in metafunc.fixturenames:
        names = [pytest.param("cpu")]
        if backends.gpu_missing() is None:
            names.append(pytest.param("cuda", marks=pytest.mark.gpu))
        metafunc.parametrize("backend", names, indirect=True)


def pytest_runtest_setup(item):
    needed = 2 if item.get_closest_marker("gpu2") else 1 if item.get_closest_marker("gpu") else 0
    if needed:
        missing = backends.gpu_missing(needed)
        if missing and os.environ.get("QPI_TEST_REQUIRE_GPU") == "1" and needed == 1:
            pytest.fail(missing)
        if missing:
            pytest.skip(missing)


@pytest.fixture
def backend(request):
    return backends.make(request.param)


@pytest.fixture
def gpu():
    return backends.make("cuda")
