"""Generated batches: structure is drawn, numbers come from a seeded generator, so that they are small to report."""

from __future__ import annotations

import math
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np

from stepping import random_problem

SIZES = st.sampled_from([0.0, 1e-38, 1e-3, 1.0, 10.0, 300.0, 1e20])
HALF = ("float16", "bfloat16")


@st.composite
def problems(draw, *, max_rows=12, max_actions=64, max_atoms=128, half=True, extreme=True, **fixed):
    """Any sensible batch."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    lead = draw(st.lists(st.integers(1, max_rows), min_size=1, max_size=3).filter(lambda x: math.prod(x) <= 60))
    actions = draw(st.one_of(st.integers(1, 12), st.integers(1, max_actions)))
    atoms = draw(st.one_of(st.integers(1, 24), st.integers(1, max_atoms)))
    kinds = st.sampled_from(("float32", *HALF) if half else ("float32",))
    q_dtype, pi_dtype = draw(kinds), draw(kinds)
    grad_dtype = draw(st.sampled_from(("float32", pi_dtype)))
    limit = 1e4 if "float16" in (q_dtype, pi_dtype) else 1e30
    choices = {
        "masked": draw(st.booleans()),
        "weighted": draw(st.booleans()),
        "per_action": draw(st.booleans()),
        "grad_scale": draw(st.sampled_from([None, 0.125, 2.5])),
        "reduction": draw(st.sampled_from(["sum", "mean"])),
        "mode": draw(st.sampled_from(["add", "write"])),
        "value_scale": draw(st.sampled_from(["none", "running_std"])),
        "q_size": min(draw(SIZES), limit) if extreme else 2.0,
        "pi_size": min(draw(SIZES), limit) if extreme else 2.0,
        "span": draw(st.sampled_from([(-10.0, 10.0), (90.0, 110.0), (0.0, 1.0), (-1e3, 1e3)])),
        "state": {
            "lam": draw(st.sampled_from([0.0, 0.05, 0.7, 30.0])),
            "tau": draw(st.sampled_from([0.0, 1e-2, 1.0, 50.0, math.inf])),
        },
    }
    if draw(st.booleans()):
        choices["state"].update(value_std=draw(st.sampled_from([0.0, 0.5, 40.0])), value_observations=1)
    return random_problem(
        rng, tuple(lead), actions, atoms, dtypes=(q_dtype, pi_dtype, grad_dtype), **{**choices, **fixed}
    )


@st.composite
def spoiled(draw, source):
    """A problem with bad numbers strewn over it."""
    problem = draw(source)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    bad = np.array([np.nan, np.inf, -np.inf])
    rate = draw(st.sampled_from([0.0, 0.02, 0.3]))
    for name in draw(st.sets(st.sampled_from(["q", "pi", "weights", "grad"]), min_size=1)):
        array = getattr(problem, name)
        if array is not None:
            hit = rng.random(array.shape) < rate
            array[hit] = rng.choice(bad, hit.sum()).astype(array.dtype)
    return problem


def scattered(draw, array):
    """The same numbers in memory that is not packed: padded, transposed, or every other element of something."""
    if array is None:
        return None
    rank = array.ndim
    how = draw(st.sampled_from(["packed", "padded", "transposed", "strided", "offset"]))
    if how == "padded":
        room = np.full((*array.shape[:-1], array.shape[-1] + 3), 77, array.dtype)
        view = room[..., : array.shape[-1]]
    elif how == "transposed":
        # The row dimensions stay in front; the last two of [rows, A, Z], or [rows, A] itself, change places.
        room = np.full(
            (*array.shape[:-2], array.shape[-1], array.shape[-2]) if rank > 1 else array.shape, 77, array.dtype
        )
        view = np.swapaxes(room, -1, -2) if rank > 1 else room
    elif how == "strided":
        room = np.full((*array.shape[:-1], array.shape[-1] * 2 + 1), 77, array.dtype)
        view = room[..., 1::2]
    elif how == "offset":
        room = np.full(array.size + 1, 77, array.dtype)
        view = room[1:].reshape(array.shape)
    else:
        return array.copy()
    view[...] = array
    return view


@st.composite
def pairs(draw, source):
    """A problem of one row dimension, and the same problem in other memory."""
    problem = draw(source).flat
    arrays = ("q", "pi", "grad", "legal", "weights")
    return problem, replace(problem, **{name: scattered(draw, getattr(problem, name)) for name in arrays})
