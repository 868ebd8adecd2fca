"""Bound calls: checked once, then nothing but the call."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import producers as fake
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from producers import SMOKE_GRAD, CudaArray, exchange_class, smoke

import qpi_distill as qpi
from qpi_distill import _bound


def test_bound_calls_are_the_plain_ones(op, isv):
    q, pi, grad = (np.broadcast_to(x[0], (4, *x.shape[1:])).copy() for x in smoke())
    extra = {
        "legal_actions": np.array([[1, 0, 1]] * 4, bool),
        "row_weights": np.array([1, 2, 0, 1], np.float32),
        "grad_scale": np.full(1, 0.5, np.float32),
    }
    other = qpi.Distiller(
        support=[-1, 1], actions=3, isv=qpi.ISV(lam=1.0, device="cpu"), reduction="sum", value_scale="none"
    )
    want = np.zeros_like(grad)
    bound = op.bind(q, pi, grad, **extra)
    assert bound.rows == 4
    for name in ("step", "accumulate", "accumulate", "distill_grad", "step"):
        getattr(bound, name)()
        getattr(other, name)(q, pi, want, **extra)
    op.commit()
    other.commit()
    assert_array_equal(grad, want)
    assert isv.read().raw == other.isv.read().raw


def test_bound_arrays_are_seen_as_they_are_at_the_call(op):
    q, pi, grad = smoke()
    values = pi.copy()
    pi[:] = 0
    bound = op.bind(q, pi, grad)
    pi[:] = values
    bound.step()
    assert_allclose(grad, SMOKE_GRAD, atol=2e-6)
    grad[:] = 0
    bound.step()
    assert_allclose(grad, op.isv.read().lam * SMOKE_GRAD, atol=2e-6)


def test_nothing_is_asked_of_the_arrays_again(op):
    cls = exchange_class()
    q, pi, grad = smoke()
    bound = op.bind(cls(q), cls(pi), cls(grad))
    calls = dict(cls.calls)
    for _ in range(10):
        bound.step()
    assert cls.calls == calls


def test_bound_keeps_everything_alive():
    class Array(np.ndarray):
        """An ndarray that can be watched."""

    q, pi, grad = (x.view(Array) for x in smoke())
    isv = qpi.ISV(lam=1.0, device="cpu")
    op = qpi.Distiller(support=[-1, 1], actions=3, isv=isv, reduction="sum", value_scale="none")
    bound = op.bind(q, pi, grad)
    watched = [weakref.ref(x) for x in (q, pi, grad)]
    address = fake.address(grad)
    del q, pi, grad, op, isv
    gc.collect()
    assert all(ref() is not None for ref in watched)
    bound.step()
    view = np.asarray(qpi.pointer(address, (1, 3), device="cpu", owner=bound))
    assert_allclose(view, SMOKE_GRAD, atol=2e-6)
    del bound, view
    gc.collect()
    assert all(ref() is None for ref in watched)


def test_binding_checks_what_a_step_checks(op, isv):
    q, pi, grad = smoke()
    locked = grad.view()
    locked.flags.writeable = False
    before = isv.state_dict()
    for arguments, keywords, error, match in (
        ((q[:, :2], pi, grad), {}, ValueError, "q_logits"),
        ((q, pi.astype(int), grad), {}, TypeError, "pi_logits"),
        ((q, pi, locked), {}, BufferError, "pi_grad"),
        ((q, pi, pi), {}, BufferError, "pi_grad"),
        ((q, CudaArray(pi), grad), {}, BufferError, "pi_logits"),
        ((q, pi, grad), {"row_weights": np.ones(2, np.float32)}, ValueError, "row_weights"),
        ((q, pi, grad), {"grad_scale": 2.0}, TypeError, "grad_scale"),
        ((q, pi, grad), {"legal_actions": np.ones((1, 4), bool)}, ValueError, "legal_actions"),
    ):
        with pytest.raises(error, match=match):
            op.bind(*arguments, **keywords)
    after = isv.state_dict()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert not grad.any()


def test_bound_calls_come_from_bind_alone():
    with pytest.raises(TypeError, match="bind"):
        _bound.Bound()
    with pytest.raises(RuntimeError, match="bind"):
        _bound.Bound.__new__(_bound.Bound).step()


def test_an_operator_that_was_never_initialised():
    empty = qpi.Distiller.__new__(qpi.Distiller)
    for call in (
        lambda: empty.step(*smoke()),
        lambda: empty.bind(*smoke()),
        lambda: empty.commit(),
        lambda: empty.prepare(),
    ):
        with pytest.raises(RuntimeError, match="initialised"):
            call()


def test_an_operator_is_initialised_once(op, isv):
    with pytest.raises(RuntimeError, match="once"):
        op.__init__(support=[0, 1], actions=3, isv=isv, reduction="sum")
    q, pi, grad = smoke()
    op.step(q, pi, grad)
    assert_allclose(grad, SMOKE_GRAD, atol=2e-6)


def test_row0_cannot_be_accumulated_when_bound(isv):
    op = qpi.Distiller(support=[-1, 1], actions=3, isv=isv, reduction="sum", kl_stat="row0")
    bound = op.bind(*smoke())
    bound.step()
    with pytest.raises(ValueError, match="kl_stat"):
        bound.accumulate()


def test_a_bound_call_allocates_nothing(op):
    import tracemalloc

    bound = op.bind(*smoke())
    for _ in range(10):
        bound.step()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(1000):
            bound.step()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1000
    assert peak - before < 4000
