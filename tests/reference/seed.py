"""The two seed kernels, operation by operation, in the precision asked for."""

from __future__ import annotations

import numpy as np

LAM, TAU, KL_EMA, KL_TARGET, KL_ALPHA = 486, 487, 488, 491, 493


def softmax(x: np.ndarray, divisor=None) -> np.ndarray:
    """Softmax over the last axis as the kernels do it: a maximum that drops NaN, terms added in order."""
    kind = x.dtype.type
    x = x - np.fmax.reduce(x, axis=-1, keepdims=True)
    p = np.exp(x if divisor is None else x / divisor)
    total = kind(0)
    for i in range(x.shape[-1]):
        total = total + p[..., i]
    return p * np.where(total > kind(1e-9), kind(1) / total, kind(1) / kind(x.shape[-1]))[..., None]


def seed_distill_grad(q_logits, pi_logits, support, isv, grad, dtype=np.float64) -> tuple[np.ndarray, np.ndarray]:
    """The first kernel. Returns the gradient buffer and the bus after it, both in ``dtype``."""
    kind = np.dtype(dtype).type
    q, pi, support = (np.asarray(x).astype(dtype) for x in (q_logits, pi_logits, support))
    isv, grad = np.array(isv, dtype), np.array(grad, dtype)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        p = softmax(q)
        values = kind(0)
        for z in range(q.shape[-1]):
            values = values + p[..., z] * support[z]
        target = softmax(values, np.fmax(isv[TAU], kind(np.float32(1e-3))))
        policy = softmax(pi)
        if isv[LAM] > 0:
            grad += isv[LAM] * (policy - target)
        floor = kind(np.float32(1e-12))
        kl = kind(0)
        for pt, pn in zip(target[0], np.fmax(policy[0], floor), strict=True):
            if pt > floor:
                kl = kl + pt * np.log(pt / pn)
        old, alpha = isv[KL_EMA], isv[KL_ALPHA]
        isv[KL_EMA] = kl if old == 0 else (kind(1) - alpha) * old + alpha * kl
    return grad, isv


def seed_lambda_controller(isv) -> np.ndarray:
    """The second kernel, in float32. Returns the bus after it."""
    f32 = np.float32
    isv = np.array(isv, f32)
    kl, target, lam = isv[KL_EMA], isv[KL_TARGET], isv[LAM]
    if kl <= 0 or target <= 0 or lam <= 0:
        return isv
    if kl > target * f32(3):
        lam = np.fmin(f32(1), lam * f32(1.2))
    elif kl < target / f32(3):
        lam = np.fmax(f32(0.05), lam * f32(0.998))
    isv[LAM] = lam
    return isv
