"""Action values [..., A] from what a critic puts out.

A critic that describes a distribution gives ``Returns``: atoms and their mass. The value of an action is then the mean,
or a risk measure, of its returns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .simplex import expectation, legal_like, log_softmax, over_legal, per_row

# ---- value transforms ---------------------------------------------------------------------------------------------


def identity(x) -> np.ndarray:
    """The critic speaks in returns."""
    return np.asarray(x, np.float64)


def symexp(x) -> np.ndarray:
    """sign(x)·(e^|x| - 1), the inverse of symlog.

    References
    ----------
    Hafner et al., "Mastering diverse domains through world models", 2023.
    """
    x = np.asarray(x, np.float64)
    return np.sign(x) * np.expm1(np.abs(x))


def r2d2_inverse(x, epsilon: float = 1e-3) -> np.ndarray:
    """Inverse of h(y) = sign(y)·(√(|y| + 1) - 1) + ε·y.

    With v = √(|y| + 1) - 1, h reads ε·v² + (1 + 2ε)·v = |x|. Its root is written such that nothing cancels at x = 0.

    References
    ----------
    Pohlen et al., "Observe and look further", 2018, appendix A; Kapturowski et al. (R2D2), 2019.
    """
    x = np.asarray(x, np.float64)
    slope = 1 + 2 * epsilon
    v = 2 * np.abs(x) / (slope + np.sqrt(slope**2 + 4 * epsilon * np.abs(x)))
    return np.sign(x) * v * (v + 2)


TRANSFORMS = {f.__name__: f for f in (identity, symexp, r2d2_inverse)}

# ---- distributions of the return ----------------------------------------------------------------------------------


class Returns(NamedTuple):
    """A discrete distribution of the return for each action.

    Attributes
    ----------
    atoms : ndarray [..., A, Z]
        Possible returns, in any order.
    mass : ndarray [..., A, Z]
        Their probabilities, which sum to 1.
    """

    atoms: np.ndarray
    mass: np.ndarray


def categorical_returns(q_logits, support, transform=identity) -> Returns:
    """Returns of a critic with fixed atoms (C51, HL-Gauss).

    Parameters
    ----------
    q_logits : array_like [..., A, Z]
    support : array_like [Z], [A, Z] or [..., A, Z]
        The atoms in the critic's own scale.
    transform : callable
        From the critic's scale to returns.

    References
    ----------
    Bellemare, Dabney, Munos, "A distributional perspective on reinforcement learning", 2017, sec. 4.1.
    """
    mass = np.exp(log_softmax(q_logits))
    return Returns(np.broadcast_to(transform(support), mass.shape), mass)


def quantile_returns(quantiles, weights=None, transform=identity) -> Returns:
    """Returns of a critic that puts out N quantiles (QR-DQN, IQN), which may cross.

    Parameters
    ----------
    quantiles : array_like [..., A, N]
    weights : array_like [N] or anything that broadcasts to [..., A, N], optional
        Share of each quantile, ≥ 0, brought to a sum of 1. Default: equal.

    References
    ----------
    Dabney et al., "Distributional reinforcement learning with quantile regression", 2018.
    """
    atoms = transform(quantiles)
    weights = np.broadcast_to(1.0 if weights is None else np.asarray(weights, np.float64), atoms.shape)
    return Returns(atoms, weights / weights.sum(-1, keepdims=True))


def mean(returns: Returns) -> np.ndarray:
    """Σ p·z."""
    return expectation(returns.mass, returns.atoms)


# ---- values -------------------------------------------------------------------------------------------------------

ORDERS = ("transform_of_mean", "mean_of_transformed")


def categorical(q_logits, support, transform=identity, order: str = "transform_of_mean") -> np.ndarray:
    """Expected return of a critic with fixed atoms.

    Parameters
    ----------
    q_logits, support, transform
        As in `categorical_returns`.
    order : {"transform_of_mean", "mean_of_transformed"}
        f(E[Z]), as MuZero and TD-MPC2 do, or E[f(Z)], as DreamerV3 does. They are different numbers.
    """
    if order not in ORDERS:
        raise ValueError(f"order: {order!r} is none of {ORDERS}")
    if order == "mean_of_transformed":
        return mean(categorical_returns(q_logits, support, transform))
    return transform(mean(categorical_returns(q_logits, support)))


def quantile(quantiles, weights=None, transform=identity, order: str = "transform_of_mean") -> np.ndarray:
    """Expected return of a quantile critic: the (weighted) mean of its quantiles. Order as in `categorical`."""
    if order not in ORDERS:
        raise ValueError(f"order: {order!r} is none of {ORDERS}")
    if order == "mean_of_transformed":
        return mean(quantile_returns(quantiles, weights, transform))
    return transform(mean(quantile_returns(quantiles, weights)))


def scalar(q, transform=identity) -> np.ndarray:
    """The critic's output is the value: q [..., A]. There is one order only."""
    return transform(q)


def gaussian_mixture(logits, means) -> np.ndarray:
    """Expected return of a mixture of Gaussians: Σ softmax(logits)·means, both [..., A, K].

    References
    ----------
    Shahriari et al., "Revisiting Gaussian mixture critics in off-policy reinforcement learning", 2022.
    """
    return expectation(np.exp(log_softmax(logits)), np.asarray(means, np.float64))


