"""Memory beside an ISV for what the ranks send each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .. import _pointer
from .._devices import CPU

if TYPE_CHECKING:
    from typing import Any

    from ..isv import ISV

__all__ = ["Scratch", "address_of"]


class Scratch:
    """Zeroed words of 8 bytes on the device of an ISV, handed out one array after the other.

    Parameters
    ----------
    isv : ISV
        The memory outlives its last call.
    words : int
        How many there are.
    """

    def __init__(self, isv: ISV, words: int) -> None:
        self._device = isv._handle.device
        self._memory = isv._state.scratch(8 * words)
        self._next = self._memory.address

    def take(self, *shape: int) -> Any:
        """Return the next words as an int64 array of this shape, which keeps the memory alive."""
        address, self._next = self._next, self._next + 8 * int(np.prod(shape))
        return self._array(address, shape, "int64")

    def like(self, array: Any, dtype: str) -> Any:
        """Return the memory of an array as one of another dtype and as many elements, in one dimension."""
        return self._array(address_of(array), (int(np.prod(array.shape)),), dtype)

    def _array(self, address: int, shape: tuple[int, ...], dtype: str) -> Any:
        pointer = _pointer.Pointer(address, shape, dtype, self._device, None, False, self._memory)
        return np.asarray(pointer) if self._device == CPU else pointer


def address_of(array: Any) -> int:
    """Return where an array of `Scratch` is."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.address)
