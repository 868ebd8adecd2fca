"""CUDA from Python, in one place: cuda.core for devices, streams and memory, cuda.bindings for the rest.

Imported when a GPU is first asked for, never before. Whatever is done here leaves the calling thread's current context
as it was.
"""

from __future__ import annotations

import contextlib
import math
import threading
from typing import TYPE_CHECKING

import numpy as np

from . import _core, _isv
from .errors import CaptureError, CudaError, DeviceError

try:
    from cuda.bindings import driver
    from cuda.core import Device, LegacyPinnedMemoryResource, StreamOptions
except ImportError as error:
    raise DeviceError(f"the GPU needs cuda-core and cuda-bindings: {error}") from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ._isv import Isv, Trace
    from ._pointer import Pointer

__all__ = [
    "DeviceRing",
    "DeviceState",
    "HostMirror",
    "Memory",
    "call",
    "current",
    "current_device",
    "device_count",
    "device_of",
    "synchronize",
    "upload",
    "wait",
]

_DEFAULT_STREAMS = (1, 2)  # cudaStreamLegacy, cudaStreamPerThread
_ALIGNMENT = 256
_PINNED_BYTES = 16384


# ---- calls, contexts, capture ----------------------------------------------------------------------------------------


def call(function: Callable[..., tuple[Any, ...]], *arguments: Any) -> Any:
    """Call into the driver and return what it gives, without the status."""
    status, *values = function(*arguments)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise CudaError(f"{function.__name__}: {status.name}")
    return values[0] if values else None


def _initialise() -> None:
    try:
        call(driver.cuInit, 0)
    except RuntimeError as error:
        raise DeviceError(f"no GPU can be used: {error}") from error


def device_count() -> int:
    """Return how many GPUs this process sees."""
    _initialise()
    return int(call(driver.cuDeviceGetCount))


def current_device() -> int:
    """Return the ordinal of the GPU whose context is current, or 0 where none is."""
    _initialise()
    return int(Device().device_id)


