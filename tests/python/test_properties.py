"""What must hold for any batch: properties over generated shapes, dtypes, masks, weights, layouts and magnitudes."""

import math
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given
from numpy.testing import assert_allclose

from reference.tolerance import gradient_tolerance
from stepping import assert_same_bits, check, distiller, frozen, make_isv, model, random_problem, record_bytes, run
from strategies import pairs, problems, spoiled

pytest.importorskip("ml_dtypes")

# ---- against the reference ----------------------------------------------------------------------------------------


@given(problem=problems())
def test_any_batch(backend, problem):
    check(run(backend, problem), problem)


@given(problem=spoiled(problems(max_actions=16, max_atoms=24)))
def test_any_batch_with_bad_numbers(backend, problem):
    check(run(backend, problem), problem)


# ---- the same bits ------------------------------------------------------------------------------------------------


def assert_same(a, b):
    assert_same_bits(a.grad.reshape(-1), b.grad.reshape(-1))
    assert record_bytes(a.record) == record_bytes(b.record)
    assert frozen(a.values) == frozen(b.values)


@given(pair=pairs(spoiled(problems(max_actions=40, max_atoms=64))))
def test_memory_layout_does_not_change_a_bit(backend, pair):
    packed, other = pair
    assert_same(run(backend, packed), run(backend, other))


@pytest.mark.parametrize("rows", [1, 8, 1000, 40_000])
def test_threads_and_blocks_do_not_change_a_bit(backend, rows):
    problem = random_problem(np.random.default_rng(rows), rows, 4, 21, weighted=True, masked=True)
    problem.pi[::97] = np.nan
    limit = "max_threads" if backend.name == "cpu" else "max_blocks"
    first = run(backend, problem)
    for n in (1, 2, 3, 7, 64):
        assert_same(first, run(backend, problem, **{limit: n}))


@given(problem=spoiled(problems()))
def test_kernels_do_not_change_a_bit(backend, problem):
    """Each of the backend's kernels (on the CPU: instruction sets) that this machine can run."""
    want = run(backend, problem)
    for kernel in backend.kernels:
        try:
            got = run(backend, problem, kernel=kernel)
        except ValueError as error:
            assert "shared memory" in str(error)  # noqa: PT017 - rows too large for that kernel
            continue
        assert_same(got, want)


@given(problem=spoiled(problems(max_actions=16, max_atoms=24)))
def test_runs_repeat_to_the_bit(backend, problem):
    assert_same(run(backend, problem), run(backend, problem))


@given(problem=problems(max_actions=12, max_atoms=24), seed=st.integers(0, 1000))
def test_rows_do_not_see_each_other(backend, problem, seed):
    """Permuting rows permutes the gradient, to the bit; the statistic keeps its value."""
    problem = problem.flat
    order = np.random.default_rng(seed).permutation(len(problem.pi))
    arrays = {name: getattr(problem, name) for name in ("q", "pi", "grad", "legal", "weights")}
    other = replace(problem, **{name: None if x is None else x[order] for name, x in arrays.items()})
    a, b = run(backend, problem), run(backend, other)
    assert_same_bits(a.grad[order], b.grad)
    assert a.record.rows == b.record.rows
    assert_allclose(a.record.weighted_kl, b.record.weighted_kl, rtol=1e-12)


@given(problem=problems(half=False))
def test_leading_dimensions_are_rows(backend, problem):
    assert_same(run(backend, problem), run(backend, problem.flat))


# ---- mathematics --------------------------------------------------------------------------------------------------

ORDINARY = problems(half=False, extreme=False, per_action=False, mode="add", grad_scale=None, max_atoms=32)


def increments(backend, problem, **changes):
    problem = replace(problem, **changes)
    return run(backend, replace(problem, grad=np.zeros(problem.pi.shape, np.float32)))


def slack(problem):
    """What float32 may do to each increment."""
    _, rows, loop, _ = model(problem)
    p = problem.flat
    return gradient_tolerance(rows, loop, p.options, p.support, np.zeros_like(p.grad))


def assert_close(got, want, bound):
    assert np.all(np.abs(np.float64(got) - want).reshape(bound.shape) <= bound)


@given(problem=ORDINARY)
def test_gradient_sums_to_zero_over_the_legal_actions(backend, problem):
    total = increments(backend, problem).grad.astype(np.float64).sum(-1).reshape(-1)
    _, rows, loop, _ = model(problem)
    assert np.all(np.abs(total) <= 1e-6 * float(loop["lam"]) * rows.weight + 1e-40)


