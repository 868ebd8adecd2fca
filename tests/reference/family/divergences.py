"""How far the policy is from the target, and the gradient of that with respect to the policy's logits x.

The policy is π = softmax(x/T) over the legal actions. With u = π·∂D/∂π, the way back through a softmax is the same for
every divergence: ∂D/∂x = (u - π·Σu)/T. So each of them is two expressions, its value and its u.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .critics import categorical_returns, mean
from .simplex import expectation, kl, legal_actions, log_ratio, log_softmax, per_row, product
from .targets import boltzmann


class Divergence(NamedTuple):
    """A loss to minimise, row by row.

    Attributes
    ----------
    value : ndarray [...]
        In nats for the KL and Jensen–Shannon kinds. ∞ where there is no finite one.
    gradient : ndarray [..., A]
        With respect to the policy's logits; 0 for illegal actions, and in all of a row without a finite value.
    """

    value: np.ndarray
    gradient: np.ndarray


def log_policy(logits, temperature=1.0, legal=None) -> np.ndarray:
    """log π [..., A] of π = softmax(x/T). A logit of -inf makes its action illegal."""
    return log_softmax(np.asarray(logits, np.float64) / per_row(temperature), legal)


def _through_softmax(value, u, log_p, temperature) -> Divergence:
    u = np.where(np.isfinite(value)[..., None], u, 0.0)
    return Divergence(value, (u - np.exp(log_p) * u.sum(-1, keepdims=True)) / per_row(temperature))


def forward_kl(logits, log_target, temperature=1.0, legal=None) -> Divergence:
    """KL(t‖π) = Σ t·(log t - log π). Its gradient is (π - t)/T.

    Parameters
    ----------
    logits : array_like [..., A]
        x. A logit of -inf makes its action illegal.
    log_target : array_like [..., A]
        As the functions of ``targets`` return it, over the same legal actions.
    temperature : float or array_like [...]
        T > 0 of the student. No factor T² is applied: it would be right only for a target softened by the same T.
    legal : array_like [..., A] of bool, optional

    References
    ----------
    Kullback, Leibler, 1951; Hinton, Vinyals, Dean, "Distilling the knowledge in a neural network", 2015.
    """
    log_p = log_policy(logits, temperature, legal)
    return _through_softmax(kl(log_target, log_p), -np.exp(log_target), log_p, temperature)


def reverse_kl(logits, log_target, temperature=1.0, legal=None) -> Divergence:
    """KL(π‖t). Its gradient is π·(r - Σπr)/T with r = log π - log t.

    A softmax is nowhere 0 on a legal action, so a target that is 0 on one has no finite reverse KL: the row is worth ∞
    and its gradient is 0, to be left out and counted. A target that is merely tiny has one, by its logarithm.

    Parameters as in `forward_kl`.
    """
    log_p = log_policy(logits, temperature, legal)
    u = product(np.exp(log_p), log_ratio(log_p, log_target))
    return _through_softmax(kl(log_p, log_target), u, log_p, temperature)


def jensen_shannon(logits, log_target, beta=0.5, temperature=1.0, legal=None) -> Divergence:
    """β·KL(t‖m) + (1-β)·KL(π‖m) with m = β·t + (1-β)·π. Its gradient is (1-β)·π·(r - Σπr)/T, r = log π - log m.

    Never more than the entropy of (β, 1-β), so ln 2 at ½. Divided by β it tends to KL(t‖π) as β → 0, divided by 1-β to
    KL(π‖t) as β → 1. Other parameters as in `forward_kl`.

    Parameters
    ----------
    beta : float
        In (0, 1). At either end value and gradient are 0 whatever the policy.

    References
    ----------
    Lin, "Divergence measures based on the Shannon entropy", 1991; with this β, Agarwal et al. (GKD), 2024.
    """
    if not 0 < beta < 1:
        raise ValueError(f"beta: {beta} is outside (0, 1)")
    log_p = log_policy(logits, temperature, legal)
    log_m = np.logaddexp(np.log(beta) + log_target, np.log1p(-beta) + log_p)
    value = beta * kl(log_target, log_m) + (1 - beta) * kl(log_p, log_m)
    u = (1 - beta) * product(np.exp(log_p), log_ratio(log_p, log_m))
    return _through_softmax(value, u, log_p, temperature)


def hellinger(logits, log_target, temperature=1.0, legal=None) -> Divergence:
    """H² = 1 - S, S = Σ√(t·π), as ½·Σ(√t - √π)², which keeps its digits near 0. Its gradient is ½·(π·S - √(tπ))/T.

    Between 0 and 1. Parameters as in `forward_kl`.

    References
    ----------
    Le Cam, Yang, "Asymptotics in statistics", 2nd ed., 2000, ch. 3.
    """
    log_p = log_policy(logits, temperature, legal)
    value = 0.5 * ((np.exp(log_target / 2) - np.exp(log_p / 2)) ** 2).sum(-1)
    u = -0.5 * np.exp((log_target + log_p) / 2)
    return _through_softmax(value, u, log_p, temperature)


def total_variation(logits, log_target, temperature=1.0, legal=None) -> Divergence:
    """½·Σ|π - t|. Its gradient is ½·π·(s - Σπs)/T with s = sign(π - t), and sign(0) = 0 where it has a kink.

    Between 0 and 1. Parameters as in `forward_kl`.

    References
    ----------
    Levin, Peres, Wilmer, "Markov chains and mixing times", 2009, prop. 4.2.
    """
    log_p = log_policy(logits, temperature, legal)
    gap = np.exp(log_p) - np.exp(log_target)
    u = 0.5 * np.exp(log_p) * np.sign(gap)
    return _through_softmax(0.5 * np.abs(gap).sum(-1), u, log_p, temperature)


DIVERGENCES = {f.__name__: f for f in (forward_kl, reverse_kl, jensen_shannon, hellinger, total_variation)}


def critic_gradient(q_logits, support, logits, tau, temperature=1.0, legal=None) -> np.ndarray:
    """Gradient of KL(t‖π) to a categorical critic's logits [..., A, Z], where t = softmax(E_Q/τ) is no constant.

    ∂KL/∂E_a = t_a·(log t_a - log π_a - KL)/τ and ∂E_a/∂q_az = p_az·(z - E_a).

    Parameters
    ----------
    q_logits, support
        As in ``critics.categorical_returns``.
    logits : array_like [..., A]
        Of the policy.
    tau, temperature : float or array_like [...]
        Of the target and of the policy.
    """
    legal = legal_actions(logits, legal)
    log_p = log_policy(logits, temperature, legal)
    returns = categorical_returns(q_logits, support)
    values = mean(returns)
    log_t = boltzmann(values, tau, legal)
    t, ratio = np.exp(log_t), log_ratio(log_t, log_p)
    to_value = product(t, ratio - expectation(t, ratio)[..., None]) / per_row(tau)
    return to_value[..., None] * returns.mass * (returns.atoms - values[..., None])
