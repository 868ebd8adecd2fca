"""The library's rows against the float64 reference: shapes, dtypes, options, and the numbers at the edges."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from backends import BFLOAT16
from reference import Options
from reference.rows import wide
from stepping import assert_same_bits, check, check_gradient, model, random_problem, run

pytest.importorskip("ml_dtypes")
INF, NAN = np.inf, np.nan
BIG = np.finfo(np.float32).max


@pytest.mark.parametrize("atoms", [1, 2, 3, 21, 51, 64, 128])
@pytest.mark.parametrize("actions", [1, 2, 3, 4, 5, 7, 8, 11, 16, 18, 31, 32, 33, 64])
def test_shapes(backend, actions, atoms):
    rng = np.random.default_rng(actions * 1000 + atoms)
    problem = random_problem(rng, 13, actions, atoms, masked=actions > 1, weighted=True)
    check(run(backend, problem), problem)


@pytest.mark.parametrize(("actions", "atoms"), [(4096, 3), (3, 1024), (2, 4096), (1000, 70), (129, 257)])
def test_large_shapes(backend, actions, atoms):
    problem = random_problem(np.random.default_rng(actions), 5, actions, atoms, masked=True)
    check(run(backend, problem), problem)


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 255, 1000, 4097])
def test_row_counts(backend, rows):
    problem = random_problem(np.random.default_rng(rows), rows, 11, 21, weighted=True)
    check(run(backend, problem), problem)


def test_more_rows_than_the_reduction_has_leaves(backend):
    problem = random_problem(np.random.default_rng(5), 70_001, 2, 2, weighted=True, masked=True)
    check(run(backend, problem), problem)


@pytest.mark.parametrize("per_action", [False, True])
@pytest.mark.parametrize("grad_scale", [None, 0.25])
@pytest.mark.parametrize("value_scale", ["none", "running_std"])
@pytest.mark.parametrize("mode", ["add", "write"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_options(backend, reduction, mode, value_scale, grad_scale, per_action):
    problem = random_problem(
        np.random.default_rng(1),
        19,
        11,
        21,
        masked=True,
        weighted=True,
        per_action=per_action,
        grad_scale=grad_scale,
        reduction=reduction,
        mode=mode,
        value_scale=value_scale,
        state={"lam": 0.7, "tau": 0.6},
    )
    check(run(backend, problem), problem)


@pytest.mark.parametrize("value_std", [0.0, 1e-4, 0.3, 20.0])
def test_running_standard_deviation_after_its_first_observation(backend, value_std):
    problem = random_problem(
        np.random.default_rng(2),
        9,
        state={"value_std": value_std, "value_observations": 3, "min_std": 0.01},
        value_scale="running_std",
    )
    check(run(backend, problem), problem)


@pytest.mark.parametrize("value_scale", ["none", "running_std"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_gradient_is_the_derivative_of_the_reference_loss(backend, reduction, value_scale):
    """Central differences of lam * reduction(w KL) in float64, with the target held fixed by its inputs."""
    problem = random_problem(
        np.random.default_rng(33),
        4,
        5,
        7,
        masked=True,
        weighted=True,
        reduction=reduction,
        value_scale=value_scale,
        state={"lam": 0.7, "tau": 0.8},
    )
    problem.grad[:] = 0
    got = run(backend, problem).grad

    def loss(pi):
        _, rows, loop, _ = model(replace(problem, pi=pi))
        return float(loop["lam"]) * (rows.weight * rows.kl).sum() / (1 if reduction == "sum" else len(pi))

    step = 1e-5
    for place in np.ndindex(*problem.pi.shape):
        ahead, behind = problem.pi.astype(np.float64), problem.pi.astype(np.float64)
        ahead[place] += step
        behind[place] -= step
        assert_allclose(got[place], (loss(ahead) - loss(behind)) / (2 * step), atol=3e-6)


DTYPES = [
    (q, pi, grad)
    for q in ("float32", "float16", "bfloat16")
    for pi in ("float32", "float16", "bfloat16")
    for grad in dict.fromkeys(("float32", pi))
]


@pytest.mark.parametrize("dtypes", DTYPES, ids="-".join)
@pytest.mark.parametrize("mode", ["add", "write"])
def test_dtypes(backend, dtypes, mode):
    problem = random_problem(np.random.default_rng(4), 37, 11, 21, dtypes=dtypes, masked=True, mode=mode)
    check(run(backend, problem), problem)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_half_precision_gradient_is_rounded_once(backend, kind):
    """Against the float32 gradient of the same numbers: exactly its rounding, ties to even."""
    problem = random_problem(np.random.default_rng(5), 600, 11, 21, dtypes=("float32", kind, kind), state={"lam": 1})
    problem.grad[:] = np.linspace(-3, 3, problem.grad.size).reshape(problem.grad.shape)
    narrow = run(backend, problem).grad
    wide = random_problem(np.random.default_rng(5), 600, 11, 21, dtypes=("float32", kind, "float32"), state={"lam": 1})
    wide.grad = problem.grad.astype(np.float32)
    assert_same_bits(narrow, run(backend, wide).grad.astype(narrow.dtype))


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_half_precision_gradient_rounds_ties_to_even(backend, kind):
    """Increments of exactly half a unit in the last place, up and down, on every significand."""
    digits = 10 if kind == "float16" else 7
    rows = 2**digits
    problem = random_problem(np.random.default_rng(0), rows, 2, 2, dtypes=("float32", kind, kind), span=(-1, 1))
    problem.state = {"lam": 1, "tau": 1e-3}
    problem.pi[:] = 0
    problem.q[:] = [[0, -40], [0, 40]]  # target [0, 1], policy [1/2, 1/2]
    problem.weights = np.full(rows, 2.0**-digits, np.float32)
    problem.grad[:] = (1 + np.arange(rows) / rows)[:, None]
    got = run(backend, problem).grad
    exact = wide(problem.grad) + 2.0 ** -(digits + 1) * np.array([1, -1])
    assert_same_bits(got, exact.astype(np.float32).astype(got.dtype))


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_every_half_precision_value_is_read_and_written_right(backend, kind):
    """All 65 536 bit patterns as a gradient that nothing is added to but an exact zero; and as policy logits."""
    dtype = np.dtype(np.float16) if kind == "float16" else BFLOAT16
    every = np.arange(65536, dtype=np.uint16).view(dtype).reshape(-1, 2)
    problem = random_problem(np.random.default_rng(0), len(every), 2, 1, dtypes=("float32", kind, kind))
    problem.pi[:] = 0  # Z = 1: both actions have the same value, so target = policy and the increment is 0
    problem.grad = every
    got = run(backend, problem).grad
    assert_array_equal(wide(got), wide(every))

    problem = random_problem(np.random.default_rng(0), len(every), 2, 1, dtypes=("float32", kind, "float32"))
    problem.pi = every
    check(run(backend, problem), problem)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_every_half_precision_value_as_a_critic_logit(backend, kind):
    dtype = np.dtype(np.float16) if kind == "float16" else BFLOAT16
    every = np.arange(65536, dtype=np.uint16).view(dtype).reshape(-1, 1)
    problem = random_problem(np.random.default_rng(0), len(every), 2, 2, dtypes=(kind, "float32", "float32"))
    problem.q = np.zeros((len(every), 2, 2), dtype)
    problem.q[:, 0, :1] = every
    check(run(backend, problem), problem)


# ---- numbers at the edges -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("q_size", [0, 1e-30, 50, 1e4, 1e30])
@pytest.mark.parametrize("pi_size", [0, 1e-30, 50, 1e4, 1e30])
def test_logits_of_any_size(backend, q_size, pi_size):
    problem = random_problem(np.random.default_rng(7), 50, q_size=q_size, pi_size=pi_size)
    check(run(backend, problem), problem)


def test_the_largest_logits(backend):
    problem = random_problem(np.random.default_rng(7), 40, 3, 3)
    problem.q = np.random.default_rng(8).choice(np.float32([BIG, -BIG, 0, 1]), problem.q.shape)
    problem.pi = np.random.default_rng(9).choice(np.float32([BIG, -BIG, 0, 1]), problem.pi.shape)
    outcome = run(backend, problem)
    check(outcome, problem)
    assert outcome.record.clipped > 0
    assert outcome.record.rows < 40


@pytest.mark.parametrize("tau", [0.0, 1e-30, 1e-3, 0.02, 1.0, 300.0, 1e30, INF])
def test_temperatures(backend, tau):
    problem = random_problem(np.random.default_rng(11), 30, state={"tau": tau})
    check(run(backend, problem), problem)


@pytest.mark.parametrize("value_scale", ["none", "running_std"])
def test_values_further_apart_than_float32_reaches(backend, value_scale):
    """Where they do not matter, they are alike: the uniform target, not NaN."""
    rng = np.random.default_rng(13)
    problem = random_problem(rng, 30, q_size=3000, state={"tau": INF}, value_scale=value_scale)
    problem.support *= np.float32(3.3e37)
    check(run(backend, problem), problem)


@pytest.mark.parametrize("tau_min", [1e-6, 0.5])
def test_temperature_floor_is_a_slot(backend, tau_min):
    problem = random_problem(np.random.default_rng(11), 30, state={"tau": 1e-6, "tau_min": tau_min})
    check(run(backend, problem), problem)


@pytest.mark.parametrize("tau", [1e-3, 1e-2, 1.0])
def test_support_far_from_zero_keeps_its_digits(backend, tau):
    """The expected value is taken about the middle of the support: 90 .. 110 is as good as -10 .. 10."""
    problem = random_problem(np.random.default_rng(12), 64, 11, 21, span=(90, 110), state={"tau": tau})
    problem.q *= np.float32(0.05)
    check(run(backend, problem), problem)
    near = random_problem(np.random.default_rng(12), 64, 11, 21, span=(-10, 10), state={"tau": tau})
    near.q *= np.float32(0.05)
    assert_allclose(run(backend, problem).grad, run(backend, near).grad, atol=2e-4 if tau == 1e-3 else 2e-5)


@pytest.mark.parametrize("span", [(0, 0), (5, 5), (-1e-30, 1e-30), (-1e15, 1e15), (10, -10), (0, 1e-44)])
@pytest.mark.parametrize("value_scale", ["none", "running_std"])
def test_supports_of_any_size(backend, span, value_scale):
    problem = random_problem(np.random.default_rng(13), 30, span=span, value_scale=value_scale)
    check(run(backend, problem), problem)


def test_unsorted_support(backend):
    problem = random_problem(np.random.default_rng(14), 30)
    np.random.default_rng(15).shuffle(problem.support)
    check(run(backend, problem), problem)


def test_denormal_numbers(backend):
    problem = random_problem(np.random.default_rng(16), 30, weighted=True, state={"lam": 1})
    problem.weights[:] = np.float32(1e-40)
    problem.grad[:] = 0
    outcome = run(backend, problem)
    check(outcome, problem)
    assert outcome.grad.any()
    problem.pi *= np.float32(1e-41)
    problem.q *= np.float32(1e-41)
    check(run(backend, problem), problem)


@pytest.mark.parametrize("lam", [1e-30, 0.05, 1.0, 1e6])
def test_gradient_uses_lam_as_stored(backend, lam):
    problem = random_problem(np.random.default_rng(17), 30, state={"lam": lam})
    problem.grad[:] = 0
    check(run(backend, problem), problem)


@pytest.mark.parametrize("mode", ["add", "write"])
def test_lam_zero(backend, mode):
    """Off: the buffer keeps its bits (write mode: zeros), the statistic and the average go on."""
    problem = random_problem(np.random.default_rng(18), 30, mode=mode, masked=True, state={"lam": 0})
    problem.grad[0, :3] = [NAN, -0.0, INF]
    problem.grad[1:5] = -0.0  # adding any zero would show
    outcome = run(backend, problem)
    check(outcome, problem)
    assert outcome.values.lam == 0
    assert outcome.values.observations == 1
    assert outcome.values.kl_ema > 0


@pytest.mark.parametrize("grad_scale", [0.0, 1.0, -1.0, 1e-6, 3e4])
@pytest.mark.parametrize("mode", ["add", "write"])
def test_grad_scale_scales_the_gradient_only(backend, mode, grad_scale):
    problem = random_problem(np.random.default_rng(19), 30, mode=mode, grad_scale=grad_scale)
    outcome = run(backend, problem)
    check(outcome, problem)
    problem.grad_scale = None
    assert bytes(outcome.record) == bytes(run(backend, problem).record)


def test_not_a_number_in_the_buffer_stays_there(backend):
    problem = random_problem(np.random.default_rng(20), 4)
    problem.grad[1, 2] = NAN
    problem.grad[2, 2] = INF
    got = run(backend, problem).grad
    assert_array_equal(np.isnan(got), np.isnan(problem.grad))
    assert got[2, 2] == INF
    problem.options = Options(mode="write")
    assert np.isfinite(run(backend, problem).grad).all()


# ---- rows that are left out ---------------------------------------------------------------------------------------


def spoil(problem, how):
    """Make row 3 bad in one way."""
    if how in ("nan q", "inf q", "-inf q", "no atom"):
        at = (3, 2) if how == "no atom" else (3, 2, 1)
        problem.q[at] = {"nan q": NAN, "inf q": INF}.get(how, -INF)
    elif how == "no action":
        problem.pi[3] = -INF
    elif how == "nothing legal":
        problem.legal = np.ones(problem.pi.shape, bool)
        problem.legal[3] = False
    elif how.endswith("pi"):
        problem.pi[3, 2] = {"nan": NAN, "inf": INF, "-inf": -INF}[how.split()[0]]
    else:
        problem.weights = np.ones(len(problem.pi), np.float32)
        problem.weights[3] = float(how)


LEFT_OUT = [
    "nan q",
    "inf q",
    "no atom",
    "nan pi",
    "inf pi",
    "no action",
    "nothing legal",
    "-1",
    "nan",
    "inf",
    "-inf",
    "0",
]


@pytest.mark.parametrize("how", [*LEFT_OUT, "-inf q", "-inf pi"])
@pytest.mark.parametrize("mode", ["add", "write"])
@pytest.mark.parametrize("rows", [6, 41])
def test_a_bad_row_is_left_out_and_its_neighbours_do_not_notice(backend, how, mode, rows):
    problem = random_problem(np.random.default_rng(21), rows, mode=mode)
    problem.grad[3] = -0.0  # adding any zero would show
    clean = run(backend, problem)
    spoil(problem, how)
    outcome = run(backend, problem)
    check(outcome, problem)
    others = np.arange(rows) != 3
    assert_same_bits(outcome.grad[others], clean.grad[others])
    if how in LEFT_OUT:
        assert outcome.values.skipped_last == (how != "0")
        assert outcome.values.rows_last == rows - 1


@pytest.mark.parametrize("how", LEFT_OUT)
def test_weight_zero_hides_any_badness(backend, how):
    problem = random_problem(np.random.default_rng(22), 6)
    if how in ("-1", "nan", "inf", "-inf"):
        pytest.skip("that is the weight itself")
    spoil(problem, how)
    problem.weights = np.ones(6, np.float32)
    problem.weights[3] = 0
    outcome = run(backend, problem)
    check(outcome, problem)
    assert outcome.values.skipped_last == 0


@pytest.mark.parametrize("how", ["nan q", "inf q", "no atom", "nan pi", "inf pi", "-inf pi"])
def test_masked_action_is_not_looked_at(backend, how):
    problem = random_problem(np.random.default_rng(23), 6)
    problem.legal = np.ones(problem.pi.shape, np.uint8)
    problem.legal[3, 2] = 0
    clean = run(backend, problem)
    spoil(problem, how)
    outcome = run(backend, problem)
    check(outcome, problem)
    assert_same_bits(outcome.grad, clean.grad)
    assert bytes(outcome.record) == bytes(clean.record)


@pytest.mark.parametrize("truth", [1, 2, 128, 255])
def test_any_nonzero_mask_byte_is_legal(backend, truth):
    problem = random_problem(np.random.default_rng(24), 9, masked=True)
    want = run(backend, problem)
    problem.legal = problem.legal.astype(np.uint8) * np.uint8(truth)
    got = run(backend, problem)
    assert_same_bits(got.grad, want.grad)


@pytest.mark.parametrize("sentinel", [-1e8, float(np.finfo(np.float16).min), -BIG])
@pytest.mark.parametrize("pi_dtype", ["float32", "float16"])
def test_finite_sentinels_are_illegal_when_asked(backend, sentinel, pi_dtype):
    dtypes = ("float32", pi_dtype, "float32")
    problem = random_problem(np.random.default_rng(25), 20, dtypes=dtypes, illegal_below=max(sentinel, -65504.0))
    hidden = np.random.default_rng(26).random(problem.pi.shape) < 0.3
    with np.errstate(over="ignore"):
        problem.pi[hidden] = np.asarray(sentinel, problem.pi.dtype)
    outcome = run(backend, problem)
    check(outcome, problem)
    problem.pi[hidden] = -INF
    problem.options = Options()
    plain = run(backend, problem)
    assert_same_bits(outcome.grad, plain.grad)
    assert bytes(outcome.record) == bytes(plain.record)


def test_single_legal_action_has_no_gradient(backend):
    problem = random_problem(np.random.default_rng(27), 5)
    problem.pi[:, 1:] = -INF
    outcome = run(backend, problem)
    check(outcome, problem)
    assert_array_equal(outcome.grad, problem.grad)
    assert outcome.record.weighted_kl == 0
    assert outcome.record.rows == 5


def test_kl_bound(backend):
    problem = random_problem(np.random.default_rng(28), 30, state={"kl_row_max": 0.5})
    outcome = run(backend, problem)
    check(outcome, problem)
    assert 0 < outcome.values.clipped_last < 30
    assert outcome.values.kl_last <= 0.5


def test_kl_bound_can_be_lifted(backend):
    problem = random_problem(np.random.default_rng(29), 5, 2, 2, state={"kl_row_max": INF})
    problem.pi[:] = [[0, -1e5]]
    problem.q[:] = 0
    outcome = run(backend, problem)
    assert outcome.record.clipped == 0
    assert_allclose(outcome.record.weighted_kl / 5, 5e4 - np.log(2), rtol=1e-6)


# ---- supports that are not finite ---------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("atom", [0, 4, 8])
@pytest.mark.parametrize("mode", ["add", "write"])
def test_shared_support_that_is_not_finite(backend, value, atom, mode):
    problem = random_problem(np.random.default_rng(30), 20, mode=mode)
    problem.support[atom] = value
    outcome = run(backend, problem)
    check(outcome, problem)
    assert outcome.values.observations == 0


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize("atom", [0, 4, 8])
@pytest.mark.parametrize("action", [0, 2, 4])
def test_only_rows_that_use_the_bad_support_suffer(backend, value, atom, action):
    problem = random_problem(np.random.default_rng(31), 20, per_action=True, masked=True)
    problem.legal[::2, action] = False
    problem.legal[::2, (action + 1) % 5] = True
    clean = run(backend, problem)
    problem.support[action, atom] = value
    outcome = run(backend, problem)
    _, rows, _, _ = model(problem)
    assert rows.unsupported.any()
    assert rows.counted.any()
    check_gradient(outcome.grad, problem)
    check(outcome, problem)
    assert_allclose(outcome.grad[~rows.unsupported], clean.grad[~rows.unsupported], atol=1e-5)


def test_bad_support_under_an_atom_without_mass_still_counts(backend):
    problem = random_problem(np.random.default_rng(32), 6)
    problem.support[4] = INF
    problem.q[:, :, 4] = -INF
    outcome = run(backend, problem)
    check(outcome, problem)
    assert_same_bits(outcome.grad, problem.grad)
