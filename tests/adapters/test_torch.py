"""qpi_distill.torch: value and gradient against the reference, and at home in autograd, compilers and checkpoints."""

from __future__ import annotations

import copy
import io
import subprocess
import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from torch_cases import pytest_generate_tests  # noqa: F401

import qpi_distill as qpi
from reference import Loop, Options
from reference.tolerance import gradient_tolerance, kl_tolerance
from stepping import random_problem

torch = pytest.importorskip("torch")
adapter = pytest.importorskip("qpi_distill.torch")
DistillLoss, State, new_state, read_state = adapter.DistillLoss, adapter.State, adapter.new_state, adapter.read_state
options_text = pytest.importorskip("qpi_distill.torch.options").options_text
distill_loss, collect, commit = adapter.distill_loss, adapter.collect, adapter.commit

HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def tensor(array, device="cpu"):
    return torch.from_numpy(array.copy()).to(device)


def leaf(array, device="cpu"):
    return tensor(array, device).requires_grad_()


def batch(device="cpu", rows=6, actions=4, atoms=7, seed=5):
    """Well-behaved tensors: pi_logits (a leaf), q_logits, support."""
    generator = torch.Generator().manual_seed(seed)
    pi = torch.randn(rows, actions, generator=generator).to(device).requires_grad_()
    q = torch.randn(rows, actions, atoms, generator=generator).to(device)
    return pi, q, torch.linspace(-2, 3, atoms, device=device)


def module(device="cpu", atoms=7, **choices):
    values = {"lam": 0.4, "tau": 0.5, **choices}
    reduction = values.pop("reduction", "mean")
    return DistillLoss(torch.linspace(-2, 3, atoms), reduction=reduction, device=device, **values)


def words(state):
    return [part.cpu().numpy().tobytes() for part in state]


# ---- value and gradient --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("value_scale", ["none", "running_std"])
@pytest.mark.parametrize("extras", ["plain", "masked", "weighted", "per_action", "all"])
@pytest.mark.parametrize("lead", [(), (1,), (37,), (5, 3)], ids=str)
def test_value_gradient_and_statistic_against_the_reference(device, rng, reduction, value_scale, extras, lead):
    chosen = {name: extras in (name, "all") for name in ("masked", "weighted", "per_action")}
    p = random_problem(rng, lead or (1,), reduction=reduction, value_scale=value_scale, mode="write", **chosen)
    # Half of the problems have a running standard deviation already.
    observed = {"value_std": 1.3} if extras in ("plain", "all") else {}
    loop = Loop().set(lam=0.3, tau=0.7, **observed)
    loop.value_observations = len(observed)
    state = new_state(device, lam=0.3, tau=0.7, value_observations=len(observed), **observed)
    pi = leaf(p.pi.reshape(*lead, 5), device)
    loss, record = distill_loss(
        pi,
        tensor(p.q.reshape(*lead, 5, 9), device),
        tensor(p.support, device),
        state,
        reduction=reduction,
        value_scale=value_scale,
        legal_actions=None if p.legal is None else tensor(p.legal.reshape(*lead, 5), device),
        row_weights=None if p.weights is None else tensor(p.weights.reshape(lead), device),
    )
    loss.backward()

    flat = p.flat
    extra = {"legal_actions": flat.legal, "row_weights": flat.weights}
    before = loop.copy()
    expected, rows = loop.accumulate(flat.q, flat.pi, p.support, np.zeros_like(flat.pi), p.options, **extra)
    share = before["lam"] / (len(flat.pi) if reduction == "mean" else 1)
    slack = (rows.weight * kl_tolerance(rows, before, p.options, p.support)).sum() + 1e-30
    assert loss.dtype == torch.float32
    assert loss.shape == ()
    assert abs(loss.item() - share * loop.record.weighted_kl) <= share * slack + 1e-6 * abs(loss.item())
    error = np.abs(pi.grad.cpu().numpy().reshape(flat.pi.shape) - expected)
    assert (error <= gradient_tolerance(rows, before, p.options, p.support, np.zeros_like(flat.pi))).all()

    collect(state, record)
    commit(state)
    loop.commit()
    values = read_state(state.slots)
    assert (values.observations, values.rows_last) == (loop.observations, loop.rows_last)
    assert_allclose(values.kl_ema, loop["kl_ema"], atol=2e-5)
    assert_allclose(values.lam, loop["lam"], rtol=1e-6)


