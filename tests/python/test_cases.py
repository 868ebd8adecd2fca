"""Public bug reports turned into tests, each named after its entry (A-N1 is test_a_n1_...).

What needs a GPU is in tests/gpu under the same names. A-P2 (contents of the wheel, and strangers that build against
it), A-P3 (architectures of the cubins) and A-E1 (the header alone, under many compilers) are tests/packaging; A-E2 also
runs in C under ThreadSanitizer, in tests/c_abi.

Numbers are those of the entries: E = [..] stands for critic logits [0, 40 d] over the support [-1, 1], whose expected
values are exactly -1, 0 or 1. SMOKE is E = [-1, 0, 1] with policy logits [1, 0, -1].
"""

import ctypes
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import qpi_distill as qpi
from backends import BFLOAT16
from reference import Fault, Reason
from stepping import assert_same_bits, faults_of, make_isv, poke, reason_of

INF, NAN = np.inf, np.nan
PAIR = np.array([-1, 1], np.float32)
SMOKE_GRAD, SMOKE_KL = [0.575210383, 0, -0.575210383], 1.150420765


def logits(values):
    d = np.asarray(values, np.float32) * 40
    return np.stack([np.zeros_like(d), d], -1)


def near(got, want):
    want = np.asarray(want, np.float64)
    assert np.all(np.abs(np.float64(got) - want) <= 2e-6 * np.maximum(1, np.abs(want))), (got, want)


class Bench:
    """An ISV and the calls of the entries: `grad` and `lambda_step`."""

    def __init__(self, backend, *, support=PAIR, layout="native", **state):
        self.backend, self.support = backend, support
        self.isv = make_isv(backend, {"tau": 1, "lam": 1, **state}, layout)

    def distiller(self, q, pi, **choices):
        return qpi.Distiller(
            support=self.support,
            actions=q.shape[-2],
            isv=self.isv,
            reduction="sum",
            mode="add",
            value_scale="none",
            q_dtype=q.dtype.name,
            pi_dtype=pi.dtype.name,
            **choices,
        )

    def grad(self, q, pi, pi_grad=None, **choices):
        q, pi = np.asarray(q), np.asarray(pi)
        pi_grad = np.zeros(pi.shape, np.float32) if pi_grad is None else pi_grad
        put = self.backend.put
        out = put(pi_grad)
        self.distiller(q, pi, **choices).distill_grad(put(q), put(pi), out, stream=self.backend.stream)
        return self.backend.get(out)

    def lambda_step(self):
        self.isv.control(stream=self.backend.stream)

    def values(self, check=False):
        return self.isv.read(stream=self.backend.stream, check=check)


def f32(*rows):
    return np.array(rows, np.float32)


@pytest.fixture
def cpu():
    from backends import Cpu

    return Cpu()


def test_smoke(backend):
    bench = Bench(backend)
    near(bench.grad(logits([[-1, 0, 1]]), f32([1, 0, -1])), [SMOKE_GRAD])
    near(bench.values(check=True).kl_ema, SMOKE_KL)


# ---- numeric ------------------------------------------------------------------------------------------------------


def test_a_n1_probability_underflow_keeps_the_kl_and_a_disabled_loss_finite(backend):
    q, pi = logits([[0, 0, 0]]), f32([0, 0, -120])
    bench = Bench(backend, lam=0.5)
    near(bench.grad(q, pi, f32([1, 2, 3])) - f32([1, 2, 3]), [[0.083333333, 0.083333333, -0.166666667]])
    assert_allclose(bench.values().kl_ema, 39.594534892, rtol=2e-6)
    bench = Bench(backend, lam=0)
    assert_same_bits(bench.grad(q, pi, f32([1, 2, 3])), f32([1, 2, 3]))
    assert_allclose(bench.values().kl_ema, 39.594534892, rtol=2e-6)


