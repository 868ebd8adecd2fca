"""A multilayer perceptron with several heads, its gradients, and Adam, in NumPy.

All parameters of a network are views into one flat vector and all gradients into another, so clipping and the
optimiser are a handful of vector operations, whatever the number of layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[np.floating]


def orthogonal(rng: np.random.Generator, rows: int, cols: int, gain: float) -> NDArray[np.float64]:
    """Draw a `[rows, cols]` matrix with orthonormal rows or columns, times `gain`."""
    tall = rng.standard_normal((max(rows, cols), min(rows, cols)))
    q, r = np.linalg.qr(tall)
    q *= np.sign(np.diag(r))
    return gain * (q if rows >= cols else q.T)


class Network:
    """ReLU trunk with linear heads.

    Parameters
    ----------
    inputs : int
        Features of an observation.
    hidden : sequence of int
        Width of each trunk layer.
    heads : mapping of str to (int, float)
        Name of each head, with its width and the gain of its initial weights.
    rng : numpy.random.Generator
        Source of the initial weights.
    dtype : dtype-like
        Type of parameters and activations. Default float32; float64 is for checking gradients.

    Attributes
    ----------
    theta, grad : numpy.ndarray
        Flat vectors of all parameters and of all gradients.
    """

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        heads: Mapping[str, tuple[int, float]],
        rng: np.random.Generator,
        dtype: DTypeLike = np.float32,
    ) -> None:
        widths = [inputs, *hidden]
        layers = [(f"trunk{i}", fan_in, fan_out, np.sqrt(2.0)) for i, (fan_in, fan_out) in enumerate(pairwise(widths))]
        self.trunk_names = [name for name, *_ in layers]
        self.head_names = list(heads)
        layers += [(name, widths[-1], width, gain) for name, (width, gain) in heads.items()]

        size = sum((fan_in + 1) * fan_out for _, fan_in, fan_out, _ in layers)
        self.theta = np.zeros(size, dtype)
        self.grad = np.zeros(size, dtype)
        self.weight: dict[str, Array] = {}
        self.bias: dict[str, Array] = {}
        self.weight_grad: dict[str, Array] = {}
        self.bias_grad: dict[str, Array] = {}
        start = 0
        for name, fan_in, fan_out, gain in layers:
            middle, end = start + fan_in * fan_out, start + (fan_in + 1) * fan_out
            self.weight[name] = self.theta[start:middle].reshape(fan_in, fan_out)
            self.bias[name] = self.theta[middle:end]
            self.weight_grad[name] = self.grad[start:middle].reshape(fan_in, fan_out)
            self.bias_grad[name] = self.grad[middle:end]
            self.weight[name][:] = orthogonal(rng, fan_in, fan_out, gain)
            start = end

    def trunk(self, x: Array) -> list[Array]:
        """Return the input and every trunk layer's output; the last one, `[..., width]`, feeds the heads."""
        activations = [x]
        for name in self.trunk_names:
            y = activations[-1] @ self.weight[name]
            y += self.bias[name]
            activations.append(np.maximum(y, 0, out=y))
        return activations

    def head(self, name: str, features: Array) -> Array:
        """Return what head `name` makes of the trunk's features."""
        y = features @ self.weight[name]
        y += self.bias[name]
        return y

    def backward(self, activations: Sequence[Array], head_grads: Mapping[str, Array]) -> None:
        """Overwrite `grad` with the gradient of a loss.

        Parameters
        ----------
        activations : sequence of numpy.ndarray
            What `trunk` returned for the batch, each `[B, width]`.
        head_grads : mapping of str to numpy.ndarray
            Gradient of the loss with respect to each head's output, `[B, width]`. Every head must be there.
        """
        features = activations[-1]
        upstream = None
        for name in self.head_names:
            g = head_grads[name]
            np.matmul(features.T, g, out=self.weight_grad[name])
            g.sum(axis=0, out=self.bias_grad[name])
            part = g @ self.weight[name].T
            upstream = part if upstream is None else np.add(upstream, part, out=upstream)
        for depth in range(len(self.trunk_names) - 1, -1, -1):
            name = self.trunk_names[depth]
            upstream *= activations[depth + 1] > 0
            np.matmul(activations[depth].T, upstream, out=self.weight_grad[name])
            upstream.sum(axis=0, out=self.bias_grad[name])
            if depth:
                upstream = upstream @ self.weight[name].T


def clip_norm(grad: Array, limit: float) -> float:
    """Scale `grad` in place so that its 2-norm is at most `limit`; return the norm it had."""
    norm = float(np.sqrt(np.dot(grad, grad)))
    if norm > limit:
        grad *= limit / norm
    return norm


class Adam:
    """Adam (Kingma and Ba, 2015) on one flat parameter vector."""

    def __init__(self, theta: Array, *, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-5) -> None:
        self.theta, self.beta1, self.beta2, self.eps = theta, beta1, beta2, eps
        self.mean = np.zeros_like(theta)
        self.square = np.zeros_like(theta)
        self.scratch = np.empty_like(theta)
        self.count = 0

    def step(self, grad: Array, rate: float) -> None:
        """Move the parameters in place, against `grad`, at learning rate `rate`."""
        self.count += 1
        s = self.scratch
        self.mean *= self.beta1
        self.mean += np.multiply(grad, 1.0 - self.beta1, out=s)
        self.square *= self.beta2
        np.multiply(grad, grad, out=s)
        s *= 1.0 - self.beta2
        self.square += s
        np.divide(self.square, 1.0 - self.beta2**self.count, out=s)
        np.sqrt(s, out=s)
        s += self.eps
        np.divide(self.mean, s, out=s)
        s *= rate / (1.0 - self.beta1**self.count)
        self.theta -= s