def test_an_empty_batch(device):
    pi, q, _ = batch(device, rows=0)
    mine = module(device)
    loss = mine(pi, q)
    loss.backward()
    assert loss.item() == 0
    assert pi.grad.shape == (0, 4)
    mine.commit()
    assert mine.read().reason == "no_rows"


def test_the_value_is_what_the_gradient_is_of(device):
    pi, q, support = batch(device)
    state = new_state(device, lam=0.8, tau=0.5)

    def value(at):
        return distill_loss(at, q, support, state, reduction="mean")[0]

    value(pi).backward()
    step = 1e-2
    for b, a in np.ndindex(*pi.shape):
        shift = torch.zeros_like(pi)
        shift[b, a] = step
        numeric = (value(pi.detach() + shift) - value(pi.detach() - shift)) / (2 * step)
        assert pi.grad[b, a].item() == pytest.approx(numeric.item(), abs=2e-5)


def test_same_bits_as_the_distiller(device):
    mine = module(device)
    isv = qpi.ISV(device=str(torch.empty(0, device=device).device), lam=0.4, tau=0.5)
    op = qpi.Distiller(support=batch(device)[2], actions=4, isv=isv, reduction="mean")
    for iteration in range(3):
        for part in range(2):
            pi, q, _ = batch(device, rows=300 + part, seed=10 * iteration + part)
            pi.detach()[0] = float("nan")  # one row is skipped
            weights = torch.full((len(pi),), -1.0 if iteration == 2 else 1.0, device=device)
            weights[1:] = 1.0
            mine(pi, q, row_weights=weights).backward()
            grad = torch.zeros_like(pi)
            op.accumulate(q, pi, grad, row_weights=weights)
            assert torch.equal(pi.grad, grad)
        views = isv.record_views()
        assert torch.equal(mine.record.view(torch.float64)[:3], torch.as_tensor(views.sums, device=device))
        assert torch.equal(mine.record[3:6], torch.as_tensor(views.counts, device=device))
        flags = torch.as_tensor(views.flags, device=device)
        assert mine.record.view(torch.int32)[12:14].tolist() == flags.tolist()
        mine.commit()
        op.commit()
        assert not mine.record.any()
        assert mine.read(check=False) == isv.read(check=False)
    assert mine.read(check=False).faults == ("weight",)


@pytest.mark.parametrize("name", HALVES)
def test_half_precision_logits_and_the_factor_of_a_grad_scaler(device, name):
    pi, q, support = batch(device, rows=4096)
    half = HALVES[name]
    low = pi.detach().to(half).requires_grad_()
    wide = low.detach().float().requires_grad_()
    scale = 2.0**14
    state = new_state(device, lam=0.05)
    # The gradient of a row is of the order of 1e-6: without the factor, float16 would have few of its bits.
    (distill_loss(low, q.to(half), support, state, reduction="mean")[0] * scale).backward()
    distill_loss(wide, q.to(half), support, state, reduction="mean")[0].backward()
    assert low.grad.dtype == half
    assert torch.equal(low.grad, (wide.grad * scale).to(half))


