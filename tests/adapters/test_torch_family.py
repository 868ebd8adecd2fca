"""The family through qpi_distill.torch: value, gradient and summary against the float64 reference."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from torch_cases import pytest_generate_tests  # noqa: F401

import qpi_distill as qpi
from backends import CRecord
from families import BETA, DIVERGENCES, LAM, TAU, Batch, check

torch = pytest.importorskip("torch")
adapter = pytest.importorskip("qpi_distill.torch")
options_text = pytest.importorskip("qpi_distill.torch.options").options_text
DistillLoss, distill_loss, new_state = adapter.DistillLoss, adapter.distill_loss, adapter.new_state

CRITICS = ("categorical", "quantile", "scalar")
TARGETS = {"boltzmann": {}, "greedy": {"target": "greedy", "epsilon": 0.1}}
SUMMARY = ("loss_last", "target_entropy", "policy_entropy", "uniform_entropy", "agreement", "pi_at_qstar", "overlap")
ROWS, ACTIONS, ATOMS = 40, 5, 7


def choices_of(batch, **more):
    return {"critic": batch.critic, "value_scale": "none", "beta": BETA, **batch.options, **more}


def evaluate(batch, device, lead=(ROWS,), reduction="sum", **more):
    """Value, gradient of pi_logits and record of a batch, seen under other leading dimensions."""

    def put(array):
        return None if array is None else torch.from_numpy(array.copy()).to(device)

    def rows(array):
        return put(array.reshape(*lead, *array.shape[1:]))

    pi = rows(batch.pi).requires_grad_()
    loss, record = distill_loss(
        pi,
        rows(batch.q),
        put(batch.support),
        new_state(device, lam=LAM, tau=TAU),
        reduction=reduction,
        legal_actions=rows(batch.legal),
        row_weights=rows(batch.weights),
        **choices_of(batch, **more),
    )
    loss.backward()
    return loss.item(), pi.grad.cpu().numpy().reshape(batch.pi.shape), record


def c_record(record):
    return CRecord.from_buffer_copy(record.cpu().numpy().tobytes())


def problem(device="cpu", critic="categorical", seed=0):
    """Tensors: pi_logits (a leaf), q_logits, support."""
    batch = Batch(seed, 6, ACTIONS, ATOMS, critic)
    support = None if batch.support is None else torch.from_numpy(batch.support).to(device)
    return torch.from_numpy(batch.pi).to(device).requires_grad_(), torch.from_numpy(batch.q).to(device), support


# ---- against the reference -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("critic", CRITICS)
@pytest.mark.parametrize("control_stat", ["kl", "loss"])
def test_every_member_is_that_of_the_reference(device, critic, divergence, target, control_stat):
    seed = 100 * CRITICS.index(critic) + 10 * list(DIVERGENCES).index(divergence) + (target == "greedy")
    more = {"divergence": divergence, "control_stat": control_stat, **TARGETS[target]}
    batch = Batch(seed, ROWS, ACTIONS, ATOMS, critic, **more)
    loss, grad, record = evaluate(batch, device, lead=(5, 8), summary=True)
    check(batch, grad, c_record(record))
    value = (batch.weights.astype(np.float64) * batch.divergence().value).sum()
    assert_allclose(loss, LAM * value, rtol=1e-5)
    mean, gradient, _ = evaluate(batch, device, reduction="mean")
    assert_allclose(mean, LAM * value / ROWS, rtol=1e-5)
    assert_allclose(gradient, grad / ROWS, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("policy_temperature", [0.5, 3.0])
def test_policy_temperature(device, divergence, policy_temperature):
    batch = Batch(31, ROWS, ACTIONS, ATOMS, divergence=divergence, policy_temperature=policy_temperature)
    loss, grad, record = evaluate(batch, device, summary=True)
    check(batch, grad, c_record(record))
    assert_allclose(loss, LAM * (batch.weights * batch.divergence().value).sum(), rtol=1e-5)


@pytest.mark.parametrize("divergence", [name for name in DIVERGENCES if name != "total_variation"])
def test_the_gradient_is_that_of_the_value(divergence):
    batch = Batch(32, 1, 4, ATOMS, "quantile", divergence=divergence, policy_temperature=2.0)
    batch.weights[:], batch.legal[:] = 1, True
    _, grad, _ = evaluate(batch, "cpu", lead=(1,))
    step = np.float32(1 / 64)
    for action in range(4):
        values = []
        for sign in (1, -1):
            moved = copy.copy(batch)
            moved.pi = batch.pi.copy()
            moved.pi[0, action] += sign * step
            values.append(evaluate(moved, "cpu", lead=(1,))[0])
        assert grad[0, action] == pytest.approx((values[0] - values[1]) / (2 * step), abs=5e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("critic", CRITICS)
def test_half_precision(device, critic, dtype):
    half = getattr(torch, dtype)
    pi, q, support = problem(device, critic)
    low = pi.detach().to(half).requires_grad_()
    wide = low.detach().float().requires_grad_()
    state = new_state(device)
    for logits, values in ((low, q.to(half)), (wide, q.to(half).float())):
        distill_loss(logits, values, support, state, reduction="sum", critic=critic, divergence="jensen_shannon")[
            0
        ].backward()
    assert low.grad.any()
    assert torch.equal(low.grad, wide.grad.to(half))


@pytest.mark.parametrize("critic", CRITICS)
@pytest.mark.parametrize("lead", [(), (0,), (1,), (2, 0), (3, 1, 2)], ids=str)
def test_leading_dimensions(device, critic, lead):
    rows = int(np.prod(lead))
    pi = torch.randn(*lead, 4, device=device, requires_grad=True)
    q = torch.randn(*lead, 4, *(() if critic == "scalar" else (7,)), device=device)
    mine = DistillLoss(
        torch.linspace(-1, 1, 7) if critic == "categorical" else None,
        reduction="mean",
        device=device,
        critic=critic,
        divergence="hellinger",
    )
    loss = mine(pi, q)
    loss.backward()
    assert pi.grad.shape == pi.shape
    assert bool(pi.grad.any()) == (rows > 0) == (loss.item() > 0)
    mine.commit()
    assert mine.read().rows_last == rows


def test_strides_of_scalar_values_do_not_matter(device):
    pi, q, _ = problem(device, "scalar")
    state = new_state(device)

    def gradient(q):
        loss, _ = distill_loss(pi, q, None, state, reduction="sum", critic="scalar")
        return torch.autograd.grad(loss, pi)[0]

    expected = gradient(q)
    for other in (torch.stack([q, q], -1).flatten(-2)[:, ::2], q.T.contiguous().T):
        assert torch.equal(gradient(other), expected)


# ---- against the distiller -----------------------------------------------------------------------------------------

MEMBERS = st.fixed_dictionaries(
    {
        "divergence": st.sampled_from(list(DIVERGENCES)),
        "control_stat": st.sampled_from(["kl", "loss"]),
        "value_scale": st.sampled_from(["running_std", "none"]),
        "beta": st.floats(0.01, 0.99),
        "policy_temperature": st.floats(0.25, 4),
        "summary": st.booleans(),
    }
)


@settings(max_examples=60, deadline=None)
@given(
    choices=MEMBERS,
    critic=st.sampled_from(CRITICS),
    epsilon=st.none() | st.floats(0.01, 1),
    tau_law=st.sampled_from(["fixed", "target_entropy"]),
    seed=st.integers(0, 1000),
)
def test_same_bits_as_the_distiller(choices, critic, epsilon, tau_law, seed):
    """Slots as well: what the value alone needs must not reach them, where a law would listen to it."""
    choices = {**choices, "critic": critic}
    if epsilon is not None:
        choices |= {"target": "greedy", "epsilon": epsilon}
    slots = {"lam": 0.4, "tau": 0.5, "tau_law": tau_law}
    support = problem(critic=critic)[2]
    mine = DistillLoss(support, reduction="mean", **choices, **slots)
    isv = qpi.ISV(device="cpu", **slots)
    atoms = ATOMS if critic == "quantile" else None
    op = qpi.Distiller(support=support, actions=ACTIONS, atoms=atoms, isv=isv, reduction="mean", **choices)
    for part in range(2):
        pi, q, _ = problem(critic=critic, seed=seed + part)
        mine(pi, q).backward()
        grad = torch.zeros_like(pi)
        op.accumulate(q, pi, grad)
        assert torch.equal(pi.grad, grad)
        if part:  # two micro-batches are one observation
            mine.commit()
            op.commit()
            assert mine.read() == isv.read()
            assert not mine.record.any()


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_a_summary_that_nobody_asked_for_stays_unmeasured(device, divergence):
    pi, q, support = problem(device)
    found = []
    for summary in (False, True):
        state = new_state(device)
        loss, record = distill_loss(pi, q, support, state, reduction="sum", divergence=divergence, summary=summary)
        adapter.collect(state, record)
        adapter.commit(state)
        values = adapter.read_state(state.slots)
        assert [values[name] >= 0 for name in SUMMARY] == [summary] * len(SUMMARY)
        found.append((loss.item(), values.kl_last, values.lam))
    assert found[0] == found[1]


def test_the_summary_is_in_the_slots(device):
    batch = Batch(33, ROWS, ACTIONS, ATOMS, "scalar", divergence="reverse_kl")
    mine = DistillLoss(
        reduction="mean", device=device, lam=LAM, tau=TAU, **choices_of(batch, critic="scalar", summary=True)
    )
    pi, q, legal, weights = (
        torch.from_numpy(array).to(device) for array in (batch.pi, batch.q, batch.legal, batch.weights)
    )
    assert mine.slot("loss_last").item() == -1
    loss = mine(pi, q, legal_actions=legal, row_weights=weights)
    mine.commit()
    values = mine.read()
    assert_allclose(values.loss_last, loss.item() / LAM * ROWS / batch.weights.sum(), rtol=1e-5)
    for name in SUMMARY:
        assert values[name] == mine.slot(name).item() >= 0
    lone = DistillLoss(reduction="mean", device=device, **choices_of(batch, critic="scalar", summary=True))
    for part in (slice(0, 11), slice(11, ROWS)):
        lone.set(lam=LAM, tau=TAU)
        lone(pi[part], q[part], legal_actions=legal[part], row_weights=weights[part])
    lone.commit()
    assert_allclose([lone.read()[name] for name in SUMMARY], [values[name] for name in SUMMARY], rtol=1e-6)


# ---- at home in torch ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("critic", CRITICS)
@pytest.mark.parametrize("divergence", ["forward_kl", "hellinger"])
def test_opcheck(device, critic, divergence):
    pi, q, support = problem(device, critic)
    text = options_text("mean", critic=critic, divergence=divergence)
    arguments = (q, pi, support, new_state(device).slots, None, None, text)
    torch.library.opcheck(torch.ops.qpi_distill.distill, arguments)


@pytest.mark.parametrize("critic", CRITICS)
def test_compiled_in_one_graph(device, critic):
    torch.compiler.reset()
    choices = {"critic": critic, "divergence": "jensen_shannon", "beta": 0.3, "summary": True}
    support = problem(device, critic)[2]

    def step(criterion, pi, q, critic, divergence):
        state = criterion.state
        options = {"critic": critic, "divergence": divergence, "policy_temperature": 2.0}
        loss = criterion(pi, q) + distill_loss(pi, q, support, state, reduction="sum", **options)[0]
        criterion.commit()
        return loss

    eager, compiled = (DistillLoss(support, reduction="mean", device=device, **choices) for _ in range(2))
    run = torch.compile(step, fullgraph=True, backend="aot_eager")
    for divergence in ("reverse_kl", "hellinger", "reverse_kl"):  # another option is another graph
        pi, q, _ = problem(device, critic)
        other = pi.detach().clone().requires_grad_()
        step(eager, pi, q, critic, divergence).backward()
        run(compiled, other, q, critic, divergence).backward()
        assert_allclose(other.grad.cpu(), pi.grad.cpu(), rtol=1e-6, atol=1e-8)
    assert torch.equal(compiled.slots, eager.slots)
    assert compiled.slot("agreement").item() >= 0


def test_func_grad(device):
    pi, q, _ = problem(device, "quantile")
    state = new_state(device)

    def value(pi):
        return distill_loss(pi, q, None, state, reduction="sum", critic="quantile", divergence="hellinger")[0]

    expected = torch.autograd.grad(value(pi), pi)[0]
    assert torch.equal(torch.func.grad(value)(pi.detach()), expected)


@pytest.mark.parametrize("critic", CRITICS)
def test_state_dict_resumes_bit_for_bit(device, critic):
    pi, q, support = problem(device, critic)
    choices = {"reduction": "mean", "device": device, "critic": critic, "summary": True, "divergence": "hellinger"}
    mine = DistillLoss(support, **choices)
    mine(pi, q)
    mine.commit()
    mine(pi, q)  # a record that has not been committed yet belongs to the state
    saved = mine.state_dict()
    assert ("support_bits" in saved) == (critic == "categorical")
    other = DistillLoss(support, **choices)
    other.load_state_dict(saved)
    copied = copy.deepcopy(mine)
    for one in (mine, other, copied):
        one.commit()
        one(pi, q)
    for one in (other, copied):
        assert torch.equal(one.slots, mine.slots)
        assert torch.equal(one.record, mine.record)
        assert one.options == mine.options
    if critic != "categorical":
        assert mine.support is None
        with pytest.raises(RuntimeError, match="support_bits"):
            mine.load_state_dict(DistillLoss([0.0, 1.0], reduction="mean", device=device).state_dict())


def test_a_module_shows_what_is_not_the_default():
    mine = DistillLoss(reduction="mean", critic="scalar", divergence="hellinger", beta=0.5)
    assert repr(mine) == "DistillLoss(reduction='mean', critic='scalar', divergence='hellinger')"
    assert (mine.options.critic, mine.options.policy_temperature) == ("scalar", 1.0)


# ---- bad input -----------------------------------------------------------------------------------------------------

BAD = {
    "critic": ({"critic": "c51"}, ValueError, "critic: 'c51' is not one of 'categorical', 'quantile', 'scalar'"),
    "target": ({"target": None}, ValueError, "target: None is not one of"),
    "divergence": ({"divergence": "kl"}, ValueError, "divergence: 'kl' is not one of"),
    "control_stat": ({"control_stat": "ema"}, ValueError, "control_stat: 'ema'"),
    "epsilon": ({"epsilon": 1.5, "target": "greedy"}, ValueError, "epsilon is 1.5"),
    "epsilon alone": ({"epsilon": 0.5}, ValueError, "epsilon is 0.5"),
    "epsilon missing": ({"target": "greedy", "divergence": "reverse_kl"}, ValueError, "epsilon is 0"),
    "beta": ({"beta": 0.0}, ValueError, "beta is 0"),
    "beta text": ({"beta": "half"}, TypeError, "beta: 'half' is not a real number"),
    "temperature": ({"policy_temperature": 0.0}, ValueError, "policy_temperature is 0"),
    "nan": ({"policy_temperature": float("nan")}, ValueError, "policy_temperature is nan"),
    "name": ({"divergance": "hellinger"}, TypeError, "divergance"),
    "support": ({"critic": "quantile"}, ValueError, "support: a quantile critic has none"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_options_are_named(case):
    choices, error, message = BAD[case]
    pi, q, support = problem()
    with pytest.raises(error, match=message):
        distill_loss(pi, q, support, new_state("cpu"), reduction="mean", **choices)
    with pytest.raises(error, match=message):
        DistillLoss(support, reduction="mean", **choices)


def test_a_categorical_critic_needs_a_support():
    pi, q, _ = problem()
    with pytest.raises(TypeError, match="support: required by a categorical critic"):
        distill_loss(pi, q, None, new_state("cpu"), reduction="mean")
    with pytest.raises(TypeError, match="support: required by a categorical critic"):
        DistillLoss(reduction="mean")


def test_shapes_of_a_scalar_critic():
    pi, q, _ = problem(critic="scalar")
    mine = DistillLoss(reduction="mean", critic="scalar")
    with pytest.raises(ValueError, match=r"pi_logits: shape \(6, 5\), expected \(6, 5, 1\)"):
        mine(pi, q[..., None])
    with pytest.raises(ValueError, match=r"q_logits: shape \(\), expected \(..., A\)"):
        mine(pi, q[0, 0])


def test_a_misspelled_option_of_the_module_is_guessed():
    with pytest.raises(TypeError, match="no option 'divergance'; did you mean divergence"):
        DistillLoss([0.0, 1.0], reduction="mean", divergance="hellinger")
