"""Processors: what they are called, and keeping a process on a few of them."""

from __future__ import annotations

import os
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")
CPUINFO = Path("/proc/cpuinfo")
THREAD_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def cpu_model() -> str:
    """As the processor calls itself, or an empty string."""
    try:
        lines = CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def siblings(cpu: int) -> str:
    """What the processors that share a core with this one have in common."""
    try:
        return (CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text(encoding="utf-8").strip()
    except OSError:
        return str(cpu)


def few(count: int) -> set[int]:
    """This many of the processors that the process may use, on cores of their own as far as there are."""
    allowed = sorted(os.sched_getaffinity(0))
    cores: dict[str, int] = {}
    for cpu in allowed:
        cores.setdefault(siblings(cpu), cpu)
    first = list(cores.values())
    return set((first + [cpu for cpu in allowed if cpu not in first])[:count])


def keep_to(count: int) -> None:
    """Keep this process, and the threads that its libraries will start, on a few cores. Before those are imported."""
    chosen = few(count)
    os.sched_setaffinity(0, chosen)
    os.environ.update(dict.fromkeys(THREAD_LIMITS, str(len(chosen))))


def leave(count: int) -> None:
    """Keep this process off the cores that another one keeps to."""
    taken = {siblings(cpu) for cpu in few(count)}
    rest = {cpu for cpu in os.sched_getaffinity(0) if siblings(cpu) not in taken}
    if rest:
        os.sched_setaffinity(0, rest)
