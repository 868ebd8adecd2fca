"""The reference of the family against finite differences, its symmetries and limits, and numbers worked out apart."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given
from numpy.testing import assert_allclose, assert_array_equal

from reference.family import critics, divergences, summary, targets
from reference.family.critics import Returns
from reference.family.divergences import DIVERGENCES
from reference.family.simplex import entropy, expectation, kl, legal_actions, log_softmax

INF, NAN = np.inf, np.nan
E = np.e


# ---- batches ------------------------------------------------------------------------------------------------------


class Batch:
    """Rows of everything that a target may ask for, with a mask that leaves each row an action."""

    def __init__(self, seed, rows=4, actions=5, masked=True, size=1.0):
        rng = np.random.default_rng(seed)
        self.rng, self.rows, self.actions = rng, rows, actions
        shape = (rows, actions)
        self.values = size * rng.normal(size=shape)
        self.logits = size * rng.normal(size=shape)
        self.prior = rng.normal(size=shape)
        self.raw_value = rng.normal(size=rows)
        self.visits = rng.integers(0, 5, size=shape)
        self.legal = rng.random(shape) < 0.6 if masked else np.ones(shape, bool)
        self.legal[np.arange(rows), rng.integers(actions, size=rows)] = True


sizes = st.sampled_from([1e-6, 1e-2, 1.0, 30.0])
batches = st.builds(
    Batch, st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 12), st.booleans(), st.just(1.0) | sizes
)

TARGETS = {
    "boltzmann": lambda b, v, legal: targets.boltzmann(v, 0.7, legal),
    "boltzmann, per row": lambda b, v, legal: targets.boltzmann(v, 0.5 + np.arange(b.rows), legal),
    "mpo": lambda b, v, legal: targets.mpo(v, 0.7, b.prior, legal),
    "greedy": lambda b, v, legal: targets.greedy(v, legal),
    "eps_soft": lambda b, v, legal: targets.eps_soft(v, 0.1, legal),
    "clipped_advantage": lambda b, v, legal: targets.clipped_advantage(v, b.prior, 0.8, 1.0, legal),
    "completed_q": lambda b, v, legal: targets.completed_q(v, b.visits, b.prior, b.raw_value, legal=legal),
}
each_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
each_divergence = pytest.mark.parametrize("divergence", DIVERGENCES.values(), ids=DIVERGENCES)


def slope(loss, x, h):
    """Derivative of loss(x) [rows] to each of x [rows, n], by central differences of fourth order in steps of h."""
    out = np.zeros(x.shape)
    for a in range(x.shape[1]):
        step = np.zeros(x.shape)
        step[:, a] = h
        near, far = loss(x + step) - loss(x - step), loss(x + 2 * step) - loss(x - 2 * step)
        out[:, a] = (8 * near - far) / 12
    return out / np.reshape(h, (-1, 1))


# ---- each gradient is the gradient of its value -------------------------------------------------------------------


@each_divergence
@given(
    b=batches,
    temperature=st.sampled_from([0.3, 1.0, 4.0, 16.0]),
    tau=st.sampled_from([0.01, 0.3, 1.0, 100.0]),
)
def test_gradient_is_the_derivative(divergence, b, temperature, tau):
    log_t = targets.boltzmann(b.values, tau, b.legal)
    temperature = temperature * b.rng.uniform(0.5, 2, b.rows)

    def loss(x):
        return divergence(x, log_t, temperature=temperature, legal=b.legal).value

    if divergence is divergences.total_variation:
        t, p = np.exp(log_t), np.exp(divergences.log_policy(b.logits, temperature, b.legal))
        assume(not ((np.abs(p - t) < 0.01 * p) & (p * (1 - p) > 1e-9)).any())  # not across the kink
    value, gradient = divergence(b.logits, log_t, temperature=temperature, legal=b.legal)
    size = np.maximum(1, value)[:, None] / temperature[:, None]
    error = np.abs(gradient - slope(loss, b.logits, 1e-3 * temperature))
    assert (error <= 1e-9 * size).all()


@pytest.mark.parametrize("beta", [1e-6, 0.1, 0.5, 0.9, 1 - 1e-6])
def test_gradient_of_every_jensen_shannon(beta):
    b = Batch(0)
    log_t = targets.boltzmann(b.values, 0.5, b.legal)
    got = divergences.jensen_shannon(b.logits, log_t, beta, legal=b.legal).gradient
    want = slope(lambda x: divergences.jensen_shannon(x, log_t, beta, legal=b.legal).value, b.logits, 1e-3)
    assert_allclose(got, want, atol=1e-12 + 1e-8 * min(beta, 1 - beta))


@given(b=batches, tau=st.sampled_from([0.05, 1.0, 20.0]), atoms=st.integers(1, 7), shape=st.integers(1, 3))
def test_gradient_to_the_critic_is_the_derivative(b, tau, atoms, shape):
    q = b.rng.normal(size=(b.rows, b.actions, atoms))
    support = b.rng.normal(size=q.shape[-shape:])

    def loss(x):
        values = critics.categorical(x.reshape(q.shape), support)
        return divergences.forward_kl(b.logits, targets.boltzmann(values, tau, b.legal), 2.0, b.legal).value

    got = divergences.critic_gradient(q, support, b.logits, tau, 2.0, b.legal)
    want = slope(loss, q.reshape(b.rows, -1), 1e-3 * min(tau, 1)).reshape(q.shape)
    assert_allclose(got, want, atol=1e-8 * max(1, loss(q).max()) / min(tau, 1))
    assert_allclose(got.sum(-1), 0, atol=1e-12 / tau)


# ---- what no size of the numbers may break ------------------------------------------------------------------------


@each_divergence
@given(b=batches, size=st.sampled_from([1e-300, 1e-8, 1e3, 1e20, 1e150]), tau=st.sampled_from([1e-3, 1.0, 1e3]))
def test_divergences_at_any_size(divergence, b, size, tau):
    log_t = targets.boltzmann(b.values * size, tau, b.legal)
    value, gradient = divergence(b.logits * size, log_t, legal=b.legal)
    bound = {"jensen_shannon": np.log(2), "hellinger": 1, "total_variation": 1}.get(divergence.__name__, INF)
    assert (value >= 0).all()
    assert (value <= bound * (1 + 1e-12)).all()
    assert np.isfinite(gradient).all()
    assert not gradient[~b.legal].any()
    assert_allclose(gradient.sum(-1), 0, atol=1e-12 * max(1, np.abs(gradient).max()))


@each_divergence
@given(b=batches)
def test_no_divergence_from_itself(divergence, b):
    log_p = divergences.log_policy(b.logits, legal=b.legal)
    value, gradient = divergence(b.logits, log_p, legal=b.legal)
    assert_allclose(value, 0, atol=1e-12)
    assert_allclose(gradient, 0, atol=1e-12)


@each_target
@given(b=batches)
def test_targets_are_distributions_over_the_legal_actions(target, b):
    t = np.exp(target(b, b.values, b.legal))
    assert_allclose(t.sum(-1), 1, atol=1e-12)
    assert not t[~b.legal].any()


@each_divergence
def test_what_is_0_in_one_and_not_in_the_other(divergence):
    halves = np.array([np.log(0.5), np.log(0.5), -INF])
    value, gradient = divergence([0.0, 0.0, -INF], halves)
    assert_allclose(value, 0, atol=1e-15)
    assert_allclose(gradient, 0, atol=1e-15)
    value, gradient = divergence([0.0, 0.0, 0.0], halves)
    log = np.log
    third = {
        "forward_kl": log(1.5),
        "reverse_kl": INF,
        "jensen_shannon": (log(1.2) + (2 * log(0.8) + log(2)) / 3) / 2,
        "hellinger": 1 - np.sqrt(2 / 3),
        "total_variation": 1 / 3,
    }
    assert_allclose(value, third[divergence.__name__])
    assert np.isfinite(gradient).all()
    if divergence is divergences.reverse_kl:
        assert_array_equal(gradient, 0)


def test_a_target_on_an_action_that_the_policy_may_not_take():
    value, gradient = divergences.forward_kl([0.0, 1.0, -INF], np.log([0.2, 0.3, 0.5]))
    assert value == INF
    assert_array_equal(gradient, 0)


def test_logits_of_minus_infinity_and_a_mask_are_the_same():
    logits, legal = np.array([0.3, 1.0, -INF, 0.5]), [True, True, True, False]
    log_t = targets.boltzmann([1.0, 0.0, 5.0, 5.0], 0.5, legal_actions(logits, legal))
    want = divergences.forward_kl([0.3, 1.0], targets.boltzmann([1.0, 0.0], 0.5))
    got = divergences.forward_kl(logits, log_t, legal=legal)
    assert_allclose(got.value, want.value)
    assert_allclose(got.gradient, [*want.gradient, 0, 0])


def test_a_row_without_a_legal_action_is_empty():
    none = np.zeros((1, 3), bool)
    for target in TARGETS.values():
        b = Batch(0, rows=1, actions=3)
        assert np.isneginf(target(b, b.values, none)).all()
    for divergence in DIVERGENCES.values():
        assert_array_equal(divergence(np.zeros((1, 3)), np.full((1, 3), -INF), legal=none).gradient, 0)


# ---- symmetries ---------------------------------------------------------------------------------------------------


@each_target
@given(b=batches, shift=st.sampled_from([-1e3, 0.3, 1e3]))
def test_targets_do_not_see_a_shift_of_the_values(target, b, shift):
    want = np.exp(target(b, b.values, b.legal))
    moved = b.values + shift
    b.raw_value = b.raw_value + shift
    assume(len(np.unique(moved)) == moved.size)  # greedy: no ties from rounding
    assert_allclose(np.exp(target(b, moved, b.legal)), want, atol=1e-7)


@each_target
@given(b=batches)
def test_actions_have_no_order(target, b):
    want = target(b, b.values, b.legal)
    order = b.rng.permutation(b.actions)
    b.prior, b.visits = b.prior[:, order], b.visits[:, order]
    assert_allclose(target(b, b.values[:, order], b.legal[:, order]), want[:, order], rtol=1e-9, atol=1e-12)


@each_target
@given(b=batches)
def test_illegal_actions_are_as_if_removed(target, b):
    rows, values = target(b, b.values, b.legal), np.where(b.legal, b.values, NAN)
    prior, visits = b.prior, b.visits
    b.prior, b.visits = np.where(b.legal, prior, INF), np.where(b.legal, visits, 99)
    assert_array_equal(target(b, values, b.legal), rows)
    for i, legal in enumerate(b.legal):
        alone = Batch(0, 1, legal.sum(), masked=False)
        alone.prior, alone.visits, alone.raw_value = prior[[i]][:, legal], visits[[i]][:, legal], b.raw_value[[i]]
        if target is TARGETS["boltzmann, per row"]:
            got = targets.boltzmann(b.values[[i]][:, legal], 0.5 + i)
        else:
            got = target(alone, b.values[[i]][:, legal], None)
        assert_allclose(got[0], rows[i, legal], rtol=1e-12, atol=1e-12)


@given(b=batches, factor=st.sampled_from([1e-3, 3.0, 1e4]))
def test_values_have_a_unit(b, factor):
    """Values in another unit are the same with the temperature in that unit, and normalised values have none."""
    v, legal = b.values, b.legal
    same = {
        "boltzmann": lambda f: targets.boltzmann(v * f, 0.7 * f, legal),
        "mpo": lambda f: targets.mpo(v * f, 0.7 * f, b.prior, legal),
        "clipped_advantage": lambda f: targets.clipped_advantage(v * f, b.prior, 0.7 * f, 1.0, legal),
        "greedy": lambda f: targets.greedy(v * f, legal),
        "completed_q": lambda f: targets.completed_q(
            v * f, b.visits, b.prior, b.raw_value * f, min_range=1e-30, legal=legal
        ),
        "z_score": lambda f: critics.z_score(v * f, 1e-30, legal),
        "min_max": lambda f: critics.min_max(v * f, 1e-30, legal),
        "by_std": lambda f: critics.by_std(v * f, critics.batch_std(v * f, legal=legal), 1e-30)[legal],
    }
    if (legal.sum(-1) == 1).all():
        del same["by_std"]  # no spread, no unit
    for name, function in same.items():
        assert_allclose(function(factor), function(1.0), rtol=1e-7, atol=1e-9, err_msg=name)


@each_divergence
@given(b=batches, temperature=st.sampled_from([0.5, 8.0]))
def test_divergences_do_not_see_a_shift_and_scale_with_the_temperature(divergence, b, temperature):
    log_t = targets.boltzmann(b.values, 1.0, b.legal)
    want = divergence(b.logits, log_t, legal=b.legal)
    got = divergence(temperature * (b.logits + 3), log_t, temperature=temperature, legal=b.legal)
    assert_allclose(got.value, want.value, rtol=1e-9, atol=1e-12)
    if divergence is not divergences.total_variation:  # sign(π - t) of two numbers that are as good as equal
        assert_allclose(got.gradient, want.gradient / temperature, atol=1e-9)


@given(b=batches, shift=st.sampled_from([-40.0, 7.0]), level=st.sampled_from([0.05, 0.37, 1.0]))
def test_critics_follow_a_shift_and_a_scale_of_the_atoms(b, shift, level):
    q = b.rng.normal(size=(b.rows, b.actions, 6))
    support = b.rng.normal(size=6)
    old, new = (critics.categorical_returns(q, s) for s in (support, 3 * support + shift))
    for measure in (
        critics.mean,
        lambda r: critics.cvar(r, level),
        lambda r: critics.mean_minus_std(r, 0.5),
        lambda r: critics.quantile_of(r, level),
    ):
        assert_allclose(measure(new), 3 * measure(old) + shift, atol=1e-10)


def test_supports_may_be_shared_per_action_or_per_row():
    rng = np.random.default_rng(0)
    q = rng.normal(size=(2, 3, 4, 5))
    row = rng.normal(size=q.shape)
    for support in (row[0, 0, 0], row[0, 0], row):
        whole = np.broadcast_to(support, q.shape)
        p = np.exp(q) / np.exp(q).sum(-1, keepdims=True)
        assert_allclose(critics.categorical(q, support), (p * whole).sum(-1))


# ---- limits -------------------------------------------------------------------------------------------------------


def test_temperature_without_end_is_uniform_or_the_prior():
    b = Batch(1)
    uniform = log_softmax(np.zeros(b.values.shape), b.legal)
    assert_allclose(targets.boltzmann(b.values, INF, b.legal), uniform)
    assert_allclose(targets.mpo(b.values, INF, b.prior, b.legal), log_softmax(b.prior, b.legal))
    assert_allclose(np.exp(targets.boltzmann(b.values, 1e9, b.legal)), np.exp(uniform), atol=1e-8)


@pytest.mark.parametrize("tau", [1e-4, 1e-300])
def test_temperature_to_nothing_is_greedy_and_ties_share(tau):
    values = np.array([[1.0, 3.0, 2.0, 3.0], [5.0, 4.0, 3.0, -2.0]])
    want = [[0, 0.5, 0, 0.5], [1, 0, 0, 0]]
    assert_allclose(np.exp(targets.greedy(values)), want)
    assert_allclose(np.exp(targets.boltzmann(values, tau)), want, atol=1e-12)
    prior = np.log([[0.1, 0.6, 0.1, 0.2], [0.1, 0.2, 0.3, 0.4]])
    assert_allclose(np.exp(targets.mpo(values, tau, prior)), [[0, 0.75, 0, 0.25], [1, 0, 0, 0]], atol=1e-12)
    assert_allclose(np.exp(targets.eps_soft(values, 0.2))[0], [0.05, 0.45, 0.05, 0.45])


def test_an_action_without_a_prior_has_no_share_however_good_it_is():
    t = np.exp(targets.mpo([9.0, 1.0, 2.0], 1e-300, [-INF, 0.0, 0.0]))
    assert_allclose(t, [0, 0, 1])


def test_epsilon_from_greedy_to_uniform():
    values = np.tile([1.0, 3.0, 2.0], (2, 1))
    assert_allclose(np.exp(targets.eps_soft(values, [0.0, 1.0])), [[0, 1, 0], [1 / 3, 1 / 3, 1 / 3]])


def test_jensen_shannon_tends_to_either_kl():
    b = Batch(2)
    log_t = targets.boltzmann(b.values, 0.5, b.legal)
    for beta, share, end in ((1e-7, 1e-7, divergences.forward_kl), (1 - 1e-7, 1e-7, divergences.reverse_kl)):
        got, want = (f(b.logits, log_t, legal=b.legal) for f in (
            lambda *a, beta=beta, **k: divergences.jensen_shannon(*a, beta=beta, **k), end))  # fmt: skip
        assert_allclose(got.value / share, want.value, rtol=1e-5, atol=1e-8)
        assert_allclose(got.gradient / share, want.gradient, rtol=1e-5, atol=1e-6)


def test_clipped_advantage_without_a_clip_is_mpo():
    b = Batch(3)
    got = targets.clipped_advantage(b.values, b.prior, 0.7, 1e9, b.legal)
    assert_allclose(got, targets.mpo(b.values, 0.7, b.prior, b.legal))


def test_cvar_from_the_worst_atom_to_the_mean():
    returns = critics.categorical_returns(np.random.default_rng(0).normal(size=(3, 5, 7)), np.arange(7.0))
    assert_allclose(critics.cvar(returns, 1.0), critics.mean(returns))
    assert_allclose(critics.cvar(returns, 1e-9), 0, atol=1e-12)
    levels = np.stack([critics.cvar(returns, a) for a in (0.01, 0.1, 0.5, 0.9, 1.0)])
    assert (np.diff(levels, axis=0) >= -1e-12).all()


def test_equal_values_are_normalised_without_dividing_by_0():
    flat = np.full((2, 3), 7.0)
    assert_array_equal(critics.z_score(flat, 1e-3), 0)
    assert_array_equal(critics.min_max(flat), 0)
    assert critics.batch_std(flat) == 0
    assert_array_equal(critics.by_std(flat, 0.0, 0.5), 14)


# ---- numbers of each piece, worked out by hand --------------------------------------------------------------------


def test_numbers_of_the_transforms():
    assert_allclose(critics.symexp([-1, 0, 2]), [1 - E, 0, E**2 - 1])
    assert_allclose(critics.r2d2_inverse([0.0, 1.003, -1.003]), [0, 3, -3])

    def h(y, epsilon):
        return np.sign(y) * (np.sqrt(np.abs(y) + 1) - 1) + epsilon * y

    y = np.array([-1e5, -3.0, -1e-9, 0.0, 1e-12, 0.5, 1e8])
    for epsilon in (0.0, 1e-3, 0.1):
        x = h(y, epsilon)
        assert_allclose(critics.r2d2_inverse(x, epsilon), y, rtol=1e-9, atol=2e-16 if epsilon else 5e-16)
    assert_allclose(critics.symexp(np.sign(y) * np.log1p(np.abs(y))), y, rtol=1e-12)


def test_numbers_of_a_gaussian_mixture_and_of_weighted_quantiles():
    assert_allclose(critics.gaussian_mixture([[np.log(3), 0.0]], [[2.0, 6.0]]), [3])
    assert_allclose(critics.quantile([[1.0, 5.0, 3.0]]), [3])
    assert_allclose(critics.quantile([[1.0, 5.0, 3.0]], [2, 1, 1]), [2.5])


def test_numbers_of_an_ensemble():
    values = np.array([[1.0, 5.0], [3.0, 1.0]])
    assert_allclose(critics.ensemble_mean(values), [2, 3])
    assert_allclose(critics.ensemble_min(values), [1, 1])
    assert_allclose(critics.ensemble_mean_minus_std(values, 1.0), [1, 1])


def test_numbers_of_value_normalisation():
    values, legal = [1.0, 3.0, 8.0], [True, True, False]
    assert_allclose(critics.z_score(values, 0.1, legal), [-1, 1, 0])
    assert_allclose(critics.z_score(values, 4.0, legal), [-0.25, 0.25, 0])
    assert_allclose(critics.min_max(values, legal=legal), [0, 1, 0])
    assert_allclose(critics.batch_std([values, [0.0, 6.0, 0.0]], [3, 1], [legal, legal]), np.sqrt((3 * 1 + 9) / 4))


def test_numbers_of_completed_q():
    values, visits, prior = [2.0, 6.0, NAN, NAN], [1, 2, 0, 0], np.log([0.3, 0.1, 0.4, 0.2])
    v_mix = (1 + 3 * (0.3 * 2 + 0.1 * 6) / 0.4) / 4
    assert v_mix == pytest.approx(2.5)
    assert_allclose(targets.mixed_value(values, visits, prior, 1.0), v_mix)
    score = (50 + 2) * 0.1 * np.array([0, 1, 0.125, 0.125])
    want = np.exp(prior + score)
    assert_allclose(np.exp(targets.completed_q(values, visits, prior, 1.0)), want / want.sum())


def test_completed_q_without_visits_is_the_prior():
    prior = np.array([0.3, -1.0, 2.0])
    assert_allclose(targets.completed_q([NAN] * 3, [0] * 3, prior, 4.0), log_softmax(prior))
    assert_allclose(targets.mixed_value([NAN] * 3, [0] * 3, prior, 4.0), 4)


# ---- traps, each with its number ----------------------------------------------------------------------------------


def test_trap_order_of_a_transform():
    """symexp(E[Z]) and E[symexp(Z)] are 6.39 and 10.95 for a binomial distribution of mean 2."""
    logits, support = np.log([[1.0, 4.0, 6.0, 4.0, 1.0]]), np.arange(5.0)
    of_mean = critics.categorical(logits, support, critics.symexp, "transform_of_mean")
    of_atoms = critics.categorical(logits, support, critics.symexp, "mean_of_transformed")
    assert_allclose(of_mean, E**2 - 1)
    assert_allclose(of_atoms, ((1 + E) / 2) ** 4 - 1)
    assert_allclose([of_mean[0], of_atoms[0]], [6.389, 10.947], atol=1e-3)
    assert_allclose(critics.quantile([[0.0, 4.0]], None, critics.symexp, "mean_of_transformed"), [(E**4 - 1) / 2])
    with pytest.raises(ValueError, match="order"):
        critics.categorical(logits, support, critics.symexp, "symexp of the mean")


def test_trap_cvar_of_atoms_that_are_not_sorted():
    """Quantiles that cross: the worst 30 % of (4, -2, 1, 7) are -2 and a fifth of 1."""
    returns = critics.quantile_returns([[4.0, -2.0, 1.0, 7.0]])
    assert_allclose(critics.cvar(returns, 0.3), [(0.25 * -2 + 0.05 * 1) / 0.3])
    assert_allclose(critics.cvar(returns, 0.3), [-1.5])
    as_they_come = (0.25 * 4 + 0.05 * -2) / 0.3
    assert as_they_come == pytest.approx(3.0)


def test_trap_edge_of_a_cvar_is_a_fraction_of_an_atom():
    """With whole atoms only, 10 % of four quantiles would be nothing and 30 % the first atom alone."""
    returns = critics.quantile_returns([[1.0, 2.0, 3.0, 4.0]], [1, 1, 1, 7])
    assert_allclose([critics.cvar(returns, a)[0] for a in (0.05, 0.1, 0.15, 0.3, 1)], [1, 1, 4 / 3, 2, 3.4])
    with pytest.raises(ValueError, match="level"):
        critics.cvar(returns, 0.0)


def test_trap_quantile_of_a_categorical_jumps():
    returns = Returns(np.array([[-10.0, 10.0]]), np.array([[0.5, 0.5]]))
    assert_allclose([critics.quantile_of(returns, a)[0] for a in (0.5, 0.5 + 1e-12, 1.0)], [-10, 10, 10])
    massless = Returns(np.array([[3.0, 1.0, 2.0]]), np.array([[0.0, 0.3, 0.7 - 1e-15]]))
    assert_allclose([critics.quantile_of(massless, a)[0] for a in (1e-9, 0.3, 0.31, 1.0)], [1, 1, 2, 2])


def test_trap_std_of_an_ensemble_is_that_of_a_population():
    values = np.array([[1.0], [3.0]])
    assert_allclose(critics.ensemble_mean_minus_std(values, 1.0), 1.0)
    assert float(2 - values.std(ddof=1)) == pytest.approx(0.5858, abs=1e-4)


def test_trap_std_over_all_entries_is_that_between_rows():
    """Rows at 0, 100, 200 whose actions differ by ±1.5: 1.5 against 81.7, which is 54 times as much."""
    values = np.array([[-1.5, 1.5], [98.5, 101.5], [198.5, 201.5]])
    assert critics.batch_std(values) == pytest.approx(1.5)
    assert values.std() / critics.batch_std(values) == pytest.approx(54.4, abs=0.1)


def test_trap_float32_and_a_support_far_from_0():
    """Support 90…110 at τ = 1e-3: float32 sums of p·z lose 0.01 of a target; about the middle they keep it."""
    rng = np.random.default_rng(0)
    q = rng.normal(size=(400, 2, 21))
    q[:, 1] = q[:, 0] + 1e-4 * rng.normal(size=(400, 21))
    q = q.astype(np.float32)
    support = np.linspace(90, 110, 21)
    want = np.exp(targets.boltzmann(critics.categorical(q, support), 1e-3))
    centred = np.exp(targets.boltzmann(critics.categorical(q, support - 100), 1e-3))
    assert_allclose(centred, want, atol=1e-9)

    def loss_of_digits(atoms):
        p = np.exp(q)
        p /= p.sum(-1, keepdims=True)
        values = (p * atoms.astype(np.float32)).sum(-1)
        assert values.dtype == np.float32
        return np.abs(np.exp(targets.boltzmann(values, 1e-3)) - want).max()

    assert loss_of_digits(support) > 0.005
    assert loss_of_digits(support - 100) < 0.0005


def test_trap_square_of_the_temperature():
    """T²·‖gradient‖ at T = 16 is 1.3 times that at T = 1 for a target softened by T, 9.3 times for a fixed one."""
    x, y = np.array([1.0, 0.0, -1.0]), np.array([-1.5, 0.5, 1.5])

    def strength(t, softened):
        log_t = targets.boltzmann(y, t if softened else 1.0)
        return t**2 * np.linalg.norm(divergences.forward_kl(x, log_t, t).gradient)

    assert strength(16.0, True) / strength(1.0, True) == pytest.approx(1.34, abs=0.01)
    assert strength(16.0, False) / strength(1.0, False) == pytest.approx(9.29, abs=0.01)
    assert strength(128.0, False) / strength(64.0, False) == pytest.approx(2.0, abs=0.02)  # it grows like T


@pytest.mark.parametrize("beta", [0.0, 1.0, -0.1, 1.1, NAN])
def test_trap_ends_of_jensen_shannon(beta):
    with pytest.raises(ValueError, match="beta"):
        divergences.jensen_shannon([0.0, 1.0], np.log([0.5, 0.5]), beta)


def test_trap_jensen_shannon_is_bounded_where_a_kl_is_not():
    """Two policies 60 nats apart: JSD is ln 2, so a KL target of 1 nat would never be reached by it."""
    log_t = log_softmax([60.0, 0.0])
    assert divergences.jensen_shannon([0.0, 60.0], log_t).value == pytest.approx(np.log(2))
    assert divergences.forward_kl([0.0, 60.0], log_t).value == pytest.approx(60)
    most = -(0.9 * np.log(0.9) + 0.1 * np.log(0.1))
    assert divergences.jensen_shannon([0.0, 60.0], log_t, 0.9).value == pytest.approx(most)


def test_trap_a_tiny_target_is_not_a_zero():
    """t = e^-2000 is 0 in float64. Its reverse KL is 999.3 nats all the same; only a true 0 has none."""
    log_t = targets.boltzmann([0.0, -2.0], 1e-3)
    assert np.exp(log_t[1]) == 0
    assert divergences.reverse_kl([0.0, 0.0], log_t).value == pytest.approx(1000 - np.log(2))
    assert divergences.reverse_kl([0.0, 0.0], targets.greedy([0.0, -2.0])).value == INF


def test_trap_sign_at_the_kink_of_total_variation():
    """π = t in one action of three: its sign counts as 0."""
    x = np.log([0.5, 0.3, 0.2])
    value, gradient = divergences.total_variation(x, x + np.log([0.8, 1.0, 1.5]))
    assert_allclose(value, 0.1)
    # s = (1, 0, -1), Σπs = 0.3; the middle one may be off by a rounding of π - t either way.
    p = np.array([0.5, 0.3, 0.2])
    choices = [0.5 * p * (s - p @ s) for s in np.array([[1, m, -1] for m in (-1.0, 0.0, 1.0)])]
    assert min(np.abs(gradient - g).max() for g in choices) < 1e-12
    exact = divergences.total_variation(np.log([0.5, 0.25, 0.25]), np.log([0.25, 0.25, 0.5])).gradient
    assert_allclose(exact, 0.5 * np.array([0.5, 0.25, 0.25]) * (np.array([1, 0, -1]) - 0.25))


def test_trap_baseline_of_a_clipped_advantage():
    """About the prior's mean, 4.6, the best action gains 0.4; about the plain mean, 2.5, it would be clipped at 1."""
    values, prior = np.array([0.0, 5.0]), np.log([0.08, 0.92])
    t = np.exp(targets.clipped_advantage(values, prior, 1.0, 1.0))
    want = np.array([0.08 * np.exp(-1), 0.92 * np.exp(0.4)])
    assert_allclose(t, want / want.sum())
    plain = np.array([0.08 * np.exp(-1), 0.92 * np.exp(1.0)])
    assert (plain / plain.sum())[0] / t[0] == pytest.approx(0.554, abs=1e-3)


