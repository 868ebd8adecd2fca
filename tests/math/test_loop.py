"""Commits, the law, faults and layouts of the library against the reference loop."""

import ctypes

import numpy as np
import pytest

import qpi_distill as qpi
from backends import CRecord
from reference import Fault, Loop, Reason, Record, ramp
from stepping import (
    arguments,
    assert_same_bits,
    assert_same_state,
    check,
    check_values,
    distiller,
    faults_of,
    frozen,
    make_isv,
    poke,
    random_problem,
    reason_of,
    run,
)

INF, NAN = np.inf, np.nan


def read(backend, isv):
    return isv.read(stream=backend.stream, check=False)


# ---- the law ------------------------------------------------------------------------------------------------------


def law_steps(backend, state, count):
    """lam and reason after each of `count` control calls."""
    isv = make_isv(backend, {"observations": 1, **state})
    out = []
    for _ in range(count):
        isv.control(stream=backend.stream)
        values = read(backend, isv)
        out.append((np.float32(values.lam), reason_of(values)))
    return out


@pytest.mark.parametrize(
    "state",
    [
        {"lam": 0.1, "kl_target": 0.01, "kl_ema": 0.5},
        {"lam": 0.1, "kl_target": 0.01, "kl_ema": 1e-4},
        {"lam": 0.1, "kl_target": 0.01, "kl_ema": 0},
        {"lam": 0.7, "kl_target": 0.01, "kl_ema": 0.01},
        {"lam": 5.0, "kl_target": 0.01, "kl_ema": 1.0},
        {"lam": 5.0, "kl_target": 0.01, "kl_ema": 0.01},
        {"lam": 0.001, "kl_target": 0.01, "kl_ema": 1.0},
        {"lam": 0.001, "kl_target": 0.01, "kl_ema": 1e-6},
        {"lam": 0.0, "kl_target": 0.01, "kl_ema": 1.0},
        {"lam": 0.3, "kl_target": 1e-30, "kl_ema": 1e-30, "kl_tolerance": 1.0},
        {"lam": 0.3, "kl_target": 3e38, "kl_ema": 3e38},
        {"lam": 0.3, "kl_target": 0.01, "kl_ema": 1.0, "lam_up": 1.0},
        {"lam": 0.3, "kl_target": 0.01, "kl_ema": 0.0, "lam_down": 1.0},
        {"lam": 0.3, "kl_target": 0.01, "kl_ema": 0.0, "lam_down": 0.5, "lam_min": 0.2},
        {"lam": 0.3, "kl_target": 0.01, "kl_ema": 1.0, "lam_up": 10.0, "lam_max": 0.9},
        {"lam": 0.3, "kl_target": 0.01, "kl_ema": 1.0, "lam_min": 0.3, "lam_max": 0.3},
    ],
    ids=str,
)
def test_law_step_by_step(backend, state):
    lam, state = state["lam"], {k: v for k, v in state.items() if k != "lam"}
    numbers = {k: v for k, v in state.items() if k not in ("kl_ema", "kl_target")}
    for got, reason in law_steps(backend, {"lam": lam, **state}, 25):
        lam, want = ramp(lam, state["kl_ema"], state["kl_target"], **numbers)
        assert (got, reason) == (lam, want)


def test_law_is_strict_at_the_edges_of_the_dead_zone(backend):
    target = np.float32(0.01)
    for edge in (target * np.float32(3), target / np.float32(3)):
        up, down = np.nextafter(edge, np.float32(1)), np.nextafter(edge, np.float32(0))
        for ema in (down, edge, up):
            state = {"lam": 0.5, "kl_target": target, "kl_ema": ema}
            assert law_steps(backend, state, 1)[0] == ramp(0.5, ema, target)
        assert law_steps(backend, {"lam": 0.5, "kl_target": target, "kl_ema": edge}, 1)[0][1] == Reason.IN_BAND