def test_a_n2_fully_masked_row_is_skipped(backend):
    q, pi = logits([[-1, 0, 1], [-1, 0, 1]]), f32([1, 0, -1], [-INF, -INF, -INF])
    bench = Bench(backend, lam=0.5)
    got = bench.grad(q, pi)
    near(got, [[0.287605191, 0, -0.287605191], [0, 0, 0]])
    values = bench.values()
    near(values.kl_ema, SMOKE_KL)
    assert (values.rows_last, values.skipped_last, values.skipped_rows) == (1, 1, 1)
    assert_same_bits(got[:1], Bench(backend, lam=0.5).grad(q[:1], pi[:1]))


@pytest.mark.parametrize("tau", [0, 1e-12])
def test_a_n3_temperature_near_zero_splits_ties(backend, tau):
    bench = Bench(backend, tau=tau)
    near(bench.grad(logits([[1, 1, -1]]), f32([0, 0, 0])), [[-1 / 6, -1 / 6, 1 / 3]])
    near(bench.values().kl_ema, 0.405465108)


@pytest.mark.parametrize("tau", [-1, NAN])
def test_a_n3_temperature_that_makes_no_sense(backend, tau):
    with pytest.raises(ValueError, match="tau"):
        qpi.ISV(tau=tau, device=backend.device)
    bench = Bench(backend, tau=tau)
    with pytest.raises(ValueError, match="tau"):
        bench.isv.set(tau=tau, stream=backend.stream)
    assert not bench.grad(logits([[1, 1, -1]]), f32([0, 0, 0])).any()
    values = bench.values()
    assert faults_of(values) == Fault.TAU
    assert values.observations == 0
    with pytest.raises(qpi.FaultError, match=r"(?i)tau"):
        bench.values(check=True)


def test_a_n3_infinite_temperature_is_the_uniform_target(backend):
    bench = Bench(backend, tau=INF)
    assert_allclose(bench.grad(logits([[1, 1, -1]]), f32([0, 0, 0])), 0, atol=1e-7)
    assert qpi.ISV(tau=INF, device=backend.device).read().tau == INF


def test_a_n3_the_floor_of_the_temperature_can_be_read_and_moved(backend):
    q = np.array([[[0, 0], [0, -0.002000000667]]], np.float32)
    support, pi = np.array([0, 1], np.float32), f32([0, 0])
    bench = Bench(backend, support=support, tau=1e-4)
    assert np.float32(bench.values().tau_min) == np.float32(1e-3)
    assert_allclose(bench.grad(q, pi), [[0.5 - 0.622459, 0.5 - 0.377541]], atol=1e-3)
    bench = Bench(backend, support=support, tau=1e-4, tau_min=1e-4)
    assert_allclose(bench.grad(q, pi), [[0.5 - 0.993307, 0.5 - 0.006693]], atol=1e-3)


def test_a_n4_identical_distributions_have_no_negative_kl(backend):
    bench = Bench(backend, tau=0.5)
    assert_allclose(bench.grad(logits([[-1, 0, 1]]), f32([-2, 0, 2])), 0, atol=1e-7)
    assert 0 <= bench.values().kl_ema <= 1e-7


def test_a_n4_two_thousand_almost_identical_distributions(cpu):
    rng = np.random.default_rng(0)
    support = np.linspace(-10, 10, 21, dtype=np.float32)
    isv = make_isv(cpu, {"tau": 0.7})
    op = qpi.Distiller(support=support, actions=11, isv=isv, reduction="sum", value_scale="none")
    lowest = highest = 0.0
    for _ in range(2000):
        q = rng.normal(size=(1, 11, 21)) * 2
        p = np.exp(q - q.max(-1, keepdims=True))
        pi = ((p / p.sum(-1, keepdims=True)) @ np.linspace(-10, 10, 21) / 0.7).astype(np.float32)
        q = q.astype(np.float32)
        seen = op.measure(q, pi)
        lowest, highest = min(lowest, seen.kl), max(highest, seen.kl)
        op.distill_grad(q, pi, np.zeros_like(pi))
        assert isv.read().kl_ema >= 0
    assert lowest >= 0
    assert highest <= 1e-6