def test_trap_range_of_completed_q_is_that_of_legal_actions():
    """An illegal action with a value of 100 would squeeze 0 and 1 to 0 and 0.01."""
    values, visits, legal = [0.0, 1.0, 100.0], [1, 1, 1], [True, True, False]
    t = np.exp(targets.completed_q(values, visits, np.zeros(3), 0.5, legal=legal))
    assert np.log(t[1] / t[0]) == pytest.approx(51 * 0.1)
    squeezed = np.exp(targets.completed_q(values, visits, np.zeros(3), 0.5))
    assert np.log(squeezed[1] / squeezed[0]) == pytest.approx(51 * 0.1 * 0.01)


def test_trap_raw_value_counts_as_one_visit():
    """v = 10 and one visit of value 0: v_mix = 5, the value of every unvisited action."""
    assert_allclose(targets.mixed_value([0.0, NAN], [1, 0], [0.0, 0.0], 10.0), 5)
    t = np.exp(targets.completed_q([0.0, NAN], [1, 0], [0.0, 0.0], 10.0))
    assert np.log(t[1] / t[0]) == pytest.approx(5.1)


def test_trap_visited_actions_that_the_prior_excludes():
    """The share of visited actions under a prior of e^-2000 is still a share."""
    assert_allclose(targets.mixed_value([1.0, 3.0, NAN], [1, 2, 0], [-2000.0, -2000.0, 0.0], 0.0), 3 * 2 / 4)


