"""The reference against things that are not ours: finite differences, published numbers, what the seed kernels gave."""

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from reference import Loop, Options, Reason, evaluate, ramp, seed_distill_grad, seed_lambda_controller
from reference.seed import KL_EMA

INF, NAN = np.inf, np.nan
PAIR = np.array([-1.0, 1.0])


def logits_of(values):
    """q_logits [..., 2] over the support [-1, 1] whose expected values are exactly -1, 0 or 1."""
    d = np.asarray(values, float) * 40
    return np.stack([np.zeros_like(d), d], -1)


def one(pi, values=(-1, 0, 1), tau=1.0, **options):
    return evaluate(logits_of([values]), np.array([pi], float), PAIR, tau=tau, **options)


# ---- the gradient is the gradient of the loss ---------------------------------------------------------------------


@pytest.mark.parametrize("value_scale", ["none", "running_std"])
@pytest.mark.parametrize("value_std", [None, 1.7])
def test_gradient_is_the_derivative_of_the_loss(value_scale, value_std):
    rng = np.random.default_rng(3)
    rows, actions, atoms = 5, 6, 9
    q, pi = rng.normal(size=(rows, actions, atoms)), rng.normal(size=(rows, actions)) * 2
    support = np.linspace(-3, 5, atoms)
    legal = rng.random((rows, actions)) < 0.7
    legal[:, 0] = True
    weight = rng.random(rows)
    loop = Loop().set(lam=0.3, tau=0.7)
    if value_std:
        loop.set(value_std=value_std).value_observations = 1
    options = Options(reduction="mean", value_scale=value_scale)
    kwargs = {"legal_actions": legal, "row_weights": weight}

    def loss(x):
        out = loop.rows(q, x, support, options, **kwargs)
        return float(loop["lam"]) * (out.weight * out.kl).sum() / rows

    grad, _ = loop.copy().accumulate(q, pi, support, np.zeros_like(pi), options, **kwargs)
    h = 1e-6
    for b in range(rows):
        for a in range(actions):
            e = np.zeros_like(pi)
            e[b, a] = h
            numeric = (loss(pi + e) - loss(pi - e)) / (2 * h)
            assert grad[b, a] == pytest.approx(numeric, abs=1e-9)


# ---- published numbers --------------------------------------------------------------------------------------------


def test_smoke_numbers():
    rows = one([1, 0, -1])
    assert_allclose(rows.policy - rows.target, [[0.575210383, 0, -0.575210383]], atol=1e-9)
    assert_allclose(rows.kl, 1.150420765, atol=1e-9)


@pytest.mark.parametrize(
    ("pi", "values", "tau", "kl", "step"),
    [
        ([0, 0, -120], [0, 0, 0], 1, 39.594534892, [1 / 6, 1 / 6, -1 / 3]),
        ([0, 0, 0], [1, 1, -1], 0, 0.405465108, [-1 / 6, -1 / 6, 1 / 3]),
        ([0, 0, 0], [1, 1, -1], INF, 0, [0, 0, 0]),
        ([-2, 0, 2], [-1, 0, 1], 0.5, 0, [0, 0, 0]),
        ([0, 0, 0], [-1, 0, 1], 1, 0.266216707, [0.24330276, 0.088604862, -0.331907622]),
        ([0, 0, -3], [0, 0, 0], 1, 0.619123630, None),
        ([0.5, 1, 3], [0, 0, 0], 1, 0.598121808, [-0.265907975, -0.222167711, 0.488075686]),
    ],
)
def test_numbers_of_single_rows(pi, values, tau, kl, step):
    rows = one(pi, values, tau)
    assert_allclose(rows.kl, kl, atol=1e-9)
    if step is not None:
        assert_allclose(rows.policy - rows.target, [step], atol=1e-9)


def test_numbers_of_a_large_target():
    q = np.zeros((1, 11, 21))
    q[0, 0, 20] = 40
    support = np.zeros(21)
    support[20] = 1
    rows = evaluate(q, np.zeros((1, 11)), support, tau=1)
    assert_allclose((rows.policy - rows.target)[0], [-0.114927908] + 10 * [0.011492791], atol=1e-9)
    assert_allclose(rows.kl, 0.060878869, atol=1e-9)


def test_numbers_of_a_small_temperature():
    q = np.array([[[0, 0], [0, -0.002000000667]]])
    support = np.array([0.0, 1.0])
    low = evaluate(q, np.zeros((1, 2)), support, tau=1e-4, tau_min=1e-4)
    floor = evaluate(q, np.zeros((1, 2)), support, tau=1e-4)
    assert_allclose(low.target[0], [0.993307, 0.006693], atol=1e-6)
    assert_allclose(floor.target[0], [0.622459, 0.377541], atol=1e-6)


# ---- rows that are not like the others ----------------------------------------------------------------------------


