"""How far float32 arithmetic may be from the reference.

One source of error matters: the expected value. It is a sum over atoms of float32 terms whose size is the support's
half width (the sum is taken about the middle), and the target's logits are this value over tau. Everything after it is
a softmax and a logarithm, good to a few units in the last place.
"""

from __future__ import annotations

import numpy as np

from .loop import Loop, Options
from .rows import Rows

EPS = float(np.finfo(np.float32).eps)
BASE = 2e-6


def reach(support) -> float:
    """Largest distance of a finite support value from the middle of the (first) support's ends."""
    support = np.atleast_2d(np.nan_to_num(np.asarray(support).astype(np.float64), posinf=0, neginf=0))
    return float(np.abs(support - (support[0, 0] + support[0, -1]) / 2).max())


def value_error(support) -> float:
    """Bound on the error of an expected value: rounding of each term and of each partial sum."""
    support = np.asarray(support)
    return EPS * reach(support) * (6 + 0.5 * np.sqrt(support.shape[-1]))


def logit_error(rows: Rows, support, tau: float, value_scale: str) -> np.ndarray:
    """[B]: bound on the error of the target's logits, that of the divisor included."""
    error = value_error(support) / (tau * rows.divisor)
    if value_scale != "none":
        spread = np.where(rows.legal, rows.values, 0).max(-1) - np.where(rows.legal, rows.values, 0).min(-1)
        error = error * (1 + 2 * spread / rows.divisor)
    return error


def gradient_tolerance(rows: Rows, loop: Loop, options: Options, support, before, grad_scale=None) -> np.ndarray:
    """[B, A]: bound on the error of a float32 gradient buffer."""
    tau = max(float(loop["tau"]), float(loop["tau_min"]))
    scale = abs(1.0 if grad_scale is None else float(grad_scale))
    if options.reduction == "mean":
        scale /= len(rows.weight)
    factor = scale * float(loop["lam"]) * rows.weight[:, None]
    # d target = target (1 - target) d logit, once for the own logit and once for the others'
    error = logit_error(rows, support, tau, options.value_scale)[:, None]
    step = factor * (BASE + np.minimum(2 * rows.target * (1 - rows.target) * error, 1))
    return step + 2 * EPS * np.abs(np.nan_to_num(np.asarray(before).astype(np.float64))) + 1e-44


def kl_tolerance(rows: Rows, loop: Loop, options: Options, support) -> np.ndarray:
    """[B]: bound on the error of each row's KL, before it is clipped."""
    tau = max(float(loop["tau"]), float(loop["tau_min"]))
    error = logit_error(rows, support, tau, options.value_scale)
    gap = rows.log_target - rows.log_policy
    kl = np.where(np.isfinite(rows.raw_kl), rows.raw_kl, 0)
    slope = (rows.target * np.abs(gap - kl[:, None])).sum(-1)
    size = (rows.target * (np.abs(rows.log_target) + np.abs(rows.log_policy))).sum(-1)
    # A target below e^-87 of the largest is 0 in the library; its share is lost where the policy's logit is huge.
    lost = np.exp(-87) * np.abs(rows.log_policy).sum(-1)
    return BASE * np.maximum(1, kl) + 2 * error * slope + 2 * error**2 + 8 * EPS * size + lost


def variance_tolerance(rows: Rows, support) -> np.ndarray:
    """[B]: bound on the error of each row's variance of values."""
    error = value_error(support)
    noise = (1e-14 * float(np.abs(np.nan_to_num(support, posinf=0, neginf=0)).max())) ** 2  # the reference's own
    return 4 * np.sqrt(rows.variance) * error + 2 * error**2 + 8 * EPS * rows.variance + noise + 1e-37


def one_ulp(x: np.ndarray, dtype) -> np.ndarray:
    """One unit in the last place of a half-precision buffer at x (a rounding that goes the other way); 0 in float32."""
    name = np.dtype(dtype).name
    if name == "float32":
        return np.zeros_like(x)
    digits, smallest = {"float16": (10, -24), "bfloat16": (7, -133)}[name]
    exponent = np.floor(np.log2(np.maximum(np.abs(x), 2.0**-140)))
    return np.maximum(2.0 ** (exponent - digits), 2.0**smallest)
