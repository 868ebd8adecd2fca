"""How time is taken: medians of graph replays by events, of host loops by the clock, and the copy rate beside them."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from qpi_distill.bench.timing import Timing, wall_time

from .arrays import normal_block

if TYPE_CHECKING:
    from .gpu import Gpu

__all__ = ["Timing", "copy_tb_s", "graph_time", "host_time", "steps_per_graph", "wall_time"]

REPLAY_US = 3000  # a graph holds about as many steps as take this long, so that its launch does not show
MOST_STEPS = 1000
BUDGET_MS = 100
COPY_BYTES = (1 << 30, 2 << 30, 4 << 30)


def steps_per_graph(estimate_us: float, sets: int) -> int:
    """How many steps one graph holds: every input set the same number of times."""
    wanted = min(max(REPLAY_US / estimate_us, 1), MOST_STEPS)
    return sets * max(round(wanted / sets), 1)


def graph_time(gpu: Gpu, launch: Callable[[], None], steps: int, budget_ms: float = BUDGET_MS) -> Timing:
    """One step, from replays of a graph that holds `steps` of them: 10 to 60 replays, after four that warm up."""
    gpu.times_ms(launch, 2)
    once = min(gpu.times_ms(launch, 2))
    repeats = min(max(round(budget_ms / max(once, 1e-3)), 10), 60)
    return Timing.of([1000 * taken / steps for taken in gpu.times_ms(launch, repeats)])


def copy_tb_s(gpu: Gpu) -> float:
    """Bytes read plus bytes written per second of a device-to-device copy far beyond L2, in TB/s: the best size's."""
    from .gpu import Memory

    most = min(max(COPY_BYTES), gpu.free_bytes() // 4) // 256 * 256
    source = Memory(most)
    target = Memory(most)
    rates = []
    try:
        source.fill(normal_block())
        gpu.synchronize()
        for nbytes in sorted({min(size, most) for size in COPY_BYTES}):
            gpu.times_ms(lambda size=nbytes: gpu.copy(target, source, size), 3)
            taken = statistics.median(gpu.times_ms(lambda size=nbytes: gpu.copy(target, source, size), 20))
            rates.append(2 * nbytes / taken / 1e9)
    finally:
        source.free()
        target.free()
    return max(rates)


def host_time(
    batch: Callable[[int], Callable[[], None]], settle: Callable[[], None], calls: int, batches: int
) -> Timing:
    """Host time of a call, over batches that fit in the launch queue.

    Parameters
    ----------
    batch : callable
        Given the number of calls, prepares them and returns a function that makes them all. Preparing is not timed.
    settle : callable
        Waits until the device is idle; not timed either.
    calls, batches : int
        Calls in a batch, and number of batches. The first two are not counted.
    """
    taken = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(batches + 2):
            run = batch(calls)
            settle()
            begun = time.perf_counter_ns()
            run()
            taken.append((time.perf_counter_ns() - begun) / calls / 1000)
            settle()
            del run
    finally:
        gc.enable()
    return Timing.of(taken[2:])
