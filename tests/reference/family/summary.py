"""What a batch reports of target and policy: weighted means over the rows that count."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .simplex import entropy, kl


@dataclass(frozen=True)
class RowSummary:
    """The numbers of each row, all [...].

    Best actions are a set: all that share the largest probability. ``top1_match`` says whether the sets of target and
    policy have an action in common, and ``pi_at_qstar`` is the largest probability that the policy gives to one of the
    target's best; so they match exactly where ``pi_at_qstar`` is the policy's largest probability.
    """

    kl: np.ndarray  # KL(target‖policy), nats, unscaled whatever the loss is
    target_entropy: np.ndarray  # nats
    policy_entropy: np.ndarray  # nats
    uniform_entropy: np.ndarray  # log of the number of legal actions
    top1_match: np.ndarray  # 0 or 1
    pi_at_qstar: np.ndarray  # policy at the target's best action
    logpi_at_qstar: np.ndarray  # its logarithm, which cannot underflow
    target_at_pistar: np.ndarray  # target at the policy's best action
    overlap: np.ndarray  # Σ min(t, π) = 1 - total variation
    cosine: np.ndarray  # Σ t·π / (‖t‖·‖π‖)
    prior_kl: np.ndarray | None  # KL(target‖prior), nats; None without a prior


def rows(log_target, log_policy, log_prior=None) -> RowSummary:
    """Row by row, from log probabilities [..., A] that are -inf for illegal actions.

    ``log_prior`` is normalised over the legal actions like the other two.
    """
    log_t, log_p = np.asarray(log_target, np.float64), np.asarray(log_policy, np.float64)
    t, p = np.exp(log_t), np.exp(log_p)
    legal = ~np.isneginf(log_p)
    best_of_target = legal & (log_t == log_t.max(-1, keepdims=True))
    best_of_policy = legal & (log_p == log_p.max(-1, keepdims=True))
    log_at = np.max(log_p, -1, where=best_of_target, initial=-np.inf)
    norms = np.sqrt((t**2).sum(-1) * (p**2).sum(-1))
    return RowSummary(
        kl=kl(log_t, log_p),
        target_entropy=entropy(log_t),
        policy_entropy=entropy(log_p),
        uniform_entropy=np.log(np.maximum(legal.sum(-1), 1)),
        top1_match=(best_of_target & best_of_policy).any(-1).astype(np.float64),
        pi_at_qstar=np.exp(log_at),
        logpi_at_qstar=log_at,
        target_at_pistar=np.max(t, -1, where=best_of_policy, initial=0.0),
        overlap=np.minimum(t, p).sum(-1),
        cosine=np.divide((t * p).sum(-1), norms, out=np.zeros(norms.shape), where=norms > 0),
        prior_kl=None if log_prior is None else kl(log_t, np.asarray(log_prior, np.float64)),
    )


def effective_rows(weights) -> float:
    """(Σw)²/Σw², the number of equal weights that would be as good; 0 if there is no weight.

    References
    ----------
    Kish, "Survey sampling", 1965.
    """
    weights = np.asarray(weights, np.float64)
    most = weights.max(initial=0.0)
    if most == 0:
        return 0.0
    share = weights / most  # squares of very small or large weights neither vanish nor overflow
    return float(share.sum() ** 2 / (share**2).sum())


def batch(log_target, log_policy, weights=None, counted=None, log_prior=None) -> dict[str, float]:
    """Σw·x/Σw over the counted rows, for every x of `RowSummary`, and the count and effective number of rows.

    Parameters
    ----------
    log_target, log_policy : array_like [..., A]
    weights : array_like [...], optional
        w ≥ 0 of each row; default 1. A row of weight 0 is not there.
    counted : array_like [...] of bool, optional
        False leaves a row out, whatever is in it.
    log_prior : array_like [..., A], optional

    Returns
    -------
    dict
        By name: nan for each mean where no row has weight. ``rows`` and ``effective_rows`` come along.
    """
    shape = np.shape(log_policy)[:-1]
    weights = np.ones(shape) if weights is None else np.broadcast_to(np.asarray(weights, np.float64), shape)
    counted = np.ones(shape, bool) if counted is None else np.broadcast_to(np.asarray(counted, bool), shape)
    # A row that does not count may hold anything, so it is taken out before anything is computed.
    counted = counted & (weights > 0)
    log_prior = None if log_prior is None else np.asarray(log_prior)[counted]
    each = rows(np.asarray(log_target)[counted], np.asarray(log_policy)[counted], log_prior)
    w = weights[counted]
    means = {
        name: float((w * x).sum() / w.sum()) if w.size else float("nan")
        for name, x in vars(each).items()
        if x is not None
    }
    return {**means, "rows": float(w.size), "effective_rows": effective_rows(w)}
