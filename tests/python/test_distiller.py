"""The operator: its arguments and shapes, what it plans, and the function forms. The mathematics has its own folder."""

from __future__ import annotations

import inspect
import math
import threading

import hypothesis
import hypothesis.strategies as st
import numpy as np
import producers as fake
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from producers import SMOKE_GRAD, SMOKE_KL, CudaArray, exchange_class, smoke

import qpi_distill as qpi

ml_dtypes = pytest.importorskip("ml_dtypes")


def make(isv=None, **options):
    isv = qpi.ISV(lam=1.0, device="cpu") if isv is None else isv
    defaults = {"support": [-1, 1], "actions": 3, "isv": isv, "reduction": "sum", "value_scale": "none"}
    return qpi.Distiller(**{**defaults, **options})


def reference(q, pi, grad, legal=None, weights=None, scale=1.0, *, support=(-1.0, 1.0), lam=1.0):
    """The gradient in float64, for well-behaved rows."""
    p = np.exp(q.astype(np.float64) - q.max(-1, keepdims=True).astype(np.float64))
    value = (p / p.sum(-1, keepdims=True)) @ np.asarray(support, np.float64)
    x, legal = pi.astype(np.float64), np.ones(pi.shape, bool) if legal is None else legal.astype(bool)

    def softmax(x):
        e = np.where(legal, np.exp(x - np.where(legal, x, -np.inf).max(-1, keepdims=True)), 0)
        return e / e.sum(-1, keepdims=True)

    step = lam * scale * (softmax(x) - softmax(value))
    return grad + (step if weights is None else step * weights[..., None])


# ---- construction ---------------------------------------------------------------------------------------------------


def test_reduction_is_required():
    with pytest.raises(TypeError, match="reduction"):
        qpi.Distiller(support=[-1, 1], actions=3, isv=qpi.ISV(device="cpu"))


@pytest.mark.parametrize("option", ["reduction", "mode", "value_scale", "kl_stat", "kernel"])
@pytest.mark.parametrize("value", ["avg", "", None, 1])
def test_options_by_name(option, value):
    with pytest.raises(ValueError, match=option):
        make(**{option: value})


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"actions": None}, ValueError, "actions"),
        ({"actions": 0}, ValueError, "actions"),
        ({"actions": -3}, ValueError, "actions"),
        ({"actions": 5000}, OverflowError, "actions"),
        ({"atoms": 3}, ValueError, "atoms"),
        ({"support": []}, ValueError, "atoms"),
        ({"support": np.zeros((2, 2))}, ValueError, "actions"),
        ({"support": np.zeros((3, 2, 2))}, ValueError, "support"),
        ({"support": 1.0}, TypeError, "support"),
        ({"support": np.float32(1)}, ValueError, "support"),
        ({"support": [0, math.nan]}, ValueError, "support"),
        ({"support": [0, math.inf]}, ValueError, "support"),
        ({"support": [0, 1e39]}, ValueError, "support"),
        ({"support": ["a", "b"]}, TypeError, "support"),
        ({"support": np.zeros(2, complex)}, TypeError, "support"),
        ({"support": None}, TypeError, "support"),
        ({"support": CudaArray(np.zeros(2, np.float32))}, BufferError, "support"),
        ({"support": memoryview(np.zeros(2))}, TypeError, "support"),
        ({"isv": None}, TypeError, "isv"),
        ({"isv": np.zeros(494, np.float32)}, TypeError, "isv"),
        ({"q_dtype": "float64"}, TypeError, "q_dtype"),
        ({"pi_dtype": np.int32}, TypeError, "pi_dtype"),
        ({"grad_dtype": "float16"}, TypeError, "grad_dtype"),
        ({"illegal_below": math.nan}, ValueError, "illegal_below"),
        ({"illegal_below": math.inf}, ValueError, "illegal_below"),
        ({"max_threads": -1}, ValueError, "max_threads"),
        ({"max_blocks": -1}, ValueError, "max_blocks"),
        ({"kernel": "tile"}, TypeError, "kernel"),
        ({"colour": "red"}, TypeError, "colour"),
    ],
)
def test_problems_that_cannot_be(options, error, match):
    defaults = {"support": [-1, 1], "actions": 3, "isv": qpi.ISV(device="cpu"), "reduction": "sum"}
    with pytest.raises(error, match=match):
        qpi.Distiller(**{**defaults, **options})


