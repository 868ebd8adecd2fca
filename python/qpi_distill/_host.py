"""The state in the memory of the host: the counterpart of `_gpu.DeviceState`."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import numpy as np

from . import _core, _isv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ._isv import Isv

__all__ = ["HostMemory", "HostRing", "HostState"]

_ALIGNMENT = 64


def _padded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


class HostMemory:
    """Zeroed memory, aligned for vectors.

    Parameters
    ----------
    nbytes : int
        Its size.
    """

    def __init__(self, nbytes: int) -> None:
        self._memory = np.zeros(nbytes + _ALIGNMENT, np.uint8)
        self.address = _padded(self._memory.__array_interface__["data"][0])


class HostRing:
    """A flight recorder's records on the CPU.

    Parameters
    ----------
    state : HostState
        The state that is recorded.
    nbytes : int
        Size of the ring.
    """

    def __init__(self, state: HostState, nbytes: int) -> None:
        self._state, self._nbytes = state, nbytes
        self.memory = HostMemory(nbytes)
        self.address = self.memory.address

    def read(self, stream: Any) -> bytes:
        """Return the records as they are."""
        self._state.handle.order(stream)
        return bytes(_core.host_memory(self.address, self._nbytes))

    def clear(self, stream: Any) -> None:
        """Forget the records."""
        self._state.handle.order(stream)
        _core.host_memory(self.address, self._nbytes)[:] = bytes(self._nbytes)


class HostState:
    """Where an ISV's words and workspace are on the CPU.

    Parameters
    ----------
    words : int
        Words of the layout.
    workspace_size, head_size : int
        Bytes of the workspace, and of its beginning that belongs to the state.
    slots : int, optional
        Address of the caller's buffer; None: the words are allocated here.
    """

    def __init__(self, words: int, workspace_size: int, head_size: int, slots: int | None) -> None:
        self._words_size, self._head_size = 4 * words, head_size
        own = _padded(self._words_size) if slots is None else 0
        self.memory = np.zeros(own + _padded(workspace_size) + _padded(_isv.RECORD_SIZE) + _ALIGNMENT, np.uint8)
        base = _padded(self.memory.__array_interface__["data"][0])
        self.slots = base if slots is None else slots
        self.workspace = base + own
        self.record = self.workspace + _padded(workspace_size)
        self.handle: Isv
        self._measuring = threading.Lock()

    def attach(self, handle: Isv) -> None:
        """Name the ISV that this memory serves."""
        self.handle = handle

    def read(self, stream: Any) -> bytes:
        """Return the words of the layout and the head of the workspace."""
        self.handle.order(stream)
        words = _core.host_memory(self.slots, self._words_size) if self._words_size else b""
        return bytes(words) + bytes(_core.host_memory(self.workspace, self._head_size))

    def write_words(self, writes: list[tuple[int, int]], stream: Any) -> None:
        """Store 4-byte words at addresses."""
        self.handle.order(stream)
        for address, word in writes:
            _core.host_memory(address, 4).cast("I")[0] = word

    def write_head(self, data: bytes, stream: Any) -> None:
        """Overwrite the head of the workspace."""
        self.handle.order(stream)
        _core.host_memory(self.workspace, len(data))[:] = data

    def scratch(self, nbytes: int) -> HostMemory:
        """Return zeroed memory for work beside the state."""
        return HostMemory(nbytes)

    def enqueue(self, work: Callable[[int], None], stream: Any) -> None:
        """Do work that a GPU would be told to do in stream order."""
        self.handle.order(stream)
        work(0)

    def download(self, address: int, nbytes: int, stream: Any) -> bytes:
        """Return memory."""
        return bytes(_core.host_memory(address, nbytes))

    def make_ring(self, nbytes: int) -> HostRing:
        """Return memory for a flight recorder, zeroed."""
        return HostRing(self, nbytes)

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """Have the memory for a measured record to oneself."""
        with self._measuring:
            yield

    def measured(self, nbytes: int, handle: int) -> bytes:
        """Return the record that the last `measure` wrote."""
        return bytes(_core.host_memory(self.record, nbytes))
