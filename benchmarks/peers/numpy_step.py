"""The step in vectorised NumPy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from . import LAW, STATE


@dataclass
class State:
    """What the loop moves."""

    lam: float = STATE["lam"]
    kl_ema: float = 0.0
    observations: int = 0


def step(q: np.ndarray, pi: np.ndarray, support: np.ndarray, grad: np.ndarray, state: State) -> None:
    """One step: q [B, A, Z], pi and grad [B, A], support [Z], all float32."""
    weights = np.exp(q - q.max(-1, keepdims=True))
    values = weights @ support / weights.sum(-1)
    log_target = log_softmax(values / np.float32(STATE["tau"]))
    log_policy = log_softmax(pi)
    target = np.exp(log_target)
    grad += np.float32(state.lam / len(q)) * (np.exp(log_policy) - target)
    kl = float(np.einsum("ba,ba->", target, log_target - log_policy)) / len(q)
    alpha = STATE["kl_alpha"] if state.observations else 1.0
    state.kl_ema += alpha * (kl - state.kl_ema)
    state.observations += 1
    state.lam = control(min(max(state.lam, LAW["lam_min"]), LAW["lam_max"]), state.kl_ema)


def log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def control(lam: float, kl: float) -> float:
    if kl > STATE["kl_target"] * LAW["kl_tolerance"]:
        return min(lam * LAW["lam_up"], LAW["lam_max"])
    if kl < STATE["kl_target"] / LAW["kl_tolerance"]:
        return max(lam * LAW["lam_down"], LAW["lam_min"])
    return lam