@pytest.mark.parametrize(
    "support",
    [
        [-1, 1],
        (-1.0, 1.0),
        range(-1, 2, 2),
        np.array([-1, 1]),
        np.array([-1, 1], np.float64),
        np.array([-1, 1], ">f4"),
        np.array([-1, 1], ml_dtypes.bfloat16),
        np.array([-1, 9, 1, 9], np.float32)[::2],
        np.array([[-1, 1]] * 3),
        np.array([[-1, -1, -1], [1, 1, 1]], np.float32).T,
        memoryview(np.array([-1, 1], np.float32)),
        memoryview(np.array([-1, 9, 1, 9], np.float32)[::2]),
        exchange_class()(np.array([-1, 1], np.float32)),
    ],
)
def test_supports(support):
    op = make(support=support)
    assert (op.actions, op.atoms) == (3, 2)
    q, pi, grad = smoke()
    op.step(q, pi, grad)
    assert_allclose(grad, SMOKE_GRAD, atol=2e-6)


def test_a_host_support_is_copied_and_another_is_used_in_place():
    q, pi, _ = smoke()
    for wrap, copied in ((lambda x: x, True), (memoryview, False)):
        values = np.array([-1, 1], np.float32)
        op, grad = make(support=wrap(values)), np.zeros_like(pi)
        values[:] = 0
        op.step(q, pi, grad)
        want = SMOKE_GRAD if copied else reference(q, pi, 0, support=(0, 0))
        assert_allclose(grad, want, atol=2e-6)


def test_a_i2_a_support_of_one_element_with_stride_zero():
    one = np.broadcast_to(np.array([1.5], np.float32), (2,))
    op = make(support=memoryview(one))
    q, pi, grad = smoke()
    op.step(np.random.default_rng(0).normal(size=q.shape).astype(np.float32), pi, grad)
    assert_allclose(grad, reference(0 * q, pi, 0), atol=2e-6)


def test_what_it_tells_about_itself():
    op = make(kernel="baseline", max_threads=1)
    assert "baseline" in op.explain(1000)
    assert op.explain(0)
    assert "3 actions" in repr(op)
    for rows, error in ((-1, ValueError), (2**40, OverflowError), (2**70, OverflowError)):
        with pytest.raises(error):
            op.explain(rows)


def test_signatures_can_be_read():
    for method in (qpi.Distiller.step, qpi.Distiller.accumulate, qpi.Distiller.distill_grad, qpi.Distiller.bind):
        parameters = list(inspect.signature(method).parameters)
        assert parameters[1:4] == ["q_logits", "pi_logits", "pi_grad"]
        assert parameters[-1] == "stream"
        assert method.__doc__


# ---- shapes and strides ---------------------------------------------------------------------------------------------


@st.composite
def layouts(draw):
    """Leading dimensions, and for each array how its rows are laid out in memory."""
    lead = draw(st.lists(st.integers(0, 4), min_size=0, max_size=3))
    return tuple(lead), draw(st.integers(1, 5)), draw(st.integers(1, 4)), draw(st.integers(0, 2**30))