def test_trap_prior_that_is_the_policy():
    """With prior = π the KL is what η makes it, and pulling the policy does not bring it down: 0.50 nats stay 0.50."""
    values, x = np.array([[1.0, 0.0, -1.0]]), np.zeros((1, 3))
    seen = []
    for _ in range(3):
        log_t = targets.mpo(values, 0.5, x)
        seen.append(divergences.forward_kl(x, log_t).value[0])
        x = x - 1e-3 * divergences.forward_kl(x, log_t).gradient
    assert_allclose(seen, seen[0], rtol=0.01)
    fixed = targets.mpo(values, 0.5, np.zeros((1, 3)))
    assert divergences.forward_kl(fixed, fixed).value[0] == 0
    etas = [kl(targets.mpo(values, eta, x), log_softmax(x))[0] for eta in (0.25, 0.5, 1.0, 2.0)]
    assert (np.diff(etas) < 0).all()


@pytest.mark.parametrize("eta", [0.1, 1.0, 7.0])
def test_trap_slope_of_the_mpo_dual(eta):
    """g(η) = η·ε + η·mean log Σ prior·exp(Q/η) has g' = ε - mean KL(t‖prior)."""
    b, epsilon = Batch(4), 0.1
    log_prior = log_softmax(b.prior, b.legal)

    def dual(e):
        best = np.max(b.values, -1, where=b.legal, initial=-INF)
        scaled = np.where(b.legal, b.values - best[:, None], 0.0) / e
        rows = best + e * np.log((np.exp(log_prior) * np.exp(scaled)).sum(-1))
        return e * epsilon + rows.mean()

    h = 1e-4 * eta
    numeric = (dual(eta + h) - dual(eta - h)) / (2 * h)
    log_t = targets.mpo(b.values, eta, b.prior, b.legal)
    measured = summary.batch(log_t, log_prior, log_prior=log_prior)["prior_kl"]
    assert epsilon - measured == pytest.approx(numeric, abs=1e-7)


