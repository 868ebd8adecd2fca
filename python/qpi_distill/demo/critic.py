"""The categorical critic (C51): Q(s, a) as a distribution over fixed atoms.

The critic learns from a distributional λ-return under the current policy,

    Z_t = Π( r_t + gamma · [ (1 - λ) · Z^π(s_{t+1}) + λ · Z_{t+1} ] ),    Z^π(s) = Σ_a π(a|s) · Z(s, a)

where + and · act on the atoms' positions, the bracket is a mixture of distributions and Π projects onto the atoms
(Bellemare, Dabney and Munos, 2017). Where the support is wide enough Π keeps the mean, so E[Z_t] is the λ-return.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .networks import Array


def softmax(x: Array) -> Array:
    """Softmax over the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    e /= e.sum(axis=-1, keepdims=True)
    return e


def project(support: Array, shift: Array, scale: Array, mass: Array) -> Array:
    """Project atoms that moved to `shift + scale · support` back onto the support.

    Parameters
    ----------
    support : numpy.ndarray
        Evenly spaced ascending atoms, `[Z]`, Z at least 2.
    shift, scale : numpy.ndarray
        Reward and discount of each row, `[N]`.
    mass : numpy.ndarray
        Probability of each atom, `[N, Z]`.

    Returns
    -------
    numpy.ndarray
        `[N, Z]`. Mass between two atoms is split in proportion to the distances, so that the mean stays; mass
        beyond the ends goes to the end atoms.
    """
    low, high = support[0], support[-1]
    step = (high - low) / (support.size - 1)
    moved = np.clip(shift[:, None] + scale[:, None] * support, low, high)
    # share[n, i, j]: how much of moved atom j falls to atom i, a triangle of half-width one step
    share = 1.0 - np.abs(moved[:, None, :] - support[None, :, None]) / step
    np.maximum(share, 0, out=share)
    return np.matmul(share, mass[:, :, None])[:, :, 0]


def lambda_distributions(
    support: Array,
    rewards: Array,
    terminated: NDArray[np.bool_],
    done: NDArray[np.bool_],
    next_mass: Array,
    gamma: float,
    lam: float,
) -> Array:
    """Targets of the critic along a rollout: the recursion of the module's docstring, backwards in time.

    Parameters
    ----------
    support : numpy.ndarray
        Atoms, `[Z]`.
    rewards : numpy.ndarray
        `[T, N]`.
    terminated, done : numpy.ndarray of bool
        `[T, N]`. The episode ended here in a terminal state; ended here at all (a time limit as well).
    next_mass : numpy.ndarray
        Z^π of the state that followed, `[T, N, Z]`: of an episode's last state where it ended at a time limit.
    gamma, lam : float
        Discount and λ.

    Returns
    -------
    numpy.ndarray
        `[T, N, Z]`.
    """
    targets = np.empty_like(next_mass)
    later = next_mass[-1]
    for t in range(len(rewards) - 1, -1, -1):
        keep = np.where(done[t], 0.0, lam).astype(next_mass.dtype)[:, None]
        bootstrap = next_mass[t] + keep * (later - next_mass[t])
        scale = np.where(terminated[t], 0.0, gamma).astype(next_mass.dtype)
        later = targets[t] = project(support, rewards[t], scale, bootstrap)
    return targets


def cross_entropy_grad(q_logits: Array, actions: NDArray[np.integer], targets: Array) -> tuple[float, Array]:
    """Cross entropy between target distributions and the taken actions' predictions, batch mean.

    Parameters
    ----------
    q_logits : numpy.ndarray
        `[B, A, Z]`.
    actions : numpy.ndarray of int
        `[B]`.
    targets : numpy.ndarray
        `[B, Z]`.

    Returns
    -------
    loss : float
    grad : numpy.ndarray
        With respect to `q_logits`, `[B, A, Z]`; zero for the actions not taken.
    """
    rows = np.arange(len(actions))
    taken = q_logits[rows, actions]
    taken = taken - taken.max(axis=-1, keepdims=True)
    log_p = taken - np.log(np.exp(taken).sum(axis=-1, keepdims=True))
    loss = -float((targets * log_p).sum()) / len(actions)
    grad = np.zeros_like(q_logits)
    grad[rows, actions] = (np.exp(log_p) - targets) / len(actions)
    return loss, grad
