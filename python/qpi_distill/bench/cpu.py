"""The CPU as a machine to measure on."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .. import pointer
from .timing import Timing, wall_time

__all__ = ["Cpu", "cache_bytes_of", "cpu_model"]

_CPUS = Path("/sys/devices/system/cpu")
_CPUINFO = Path("/proc/cpuinfo")
_MEMINFO = Path("/proc/meminfo")
_CALL_US = 200.0  # what is timed at once takes about as long as this, so that the clock does not show
_COPY_BYTES = 256 << 20
_MOST_MEMORY = 1 << 30
_UNKNOWN_CACHE = 32 << 20
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "": 1}


def cpu_model(path: Path = _CPUINFO) -> str:
    """Return what the processor calls itself, or an empty string."""
    lines = _text_of(path).splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def cache_bytes_of(cpus: set[int], folder: Path = _CPUS) -> int | None:
    """Return the size of the last-level caches that these processors use, or None where the system does not say."""
    largest: dict[str, tuple[int, int]] = {}
    for cpu in sorted(cpus):
        for index in (folder / f"cpu{cpu}" / "cache").glob("index*"):
            size = re.fullmatch(r"(\d+)([KMG]?)", _text_of(index / "size").strip())
            level = _text_of(index / "level").strip()
            if size and level.isdigit():
                shared = f"{level} {_text_of(index / 'shared_cpu_list').strip() or cpu}"
                largest[shared] = (int(level), int(size[1]) * _UNITS[size[2]])
    last = max((level for level, _ in largest.values()), default=0)
    return sum(size for level, size in largest.values() if level == last) or None


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


class Cpu:
    """Memory and clock of the CPU."""

    device = "cpu"

    def __init__(self) -> None:
        self.cores = len(os.sched_getaffinity(0))
        self.name = cpu_model() or "CPU"
        known = cache_bytes_of(os.sched_getaffinity(0))
        self.cache_bytes, self.cache_known = known or _UNKNOWN_CACHE, known is not None

    def __enter__(self) -> Cpu:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def memory_bytes(self) -> int:
        """Return how much memory the inputs may take."""
        found = re.search(r"^MemAvailable:\s+(\d+) kB$", _text_of(_MEMINFO), re.MULTILINE)
        return min(_MOST_MEMORY, (int(found[1]) << 10) // 4) if found else _MOST_MEMORY // 4

    def array(self, shape: tuple[int, ...], dtype: str, block: np.ndarray[Any, Any]) -> Any:
        """Return an array that repeats a block of values."""
        if dtype != "bfloat16":
            return np.resize(block, shape)
        memory = np.resize(block, shape)  # NumPy has no such type of its own
        return pointer(memory.ctypes.data, shape, dtype, device="cpu", owner=memory)

    def release(self) -> None:
        """Free what `array` gave; NumPy does that."""

    def time(self, step: Callable[[int], None], sets: int, budget_s: float) -> Timing:
        """Return the time of `step(i)`, the step on input set i of so many."""

        def once_each() -> None:
            for i in range(sets):
                step(i)

        estimate = wall_time(once_each, 1, 0.0).us
        rounds = max(round(_CALL_US / max(estimate, 0.01)), 1)

        def several() -> None:
            for _ in range(rounds):
                once_each()

        return wall_time(several, rounds * sets, budget_s)

    def copy_bytes_s(self) -> float:
        """Return how fast one thread copies memory far beyond the cache: bytes read plus written, a second."""
        nbytes = min(_COPY_BYTES, self.memory_bytes() // 2)
        source, target = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
        return 2e6 * nbytes / wall_time(lambda: np.copyto(target, source), 1, 0.3).us