@hypothesis.given(layouts())
def test_strides_do_not_matter(layout):
    """Rows with gaps, reversed inner axes, permuted inner axes: the numbers of the packed call, in place."""
    lead, actions, atoms, seed = layout
    rng = np.random.default_rng(seed)
    support = np.sort(rng.normal(size=atoms)).astype(np.float32)
    op = make(support=support, actions=actions)

    def strided(array, inner):
        """The same values with other strides: a gap after each row, and maybe backwards or permuted inside."""
        rows, tail = array.shape[: array.ndim - inner], array.shape[array.ndim - inner :]
        order = rng.permutation(inner)
        gap, step = int(rng.integers(0, 3)), int(rng.choice([1, 2, -1]))
        last = tail[order[-1]] * abs(step)
        base = np.full((*rows, *(tail[i] for i in order[:-1]), last + gap), 7, array.dtype)
        view = base[..., : last : abs(step)]
        view = view[..., ::-1] if step < 0 else view
        view = view.transpose(*range(len(rows)), *(len(rows) + np.argsort(order)))
        view[...] = array
        return view

    q = rng.normal(size=(*lead, actions, atoms)).astype(np.float32)
    pi = rng.normal(size=(*lead, actions)).astype(np.float32)
    grad = rng.normal(size=(*lead, actions)).astype(np.float32)
    legal = rng.random((*lead, actions)) < 0.8
    legal[..., 0] = True
    weights = rng.random(lead).astype(np.float32)
    want = grad.copy()
    op.accumulate(q, pi, want, legal_actions=legal, row_weights=weights)
    assert_allclose(want, reference(q, pi, grad, legal, weights, support=support), atol=1e-5)

    views = [strided(x, inner) for x, inner in ((q, 2), (pi, 1), (grad, 1), (legal, 1))]
    op.accumulate(views[0], views[1], views[2], legal_actions=views[3], row_weights=weights)
    assert_array_equal(views[2], want)


def test_a_i3_a_transposed_input_is_read_by_its_strides(op):
    values = np.array([[0, 1, 2], [3, 5, 7], [-1, 4, 0]], np.float32)
    want = [
        [0, 0, 0],
        [-0.074154333, -0.127418043, 0.201572376],
        [-0.083457310, 0.730830284, -0.647372974],
    ]
    q = np.repeat(smoke()[0], 3, 0)
    wide = np.zeros((3, 6), np.float32)
    wide[:, ::2] = values
    padded = np.zeros((3, 5), np.float32)
    padded[:, :3] = values
    for pi in (values, np.asfortranarray(values), wide[:, ::2], padded[:, :3], padded[:, 2::-1][:, ::-1]):
        grad = np.zeros((3, 3), np.float32, order="F")
        op.step(q, pi, grad)
        assert_allclose(grad, want, atol=2e-6)


def test_a_i3_odd_strides_of_single_elements(op):
    """A dimension of one element may have any stride, and needs no plan of its own."""
    q, pi, grad = smoke()
    raw = np.zeros(40, np.float32)
    odd = np.ndarray((1, 3), np.float32, raw, 0, (4 * 17, 4))
    odd[:] = pi
    for _ in range(2):
        op.step(np.ndarray(q.shape, np.float32, q.copy(), 0, (4, 8, 4)), odd, grad)
    assert_allclose(grad, 2 * SMOKE_GRAD, atol=4e-6)
    assert op.plan_count == 1


@pytest.mark.parametrize("lead", [(), (4,), (2, 3), (1, 2, 1, 3), (2, 1, 2, 1, 2)])
def test_leading_dimensions_are_free(op, isv, lead):
    q, pi, grad = (np.broadcast_to(x[0], (*lead, *x.shape[1:])).copy() for x in smoke())
    op.step(q, pi, grad, row_weights=np.ones(lead, np.float32), legal_actions=np.ones((*lead, 3), bool))
    assert_allclose(grad, np.broadcast_to(SMOKE_GRAD[0], grad.shape), atol=2e-6)
    assert isv.read().rows_last == max(1, math.prod(lead))
    assert op.plan_count == 1


def test_leading_dimensions_that_do_not_collapse(op):
    """No hidden copy: rows that are not evenly spaced are refused, and nothing is written."""
    q, pi, grad = (np.broadcast_to(x[0], (2, 4, *x.shape[1:])).copy() for x in smoke())
    big = np.zeros((2, 6, 3), np.float32)
    for name, arguments in {
        "pi_logits": (q, big[:, :4], grad),
        "pi_grad": (q, pi, big[:, :4]),
        "q_logits": (np.repeat(q, 2, 1)[:, :4], pi, grad),
    }.items():
        with pytest.raises(ValueError, match=f"{name}.*collapse"):
            op.step(*arguments)
    with pytest.raises(ValueError, match=r"pi_logits.*collapse"):
        op.step(q, np.zeros((4, 2, 3), np.float32).transpose(1, 0, 2), grad)
    assert not grad.any()
    assert not big.any()