@pytest.mark.parametrize("bad", ["nan in q", "nan in pi", "inf in pi"])
def test_a_n5_one_bad_row_is_left_out_whole(backend, bad):
    q, pi = logits([[-1, 0, 1]] * 3), np.zeros((3, 3), np.float32)
    if bad == "nan in q":
        q[1, 1] = [NAN, 0]
    else:
        pi[1, 0] = NAN if bad.startswith("nan") else INF
    bench = Bench(backend, lam=0.5)
    got = bench.grad(q, pi)
    want = [0.121651380, 0.044302431, -0.165953811]
    near(got, [want, [0, 0, 0], want])
    values = bench.values()
    near(values.kl_ema, 0.266216707)
    assert values.skipped_last == 1
    clean = Bench(backend, lam=0.5).grad(q[::2].copy(), pi[::2].copy())
    assert_same_bits(got[::2], clean)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_n6_long_half_precision_axis_does_not_saturate(backend, dtype):
    dtype = np.dtype(np.float16) if dtype == "float16" else BFLOAT16
    if dtype is None:
        pytest.skip("needs ml_dtypes")
    q = np.zeros((1, 2, 4096), dtype)
    q[0, 1, 0] = 40
    bench = Bench(backend, support=np.ones(4096, np.float32), lam=0.5)
    assert_allclose(bench.grad(q, f32([0, 0])), 0, atol=1e-6)


def test_a_n6_a_mask_constant_that_overflows_float16_masks(backend):
    with np.errstate(over="ignore"):
        pi = np.array([[1, -1e9, 0, -1]], np.float32).astype(np.float16)
    assert pi[0, 1] == -INF
    got = Bench(backend).grad(logits([[-1, 1, 0, 1]]), pi)
    near(got, [[SMOKE_GRAD[0], 0, SMOKE_GRAD[1], SMOKE_GRAD[2]]])


# ---- controller ---------------------------------------------------------------------------------------------------


def test_a_c1_coefficient_stays_bounded(backend):
    bench = Bench(backend, lam=0.1, kl_target=0.01, kl_ema=0.5, observations=1)
    seen = []
    for _ in range(14):
        bench.lambda_step()
        seen.append(np.float32(bench.values().lam))
    assert_allclose(seen[:3], [0.12, 0.144, 0.1728], rtol=1e-6)
    assert seen[11] < 1
    assert seen[12] == seen[13] == 1
    for _ in range(10_000 - 14):
        bench.lambda_step()
    assert bench.values().lam == 1
    assert reason_of(bench.values()) == Reason.AT_MAX


def test_a_c1_coefficient_comes_down_to_its_floor(backend):
    bench = Bench(backend, lam=0.1, kl_target=0.01, kl_ema=1e-4, observations=1)
    for _ in range(346):
        bench.lambda_step()
    assert bench.values().lam > 0.0500000007
    bench.lambda_step()
    assert np.float32(bench.values().lam) == np.float32(0.05)
    for _ in range(1000):
        bench.lambda_step()
    assert np.float32(bench.values().lam) == np.float32(0.05)
    assert reason_of(bench.values()) == Reason.AT_MIN


@pytest.mark.parametrize("edge", [np.float32(0.01) * np.float32(3), np.float32(0.01) / np.float32(3)])
def test_a_c1_edges_of_the_dead_zone_keep_the_coefficient(backend, edge):
    bench = Bench(backend, lam=0.5, kl_target=0.01, kl_ema=edge, observations=1)
    bench.lambda_step()
    assert bench.values().lam == 0.5
    assert reason_of(bench.values()) == Reason.IN_BAND


