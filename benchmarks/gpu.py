"""The GPU as the benchmark uses it: memory, one stream, events, graphs. Driver calls alone, no framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
from cuda.bindings import driver

from .arrays import TYPESTR, DeviceArray


def call(function, *arguments):
    """Call the driver; raise on an error, return what it gave."""
    status, *values = function(*arguments)
    if int(status) != 0:
        raise RuntimeError(f"{function.__name__}: {status.name}")
    return values[0] if len(values) == 1 else tuple(values)


class Memory:
    """Device memory."""

    def __init__(self, nbytes: int):
        self.nbytes = nbytes
        self.address = int(call(driver.cuMemAlloc, max(nbytes, 256)))

    def fill(self, block: np.ndarray) -> Memory:
        """Repeat a block throughout: copied from the host, then doubled on the device."""
        filled = min(block.nbytes, self.nbytes)
        call(driver.cuMemcpyHtoD, self.address, block.ctypes.data, filled)
        while filled < self.nbytes:
            more = min(filled, self.nbytes - filled)
            call(driver.cuMemcpyDtoD, self.address + filled, self.address, more)
            filled += more
        call(driver.cuStreamSynchronize, 0)  # a copy from pageable memory may outlive its call
        return self

    def put(self, array: np.ndarray) -> Memory:
        call(driver.cuMemcpyHtoD, self.address, np.ascontiguousarray(array).ctypes.data, array.nbytes)
        call(driver.cuStreamSynchronize, 0)
        return self

    def free(self) -> None:
        call(driver.cuMemFree, self.address)


class Graph:
    """A captured sequence of launches. Counts its replays."""

    def __init__(self, graph, stream):
        self.graph, self.stream = graph, stream
        self.executable = call(driver.cuGraphInstantiate, graph, 0)
        self.launches = 0

    def launch(self) -> None:
        call(driver.cuGraphLaunch, self.executable, self.stream)
        self.launches += 1

    @property
    def nodes(self) -> int:
        return int(call(driver.cuGraphGetNodes, self.graph, 0)[1])

    def free(self) -> None:
        call(driver.cuGraphExecDestroy, self.executable)
        call(driver.cuGraphDestroy, self.graph)


class Gpu:
    """One device, its primary context and the stream that everything runs on."""

    def __init__(self, ordinal: int = 0):
        call(driver.cuInit, 0)
        self.ordinal = ordinal
        device = call(driver.cuDeviceGet, ordinal)
        call(driver.cuCtxSetCurrent, call(driver.cuDevicePrimaryCtxRetain, device))
        self.stream = call(driver.cuStreamCreate, int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        self.handle = int(self.stream)
        attribute = driver.CUdevice_attribute

        def number(name) -> int:
            return int(call(driver.cuDeviceGetAttribute, name, device))

        self.l2_bytes = number(attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)
        self.multiprocessors = number(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        self.capability = (
            number(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            number(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        )

    def __cuda_stream__(self) -> tuple[int, int]:
        """The stream, by the protocol for streams."""
        return 0, self.handle

    def free_bytes(self) -> int:
        return int(call(driver.cuMemGetInfo)[0])

    def synchronize(self) -> None:
        """Wait for everything: our stream does not wait for the default one, on which memory is filled."""
        call(driver.cuCtxSynchronize)

    def capture(self, enqueue: Callable[[], None]) -> Graph:
        """What `enqueue` puts on the stream, as a graph. Run it once before, so that everything is loaded."""
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        call(driver.cuStreamBeginCapture, self.stream, mode)
        try:
            enqueue()
        finally:
            graph = call(driver.cuStreamEndCapture, self.stream)
        return Graph(graph, self.stream)

    def copy(self, target: Memory, source: Memory, nbytes: int) -> None:
        call(driver.cuMemcpyDtoDAsync, target.address, source.address, nbytes, self.stream)

    def set_bytes(self, array: DeviceArray, byte: int) -> None:
        """Set every byte of an array, when everything before is done. 255 makes every float a NaN."""
        self.synchronize()
        call(driver.cuMemsetD8, array.address, byte, array.nbytes)
        self.synchronize()

    def fetch(self, array: DeviceArray) -> np.ndarray:
        """An array's content, when everything before is done; bfloat16 as uint16."""
        self.synchronize()
        values = np.empty(array.shape, np.uint16 if array.dtype == "bfloat16" else TYPESTR[array.dtype])
        call(driver.cuMemcpyDtoH, values.ctypes.data, array.address, array.nbytes)
        return values

    def times_ms(self, launch: Callable[[], None], repeats: int) -> list[float]:
        """Time on the stream of each of `repeats` calls that follow one another without a pause."""
        with self._events(repeats + 1) as events:
            call(driver.cuEventRecord, events[0], self.stream)
            for event in events[1:]:
                launch()
                call(driver.cuEventRecord, event, self.stream)
            call(driver.cuEventSynchronize, events[-1])
            return [float(call(driver.cuEventElapsedTime, begin, end)) for begin, end in pairwise(events)]

    @contextmanager
    def _events(self, count: int) -> Iterator[list]:
        events = [call(driver.cuEventCreate, 0) for _ in range(count)]
        try:
            yield events
        finally:
            for event in events:
                call(driver.cuEventDestroy, event)
