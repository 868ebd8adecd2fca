"""The library's whole steps on the GPU, inside CUDA graphs, and their errors against float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from .arrays import DeviceArray, InputSet, period_set, set_count
from .cases import GPU_CASES, ITEM_BYTES, Case
from .gpu import Gpu, Memory
from .ours import Ours, largest_error
from .results import Recorder, Unavailable, case_fields
from .timing import Timing, copy_tb_s, graph_time, steps_per_graph

SPARE_BYTES = 1 << 30


@contextmanager
def device_sets(gpu: Gpu, case: Case) -> Iterator[list[InputSet]]:
    """The sets of a case in device memory, filled; freed at the end."""
    count = set_count(case, gpu.l2_bytes)
    free = gpu.free_bytes() - SPARE_BYTES
    if count * case.bytes > free and case.bytes > 4 * gpu.l2_bytes:
        count = 1
    if count * case.bytes > free:
        raise Unavailable(f"{case.name}: needs {count * case.bytes / 1e9:.1f} GB of device memory")
    memory: list[Memory] = []
    period = period_set(case)

    def make(block: np.ndarray | None, dtype: str) -> DeviceArray | None:
        if block is None:
            return None
        shape = (case.rows, *block.shape[1:])
        memory.append(Memory(math.prod(shape) * ITEM_BYTES.get(dtype, 1)))
        memory[-1].fill(np.ascontiguousarray(block))
        return DeviceArray(memory[-1].address, shape, dtype, gpu.ordinal)

    def make_set() -> InputSet:
        return InputSet(
            q=make(period.q, case.q_dtype),
            pi=make(period.pi, case.pi_dtype),
            grad=make(period.grad, case.grad_dtype),
            legal=make(period.legal, "uint8"),
            weights=make(period.weights, "float32"),
        )

    try:
        sets = [make_set() for _ in range(count)]
        gpu.synchronize()
        yield sets
    finally:
        gpu.synchronize()
        for piece in memory:
            piece.free()


def estimate_us(case: Case, copy_rate: float) -> float:
    """Roughly what a step takes: the launch floor and the bytes."""
    return 4 + case.bytes / (copy_rate * 1e6)


def ours_time(gpu: Gpu, case: Case, sets: list[InputSet], copy_rate: float) -> tuple[Timing, str]:
    """The library's step, and the kernel that it chose."""
    ours = Ours(case, sets, f"cuda:{gpu.ordinal}")
    ours.steps(1, gpu.handle)
    gpu.synchronize()
    steps = steps_per_graph(estimate_us(case, copy_rate), len(sets))
    graph = gpu.capture(lambda: ours.steps(steps, gpu.handle))
    try:
        timing = graph_time(gpu, graph.launch, steps)
        ours.expect(1 + steps * graph.launches, gpu.handle)
    finally:
        graph.free()
    return timing, ours.kernel


def error_of(gpu: Gpu, case: Case, sets: list[InputSet]) -> dict:
    """The field "error" of a row. What the step leaves unwritten is NaN."""
    one = sets[0]
    gpu.set_bytes(one.grad, 255)
    return largest_error(case, one, f"cuda:{gpu.ordinal}", lambda: gpu.fetch(one.grad), gpu.handle)


def run(recorder: Recorder, gpu: Gpu) -> None:
    """Measure the cases."""
    copy_rate = recorder.attempt("copy bandwidth", copy_tb_s, gpu)
    if copy_rate is None:
        return
    recorder.put(copy_tb_s=round(copy_rate, 4))

    def measure(case: Case) -> None:
        with device_sets(gpu, case) as sets:
            timing, kernel = ours_time(gpu, case, sets, copy_rate)
            row = {
                **case_fields(case),
                "kernel": kernel,
                "us": round(timing.us, 3),
                "spread": round(timing.spread, 4),
                "fraction_of_copy": round(case.bytes / (timing.us * copy_rate * 1e6), 4),
                "vs": {},
            }
            recorder.put(step=[row])
            error = recorder.attempt(f"error, {case.name}", error_of, gpu, case, sets)
            if error is not None:
                recorder.put(step=[{**case_fields(case), "error": error}])

    for case in GPU_CASES:
        recorder.attempt(case.name, measure, case)