def test_a_c2_zero_is_a_value_and_not_a_sentinel(backend):
    q, even, skew = logits([[0, 0, 0]]), f32([0, 0, 0]), f32([0, 0, -3])
    bench = Bench(backend, lam=0.5, kl_target=0.01)
    bench.lambda_step()
    assert bench.values().lam == 0.5
    bench.grad(q, even)
    assert bench.values().kl_ema == 0
    assert bench.values().observations == 1
    bench.lambda_step()
    assert np.float32(bench.values().lam) == np.float32(0.499)
    bench.grad(q, skew)
    near(bench.values().kl_ema, 0.030956181)
    bench = Bench(backend)
    bench.grad(q, skew)
    near(bench.values().kl_ema, 0.619123630)


def test_a_c3_bad_batches_do_not_poison_the_average(backend):
    q = logits([[0, 0, 0]])
    bench = Bench(backend, kl_ema=0.5, observations=1)
    bench.grad(np.repeat(q, 4, 0), f32([0, 0, 0], [0, 0, -3], [NAN, 0, 0], [0, 0, -1]))
    near(bench.values().kl_ema, 0.486930658)
    near(bench.values().kl_last, 0.238613160)
    before = bench.values()
    bench.grad(q, f32([NAN, 0, 0]))
    after = bench.values()
    assert after.kl_ema == before.kl_ema
    assert reason_of(after) == Reason.NO_ROWS
    assert after.skipped_rows == 2
    bench.grad(q, f32([0, 0, -3]))
    near(bench.values().kl_ema, 0.95 * before.kl_ema + 0.030956181)


@pytest.mark.parametrize("alpha", [NAN, 0, -0.5, 1.5])
def test_a_c3_bad_alpha_changes_nothing_and_is_reported(backend, alpha):
    bench = Bench(backend, kl_ema=0.5, observations=1, kl_alpha=alpha)
    bench.grad(logits([[0, 0, 0]]), f32([0, 0, -3]))
    assert bench.values().kl_ema == 0.5
    assert faults_of(bench.values()) == Fault.ALPHA


@pytest.mark.parametrize("ema", [NAN, INF])
def test_a_c3_average_that_is_not_finite_leaves_the_coefficient(backend, ema):
    bench = Bench(backend, lam=0.5, kl_ema=ema, observations=1)
    bench.lambda_step()
    assert bench.values().lam == 0.5
    assert reason_of(bench.values()) == Reason.FAULT


@pytest.mark.parametrize("target", [0, -1, NAN, INF])
def test_a_c4_invalid_target(backend, target):
    with pytest.raises(ValueError, match="kl_target"):
        qpi.ISV(kl_target=target, device=backend.device)
    bench = Bench(backend, lam=0.5, kl_ema=0.5, observations=1)
    with pytest.raises(ValueError, match="kl_target"):
        bench.isv.set(kl_target=target, stream=backend.stream)
    assert np.float32(bench.values().kl_target) == np.float32(0.05)
    poke(backend, bench.isv, kl_target=target)
    bench.lambda_step()
    values = bench.values()
    assert values.lam == 0.5
    assert faults_of(values) == Fault.TARGET
    with pytest.raises(qpi.FaultError, match=r"(?i)target"):
        bench.values(check=True)


# ---- arrays -------------------------------------------------------------------------------------------------------


def test_a_i1_no_rows(backend):
    bench = Bench(backend, kl_ema=0.3, observations=1)
    bench.grad(np.zeros((0, 3, 2), np.float32), np.zeros((0, 3), np.float32))
    values = bench.values(check=True)
    assert np.float32(values.kl_ema) == np.float32(0.3)
    assert values.observations == 1
    near(Bench(backend).grad(logits([[-1, 0, 1]]), f32([1, 0, -1])), [SMOKE_GRAD])