@pytest.mark.parametrize(
    ("strides", "fine"),
    [((0, 0), True), ((12, 0), False), ((0, 12), False), ((48, 12), True), ((12, 48), False), ((-48, -12), True)],
)
def test_which_leading_strides_collapse(op, strides, fine):
    memory = np.zeros(400, np.float32)
    pi = np.ndarray((2, 4, 3), np.float32, memory, 800, (*strides, 4))
    q, grad = np.zeros((2, 4, 3, 2), np.float32), np.zeros((2, 4, 3), np.float32)
    if fine:
        op.step(q, pi, grad)
    else:
        with pytest.raises(ValueError, match="collapse"):
            op.step(q, pi, grad)


SHAPES = {
    "q_logits": [(1, 3, 3), (1, 4, 2), (3,), (), (1, 2, 3)],
    "pi_logits": [(1, 2), (2, 3), (3,), (), (1, 1, 3), (1, 3, 1)],
    "pi_grad": [(1, 2), (2, 3), (3,), (), (1, 1, 3)],
    "legal_actions": [(1, 2), (3,), (1,), ()],
    "row_weights": [(2,), (1, 1), ()],
}


@pytest.mark.parametrize(("name", "shape"), [(name, shape) for name, shapes in SHAPES.items() for shape in shapes])
def test_shapes_that_do_not_fit(op, isv, name, shape):
    arrays = dict(zip(("q_logits", "pi_logits", "pi_grad"), smoke(), strict=True))
    arrays |= {"legal_actions": np.ones((1, 3), bool), "row_weights": np.ones(1, np.float32)}
    grad = arrays["pi_grad"]
    arrays[name] = np.zeros(shape, arrays[name].dtype)
    before = isv.read().raw
    match = "|".join(SHAPES) if name == "q_logits" else name
    with pytest.raises(ValueError, match=match):
        op.step(**arrays)
    assert not grad.any()
    assert isv.read().raw == before


@pytest.mark.parametrize("scale", [0.0, 2.5])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_grad_scale(op, scale, shape):
    q, pi, grad = smoke()
    op.step(q, pi, grad, grad_scale=np.full(shape, scale, np.float32))
    assert_allclose(grad, scale * SMOKE_GRAD, atol=6e-6)


def test_grad_scale_that_is_none(op):
    q, pi, grad = smoke()
    for value, error in ((np.ones(2, np.float32), ValueError), (np.ones(1), TypeError), (2.0, TypeError)):
        with pytest.raises(error, match="grad_scale"):
            op.step(q, pi, grad, grad_scale=value)
    with pytest.raises(ValueError, match="grad_scale"):
        op.step(q, pi, grad, grad_scale=np.ones(0, np.float32))


# ---- empty batches --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lead", [(0,), (0, 5), (5, 0), (0, 0)])
def test_a_i1_no_rows_change_nothing(isv, op, lead):
    isv.set(kl_ema=0.3, observations=1)
    before = isv.state_dict()
    q, pi, grad = (np.zeros((*lead, *x.shape[1:]), np.float32) for x in smoke())
    null = [qpi.pointer(0, x.shape, device="cpu") for x in (q, pi, grad)]
    for arrays in ((q, pi, grad), null):
        op.step(*arrays)
        op.distill_grad(*arrays, row_weights=np.zeros(lead, np.float32))
        op.bind(*arrays).step()
        assert op.measure(*arrays[:2]).rows == 0
        assert math.isnan(op.measure(*arrays[:2]).kl)
    after = isv.state_dict()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    op.step(*smoke())
    assert isv.read().observations == 2


# ---- outputs that share memory --------------------------------------------------------------------------------------


def test_a_i2_broadcast_outputs(op):
    q, pi, _ = (np.broadcast_to(x[0], (4, *x.shape[1:])).copy() for x in smoke())
    memory = np.zeros(64, np.float32)
    outputs = [
        np.lib.stride_tricks.as_strided(memory, (4, 3), (0, 4)),
        np.lib.stride_tricks.as_strided(memory, (4, 3), (12, 0)),
        np.lib.stride_tricks.as_strided(memory, (4, 3), (4, 4)),
        np.broadcast_to(memory[:3], (4, 3)),
        qpi.pointer(fake.address(memory), (4, 3), device="cpu", strides=(0, 1)),
    ]
    for output in outputs:
        with pytest.raises(BufferError, match="pi_grad"):
            op.step(q, pi, output)
    assert not memory.any()