@contextlib.contextmanager
def current(ordinal: int) -> Iterator[Any]:
    """Make a GPU's primary context current for a while; what is done there is no part of anybody's stream capture."""
    _initialise()
    before = call(driver.cuCtxGetCurrent)
    device = Device(ordinal)
    device.set_current()
    mode = call(driver.cuThreadExchangeStreamCaptureMode, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    try:
        yield device
    finally:
        call(driver.cuThreadExchangeStreamCaptureMode, mode)
        call(driver.cuCtxSetCurrent, before)


def device_of(address: int) -> int:
    """Return the ordinal of the GPU that an address belongs to.

    Raises
    ------
    BufferError
        If CUDA does not know the address.
    """
    _initialise()
    status, ordinal = driver.cuPointerGetAttribute(
        driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address
    )
    if status != driver.CUresult.CUDA_SUCCESS:
        raise BufferError(f"0x{address:x} is not memory that CUDA knows ({status.name})")
    return int(ordinal)


def require(ordinal: int, name: str, address: int) -> None:
    """Raise `BufferError` if an address is not memory that a GPU can use as its own."""
    found = device_of(address)
    managed = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED
    if found != ordinal and not call(driver.cuPointerGetAttribute, managed, address):
        raise BufferError(f"{name}: is on cuda:{found}, but the ISV is on cuda:{ordinal}")


def is_capturing(stream: int) -> bool:
    """Return whether work on a stream goes into a graph instead of running."""
    status, mode = driver.cuStreamIsCapturing(stream)
    if status == driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
        return True
    if status != driver.CUresult.CUDA_SUCCESS:
        raise CudaError(f"cuStreamIsCapturing: {status.name}")
    return bool(mode != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)


def refuse_capture(ordinal: int, stream: int, what: str) -> None:
    """Raise `CaptureError` if a stream is being captured."""
    with current(ordinal):
        capturing = is_capturing(stream)
    if capturing:
        raise CaptureError(f"{what}: its stream is being captured; do it before the capture or after it")


def wait(ordinal: int, stream: int, other: int) -> None:
    """Make a stream wait for what another one has been given so far. The host does not wait."""
    with current(ordinal):
        event = call(driver.cuEventCreate, int(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))
        try:
            call(driver.cuEventRecord, event, other)
            call(driver.cuStreamWaitEvent, stream, event, 0)
        finally:
            call(driver.cuEventDestroy, event)


def synchronize(stream: int) -> None:
    """Wait on the host for a stream. Needs the context."""
    call(driver.cuStreamSynchronize, stream)


class HostMirror:
    """Memory of the host that a few bytes of a GPU pass through. Made and used with its context current.

    Parameters
    ----------
    array : Pointer, int64
        What is on the GPU.

    Attributes
    ----------
    array : ndarray, int64
        What is on the host, of the same shape.
    """

    def __init__(self, array: Pointer) -> None:
        self._address = array.address
        self._pinned = LegacyPinnedMemoryResource().allocate(8 * math.prod(array.shape))
        memory = _core.host_memory(int(self._pinned.handle), self._pinned.size)
        self.array = np.frombuffer(memory, np.int64).reshape(array.shape)

    def fetch(self, stream: int) -> None:
        """Enqueue a copy from the GPU."""
        call(driver.cuMemcpyDtoHAsync, int(self._pinned.handle), self._address, self._pinned.size, stream)

    def store(self, stream: int) -> None:
        """Enqueue a copy to the GPU."""
        call(driver.cuMemcpyHtoDAsync, self._address, int(self._pinned.handle), self._pinned.size, stream)


# ---- our own stream --------------------------------------------------------------------------------------------------


class _Side:
    """What reads of one GPU share: a stream beside the caller's, and pinned memory that the host reads from.

    Kept for the life of the process: freeing pinned memory waits for the GPU.
    """

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.lock = threading.Lock()
        with current(ordinal) as device:
            self.stream = device.create_stream(options=StreamOptions(nonblocking=True))
            self.handle = int(self.stream.handle)
            # Now, because a later moment may be inside somebody's capture.
            self._pinned = [LegacyPinnedMemoryResource().allocate(_PINNED_BYTES)]

    def allocate(self, nbytes: int) -> Any:
        """Return a cuda.core buffer, to be freed in the order of this stream. Needs the context."""
        return Device(self.ordinal).allocate(nbytes, stream=self.stream)

    def synchronize(self) -> None:
        """Wait on the host for this stream. Needs the context."""
        call(driver.cuStreamSynchronize, self.handle)

    def fetch(self, address: int, nbytes: int) -> bytes:
        """Copy device memory to the host after what this stream waits for. Needs the context and the lock."""
        if self._pinned[-1].size < nbytes:
            self._pinned.append(LegacyPinnedMemoryResource().allocate(2 * nbytes))
        target = int(self._pinned[-1].handle)
        call(driver.cuMemcpyDtoHAsync, target, address, nbytes, self.handle)
        self.synchronize()
        return bytes(_core.host_memory(target, nbytes))

    def release(self, buffer: Any, last: int, known: bool) -> None:
        """Free a buffer after the last call that used it, where its stream is sure to exist still."""
        with current(self.ordinal):
            if last and (known or last in _DEFAULT_STREAMS) and not is_capturing(last):
                wait(self.ordinal, self.handle, last)
            buffer.close()


_sides: dict[int, _Side] = {}
_sides_lock = threading.Lock()


def _side(ordinal: int) -> _Side:
    with _sides_lock:
        side = _sides.get(ordinal)
        if side is None:
            side = _sides[ordinal] = _Side(ordinal)
        return side


class Memory:
    """Device memory that is freed after the last call of the ISV that it serves."""

    def __init__(self, side: _Side, nbytes: int, trace: Trace | None = None) -> None:
        self._side, self._buffer, self.trace = side, side.allocate(nbytes), trace
        self.address = int(self._buffer.handle)

    def __del__(self) -> None:
        """Free the memory in stream order. There is nobody to report to: what stays is freed with the process."""
        with contextlib.suppress(Exception):
            last, known = (0, False) if self.trace is None else (self.trace.handle, self.trace.known)
            self._side.release(self._buffer, last, known)


def upload(isv: Isv, data: bytes) -> Memory:
    """Copy host data to the GPU of an ISV, once."""
    side = _side(isv.device)
    with current(isv.device), side.lock:
        memory = Memory(side, len(data), isv.trace)
        call(driver.cuMemcpyHtoDAsync, memory.address, data, len(data), side.handle)
        side.synchronize()
    return memory


class DeviceRing:
    """A flight recorder's records on a GPU, and room for a copy of them.

    Parameters
    ----------
    state : DeviceState
        The state that is recorded.
    nbytes : int
        Size of the ring.
    """

    def __init__(self, state: DeviceState, nbytes: int) -> None:
        self._state, self._nbytes = state, nbytes
        self.memory = state.scratch(2 * _padded(nbytes))
        self.address = self.memory.address

    def read(self, stream: Any) -> bytes:
        """Return the records as they are after the last write."""
        copy = self.address + _padded(self._nbytes)
        return self._state.copy_aside([(self.address, self._nbytes, copy)], stream, "draining the recorder")

    def clear(self, stream: Any) -> None:
        """Forget the records, in stream order."""
        self._state.fill_zero(self.address, self._nbytes, stream, "clearing the recorder")


# ---- the state on a GPU ----------------------------------------------------------------------------------------------


def _padded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


class DeviceState:
    """Where an ISV's words, workspace and snapshot are on a GPU.

    Parameters
    ----------
    ordinal : int
        The GPU.
    words : int
        Words of the layout.
    workspace_size, head_size : int
        Bytes of the workspace, and of its beginning that belongs to the state.
    slots : int, optional
        Address of the caller's buffer; None: the words are allocated here.
    """

    def __init__(self, ordinal: int, words: int, workspace_size: int, head_size: int, slots: int | None) -> None:
        self.ordinal = ordinal
        self._words_size, self._head_size = 4 * words, head_size
        self._side = _side(ordinal)
        own = _padded(self._words_size) if slots is None else 0
        snapshot = _padded(self._words_size + head_size)
        with current(ordinal), self._side.lock:
            self.memory = Memory(self._side, own + _padded(workspace_size) + snapshot + _padded(_isv.RECORD_SIZE))
            base = self.memory.address
            if slots is None:
                call(driver.cuMemsetD32Async, base, 0, own // 4, self._side.handle)
            self._side.synchronize()
        self.slots = base if slots is None else slots
        self.workspace = base + own
        self._snapshot = self.workspace + _padded(workspace_size)
        self.record = self._snapshot + snapshot
        self.handle: Isv
        self._measuring = threading.Lock()

    def attach(self, handle: Isv) -> None:
        """Name the ISV whose calls this memory has to outlast."""
        self.handle = handle
        self.memory.trace = handle.trace
        side, ordinal = self._side, self.ordinal

        def settle() -> None:
            with current(ordinal):
                side.synchronize()

        handle.attach(side.handle, settle)

    def _ordered(self, stream: Any, what: str) -> tuple[int, Any, Any]:
        """Return the stream for host traffic, which follows the last write. Needs the context."""
        handle, owner, source = self.handle.order(stream)
        last = self.handle.trace.handle
        if handle == 0:
            return self._side.handle, None, None
        refuse_capture(self.ordinal, handle, what)
        if last and last != handle:
            refuse_capture(self.ordinal, last, what)
            wait(self.ordinal, handle, last)
        return handle, owner, source

    def read(self, stream: Any) -> bytes:
        """Return the words of the layout and the head of the workspace as they are after the last write."""
        head = self._snapshot + self._words_size
        copies = [(self.slots, self._words_size, self._snapshot), (self.workspace, self._head_size, head)]
        return self.copy_aside(copies, stream, "reading the ISV")

    def fill_zero(self, address: int, nbytes: int, stream: Any, what: str) -> None:
        """Clear device memory, in stream order."""
        with current(self.ordinal):
            handle, owner, source = self._ordered(stream, what)
            call(driver.cuMemsetD8Async, address, 0, nbytes, handle)
            if handle == self._side.handle:
                self._side.synchronize()
            else:
                self.handle.wrote(handle, owner, source)

    def scratch(self, nbytes: int) -> Memory:
        """Return zeroed memory for work beside the state."""
        with current(self.ordinal), self._side.lock:
            memory = Memory(self._side, nbytes, self.handle.trace)
            call(driver.cuMemsetD8Async, memory.address, 0, nbytes, self._side.handle)
            self._side.synchronize()
        return memory

    def enqueue(self, work: Callable[[int], None], stream: Any) -> None:
        """Have work enqueued in stream order, with the context current.

        Where no stream is named and no call has used one yet, our own one serves, and the host waits for it.
        """
        with current(self.ordinal):
            handle, owner, source = self.handle.order(stream)
            work(handle or self._side.handle)
            if handle:
                self.handle.wrote(handle, owner, source)
            else:
                self._side.synchronize()

    def download(self, address: int, nbytes: int, stream: Any) -> bytes:
        """Return device memory as it is after the last write. The host waits."""
        with current(self.ordinal), self._side.lock:
            handle, _, _ = self._ordered(stream, "reading memory")
            if handle != self._side.handle:
                wait(self.ordinal, self._side.handle, handle)
            return self._side.fetch(address, nbytes)

    def make_ring(self, nbytes: int) -> DeviceRing:
        """Return memory for a flight recorder, zeroed."""
        return DeviceRing(self, nbytes)

    def copy_aside(self, copies: list[tuple[int, int, int]], stream: Any, what: str) -> bytes:
        """Return device memory as it is after the last write: (address, bytes, where to put a copy of it).

        The stream that writes makes the copies, which follow each other in memory, and goes on; the host waits for our
        own stream alone.
        """
        with current(self.ordinal), self._side.lock:
            handle, _, _ = self._ordered(stream, what)
            for address, nbytes, copy in copies:
                if nbytes:
                    call(driver.cuMemcpyDtoDAsync, copy, address, nbytes, handle)
            if handle != self._side.handle:
                wait(self.ordinal, self._side.handle, handle)
            return self._side.fetch(copies[0][2], sum(nbytes for _, nbytes, _ in copies))

    def write_words(self, writes: list[tuple[int, int]], stream: Any) -> None:
        """Store 4-byte words at device addresses, in stream order."""
        with current(self.ordinal):
            handle, owner, source = self.handle.order(stream)
            target = handle or self._side.handle
            for address, word in writes:
                call(driver.cuMemsetD32Async, address, word, 1, target)
            if handle:
                self.handle.wrote(handle, owner, source)
            else:
                self._side.synchronize()

    def write_head(self, data: bytes, stream: Any) -> None:
        """Overwrite the head of the workspace."""
        with current(self.ordinal):
            handle, owner, source = self._ordered(stream, "loading a state")
            # From pageable memory: the bytes have been taken when the call returns.
            call(driver.cuMemcpyHtoDAsync, self.workspace, data, len(data), handle)
            if handle == self._side.handle:
                self._side.synchronize()
            else:
                self.handle.wrote(handle, owner, source)

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """Have the memory for a measured record to oneself."""
        with self._measuring:
            yield

    def measured(self, nbytes: int, handle: int) -> bytes:
        """Return the record that a stream has just been told to write."""
        with current(self.ordinal), self._side.lock:
            wait(self.ordinal, self._side.handle, handle)
            return self._side.fetch(self.record, nbytes)
