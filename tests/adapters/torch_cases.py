"""What the tests of qpi_distill.torch share."""

from __future__ import annotations

import pytest

import backends

torch = pytest.importorskip("torch")


def devices() -> list:
    """CPU tensors and, where torch has a GPU, its tensors."""
    found = [pytest.param("cpu")]
    if backends.gpu_missing() is None and torch.cuda.is_available():
        found.append(pytest.param("cuda", marks=pytest.mark.gpu))
    return found


def pytest_generate_tests(metafunc) -> None:
    """Run a test that takes ``device`` on each; imported by the test files."""
    if "device" in metafunc.fixturenames:
        metafunc.parametrize("device", devices())