def test_a_i1_null_pointers(backend):
    bench = Bench(backend, kl_ema=0.3, observations=1)
    q, pi = logits([[-1, 0, 1]] * 2), np.zeros((2, 3), np.float32)
    op = bench.distiller(q, pi)
    device = "cpu" if backend.device == "cpu" else 0

    def null(*shape):
        return qpi.pointer(0, shape, "float32", device=device)

    op.distill_grad(null(0, 3, 2), null(0, 3), null(0, 3), stream=backend.stream)
    assert bench.values().observations == 1
    good = [backend.put(x) for x in (q, pi, np.zeros_like(pi))]
    for i, shape in enumerate(((2, 3, 2), (2, 3), (2, 3))):
        with pytest.raises(BufferError, match="null"):
            op.distill_grad(*good[:i], null(*shape), *good[i + 1 :], stream=backend.stream)
    assert not backend.get(good[2]).any()
    near(bench.grad(logits([[-1, 0, 1]]), f32([1, 0, -1])), [SMOKE_GRAD])


@pytest.mark.parametrize(("actions", "atoms"), [(0, 2), (3, 0), (0, 0)])
def test_a_i1_no_actions_or_no_atoms(cpu, actions, atoms):
    isv = make_isv(cpu)
    support = np.zeros(atoms, np.float32)
    with pytest.raises(ValueError, match=r"actions|atoms|support"):
        qpi.Distiller(support=support, actions=actions, isv=isv, reduction="sum")
    with pytest.raises(ValueError, match=r"q_logits|actions|atoms|support"):
        qpi.step(
            np.zeros((2, actions, atoms), np.float32),
            np.zeros((2, actions), np.float32),
            np.zeros((2, actions), np.float32),
            support=support,
            isv=isv,
            reduction="sum",
        )


def test_a_i2_output_with_stride_zero(cpu):
    room = np.zeros((1, 3), np.float32)
    for out in (
        np.lib.stride_tricks.as_strided(room, (4, 3), (0, 4)),
        np.lib.stride_tricks.as_strided(room, (4, 3), (12, 0)),
        np.broadcast_to(room, (4, 3)),
    ):
        with pytest.raises(BufferError, match="pi_grad"):
            Bench(cpu).grad(logits([[-1, 0, 1]] * 4), f32([1, 0, -1]).repeat(4, 0), out)
    assert not room.any()


def test_a_i2_output_whose_rows_overlap(cpu):
    room = np.zeros(64, np.float32)
    out = np.lib.stride_tricks.as_strided(room, (4, 3), (8, 4))
    with pytest.raises(BufferError, match="pi_grad"):
        Bench(cpu).grad(logits([[-1, 0, 1]] * 4), np.zeros((4, 3), np.float32), out)
    assert not room.any()


def test_a_i2_output_over_an_input_or_the_state(cpu):
    bench = Bench(cpu)
    room = np.arange(15, dtype=np.float32)
    before = room.copy()
    pi, q = room[:12].reshape(4, 3), logits([[-1, 0, 1]] * 4)
    for out in (pi, room[3:].reshape(4, 3)):
        with pytest.raises(BufferError, match="pi_grad"):
            bench.grad(q, pi, out)
    assert_same_bits(room, before)
    with pytest.raises(BufferError, match="pi_grad"):
        bench.grad(q, np.zeros((4, 3), np.float32), q.reshape(-1)[:12].reshape(4, 3))
    bus = np.zeros(600, np.float32)
    bus[[486, 487, 491, 493]] = [1, 1, 0.05, 0.05]
    kept = bus.copy()
    bench.isv = qpi.ISV.from_buffer(bus, layout="bus")
    with pytest.raises(BufferError, match="pi_grad"):
        bench.grad(q, np.zeros((4, 3), np.float32), bus[480:492].reshape(4, 3))
    assert_same_bits(bus, kept)


def test_a_i2_support_of_one_element(backend):
    support = np.broadcast_to(np.array([1.5], np.float32), 2)
    q = np.random.default_rng(0).normal(size=(1, 3, 2)).astype(np.float32)
    near(Bench(backend, support=support).grad(q, f32([0, 0, 0])), [[0, 0, 0]])