def test_every_number_of_the_law_is_a_slot(backend):
    rng = np.random.default_rng(0)
    for _ in range(60):
        state = {
            "lam": rng.uniform(0, 2),
            "kl_ema": rng.lognormal(-3, 2),
            "kl_target": rng.lognormal(-3, 2),
            "lam_min": rng.uniform(0.01, 0.2),
            "lam_max": rng.uniform(0.2, 2),
            "kl_tolerance": rng.uniform(1, 4),
            "lam_up": rng.uniform(1, 3),
            "lam_down": rng.uniform(0.3, 1),
        }
        assert law_steps(backend, state, 1)[0] == ramp(**state)


def test_law_waits_for_an_observation(backend):
    isv = make_isv(backend, {"lam": 0.5, "kl_ema": 0.9})
    isv.control(stream=backend.stream)
    values = read(backend, isv)
    assert reason_of(values) == Reason.TOO_FEW
    assert values.lam == 0.5


# ---- random sequences of calls ------------------------------------------------------------------------------------

STEPS = ("step", "accumulate", "distill_grad")
OTHERS = ("commit", "control", "discard")


@pytest.mark.parametrize("layout", ["native", "bus"])
@pytest.mark.parametrize("seed", range(12))
def test_any_sequence_of_calls(backend, seed, layout):
    """Random calls on one ISV; the reference follows with the library's own statistic of each batch."""
    rng = np.random.default_rng(seed)
    bus = layout == "bus"
    state = {"kl_alpha": 0.3, "kl_target": 0.2}
    isv = make_isv(backend, state, layout)
    loop = Loop(zero_sentinel=bus).set(**state)
    if not bus:
        poke(backend, isv, value_alpha=0.5)
        loop.set(value_alpha=0.5)
    problem = random_problem(rng, 6, 3, 4, value_scale="running_std", masked=True)
    op = distiller(isv, problem)
    for _ in range(25):
        call = rng.choice(STEPS + OTHERS)
        if call in OTHERS:
            getattr(isv, call)(stream=backend.stream)
            getattr(loop, call)()
        else:
            problem.q = rng.normal(size=problem.q.shape).astype(np.float32)
            problem.pi = (rng.normal(size=problem.pi.shape) * rng.choice([0.1, 1, 5])).astype(np.float32)
            if rng.random() < 0.2:
                problem.pi[rng.integers(6)] = NAN
            if rng.random() < 0.1:
                problem.pi[:] = NAN
            (q, pi, grad), keywords = arguments(backend, problem)
            before = loop.record
            seen = op.measure(q, pi, legal_actions=keywords["legal_actions"], stream=backend.stream)
            getattr(op, call)(q, pi, grad, **keywords)
            loop.record = Record(
                before.weighted_kl + (seen.kl * seen.weight if seen.weight else 0),
                before.weight + seen.weight,
                before.weighted_variance + (seen.value_std**2 * seen.weight if seen.weight else 0),
                before.rows + seen.rows,
                before.skipped + seen.skipped,
                before.clipped + seen.clipped,
                before.faults,
            )
            if call == "step":
                loop.commit()
            elif call == "distill_grad":
                loop.observe()
        check_values(read(backend, isv), loop)


def test_accumulated_calls_count_as_one_observation(backend):
    problem = random_problem(np.random.default_rng(1), 24, weighted=True)
    isv = make_isv(backend)
    op = distiller(isv, problem)
    for part in (slice(0, 5), slice(5, 6), slice(6, 24)):
        q, pi, grad, w = (backend.put(x[part]) for x in (problem.q, problem.pi, problem.grad.copy(), problem.weights))
        op.accumulate(q, pi, grad, row_weights=w, stream=backend.stream)
    record = backend.record(isv)
    whole = run(backend, problem).record
    assert record.calls == 3
    assert (record.rows, record.skipped, record.clipped) == (whole.rows, whole.skipped, whole.clipped)
    assert record.weighted_kl == pytest.approx(whole.weighted_kl, rel=1e-13)
    assert record.weight == pytest.approx(whole.weight, rel=1e-13)
    isv.commit(stream=backend.stream)
    values = read(backend, isv)
    assert values.observations == 1
    assert values.kl_ema == pytest.approx(record.weighted_kl / record.weight, rel=1e-7)


