"""The drop-in entry points against what the seed kernels gave on an H200, and against a float32 model of them."""

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import qpi_distill as qpi
from reference import seed_distill_grad, seed_lambda_controller
from reference.seed import KL_ALPHA, KL_EMA, KL_TARGET, LAM, TAU
from stepping import assert_same_bits

GOLDEN = np.load(Path(__file__).parent.parent / "data" / "seed_kernels.npz")
CASES = sorted({name.split("/")[0] for name in GOLDEN.files})
ACTIONS, ATOMS = 11, 21


def close(got, want, support, tau, lam=1.0):
    """Within 2e-6 max(1, |x|), plus four units in the last place of max|support| / tau through the exponential."""
    got, want = np.float64(got), np.float64(want)
    assert_array_equal(np.isnan(got), np.isnan(want))
    near = 4 * np.spacing(np.float32(np.abs(support).max())) / max(float(tau), 1e-3)
    bound = 2e-6 * np.maximum(1, np.abs(want)) + lam * np.minimum(near, 1)
    error = np.abs(got - want)
    assert np.all((error <= bound) | np.isnan(want)), (np.nanmax(error), bound)


def run_seed(backend, q, pi, support, isv, grad):
    place, buffer = backend.put(isv), backend.put(grad)
    qpi.seed_distill_grad(backend.put(q), backend.put(pi), backend.put(support), place, buffer, stream=backend.stream)
    middle = backend.get(place).copy()
    qpi.seed_lambda_controller(place, stream=backend.stream)
    return backend.get(buffer), middle, backend.get(place)


@pytest.mark.parametrize("case", CASES)
def test_recorded_cases(backend, case):
    data = {k: GOLDEN[f"{case}/{k}"].copy() for k in ("q", "pi", "sup", "isv", "g", "g_out", "isv_grad", "isv_ctrl")}
    grad, middle, after = run_seed(backend, data["q"], data["pi"], data["sup"], data["isv"].copy(), data["g"].copy())
    tau, lam = data["isv"][TAU], float(data["isv"][LAM])
    close(grad, data["g_out"], data["sup"], tau, lam)
    close(middle[KL_EMA], data["isv_grad"][KL_EMA], data["sup"], tau)
    others = np.arange(len(middle)) != KL_EMA
    assert_same_bits(middle[others], data["isv_grad"][others])
    assert_same_bits(after[others], data["isv_ctrl"][others])
    assert_same_bits(after[KL_EMA : KL_EMA + 1], middle[KL_EMA : KL_EMA + 1])


def random_seed_inputs(rng, rows):
    isv = rng.normal(size=494).astype(np.float32)
    isv[[LAM, TAU, KL_EMA, KL_TARGET, KL_ALPHA]] = [0.3, 0.8, 0.2, 0.1, 0.05]
    q = (rng.normal(size=(rows, ACTIONS, ATOMS)) * 3).astype(np.float32)
    pi = (rng.normal(size=(rows, ACTIONS)) * 2).astype(np.float32)
    grad = rng.normal(size=(rows, ACTIONS)).astype(np.float32)
    return q, pi, np.linspace(-10, 10, ATOMS, dtype=np.float32), isv, grad


def spoil_nothing(q, pi, support, isv):
    pass


def nan_in_q(q, pi, support, isv):
    q[1, 3, 4] = np.nan


def nan_in_row_0(q, pi, support, isv):
    q[0, 3, 4] = np.nan
    pi[0, 1] = np.nan


def inf_in_pi(q, pi, support, isv):
    pi[2, 1] = np.inf


def masked_row_0(q, pi, support, isv):
    pi[0, 2:] = -np.inf


def fully_masked(q, pi, support, isv):
    pi[1] = -np.inf


def no_atom(q, pi, support, isv):
    q[1, 2] = -np.inf


def negative_tau(q, pi, support, isv):
    isv[TAU] = -1


def nan_tau(q, pi, support, isv):
    isv[TAU] = np.nan


def lam_zero(q, pi, support, isv):
    isv[LAM] = 0


def lam_negative(q, pi, support, isv):
    isv[LAM] = -0.5


def lam_nan(q, pi, support, isv):
    isv[LAM] = np.nan


