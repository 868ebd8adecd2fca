"""Problems of tests/stepping.py through the JAX adapter."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import qpi_distill as qpi
import qpi_distill.jax as qpj
from backends import CRecord
from stepping import SLOT_DTYPES, Problem

LAYOUT = qpi.Layout.native()
DEVICES = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))


def device_of(platform: str):
    """The first device of a platform, or a skipped test."""
    try:
        return jax.devices(platform)[0]
    except RuntimeError as error:
        pytest.skip(f"this JAX has no {platform}: {error}")


def words(array) -> np.ndarray:
    return np.asarray(array).view(np.uint32)


def poked(state: qpj.State, **values) -> qpj.State:
    """The state with slots written behind the library's back, whatever they hold."""
    slots = np.array(state.slots)
    for name, value in values.items():
        data = np.array([value], SLOT_DTYPES[name]).view(np.uint32)
        slots[LAYOUT[name] : LAYOUT[name] + len(data)] = data
    return qpj.State(jax.numpy.asarray(slots), state.record)


def state_of(problem: Problem) -> qpj.State:
    return poked(qpj.init_state(), **problem.state)


def keywords(problem: Problem) -> dict:
    """Everything about a problem but its logits, its support and its state, as the adapter takes it."""
    o = problem.options
    return {
        "reduction": o.reduction,
        "value_scale": o.value_scale,
        "illegal_below": None if o.illegal_below == -np.inf else o.illegal_below,
        "legal_actions": problem.legal,
        "row_weights": problem.weights,
    }


def record_of(record) -> CRecord:
    return CRecord.from_buffer_copy(words(record).tobytes())


def record_words(record: CRecord) -> np.ndarray:
    return np.frombuffer(bytes(record), np.uint32)


def gradient_and_record(problem: Problem, state=None, **more):
    """One batch through `distill_loss`, compiled: value, gradient of pi_logits, record."""
    state = state_of(problem) if state is None else state

    @jax.jit
    def run(pi, q, support, state, legal, weights):
        choices = {**keywords(problem), "legal_actions": legal, "row_weights": weights, **more}
        loss = lambda pi: qpj.distill_loss(pi, q, support, state, **choices)  # noqa: E731
        (value, record), gradient = jax.value_and_grad(loss, has_aux=True)(pi)
        return value, gradient, record

    return run(problem.pi, problem.q, problem.support, state, problem.legal, problem.weights)
