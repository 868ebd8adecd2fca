"""Everything that needs a GPU, in one script: the tests, compute-sanitizer, the benchmark.

    python tools/gpu_check.py                  build for this machine's GPU, run all of it, write the result
    python tools/gpu_check.py --stale          no GPU: does the recorded result belong to these sources?
    python tools/gpu_check.py --compare FRESH [RECORDED]      no GPU: which ratios are worse in another result?

Needs Python 3.11, pip, a driver, nvcc, and what the build and the tests import (scikit-build-core, Cython, NumPy,
cuda-core, cuda-bindings, pytest, hypothesis). What else is missing is named and left out. The exit status is 1 where a
stage, a test, a sanitizer or a comparison fails, 2 where there is no GPU.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import sys
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "gpu.json"
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from checks.sources import sources_sha256, why_stale  # noqa: E402

PARTS = ("tests", "sanitize", "bench")
LARGEST_LOG = 3 << 20


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_argument_group("parts (none named: all three)")
    parts.add_argument("--tests", action="store_true", help="the GPU tests, and the CPU tests on this machine's CPU")
    parts.add_argument("--sanitize", action="store_true", help="compute-sanitizer's four tools")
    parts.add_argument("--bench", action="store_true", help="the benchmark")
    package = parser.add_argument_group("the package (default: build it from this tree)").add_mutually_exclusive_group()
    package.add_argument("--wheel", type=Path, metavar="FILE", help="install this wheel instead")
    package.add_argument("--installed", action="store_true", help="take what this interpreter imports")
    parser.add_argument("--architectures", metavar="LIST", help="CMAKE_CUDA_ARCHITECTURES (default: this GPU's)")
    parser.add_argument("--seeds", type=Path, metavar="DIR", help="folder with the two seed kernels, to time them too")
    parser.add_argument("--out", type=Path, metavar="DIR", help="copy result, summary and logs there after each stage")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "gpu_check", metavar="DIR", help="for builds")
    parser.add_argument("--limit", type=float, default=0, metavar="SECONDS", help="be done by then; 0: no limit")
    parser.add_argument("--serial", action="store_true", help="tests and sanitizers one after the other")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="keep the recorded result, and list what is worse than in it; the new one goes to --work and --out",
    )
    parser.add_argument("--stale", action="store_true", help="only say whether the recorded result is of other sources")
    parser.add_argument(
        "--compare",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="only list what is worse in the first result than in the second (default: the recorded one); 1 if any is",
    )
    parsed = parser.parse_args(arguments)
    if parsed.compare and len(parsed.compare) > 2:
        parser.error("--compare takes a fresh result and, at most, the one to compare it with")
    return parsed


class Result:
    """The result file: what is recorded of the same sources on the same device, plus what this run adds.

    Parameters
    ----------
    path : Path
        Where it is written.
    facts : dict
        The fields that say what it belongs to.
    out : Path, optional
        Where a copy goes, with the logs.
    logs : Path
        The folder for logs.
    """

    def __init__(self, path: Path, facts: dict, out: Path | None, logs: Path):
        self.path, self.out, self.logs = path, out, logs
        self.data = facts
        try:
            recorded = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            recorded = {}
        if all(recorded.get(key) == facts[key] for key in ("sources_sha256", "device")):
            recorded.pop("notes", None)
            self.data = {**recorded, **facts}

    def add(self, **values) -> None:
        """Merge, write, copy."""
        from benchmarks.results import update, write_json

        self.data = update(self.data, values)
        write_json(self.path, self.data)
        self.copy()

    def copy(self) -> None:
        """Into --out: the result, the summary, and the logs, those of a kind in one file."""
        if self.out is None:
            return
        from benchmarks.report import render

        self.out.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            shutil.copyfile(self.path, self.out / "gpu.json")
        (self.out / "summary.txt").write_text(render(self.data) + "\n", encoding="utf-8")
        kinds: dict[str, list[Path]] = {}
        for log in sorted(self.logs.glob("*.log")):
            kinds.setdefault(log.stem.partition("-")[0], []).append(log)
        for kind, logs in kinds.items():
            with (self.out / f"{kind}.log").open("wb") as target:
                for log in logs:
                    data = log.read_bytes()
                    target.write(f"######## {log.name}\n".encode())
                    target.write(data if len(data) <= LARGEST_LOG else b"[...]\n" + data[-LARGEST_LOG:])


def check(arguments: argparse.Namespace) -> int:
    from benchmarks.native import find_nvcc
    from benchmarks.report import regressions, render
    from benchmarks.results import Unavailable
    from checks import bench, install, sanitizer, suites
    from checks.machine import find_gpu, find_tool, nvcc_version
    from checks.process import Clock, say

    gpu = find_gpu()
    if isinstance(gpu, str):
        print(f"no GPU can be checked here: {gpu}", file=sys.stderr)
        return 2
    clock = Clock(arguments.limit)
    parts = [part for part in PARTS if getattr(arguments, part)] or PARTS
    work = arguments.work.resolve()
    logs = work / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    try:
        nvcc = find_nvcc()
    except Unavailable:
        nvcc = None
    say(
        f"{gpu.count} x {gpu.name} (sm_{gpu.capability[0]}{gpu.capability[1]}), driver {gpu.driver}, CUDA {gpu.cuda}, "
        f"nvcc {nvcc_version(nvcc) or 'not found'}, {os.cpu_count()} cores"
    )

    path = RESULT
    if arguments.keep:
        path = work / "gpu.json"
        path.unlink(missing_ok=True)
    result = Result(
        path,
        {
            "device": gpu.name,
            "driver": gpu.driver,
            "cuda": gpu.cuda,
            "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "sources_sha256": sources_sha256(ROOT),
        },
        arguments.out,
        logs,
    )
    problems: list[str] = []

    try:
        site = None
        if not arguments.installed:
            site = install.install(
                ROOT,
                work,
                logs,
                clock,
                wheel=arguments.wheel,
                nvcc=nvcc,
                architectures=arguments.architectures or gpu.architecture,
            )
        package = install.probe(logs, clock, site)
    except install.Failed as error:
        result.copy()
        print(f"\nFAILED: the package cannot be had\n{error}", flush=True)
        return 1
    say(f"qpi_distill {package.versions.get('qpi-distill', '?')} from {package.file}")
    result.add(versions={**package.versions, "nvcc": nvcc_version(nvcc)})

    # The checks run side by side: each is a process of its own, and none of them is timed. Where time is short they
    # come before the benchmark, which can leave parts out.
    reserve = clock.half_at_most(bench.EXPECTED_SECONDS if "bench" in parts else 15)
    program = find_tool("compute-sanitizer", nvcc)
    tests: dict[str, suites.Outcome] = {}
    verdicts: dict[str, str] = {}
    with ThreadPoolExecutor(1 if arguments.serial else 8) as pool:
        running: dict[Future, tuple[dict, str]] = {}
        if "tests" in parts:
            for name in ("gpu", "cpu"):
                job = pool.submit(suites.run_suite, name, ROOT, logs, clock, package.env, gpu, reserve)
                running[job] = tests, name
        if "sanitize" in parts and program is None:
            verdicts.update(dict.fromkeys(sanitizer.TOOLS, "not run: compute-sanitizer was not found"))
        elif "sanitize" in parts:
            for tool in sanitizer.TOOLS:
                job = pool.submit(sanitizer.run_tool, tool, program, ROOT, logs, clock, package.env, reserve)
                running[job] = verdicts, tool
        for job in as_completed(running):
            where, name = running[job]
            try:
                where[name] = job.result()
            except Exception as error:  # one stage must not take the others with it
                text = f"{type(error).__name__}: {error}"
                where[name] = suites.Outcome(failed=1, failures=[text]) if where is tests else f"not run: {text}"
            result.add(**({"tests": suites.together(tests)} if where is tests else {"sanitizer": dict(verdicts)}))
    if verdicts:
        result.add(sanitizer={tool: verdicts[tool] for tool in sanitizer.TOOLS})
    problems += [f"{out.failed} tests of suite {name}" for name, out in tests.items() if out.failed]
    problems += [f"{tool}: {text}" for tool, text in verdicts.items() if text != "passed"]

    if "bench" in parts:
        recorded = json.loads(RESULT.read_text(encoding="utf-8")) if arguments.keep and RESULT.exists() else {}
        for measured in bench.run_parts(ROOT, work, logs, clock, package.env, arguments.seeds):
            result.add(**measured)
        if not result.data.get("step"):
            problems.append("the benchmark has measured nothing")
        if arguments.keep:
            worse = regressions(recorded, result.data) if recorded else ["there is no recorded result to compare with"]
            problems += [f"worse: {line}" for line in worse]

    print(f"\n{render(result.data)}\n")
    print("\n".join(f"FAILED: {problem}" for problem in problems) or "all checks passed", flush=True)
    return 1 if problems else 0


def compare(fresh: Path, recorded: Path) -> int:
    """Print what is worse in a fresh result than in a recorded one; 1 if anything is, 2 where one cannot be read."""
    from benchmarks.report import regressions

    results = []
    for path in (recorded, fresh):
        try:
            results.append(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 2
    found = regressions(*results)
    print("\n".join(found) or "nothing is worse")
    return 1 if found else 0


def main(words: list[str] | None = None) -> int:
    arguments = parse(words)
    if arguments.compare:
        return compare(*arguments.compare, *(() if len(arguments.compare) == 2 else (RESULT,)))
    if arguments.stale:
        reason = why_stale(ROOT, RESULT)
        if reason:
            print(reason)
        return 1 if reason else 0
    return check(arguments)


if __name__ == "__main__":
    sys.exit(main())