@pytest.mark.parametrize("tau", [0.2, 1.0, 5.0])
def test_trap_slope_of_the_entropy_to_log_tau(tau):
    """dH/d log τ = Var_t(Q/τ)."""
    b, h = Batch(5), 1e-4
    ends = [entropy(targets.boltzmann(b.values, tau * np.exp(s * h), b.legal)) for s in (1, -1)]
    t = np.exp(targets.boltzmann(b.values, tau, b.legal))
    z = b.values / tau
    variance = expectation(t, (z - expectation(t, z)[:, None]) ** 2)
    assert_allclose(variance, (ends[0] - ends[1]) / (2 * h), atol=1e-7)


def test_trap_ties_hold_the_entropy_up():
    """Three best actions: H ≥ ln 3 = 1.0986 at any temperature, so a law that wants less turns τ down for ever."""
    values = [2.0, 2.0, 0.0, 2.0, -1.0]
    falling = [float(entropy(targets.boltzmann(values, tau))) for tau in (10, 1, 0.1, 1e-3, 1e-9)]
    assert (np.diff(falling) <= 0).all()
    assert falling[-1] == pytest.approx(np.log(3))


def test_trap_rows_with_one_legal_action():
    """They have no entropy and none to have: as a share of log #legal, what the law for τ sees, they do not count."""
    log_t = targets.boltzmann(np.array([[1.0, 0.0, 2.0]] * 2), 1.0, [[True] * 3, [False, True, False]])
    both, alone = summary.batch(log_t, log_t), summary.batch(log_t[:1], log_t[:1])
    assert both["target_entropy"] == pytest.approx(alone["target_entropy"] / 2)
    shares = [s["target_entropy"] / s["uniform_entropy"] for s in (both, alone)]
    assert shares[0] == pytest.approx(shares[1])