@given(problem=ORDINARY)
def test_kl_is_never_negative(backend, problem):
    outcome = run(backend, problem)
    assert outcome.record.weighted_kl >= 0
    assert outcome.values.kl_ema >= 0


@given(problem=ORDINARY, shift=st.integers(-50, 50))
def test_policy_logits_may_be_shifted(backend, problem, shift):
    pi = (np.round(problem.pi * 256) / 256).astype(np.float32)  # so that the shift is exact
    first = increments(backend, problem, pi=pi)
    second = increments(backend, problem, pi=pi + np.float32(shift))
    assert_close(first.grad, second.grad, 2 * slack(problem))
    assert_allclose(first.record.weighted_kl, second.record.weighted_kl, rtol=1e-5, atol=1e-4)


@given(problem=ORDINARY, shift=st.integers(-50, 50))
def test_critic_logits_may_be_shifted_action_by_action(backend, problem, shift):
    q = (np.round(problem.q * 256) / 256).astype(np.float32)
    moved = q + (np.float32(shift) * np.arange(q.shape[-2], dtype=np.float32))[:, None]
    bound = slack(replace(problem, q=q)) + slack(replace(problem, q=moved))
    assert_close(increments(backend, problem, q=q).grad, increments(backend, problem, q=moved).grad, bound)


@given(problem=ORDINARY, seed=st.integers(0, 1000))
def test_actions_may_be_permuted(backend, problem, seed):
    order = np.random.default_rng(seed).permutation(problem.pi.shape[-1])
    legal = None if problem.legal is None else problem.legal[..., order]
    first = increments(backend, problem)
    second = increments(backend, problem, q=problem.q[..., order, :], pi=problem.pi[..., order], legal=legal)
    assert_close(first.grad[..., order], second.grad, 2 * slack(problem)[:, order])


@given(problem=ORDINARY, seed=st.integers(0, 1000))
def test_atoms_may_be_permuted_with_their_support(backend, problem, seed):
    order = np.random.default_rng(seed).permutation(problem.q.shape[-1])
    other = replace(problem, q=problem.q[..., order], support=problem.support[order])
    bound = slack(problem) + slack(other)
    assert_close(increments(backend, problem).grad, increments(backend, other).grad, bound)


@given(problem=ORDINARY, seed=st.integers(0, 1000))
def test_masking_an_action_is_removing_it(backend, problem, seed):
    rng = np.random.default_rng(seed)
    actions = problem.pi.shape[-1]
    keep = rng.random(actions) < 0.6
    keep[rng.integers(actions)] = True
    legal = np.ones(problem.pi.shape, bool) if problem.legal is None else problem.legal.copy()
    legal[..., ~keep] = False
    masked = replace(problem, legal=legal)
    removed = replace(masked, q=problem.q[..., keep, :], pi=problem.pi[..., keep], legal=legal[..., keep])
    a, b = increments(backend, masked), increments(backend, removed)
    assert not a.grad[..., ~keep].any()
    assert_close(a.grad[..., keep], b.grad, 2 * slack(masked)[:, keep])
    assert (a.record.rows, a.record.skipped) == (b.record.rows, b.record.skipped)
    assert_allclose(a.record.weighted_kl, b.record.weighted_kl, rtol=1e-4, atol=1e-4)


@given(problem=ORDINARY, seed=st.integers(0, 1000))
def test_minus_infinity_and_the_mask_say_the_same(backend, problem, seed):
    hidden = np.random.default_rng(seed).random(problem.pi.shape) < 0.4
    by_mask = replace(problem, legal=~hidden)
    by_logit = replace(problem, legal=None, pi=np.where(hidden, np.float32(-np.inf), problem.pi))
    assert_same(run(backend, by_mask), run(backend, by_logit))


@given(problem=ORDINARY)
def test_weight_two_is_the_row_twice(backend, problem):
    problem = replace(problem.flat, weights=None)
    doubled = run(backend, replace(problem, weights=np.full(len(problem.pi), 2, np.float32)))
    arrays = {name: getattr(problem, name) for name in ("q", "pi", "grad", "legal")}
    twice = replace(problem, **{n: None if x is None else np.concatenate([x, x]) for n, x in arrays.items()})
    again = run(backend, twice)
    for name in ("weighted_kl", "weight", "weighted_variance"):
        assert_allclose(getattr(doubled.record, name), getattr(again.record, name), rtol=1e-12)
    assert 2 * doubled.record.rows == again.record.rows
    assert_allclose(doubled.values.kl_ema, again.values.kl_ema, rtol=1e-6)


