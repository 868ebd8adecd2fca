"""The arrays of a case, in as many sets as keep the cache cold. Nothing here needs a GPU.

Rows repeat after a period, the same in every array of a case: so the float64 reference of millions of rows costs no
more than that of one period.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from .cases import Case

SPAN = (-10.0, 10.0)
MOST_SETS = 160
BLOCK_ITEMS = 1 << 20
TYPESTR = {"float32": "<f4", "float16": "<f2", "bfloat16": "<i2", "uint8": "|u1"}  # bfloat16 has none of its own


def to_bfloat16(array: np.ndarray) -> np.ndarray:
    """Float32 rounded to nearest, as the upper halves of the words."""
    return ((np.asarray(array, np.float32).view(np.uint32) + np.uint32(0x8000)) >> np.uint32(16)).astype(np.uint16)


def widen(array: np.ndarray, dtype: str) -> np.ndarray:
    """An array of any dtype of the benchmark as float64."""
    if dtype == "bfloat16":
        array = (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array.astype(np.float64)


@functools.cache
def normal_block() -> np.ndarray:
    return np.random.default_rng(1).standard_normal(BLOCK_ITEMS, dtype=np.float32) * np.float32(2)


def set_count(case: Case, cache_bytes: int) -> int:
    """Sets that take turns: one where the case is hot, else at least two and four times the cache."""
    return 1 if case.hot else min(max(math.ceil(4 * cache_bytes / case.bytes), 2), MOST_SETS)


def support_of(case: Case) -> np.ndarray:
    """The support: [Z], or [A, Z] with the option "per_action"."""
    support = np.linspace(*SPAN, case.atoms, dtype=np.float32)
    if "per_action" not in case.options:
        return support
    return support * np.linspace(0.5, 1.0, case.actions, dtype=np.float32)[:, None]


@dataclass(frozen=True)
class DeviceArray:
    """A packed array in device memory that someone else keeps."""

    address: int
    shape: tuple[int, ...]
    dtype: str
    ordinal: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * int(TYPESTR[self.dtype][2])

    @property
    def __cuda_array_interface__(self) -> dict:
        return {
            "shape": self.shape,
            "typestr": TYPESTR[self.dtype],
            "data": (self.address, False),
            "version": 2,
            "strides": None,
        }


@dataclass
class InputSet:
    """What one step reads and writes: DeviceArrays, NumPy arrays or tensors."""

    q: object
    pi: object
    grad: object
    legal: object = None
    weights: object = None

    @property
    def keywords(self) -> dict:
        named = {"legal_actions": self.legal, "row_weights": self.weights}
        return {name: array for name, array in named.items() if array is not None}

    def through(self, convert) -> InputSet:
        """The same set with every array converted."""
        arrays = (self.q, self.pi, self.grad, self.legal, self.weights)
        return InputSet(*(None if array is None else convert(array) for array in arrays))


def period_of(case: Case) -> int:
    """After how many rows the arrays of a case repeat."""
    return max(min(case.rows, BLOCK_ITEMS // (case.actions * case.atoms)), 1)


def period_set(case: Case) -> InputSet:
    """The rows of one period, random, in the case's dtypes; the gradient is zero. bfloat16 as uint16."""
    shape = period_of(case), case.actions
    rng = np.random.default_rng(2)

    def logits(values: np.ndarray, dtype: str) -> np.ndarray:
        return to_bfloat16(values) if dtype == "bfloat16" else values.astype(dtype)

    legal = weights = None
    if "mask" in case.options:
        legal = (rng.random(shape) < 0.8).astype(np.uint8)
        legal[:, 0] = 1
    if "weights" in case.options:
        weights = rng.uniform(0.5, 1.5, shape[0]).astype(np.float32)
    grad = np.uint16 if case.grad_dtype == "bfloat16" else case.grad_dtype
    return InputSet(
        q=logits(np.resize(normal_block(), (*shape, case.atoms)), case.q_dtype),
        pi=logits(np.resize(normal_block()[::-1], shape), case.pi_dtype),
        grad=np.zeros(shape, grad),
        legal=legal,
        weights=weights,
    )


def host_sets(case: Case, cache_bytes: int) -> list[InputSet]:
    """The sets of a case in NumPy's memory."""
    period = period_set(case)
    return [
        period.through(lambda array: np.resize(array, (case.rows, *array.shape[1:])))
        for _ in range(set_count(case, cache_bytes))
    ]