# ---- risk measures of the return ----------------------------------------------------------------------------------


def _sorted(returns: Returns) -> Returns:
    order = np.argsort(returns.atoms, axis=-1, kind="stable")
    return Returns(*(np.take_along_axis(x, order, -1) for x in returns))


def cvar(returns: Returns, level) -> np.ndarray:
    """Mean of the worst share ``level`` of the returns, (1/α)·Σ z·min(p, max(0, α - F_prev)) over sorted atoms.

    F_prev is the mass below an atom: the atom on the edge counts with the part of its mass that is within.

    Parameters
    ----------
    returns : Returns [..., A, Z]
    level : float
        α in (0, 1]; 1 is the mean.

    References
    ----------
    Rockafellar, Uryasev, "Conditional value-at-risk for general loss distributions", 2002, prop. 8.
    """
    if not 0 < level <= 1:
        raise ValueError(f"level: {level} is outside (0, 1]")
    atoms, mass = _sorted(returns)
    below = np.cumsum(mass, -1) - mass
    return expectation(np.minimum(mass, np.maximum(level - below, 0.0)), atoms) / level


def mean_minus_std(returns: Returns, k: float) -> np.ndarray:
    """E[Z] - k·√Var[Z]."""
    centre = mean(returns)
    variance = expectation(returns.mass, (returns.atoms - centre[..., None]) ** 2)
    return centre - k * np.sqrt(variance)


def quantile_of(returns: Returns, level: float) -> np.ndarray:
    """The smallest atom z with P(Z ≤ z) ≥ level, for a level in (0, 1].

    It jumps from atom to atom as the mass moves: where P(Z ≤ z) is within rounding of the level, two right programs
    may differ by a whole gap between atoms.
    """
    if not 0 < level <= 1:
        raise ValueError(f"level: {level} is outside (0, 1]")
    atoms, mass = _sorted(returns)
    reached = np.cumsum(mass, -1) >= level
    # Rounding may leave the whole mass short of a level of 1: the last atom that has any is it.
    last = mass.shape[-1] - 1 - np.argmax(mass[..., ::-1] > 0, -1)
    index = np.where(reached.any(-1), np.argmax(reached, -1), last)
    return np.take_along_axis(atoms, index[..., None], -1)[..., 0]


# ---- ensembles: the members are the first axis of values [E, ..., A] ----------------------------------------------


def ensemble_mean(values) -> np.ndarray:
    """Mean over the members."""
    return np.mean(np.asarray(values, np.float64), 0)


def ensemble_min(values) -> np.ndarray:
    """The most pessimistic member, action by action.

    References
    ----------
    Fujimoto, van Hoof, Meger (TD3), 2018, sec. 4.2, for two members.
    """
    return np.min(np.asarray(values, np.float64), 0)


def ensemble_mean_minus_std(values, k: float) -> np.ndarray:
    """Mean over the members less k of their standard deviations, as of a whole population (divided by E, not E - 1)."""
    values = np.asarray(values, np.float64)
    return values.mean(0) - k * values.std(0)


# ---- value normalisation ------------------------------------------------------------------------------------------


def _deviations(values, legal) -> tuple[np.ndarray, np.ndarray]:
    """What legal values are off their row's mean, 0 for illegal ones, and the population variance [..., 1]."""
    values = np.asarray(values, np.float64)
    legal = legal_like(values, legal)
    count = np.maximum(legal.sum(-1, keepdims=True), 1)
    off = np.where(legal, values - over_legal(np.sum, values, legal, 0.0) / count, 0.0)
    return off, (off**2).sum(-1, keepdims=True) / count


def z_score(values, min_std: float, legal=None) -> np.ndarray:
    """Per row over the legal actions: (Q - mean)/max(std, min_std), population std. Illegal actions: 0."""
    off, variance = _deviations(values, legal)
    return off / np.maximum(np.sqrt(variance), min_std)


def min_max(values, min_range: float = 1e-8, legal=None) -> np.ndarray:
    """Per row over the legal actions: (Q - min)/max(max - min, min_range), in [0, 1]. Illegal actions: 0."""
    values = np.asarray(values, np.float64)
    legal = legal_like(values, legal)
    low, high = over_legal(np.min, values, legal, np.inf), over_legal(np.max, values, legal, -np.inf)
    low, high = (np.where(legal.any(-1, keepdims=True), x, 0.0) for x in (low, high))
    return np.where(legal, values - low, 0.0) / np.maximum(high - low, min_range)


def by_std(values, std, min_std: float = 0.0) -> np.ndarray:
    """Q/max(std, min_std) with a standard deviation from elsewhere. Not centred: no target sees a shift."""
    return np.asarray(values, np.float64) / per_row(np.maximum(std, min_std))


def batch_std(values, weights=None, legal=None) -> float:
    """√(Σw·Var_row / Σw): how far values are from the mean of *their own row*.

    The differences between rows say nothing about actions; the std over all entries would be mostly those.
    """
    _, variance = _deviations(values, legal)
    return float(np.sqrt(np.average(variance[..., 0], weights=weights)))