def test_illegal_actions_are_as_if_removed():
    rng = np.random.default_rng(0)
    q, pi = rng.normal(size=(4, 5, 3)), rng.normal(size=(4, 5))
    legal = np.array([1, 0, 1, 1, 0], bool)
    support = np.array([0.0, 1.0, 4.0])
    want = evaluate(q[:, legal], pi[:, legal], support, tau=0.5, value_scale="running_std")
    q[:, 1], pi[:, 4] = NAN, INF
    masked = evaluate(q, pi, support, tau=0.5, value_scale="running_std", legal_actions=np.tile(legal, (4, 1)))
    pi[:, ~legal] = -INF
    hidden = evaluate(q, pi, support, tau=0.5, value_scale="running_std")
    pi[:, ~legal] = -1e8
    sentinel = evaluate(q, pi, support, tau=0.5, value_scale="running_std", illegal_below=-1e8)
    for got in (masked, hidden, sentinel):
        assert not got.skipped.any()
        for name in ("target", "policy"):
            assert_allclose(getattr(got, name)[:, legal], getattr(want, name), rtol=1e-12)
            assert not getattr(got, name)[:, ~legal].any()
        assert_allclose(got.kl, want.kl, rtol=1e-12)
        assert_allclose(got.variance, want.variance, rtol=1e-12)


@pytest.mark.parametrize(
    ("what", "skipped"),
    [
        (lambda q, pi, w: q.__setitem__((1, 1, 0), NAN), True),
        (lambda q, pi, w: q.__setitem__((1, 1, 0), INF), True),
        (lambda q, pi, w: q.__setitem__((1, 1, 0), -INF), False),
        (lambda q, pi, w: q.__setitem__((1, 1), -INF), True),
        (lambda q, pi, w: pi.__setitem__((1, 0), NAN), True),
        (lambda q, pi, w: pi.__setitem__((1, 0), INF), True),
        (lambda q, pi, w: pi.__setitem__((1, 0), -INF), False),
        (lambda q, pi, w: pi.__setitem__(1, -INF), True),
        (lambda q, pi, w: w.__setitem__(1, -1), True),
        (lambda q, pi, w: w.__setitem__(1, NAN), True),
        (lambda q, pi, w: w.__setitem__(1, INF), True),
        (lambda q, pi, w: w.__setitem__(1, 0), False),
    ],
)
def test_what_makes_a_row_skipped(what, skipped):
    q, pi, w = logits_of(3 * [[-1, 0, 1]]), np.zeros((3, 3)), np.ones(3)
    what(q, pi, w)
    rows = evaluate(q, pi, PAIR, tau=1, row_weights=w)
    assert_array_equal(rows.skipped, [False, skipped, False])
    assert_array_equal(rows.counted, [True, not skipped and w[1] != 0, True])


def test_a_row_of_weight_zero_is_not_there_even_if_it_is_bad():
    rows = evaluate(np.full((1, 2, 2), NAN), np.zeros((1, 2)), PAIR, tau=1, row_weights=np.zeros(1))
    assert rows.absent.all()
    assert not rows.skipped.any()
    assert not rows.counted.any()


def test_kl_bound_and_kl_without_a_finite_value():
    big = np.finfo(np.float32).max
    pi = np.array([[0, 0], [0, -500.0], [big, -big]])
    rows = evaluate(np.zeros((3, 2, 2)), pi, PAIR, tau=1)
    assert_array_equal(rows.clipped, [False, True, True])
    assert_array_equal(rows.counted, [True, True, False])
    assert_allclose(rows.kl, [0, 100, 0])
    assert rows.written.all()
    assert_allclose((rows.policy - rows.target)[2], [0.5, -0.5])


def test_variance_is_that_of_the_population_of_legal_actions():
    rows = one([0, 0, -INF], values=[-1, 1, 1])
    assert_allclose(rows.variance, 1.0)
    rows = one([0, 0, 0], values=[-1, 0, 1], value_scale="running_std")
    assert_allclose(rows.divisor, np.sqrt(2 / 3))
    assert_allclose(np.log(rows.target[0, 2] / rows.target[0, 1]), 1 / np.sqrt(2 / 3))


# ---- the law ------------------------------------------------------------------------------------------------------


def test_law_doubles_in_four_steps_and_reaches_the_ceiling_in_thirteen():
    lam, seen = np.float32(0.1), []
    for _ in range(20):
        lam, _ = ramp(lam, 0.5, 0.01)
        seen.append(float(lam))
    assert_allclose(seen[:3], [0.12, 0.144, 0.1728], rtol=1e-6)
    assert seen[3] > 0.2 > seen[2]
    assert seen.index(1.0) == 12
    assert set(seen[12:]) == {1.0}


@pytest.mark.parametrize(("start", "steps"), [(0.1, 347), (1.0, 1497)])
def test_law_comes_down_to_the_floor(start, steps):
    lam = np.float32(start)
    seen = []
    while not seen or seen[-1] != Reason.AT_MIN:
        lam, reason = ramp(lam, 1e-4, 0.01)
        seen.append(reason)
    assert seen == steps * [Reason.BELOW] + [Reason.AT_MIN]
    assert lam == np.float32(0.05)


