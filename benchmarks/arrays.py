"""The arrays of a case, in as many sets as keep the cache cold. Nothing here needs a GPU."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from .cases import Case

SPAN = (-10.0, 10.0)
MOST_SETS = 160
BLOCK_ITEMS = 1 << 22
TYPESTR = {"float32": "<f4", "float16": "<f2", "uint8": "|u1"}


@functools.cache
def random_block(kind: str) -> np.ndarray:
    """Random numbers to fill arrays with: logits by their dtype, "mask" or "weights"."""
    rng = np.random.default_rng(1)
    if kind == "mask":
        return (rng.random(BLOCK_ITEMS) < 0.8).astype(np.uint8)
    if kind == "weights":
        return rng.uniform(0.5, 1.5, BLOCK_ITEMS).astype(np.float32)
    normal = rng.standard_normal(BLOCK_ITEMS, dtype=np.float32) * np.float32(2)
    if kind == "float16":
        return normal.astype(np.float16)
    if kind == "bfloat16":
        return ((normal.view(np.uint32) + np.uint32(0x8000)) >> np.uint32(16)).astype(np.uint16)
    return normal


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


def host_sets(case: Case, cache_bytes: int) -> list[InputSet]:
    """The sets of a plain float32 case in NumPy's memory."""
    rows, actions = case.rows, case.actions
    block = random_block("float32")
    return [
        InputSet(
            q=np.resize(block, (rows, actions, case.atoms)),
            pi=np.resize(block, (rows, actions)),
            grad=np.zeros((rows, actions), np.float32),
        )
        for _ in range(set_count(case, cache_bytes))
    ]