SQUARE = f32([0, 1, 2], [3, 5, 7], [-1, 4, 0])
SQUARE_GRAD = [
    [0, 0, 0],
    [-0.074154333, -0.127418043, 0.201572376],
    [-0.083457310, 0.730830284, -0.647372974],
]


def layouts_of(array):
    """The same numbers, stored in other ways."""
    wide = np.full((*array.shape[:-1], 2 * array.shape[-1]), 55, array.dtype)
    wide[..., ::2] = array
    padded = np.full((*array.shape[:-1], array.shape[-1] + 2), 55, array.dtype)
    padded[..., : array.shape[-1]] = array
    every_other_row = np.full((2 * array.shape[0], *array.shape[1:]), 55, array.dtype)
    every_other_row[::2] = array
    return {
        "packed": array.copy(),
        "transposed": np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2),
        "columns": wide[..., ::2],
        "padded": padded[..., : array.shape[-1]],
        "rows": every_other_row[::2],
        "backwards": np.ascontiguousarray(array[::-1])[::-1],
    }


@pytest.mark.parametrize("pi_layout", list(layouts_of(SQUARE)))
@pytest.mark.parametrize("grad_layout", list(layouts_of(SQUARE)))
@pytest.mark.parametrize("q_layout", ["packed", "columns", "padded"])
def test_a_i3_strides(backend, pi_layout, grad_layout, q_layout):
    bench = Bench(backend)
    q = layouts_of(logits([[-1, 0, 1]] * 3))[q_layout]
    out = layouts_of(np.zeros((3, 3), np.float32))[grad_layout]
    near(bench.grad(q, layouts_of(SQUARE)[pi_layout], out), SQUARE_GRAD)
    near(bench.values().kl_ema, 0.821193760)
    if backend.name == "cpu" and out.base is not None and grad_layout in ("columns", "padded", "rows"):
        assert (out.base == 55).sum() == out.base.size - out.size


@pytest.mark.parametrize("axis", [0, 1])
def test_a_i3_leading_dimensions_that_are_broadcast(backend, axis):
    """Rows that are not evenly spaced: refused, or read where they are; never from elsewhere."""
    shape = (2, 1, 3) if axis else (1, 2, 3)
    room = np.full(64, np.nan, np.float32)
    room[:6] = [1, 0, -1, 0, 0, 2]
    pi = np.broadcast_to(room[:6].reshape(shape), (2, 2, 3))
    q = np.broadcast_to(logits([-1, 0, 1]), (2, 2, 3, 2)).copy()
    try:
        got = Bench(backend).grad(q, pi)
    except ValueError as error:
        assert "pi_logits" in str(error)  # noqa: PT017 - refusing is as good
        return
    near(got, Bench(backend).grad(q, pi.copy()))


def test_a_i3_odd_strides_of_dimensions_of_one(backend):
    pi = np.lib.stride_tricks.as_strided(f32([1, 0, -1]), (1, 3), (4, 4))
    q = np.lib.stride_tricks.as_strided(logits([[-1, 0, 1]]), (1, 3, 2), (4, 8, 4))
    out = np.lib.stride_tricks.as_strided(np.zeros(3, np.float32), (1, 3), (0, 4))
    near(Bench(backend).grad(q, pi, out), [SMOKE_GRAD])


def test_a_i4_read_only_arrays(cpu):
    q, pi = logits([[-1, 0, 1]]), f32([1, 0, -1])
    q.flags.writeable = pi.flags.writeable = False
    near(Bench(cpu).grad(q, pi), [SMOKE_GRAD])
    spread = np.broadcast_to(q, (2, 3, 2))
    near(Bench(cpu).grad(spread, np.broadcast_to(pi, (2, 3))), [SMOKE_GRAD] * 2)
    out = np.zeros((1, 3), np.float32)
    out.flags.writeable = False
    with pytest.raises(BufferError, match="pi_grad"):
        Bench(cpu).grad(q, pi, out)
    assert not out.any()
    with pytest.raises(BufferError, match="pi_grad"):
        Bench(cpu).grad(q, pi, qpi.pointer(out.ctypes.data, (1, 3), device="cpu", readonly=True, owner=out))
    bus = np.zeros(494, np.float32)
    bus.flags.writeable = False
    with pytest.raises(BufferError):
        qpi.ISV.from_buffer(bus, layout="bus")
    assert not bus.any()


