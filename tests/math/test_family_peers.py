"""The reference of the family against public implementations. Each test skips where its peer is missing."""

import functools
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose

from reference.family import critics, divergences, summary, targets
from reference.family.divergences import DIVERGENCES
from reference.family.simplex import entropy, kl, log_softmax

# What a peer warns of is its own affair.
pytestmark = pytest.mark.filterwarnings("ignore")

RNG = np.random.default_rng(11)
ROWS, ACTIONS, ATOMS = 40, 7, 11
Q_LOGITS = 2 * RNG.normal(size=(ROWS, ACTIONS, ATOMS))
SUPPORT = np.linspace(-3, 5, ATOMS)
VALUES, LOGITS, PRIOR = 2 * RNG.normal(size=(3, ROWS, ACTIONS))
TIED = np.round(VALUES)
LEGAL = RNG.random((ROWS, ACTIONS)) < 0.7
LEGAL[:, 0] = True


@functools.cache
def peer(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, exc_type=ImportError)


@pytest.fixture
def jax():
    """JAX in float64 on the CPU, for the length of a test."""
    jax = peer("jax")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    with jax.default_device(jax.devices("cpu")[0]):
        yield jax
    jax.config.update("jax_enable_x64", before)


# ---- NumPy and SciPy ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [0.013, 0.37, 0.5003, 0.99])
def test_quantile_is_that_of_numpy(level):
    quantiles = RNG.normal(size=(ROWS, ACTIONS, ATOMS))
    got = critics.quantile_of(critics.quantile_returns(quantiles), level)
    assert_allclose(got, np.quantile(quantiles, level, axis=-1, method="inverted_cdf"))


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="np.quantile without weights")
@pytest.mark.parametrize("level", [0.013, 0.37, 0.5003, 0.99])
def test_quantile_of_a_categorical_is_that_of_numpy(level):
    returns = critics.categorical_returns(Q_LOGITS, SUPPORT)
    want = np.quantile(returns.atoms, level, axis=-1, method="inverted_cdf", weights=returns.mass)
    assert_allclose(critics.quantile_of(returns, level), want)


@pytest.mark.parametrize("level", [0.05, 0.3, 1.0])
def test_cvar_is_the_best_of_its_linear_program(level):
    """CVaR_α is the largest s - Σ_i p_i·u_i/α with u_i ≥ s - z_i and u_i ≥ 0: Rockafellar and Uryasev's program."""
    optimize = peer("scipy.optimize")
    returns = critics.quantile_returns(RNG.normal(size=(3, 2, 6)), RNG.random((3, 2, 6)))
    got = critics.cvar(returns, level)
    for where in np.ndindex(got.shape):
        z, p = returns.atoms[where], returns.mass[where]
        cost = np.concatenate([[-1], p / level])
        above = np.hstack([np.ones((z.size, 1)), -np.eye(z.size)])
        best = optimize.linprog(cost, above, z, bounds=[(None, None), *[(0, None)] * z.size])
        assert got[where] == pytest.approx(-best.fun, abs=1e-8)


def test_softmax_kl_and_entropy_are_those_of_scipy():
    special, stats = peer("scipy.special"), peer("scipy.stats")
    log_t, log_p = targets.boltzmann(VALUES, 0.5), log_softmax(LOGITS)
    assert_allclose(log_t, special.log_softmax(VALUES / 0.5, -1))
    t, p = np.exp(log_t), np.exp(log_p)
    assert_allclose(kl(log_t, log_p), special.rel_entr(t, p).sum(-1))
    assert_allclose(entropy(log_t), stats.entropy(t, axis=-1))
    masked = targets.boltzmann(VALUES, 0.5, LEGAL)
    assert_allclose(entropy(masked), stats.entropy(np.exp(masked), axis=-1))  # 0·log 0


def test_jensen_shannon_is_that_of_scipy():
    distance = peer("scipy.spatial.distance")
    log_t = targets.boltzmann(VALUES, 0.5, LEGAL)
    p = np.exp(divergences.log_policy(LOGITS, legal=LEGAL))
    got = divergences.jensen_shannon(LOGITS, log_t, legal=LEGAL).value
    assert_allclose(got, distance.jensenshannon(np.exp(log_t), p, axis=-1) ** 2)


def test_z_score_and_ensemble_are_those_of_scipy():
    stats = peer("scipy.stats")
    masked = np.where(LEGAL, VALUES, np.nan)[LEGAL.sum(-1) > 1]
    got = critics.z_score(masked, 1e-9, ~np.isnan(masked))
    want = stats.zscore(masked, axis=-1, nan_policy="omit")
    assert_allclose(got, np.where(np.isnan(masked), 0, want), atol=1e-12)
    assert_allclose(critics.ensemble_mean_minus_std(VALUES, 2.0), VALUES.mean(0) - 2 * stats.tstd(VALUES, ddof=0))


