"""How long the imports take, each in a process of its own."""

from __future__ import annotations

import statistics
import subprocess
import sys

from .results import Recorder

CODE = "import time; begun = time.perf_counter(); import {module}; print(time.perf_counter() - begun)"
TIMES = 7


def import_s(module: str) -> float:
    """Seconds of `import module` in a fresh process; the median, after one that warms the file cache."""
    command = [sys.executable, "-c", CODE.format(module=module)]
    taken = [
        float(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)
        for _ in range(TIMES + 1)
    ]
    return statistics.median(taken[1:])


def run(recorder: Recorder) -> None:
    seconds = {}
    for module in ("numpy", "qpi_distill"):
        taken = recorder.attempt(f"import {module}", import_s, module)
        if taken is not None:
            seconds[module] = round(taken, 4)
    recorder.put(import_s=seconds)
