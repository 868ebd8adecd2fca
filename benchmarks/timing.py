"""How time is taken: medians of graph replays by events, of host loops by the clock, and the copy rate beside them."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from .arrays import normal_block

if TYPE_CHECKING:
    from .gpu import Gpu

REPLAY_US = 3000  # a graph holds about as many steps as take this long, so that its launch does not show
MOST_STEPS = 1000
BUDGET_MS = 100
COPY_BYTES = (1 << 30, 2 << 30, 4 << 30)


class Timing(NamedTuple):
    """A time and how far its repetitions scatter."""

    us: float  # the median
    spread: float  # the middle half of them, as a share of the median

    @classmethod
    def of(cls, taken_us: Sequence[float]) -> Timing:
        """The timing that these repetitions make."""
        middle = statistics.median(taken_us)
        low, _, high = statistics.quantiles(taken_us, n=4, method="inclusive")
        return cls(middle, (high - low) / middle if middle else 0.0)


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


def wall_time(step: Callable[[], None], steps: int, budget_s: float = 1.0) -> Timing:
    """One step on the CPU, where `step` makes `steps` of them: at least 5 calls, after two that warm up."""
    step()
    begun = time.perf_counter()
    step()
    once = time.perf_counter() - begun
    taken = []
    for _ in range(min(max(round(budget_s / max(once, 1e-7)), 5), 2000)):
        begun = time.perf_counter()
        step()
        taken.append(time.perf_counter() - begun)
    return Timing.of([1e6 * seconds / steps for seconds in taken])