# ---- the summary --------------------------------------------------------------------------------------------------


def by_hand(t, p, prior, legal):
    """The numbers of one row, in plain Python over its legal actions."""
    t, p, prior = ([float(x) for x, ok in zip(row, legal, strict=True) if ok] for row in (t, p, prior))
    pairs = list(zip(t, p, strict=True))
    at_best = max(b for a, b in pairs if a == max(t))
    return {
        "kl": sum(a * np.log(a / b) for a, b in pairs if a),
        "target_entropy": -sum(a * np.log(a) for a in t if a),
        "policy_entropy": -sum(b * np.log(b) for b in p if b),
        "uniform_entropy": np.log(len(t)),
        "top1_match": float(any(a == max(t) and b == max(p) for a, b in pairs)),
        "pi_at_qstar": at_best,
        "logpi_at_qstar": np.log(at_best),
        "target_at_pistar": max(a for a, b in pairs if b == max(p)),
        "overlap": sum(min(a, b) for a, b in pairs),
        "cosine": sum(a * b for a, b in pairs) / np.sqrt(sum(a * a for a in t) * sum(b * b for b in p)),
        "prior_kl": sum(a * np.log(a / c) for a, c in zip(t, prior, strict=True) if a),
    }


@given(b=batches, tau=st.sampled_from([0.3, 1.0, INF]), seed=st.integers(0, 2**32 - 1))
def test_summary_against_a_loop_over_rows(b, tau, seed):
    rng = np.random.default_rng(seed)
    weights, counted = rng.choice([0.0, 0.5, 3.0], b.rows), rng.random(b.rows) < 0.8
    log_t = targets.boltzmann(np.round(b.values, 1), tau, b.legal)  # rounded: there are ties
    log_p, log_prior = log_softmax(np.round(b.logits), b.legal), log_softmax(b.prior, b.legal)
    used = [i for i in range(b.rows) if counted[i] and weights[i] > 0]
    total = sum(weights[i] for i in used)
    each = [by_hand(*(np.exp(x[i]) for x in (log_t, log_p, log_prior)), b.legal[i]) for i in used]

    dirty = [np.where((counted & (weights > 0))[:, None], x, NAN) for x in (log_t, log_p, log_prior)]
    got = summary.batch(dirty[0], dirty[1], weights, counted, dirty[2])
    assert got.pop("rows") == len(used)
    effective = got.pop("effective_rows")
    assert set(got) == set(by_hand([1.0], [1.0], [1.0], [True]))
    if not used:
        assert effective == 0
        assert all(np.isnan(x) for x in got.values())
        return
    assert effective == pytest.approx(total**2 / sum(weights[i] ** 2 for i in used))
    for name, x in got.items():
        want = sum(weights[i] * row[name] for i, row in zip(used, each, strict=True)) / total
        assert x == pytest.approx(want, abs=1e-9), name