def test_discard_forgets(backend):
    problem = random_problem(np.random.default_rng(2), 9)
    isv = make_isv(backend)
    op = distiller(isv, problem)
    (q, pi, grad), keywords = arguments(backend, problem)
    op.accumulate(q, pi, grad, **keywords)
    op.discard(stream=backend.stream)
    assert bytes(backend.record(isv)) == bytes(ctypes.sizeof(CRecord))
    isv.commit(stream=backend.stream)
    values = read(backend, isv)
    assert values.observations == 0
    assert reason_of(values) == Reason.NO_ROWS


def test_measure_changes_nothing_and_sees_what_accumulate_sees(backend):
    problem = random_problem(np.random.default_rng(3), 40, weighted=True, masked=True)
    problem.pi[4] = NAN
    isv = make_isv(backend)
    op = distiller(isv, problem)
    (q, pi, grad), keywords = arguments(backend, problem)
    before = isv.state_dict(stream=backend.stream)
    seen = op.measure(q, pi, **{k: v for k, v in keywords.items() if k != "grad_scale"})
    after = isv.state_dict(stream=backend.stream)
    assert_same_state(after, before)
    op.accumulate(q, pi, grad, **keywords)
    record = backend.record(isv)
    assert seen.kl == record.weighted_kl / record.weight
    assert (seen.weight, seen.rows, seen.skipped, seen.clipped) == (
        record.weight,
        record.rows,
        record.skipped,
        record.clipped,
    )
    assert seen.value_std == pytest.approx(np.sqrt(record.weighted_variance / record.weight), rel=1e-12)


def test_no_rows_change_nothing(backend):
    problem = random_problem(np.random.default_rng(4), 0)
    isv = make_isv(backend, {"kl_ema": 0.3, "observations": 2})
    op = distiller(isv, problem)
    before = isv.state_dict(stream=backend.stream)
    for call in ("step", "distill_grad"):
        (q, pi, grad), keywords = arguments(backend, problem)
        getattr(op, call)(q, pi, grad, **keywords)
    assert_same_state(isv.state_dict(stream=backend.stream), before)


def test_a_batch_without_weight_moves_nothing(backend):
    problem = random_problem(np.random.default_rng(5), 6, state={"kl_ema": 0.3, "observations": 2, "lam": 0.5})
    problem.weights = np.zeros(6, np.float32)
    outcome = run(backend, problem)
    check(outcome, problem)
    assert reason_of(outcome.values) == Reason.NO_ROWS
    assert outcome.values.kl_ema == np.float32(0.3)
    assert outcome.values.lam == 0.5
    assert outcome.values.observations == 2
    problem.weights[:] = 1
    problem.pi[:] = NAN
    outcome = run(backend, problem)
    check(outcome, problem)
    assert reason_of(outcome.values) == Reason.NO_ROWS
    assert outcome.values.skipped_rows == 6


def test_step_is_accumulate_and_commit(backend):
    problem = random_problem(
        np.random.default_rng(6), 77, 11, 21, weighted=True, masked=True, value_scale="running_std"
    )
    apart, whole = run(backend, problem), run(backend, problem, call="step")
    assert_same_bits(apart.grad, whole.grad)
    assert frozen(apart.values) == frozen(whole.values)


def test_distill_grad_leaves_lam_and_control_does_the_rest(backend):
    problem = random_problem(np.random.default_rng(7), 9, state={"lam": 0.5})
    isv = make_isv(backend, problem.state)
    half = run(backend, problem, isv=isv, call="distill_grad")
    assert reason_of(half.values) == Reason.OBSERVED
    assert half.values.lam == 0.5
    isv.control(stream=backend.stream)
    whole = run(backend, problem, call="step")
    assert_same_bits(half.grad, whole.grad)
    assert frozen(read(backend, isv)) == frozen(whole.values)