@pytest.mark.parametrize("what", ["pi_logits", "shifted", "q_logits", "isv", "weights", "support"])
def test_a_i2_outputs_that_overlap(what):
    isv = qpi.ISV(lam=1.0, device="cpu")
    support = np.array([-1, 1, 0, 0, 0, 0], np.float32)
    op = make(isv, support=memoryview(support[:2]))
    q, pi, _ = (np.broadcast_to(x[0], (4, *x.shape[1:])).copy() for x in smoke())
    weights = np.ones(16, np.float32)
    both = np.zeros((5, 3), np.float32)
    both[:4] = pi
    rows = 4
    if what == "pi_logits":
        pi = grad = both[:4]
    elif what == "shifted":
        pi, grad = both[:4], both[1:]
    elif what == "q_logits":
        grad = q.reshape(-1)[:12].reshape(4, 3)
    elif what == "isv":
        grad = isv.slots[:12].reshape(4, 3)
    elif what == "weights":
        grad = weights[:12].reshape(4, 3)
    else:
        grad, rows = support[1:4].reshape(1, 3), 1
    arrays = (q, pi, weights, support, isv.slots)
    before = [x.copy() for x in arrays]
    with pytest.raises(BufferError, match="pi_grad"):
        op.step(q[:rows], pi[:rows], grad, row_weights=weights[:rows])
    for now, then in zip(arrays, before, strict=True):
        assert_array_equal(now, then)


def test_misaligned_memory(op):
    q, _, grad = smoke()
    raw = np.zeros(13, np.uint8)[1:].view(np.float32).reshape(1, 3)
    with pytest.raises(BufferError, match="pi_logits"):
        op.step(q, raw, grad)


# ---- plans ----------------------------------------------------------------------------------------------------------


def test_plans_are_made_once_for_each_combination(op):
    q, pi, grad = smoke()
    assert op.plan_count == 1
    for _ in range(3):
        op.step(q, pi, grad)
        op.step(q, pi, grad, legal_actions=np.ones((1, 3), bool), row_weights=np.ones(1, np.float32))
        op.measure(q, pi)
    assert op.plan_count == 1
    for _ in range(3):
        op.step(q.astype(np.float16), pi, grad)
        op.step(q.astype(np.float16), pi.astype(np.float16), grad.astype(np.float16))
    assert op.plan_count == 3
    wide = np.zeros((2, 6), np.float32)
    for _ in range(3):
        op.step(np.repeat(q, 2, 0), np.repeat(pi, 2, 0), wide[:, :3])
    assert op.plan_count == 4
    op.prepare("float16", "float32", "float32")
    assert op.plan_count == 4
    op.prepare("bfloat16", np.dtype(ml_dtypes.bfloat16))
    assert op.plan_count == 5
    with pytest.raises(TypeError, match="pi_dtype"):
        op.prepare("float32", "int8")


def test_plans_are_kept_as_long_as_their_operator(op, isv):
    """A captured graph may rely on any plan, so none makes room for another; equal layouts share one."""
    q, pi, grad = (np.repeat(x, 2, 0) for x in smoke())
    bound = op.bind(q, pi, grad)
    for round_ in range(2):
        for extra in range(1, 400):
            wide = np.zeros((2, 3 + extra), np.float32)
            isv.set(lam=1.0)
            op.step(q, pi, wide[:, :3])
            assert_allclose(wide[:, :3], np.repeat(SMOKE_GRAD, 2, 0), atol=2e-6)
            assert not wide[:, 3:].any()
        assert op.plan_count == 400, round_
    isv.set(lam=1.0)
    bound.step()
    assert_allclose(grad, np.repeat(SMOKE_GRAD, 2, 0), atol=2e-6)


def test_plans_do_not_grow_with_calls_or_rows(op):
    q, pi, grad = smoke()
    for rows in range(2, 300):
        op.step(np.repeat(q, rows, 0), np.repeat(pi, rows, 0), np.repeat(grad, rows, 0))
    assert op.plan_count == 1