def first_observation(q, pi, support, isv):
    isv[KL_EMA] = 0


def nan_alpha(q, pi, support, isv):
    isv[KL_ALPHA] = np.nan


def huge_logits(q, pi, support, isv):
    q *= 1e30
    pi *= 1e30


EDGES = [
    spoil_nothing,
    nan_in_q,
    nan_in_row_0,
    inf_in_pi,
    masked_row_0,
    fully_masked,
    no_atom,
    negative_tau,
    nan_tau,
    lam_zero,
    lam_negative,
    lam_nan,
    first_observation,
    nan_alpha,
    huge_logits,
]


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("rows", [4, 33])
def test_behaviour_to_the_letter(backend, edge, rows):
    q, pi, support, isv, grad = random_seed_inputs(np.random.default_rng(rows), rows)
    edge(q, pi, support, isv)
    want, bus = seed_distill_grad(q, pi, support, isv, grad, np.float32)
    got, middle, after = run_seed(backend, q, pi, support, isv.copy(), grad.copy())
    tau = np.fmax(isv[TAU], 0)
    close(got, want, support, tau, max(float(np.nan_to_num(isv[LAM])), 0))
    close(middle[KL_EMA], bus[KL_EMA], support, tau)
    others = np.arange(len(middle)) != KL_EMA
    assert_same_bits(middle[others], isv[others])
    assert_same_bits(after, seed_lambda_controller(middle))
    if not isv[LAM] > 0:
        assert_same_bits(got, grad)


@pytest.mark.parametrize("kl", [0, -1, 1e-6, 0.0333, 0.034, 0.1, 0.299, 0.301, 5, np.nan, np.inf])
@pytest.mark.parametrize("lam", [0, -1, 0.001, 0.05, 0.06, 0.9, 1.0, 7.0, np.nan, np.inf])
@pytest.mark.parametrize("target", [0.1, 0, -1, np.nan, np.inf])
def test_controller_to_the_bit(backend, kl, lam, target):
    isv = np.zeros(494, np.float32)
    isv[[LAM, KL_EMA, KL_TARGET]] = lam, kl, target
    place = backend.put(isv.copy())
    qpi.seed_lambda_controller(place, stream=backend.stream)
    assert_same_bits(backend.get(place), seed_lambda_controller(isv))


def test_controller_over_many_steps(backend):
    isv = np.zeros(494, np.float32)
    isv[[LAM, KL_EMA, KL_TARGET]] = 0.1, 0.5, 0.01
    place = backend.put(isv.copy())
    for _ in range(20):
        qpi.seed_lambda_controller(place, stream=backend.stream)
        isv = seed_lambda_controller(isv)
        assert_same_bits(backend.get(place), isv)
    assert isv[LAM] == 1


def test_no_rows(backend):
    q, pi, support, isv, grad = random_seed_inputs(np.random.default_rng(0), 0)
    _, middle, _ = run_seed(backend, q, pi, support, isv.copy(), grad)
    assert_same_bits(middle, isv)


@pytest.mark.parametrize(
    ("name", "change", "error"),
    [
        ("q_logits", lambda q: q[:, :10], ValueError),
        ("q_logits", lambda q: q[:, :, :20], ValueError),
        ("q_logits", lambda q: q.astype(np.float64), TypeError),
        ("pi_logits", lambda x: x[:3], ValueError),
        ("atom_supports", lambda x: x[:20], ValueError),
        ("isv", lambda x: x[:493], ValueError),
        ("pi_grad_logits", lambda x: x[:, :10], ValueError),
    ],
)
def test_shapes_are_checked(name, change, error):
    names = ("q_logits", "pi_logits", "atom_supports", "isv", "pi_grad_logits")
    values = dict(zip(names, random_seed_inputs(np.random.default_rng(0), 4), strict=True))
    before = values["isv"].copy(), values["pi_grad_logits"].copy()
    arguments = [change(v) if n == name else v for n, v in values.items()]
    with pytest.raises(error):
        qpi.seed_distill_grad(*arguments)
    assert_same_bits(values["isv"], before[0])
    assert_same_bits(values["pi_grad_logits"], before[1])