def test_summary_without_a_prior_has_no_kl_to_one():
    log_p = log_softmax(np.zeros((2, 3)))
    assert "prior_kl" not in summary.batch(log_p, log_p)


@pytest.mark.parametrize(
    ("target", "policy", "match", "at_qstar"),
    [
        ([0.6, 0.4], [0.7, 0.3], 1, 0.7),
        ([0.6, 0.4], [0.3, 0.7], 0, 0.3),
        ([0.4, 0.4, 0.2], [0.1, 0.7, 0.2], 1, 0.7),  # one of two best is the policy's
        ([0.1, 0.7, 0.2], [0.4, 0.4, 0.2], 1, 0.4),  # the other way round
        ([0.4, 0.4, 0.2], [0.2, 0.2, 0.6], 0, 0.2),
        ([1 / 3, 1 / 3, 1 / 3], [0.1, 0.2, 0.7], 1, 0.7),  # a uniform target agrees with everything
    ],
)
def test_agreement_and_ties(target, policy, match, at_qstar):
    row = summary.rows(np.log(target), np.log(policy))
    assert row.top1_match == match
    assert row.pi_at_qstar == pytest.approx(at_qstar)
    assert match == (row.pi_at_qstar == np.max(np.exp(np.log(policy))))


def test_identical_and_disjoint_policies():
    log_p = log_softmax([0.0, 1.0, 2.0])
    same = summary.rows(log_p, log_p)
    assert_allclose([same.kl, same.top1_match, same.overlap, same.cosine], [0, 1, 1, 1])
    apart = summary.rows(log_softmax([0.0, 800.0]), log_softmax([800.0, 0.0]))
    assert_allclose([apart.kl, apart.top1_match, apart.overlap, apart.cosine], [800, 0, 0, 0], atol=1e-300)
    assert apart.pi_at_qstar == 0
    assert apart.logpi_at_qstar == -800


@given(b=batches)
def test_overlap_is_what_total_variation_leaves(b):
    log_t, log_p = targets.boltzmann(b.values, 1.0, b.legal), log_softmax(b.logits, b.legal)
    tv = divergences.total_variation(b.logits, log_t, legal=b.legal).value
    assert_allclose(summary.rows(log_t, log_p).overlap, 1 - tv, atol=1e-12)


def test_effective_rows():
    assert summary.effective_rows([2.0, 2.0, 2.0]) == pytest.approx(3)
    assert summary.effective_rows([1.0, 3.0]) == pytest.approx(1.6)
    assert summary.effective_rows([1e300, 0.0, 1e300]) == pytest.approx(2)
    assert summary.effective_rows([1e-300, 1e-300]) == pytest.approx(2)
    assert summary.effective_rows([]) == 0