def test_row_0_alone(backend):
    problem = random_problem(np.random.default_rng(8), 50, kl_stat="row0")
    outcome = run(backend, problem, call="step")
    single = random_problem(np.random.default_rng(8), 50)
    for name in ("q", "pi", "grad"):
        setattr(single, name, getattr(single, name)[:1])
    assert outcome.values.kl_ema == run(backend, single).values.kl_ema
    assert outcome.values.rows_last == 1
    plain = random_problem(np.random.default_rng(8), 50)
    assert_same_bits(outcome.grad, run(backend, plain).grad)
    problem.pi[0, 0] = NAN
    outcome = run(backend, problem, call="step")
    assert reason_of(outcome.values) == Reason.NO_ROWS
    assert outcome.values.observations == 0


def test_row_0_alone_is_refused_over_micro_batches(backend):
    problem = random_problem(np.random.default_rng(9), 5, kl_stat="row0")
    with pytest.raises(ValueError, match=r"(?i)row_?0"):
        run(backend, problem, call="accumulate")


def test_value_std_over_commits(backend):
    problem = random_problem(np.random.default_rng(10), 30, value_scale="running_std")
    isv = make_isv(backend, {"value_alpha": 0.25})
    spreads = []
    for step in range(4):
        problem.state = {}
        problem.support = np.linspace(-1, 1, 9, dtype=np.float32) * np.float32(3**step)
        outcome = run(backend, problem, isv=isv)
        record = outcome.record
        spreads.append(record.weighted_variance / record.weight)
        want = spreads[0]
        for v in spreads[1:]:
            want = 0.75 * want + 0.25 * v
        assert outcome.values.value_std == pytest.approx(np.sqrt(want), rel=1e-6)
        assert outcome.values.value_observations == step + 1


# ---- faults -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["add", "write"])
@pytest.mark.parametrize(
    ("fault", "state"),
    [
        (Fault.TAU, {"tau": -1}),
        (Fault.TAU, {"tau": NAN}),
        (Fault.TAU, {"tau": -INF}),
        (Fault.TAU, {"tau_min": 0}),
        (Fault.TAU, {"tau_min": -1}),
        (Fault.TAU, {"tau_min": NAN}),
        (Fault.LAM, {"lam": -0.1}),
        (Fault.LAM, {"lam": NAN}),
        (Fault.LAM, {"lam": INF}),
        (Fault.BOUND, {"kl_row_max": 0}),
        (Fault.BOUND, {"kl_row_max": NAN}),
        (Fault.BOUND, {"kl_row_max": -3}),
        (Fault.BOUND, {"min_std": 0}),
        (Fault.BOUND, {"min_std": NAN}),
        (Fault.BOUND, {"value_std": NAN, "value_observations": 1}),
        (Fault.BOUND, {"value_std": -1, "value_observations": 1}),
        (Fault.TAU | Fault.LAM, {"tau": NAN, "lam": NAN}),
    ],
    ids=str,
)
def test_a_state_that_makes_no_sense_writes_nothing(backend, fault, state, mode):
    state = {"kl_ema": 0.4, "observations": 1, **state}
    problem = random_problem(np.random.default_rng(11), 20, value_scale="running_std", mode=mode, state=state)
    outcome = run(backend, problem)
    check(outcome, problem)
    assert_same_bits(outcome.grad, problem.grad)
    assert faults_of(outcome.values) == fault
    assert reason_of(outcome.values) == Reason.FAULT
    assert outcome.values.observations == 1
    assert np.float32(outcome.values.kl_ema) == np.float32(0.4)
    for call in ("step", "distill_grad"):
        other = run(backend, problem, call=call)
        assert_same_bits(other.grad, problem.grad)
        assert faults_of(other.values) == fault