def test_plans_are_made_by_many_threads_at_once():
    """Each thread has its ISV; the operators' plans are shared between the threads that use one."""
    q = smoke()[0]
    ops = [make() for _ in range(4)]
    barrier, errors = threading.Barrier(8), []

    def work(n):
        op = ops[n % 4]
        barrier.wait()
        try:
            for k in range(1, 40):
                wide = np.zeros((1, 2, 3 + k), np.float32)
                op.measure(np.repeat(q[None], 2, 1), wide[..., :3])
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert [op.plan_count for op in ops] == [40] * 4


def test_two_threads_two_isvs_one_process():
    q, pi, _ = (np.broadcast_to(x[0], (64, *x.shape[1:])).copy() for x in smoke())
    results = {}

    def work(n):
        op = make()
        grad = np.zeros_like(pi)
        for _ in range(300):
            op.step(q, pi, grad)
        results[n] = (op.isv.read().observations, grad.tobytes())

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(results.values())) == 1
    assert results[0][0] == 300


# ---- the calls ------------------------------------------------------------------------------------------------------


def test_step_is_accumulate_and_commit():
    q, pi, _ = smoke()
    whole, parts = make(), make()
    a, b = np.zeros_like(pi), np.zeros_like(pi)
    for _ in range(3):
        whole.step(q, pi, a)
        parts.accumulate(q, pi, b)
        parts.commit()
    assert_array_equal(a, b)
    assert whole.isv.read().raw == parts.isv.read().raw


def test_distill_grad_leaves_lam(op, isv):
    q, pi, grad = smoke()
    isv.set(kl_ema=10, observations=1, lam=0.5)
    op.distill_grad(q, pi, grad)
    assert isv.read().lam == 0.5
    assert isv.read().reason == "observed"
    assert isv.read().observations == 2


def test_measure_changes_nothing(op, isv):
    q, pi, grad = (np.broadcast_to(x[0], (4, *x.shape[1:])).copy() for x in smoke())
    op.accumulate(q, pi, grad)
    before, record = isv.state_dict(), isv.record_views().sums.copy()
    pi[1] = np.nan
    got = op.measure(q, pi, row_weights=np.array([1, 1, 2, 0], np.float32))
    assert abs(got.kl - SMOKE_KL) < 3e-6
    assert (got.weight, got.rows, got.skipped, got.clipped, got.faults) == (3, 3 - (got.rows == 2), 1, 0, ())
    assert abs(got.value_std - math.sqrt(2 / 3)) < 1e-6
    assert op.measure(q, pi, row_weights=np.array([-1, 1, 1, 1], np.float32)).faults == ("weight",)
    after = isv.state_dict()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert_array_equal(isv.record_views().sums, record)


def test_row0_is_for_one_call(isv):
    op = make(isv, kl_stat="row0")
    q, pi, grad = smoke()
    with pytest.raises(ValueError, match="kl_stat"):
        op.accumulate(q, pi, grad)
    op.step(q, pi, grad)


@pytest.mark.parametrize(("mode", "start"), [("add", 5.0), ("write", 0.0)])
def test_modes(mode, start):
    q, pi, grad = smoke()
    grad[:] = 5
    make(mode=mode).step(q, pi, grad)
    assert_allclose(grad, SMOKE_GRAD + start, atol=2e-6)


def test_illegal_below(isv):
    q, _, grad = smoke()
    pi = np.array([[1, -1e8, -1]], np.float32)
    make(isv, illegal_below=-1e7).step(q, pi, grad)
    assert grad[0, 1] == 0
    assert_allclose(grad, reference(q, pi, 0, pi > -1e7), atol=2e-6)


def test_a_failed_call_changes_nothing(op, isv):
    q, pi, grad = smoke()
    before = isv.state_dict()
    bad = [
        ((q, pi, grad), {"row_weights": np.ones(2, np.float32)}),
        ((q, pi, grad), {"legal_actions": pi}),
        ((q, pi, grad), {"grad_scale": 1.0}),
        ((q, pi, grad), {"stream": 3}),
        ((q, pi, grad), {"colour": "red"}),
        ((q, pi), {}),
        ((q, pi, None), {}),
        ((None, pi, grad), {}),
        ((q, pi, pi), {}),
    ]
    for arguments, keywords in bad:
        with pytest.raises((TypeError, ValueError, BufferError)):
            op.step(*arguments, **keywords)
    after = isv.state_dict()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert not grad.any()


