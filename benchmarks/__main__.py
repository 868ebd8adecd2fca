"""`python -m benchmarks run | report`: see README.md beside this file."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from . import cores
from .cases import CPU_CORES
from .report import render
from .results import Recorder

RESULT = Path(__file__).parent / "results" / "gpu.json"
PARTS = ("step", "peers", "host", "cpu", "import", "step-compiled", "cpu-compiled")


def load(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def run(part: str, recorder: Recorder, work: Path, seeds: Path | None, ordinal: int) -> None:
    """Measure one part. The process is its own: some parts keep it to a few cores."""
    if part == "import":
        from . import importing

        importing.run(recorder)
        return
    if part.startswith("cpu"):
        cores.keep_to(CPU_CORES)
        from . import cpu

        cpu.run(recorder, compiled=part == "cpu-compiled")
        return
    if part == "step-compiled":
        cores.leave(CPU_CORES)  # "cpu-compiled" may run beside it
    from . import host, step, versus
    from .gpu import Gpu

    gpu = recorder.attempt("opening the GPU", Gpu, ordinal)
    if gpu is None:
        return
    if part == "host":
        host.run(recorder, gpu, work)
    elif part == "step":
        step.run(recorder, gpu)
    else:
        versus.run(recorder, gpu, work, seeds, compiled=part == "step-compiled")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="measure one part")
    running.add_argument("part", choices=PARTS)
    running.add_argument("--output", type=Path, required=True, help="JSON file, rewritten after every measurement")
    running.add_argument("--work", type=Path, default=Path("build/benchmarks"), help="where native code is built")
    running.add_argument("--seeds", type=Path, help="folder with the two seed kernels")
    running.add_argument("--device", type=int, default=0, help="ordinal of the GPU")
    running.add_argument("--limit", type=float, default=0, help="seconds after which nothing more is begun")
    reporting = commands.add_parser("report", help="print a result and which figures it reaches")
    reporting.add_argument("result", type=Path, nargs="?", default=RESULT)
    arguments = parser.parse_args()
    if arguments.command == "run":
        recorder = Recorder(arguments.output, arguments.limit)
        run(arguments.part, recorder, arguments.work, arguments.seeds, arguments.device)
        return 0
    print(render(load(arguments.result)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
