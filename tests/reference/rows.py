"""Rows: from logits to target, policy and KL, in float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Rows:
    """What a batch means, row by row. Illegal actions and rows without a meaning hold zeros.

    ``absent``       weight 0: the row is not there
    ``skipped``      left out whole and counted: bad logits, no legal action, or a bad weight
    ``bad_weight``   those of the skipped rows whose weight is negative or not finite
    ``unsupported``  a legal action has a support value that is not finite
    ``written``      the row has a gradient
    ``counted``      the row is in the statistic
    ``clipped``      its KL is over the bound, or not finite (then it is not counted either)
    """

    legal: np.ndarray  # [B, A] bool
    weight: np.ndarray  # [B]
    absent: np.ndarray  # [B] bool
    skipped: np.ndarray  # [B] bool
    bad_weight: np.ndarray  # [B] bool
    unsupported: np.ndarray  # [B] bool
    written: np.ndarray  # [B] bool
    counted: np.ndarray  # [B] bool
    clipped: np.ndarray  # [B] bool
    values: np.ndarray  # [B, A] expected values
    variance: np.ndarray  # [B] population variance of the legal actions' values
    divisor: np.ndarray  # [B] what values are divided by
    target: np.ndarray  # [B, A]
    policy: np.ndarray  # [B, A]
    log_target: np.ndarray  # [B, A]
    log_policy: np.ndarray  # [B, A]
    raw_kl: np.ndarray  # [B] before the bound; infinite where float32 has no finite value for it
    kl: np.ndarray  # [B] after the bound, 0 where it is not counted


def wide(x) -> np.ndarray:
    """In float64. Signalling NaN (half precision has such bit patterns) make some processors complain on the way."""
    with np.errstate(invalid="ignore"):
        return np.asarray(x).astype(np.float64)


def log_softmax(x: np.ndarray, legal: np.ndarray) -> np.ndarray:
    """Log of the softmax over the legal entries of the last axis; -inf elsewhere. A row needs one legal entry."""
    x = np.where(legal, x, -np.inf)
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def evaluate(
    q_logits,
    pi_logits,
    support,
    *,
    tau: float,
    tau_min: float = 1e-3,
    kl_row_max: float = 100.0,
    min_std: float = 1e-3,
    value_scale: str = "none",
    value_std: float | None = None,
    legal_actions=None,
    row_weights=None,
    illegal_below: float = -np.inf,
) -> Rows:
    """Evaluate ``q_logits`` [B, A, Z], ``pi_logits`` [B, A], ``support`` [Z] or [A, Z].

    ``value_std`` is the running standard deviation, None before its first observation.
    """
    q, pi = wide(q_logits), wide(pi_logits)
    rows, actions, atoms = q.shape
    support = np.broadcast_to(np.asarray(support).astype(np.float64), (actions, atoms))
    weight = np.ones(rows) if row_weights is None else np.asarray(row_weights).astype(np.float64)
    mask = np.ones((rows, actions), bool) if legal_actions is None else np.asarray(legal_actions).astype(bool)

    with np.errstate(invalid="ignore"):
        legal = mask & ~(pi <= illegal_below)
        bad_pi = np.isnan(pi) | (pi == np.inf)
        bad_q = np.isnan(q).any(-1) | (q == np.inf).any(-1) | ~np.isfinite(q).any(-1)
    bad_weight = ~np.isfinite(weight) | (weight < 0)
    absent = weight == 0
    bad_row = ~legal.any(-1) | (legal & (bad_pi | bad_q)).any(-1)
    skipped = ~absent & (bad_weight | bad_row)
    usable = ~absent & ~skipped
    unsupported = usable & (legal & ~np.isfinite(support).all(-1)).any(-1)
    written = usable & ~unsupported

    # Rows without a meaning are computed on harmless numbers and zeroed afterwards.
    shown = legal | ~written[:, None]
    q = np.where((shown & written[:, None])[:, :, None], q, 0.0)
    pi = np.where(shown & written[:, None], pi, 0.0)
    safe_support = np.where(np.isfinite(support), support, 0.0)

    p_atom = np.exp(log_softmax(q, np.ones_like(q, bool)))
    values = (p_atom * safe_support).sum(-1)
    count = shown.sum(-1)
    centre = np.where(shown, values, 0).sum(-1) / count
    variance = (np.where(shown, values - centre[:, None], 0) ** 2).sum(-1) / count

    if value_scale == "none":
        divisor = np.ones(rows)
    elif value_std is None:
        divisor = np.maximum(np.sqrt(variance), min_std)
    else:
        divisor = np.full(rows, max(value_std, min_std))

    top = np.where(shown, values, -np.inf).max(-1, keepdims=True)
    log_target = log_softmax((values - top) / (max(tau, tau_min) * divisor[:, None]), shown)
    log_policy = log_softmax(pi, shown)
    target, policy = np.exp(log_target), np.exp(log_policy)
    with np.errstate(invalid="ignore"):
        kl = np.where(target > 0, target * (log_target - log_policy), 0.0).sum(-1)
    kl = np.maximum(kl, 0.0)

    # In float32 the gap between two huge finite logits overflows, and where the target has mass there, so does the KL:
    # a sum of e^u (u - v), with u = 0 for the largest target, before it is divided by the sum of e^u.
    gap = np.where(shown, pi, -np.inf).max(-1, keepdims=True) - pi
    endless = (shown & (target > 1e-38) & (gap > FLOAT32_MAX)).any(-1) | (kl / target.max(-1) > FLOAT32_MAX)
    counted = written & ~endless
    clipped = written & (endless | (kl > kl_row_max))

    keep = written[:, None] & legal
    return Rows(
        legal=legal,
        weight=np.where(bad_weight, 0.0, weight),
        absent=absent,
        skipped=skipped,
        bad_weight=bad_weight,
        unsupported=unsupported,
        written=written,
        counted=counted,
        clipped=clipped,
        values=np.where(keep, values, 0.0),
        variance=np.where(written, variance, 0.0),
        divisor=divisor,
        target=np.where(keep, target, 0.0),
        policy=np.where(keep, policy, 0.0),
        log_target=np.where(keep, log_target, 0.0),
        log_policy=np.where(keep, log_policy, 0.0),
        raw_kl=np.where(written, np.where(endless, np.inf, kl), 0.0),
        kl=np.where(counted, np.minimum(kl, kl_row_max), 0.0),
    )