def test_law_keeps_lam_on_either_edge_of_the_dead_zone():
    target = np.float32(0.01)
    for edge in (target * np.float32(3), target / np.float32(3)):
        assert ramp(0.5, edge, target) == (np.float32(0.5), Reason.IN_BAND)


def test_law_clamps_before_it_steps():
    assert ramp(5.0, 1.0, 0.01) == (np.float32(1), Reason.AT_MAX)
    assert ramp(0.01, 1.0, 0.01) == (np.float32(0.05) * np.float32(1.2), Reason.ABOVE)
    assert ramp(0.01, 1e-6, 0.01) == (np.float32(0.05), Reason.AT_MIN)
    assert ramp(0.0, 1.0, 0.01) == (np.float32(0), Reason.OFF)


# ---- moving average -----------------------------------------------------------------------------------------------


def batch(loop, *pi):
    pi = np.array(pi, float)
    loop.step(logits_of(np.zeros((len(pi), 3))), pi, PAIR, np.zeros_like(pi), Options())
    return float(loop["kl_ema"])


def test_zero_is_an_observation():
    loop = Loop().set(lam=0.5, kl_target=0.01)
    loop.control()
    assert loop.reason == Reason.TOO_FEW
    assert loop["lam"] == np.float32(0.5)
    assert batch(loop, [0, 0, 0]) == 0
    assert loop["lam"] == np.float32(0.5) * np.float32(0.998)
    assert batch(loop, [0, 0, -3]) == pytest.approx(0.030956181, abs=1e-8)
    assert batch(Loop(), [0, 0, -3]) == pytest.approx(0.619123630, abs=1e-7)


def test_bus_takes_zero_for_not_initialised():
    loop = Loop(zero_sentinel=True)
    batch(loop, [0, 0, 0])
    assert batch(loop, [0, 0, -3]) == pytest.approx(0.619123630, abs=1e-7)


def test_bad_rows_do_not_reach_the_average():
    loop = Loop().set(kl_ema=0.5)
    loop.observations = 1
    ema = batch(loop, [0, 0, 0], [0, 0, -3], [NAN, 0, 0], [0, 0, -1])
    assert ema == pytest.approx(0.486930658, abs=1e-7)
    assert loop.skipped_last == 1
    assert batch(loop, [NAN, 0, 0]) == ema
    assert loop.reason == Reason.NO_ROWS
    assert loop.skipped_rows == 2
    assert batch(loop, [0, 0, -3]) == pytest.approx(0.95 * ema + 0.030956181, abs=1e-7)


def test_value_std_follows_the_variance():
    loop = Loop().set(value_alpha=0.25)
    for variance in (4.0, 1.0):
        spread = np.sqrt(variance)
        rows = np.array([[[0.0, 40], [40, 0]]])
        loop.step(rows, np.zeros((1, 2)), spread * PAIR, np.zeros((1, 2)), Options(value_scale="running_std"))
    assert float(loop["value_std"]) == pytest.approx(np.sqrt(0.75 * 4 + 0.25))


# ---- what the seed kernels gave on a GPU --------------------------------------------------------------------------

GOLDEN = np.load(Path(__file__).parent.parent / "data" / "seed_kernels.npz")
CASES = sorted({name.split("/")[0] for name in GOLDEN.files})


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", CASES)
def test_seed_model_against_recorded_kernels(case, dtype):
    g = {k: GOLDEN[f"{case}/{k}"] for k in ("q", "pi", "sup", "isv", "g", "g_out", "isv_grad", "isv_ctrl")}
    out, isv = seed_distill_grad(g["q"], g["pi"], g["sup"], g["isv"], g["g"], dtype)
    tau = max(g["isv"][487], 1e-3)
    near = 4 * np.spacing(np.float32(np.abs(g["sup"]).max())) / tau
    assert_allclose(out, g["g_out"], rtol=2e-6, atol=2e-6 + 0.1 * near)
    assert_allclose(isv[KL_EMA], g["isv_grad"][KL_EMA], rtol=2e-6, atol=2e-6 + 2 * near)
    others = np.arange(len(isv)) != KL_EMA
    assert_array_equal(isv[others].astype(np.float32), g["isv_grad"][others])
    assert_array_equal(seed_lambda_controller(g["isv_grad"]), g["isv_ctrl"])


def test_reference_and_seed_model_agree_where_both_have_a_meaning():
    case = "b7_ema"
    q, pi, sup, isv = (GOLDEN[f"{case}/{k}"] for k in ("q", "pi", "sup", "isv"))
    out, bus = seed_distill_grad(q, pi, sup, isv, np.zeros_like(pi))
    loop = Loop(zero_sentinel=True).set(lam=isv[486], tau=isv[487], kl_ema=isv[488], kl_target=isv[491])
    grad, _ = loop.distill_grad(q, pi, sup, np.zeros_like(pi), Options(kl_stat="row0"))
    assert_allclose(grad, out, atol=1e-12)
    assert_allclose(loop["kl_ema"], bus[KL_EMA], rtol=1e-6)
