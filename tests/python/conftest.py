"""Fixtures for the binding layer, on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

import qpi_distill as qpi


@pytest.fixture
def isv():
    return qpi.ISV(lam=1.0, tau=1.0, device="cpu")


@pytest.fixture
def op(isv):
    """An operator for the smoke row: 3 actions, atoms at -1 and 1, sum, raw values."""
    return qpi.Distiller(support=[-1, 1], actions=3, isv=isv, reduction="sum", value_scale="none")


@pytest.fixture
def rng():
    return np.random.default_rng(0)