@pytest.mark.parametrize("alpha", [0, -0.1, 1.0001, NAN, INF])
@pytest.mark.parametrize("which", ["kl_alpha", "value_alpha"])
@pytest.mark.parametrize("observations", [0, 3])
def test_bad_alpha_is_gradient_only(backend, alpha, which, observations):
    state = {which: alpha, "kl_ema": 0.4, "observations": observations, "lam": 0.5}
    problem = random_problem(np.random.default_rng(12), 9, state=state)
    outcome = run(backend, problem)
    check(outcome, problem)
    assert faults_of(outcome.values) == Fault.ALPHA
    assert np.float32(outcome.values.kl_ema) == np.float32(0.4)
    assert outcome.values.observations == observations
    assert outcome.values.lam == 0.5
    assert not np.array_equal(outcome.grad, problem.grad)


@pytest.mark.parametrize("target", [0, -1, NAN, INF])
def test_bad_target_is_gradient_and_average_only(backend, target):
    problem = random_problem(np.random.default_rng(13), 9, state={"kl_target": target, "lam": 0.5})
    outcome = run(backend, problem)
    check(outcome, problem)
    assert faults_of(outcome.values) == Fault.TARGET
    assert reason_of(outcome.values) == Reason.FAULT
    assert outcome.values.observations == 1
    assert outcome.values.lam == 0.5


@pytest.mark.parametrize(
    "state",
    [
        {"lam_min": 0},
        {"lam_min": NAN},
        {"lam_max": INF},
        {"lam_max": 0.01},
        {"lam_max": NAN},
        {"kl_tolerance": 0.9},
        {"kl_tolerance": NAN},
        {"kl_tolerance": INF},
        {"lam_up": 0.5},
        {"lam_up": INF},
        {"lam_up": NAN},
        {"lam_down": 0},
        {"lam_down": 1.1},
        {"lam_down": NAN},
        {"kl_ema": NAN, "observations": 1},
        {"kl_ema": INF, "observations": 1},
        {"kl_ema": -1, "observations": 1},
    ],
    ids=str,
)
def test_a_law_that_makes_no_sense_leaves_lam(backend, state):
    isv = make_isv(backend, {"kl_ema": 0.5, "observations": 1, "lam": 0.5, **state})
    isv.control(stream=backend.stream)
    values = read(backend, isv)
    assert values.lam == 0.5
    assert faults_of(values) == Fault.LAW
    assert reason_of(values) == Reason.FAULT


@pytest.mark.parametrize("ema", [NAN, INF])
def test_an_average_that_is_not_finite_does_not_take_observations(backend, ema):
    problem = random_problem(np.random.default_rng(14), 9, state={"kl_ema": ema, "observations": 1, "lam": 0.5})
    outcome = run(backend, problem)
    check(outcome, problem)
    assert outcome.values.lam == 0.5
    assert faults_of(outcome.values) == Fault.LAW


@pytest.mark.parametrize("scale", [NAN, INF, -INF])
@pytest.mark.parametrize("mode", ["add", "write"])
def test_bad_grad_scale_is_statistic_only(backend, scale, mode):
    problem = random_problem(np.random.default_rng(15), 9, grad_scale=scale, mode=mode)
    outcome = run(backend, problem)
    check(outcome, problem)
    assert faults_of(outcome.values) == Fault.GRAD_SCALE
    assert outcome.values.observations == 1


def test_faults_stick_until_cleared(backend):
    problem = random_problem(np.random.default_rng(16), 9)
    problem.weights = np.ones(9, np.float32)
    problem.weights[2] = -1
    isv = make_isv(backend)
    run(backend, problem, isv=isv)
    problem.weights[2] = 1
    values = run(backend, problem, isv=isv).values
    assert faults_of(values) == Fault.WEIGHT
    assert values.observations == 2
    with pytest.raises(qpi.FaultError, match=r"(?i)weight") as caught:
        isv.read(stream=backend.stream)
    assert [name.lower() for name in caught.value.faults] == ["weight"]
    assert isinstance(caught.value, ArithmeticError)
    isv.clear_faults(stream=backend.stream)
    assert isv.read(stream=backend.stream).faults == ()


