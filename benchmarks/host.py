"""What a step costs the host, beside bare launches from C of as many kernels as its plan needs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from itertools import repeat
from pathlib import Path

from .arrays import InputSet
from .cases import Case
from .gpu import Gpu
from .native import Native
from .ours import Ours, as_argument
from .results import Recorder, Unavailable
from .step import device_sets
from .timing import Timing, host_time

ROWS = 32
CALLS = 200  # a batch: its launches fit in the driver's queue
BATCHES = 60
OPTIONS = ("mask", "weights")  # q, pi and gradient with these two are five arrays


def of_call(call: Callable[[], None]) -> Callable[[int], Callable[[], None]]:
    """A batch of the same call."""

    def batch(count: int) -> Callable[[], None]:
        def run() -> None:
            for _ in repeat(None, count):
                call()

        return run

    return batch


def of_fresh(step: Callable[..., None], make: Callable[[], InputSet]) -> Callable[[int], Callable[[], None]]:
    """A batch of unbound calls, each with array objects that no call has seen before."""

    def batch(count: int) -> Callable[[], None]:
        fresh = [make() for _ in range(count)]
        calls = [(one.q, one.pi, one.grad, one.legal, one.weights) for one in fresh]

        def run() -> None:
            for q, pi, grad, legal, weights in calls:
                step(q, pi, grad, legal_actions=legal, row_weights=weights)

        return run

    return batch


def launches_of(gpu: Gpu, ours: Ours) -> int:
    """How many kernels one step launches: the nodes of its graph."""
    ours.steps(1, gpu.handle)
    gpu.synchronize()
    graph = gpu.capture(lambda: ours.steps(1, gpu.handle))
    nodes = graph.nodes
    graph.free()
    return nodes


def torch_time(gpu: Gpu, ours: Ours, one: InputSet) -> Timing:
    """Unbound calls with five fresh tensors, on torch's current stream."""
    if importlib.util.find_spec("torch") is None:
        raise Unavailable("torch is not installed")
    import torch

    if not torch.cuda.is_available():
        raise Unavailable("torch sees no GPU")
    device = f"cuda:{gpu.ordinal}"
    kept = one.through(lambda array: torch.as_tensor(array, device=device))
    with torch.cuda.device(gpu.ordinal), torch.cuda.stream(torch.cuda.Stream()):
        fresh = of_fresh(ours.operator.step, lambda: kept.through(lambda array: array.view(array.shape)))
        return host_time(fresh, torch.cuda.synchronize, CALLS, BATCHES)


def cupy_time(gpu: Gpu, ours: Ours, one: InputSet) -> Timing:
    """Unbound calls with five fresh CuPy arrays, on CuPy's current stream."""
    if importlib.util.find_spec("cupy") is None:
        raise Unavailable("CuPy is not installed")
    import cupy

    with cupy.cuda.Device(gpu.ordinal):
        kept = one.through(cupy.asarray)
        with cupy.cuda.Stream(non_blocking=True):
            fresh = of_fresh(ours.operator.step, lambda: kept.through(lambda array: array.view()))
            return host_time(fresh, gpu.synchronize, CALLS, BATCHES)


def numba_time(gpu: Gpu, ours: Ours, one: InputSet) -> Timing:
    """Unbound calls with five fresh Numba arrays, on Numba's default stream."""
    if importlib.util.find_spec("numba") is None or importlib.util.find_spec("numba.cuda") is None:
        raise Unavailable("Numba's CUDA target is not installed")
    from numba import cuda

    cuda.select_device(gpu.ordinal)
    fresh = of_fresh(ours.operator.step, lambda: one.through(cuda.as_cuda_array))
    return host_time(fresh, gpu.synchronize, CALLS, BATCHES)


def pointers_time(gpu: Gpu, ours: Ours, one: InputSet) -> Timing:
    """Unbound calls with five raw pointers, which the caller made once."""
    kept = one.through(as_argument)
    stream = gpu.handle

    def call() -> None:
        ours.operator.step(
            kept.q, kept.pi, kept.grad, legal_actions=kept.legal, row_weights=kept.weights, stream=stream
        )

    return host_time(of_call(call), gpu.synchronize, CALLS, BATCHES)


def bound_time(gpu: Gpu, ours: Ours) -> Timing:
    """Bound steps, with the stream as an integer."""
    step, stream = ours.bound[0].step, gpu.handle
    return host_time(of_call(lambda: step(stream)), gpu.synchronize, CALLS, BATCHES)


def run(recorder: Recorder, gpu: Gpu, work: Path) -> None:
    """Measure everything at a size where the device is faster than the host."""

    def put(name: str, measure, *arguments) -> None:
        taken = recorder.attempt(f"host, {name}", measure, *arguments)
        if taken is not None:
            recorder.put(host_us={name: round(taken.us, 3)}, host_spread={name: round(taken.spread, 3)})

    def measure_all(case: Case) -> None:
        with device_sets(gpu, case) as sets:
            ours = Ours(case, sets, f"cuda:{gpu.ordinal}")
            launches = launches_of(gpu, ours)
            recorder.put(host_us={"launches": launches, "rows": case.rows})
            native = recorder.attempt("compiling the bare launches", Native, work, gpu.capability)
            if native is not None:
                put("bare_c", native.launches_time, launches, gpu.capability >= (9, 0), CALLS, BATCHES)
            put("bound", bound_time, gpu, ours)
            put("pointers", pointers_time, gpu, ours, sets[0])
            put("torch", torch_time, gpu, ours, sets[0])
            put("cupy", cupy_time, gpu, ours, sets[0])
            put("numba", numba_time, gpu, ours, sets[0])

    recorder.attempt("host", measure_all, Case(ROWS, options=OPTIONS))
