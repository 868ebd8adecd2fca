"""Every control law of the library against its float64 loop, and what no law may do."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import backends
import qpi_distill as qpi
from reference import LAM_LAWS, TAU_LAWS, Fault, Laws, Reason
from stepping import assert_same_state, faults_of, frozen, make_isv, observe, random_problem, reason_of, run

LAM_NAMES = [law.name for law in qpi.ISV.laws()["lam"]]
TAU_NAMES = [law.name for law in qpi.ISV.laws()["tau"]]
DEFAULTS = {s.name: s.default for s in qpi.ISV.slot_info() if s.role == "param"}
MEASURES = ("target_entropy", "uniform_entropy", "policy_entropy", "agreement", "prior_kl")
INF, NAN = math.inf, math.nan


def test_every_law_has_a_reference():
    assert set(LAM_NAMES) == set(LAM_LAWS)
    assert set(TAU_NAMES) == set(TAU_LAWS)


def random_kl(rng, count, target):
    """KLs that wander over decades, with noise, exact zeros and outliers."""
    walk = np.zeros(count)
    for i in range(1, count):
        walk[i] = 0.995 * walk[i - 1] + 0.15 * rng.normal()
    kl = target * np.exp(walk + 0.3 * rng.normal(size=count))
    kl[rng.random(count) < 0.01] = 0
    kl[rng.random(count) < 0.002] = 90
    return kl


def follow(backend, slots, state, kls, measures=()):
    """Run library and reference side by side; the records of the one, lam, tau and reasons of the other."""
    isv = qpi.ISV(device=backend.device, **slots, **state)
    recorder = qpi.Recorder(isv, len(kls))
    named = DEFAULTS | {"lam_law": "bounded_step", "tau_law": "fixed"} | slots
    laws = Laws(named | dict.fromkeys(MEASURES, -1.0), float(np.float32(state["lam"])), float(np.float32(state["tau"])))
    alpha, ema = float(np.float32(named["kl_alpha"])), None
    want = []
    for i, kl in enumerate(kls):
        now = {name: values[i] for name, values in dict(measures).items()}
        observe(backend, isv, kl, **now)
        ema = np.float32(kl if ema is None else (1 - alpha) * float(ema) + alpha * kl)
        laws.slots.update(now)
        laws.step(ema)
        want.append((laws.lam, laws.tau, laws.reason, laws.tau_reason))
    records = recorder.drain(stream=backend.stream)
    assert recorder.lost == 0
    assert len(records) == len(kls)
    assert not records["faults"].any()
    return records, want


def compare(records, want):
    lam, tau, reasons, tau_reasons = zip(*want, strict=True)
    np.testing.assert_allclose(records["lam"], lam, rtol=1e-5)
    np.testing.assert_allclose(records["tau"], tau, rtol=1e-5)
    assert_array_equal(records["reason"], reasons)
    assert_array_equal(records["tau_reason"], tau_reasons)


@pytest.mark.parametrize("preset", [None, *qpi.ISV.presets()])
def test_lam_over_ten_thousand_steps(backend, preset):
    slots = {}
    if preset is not None:
        chosen = qpi.ISV.presets()[preset]
        slots = {"lam_law": chosen.lam_law, **chosen.values}
        assert frozen(qpi.ISV(device="cpu", preset=preset).read()) == frozen(qpi.ISV(device="cpu", **slots).read())
    kls = random_kl(np.random.default_rng(1), 10_000, 0.05)
    records, want = follow(backend, slots, {"lam": 0.1, "tau": 1.0}, kls)
    compare(records, want)
    assert np.ptp(records["lam"]) > 0.1
    seen = set(records["reason"].tolist())
    assert {Reason.ABOVE, Reason.BELOW, Reason.IN_BAND, Reason.AT_MAX, Reason.AT_MIN} - seen <= {Reason.AT_MIN}


@pytest.mark.parametrize("law", LAM_NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_every_number_of_lams_law_is_a_slot(backend, law, seed):
    rng = np.random.default_rng((seed, 7))
    slots = {
        "lam_law": law,
        "kl_target": rng.lognormal(-3, 1),
        "kl_alpha": rng.uniform(0.02, 1),
        "kl_tolerance": rng.uniform(1, 4),
        "lam_min": rng.uniform(1e-3, 0.05),
        "lam_max": rng.uniform(1, 20),
        "lam_up": rng.uniform(1, 2),
        "lam_down": rng.uniform(0.5, 1),
        "ziegler_gain": rng.uniform(0, 1),
        "ziegler_clip": rng.uniform(0.05, 0.9),
        "dual_rate": rng.uniform(0, 0.5),
        "dual_clip": rng.uniform(0.1, 5),
        "pi_gain": rng.uniform(0, 1),
        "pi_rate": rng.uniform(0, 0.1),
        "pi_clip": rng.uniform(0.2, 4),
        "pi_slew": rng.uniform(0.01, 1),
        "lam_from": rng.uniform(0, 2),
        "lam_to": rng.uniform(0, 2),
        "lam_steps": int(rng.integers(1, 400)),
        "law_warmup": int(rng.integers(0, 30)),
    }
    records, want = follow(backend, slots, {"lam": 0.5, "tau": 1.0}, random_kl(rng, 500, slots["kl_target"]))
    compare(records, want)


@pytest.mark.parametrize("law", TAU_NAMES)
def test_tau_over_ten_thousand_steps(backend, law):
    rng = np.random.default_rng(2)
    count = 10_000
    uniform = np.log(rng.uniform(1.5, 11, count))
    wave = 0.5 + 0.5 * np.sin(np.linspace(0, 12, count)) * rng.uniform(0.5, 1, count)
    measures = {
        "uniform_entropy": uniform,
        "target_entropy": uniform * wave,
        "prior_kl": random_kl(rng, count, 0.1),
    }
    slots = {"tau_law": law, "tau_steps": 7_000, "tau_max": 5.0, "law_warmup": 20}
    records, want = follow(backend, slots, {"lam": 0.1, "tau": 1.0}, random_kl(rng, count, 0.05), measures)
    compare(records, want)
    assert (np.ptp(records["tau"]) > 0.2) == (law != "fixed")


@pytest.mark.parametrize("law", TAU_NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_every_number_of_taus_law_is_a_slot(backend, law, seed):
    rng = np.random.default_rng((seed, 8))
    slots = {
        "tau_law": law,
        "tau_min": rng.uniform(1e-3, 0.3),
        "tau_max": rng.uniform(2, 20),
        "tau_from": rng.uniform(0, 3),
        "tau_to": rng.uniform(0, 3),
        "tau_steps": int(rng.integers(1, 400)),
        "entropy_goal": rng.uniform(0, 1),
        "entropy_rate": rng.uniform(0, 0.3),
        "entropy_tolerance": rng.uniform(0, 0.3),
        "mpo_epsilon": rng.lognormal(-2, 1),
        "mpo_rate": rng.uniform(0, 0.3),
        "mpo_clip": rng.uniform(0.1, 4),
        "kl_tolerance": rng.uniform(1, 4),
        "law_warmup": int(rng.integers(0, 30)),
    }
    count = 400
    measures = {"uniform_entropy": np.full(count, math.log(11)), "target_entropy": rng.uniform(0, math.log(11), count)}
    measures["prior_kl"] = random_kl(rng, count, slots["mpo_epsilon"])
    for values in measures.values():
        values[rng.random(count) < 0.05] = -1
    records, want = follow(backend, slots, {"lam": 0.5, "tau": 0.5}, random_kl(rng, count, 0.05), measures)
    compare(records, want)
    if law in ("target_entropy", "mpo_dual"):
        assert Reason.UNMEASURED in records["tau_reason"]


def test_log_pi_in_exact_arithmetic(backend):
    """Rounding to the slots costs log_pi little: the loop that rounds nothing ends at the same lam."""
    slots = {"lam_law": "log_pi", "lam_min": 1e-3, "lam_max": 10, "kl_alpha": 1.0}
    rng = np.random.default_rng(3)
    kls = 0.05 * np.exp(0.5 * rng.normal(size=10_000))
    records, _ = follow(backend, slots, {"lam": 0.1, "tau": 1.0}, kls)
    x = integral = math.log(0.1)
    for kl in kls:
        e = min(max(math.log(kl / 0.05), -2), 2)
        floor, ceiling = max(math.log(1e-3), x - 0.18), min(math.log(10), x + 0.18)
        room = max(0, ceiling - 0.2 * e - integral) if e > 0 else max(0, integral + 0.2 * e - floor)
        integral += math.copysign(min(0.005 * abs(e), room), e)
        x = min(max(integral + 0.2 * e, floor), ceiling)
    assert records["lam"][-1] == pytest.approx(math.exp(x), rel=2e-5)


# ---- what the laws do at their edges -------------------------------------------------------------------------------


def settled(backend, kl, count, **slots):
    """Records under a constant KL."""
    isv = qpi.ISV(device=backend.device, kl_target=0.1, **slots)
    recorder = qpi.Recorder(isv, count)
    for _ in range(count):
        observe(backend, isv, kl)
    return isv, recorder.drain(stream=backend.stream)


@pytest.mark.parametrize("law", ["ziegler", "log_dual", "log_pi"])
@pytest.mark.parametrize(("kl", "end", "reason"), [(1.0, 2.0, Reason.AT_MAX), (0.0, 0.01, Reason.AT_MIN)])
def test_a_goal_out_of_reach_ends_at_the_bound_and_says_so(backend, law, kl, end, reason):
    _, records = settled(backend, kl, 1500, lam=0.3, lam_law=law, lam_min=0.01, lam_max=2.0)
    assert records["lam"][-1] == np.float32(end)
    assert records["reason"][-1] == reason
    assert records["reason"][0] == (Reason.ABOVE if kl else Reason.BELOW)


def test_log_pi_leaves_a_bound_as_soon_as_the_error_turns(backend):
    """A thousand commits at the ceiling leave nothing to unwind."""
    isv, _ = settled(backend, 1.0, 1000, lam=0.3, preset="log_pi", kl_alpha=1.0)
    assert isv.read(stream=backend.stream).lam == 10
    observe(backend, isv, 0.05)
    assert isv.read(stream=backend.stream).lam < 10


def test_log_pi_keeps_to_its_slew_limit(backend):
    _, records = settled(backend, 1e9, 20, lam=0.01, preset="log_pi", pi_slew=0.05, pi_clip=30.0, kl_row_max=1e30)
    steps = np.diff(np.log(records["lam"].astype(np.float64)))
    np.testing.assert_allclose(steps, 0.05, rtol=1e-4)


def test_log_pi_starts_from_where_the_host_puts_lam(backend):
    isv, _ = settled(backend, 0.1, 50, lam=0.3, preset="log_pi")
    assert isv.read(stream=backend.stream).lam == pytest.approx(0.3, rel=1e-5)
    isv.set(stream=backend.stream, lam=5.0)
    observe(backend, isv, 0.1)
    assert isv.read(stream=backend.stream).lam == pytest.approx(5.0, rel=1e-5)
    isv.set(stream=backend.stream, lam_law="fixed", lam=2.0)
    observe(backend, isv, 0.1)
    isv.set(stream=backend.stream, lam_law="log_pi")
    observe(backend, isv, 0.1)
    assert isv.read(stream=backend.stream).lam == pytest.approx(2.0, rel=1e-5)


@pytest.mark.parametrize("memory", [NAN, INF, -INF])
def test_log_pi_starts_anew_from_a_memory_that_is_no_number(backend, memory):
    isv = make_isv(backend, {"lam": 0.5, "lam_left": 0.5, "lam_memory": memory, "lam_law": LAM_NAMES.index("log_pi")})
    observe(backend, isv, 0.05)
    values = isv.read(stream=backend.stream)
    assert values.lam == pytest.approx(0.5, rel=1e-6)
    assert values.lam_memory == pytest.approx(math.log(0.5), rel=1e-6)


@pytest.mark.parametrize("law", LAM_NAMES)
def test_warm_up(backend, law):
    _, records = settled(backend, 5.0, 12, lam=0.3, lam_law=law, law_warmup=10, lam_from=0.3, lam_to=0.4, lam_steps=5)
    assert (records["reason"][:9] == Reason.TOO_FEW).all()
    assert (records["lam"][:9] == np.float32(0.3)).all()
    assert Reason.TOO_FEW not in records["reason"][9:]
    assert records["lam"][-1] != np.float32(0.3) or law == "fixed"


def test_warm_up_on_the_bus_counts_in_the_workspace(backend):
    isv = qpi.ISV(device=backend.device, layout="bus", lam=0.3, law_warmup=3)
    seen = []
    for _ in range(4):
        observe(backend, isv, 5.0)
        seen.append(reason_of(isv.read(stream=backend.stream)))
    assert seen == [Reason.TOO_FEW, Reason.TOO_FEW, Reason.ABOVE, Reason.ABOVE]


@pytest.mark.parametrize("law", LAM_NAMES)
def test_off_is_not_small(backend, law):
    """lam_off keeps lam for later; lam = 0 is off for good."""
    isv = qpi.ISV(device=backend.device, lam=0.3, lam_law=law, lam_off=1, lam_steps=10)
    for _ in range(3):
        observe(backend, isv, 5.0)
    values = isv.read(stream=backend.stream)
    assert (values.reason, values.lam, values.observations) == ("off", np.float32(0.3), 3)
    isv.set(stream=backend.stream, lam_off=0)
    observe(backend, isv, 5.0)
    assert isv.read(stream=backend.stream).reason != "off"
    isv.set(stream=backend.stream, lam=0)
    observe(backend, isv, 5.0)
    values = isv.read(stream=backend.stream)
    assert (values.reason, values.lam) == ("off", 0)


def test_off_has_no_gradient_but_a_statistic(backend):
    problem = random_problem(np.random.default_rng(0), 20, state={"lam_off": 1, "lam": 0.5})
    outcome = run(backend, problem)
    assert_array_equal(outcome.grad, problem.grad)
    assert outcome.values.kl_last > 0
    assert outcome.values.lam == 0.5


@pytest.mark.parametrize("law", LAM_NAMES)
@pytest.mark.parametrize("tau_law", TAU_NAMES)
def test_resumes_bit_by_bit(backend, law, tau_law):
    slots = {"lam_law": law, "tau_law": tau_law, "lam_min": 1e-3, "lam_max": 10, "law_warmup": 4}
    kls = random_kl(np.random.default_rng(4), 60, 0.05)
    measures = {"target_entropy": 0.4, "uniform_entropy": 2.4, "prior_kl": 0.3}
    isv = qpi.ISV(device=backend.device, **slots)
    for kl in kls[:30]:
        observe(backend, isv, kl, **measures)
    other = qpi.ISV(device=backend.device, layout="bus")
    other.load_state_dict(isv.state_dict(stream=backend.stream))
    again = qpi.ISV(device=backend.device)
    again.load_state_dict(isv.state_dict(stream=backend.stream))
    for kl in kls[30:]:
        for one in (isv, other, again):
            observe(backend, one, kl, **measures)
    assert_same_state(again.state_dict(stream=backend.stream), isv.state_dict(stream=backend.stream))
    assert frozen(other.read(stream=backend.stream)) == frozen(isv.read(stream=backend.stream))


# ---- faults --------------------------------------------------------------------------------------------------------

NOT_GAINS, NOT_POSITIVE = (-0.1, NAN, INF), (0, -1, NAN, INF)
BAD_LAM = {
    "ziegler": {"ziegler_gain": NOT_GAINS, "ziegler_clip": NOT_POSITIVE},
    "log_dual": {"dual_rate": NOT_GAINS, "dual_clip": NOT_POSITIVE},
    "log_pi": {"pi_gain": NOT_GAINS, "pi_rate": NOT_GAINS, "pi_clip": NOT_POSITIVE, "pi_slew": NOT_POSITIVE},
    "linear": {"lam_from": NOT_GAINS, "lam_to": NOT_GAINS, "lam_steps": (0,)},
}
BAD_TAU = {
    "linear": {"tau_from": NOT_GAINS, "tau_to": NOT_GAINS, "tau_steps": (0,), "tau_max": NOT_POSITIVE},
    "cosine": {"tau_from": NOT_GAINS, "tau_to": NOT_GAINS, "tau_steps": (0,), "tau_min": NOT_POSITIVE[:3]},
    "target_entropy": {
        "entropy_goal": (-0.1, 1.1, NAN),
        "entropy_rate": NOT_GAINS,
        "entropy_tolerance": (-0.1, NAN),
        "target_entropy": (NAN, INF),
        "uniform_entropy": (NAN, INF),
    },
    "mpo_dual": {
        "mpo_epsilon": NOT_POSITIVE,
        "mpo_rate": NOT_GAINS,
        "mpo_clip": NOT_POSITIVE,
        "prior_kl": (NAN, INF),
        "kl_tolerance": (0.5, NAN, INF),
    },
}


def cases(table):
    return [(law, slot, value) for law, slots in table.items() for slot, values in slots.items() for value in values]


@pytest.mark.parametrize(("law", "slot", "value"), cases(BAD_LAM))
def test_a_number_that_makes_no_sense_leaves_lam(backend, law, slot, value):
    state = {"lam": 0.5, "kl_ema": 0.5, "observations": 3, "lam_law": LAM_NAMES.index(law), slot: value}
    isv = make_isv(backend, state)
    isv.control(stream=backend.stream)
    values = isv.read(stream=backend.stream, check=False)
    assert (reason_of(values), faults_of(values), values.lam) == (Reason.FAULT, Fault.LAW, 0.5)
    assert values.lam_memory == values.lam_left == 0
    assert values.tau_reason == "fixed"


@pytest.mark.parametrize(("law", "slot", "value"), cases(BAD_TAU))
def test_a_number_that_makes_no_sense_leaves_tau(backend, law, slot, value):
    measured = {"target_entropy": 0.5, "uniform_entropy": 2.0, "prior_kl": 0.5}
    state = {"tau": 0.5, "observations": 3, "lam_law": LAM_NAMES.index("fixed"), "tau_law": TAU_NAMES.index(law)}
    isv = make_isv(backend, state | measured | {slot: value})
    isv.control(stream=backend.stream)
    values = isv.read(stream=backend.stream, check=False)
    assert (values.tau_reason, faults_of(values), values.tau) == ("fault", Fault.TAU_LAW, 0.5)
    assert values.reason == "fixed"


@pytest.mark.parametrize("slot", ["lam_law", "tau_law"])
@pytest.mark.parametrize("beyond", [0, 1, 2**31, 2**32 - 1])
def test_a_law_that_does_not_exist_moves_nothing(backend, slot, beyond):
    number = max(len(LAM_NAMES), len(TAU_NAMES)) + beyond if beyond < 2 else beyond
    fault = Fault.LAW if slot == "lam_law" else Fault.TAU_LAW
    state = {"lam": 0.5, "tau": 0.5, "target_entropy": 0.1, "uniform_entropy": 2, "prior_kl": 0.5, "lam_steps": 5}
    isv = make_isv(backend, state | {"lam_law": 4, "tau_law": 3, slot: number})
    observe(backend, isv, 5.0)
    values = isv.read(stream=backend.stream, check=False)
    assert faults_of(values) == fault
    assert (values.reason, values.tau_reason) == ("fault", "fault")
    assert (values.lam, values.tau, values.lam_left) == (0.5, 0.5, 0)
    assert (values.kl_ema, values.observations, values.commits) == (5, 1, 1)
    with pytest.raises(qpi.FaultError, match=fault.name.lower()):
        isv.read(stream=backend.stream)


def test_a_fixed_tau_is_not_looked_at(backend):
    isv = make_isv(backend, {"tau": INF, "tau_max": NAN, "observations": 1, "kl_ema": 1.0})
    isv.control(stream=backend.stream)
    values = isv.read(stream=backend.stream)
    assert (values.tau, values.tau_reason) == (INF, "fixed")


def test_a_law_brings_an_infinite_tau_back(backend):
    isv = qpi.ISV(device=backend.device, tau=INF, tau_law="target_entropy", entropy_goal=0.1, tau_max=8.0)
    observe(backend, isv, 0.1, target_entropy=1.9, uniform_entropy=2.0)
    values = isv.read(stream=backend.stream)
    assert values.tau < 8
    assert values.tau_reason == "above"


words = st.one_of(
    st.floats(width=32),
    st.floats(0, 100, width=32),
    st.sampled_from([0.0, 1e-45, 1e-38, 1.0, 3.4e38]),
)
FLOATS = [s.name for s in qpi.ISV.slot_info() if s.type == "f32"]
COUNTS = ("observations", "law_warmup", "lam_steps", "tau_steps", "lam_off")


@given(
    law=st.integers(0, len(LAM_NAMES)),
    tau_law=st.integers(0, len(TAU_NAMES)),
    floats=st.dictionaries(st.sampled_from(FLOATS), words, max_size=12),
    counts=st.dictionaries(st.sampled_from(COUNTS), st.integers(0, 2**32 - 1), max_size=4),
)
def test_whatever_the_slots_hold_lam_and_tau_stay_within_bounds(law, tau_law, floats, counts):
    backend = backends.make("cpu")
    start = {"observations": 5, "kl_ema": 0.1, "target_entropy": 1.0, "uniform_entropy": 2.0, "prior_kl": 0.2}
    isv = make_isv(backend, start | {"lam_law": law, "tau_law": tau_law} | floats | counts)
    before = isv.read(check=False)
    isv.control()
    after = isv.read(check=False)
    changed = {name for name, value in frozen(after).items() if value != frozen(before)[name]}
    assert changed <= {"lam", "tau", "lam_memory", "lam_left", "faults", "reason", "tau_reason"}
    for what, reason in (("lam", after.reason), ("tau", after.tau_reason)):
        if reason in ("fault", "off", "too_few") or (what, reason) == ("tau", "fixed"):
            assert what not in changed
        else:
            low, high = after[f"{what}_min"], after[f"{what}_max"]
            assert low <= after[what] <= high
            assert math.isfinite(after[what])
    assert ("fault" in (after.reason, after.tau_reason)) == bool(after.faults)


# ---- the host's side -----------------------------------------------------------------------------------------------


def test_laws_by_name_and_by_number():
    isv = qpi.ISV(device="cpu", lam_law="log_pi", tau_law=2)
    values = isv.read()
    assert (values.lam_law, values.tau_law) == ("log_pi", "cosine")
    assert (values.raw["lam_law"], values.raw["tau_law"]) == (LAM_NAMES.index("log_pi"), 2)
    isv.set(lam_law="fixed")
    assert isv.read().lam_law == "fixed"
    with pytest.raises(ValueError, match=r"^lam_law.*log_pj.*log_pi"):
        isv.set(lam_law="log_pj")
    with pytest.raises(ValueError, match=r"^tau_law"):
        isv.set(tau_law=len(TAU_NAMES))
    with pytest.raises(ValueError, match=r"^lam_steps"):
        isv.set(lam_steps=0)
    with pytest.raises(ValueError, match=r"^preset.*sed.*seed"):
        qpi.ISV(device="cpu", preset="sed")
    assert qpi.ISV(device="cpu", preset="schulman", lam_up=3.0).read().lam_up == 3


def test_the_registry_is_described():
    for laws in qpi.ISV.laws().values():
        assert [law.number for law in laws] == list(range(len(laws)))
        assert all(law.formula and law.source for law in laws)
    for preset in qpi.ISV.presets().values():
        assert preset.lam_law in LAM_NAMES
        assert {"lam_min", "lam_max"} <= preset.values.keys()
        assert preset.source