class Typed:
    """An array whose array interface announces another type string than its memory has."""

    def __init__(self, array, typestr):
        self.array = array
        self.__array_interface__ = {**array.__array_interface__, "typestr": typestr}


def test_a_i5_bfloat16_is_not_read_as_float16(backend):
    if BFLOAT16 is None:
        pytest.skip("needs ml_dtypes")
    pi = np.array([[0.5, 1, 3]], BFLOAT16)
    bench = Bench(backend)
    assert_allclose(bench.grad(logits([[0, 0, 0]]), pi), [[-0.265907975, -0.222167711, 0.488075686]], atol=1e-5)
    assert_allclose(bench.values().kl_ema, 0.598121808, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float64", "int64", "int32", "bool", "complex64", ">f4"])
@pytest.mark.parametrize("argument", ["q_logits", "pi_logits", "pi_grad"])
def test_a_i5_unsupported_dtypes_are_named(cpu, argument, dtype):
    arrays = {"q_logits": logits([[-1, 0, 1]]), "pi_logits": f32([1, 0, -1]), "pi_grad": f32([0, 0, 0])}
    op = Bench(cpu).distiller(arrays["q_logits"], arrays["pi_logits"])
    arrays[argument] = arrays[argument].astype(dtype)
    before = arrays["pi_grad"].copy()
    with pytest.raises(TypeError, match=argument) as caught:
        op.step(*arrays.values())
    word = {">f4": "byte|endian|>f4"}.get(dtype, dtype)
    assert any(w in str(caught.value) for w in word.split("|"))
    assert_array_equal(arrays["pi_grad"], before)


def test_a_i6_autograd_flags_survive(cpu):
    torch = pytest.importorskip("torch")
    pi = torch.nn.Parameter(torch.tensor([[1.0, 0, -1]]))
    base = torch.tensor(logits([[-1, 0, 1]]), requires_grad=True)
    q = base * 1
    pi.grad = torch.zeros_like(pi)
    isv = make_isv(cpu, {"lam": 1})
    op = qpi.Distiller(support=PAIR, actions=3, isv=isv, reduction="sum", value_scale="none")
    op.distill_grad(q, pi, pi.grad)
    near(pi.grad.numpy(), [SMOKE_GRAD])
    assert pi.requires_grad
    assert pi.is_leaf
    assert q.requires_grad
    assert q.grad_fn is not None
    out = torch.zeros(1, 3, requires_grad=True)
    with pytest.raises((BufferError, ValueError, TypeError), match="pi_grad"):
        op.distill_grad(q, pi, out)
    assert not out.detach().any()


# ---- scale --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [2**40, 2**62, 2**63 - 1, 2**63, 2**64, 2**64 + 1, 2**70])
def test_a_l1_too_many_rows_are_refused_before_anything_is_read(cpu, rows):
    bench = Bench(cpu)
    op = bench.distiller(logits([[-1, 0, 1]]), f32([1, 0, -1]))
    with pytest.raises(OverflowError):
        op.step(*(qpi.pointer(4096, (rows, *rest), device="cpu") for rest in ((3, 2), (3,), (3,))))
    assert bench.values().observations == 0


@pytest.mark.parametrize("rows", [-1, -(2**31), -(2**63)])
def test_a_l1_negative_rows_are_refused(cpu, rows):
    op = Bench(cpu).distiller(logits([[-1, 0, 1]]), f32([1, 0, -1]))
    with pytest.raises((ValueError, OverflowError)):
        op.step(*(qpi.pointer(4096, (rows, *rest), device="cpu") for rest in ((3, 2), (3,), (3,))))


@pytest.mark.parametrize("rows", [1, 65535, 65536, 131073])
def test_a_l2_any_batch_up_to_and_beyond_the_limits_of_a_grid(backend, rows):
    bench = Bench(backend)
    got = bench.grad(np.repeat(logits([[-1, 0, 1]]), rows, 0), np.repeat(f32([1, 0, -1]), rows, 0))
    near(got, np.broadcast_to(SMOKE_GRAD, (rows, 3)))
    assert_allclose(bench.values().kl_ema, SMOKE_KL, atol=2e-6)
    assert bench.values().rows_last == rows


# ---- packaging and embedding --------------------------------------------------------------------------------------

NO_GPU = """
import sys
import numpy as np
import qpi_distill as qpi
assert "cuda.core" not in sys.modules and "torch" not in sys.modules
isv = qpi.ISV(lam=1.0, device="cpu")
q = np.array([[[0, -40], [0, 0], [0, 40]]], np.float32)
pi, g = np.array([[1, 0, -1]], np.float32), np.zeros((1, 3), np.float32)
qpi.step(q, pi, g, support=[-1, 1], isv=isv, reduction="sum", value_scale="none")
assert np.allclose(g, [[0.575210383, 0, -0.575210383]], atol=2e-6), g
assert qpi.ISV().device in ("cpu", None) or str(qpi.ISV().device) == "cpu", qpi.ISV().device
try:
    qpi.ISV(device="cuda")
except qpi.DeviceError as error:
    assert isinstance(error, RuntimeError) and isinstance(error, qpi.QpiError)
    print("named:", error)
else:
    raise SystemExit("asking for a GPU did not fail")
"""


def test_a_p1_import_and_cpu_path_need_no_gpu():
    run = subprocess.run(
        [sys.executable, "-c", NO_GPU],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("named: ")
    assert len(run.stdout) > len("named: \n") + 10


FORK = """
import os
import numpy as np
import qpi_distill as qpi
q = np.array([[[0, -40], [0, 0], [0, 40]]], np.float32).repeat(5000, 0)
pi = np.array([[1, 0, -1]], np.float32).repeat(5000, 0)
def smoke():
    g = np.zeros_like(pi)
    qpi.step(q, pi, g, support=[-1, 1], isv=qpi.ISV(lam=1.0, device="cpu"), reduction="sum", value_scale="none")
    return bool(np.allclose(g, [[0.575210383, 0, -0.575210383]], atol=2e-6))
assert smoke()  # starts the worker threads, if there are any to start
child = os.fork()
if child == 0:
    os._exit(0 if smoke() else 1)
assert os.waitpid(child, 0)[1] == 0
assert smoke()
"""


def test_a_p1_a_forked_worker_can_step():
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, check=False, timeout=60
    )
    assert run.returncode == 0, run.stderr


def test_a_e2_each_thread_has_its_own_error_text():
    library = ctypes.CDLL(qpi.get_library())
    library.qpi_last_error_message.restype = ctypes.c_char_p
    wrong = []

    def fail(call, word, other):
        for _ in range(20_000):
            status = call()
            message = library.qpi_last_error_message()
            if status == 0 or word not in message or other in message:
                wrong.append(message)

    def succeed():
        layout = ctypes.create_string_buffer(512)
        for _ in range(20_000):
            library.qpi_layout_native(layout)
            if library.qpi_last_error_message() != b"":
                wrong.append(b"an error that is not this thread's")

    threads = [
        threading.Thread(target=fail, args=(lambda: library.qpi_isv_slot_info(0, None), b"info", b"isv")),
        threading.Thread(
            target=fail, args=(lambda: library.qpi_seed_lambda_controller(None, -1, None), b"isv", b"slot")
        ),
        threading.Thread(target=succeed),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:3]
