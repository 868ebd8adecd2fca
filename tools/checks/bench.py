"""Runs the benchmark, a process for each part, so that one that dies takes no other with it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from .process import Clock, run, say

# In the order of their worth; the compilers come last. Seconds that each may take at most.
PARTS = {"step": 120, "host": 60, "import": 40, "cpu": 60, "step-compiled": 150, "cpu-compiled": 90}
EXPECTED_SECONDS = 180  # of them all


def run_parts(
    root: Path, work: Path, logs: Path, clock: Clock, env: dict[str, str], seeds: Path | None
) -> Iterator[dict]:
    """Run the parts one after the other and give what each has measured.

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
    for part, most in PARTS.items():
        limit = clock.left(most)
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
        yield measured