# ---- functions ------------------------------------------------------------------------------------------------------


def test_functions(isv):
    q, pi, grad = smoke()
    common = {"support": [-1, 1], "isv": isv, "reduction": "sum", "value_scale": "none"}
    qpi.step(q, pi, grad, **common)
    assert_allclose(grad, SMOKE_GRAD, atol=2e-6)
    qpi.distill_grad(q, pi, grad, **common, row_weights=np.full(1, 2, np.float32))
    assert_allclose(grad, 3 * SMOKE_GRAD, atol=6e-6)
    assert isv.read().observations == 2
    with pytest.raises(TypeError, match="reduction"):
        qpi.step(q, pi, grad, support=[-1, 1], isv=isv)
    with pytest.raises(TypeError, match="isv"):
        qpi.step(q, pi, grad, support=[-1, 1], isv=None, reduction="sum")
    with pytest.raises(ValueError, match="q_logits"):
        qpi.step(pi[0], pi, grad, **common)
    with pytest.raises(TypeError, match="q_logits"):
        qpi.step(3, pi, grad, **common)


def test_functions_keep_their_operators(isv):
    q, pi, grad = smoke()
    support = np.array([-1, 1], np.float32)
    common = {"isv": isv, "reduction": "sum", "value_scale": "none"}
    for _ in range(5):
        qpi.step(q, pi, grad, support=support, **common)
        qpi.step(q, pi, grad, support=support.copy(), **common)
    assert len(isv._operators) == 1
    support[:] = 0
    grad[:] = 0
    qpi.step(q, pi, grad, support=support, **common)
    assert_allclose(grad, reference(q, pi, 0, support=(0, 0)), atol=2e-6)
    for n in range(40):
        qpi.step(q, pi, grad, support=[-1, n], **common)
    assert len(isv._operators) <= 16


def test_functions_know_supports_of_other_libraries_apart(isv):
    q, pi, _ = smoke()
    for values in ([-1, 1], [0, 0], [-1, 1]):
        grad = np.zeros_like(pi)
        array = exchange_class()(np.array(values, np.float32))
        qpi.step(q, pi, grad, support=array, isv=isv, reduction="sum", value_scale="none")
        isv.set(lam=1.0)
        assert_allclose(grad, reference(q, pi, 0, support=values), atol=2e-6)


def test_the_drop_in_functions():
    rng = np.random.default_rng(0)
    q, pi = rng.normal(size=(2, 3, 11, 21)).astype(np.float32), rng.normal(size=(2, 3, 11)).astype(np.float32)
    grad, support = np.zeros_like(pi), qpi.linspace(-10, 10, 21)
    bus = np.zeros(600, np.float32)
    bus[[486, 487, 491, 493]] = [0.5, 1, 0.01, 0.05]
    qpi.seed_distill_grad(q, pi, support, bus, grad)
    assert_allclose(grad, reference(q, pi, 0, support=support, lam=0.5), atol=3e-6)
    assert bus[488] > 0.03
    qpi.seed_lambda_controller(bus)
    assert bus[486] == np.float32(0.6)
    isv = qpi.ISV.from_buffer(bus)
    qpi.seed_lambda_controller(isv)
    assert isv.read().lam == np.float32(0.72)


