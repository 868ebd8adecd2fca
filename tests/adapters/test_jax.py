"""The JAX adapter against the float64 reference and against the Distiller, under JAX's transformations."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import qpi_distill as qpi
from qpi_distill import _isv
from stepping import assert_same_bits, check_gradient, check_record, check_state, frozen, model, random_problem
from toolchain import run

jax = pytest.importorskip("jax")
jnp = jax.numpy

from jax_cases import (  # noqa: E402
    DEVICES,
    device_of,
    gradient_and_record,
    keywords,
    poked,
    record_of,
    state_of,
    words,
)

import qpi_distill.jax as qpj  # noqa: E402

F32 = ("float32", "float32", "float32")
SUPPORT = qpi.linspace(-2, 2, 9)


@pytest.fixture(autouse=True, params=DEVICES)
def device(request):
    """Run every test on every device that JAX has."""
    with jax.default_device(device_of(request.param)):
        yield request.param


def plain(rng, *, dtypes=F32, **choices):
    """A problem whose gradient starts at zero, as that of a loss does."""
    problem = random_problem(rng, dtypes=dtypes, mode="write", **choices)
    return replace(problem, grad=np.zeros_like(problem.grad))


def loss_of(problem, record) -> float:
    """The value that belongs to a record, from the definition."""
    lam = problem.state.get("lam", 0.1)
    return lam * record.weighted_kl / (len(problem.flat.pi) if problem.options.reduction == "mean" else 1)


# ---- the numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value_scale", ["none", "running_std"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize(("masked", "weighted", "per_action"), [(False, False, False), (True, True, True)])
def test_loss_gradient_and_state_are_the_reference(value_scale, reduction, masked, weighted, per_action):
    rng = np.random.default_rng(3)
    state = {"lam": 0.4, "tau": 0.7}
    if value_scale == "running_std":
        state |= {"value_std": 1.7, "value_observations": 3}
    problem = plain(
        rng,
        rows=33,
        masked=masked,
        weighted=weighted,
        per_action=per_action,
        value_scale=value_scale,
        reduction=reduction,
        state=state,
    )
    value, gradient, words_of_record = gradient_and_record(problem)
    record = record_of(words_of_record)
    check_gradient(np.asarray(gradient), problem)
    check_record(record, problem)
    assert value.dtype == jnp.float32
    assert float(value) == pytest.approx(loss_of(problem, record), rel=1e-6)
    after = qpj.commit(qpj.accumulate(state_of(problem), words_of_record))
    check_state(qpj.read_state(after), problem, record)
    assert not np.asarray(after.record).any()


@pytest.mark.parametrize("pi_dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("q_dtype", ["float32", "float16", "bfloat16"])
def test_dtypes(q_dtype, pi_dtype):
    problem = plain(np.random.default_rng(5), rows=19, dtypes=(q_dtype, pi_dtype, pi_dtype), weighted=True)
    _, gradient, record = gradient_and_record(problem)
    assert gradient.dtype.name == pi_dtype
    check_gradient(np.asarray(gradient), problem)
    check_record(record_of(record), problem)
    found, _ = qpj.distill_grad(problem.pi, problem.q, problem.support, state_of(problem), **keywords(problem))
    assert_same_bits(np.asarray(found), np.asarray(gradient))


@given(seed=st.integers(0, 2**32 - 1), masked=st.booleans(), weighted=st.booleans(), mean=st.booleans())
@settings(max_examples=25)
def test_random_batches(seed, masked, weighted, mean):
    rng = np.random.default_rng(seed)
    problem = plain(rng, masked=masked, weighted=weighted, reduction="mean" if mean else "sum", q_size=5, pi_size=5)
    bad = rng.random(problem.pi.shape) < 0.05
    problem.pi[bad] = rng.choice(np.array([np.nan, np.inf, -np.inf, 1e30, -1e30], np.float32), bad.sum())
    _, gradient, record = gradient_and_record(problem)
    check_gradient(np.asarray(gradient), problem)
    check_record(record_of(record), problem)


def test_what_comes_in_from_above_multiplies_the_gradient_before_it_is_rounded():
    problem = plain(np.random.default_rng(8), rows=64, dtypes=("float32", "float16", "float16"), reduction="mean")
    state = poked(qpj.init_state(), lam=1e-5)
    exact = np.asarray(gradient_and_record(replace(problem, pi=problem.pi.astype(np.float32)), state)[1])
    loss = lambda pi: 2.0**14 * qpj.distill_loss(pi, problem.q, problem.support, state, **keywords(problem))[0]  # noqa: E731
    scaled = np.asarray(jax.jit(jax.grad(loss))(problem.pi))
    assert_same_bits(scaled, (exact * np.float32(2.0**14)).astype(np.float16))
    assert (exact.astype(np.float16) == 0).mean() > 0.2 > (scaled == 0).mean()


def test_micro_batches_are_one_observation_and_the_same_bits_as_the_distiller(device):
    rng = np.random.default_rng(11)
    isv = qpi.ISV(device="cpu", lam=0.3, tau=0.5, preset="log_pi")
    op = qpi.Distiller(actions=5, support=SUPPORT, isv=isv, reduction="mean", mode="write")
    state = qpj.init_state(lam=0.3, tau=0.5, preset="log_pi")
    step = jax.jit(lambda pi, q, state: qpj.distill_grad(pi, q, SUPPORT, state, reduction="mean"), donate_argnums=2)
    for _ in range(3):
        for rows in (17, 40):
            q = rng.normal(size=(rows, 5, 9)).astype(np.float32)
            pi = rng.normal(size=(rows, 5)).astype(np.float32)
            want = np.empty_like(pi)
            op.accumulate(q, pi, want)
            got, state = step(pi, q, state)
            if device == "cpu":
                assert_same_bits(np.asarray(got), want)
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)
        isv.commit()
        state = qpj.commit(state)
        if device == "cpu":
            assert frozen(qpj.read_state(state)) == frozen(isv.read())
        assert qpj.read_state(state).lam == pytest.approx(isv.read().lam, rel=1e-5)
    assert qpj.read_state(state).observations == 3


def test_leading_dimensions_are_rows():
    problem = plain(np.random.default_rng(12), rows=(3, 4), masked=True, weighted=True)
    value, gradient, record = gradient_and_record(problem)
    flat_value, flat_gradient, flat_record = gradient_and_record(problem.flat)
    assert gradient.shape == problem.pi.shape
    assert_same_bits(np.asarray(gradient).reshape(flat_gradient.shape), np.asarray(flat_gradient))
    assert_array_equal(record, flat_record)
    assert value == flat_value


@pytest.mark.parametrize("shape", [(0,), (2, 0)])
def test_no_rows_change_nothing(shape):
    pi, q = np.zeros((*shape, 5), np.float32), np.zeros((*shape, 5, 9), np.float32)
    weights = np.ones(shape, np.float32)
    loss = lambda pi: qpj.distill_loss(  # noqa: E731
        pi, q, SUPPORT, qpj.init_state(), reduction="mean", row_weights=weights
    )
    (value, record), gradient = jax.value_and_grad(loss, has_aux=True)(pi)
    assert value == 0
    assert gradient.shape == pi.shape
    before = qpj.init_state()
    after = qpj.commit(qpj.accumulate(before, record))
    assert qpj.read_state(after).reason == "no_rows"
    assert qpj.read_state(after).lam == qpj.read_state(before).lam


FAMILY = [
    {"critic": "quantile"},
    {"critic": "scalar"},
    {"target": "greedy", "epsilon": 0.1, "divergence": "reverse_kl"},
    {"divergence": "jensen_shannon", "beta": 0.3, "control_stat": "loss"},
    {"divergence": "hellinger"},
    {"divergence": "total_variation", "policy_temperature": 2.0},
    {"policy_temperature": 0.5},
    {"illegal_below": -1.0, "summary": True},
    {"value_scale": "none"},
]


@pytest.mark.parametrize("choices", FAMILY, ids=lambda choices: "-".join(map(str, choices.values())))
def test_the_family_is_that_of_the_distiller(choices, device):
    rng = np.random.default_rng(13)
    critic = choices.get("critic", "categorical")
    q = rng.normal(size=(21, 5) if critic == "scalar" else (21, 5, 9)).astype(np.float32)
    pi = rng.normal(size=(21, 5)).astype(np.float32)
    support = SUPPORT if critic == "categorical" else None
    isv = qpi.ISV(device="cpu")
    op = qpi.Distiller(
        support=support, actions=5, atoms=q.shape[-1] if q.ndim == 3 else 1, isv=isv, reduction="sum", **choices
    )
    want = np.zeros_like(pi)
    op.accumulate(q, pi, want)
    want_record = isv.record_views()
    loss = lambda pi: qpj.distill_loss(pi, q, support, qpj.init_state(), reduction="sum", **choices)  # noqa: E731
    (value, record), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(pi)
    got = record_of(record)
    np.testing.assert_allclose(gradient, want, rtol=0, atol=0 if device == "cpu" else 1e-6)
    np.testing.assert_allclose([got.weighted_kl, got.weight, got.weighted_variance], want_record.sums, rtol=1e-6)
    assert (got.rows, got.skipped, got.clipped) == tuple(want_record.counts)
    summed = qpi.Distiller(
        support=support,
        actions=5,
        atoms=op.atoms,
        isv=qpi.ISV(device="cpu"),
        reduction="sum",
        **{**choices, "summary": True},
    )
    assert float(value) == pytest.approx(0.1 * 21 * summed.measure(q, pi).loss, rel=1e-5)
    after = qpj.read_state(qpj.commit(qpj.accumulate(qpj.init_state(), record)))
    assert (after.loss_last >= 0) == choices.get("summary", False), "what nobody asked for stays unmeasured"


def test_faults_and_bad_rows_give_no_gradient_and_are_told():
    problem = plain(np.random.default_rng(14), rows=9, state={"tau": -1.0})
    _, gradient, record = gradient_and_record(problem)
    assert not np.asarray(gradient).any()
    after = qpj.commit(qpj.accumulate(state_of(problem), record))
    with pytest.raises(qpi.FaultError, match="tau"):
        qpj.read_state(after)
    assert "tau" in qpj.read_state(after, check=False).faults


@pytest.mark.parametrize("state", [{"lam": 0.0}, {"lam_off": 1}])
def test_switched_off(state):
    problem = plain(np.random.default_rng(15), rows=9)
    value, gradient, record = gradient_and_record(problem, poked(qpj.init_state(), **state))
    assert value == 0
    assert not np.asarray(gradient).any()
    assert record_of(record).weighted_kl > 0


@pytest.mark.parametrize(
    ("pi_dtype", "grad_dtype"), [("float32", "float32"), ("bfloat16", "float32"), ("float16",) * 2]
)
def test_distill_grad_adds_to_what_is_there(pi_dtype, grad_dtype):
    problem = random_problem(
        np.random.default_rng(16), rows=12, dtypes=("float32", pi_dtype, grad_dtype), masked=True, grad_scale=0.5
    )
    before = np.array(problem.grad)
    got, state = jax.jit(
        lambda pi, q, grad, scale, state: qpj.distill_grad(
            pi, q, problem.support, state, pi_grad=grad, grad_scale=scale, **keywords(problem)
        )
    )(problem.pi, problem.q, problem.grad, np.float32(0.5), state_of(problem))
    assert got.dtype.name == grad_dtype
    check_gradient(np.asarray(got), problem)
    check_record(record_of(state.record), problem)
    assert_same_bits(problem.grad, before)


# ---- transformations -------------------------------------------------------------------------------------------------


def test_vmap_makes_batches_of_their_own():
    rng = np.random.default_rng(20)
    q = rng.normal(size=(3, 6, 5, 9)).astype(np.float32)
    pi = rng.normal(size=(3, 6, 5)).astype(np.float32)
    weights = rng.random((3, 6)).astype(np.float32)
    state = qpj.init_state()

    def loss(pi, q, weights):
        return qpj.distill_loss(pi, q, SUPPORT, state, reduction="mean", row_weights=weights)

    one = jax.value_and_grad(loss, has_aux=True)
    (values, records), gradients = jax.jit(jax.vmap(one))(pi, q, weights)
    for i in range(3):
        (value, record), gradient = one(pi[i], q[i], weights[i])
        assert values[i] == value
        assert_array_equal(records[i], record)
        assert_same_bits(np.asarray(gradients[i]), np.asarray(gradient))


def test_vmap_over_states_runs_a_population(device):
    rng = np.random.default_rng(21)
    q, pi = rng.normal(size=(8, 5, 9)).astype(np.float32), rng.normal(size=(8, 5)).astype(np.float32)
    states = [qpj.init_state(lam=lam, kl_target=1e-4) for lam in (0.1, 0.2, 0.9)]

    def step(state):
        gradient, state = qpj.distill_grad(pi, q, SUPPORT, state, reduction="sum")
        return gradient, qpj.commit(state)

    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    if device == "cuda":
        with pytest.raises(NotImplementedError, match="vmap"):
            jax.jit(jax.vmap(step))(stacked)
        return
    gradients, after = jax.jit(jax.vmap(step))(stacked)
    for i, state in enumerate(states):
        gradient, alone = step(state)
        assert_same_bits(np.asarray(gradients[i]), np.asarray(gradient))
        assert_array_equal(after.slots[i], alone.slots)
    assert len({qpj.read_state(jax.tree.map(lambda leaf: leaf[i], after)).lam for i in range(3)}) == 3  # noqa: B023


def test_scan_and_recomputation_count_every_batch_once():
    rng = np.random.default_rng(22)
    q, pi = rng.normal(size=(4, 8, 5, 9)).astype(np.float32), rng.normal(size=(4, 8, 5)).astype(np.float32)

    @jax.jit
    def run(state):
        def body(state, batch):
            pi, q = batch
            loss = jax.checkpoint(lambda pi: qpj.distill_loss(jnp.sin(pi), q, SUPPORT, state, reduction="mean"))
            gradient, record = jax.grad(loss, has_aux=True)(pi)
            return qpj.accumulate(state, record), gradient

        state, gradients = jax.lax.scan(body, state, (pi, q))
        return qpj.commit(state), gradients

    state, gradients = run(qpj.init_state())
    assert qpj.read_state(state).rows_last == 32
    assert qpj.read_state(state).commits == 1
    assert np.isfinite(gradients).all()


def test_gradient_is_that_of_the_value():
    """Finite differences of the value, in a direction; the value is float32, so that only the size can be compared."""
    problem = plain(np.random.default_rng(23), rows=16, reduction="mean", state={"lam": 1.0}, weighted=True)
    _, gradient, _ = gradient_and_record(problem)
    direction = np.random.default_rng(24).normal(size=problem.pi.shape).astype(np.float32)
    ends = [gradient_and_record(replace(problem, pi=problem.pi + sign * 5e-3 * direction))[0] for sign in (1, -1)]
    slope = (float(ends[0]) - float(ends[1])) / 1e-2
    assert slope == pytest.approx(float((np.asarray(gradient) * direction).sum()), rel=2e-3)


def test_what_cannot_be_differentiated_says_so():
    problem = plain(np.random.default_rng(25), rows=4)
    state = state_of(problem)
    loss = lambda pi: qpj.distill_loss(pi, problem.q, problem.support, state, reduction="sum")[0]  # noqa: E731
    with pytest.raises(ValueError, match="cannot be differentiated"):
        jax.grad(lambda pi: jax.grad(loss)(pi).sum())(problem.pi)
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(loss, (problem.pi,), (problem.pi,))


def test_everything_but_the_policy_counts_as_constant():
    problem = plain(np.random.default_rng(26), rows=4)
    state = state_of(problem)
    loss = lambda pi, q, s: qpj.distill_loss(pi, q, s, state, reduction="sum")[0]  # noqa: E731
    of_q, of_support = jax.grad(loss, argnums=(1, 2))(problem.pi, problem.q, problem.support)
    assert not np.asarray(of_q).any()
    assert not np.asarray(of_support).any()


# ---- the compiled program --------------------------------------------------------------------------------------------


def test_the_compiled_step_copies_no_logits_and_works_in_place():
    rows = 257
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((rows, 5), (rows, 5, 9), (9,), (rows, 5))]

    def step(pi, q, support, grad, state):
        grad, state = qpj.distill_grad(pi, q, support, state, reduction="sum", pi_grad=grad)
        return grad, qpj.commit(state)

    def compiled(donated):
        """The program, and what it moves of the size of the batch."""
        text = jax.jit(step, donate_argnums=donated).lower(*shapes, qpj.init_state()).compile().as_text()
        assert text.count('custom_call_target="qpi_distill_batch"') == 1
        return text, re.findall(r"= \S+\[257,[\d,]*\]\S* (?:copy|copy-start|transpose|convert)\(", text)

    text, moved = compiled((3, 4))
    assert moved == []
    assert len(compiled(())[1]) == 1  # a gradient that is kept has to be copied, and that is seen
    aliases = re.search(r"input_output_alias=\{(.*?)\}, entry", text).group(1)
    assert {int(n) for n in re.findall(r"\((\d+), \{\}", aliases)} >= {3, 4}


def test_a_donated_state_is_gone():
    state = qpj.init_state()
    after = jax.jit(qpj.commit, donate_argnums=0)(state)
    assert state.slots.is_deleted()
    assert qpj.read_state(after).commits == 1


def test_a_state_that_was_not_donated_stays():
    state = qpj.init_state()
    before = np.array(state.slots)
    after = qpj.commit(state)
    assert_array_equal(state.slots, before)
    assert not np.array_equal(words(after.slots), before)


def test_an_exported_program_runs_in_another_process(tmp_path, device):
    """Plans are found by what they are for: no address is in the program."""
    from jax import export

    pytest.importorskip("flatbuffers")  # which JAX needs to write a program down
    problem = plain(np.random.default_rng(30), rows=6, masked=True)
    state = qpj.init_state()

    def gradient(pi, q):
        return qpj.distill_grad(pi, q, problem.support, state, **keywords(problem))[0]

    checks = [export.DisabledSafetyCheck.custom_call("qpi_distill_batch")]
    exported = export.export(jax.jit(gradient), platforms=[device], disabled_checks=checks)(problem.pi, problem.q)
    (tmp_path / "program").write_bytes(exported.serialize())
    np.savez(tmp_path / "arrays.npz", pi=problem.pi, q=problem.q)
    reader = """
