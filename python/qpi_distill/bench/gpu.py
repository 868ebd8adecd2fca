"""A GPU as a machine to measure on: memory, a stream, graphs and events, by driver calls alone."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from cuda.bindings import driver

from .. import _gpu, pointer
from .._gpu import call
from .timing import Timing

__all__ = ["Gpu"]


_GRAPH_US = 3000.0  # a graph holds about as many steps as take this long, so that its launch does not show
_MOST_STEPS = 1000
_FEWEST, _MOST = 10, 200
_COPY_BYTES = 1 << 30


class Gpu:
    """One GPU, its primary context and a stream."""

    cache_known = True

    def __init__(self, ordinal: int) -> None:
        self.ordinal, self.device = ordinal, f"cuda:{ordinal}"
        self._context = _gpu.current(ordinal)
        device = self._context.__enter__()
        self.name = str(device.name)
        self.cores = int(device.properties.multiprocessor_count)
        self.cache_bytes = int(device.properties.l2_cache_size)
        self.stream = call(driver.cuStreamCreate, int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        self.handle = int(self.stream)
        self._memory: list[Any] = []

    def __enter__(self) -> Gpu:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()
        call(driver.cuStreamDestroy, self.stream)
        self._context.__exit__(None, None, None)

    def memory_bytes(self) -> int:
        """Return how much memory the inputs may take."""
        _, free, _ = driver.cuMemGetInfo()
        return int(free) // 4

    def _allocate(self, nbytes: int) -> int:
        address = call(driver.cuMemAlloc, max(nbytes, 1))
        self._memory.append(address)
        return int(address)

    def array(self, shape: tuple[int, ...], dtype: str, block: np.ndarray[Any, Any]) -> Any:
        """Return an array that repeats a block of values: copied from the host, then doubled on the device."""
        nbytes = int(np.prod(shape)) * block.itemsize
        address, filled = self._allocate(nbytes), min(block.nbytes, nbytes)
        call(driver.cuMemcpyHtoD, address, block.ctypes.data, filled)
        while filled < nbytes:
            more = min(filled, nbytes - filled)
            call(driver.cuMemcpyDtoD, address + filled, address, more)
            filled += more
        call(driver.cuCtxSynchronize)  # our stream does not wait for the default one
        return pointer(address, shape, dtype, device=self.device)

    def release(self) -> None:
        """Free what `array` gave."""
        call(driver.cuCtxSynchronize)
        while self._memory:
            call(driver.cuMemFree, self._memory.pop())

    def time(self, step: Callable[[int], None], sets: int, budget_s: float) -> Timing:
        """Return the time of `step(i)`, the step on input set i of so many, from replays of a graph of many steps."""
        for i in range(sets):
            step(i)
        estimate = 1000 * min(self._times_ms(lambda: step(0), 8))
        rounds = max(round(min(_GRAPH_US / max(estimate, 0.1), _MOST_STEPS) / sets), 1)
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        call(driver.cuStreamBeginCapture, self.stream, mode)
        try:
            for i in range(rounds * sets):
                step(i % sets)
        finally:
            graph = call(driver.cuStreamEndCapture, self.stream)
        executable = call(driver.cuGraphInstantiate, graph, 0)
        try:

            def launch() -> None:
                call(driver.cuGraphLaunch, executable, self.stream)

            self._times_ms(launch, 2)
            once = min(self._times_ms(launch, 2))
            repeats = min(max(round(1000 * budget_s / max(once, 1e-3)), _FEWEST), _MOST)
            taken = self._times_ms(launch, repeats)
            return Timing.of([1000 * ms / (rounds * sets) for ms in taken])
        finally:
            call(driver.cuGraphExecDestroy, executable)
            call(driver.cuGraphDestroy, graph)

    def copy_bytes_s(self) -> float:
        """Return how fast the GPU copies memory far beyond its cache: bytes read plus written, a second."""
        nbytes = min(_COPY_BYTES, self.memory_bytes() // 2)
        source, target = self._allocate(nbytes), self._allocate(nbytes)
        call(driver.cuMemsetD8, source, 1, nbytes)
        call(driver.cuCtxSynchronize)

        def copy() -> None:
            call(driver.cuMemcpyDtoDAsync, target, source, nbytes, self.stream)

        self._times_ms(copy, 3)
        rate = 2e6 * nbytes / Timing.of([1000 * ms for ms in self._times_ms(copy, 20)]).us
        self.release()
        return rate

    def _times_ms(self, launch: Callable[[], None], repeats: int) -> list[float]:
        """Return the time on the stream of each of several calls that follow one another without a pause."""
        events = [call(driver.cuEventCreate, 0) for _ in range(repeats + 1)]
        try:
            call(driver.cuEventRecord, events[0], self.stream)
            for event in events[1:]:
                launch()
                call(driver.cuEventRecord, event, self.stream)
            call(driver.cuEventSynchronize, events[-1])
            return [float(call(driver.cuEventElapsedTime, begin, end)) for begin, end in pairwise(events)]
        finally:
            for event in events:
                call(driver.cuEventDestroy, event)
