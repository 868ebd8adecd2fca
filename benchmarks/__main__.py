"""`python -m benchmarks run | report | compare`: see README.md beside this file."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from .report import regressions, render
from .results import Recorder

RESULT = Path(__file__).parent / "results" / "gpu.json"
PARTS = ("step", "host", "cpu", "import", "step-compiled", "cpu-compiled")


def load(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def run(part: str, recorder: Recorder, work: Path, seeds: Path | None, ordinal: int) -> None:
    """Measure one part."""
    if part == "import":
        from . import importing

        importing.run(recorder)
    elif part.startswith("cpu"):
        from . import cpu

        cpu.run(recorder, compiled=part == "cpu-compiled")
    else:
        from . import host, step
        from .gpu import Gpu

        gpu = recorder.attempt("opening the GPU", Gpu, ordinal)
        if gpu is None:
            return
        if part == "host":
            host.run(recorder, gpu, work)
        else:
            step.run(recorder, gpu, work, seeds, compiled=part == "step-compiled")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="measure")
    running.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; none: all of them")
    running.add_argument("--output", type=Path, required=True, help="JSON file, rewritten after every measurement")
    running.add_argument("--work", type=Path, default=Path("build/benchmarks"), help="where native code is built")
    running.add_argument("--seeds", type=Path, help="folder with the two seed kernels")
    running.add_argument("--device", type=int, default=0, help="ordinal of the GPU")
    running.add_argument("--limit", type=float, default=0, help="seconds after which nothing more is begun")
    reporting = commands.add_parser("report", help="print a result and which figures it reaches")
    reporting.add_argument("result", type=Path, nargs="?", default=RESULT)
    comparing = commands.add_parser("compare", help="look for ratios that got worse")
    comparing.add_argument("fresh", type=Path)
    comparing.add_argument("result", type=Path, nargs="?", default=RESULT)
    arguments = parser.parse_args()
    if arguments.command == "run":
        unknown = set(arguments.parts) - set(PARTS)
        if unknown:
            running.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
        recorder = Recorder(arguments.output, arguments.limit)
        for part in arguments.parts or PARTS:
            run(part, recorder, arguments.work, arguments.seeds, arguments.device)
        return 0
    if arguments.command == "report":
        print(render(load(arguments.result)))
        return 0
    found = regressions(load(arguments.result), load(arguments.fresh))
    print("\n".join(found) or "no ratio got worse")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
