"""Probabilities over the legal actions."""

from __future__ import annotations

import numpy as np


def per_row(x) -> np.ndarray:
    """A scalar, or an array of one entry per row, so that it broadcasts against [..., A]."""
    return np.asarray(x, np.float64)[..., None]


def legal_like(x: np.ndarray, legal=None) -> np.ndarray:
    """The mask in the shape of x [..., A]; all true if there is none."""
    return np.ones(x.shape, bool) if legal is None else np.broadcast_to(np.asarray(legal, bool), x.shape)


def legal_actions(logits, legal=None) -> np.ndarray:
    """The mask that a policy's logits [..., A] make with it: a logit of -inf is an illegal action too."""
    logits = np.asarray(logits, np.float64)
    return legal_like(logits, legal) & ~np.isneginf(logits)


def over_legal(reduction, x, legal, empty: float) -> np.ndarray:
    """``np.max``, ``np.min`` or ``np.sum`` over the legal entries of the last axis, which it keeps."""
    return reduction(x, axis=-1, keepdims=True, where=legal, initial=empty)


def log_softmax(x, legal=None) -> np.ndarray:
    """Log of the softmax over the legal entries of the last axis.

    Parameters
    ----------
    x : array_like [..., A]
        Logits. Those of illegal entries may be anything; -inf is a probability of 0.
    legal : array_like [..., A] of bool, optional

    Returns
    -------
    ndarray [..., A]
        -inf where an entry is illegal, and in all of a row that has no entry above -inf.
    """
    x = np.asarray(x, np.float64)
    legal = legal_actions(x, legal)
    top = over_legal(np.max, x, legal, -np.inf)
    shifted = np.subtract(x, top, out=np.full(x.shape, -np.inf), where=legal)
    total = np.exp(shifted).sum(-1, keepdims=True)
    return np.subtract(shifted, np.log(total, where=total > 0, out=np.zeros_like(total)))


def log_ratio(log_p: np.ndarray, log_q: np.ndarray) -> np.ndarray:
    """log(p / q), and 0 where both p and q are 0."""
    somewhere = ~(np.isneginf(log_p) & np.isneginf(log_q))
    return np.subtract(log_p, log_q, out=np.zeros(np.broadcast_shapes(log_p.shape, log_q.shape)), where=somewhere)


def product(p, x) -> np.ndarray:
    """p · x, and 0 where p is 0, whatever x is there."""
    p, x = np.broadcast_arrays(p, x)
    return np.multiply(p, x, out=np.zeros(p.shape), where=p != 0)


def expectation(p, x) -> np.ndarray:
    """Σ p·x over the last axis, with 0 · ∞ = 0."""
    return product(p, x).sum(-1)


def entropy(log_p: np.ndarray) -> np.ndarray:
    """-Σ p log p over the last axis, in nats."""
    return -expectation(np.exp(log_p), log_p)


def kl(log_p: np.ndarray, log_q: np.ndarray) -> np.ndarray:
    """KL(p‖q) over the last axis, in nats; ∞ where q is 0 and p, by its logarithm, is not. Rounding leaves it ≥ 0."""
    finite = np.maximum(expectation(np.exp(log_p), log_ratio(log_p, log_q)), 0.0)
    return np.where((np.isneginf(log_q) & ~np.isneginf(log_p)).any(-1), np.inf, finite)