def test_grad_scaler_and_autocast(device):
    policy = torch.nn.Linear(5, 4, device=device)
    x = torch.randn(8, 5, device=device)
    _, q, support = batch(device, rows=8)
    state = new_state(device, lam=0.7)
    with torch.autocast(device, dtype=torch.bfloat16):
        logits = policy(x)
        assert logits.dtype == torch.bfloat16
        loss = distill_loss(logits, q, support, state, reduction="mean")[0]
    assert loss.dtype == torch.float32
    plain = torch.autograd.grad(loss, policy.parameters(), retain_graph=True)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0)
    scaler.scale(loss).backward()
    for one, p in zip(plain, policy.parameters(), strict=True):
        assert_allclose(p.grad.cpu(), 1024 * one.cpu(), rtol=1e-6)
    scaler.unscale_(optimizer)
    for one, p in zip(plain, policy.parameters(), strict=True):
        assert_allclose(p.grad.cpu(), one.cpu(), rtol=1e-6)


def views(x):
    """The same numbers under other strides."""
    wide = torch.stack([x, x], -1).flatten(-2)
    yield wide[..., ::2]
    yield x.transpose(0, 1).contiguous().transpose(0, 1)
    yield torch.cat([x, x], 1)[:, : x.shape[1]]


def test_strides_do_not_matter(device):
    pi = torch.randn(3, 5, 4, device=device)
    q = torch.randn(3, 5, 4, 7, device=device)
    mask = torch.rand(3, 5, 4, device=device) < 0.8
    mask[..., 0] = True
    weights = torch.rand(3, 5, device=device)
    support = torch.linspace(-1, 1, 7, device=device)
    state = new_state(device)

    def gradient(pi, q, mask, weights, support):
        pi = pi.detach().requires_grad_()
        extra = {"legal_actions": mask, "row_weights": weights}
        loss, record = distill_loss(pi, q, support, state, reduction="mean", **extra)
        return *torch.autograd.grad(loss, pi), record

    expected = gradient(pi, q, mask, weights, support)
    doubled = torch.stack([support, support], -1).flatten()[::2]
    for pi2, q2, mask2, weights2 in zip(*map(views, (pi, q, mask, weights)), strict=True):
        found = gradient(pi2, q2, mask2, weights2, doubled)
        assert_allclose(found[0].cpu(), expected[0].cpu(), atol=1e-7)
        assert_allclose(*(r.view(torch.float64)[:3].cpu() for r in (found[1], expected[1])), rtol=1e-6)
    expanded = q[:1, :1].expand_as(q)
    packed = gradient(pi, expanded.contiguous(), mask, weights, support)
    assert_allclose(gradient(pi, expanded, mask, weights, support)[0].cpu(), packed[0].cpu(), atol=1e-7)


def test_illegal_actions_by_logit(device):
    pi, q, support = batch(device)
    low = pi.detach().clone()
    low[:, 1] = -1e8
    state = new_state(device)
    by_value, by_mask = low.clone().requires_grad_(), low.clone().requires_grad_()
    distill_loss(by_value, q, support, state, reduction="sum", illegal_below=-1e7)[0].backward()
    mask = torch.ones_like(low, dtype=torch.bool)
    mask[:, 1] = False
    distill_loss(by_mask, q, support, state, reduction="sum", legal_actions=mask)[0].backward()
    assert torch.equal(by_value.grad, by_mask.grad)
    assert (by_value.grad[:, 1] == 0).all()


def test_switched_off(device):
    pi, q, support = batch(device)
    state = new_state(device, lam_off=1)
    loss, record = distill_loss(pi, q, support, state, reduction="sum")
    loss.backward()
    assert loss.item() == 0
    assert not pi.grad.any()
    assert record.view(torch.float64)[0] > 0, "the statistic goes on"


def test_a_faulty_state_gives_no_gradient_and_is_named(device):
    pi, q, _ = batch(device)
    mine = module(device)
    mine.slots.view(torch.float32)[qpi.Layout.native()["tau"]] = float("nan")
    loss = mine(pi, q)
    loss.backward()
    assert loss.item() == 0
    assert not pi.grad.any()
    mine.commit()
    with pytest.raises(qpi.FaultError, match="tau"):
        mine.read()
    assert mine.read(check=False).faults == ("tau",)