# ---- PyTorch: gradients by automatic differentiation --------------------------------------------------------------


def in_torch(torch, x, log_t, legal, temperature):
    """Each divergence [rows] in the words of PyTorch. Illegal actions have no share in any sum."""
    log_p = torch.log_softmax((x / temperature).masked_fill(~legal, -torch.inf), -1)
    log_p, log_t = (a.masked_fill(~legal, 0.0) for a in (log_p, log_t))
    p, t = (a.exp() * legal for a in (log_p, log_t))
    m = (0.3 * t + 0.7 * p).masked_fill(~legal, 1.0)

    def kl_div(target, log_target, log_input):
        return (legal * torch.nn.functional.kl_div(log_input, log_target, log_target=True, reduction="none")).sum(-1)

    return {
        "forward_kl": kl_div(t, log_t, log_p),
        "reverse_kl": kl_div(p, log_p, log_t),
        "jensen_shannon": 0.3 * kl_div(t, log_t, m.log()) + 0.7 * kl_div(p, log_p, m.log()),
        "hellinger": 1 - (legal * ((log_p + log_t) / 2).exp()).sum(-1),
        "total_variation": (p - t).abs().sum(-1) / 2,
    }


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("name", DIVERGENCES)
def test_divergences_are_those_of_torch(name, temperature):
    torch = peer("torch")
    log_t = targets.boltzmann(VALUES, 0.7, LEGAL)
    x = torch.tensor(LOGITS, requires_grad=True)
    want = in_torch(torch, x, torch.tensor(log_t), torch.tensor(LEGAL), temperature)[name]
    want.sum().backward()
    beta = {"beta": 0.3} if name == "jensen_shannon" else {}
    got = DIVERGENCES[name](LOGITS, log_t, temperature=temperature, legal=LEGAL, **beta)
    assert_allclose(got.value, want.detach().numpy(), atol=1e-12)
    assert_allclose(got.gradient, x.grad.numpy(), atol=1e-12)


def test_gradient_to_the_critic_is_that_of_torch():
    torch = peer("torch")
    q = torch.tensor(Q_LOGITS, requires_grad=True)
    values = (q.softmax(-1) * torch.tensor(SUPPORT)).sum(-1)
    log_t = (values / 0.3).log_softmax(-1)
    log_p = torch.tensor(LOGITS / 2).log_softmax(-1)
    torch.nn.functional.kl_div(log_p, log_t, log_target=True, reduction="sum").backward()
    got = divergences.critic_gradient(Q_LOGITS, SUPPORT, LOGITS, 0.3, 2.0)
    assert_allclose(got, q.grad.numpy(), atol=1e-12)


def test_moments_are_those_of_torch():
    d = peer("torch.distributions")
    torch = peer("torch")
    weights, means = torch.tensor(Q_LOGITS), torch.tensor(RNG.normal(size=Q_LOGITS.shape))
    mixture = d.MixtureSameFamily(d.Categorical(logits=weights), d.Normal(means, 1.0))
    assert_allclose(critics.gaussian_mixture(weights.numpy(), means.numpy()), mixture.mean.numpy())
    # Less the variance of a component, that of the mixture is the variance of a discrete distribution of its means.
    returns = critics.Returns(means.numpy(), weights.softmax(-1).numpy())
    spread = (mixture.variance - 1).sqrt().numpy()
    assert_allclose(critics.mean_minus_std(returns, 1.5), mixture.mean.numpy() - 1.5 * spread)


def test_summary_is_that_of_torch():
    torch = peer("torch")
    log_t, log_p = targets.boltzmann(VALUES, 0.5), log_softmax(LOGITS)
    t, p = torch.tensor(np.exp(log_t)), torch.tensor(np.exp(log_p))
    got = summary.rows(log_t, log_p, log_softmax(PRIOR))
    best = t.argmax(-1, keepdim=True)
    assert_allclose(got.cosine, torch.cosine_similarity(t, p, -1))
    assert_allclose(got.top1_match, (best[:, 0] == p.argmax(-1)).double())
    assert_allclose(got.pi_at_qstar, p.gather(-1, best)[:, 0])
    assert_allclose(got.overlap, torch.minimum(t, p).sum(-1))
    for name, x in (("target_entropy", t), ("policy_entropy", p)):
        assert_allclose(getattr(got, name), torch.distributions.Categorical(x).entropy())


# ---- mctx ---------------------------------------------------------------------------------------------------------


