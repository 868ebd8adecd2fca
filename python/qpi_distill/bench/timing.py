"""How time is taken: a median and how far the repetitions scatter."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

__all__ = ["Timing", "wall_time"]

_FEWEST, _MOST = 5, 2000


class Timing(NamedTuple):
    """A time and how far its repetitions scatter.

    Attributes
    ----------
    us : float
        The median, in microseconds.
    spread : float
        The middle half of them, as a share of the median.
    repeats : int
        How many there were.
    """

    us: float
    spread: float
    repeats: int = 0

    @classmethod
    def of(cls, taken_us: Sequence[float]) -> Timing:
        """Return the timing that these repetitions make."""
        middle = statistics.median(taken_us)
        low, _, high = statistics.quantiles(taken_us, n=4, method="inclusive")
        return cls(middle, (high - low) / middle if middle else 0.0, len(taken_us))


def wall_time(step: Callable[[], None], steps: int, budget_s: float = 1.0) -> Timing:
    """Return the time of one step on the CPU, where `step` makes `steps` of them.

    Parameters
    ----------
    step : callable
        Called twice to warm up, then at least 5 times.
    steps : int
        How many steps a call makes.
    budget_s : float
        About how long to measure, in seconds.
    """
    step()
    begun = time.perf_counter()
    step()
    once = time.perf_counter() - begun
    taken = []
    for _ in range(min(max(round(budget_s / max(once, 1e-7)), _FEWEST), _MOST)):
        begun = time.perf_counter()
        step()
        taken.append(time.perf_counter() - begun)
    return Timing.of([1e6 * seconds / steps for seconds in taken])
