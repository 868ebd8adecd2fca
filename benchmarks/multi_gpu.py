"""The data-parallel run on all GPUs of a machine: what has to hold, and what it costs.

    python benchmarks/multi_gpu.py                        every GPU, build for them, write results/multi_gpu.json
    python benchmarks/multi_gpu.py --device cpu --ranks 2 --installed --out FILE       the same with processes alone

Needs torch, which connects the ranks (or `--through nccl4py`), a driver, and what tools/gpu_check.py needs to build.
Checks: λ, τ, averages and counters the same bits on every rank after every commit, one by one and out of a CUDA graph;
the statistic and λ of one device for equal, uneven and empty shards and one whose rows are all skipped; the tests that
need two GPUs. Then times. The exit status is 1 where a check fails or is missing, 2 where there are too few GPUs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "multi_gpu.json"
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from checks.sources import DISTRIBUTED, sources_sha256  # noqa: E402

SPEEDUP = 1.95 / 2  # of the ideal, at the largest size
RANK_SECONDS = 400
TEST_SECONDS = 200


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--ranks", type=int, default=0, help="default: every GPU; on the CPU two")
    parser.add_argument("--through", choices=("torch", "nccl4py"), default="torch", help="what connects the ranks")
    parser.add_argument("--steps", type=int, default=10_000, help="commits that have to be the same bits")
    parser.add_argument("--split-rows", type=int, default=4095, help="rows that are split in different ways")
    parser.add_argument("--rows", type=int, nargs="+", help="rows on a rank to time (default: 64 to 1 048 576)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the result (default: results/multi_gpu.json)")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "multi_gpu", metavar="DIR", help="for builds")
    package = parser.add_argument_group("the package (default: build it from this tree)").add_mutually_exclusive_group()
    package.add_argument("--wheel", type=Path, metavar="FILE", help="install this wheel instead")
    package.add_argument("--installed", action="store_true", help="take what this interpreter imports")
    arguments = parser.parse_args(words)
    if arguments.device == "cpu" and arguments.out is None:
        parser.error("--device cpu needs --out: the recorded result is of GPUs")
    if arguments.device == "cpu" and not (arguments.installed or arguments.wheel):
        parser.error("--device cpu needs --installed or --wheel: what is built here is for GPUs")
    if arguments.device == "cpu" and arguments.through != "torch":
        parser.error("--device cpu is connected by torch alone")
    if arguments.steps < 1 or arguments.ranks < 0:
        parser.error("--steps and --ranks are counts")
    return arguments


def ranks_of(arguments: argparse.Namespace, gpu) -> int | str:
    """How many there will be, or why they cannot be."""
    if arguments.device == "cpu":
        return arguments.ranks or 2
    if isinstance(gpu, str):
        return gpu
    wanted = arguments.ranks or gpu.count
    return wanted if wanted <= gpu.count else f"{wanted} ranks need as many GPUs, and there are {gpu.count}"


def facts_of(arguments: argparse.Namespace, gpu, ranks: int) -> dict:
    """The fields that say what a result belongs to."""
    from benchmarks.cores import cpu_model

    on_gpu = arguments.device == "cuda"
    return {
        "device": gpu.name if on_gpu else cpu_model(),
        "driver": gpu.driver if on_gpu else "",
        "cuda": gpu.cuda if on_gpu else "",
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "sources_sha256": sources_sha256(ROOT),
        "distributed_sha256": sources_sha256(ROOT, DISTRIBUTED, ()),
        "ranks": ranks,
        "through": arguments.through if on_gpu else "torch, gloo",
    }


def run_ranks(arguments: argparse.Namespace, ranks: int, logs: Path, env: dict[str, str]) -> dict:
    """Start all ranks and return what rank 0 has found; "notes" says how others ended."""
    from checks.process import run

    folder = arguments.work.resolve() / "ranks"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "benchmarks.ranks", "--size", ranks, "--folder", folder]
    command += ["--device", arguments.device, "--through", arguments.through, "--steps", arguments.steps]
    command += ["--split-rows", arguments.split_rows]
    if arguments.rows:
        command += ["--rows", *arguments.rows]
    with ThreadPoolExecutor(ranks) as pool:
        jobs = [
            pool.submit(
                run, [*command, "--rank", rank], logs / f"rank-{rank}.log", limit=RANK_SECONDS, cwd=ROOT, env=env
            )
            for rank in range(ranks)
        ]
        ended = [job.result() for job in jobs]
    try:
        found = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = {}
    notes = [f"rank {rank}: {done.how}" for rank, done in enumerate(ended) if done.code != 0]
    return {**found, **({"notes": notes} if notes else {})}


def test_devices(logs: Path, env: dict[str, str]) -> dict:
    """The tests that need two GPUs: arrays on another device, pointers of two devices, contexts of others."""
    from checks.process import run
    from checks.suites import outcome_of, pytest_command

    junit = logs / "devices.xml"
    junit.unlink(missing_ok=True)
    command = [*pytest_command("pytest_timeout", "_hypothesis_pytestplugin"), "-v", "-m", "gpu2"]
    command += [f"--junitxml={junit}", "tests/gpu"]
    out = outcome_of(run(command, logs / "devices.log", limit=TEST_SECONDS, cwd=ROOT, env=env), junit)
    return {
        "passed": out.passed,
        "failed": out.failed,
        "skipped": out.skipped,
        "failures": out.failures,
        "ok": out.failed == 0 and out.passed > 0,
    }


def problems_of(result: dict) -> list[str]:
    """What does not hold, or was not measured."""
    checks = result.get("checks", {})
    found = [f"{name} does not hold" for name, check in checks.items() if not check["ok"]]
    if not checks:
        found.append("nothing was checked")
    if not result.get("speed"):
        found.append("nothing was timed")
    elif result["cuda"]:
        largest = max(result["speed"], key=lambda row: row["rows"])
        least = SPEEDUP * result["ranks"]
        if result["ranks"] > 1 and largest["speedup"] < least:
            found.append(f"{largest['rows']} rows: {largest['speedup']} times one GPU, expected {least:.2f}")
    return found + result.get("notes", [])


def render(result: dict) -> str:
    """The result as text."""
    where = f"{result['ranks']} ranks through {result['through']}, {result['device']}"
    lines = [f"{where}, {result['date']}", ""]
    for name, check in result.get("checks", {}).items():
        figures = {key: value for key, value in check.items() if key not in ("ok", "failures")}
        lines.append(f"{'ok  ' if check['ok'] else 'FAIL'} {name}  {figures or ''}".rstrip())
    lines += ["", *(f"{name:24} {value:10.2f}" for name, value in result.get("floor", {}).items()), ""]
    rows = result.get("speed", [])
    if rows:
        lines.append("  ".join(f"{name:>19}" for name in rows[0]))
        lines += ["  ".join(f"{value:>19}" for value in row.values()) for row in rows]
    return "\n".join(lines)


def main(words: list[str] | None = None) -> int:
    arguments = parse(words)
    from checks import install
    from checks.machine import find_gpu, nvcc_version
    from checks.process import Clock, say

    from benchmarks.native import find_nvcc
    from benchmarks.results import Unavailable, write_json

    gpu = find_gpu()
    ranks = ranks_of(arguments, gpu)
    if isinstance(ranks, str):
        print(f"no GPUs to run on: {ranks}", file=sys.stderr)
        return 2
    work = arguments.work.resolve()
    logs = work / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    try:
        nvcc = find_nvcc()
    except Unavailable:
        nvcc = None
    result = facts_of(arguments, gpu, ranks)
    clock, site = Clock(0), None
    try:
        if not arguments.installed:
            architecture = "" if isinstance(gpu, str) else gpu.architecture
            site = install.install(
                ROOT, work, logs, clock, wheel=arguments.wheel, nvcc=nvcc, architectures=architecture
            )
        package = install.probe(logs, clock, site)
    except install.Failed as error:
        print(f"FAILED: the package cannot be had\n{error}", file=sys.stderr)
        return 1
    say(f"{ranks} ranks on {result['device']}, qpi_distill from {package.file}")
    result["versions"] = {**package.versions, "nvcc": nvcc_version(nvcc)}
    result |= run_ranks(arguments, ranks, logs, package.env)
    if arguments.device == "cuda" and ranks > 1:
        result.setdefault("checks", {})["devices"] = test_devices(logs, package.env)
    problems = problems_of(result)
    write_json(arguments.out or RESULT, result)
    print(f"\n{render(result)}\n")
    print("\n".join(f"FAILED: {problem}" for problem in problems) or "all checks passed", flush=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
