"""The step in float64 NumPy, row by row, and how far a result is from it. Shares no code with the library or a peer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .arrays import InputSet, support_of, widen
from .cases import EPSILON, Case
from .peers import LAW, STATE

MIN_STD = 1e-3


@dataclass(frozen=True)
class Reference:
    """What the rows of one period give.

    Attributes
    ----------
    direction : ndarray, shape [P, A]
        Weight times (policy - target): the gradient at lambda 1, not yet divided by the number of rows.
    kl, weight : ndarray, shape [P]
        KL(target || policy) in nats, and the row's weight.
    """

    direction: np.ndarray
    kl: np.ndarray
    weight: np.ndarray

    def mean_kl(self, rows: int) -> float:
        """The weighted mean of a batch of this many rows."""
        whole, rest = divmod(rows, len(self.kl))

        def total(values: np.ndarray) -> float:
            return whole * values.sum() + values[:rest].sum()

        return float(total(self.weight * self.kl) / total(self.weight))

    def gradient_error(self, grad: np.ndarray, dtype: str, scale: float = 1.0) -> float:
        """The largest distance of a gradient [B, A] from `scale` times the direction. NaN where it holds one."""
        period = len(self.direction)
        exact = scale * self.direction
        parts = (grad[begin : begin + period] for begin in range(0, len(grad), period))
        return float(np.max([np.abs(widen(part, dtype) - exact[: len(part)]).max() for part in parts]))


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def evaluate(case: Case, period: InputSet, tau: float = STATE["tau"]) -> Reference:
    """The reference of a case, from the rows of one period."""
    q, pi = widen(period.q, case.q_dtype), widen(period.pi, case.pi_dtype)
    if "quantile" in case.options:
        values = q.mean(-1)
    else:
        mass = np.exp(q - q.max(-1, keepdims=True))
        values = (mass * support_of(case).astype(np.float64)).sum(-1) / mass.sum(-1)
    legal = np.ones(pi.shape, bool) if period.legal is None else period.legal != 0
    if "running_std" in case.options:  # before the first observation each row's own deviation serves
        deviation = np.nanstd(np.where(legal, values, np.nan), -1, keepdims=True)
        values = values / np.maximum(deviation, MIN_STD)
    log_target = log_softmax(np.where(legal, values / tau, -np.inf))
    if "greedy" in case.options:
        best = values == values.max(-1, keepdims=True)
        log_target = np.log((1 - EPSILON) * best / best.sum(-1, keepdims=True) + EPSILON / case.actions)
    log_policy = log_softmax(np.where(legal, pi, -np.inf))
    target = np.exp(log_target)
    with np.errstate(invalid="ignore"):
        kl = np.where(legal, target * (log_target - log_policy), 0).sum(-1)
    weight = np.ones(len(pi)) if period.weights is None else period.weights.astype(np.float64)
    return Reference(weight[:, None] * direction(case, target, np.exp(log_policy)), kl, weight)


def direction(case: Case, t: np.ndarray, p: np.ndarray) -> np.ndarray:
    """The gradient of the case's divergence with respect to the policy's logits."""
    if "reverse_kl" in case.options:
        slope = np.log(p / t)
    elif "jensen_shannon" in case.options:
        slope = np.log(2 * p / (t + p)) / 2
    elif "hellinger" in case.options:
        slope = -np.sqrt(t / p) / 2
    else:
        return p - t
    return p * (slope - (p * slope).sum(-1, keepdims=True))


def law(lam: float, kl_ema: float) -> float:
    """The next lambda."""
    lam = min(max(lam, LAW["lam_min"]), LAW["lam_max"])
    if kl_ema > STATE["kl_target"] * LAW["kl_tolerance"]:
        return min(lam * LAW["lam_up"], LAW["lam_max"])
    if kl_ema < STATE["kl_target"] / LAW["kl_tolerance"]:
        return max(lam * LAW["lam_down"], LAW["lam_min"])
    return lam