class Node:
    """As much of a search tree as a transform of values looks at: its root."""

    def __init__(self, values, visits, prior, raw_value):
        self.children_visits, self.children_prior_logits, self.raw_values = visits[None], prior[None], raw_value[None]
        self.qvalues = lambda index: values


@pytest.mark.parametrize("actions", [[0, 1, 2, 3, 4, 5, 6], [1, 2, 5]])
@pytest.mark.parametrize(("c_visit", "c_scale"), [(50.0, 0.1), (3.0, 1.0)])
def test_completed_q_is_that_of_mctx(jax, actions, c_visit, c_scale):
    """mctx knows no illegal actions here, so it is shown the legal ones alone."""
    mctx, rng = peer("mctx"), np.random.default_rng(0)
    visits = rng.integers(0, 4, size=VALUES.shape)
    visits[:2] = 0
    raw_value = rng.normal(size=ROWS)
    legal = np.isin(np.arange(ACTIONS), actions)

    @jax.jit
    @jax.vmap
    def improved(*row):
        sigma = mctx.qtransform_completed_by_mix_value(Node(*row), 0, value_scale=c_scale, maxvisit_init=c_visit)
        return jax.nn.log_softmax(row[2] + sigma)

    got = targets.completed_q(VALUES, visits, PRIOR, raw_value, c_visit, c_scale, legal=legal)
    want = improved(VALUES[:, legal], visits[:, legal], PRIOR[:, legal], raw_value)
    assert_allclose(got[:, legal], want, rtol=1e-10, atol=1e-10)


# ---- rlax, distrax, optax -----------------------------------------------------------------------------------------


def test_r2d2_inverse_is_that_of_rlax(jax):
    x = np.concatenate([np.linspace(-300, 300, 61), [1e-3, -1e-3]])
    assert_allclose(critics.r2d2_inverse(x), peer("rlax").signed_parabolic(x), rtol=1e-9, atol=1e-9)


def test_symexp_is_that_of_rlax(jax):
    x = np.linspace(-9, 9, 37)
    assert_allclose(critics.symexp(x), peer("rlax").signed_expm1(x), rtol=1e-12, atol=1e-12)


def test_mpo_and_its_dual_are_those_of_rlax(jax):
    """rlax weighs sampled actions; with every action sampled once it is MPO with a uniform prior."""
    rlax, epsilon, eta = peer("rlax"), 0.1, 0.6

    def dual(alpha):
        penalty = rlax.LagrangePenalty(alpha=alpha, epsilon=jax.numpy.float64(epsilon))
        loss, weights, _ = rlax.mpo_compute_weights_and_temperature_loss(
            sample_q_values=jax.numpy.asarray(VALUES),
            temperature_constraint=penalty,
            projection_operator=lambda x: x,
            sample_axis=1,
        )
        return loss.mean(), weights

    slope, weights = jax.grad(dual, has_aux=True)(jax.numpy.float64(eta))
    uniform = np.zeros(VALUES.shape)
    log_t = targets.mpo(VALUES, eta, uniform)
    assert_allclose(np.exp(log_t), weights, rtol=1e-9)
    assert_allclose(epsilon - kl(log_t, log_softmax(uniform)).mean(), slope, rtol=1e-9)


def test_targets_are_those_of_distrax(jax):
    distrax = peer("distrax")
    assert_allclose(np.exp(targets.boltzmann(VALUES, 0.3)), distrax.Softmax(VALUES, 0.3).probs, rtol=1e-9)
    assert_allclose(np.exp(targets.greedy(TIED)), distrax.Greedy(TIED).probs, atol=1e-12)
    assert_allclose(np.exp(targets.eps_soft(TIED, 0.2)), distrax.EpsilonGreedy(TIED, 0.2).probs, atol=1e-9)


def test_kl_is_that_of_distrax_and_optax(jax):
    distrax, optax = peer("distrax"), peer("optax")
    log_t, log_p = targets.boltzmann(VALUES, 0.5), log_softmax(LOGITS)
    want = distrax.Categorical(log_t).kl_divergence(distrax.Categorical(LOGITS))
    assert_allclose(divergences.forward_kl(LOGITS, log_t).value, want, rtol=1e-9)
    want = distrax.Categorical(LOGITS).kl_divergence(distrax.Categorical(log_t))
    assert_allclose(divergences.reverse_kl(LOGITS, log_t).value, want, rtol=1e-9)
    want = optax.losses.kl_divergence_with_log_targets(log_p, log_t)
    assert_allclose(divergences.forward_kl(LOGITS, log_t).value, want, rtol=1e-9)
    assert_allclose(entropy(log_t), distrax.Categorical(log_t).entropy(), rtol=1e-9)