import pathlib, sys
import jax.export, numpy as np
import qpi_distill.jax
folder = pathlib.Path(sys.argv[1])
program = jax.export.deserialize((folder / "program").read_bytes())
arrays = np.load(folder / "arrays.npz")
np.save(folder / "gradient.npy", program.call(arrays["pi"], arrays["q"]))
"""
    run([sys.executable, "-c", reader, tmp_path])
    assert_same_bits(np.load(tmp_path / "gradient.npy"), np.asarray(gradient(problem.pi, problem.q)))


# ---- the state -------------------------------------------------------------------------------------------------------


def test_state_by_names():
    state = qpj.init_state(preset="ziegler", kl_target=0.2)
    values = qpj.read_state(state)
    assert (values.lam_law, values.kl_target) == ("ziegler", pytest.approx(0.2))
    state = qpj.write_state(state, lam=0.5, lam_law="fixed")
    assert float(qpj.slot(state, "lam")) == 0.5
    assert qpj.slot(state, "lam").dtype == jnp.float32
    assert int(jax.jit(lambda state: qpj.slot(state, "lam_law"))(state)) == 1
    assert qpj.read_state(state).lam_law == "fixed"


def test_discard_forgets_the_record_alone():
    problem = plain(np.random.default_rng(31), rows=5)
    _, _, record = gradient_and_record(problem)
    state = qpj.discard(qpj.accumulate(qpj.init_state(), record))
    assert not np.asarray(state.record).any()
    assert_array_equal(state.slots, qpj.init_state().slots)


def test_records_add_up_in_64_bits():
    rng = np.random.default_rng(32)
    records = [record_of(gradient_and_record(plain(rng, rows=3))[2]) for _ in range(2)]
    records[0].rows = 2**40 + 1
    records[0].faults, records[1].faults = 5, 4 | 2**31
    state = qpj.init_state()
    for record in records:
        state = qpj.accumulate(state, jnp.asarray(np.frombuffer(bytes(record), np.uint32)))
    got = record_of(state.record)
    assert got.weighted_kl == records[0].weighted_kl + records[1].weighted_kl
    assert got.rows == 2**40 + 1 + records[1].rows
    assert (got.faults, got.calls) == (5 | 2**31, 2)


# ---- bad input -------------------------------------------------------------------------------------------------------

PI, Q = np.zeros((3, 5), np.float32), np.zeros((3, 5, 9), np.float32)
BAD = [
    ({"pi_logits": PI.astype(np.int32)}, TypeError, "pi_logits: dtype int32"),
    ({"q_logits": Q.astype(np.uint8)}, TypeError, "q_logits: dtype uint8"),
    ({"pi_logits": np.float32(1)}, ValueError, r"pi_logits: shape \(\)"),
    ({"q_logits": Q[:2]}, ValueError, r"q_logits: shape \(2, 5, 9\), expected \(3, 5, Z\)"),
    ({"q_logits": Q[:, 0]}, ValueError, r"q_logits: shape \(3, 9\)"),
    ({"support": None}, TypeError, "support: required"),
    ({"support": np.zeros(8, np.float32)}, ValueError, r"support: shape \(8,\), expected \(9,\) or \(5, 9\)"),
    ({"support": np.zeros(9, np.float16)}, TypeError, "support: dtype float16"),
    ({"critic": "quantile"}, ValueError, "support: a quantile critic has none"),
    ({"legal_actions": np.ones((3, 4), bool)}, ValueError, "legal_actions: shape"),
    ({"legal_actions": PI}, TypeError, "legal_actions: dtype float32"),
    ({"row_weights": np.ones((3, 1), np.float32)}, ValueError, "row_weights: shape"),
    ({"row_weights": np.ones(3, np.int32)}, TypeError, "row_weights: dtype int32"),
    ({"reduction": "max"}, ValueError, "reduction: 'max' is not one of 'sum', 'mean'"),
    ({"reduction": None}, ValueError, "reduction: None"),
    ({"value_scale": ["none"]}, ValueError, "value_scale: "),
    ({"divergence": "kl"}, ValueError, "divergence: 'kl'"),
    ({"temperature": 1.0}, TypeError, "no option 'temperature'"),
    ({"illegal_below": "low"}, TypeError, "illegal_below: 'low'"),
    ({"illegal_below": float("nan")}, ValueError, "illegal_below"),
    ({"beta": 1.0}, ValueError, "beta"),
    ({"policy_temperature": 0.0}, ValueError, "policy_temperature"),
    ({"epsilon": 0.5}, ValueError, "epsilon"),
    ({"state": None}, TypeError, "state: NoneType"),
    (
        {"pi_logits": np.zeros((1, 5000), np.float32), "q_logits": np.zeros((1, 5000, 9), np.float32)},
        OverflowError,
        "act",
    ),
]


@pytest.mark.parametrize(("wrong", "kind", "message"), BAD, ids=lambda value: str(value)[:40])
def test_errors_name_the_argument_while_tracing(wrong, kind, message):
    arguments = {"pi_logits": PI, "q_logits": Q, "support": SUPPORT, "state": qpj.init_state(), "reduction": "sum"}
    for function in (qpj.distill_loss, qpj.distill_grad):
        with pytest.raises(kind, match=message):
            function(**{**arguments, **wrong})


def test_errors_of_distill_grad_alone():
    call = lambda **wrong: qpj.distill_grad(PI, Q, SUPPORT, qpj.init_state(), reduction="sum", **wrong)  # noqa: E731
    with pytest.raises(TypeError, match="pi_grad: dtype float16"):
        call(pi_grad=PI.astype(np.float16))
    with pytest.raises(ValueError, match="pi_grad: shape"):
        call(pi_grad=PI[:2])
    with pytest.raises(ValueError, match="grad_scale: shape"):
        call(grad_scale=np.ones(2, np.float32))


def test_errors_of_the_state():
    state = qpj.init_state()
    with pytest.raises(TypeError, match="the ISV has no slot 'lambda'"):
        qpj.slot(state, "lambda")
    with pytest.raises(ValueError, match="tau"):
        qpj.write_state(state, tau=-1)
    with pytest.raises(ValueError, match=r"record: shape \(3,\)"):
        qpj.accumulate(state, jnp.zeros(3, jnp.uint32))
    with pytest.raises(TypeError, match="record: float32"):
        qpj.accumulate(state, jnp.zeros(state.record.shape))
    with pytest.raises(ValueError, match=r"state.slots: shape \(2, "):
        qpj.read_state(jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), state))
    with pytest.raises(TypeError, match="state: tuple"):
        qpj.commit(tuple(state))


def test_a_program_that_is_not_ours_is_refused_by_the_handler():
    """What the checks before tracing keep away, the compiled code refuses before it touches memory."""
    call = jax.ffi.ffi_call("qpi_distill_commit", [jax.ShapeDtypeStruct((8,), jnp.uint32)] * 2)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"qpi_distill: slots has 8 elements; expected \d+"):
        jax.block_until_ready(call(jnp.zeros(8, jnp.uint32), jnp.zeros(8, jnp.uint32)))
    sizes = (qpj.init_state().slots.size, _isv.WORKSPACE_SIZE // 4)
    elsewhere = jax.ffi.ffi_call("qpi_distill_commit", [jax.ShapeDtypeStruct((n,), jnp.uint32) for n in sizes])
    with pytest.raises(jax.errors.JaxRuntimeError, match="qpi_distill: XLA did not hand over slots in place"):
        jax.block_until_ready(elsewhere(*(jnp.zeros(n, jnp.uint32) for n in sizes)))
    with pytest.raises(jax.errors.JaxRuntimeError, match="1 operands and 2 results; expected 2 and 2"):
        jax.block_until_ready(call(jnp.zeros(8, jnp.uint32)))
    call = jax.ffi.ffi_call("qpi_distill_batch", [jax.ShapeDtypeStruct((2,), jnp.float32)] * 2)
    with pytest.raises(jax.errors.JaxRuntimeError, match="q_logits has rank 1; expected 3"):
        jax.block_until_ready(call(*[jnp.zeros(2)] * 8))


def test_model_is_used():
    """The reference's own gradient is not zero on these batches: comparisons with it say something."""
    grad, *_ = model(plain(np.random.default_rng(3), rows=33))
    assert np.abs(grad).max() > 1e-3
