"""How time is taken: medians of graph replays by events, of host loops by the clock, and the copy rate beside them."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from .arrays import random_block

if TYPE_CHECKING:
    from .gpu import Gpu

REPLAY_US = 3000  # a graph holds about as many steps as take this long, so that its launch does not show
MOST_STEPS = 200
BUDGET_MS = 100


def steps_per_graph(estimate_us: float, sets: int) -> int:
    """How many steps one graph holds: every input set the same number of times."""
    wanted = min(max(REPLAY_US / estimate_us, 1), MOST_STEPS)
    return sets * max(round(wanted / sets), 1)


def graph_us(gpu: Gpu, launch: Callable[[], None], steps: int) -> float:
    """Microseconds of one step, from replays of a graph that holds `steps` of them. The median of 10 to 60 replays."""
    gpu.times_ms(launch, 2)
    once = min(gpu.times_ms(launch, 2))
    repeats = min(max(round(BUDGET_MS / max(once, 1e-3)), 10), 60)
    return statistics.median(gpu.times_ms(launch, repeats)) * 1000 / steps


def copy_tb_s(gpu: Gpu, nbytes: int = 4 << 30) -> float:
    """Bytes read plus bytes written per second of a device-to-device copy far beyond L2, in TB/s."""
    from .gpu import Memory

    nbytes = min(nbytes, gpu.free_bytes() // 4) // 256 * 256
    source = Memory(nbytes)
    target = Memory(nbytes)
    try:
        source.fill(random_block("float32"))
        gpu.synchronize()
        gpu.times_ms(lambda: gpu.copy(target, source), 3)
        milliseconds = statistics.median(gpu.times_ms(lambda: gpu.copy(target, source), 20))
    finally:
        source.free()
        target.free()
    return 2 * nbytes / milliseconds / 1e9


def host_us(batch: Callable[[int], Callable[[], None]], settle: Callable[[], None], calls: int, batches: int) -> float:
    """Microseconds of host time per call: the median over batches that fit in the launch queue.

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
    return statistics.median(taken[2:])


def wall_us(step: Callable[[], None], steps: int, budget_s: float = 1.0) -> float:
    """Microseconds of one step on the CPU, where `step` makes `steps` of them: the median of at least 3 calls."""
    step()
    begun = time.perf_counter()
    step()
    once = time.perf_counter() - begun
    taken = []
    for _ in range(min(max(round(budget_s / max(once, 1e-7)), 3), 2000)):
        begun = time.perf_counter()
        step()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken) * 1e6 / steps