# ---- autograd ------------------------------------------------------------------------------------------------------


def test_q_gets_no_gradient_and_there_is_no_second_derivative(device):
    pi, q, support = batch(device)
    q.requires_grad_()
    loss, record = distill_loss(pi, q, support, new_state(device), reduction="mean")
    assert not record.requires_grad
    (first,) = torch.autograd.grad(loss, pi, create_graph=True, retain_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(first.square().sum(), pi)
    loss.backward()
    assert q.grad is None


@pytest.mark.parametrize("extras", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck(device, extras, dtype):
    pi, q, support = batch(device)
    mask = torch.rand(6, 4, device=device) < 0.7 if extras else None
    weights = torch.rand(6, device=device) if extras else None
    slots, record = new_state(device)
    pi = pi.detach().to(dtype).requires_grad_()
    ops = torch.ops.qpi_distill
    arguments = (q, pi, support, slots, mask, weights, options_text("mean"))
    torch.library.opcheck(ops.distill, arguments)
    found = distill_loss(pi, q, support, State(slots, record), reduction="mean")[1]
    torch.library.opcheck(ops.collect, (record, found))
    torch.library.opcheck(ops.commit, (slots, record))
    factor = torch.tensor(2.0, device=device)
    torch.library.opcheck(ops.scale_grad, (torch.rand(6, 4, device=device), factor, pi.detach()))


def test_func_grad(device):
    pi, q, support = batch(device)
    state = new_state(device)

    def value(pi):
        return distill_loss(pi, q, support, state, reduction="mean")[0] * 3

    expected = torch.autograd.grad(value(pi), pi)[0]
    gradient, loss = torch.func.grad_and_value(value)(pi.detach())
    assert torch.equal(gradient, expected)
    assert loss.item() == value(pi).item()
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.func.grad(lambda pi: torch.func.grad(value)(pi).square().sum())(pi.detach())
    policy = torch.nn.Linear(4, 4, device=device)
    mine = module(device)

    def loss_of(parameters):
        return mine(torch.func.functional_call(policy, parameters, (pi.detach(),)), q)

    parameters = {name: p.detach() for name, p in policy.named_parameters()}
    found = torch.func.grad(loss_of)(parameters)
    assert mine.record[3].item() == 6, "the module collects under a transform as well"
    loss_of(dict(policy.named_parameters())).backward()
    for name, p in policy.named_parameters():
        assert torch.equal(found[name], p.grad)


# ---- what counts, and how often ------------------------------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_counts_once(device, reentrant):
    from torch.utils.checkpoint import checkpoint

    mine, plain = module(device), module(device)
    pi, q, _ = batch(device)
    other = pi.detach().clone().requires_grad_()
    plain(pi, q).backward()
    loss = checkpoint(mine, other, q, use_reentrant=reentrant)
    assert words(mine.state) == words(plain.state)
    mine.commit()  # even where the commit comes before the backward pass
    loss.backward()
    plain.commit()
    assert words(mine.state) == words(plain.state)
    assert mine.read().rows_last == 6


def test_evaluation_mode_moves_nothing(device):
    mine = module(device).eval()
    before = words(mine.state)
    pi, q, _ = batch(device)
    mine(pi, q).backward()
    assert pi.grad.any()
    assert words(mine.state) == before
    mine.commit()
    values = mine.read()
    assert (values.observations, values.reason) == (0, "no_rows")


def test_micro_batches_are_one_observation(device):
    pi, q, _ = batch(device, rows=8)
    parts, whole = module(device), module(device)
    whole(pi, q)
    whole.commit()
    for at in (slice(0, 3), slice(3, 8)):
        parts(pi[at], q[at])
    parts.commit()
    one, other = parts.read(), whole.read()
    assert (one.observations, one.rows_last) == (1, 8)
    assert one.kl_last == pytest.approx(other.kl_last, rel=1e-6)
    parts(pi, q)
    parts.discard()
    assert not parts.record.any()


def test_the_control_law_runs(device):
    mine = module(device, kl_target=1e-4, value_scale="none")
    pi, q, _ = batch(device)
    lam = mine.lam
    for _ in range(3):
        mine(pi, q)
        mine.commit()
    assert_allclose(mine.lam.item(), 0.4 * 1.2**3, rtol=1e-6)
    assert_allclose(lam.item(), 0.4, rtol=1e-6)  # what was read stays
    assert mine.kl.item() == mine.read().kl_last > 0
    assert mine.tau.item() == 0.5
    mine.set(lam=0.2, kl_target=0.3)
    assert_allclose([mine.read().lam, mine.read().kl_target], [0.2, 0.3], rtol=1e-6)


# ---- the module as a module ----------------------------------------------------------------------------------------


def test_state_dict_resumes_bit_for_bit(device):
    pi, q, _ = batch(device)
    mine = module(device)
    for _ in range(3):
        mine(pi, q)
        mine.commit()
    mine(pi, q)  # a record that has not been committed yet belongs to the state
    file = io.BytesIO()
    torch.save(mine.state_dict(), file)
    file.seek(0)
    other = DistillLoss(torch.zeros(7), reduction="mean", device=device)
    other.load_state_dict(torch.load(file, weights_only=True))
    copied = copy.deepcopy(mine)
    for one in (mine, other, copied):
        one.commit()
        one(pi, q)
        one.commit()
    assert words(other.state) == words(mine.state) == words(copied.state)
    assert torch.equal(other.support, mine.support)
    assert mine.read().observations == 5


def test_casts_leave_the_state_alone(device):
    mine = module(device)
    before = words(mine.state)
    for cast in (mine.half, mine.double, lambda: mine.to(torch.bfloat16)):
        cast()
        assert words(mine.state) == before
        assert mine.support.dtype == torch.float32


@pytest.mark.gpu
def test_moving_between_devices():
    pi, q, _ = batch()
    mine = module()
    mine(pi, q)
    mine.commit()
    moved = copy.deepcopy(mine).to("cuda")
    assert words(moved.state) == words(mine.state)
    for _ in range(3):
        mine(pi, q)
        mine.commit()
        moved(pi.cuda(), q.cuda())
        moved.commit()
    assert_allclose(moved.lam.item(), mine.lam.item(), rtol=1e-6)
    assert words(moved.to("cpu").state) == words(moved.state)


def test_a_state_of_other_slots_is_refused():
    saved = module().state_dict()
    saved["_extra_state"] = {"slots": ["lam"]}
    with pytest.raises(ValueError, match="other slots"):
        module().load_state_dict(saved)


@pytest.mark.gpu
def test_cuda_graph():
    pi, q, _ = batch("cuda")
    mine, eager = module("cuda"), module("cuda")

    def step(criterion, pi):
        (gradient,) = torch.autograd.grad(criterion(pi, q), pi)
        criterion.commit()
        return gradient

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        warm = module("cuda")
        step(warm, pi)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gradient = step(mine, pi)
    torch.empty(1 << 22, device="cuda").fill_(7)  # memory that the graph has given back must not matter
    for _ in range(4):
        expected = step(eager, pi)
        graph.replay()
        assert torch.equal(gradient, expected)
    assert words(mine.state) == words(eager.state)


# ---- bad input -----------------------------------------------------------------------------------------------------

BAD = {
    "reduction": (lambda a: {**a, "reduction": "avg"}, ValueError, "reduction: 'avg'"),
    "value_scale": (lambda a: {**a, "value_scale": "std"}, ValueError, "value_scale: 'std'"),
    "q_shape": (lambda a: {**a, "q_logits": a["q_logits"][0, 0]}, ValueError, "q_logits: shape"),
    "q_dtype": (lambda a: {**a, "q_logits": a["q_logits"].double()}, TypeError, "q_logits: dtype float64"),
    "pi_shape": (lambda a: {**a, "pi_logits": a["pi_logits"][:, 1:]}, ValueError, r"pi_logits: shape \(6, 3\)"),
    "pi_dtype": (lambda a: {**a, "pi_logits": a["pi_logits"].long()}, TypeError, "pi_logits: dtype int64"),
    "lead": (lambda a: {**a, "pi_logits": a["pi_logits"][1:]}, ValueError, r"pi_logits: shape \(5, 4\)"),
    "support": (lambda a: {**a, "support": a["support"][1:]}, ValueError, r"support: shape \(6,\)"),
    "support_dtype": (lambda a: {**a, "support": a["support"].half()}, TypeError, "support: dtype float16"),
    "mask": (lambda a: {**a, "legal_actions": torch.ones(6, 4)}, TypeError, "legal_actions: dtype float32"),
    "mask_shape": (lambda a: {**a, "legal_actions": torch.ones(6).bool()}, ValueError, "legal_actions: shape"),
    "weights": (lambda a: {**a, "row_weights": torch.ones(6).half()}, TypeError, "row_weights: dtype float16"),
    "weights_shape": (lambda a: {**a, "row_weights": torch.ones(6, 1)}, ValueError, "row_weights: shape"),
    "slots": (lambda a: {**a, "state": State(torch.zeros(67), torch.zeros(7))}, ValueError, "slots: is float32"),
    "device": (lambda a: {**a, "pi_logits": a["pi_logits"].to("meta")}, (ValueError, RuntimeError), "meta"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arguments_are_named(case):
    change, error, message = BAD[case]
    pi, q, support = batch()
    good = {"pi_logits": pi, "q_logits": q, "support": support, "state": new_state("cpu"), "reduction": "mean"}
    with pytest.raises(error, match=message):
        distill_loss(**change(good))


def test_bad_records_are_refused():
    state = new_state("cpu")
    with pytest.raises(ValueError, match="found: is int64"):
        collect(state, torch.zeros(6, dtype=torch.int64))
    with pytest.raises(ValueError, match="record: is float32"):
        commit(State(state.slots, torch.zeros(7)))


@pytest.mark.parametrize(
    ("choices", "error", "message"),
    [
        ({"reduction": "avg"}, ValueError, "reduction: 'avg'"),
        ({"reduction": "sum", "value_scale": "std"}, ValueError, "value_scale"),
        ({"reduction": "sum", "lam": -1.0}, ValueError, "lam: -1.0"),
        ({"reduction": "sum", "lamda": 1.0}, TypeError, "did you mean lam"),
        ({"reduction": "sum", "support": [[[1.0]]]}, ValueError, "support: shape"),
        ({"reduction": "sum", "support": [1.0, float("nan")]}, ValueError, "support: every value"),
    ],
)
def test_bad_modules_are_refused(choices, error, message):
    with pytest.raises(error, match=message):
        DistillLoss(**{"support": [-1.0, 1.0], **choices})
    with pytest.raises(TypeError, match="no slot 'lamda'"):
        module().slot("lamda")


# ---- nobody pays for it who does not ask ---------------------------------------------------------------------------


def test_the_package_does_not_import_torch():
    program = "import sys, qpi_distill; assert not {'torch', 'qpi_distill.torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_without_torch_the_extra_is_named():
    program = "import sys; sys.modules['torch'] = None; import qpi_distill.torch"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "pip install 'qpi-distill[torch]'" in done.stderr


def test_the_options_of_a_reference_loop_are_the_defaults():
    # What the comparison above relies on: a new state and the reference begin with the same numbers.
    values, loop = read_state(new_state("cpu").slots), Loop()
    names = ["lam", "tau", "kl_target", "kl_alpha", "value_alpha", "min_std", "kl_row_max"]
    assert_array_equal([values[name] for name in names], [loop[name] for name in names])
    assert Options().kl_stat == "mean"
