"""The batches that the ranks share, and which rank has which rows."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from stepping import Problem, random_problem

ROWS = 40
STEPS = 5
COMMITS = 2000
LONG = {
    "lam": 0.3,
    "kl_target": 1.0,
    "kl_alpha": 0.3,
    "kl_tolerance": 1.1,
    "tau": 0.5,
    "tau_law": "target_entropy",
    "entropy_rate": 0.05,
}
STATE = {"lam": 0.3, "kl_target": 0.4, "kl_alpha": 0.5, "kl_tolerance": 1.2}


def shards(kind: str, size: int) -> list[slice]:
    """Rows of each rank."""
    if kind == "even":
        bounds = np.linspace(0, ROWS, size + 1).astype(int)
    elif kind == "uneven":
        bounds = np.array([0, *(ROWS - 3 * (size - 1 - i) for i in range(size))])
    elif kind == "empty":  # rank 0 has all of them
        bounds = np.array([0, *[ROWS] * size])
    else:  # the last rank's rows are all skipped
        bounds = np.linspace(0, ROWS, size + 1).astype(int)
    return [slice(int(low), int(high)) for low, high in pairwise(bounds)]


KINDS = ("even", "uneven", "empty", "skipped")


def batches(kind: str, size: int, value_scale: str) -> list[Problem]:
    """The whole batch of each step."""
    out = []
    for step in range(STEPS):
        problem = random_problem(
            np.random.default_rng(100 + step),
            ROWS,
            6,
            9,
            masked=True,
            weighted=True,
            pi_size=2.0 if step % 2 else 0.1,
            reduction="sum",
            value_scale=value_scale,
            state=STATE,
        )
        if kind == "skipped":
            problem.pi[shards(kind, size)[-1]] = np.nan
        out.append(problem)
    return out


def part(problem: Problem, at: slice) -> Problem:
    """A rank's rows of a batch."""
    return replace(
        problem,
        q=problem.q[at],
        pi=problem.pi[at],
        grad=problem.grad[at].copy(),
        legal=problem.legal[at],
        weights=problem.weights[at],
    )


def small_batch(step: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """One rank's q_logits and pi_logits of a step of the long run: other data for each, sometimes none."""
    rng = np.random.default_rng((step, rank))
    rows = int(rng.integers(0, 4))
    spread = 3.0 if step // 100 % 2 else 0.05
    return (
        rng.normal(size=(rows, 3, 5)).astype(np.float32),
        (spread * rng.normal(size=(rows, 3))).astype(np.float32),
    )
