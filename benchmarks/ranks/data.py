"""Batches for the checks: the same on every rank that asks for the same ones."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

import qpi_distill as qpi

from ..cases import SEED_SHAPE

ACTIONS, ATOMS = SEED_SHAPE
SUPPORT = qpi.linspace(-10, 10, ATOMS)
# Two kinds of batches lie on either side of the dead zone, so that lam goes up and down.
STATE = {"lam": 0.2, "tau": 1.0, "kl_target": 1.5, "kl_alpha": 0.3, "kl_tolerance": 1.1}
SPREADS = (0.1, 3.0)


def batch(seed: tuple[int, ...], rows: int, kind: int) -> tuple[np.ndarray, np.ndarray]:
    """q_logits and pi_logits."""
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((rows, ACTIONS, ATOMS), dtype=np.float32) * np.float32(2)
    pi = rng.standard_normal((rows, ACTIONS), dtype=np.float32) * np.float32(SPREADS[kind % len(SPREADS)])
    return q, pi


def distiller(isv: qpi.ISV, reduction: str) -> qpi.Distiller:
    return qpi.Distiller(actions=ACTIONS, support=SUPPORT, isv=isv, reduction=reduction, mode="write")


def split(share: float, rows: int, size: int) -> list[slice]:
    """Rows of each rank: rank 0 has this share of them, the others the rest in equal parts."""
    if size == 1:
        return [slice(0, rows)]
    first = round(share * rows)
    bounds = [0, *(first + round((rows - first) * rank / (size - 1)) for rank in range(size))]
    return [slice(low, high) for low, high in pairwise(bounds)]
