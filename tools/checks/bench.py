"""Runs the benchmark, a process for each part, so that one that dies takes no other with it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .process import Clock, run, say

# In the order of their worth; the compilers come last. Seconds that each may take at most.
SECONDS = {"step": 60, "host": 40, "peers": 60, "cpu": 40, "import": 20, "step-compiled": 90, "cpu-compiled": 90}
EXPECTED_SECONDS = 150  # of them all

# These two spend their time compiling: they may run side by side, where each has cores of its own. Steps on the GPU are
# timed in graphs, which do not see the host.
TOGETHER = ("step-compiled", "cpu-compiled")
FEWEST_CORES = 8

Measured = dict


def groups(cores: int) -> list[tuple[str, ...]]:
    """Which parts run after one another, and which side by side."""
    alone = [(part,) for part in SECONDS if part not in TOGETHER]
    return [*alone, TOGETHER] if cores >= FEWEST_CORES else [*alone, *((part,) for part in TOGETHER)]


def run_part(
    part: str, limit: float, root: Path, work: Path, logs: Path, env: dict[str, str], seeds: Path | None
) -> Measured:
    """What one part has measured when it ends or is stopped, with a note where it did not end well."""
    output = logs / f"bench-{part}.json"
    output.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks", "run", part, "--output", output, "--work", work]
    command += ["--limit", f"{0.8 * limit:.0f}"]
    if seeds is not None:
        command += ["--seeds", seeds.resolve()]
    done = run(command, logs / f"bench-{part}.log", limit=limit, cwd=root, env=env)
    try:
        measured = json.loads(output.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        measured = {}
    if done.code != 0 or not measured:
        measured["notes"] = [*measured.get("notes", []), f"benchmark, {part}: {done.how}"]
    say(f"benchmark, {part}: {len(measured.get('step', []))} rows ({done.how})")
    return measured


def run_parts(
    root: Path, work: Path, logs: Path, clock: Clock, env: dict[str, str], seeds: Path | None
) -> Iterator[Measured]:
    """Run the parts and give what each has measured.

    Parameters
    ----------
    root, work, logs : Path
        The source tree, the folder for native code, and the one for logs.
    clock : Clock
        The time that is left. A part gets what it may take, or what is left; one that is stopped has given the rest.
    env : dict
        Makes the package importable.
    seeds : Path, optional
        Folder with the seed kernels.
    """
    with ThreadPoolExecutor(len(TOGETHER)) as pool:
        for parts in groups(len(os.sched_getaffinity(0))):
            limits = [clock.left(SECONDS[part]) for part in parts]
            jobs = [
                pool.submit(run_part, part, limit, root, work, logs, env, seeds)
                for part, limit in zip(parts, limits, strict=True)
            ]
            for job in jobs:
                yield job.result()
