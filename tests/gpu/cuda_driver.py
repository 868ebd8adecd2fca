"""The few driver calls that the GPU tests make themselves: capture, graphs, contexts."""

from __future__ import annotations

import contextlib
import gc

from cuda.bindings import driver

from backends import check


def call(function, *arguments):
    """Call the driver; raise on an error, return what it gave."""
    status, *out = function(*arguments)
    check(status)
    return out[0] if len(out) == 1 else tuple(out)


def handle(stream) -> int:
    """The CUstream behind a cuda.core stream."""
    return int(stream.__cuda_stream__()[1])


class Graph:
    """An instantiated graph."""

    def __init__(self, graph):
        self.graph = graph
        self.executable = call(driver.cuGraphInstantiate, graph, 0)

    def launch(self, stream) -> None:
        call(driver.cuGraphLaunch, self.executable, driver.CUstream(handle(stream)))

    @property
    def nodes(self) -> int:
        return int(call(driver.cuGraphGetNodes, self.graph, 0)[1])

    def close(self) -> None:
        call(driver.cuGraphExecDestroy, self.executable)
        call(driver.cuGraphDestroy, self.graph)


@contextlib.contextmanager
def capture(stream, mode="GLOBAL"):
    """Capture what is enqueued on a stream. The list holds the graph afterwards.

    No garbage is collected meanwhile: to free memory of an earlier test would break the capture.
    """
    out: list[Graph] = []
    raw = driver.CUstream(handle(stream))
    gc.collect()
    gc.disable()
    call(driver.cuStreamBeginCapture, raw, getattr(driver.CUstreamCaptureMode, f"CU_STREAM_CAPTURE_MODE_{mode}"))
    try:
        yield out
    finally:
        gc.enable()
        graph = call(driver.cuStreamEndCapture, raw)
    out.append(Graph(graph))


def capturing(stream) -> bool:
    status = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
    return call(driver.cuStreamIsCapturing, driver.CUstream(handle(stream))) == status


def current_context() -> int:
    return int(call(driver.cuCtxGetCurrent))


def primary_context_active(ordinal: int) -> bool:
    return bool(call(driver.cuDevicePrimaryCtxGetState, call(driver.cuDeviceGet, ordinal))[1])
