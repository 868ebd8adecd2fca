"""The log of a target policy [..., A] from action values [..., A].

The target is a distribution over the legal actions of a row: -inf elsewhere. It is a constant to whoever learns from
it, and so is every prior here.
"""

from __future__ import annotations

import numpy as np

from .critics import min_max
from .simplex import expectation, legal_like, log_softmax, over_legal, per_row


def _below_best(values, legal: np.ndarray) -> np.ndarray:
    """Values less the best legal one. No target sees the shift, and dividing by a small τ cannot overflow upwards."""
    values = np.asarray(values, np.float64)
    best = over_legal(np.max, values, legal, -np.inf)
    return np.subtract(values, best, out=np.zeros(values.shape), where=legal)


def boltzmann(values, tau, legal=None) -> np.ndarray:
    """t ∝ exp(Q/τ), the policy of highest Σ t·Q + τ·H(t).

    Parameters
    ----------
    values : array_like [..., A]
    tau : float or array_like [...]
        Temperature > 0 in the unit of the values; ∞ is the uniform policy.
    legal : array_like [..., A] of bool, optional

    Returns
    -------
    ndarray [..., A]
        log t.
    """
    legal = legal_like(np.asarray(values), legal)
    with np.errstate(over="ignore"):  # to -inf: the probability is 0
        return log_softmax(_below_best(values, legal) / per_row(tau), legal)


def mpo(values, eta, prior_logits, legal=None) -> np.ndarray:
    """t ∝ prior·exp(Q/η) over the legal actions, the policy of highest Σ t·Q - η·KL(t‖prior).

    Parameters
    ----------
    values, prior_logits : array_like [..., A]
        A prior logit of -inf leaves an action without a share in the target.
    eta : float or array_like [...]
        Temperature > 0 in the unit of the values; ∞ is the prior.

    References
    ----------
    Abdolmaleki et al., "Maximum a posteriori policy optimisation", 2018.
    """
    prior_logits = np.asarray(prior_logits, np.float64)
    allowed = legal_like(prior_logits, legal) & ~np.isneginf(prior_logits)
    with np.errstate(over="ignore"):
        return log_softmax(log_softmax(prior_logits, allowed) + _below_best(values, allowed) / per_row(eta), allowed)


def greedy(values, legal=None) -> np.ndarray:
    """All on the best legal action, in equal parts where several are best."""
    values = np.asarray(values, np.float64)
    legal = legal_like(values, legal)
    best = legal & (values == over_legal(np.max, values, legal, -np.inf))
    return log_softmax(np.zeros(values.shape), best)


def eps_soft(values, epsilon, legal=None) -> np.ndarray:
    """ε·uniform + (1 - ε)·greedy over the legal actions, ε in [0, 1].

    References
    ----------
    Sutton, Barto, "Reinforcement learning", 2nd ed., 2018, sec. 5.4.
    """
    values = np.asarray(values, np.float64)
    uniform, best = log_softmax(np.zeros(values.shape), legal), greedy(values, legal)
    epsilon = per_row(epsilon)
    with np.errstate(divide="ignore"):
        return np.log(epsilon * np.exp(uniform) + (1 - epsilon) * np.exp(best))


def clipped_advantage(values, prior_logits, std, clip: float = 1.0, legal=None) -> np.ndarray:
    """t ∝ prior·exp(clip((Q - Σ prior·Q)/σ, ±c)), the clipped MPO target of Muesli.

    Parameters
    ----------
    values, prior_logits : array_like [..., A]
    std : float or array_like [...]
        σ > 0, the scale of the advantages. It comes from the last commit and not from this batch.
    clip : float
        c > 0. No action gains or loses more than e^±c against another by more than e^2c.

    Notes
    -----
    The baseline does not drop out as in a plain softmax, because it decides which advantages are clipped.

    References
    ----------
    Hessel et al., "Muesli: combining improvements in policy optimization", 2021.
    """
    prior_logits = np.asarray(prior_logits, np.float64)
    log_prior = log_softmax(prior_logits, legal)
    legal = legal_like(prior_logits, legal)
    shifted = _below_best(values, legal)
    advantage = shifted - expectation(np.exp(log_prior), shifted)[..., None]
    return log_softmax(log_prior + np.clip(advantage / per_row(std), -clip, clip), legal)


def mixed_value(values, visits, prior_logits, raw_value, legal=None) -> np.ndarray:
    """v_mix [...]: the raw value v and the visited actions' values, (v + ΣN · Σ π·Q / Σ π)/(1 + ΣN).

    The sums with π go over visited actions. Without visits it is v.

    References
    ----------
    Danihelka et al., "Policy improvement by planning with Gumbel", 2022, appendix D.
    """
    values, visits = np.asarray(values, np.float64), np.asarray(visits, np.float64)
    legal = legal_like(values, legal)
    visits = np.where(legal, visits, 0.0)
    # Renormalised over the visited actions, which keeps its digits where the prior all but excludes them.
    share = np.exp(log_softmax(prior_logits, legal & (visits > 0)))
    total = visits.sum(-1)
    return (np.asarray(raw_value, np.float64) + total * expectation(share, values)) / (1 + total)


def completed_q(
    values,
    visits,
    prior_logits,
    raw_value,
    c_visit: float = 50.0,
    c_scale: float = 0.1,
    min_range: float = 1e-8,
    legal=None,
) -> np.ndarray:
    """t = softmax(prior_logits + σ(completed Q)), the improved policy of Gumbel MuZero.

    Unvisited actions get v_mix for a value; values are then brought to [0, 1] by the smallest and largest of the row's
    legal ones; σ(q) = (c_visit + max N)·c_scale·q.

    Parameters
    ----------
    values : array_like [..., A]
        Q of the visited actions; those of the others are not looked at.
    visits : array_like [..., A]
        N ≥ 0.
    prior_logits : array_like [..., A]
    raw_value : float or array_like [...]
        v, what the value network says of the state.
    c_visit, c_scale : float
        How soon, and how much, values outweigh the prior.
    min_range : float
        The least that the range of the values is taken for.

    References
    ----------
    Danihelka, Guez, Schrittwieser, Silver, "Policy improvement by planning with Gumbel", 2022.
    """
    values, visits = np.asarray(values, np.float64), np.asarray(visits, np.float64)
    legal = legal_like(values, legal)
    v_mix = mixed_value(values, visits, prior_logits, raw_value, legal)
    completed = np.where(visits > 0, values, v_mix[..., None])
    most = over_legal(np.max, visits, legal, 0.0)
    return log_softmax(
        np.asarray(prior_logits) + (c_visit + most) * c_scale * min_max(completed, min_range, legal), legal
    )