def test_after_a_repaired_fault_the_loop_goes_on(backend):
    problem = random_problem(np.random.default_rng(17), 9)
    isv = make_isv(backend, {"tau": NAN})
    assert run(backend, problem, isv=isv).values.observations == 0
    isv.set(stream=backend.stream, tau=1.0)
    isv.clear_faults(stream=backend.stream)
    outcome = run(backend, problem, isv=isv)
    check_values(outcome.values, _after(problem, outcome))


def _after(problem, outcome):
    loop = Loop()
    r = outcome.record
    loop.record = Record(r.weighted_kl, r.weight, r.weighted_variance, r.rows, r.skipped, r.clipped, r.faults)
    loop.commit()
    return loop


def test_variance_beyond_float32_is_named(backend):
    problem = random_problem(np.random.default_rng(18), 9, span=(-1e30, 1e30))
    outcome = run(backend, problem)
    check(outcome, problem)
    assert faults_of(outcome.values) == Fault.VALUE
    assert outcome.values.value_observations == 0
    assert outcome.values.observations == 1


# ---- layouts ------------------------------------------------------------------------------------------------------


def test_bus_touches_its_slots_alone(backend):
    rng = np.random.default_rng(19)
    problem = random_problem(rng, 20, 11, 21, state={})
    bus = rng.normal(size=600).astype(np.float32)
    bus[[486, 487, 488, 491, 493]] = [0.1, 1.0, 0.0, 0.05, 0.05]
    before = bus.copy()
    place = backend.put(bus)
    isv = qpi.ISV.from_buffer(place, layout="bus")
    for _ in range(3):
        run(backend, problem, isv=isv, call="step")
    after = backend.get(place)
    changed = {int(i) for i in np.flatnonzero(after.view(np.uint32) != before.view(np.uint32))}
    assert changed == {486, 488}


def test_bus_and_native_give_the_same_numbers(backend):
    problem = random_problem(np.random.default_rng(20), 20, 11, 21)
    native, bus = make_isv(backend), make_isv(backend, layout="bus")
    for _ in range(4):
        a, b = run(backend, problem, isv=native), run(backend, problem, isv=bus)
        assert_same_bits(a.grad, b.grad)
        for name, value in a.values.raw.items():
            assert np.float32(b.values.raw[name]) == np.float32(value), name


def test_bus_keeps_the_zero_sentinel(backend):
    """An average of exactly 0 is taken for 'not initialised' there, and only there."""
    problem = random_problem(np.random.default_rng(21), 4, 2, 2)
    problem.q[:] = 0
    problem.pi[:] = 0
    for layout, share in (("bus", 1.0), ("native", 0.05)):
        isv = make_isv(backend, layout=layout)
        assert run(backend, problem, isv=isv).values.kl_ema == 0
        problem.pi[:, 0] = 2
        values = run(backend, problem, isv=isv).values
        assert values.kl_ema == pytest.approx(share * values.kl_last, rel=1e-6)
        problem.pi[:] = 0


def test_slots_named_on_the_bus_are_used_there(backend):
    layout = qpi.Layout.bus(lam_max=10, observations=20, skipped_rows=30, faults=32)
    problem = random_problem(np.random.default_rng(22), 20)
    problem.pi[3] = NAN
    bus = np.zeros(494, np.float32)
    bus[[486, 487, 488, 491, 493, 10]] = [0.1, 1.0, 0.0, 1e-6, 0.05, 0.11]
    place = backend.put(bus)
    isv = qpi.ISV.from_buffer(place, layout=layout)
    run(backend, problem, isv=isv)
    words = backend.get(place)
    assert words[486] == np.float32(0.11)
    assert words.view(np.uint32)[20] == 1
    assert words.view(np.uint32)[30] == 1
    poke(backend, isv, tau=-1)
    run(backend, problem, isv=isv)
    assert backend.get(place).view(np.uint32)[32] == Fault.TAU
