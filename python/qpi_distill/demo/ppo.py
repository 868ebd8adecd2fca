"""Proximal policy optimisation (Schulman et al., 2017): advantages and the gradients of its losses."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .networks import Array


def log_softmax(x: Array) -> Array:
    """Log-softmax over the last axis."""
    y = x - x.max(axis=-1, keepdims=True)
    y -= np.log(np.exp(y).sum(axis=-1, keepdims=True))
    return y


def sample(rng: np.random.Generator, logits: Array) -> NDArray[np.int64]:
    """Draw one action per row of `logits` (`[N, A]`)."""
    edges = np.cumsum(np.exp(log_softmax(logits)), axis=-1)
    # scaled by the last edge: rounding must not let a draw fall beyond it
    draw = rng.random((len(logits), 1)) * edges[:, -1:]
    return np.minimum((draw >= edges).sum(axis=-1), logits.shape[-1] - 1)


def advantages(
    rewards: Array,
    values: Array,
    next_values: Array,
    terminated: NDArray[np.bool_],
    done: NDArray[np.bool_],
    gamma: float,
    lam: float,
) -> Array:
    """Generalised advantage estimates (Schulman et al., 2016), all arrays `[T, N]`.

    `next_values` are of the state that followed: of an episode's last state where it ended at a time limit, which
    `done` marks and `terminated` does not.
    """
    result = np.empty_like(values)
    running = np.zeros_like(values[0])
    delta = rewards + gamma * np.where(terminated, 0, next_values) - values
    for t in range(len(rewards) - 1, -1, -1):
        running = result[t] = delta[t] + gamma * lam * np.where(done[t], 0, running)
    return result


def policy_grad(
    logits: Array,
    actions: NDArray[np.integer],
    old_log_prob: Array,
    advantage: Array,
    *,
    clip: float,
    entropy_coef: float,
    out: Array,
) -> tuple[float, float]:
    """Clipped surrogate with an entropy bonus, batch mean, and its gradient.

        L = -mean_b min(r·A, clamp(r, 1 ± clip)·A) - entropy_coef · mean_b H(π),    r = π(a|s) / π_old(a|s)

    Parameters
    ----------
    logits : numpy.ndarray
        `[B, A]`.
    actions : numpy.ndarray of int
        `[B]`.
    old_log_prob, advantage : numpy.ndarray
        `[B]`.
    clip, entropy_coef : float
        Width of the trust region and weight of the entropy.
    out : numpy.ndarray
        Gradient with respect to `logits`, `[B, A]`; overwritten.

    Returns
    -------
    loss, entropy : float
        L, and the mean entropy of the policy in nats.
    """
    rows = np.arange(len(actions))
    log_p = log_softmax(logits)
    p = np.exp(log_p)
    entropy = -(p * log_p).sum(axis=-1)
    ratio = np.exp(log_p[rows, actions] - old_log_prob)
    free = ratio * advantage
    bound = np.clip(ratio, 1 - clip, 1 + clip) * advantage
    loss = -float(np.minimum(free, bound).mean()) - entropy_coef * float(entropy.mean())

    # where the clamp is the smaller one, the surrogate does not depend on the logits
    slope = np.where(free <= bound, free, 0)
    np.multiply(p, slope[:, None], out=out)
    out[rows, actions] -= slope
    out += entropy_coef * p * (log_p + entropy[:, None])
    out /= len(actions)
    return loss, float(entropy.mean())


def value_grad(values: Array, returns: Array) -> tuple[float, Array]:
    """Half the mean squared error of `values` (`[B]`), and its gradient."""
    error = values - returns
    return 0.5 * float(np.mean(error * error)), error / len(error)