@given(problem=ORDINARY, weight=st.sampled_from([0.25, 0.5, 2.0, 4.0]))
def test_gradient_is_linear_in_the_weight(backend, problem, weight):
    one = increments(backend, problem, weights=None).grad
    weights = np.full(problem.pi.shape[:-1], weight, np.float32)
    got = increments(backend, problem, weights=weights).grad
    assert_same_bits(got, np.float32(weight) * one)  # a power of two: exact


@given(problem=ORDINARY, cut=st.integers(0, 1000))
def test_micro_batches_are_one_batch(backend, problem, cut):
    problem = problem.flat
    whole = run(backend, problem)
    isv = make_isv(backend, problem.state)
    op = distiller(isv, problem)
    cut %= len(problem.pi) + 1
    for part in (slice(0, cut), slice(cut, None)):
        q, pi, grad, legal, weights = (
            backend.put(None if x is None else np.ascontiguousarray(x[part]))
            for x in (problem.q, problem.pi, problem.grad, problem.legal, problem.weights)
        )
        op.accumulate(q, pi, grad, legal_actions=legal, row_weights=weights, stream=backend.stream)
    record = backend.record(isv)
    for name in ("weighted_kl", "weight", "weighted_variance"):
        assert_allclose(getattr(record, name), getattr(whole.record, name), rtol=1e-12, atol=1e-300)
    for name in ("rows", "skipped", "clipped", "faults"):
        assert getattr(record, name) == getattr(whole.record, name)


@given(problem=ORDINARY)
def test_mean_is_the_sum_over_the_rows(backend, problem):
    total = increments(backend, problem, options=replace(problem.options, reduction="sum"))
    mean = increments(backend, problem, options=replace(problem.options, reduction="mean"))
    assert_allclose(mean.grad * np.float32(len(problem.flat.pi)), total.grad, rtol=3e-6, atol=1e-40)
    assert record_bytes(mean.record) == record_bytes(total.record)


@given(problem=ORDINARY, exponent=st.integers(-6, 6))
def test_values_and_temperature_may_be_scaled_together(backend, problem, exponent):
    """softmax(E / tau) sees the ratio alone; powers of two are exact."""
    problem = replace(problem, options=replace(problem.options, value_scale="none"))
    scale = 2.0**exponent
    state = {"lam": problem.state["lam"], "tau": 0.75}
    other = {"lam": problem.state["lam"], "tau": 0.75 * scale}
    first = increments(backend, problem, state=state)
    second = increments(backend, problem, state=other, support=problem.support * np.float32(scale))
    assert_same_bits(first.grad, second.grad)


@given(problem=ORDINARY, exponent=st.integers(-3, 6))
def test_the_first_batch_does_not_see_the_scale_of_its_values(backend, problem, exponent):
    """Before an observation each row is divided by its own standard deviation."""
    problem = replace(
        problem,
        options=replace(problem.options, value_scale="running_std"),
        state={"lam": 1.0, "tau": 0.75, "min_std": 1e-30},
    )
    _, rows, _, _ = model(problem)
    assume(np.all(rows.variance[rows.written] > 1e-6) and problem.pi.shape[-1] > 1)
    scaled = problem.support * np.float32(2.0**exponent)
    assert_same_bits(increments(backend, problem).grad, increments(backend, problem, support=scaled).grad)


@given(
    lam=st.floats(0, 3, width=32),
    kl=st.floats(0, 10, width=32),
    target=st.floats(2**-10, 1, width=32),
    count=st.integers(1, 40),
)
def test_lam_stays_within_its_bounds(backend, lam, kl, target, count):
    isv = make_isv(backend, {"lam": lam, "kl_ema": kl, "kl_target": target, "observations": 1})
    for _ in range(count):
        isv.control(stream=backend.stream)
    got = np.float32(isv.read(stream=backend.stream).lam)
    assert got == 0 if lam == 0 else np.float32(0.05) <= got <= 1


@given(problem=ORDINARY)
def test_a_step_down_the_gradient_lowers_the_loss(backend, problem):
    tau = min(max(problem.state["tau"], 0.01), 50)
    options = replace(problem.options, reduction="sum")
    problem = replace(problem, weights=None, options=options, state={"lam": 1.0, "tau": tau})
    step = increments(backend, problem).grad
    _, rows, _, _ = model(problem)
    far = (rows.kl > 1e-3) & (rows.kl < 99)
    assume(far.any() and math.isfinite(tau))
    _, after, _, _ = model(replace(problem, pi=problem.pi - np.float32(0.05) * step))
    assert np.all(after.kl[far] < rows.kl[far])