@pytest.mark.parametrize(
    ("position", "value", "error"),
    [
        (0, np.zeros((2, 11, 20), np.float32), ValueError),
        (0, np.zeros((2, 11, 42), np.float32)[..., ::2], ValueError),
        (0, np.zeros((2, 11, 21), np.float16), TypeError),
        (1, np.zeros((3, 11), np.float32), ValueError),
        (2, np.zeros(20, np.float32), ValueError),
        (2, np.zeros((2, 21), np.float32), ValueError),
        (3, np.zeros(493, np.float32), ValueError),
        (3, np.zeros(494, np.uint32), TypeError),
        (3, qpi.ISV(device="cpu"), ValueError),
        (4, np.zeros((2, 10), np.float32), ValueError),
        (4, np.broadcast_to(np.zeros(11, np.float32), (2, 11)), BufferError),
    ],
)
def test_the_drop_in_functions_check_their_arguments(position, value, error):
    arguments = [
        np.zeros((2, 11, 21), np.float32),
        np.zeros((2, 11), np.float32),
        np.zeros(21, np.float32),
        np.zeros(494, np.float32),
        np.zeros((2, 11), np.float32),
    ]
    arguments[position] = value
    with pytest.raises(error):
        qpi.seed_distill_grad(*arguments)
    if position == 3:
        with pytest.raises(error):
            qpi.seed_lambda_controller(value)


def test_paths_and_information():
    from pathlib import Path

    assert (Path(qpi.get_include()) / "qpi_distill.h").is_file()
    assert Path(qpi.get_library()).parent == Path(qpi.get_library_dir())
    info = qpi.info()
    assert info["version"] == qpi.__version__
    if not info["gpu"]["built"]:
        with pytest.raises(FileNotFoundError, match="fatbin"):
            qpi.get_seed_fatbin()


def test_a_masked_support_is_refused(isv):
    with pytest.raises(BufferError, match="support: masked"):
        make(isv, support=np.ma.masked_array([1.0, 2.0, 3.0], [0, 0, 1]))


@pytest.mark.parametrize("actions", [3.0, True, "3"])
def test_a_number_of_actions_is_an_integer(isv, actions):
    with pytest.raises(TypeError, match=r"actions: .* is not an integer"):
        make(isv, support=[-1, 1], actions=actions)


def test_a_second_initialisation_changes_nothing(isv):
    op = make(isv)
    with pytest.raises(RuntimeError):
        op.__init__(actions=5, support=[1, 2], isv=qpi.ISV(device="cpu"), reduction="mean")
    assert op.isv is isv
    assert op.actions == 3


def pair(**options):
    """Two rows of SMOKE, their ISV at lam = 1, and the operator."""
    isv = qpi.ISV(lam=1, device="cpu")
    return isv, make(isv, reduction="sum", value_scale="none", **options), *(np.concatenate([x, x]) for x in smoke())


def test_row0_leaves_the_other_rows_counts_and_faults():
    isv, op, q, pi, grad = pair(kl_stat="row0")
    op.step(q, pi, grad, row_weights=np.array([1, -1], np.float32))
    values = isv.read(check=False)
    assert (values.rows_last, values.skipped_last, values.faults) == (1, 1, ("weight",))
    assert_allclose(grad, [SMOKE_GRAD[0], [0, 0, 0]], atol=2e-6)


@pytest.mark.parametrize("lam_max", [1, 1e38])
def test_a_product_beyond_float32_is_a_fault_and_no_gradient(lam_max):
    isv, op, q, pi, grad = pair()
    isv.set(lam_max=lam_max, lam=lam_max)
    op.step(q, pi, grad, grad_scale=np.array([1e38 if lam_max > 1 else np.inf], np.float32))
    values = isv.read(check=False)
    assert values.faults == ("grad_scale",)
    assert values.rows_last == 2
    assert not grad.any()


def test_a_weight_whose_product_with_lam_is_beyond_float32_skips_its_row():
    isv, op, q, pi, grad = pair()
    isv.set(lam_max=100, lam=100)
    op.step(q, pi, grad, row_weights=np.array([1, 1e38], np.float32))
    values = isv.read(check=False)
    assert (values.skipped_last, values.faults) == (1, ("weight",))
    assert not grad[1].any()
    assert np.isfinite(grad).all()


def test_a_kl_that_is_not_finite_is_counted_whatever_the_bound():
    isv, op, q, pi, grad = pair()
    isv.slots[isv.layout["kl_row_max"]] = np.inf
    pi[1] = [3e38, -3e38, -3e38]
    op.step(q, pi, grad)
    values = isv.read()
    assert (values.rows_last, values.clipped_last) == (1, 1)
    assert_allclose(values.kl_ema, SMOKE_KL, atol=2e-6)
