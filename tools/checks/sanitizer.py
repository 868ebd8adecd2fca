"""compute-sanitizer's four tools over the tests marked `sanitizer`."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from .process import Clock, Finished, run, say
from .suites import PYTEST_ENV, pytest_command, read_junit

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
MOST_SECONDS = 400
FOUND = 86  # the exit status that stands for "the tool found something"
FIRST_PORT = 49152
PORTS = 16


def options_for(program: str, tool: str) -> list[str]:
    """What this version of the program is asked for."""
    options = ["--tool", tool, "--target-processes", "all", "--error-exitcode", str(FOUND), "--print-limit", "30"]
    try:
        done = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=60, check=False)
        known = done.stdout + done.stderr
    except (OSError, subprocess.TimeoutExpired):
        known = ""
    # Tests ask the driver for what it refuses; that a refusal is handled is for them to say.
    if tool == "memcheck" and "--report-api-errors" in known:
        options += ["--report-api-errors", "no"]
    # The tools run side by side, each with ports of its own.
    if re.search(r"--port\b", known):
        options += ["--port", str(FIRST_PORT + PORTS * TOOLS.index(tool))]
    return options


def verdict(done: Finished, tests: int, failed: int) -> str:
    """ "passed", or what is wrong.

    Parameters
    ----------
    done : Finished
        The tool's run.
    tests, failed : int
        Tests that ran under it, and those of them that failed.
    """
    text = done.text
    errors = sum(int(number) for number in re.findall(r"ERROR SUMMARY: (\d+) error", text))
    hazards = sum(int(number) for number in re.findall(r"RACECHECK SUMMARY: (\d+) hazard", text))
    summaries = "ERROR SUMMARY" in text or "RACECHECK SUMMARY" in text
    if done.timed_out:
        return f"failed: {done.how}"
    if errors:
        return f"failed: {errors} errors"
    if hazards:
        return f"failed: {hazards} hazards"
    if done.code == FOUND:
        return "failed: it found errors"
    if not summaries or "Device not supported" in text:
        reason = re.search(r"={5,} (?:Error|Internal Sanitizer Error): ?(.*)", text)
        return f"not run: {reason[1].strip()[:100] if reason else done.how}"
    if failed:
        return f"failed: {failed} tests fail under it"
    if tests == 0:
        return "failed: no test ran"
    if done.code != 0:
        return f"failed: {done.how}"
    return "passed"


def run_tool(tool: str, program: str, root: Path, logs: Path, clock: Clock, env: dict[str, str], reserve: float) -> str:
    """Run one tool and return its verdict."""
    junit = logs / f"sanitizer-{tool}.xml"
    junit.unlink(missing_ok=True)
    command = [program, *options_for(program, tool), *pytest_command()]
    command += ["-v", "--tb=short", "-m", "sanitizer", f"--junitxml={junit}", "tests/gpu"]
    done = run(
        command,
        logs / f"sanitizer-{tool}.log",
        limit=clock.left(MOST_SECONDS, reserve),
        cwd=root,
        env={**PYTEST_ENV, "QPI_TEST_REQUIRE_GPU": "1", **env},
    )
    seen = read_junit(junit)
    tests, failed = (seen.passed, seen.failed) if seen else (0, 0)
    text = verdict(done, tests, failed)
    say(f"{tool}: {text} ({tests} tests, {done.seconds:.0f} s)")
    return text
