"""The test suites, and what they say."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from .machine import Gpu
from .process import Clock, Finished, run, say

MOST_SECONDS = 400
TEST_SECONDS = 150
# tests/adapters have nox sessions of their own, on a GPU machine too: compiling by torch and JAX takes minutes.
GPU_PATHS = ("tests/gpu", "tests/math", "tests/python")
CPU_PATHS = ("tests/math", "tests/python")
GPU_MARKERS = "gpu or gpu2"
CPU_MARKERS = "not gpu and not gpu2"
GPU_WORKERS = 6
LARGEST_TEST_BYTES = 20 << 30
NOTHING_COLLECTED = 5
MESSAGE_LENGTH = 100
# The suites run in many processes: a linear algebra library must not take every core in each of them.
PYTEST_ENV = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}


@dataclass
class Outcome:
    """What a suite has to show."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list[str] = field(default_factory=list)


def pytest_command(*plugins: str) -> list[str]:
    """pytest with these plugins and no other: what else is installed must not decide about our tests."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    for plugin in plugins:
        if importlib.util.find_spec(plugin.partition(".")[0]) is not None:
            command += ["-p", plugin]
    return command


def read_junit(path: Path) -> Outcome | None:
    """Counts and failures of a JUnit file, or None where there is no whole one."""
    try:
        tree = ElementTree.parse(path)
    except (OSError, ElementTree.ParseError):
        return None
    out = Outcome()
    for case in tree.iter("testcase"):
        kinds = {child.tag: child for child in case}
        wrong = kinds.get("failure", kinds.get("error"))
        if wrong is not None:
            out.failed += 1
            why = " ".join((wrong.get("message") or "").split())[:MESSAGE_LENGTH]
            out.failures.append(f"{case.get('classname', '')}::{case.get('name', '')} - {why}")
        elif "skipped" in kinds:
            out.skipped += 1
        else:
            out.passed += 1
    return out


def read_verbose(text: str) -> Outcome:
    """The same from the log of a run with -v that was stopped."""
    out = Outcome()
    # Workers write the outcome first; without them the name comes first.
    for line in text.splitlines():
        found = re.search(r"\b(PASSED|FAILED|ERROR|SKIPPED)\b +(\S+::.*)$", line) or re.search(
            r"^(?P<name>\S+::.*?) (?P<what>PASSED|FAILED|ERROR|SKIPPED)\b", line
        )
        if found is None:
            continue
        what, name = (found["what"], found["name"]) if "what" in found.re.groupindex else found.groups()
        if what == "PASSED":
            out.passed += 1
        elif what == "SKIPPED":
            out.skipped += 1
        else:
            out.failed += 1
            out.failures.append(name.strip())
    return out


def outcome_of(done: Finished, junit: Path) -> Outcome:
    """The outcome, with a failure of its own where the run as such went wrong."""
    out = read_junit(junit)
    if out is None:
        out = read_verbose(done.text)
    if done.timed_out or done.code not in (0, 1) or (done.code == 1 and out.failed == 0):
        out.failed += 1
        what = "no test was collected" if done.code == NOTHING_COLLECTED else done.how
        out.failures.append(f"{done.log.name}: {what}")
    return out


def run_suite(
    name: str, root: Path, logs: Path, clock: Clock, env: dict[str, str], gpu: Gpu, reserve: float
) -> Outcome:
    """Run suite "gpu" or "cpu" over as many processes as the machine carries.

    Parameters
    ----------
    name : str
        Which.
    root, logs : Path
        The source tree and the folder for logs.
    clock : Clock
        The time that is left, of which `reserve` seconds are for others.
    env : dict
        Makes the package importable.
    gpu : Gpu
        Its memory bounds the processes of suite "gpu".
    """
    cores = os.cpu_count() or 1
    if name == "gpu":
        paths, markers = GPU_PATHS, GPU_MARKERS
        workers = max(min(GPU_WORKERS, cores // 2, gpu.memory_bytes // LARGEST_TEST_BYTES), 1)
    else:
        paths, markers = CPU_PATHS, CPU_MARKERS
        workers = max(cores // 2, 1)
    junit = logs / f"tests-{name}.xml"
    junit.unlink(missing_ok=True)
    command = pytest_command("xdist.plugin", "pytest_timeout", "_hypothesis_pytestplugin")
    if "xdist.plugin" in command:
        command += ["-n", str(workers), "--dist", "loadgroup"]
    if "pytest_timeout" in command:
        command += [f"--timeout={TEST_SECONDS}"]
    command += ["-v", "--tb=short", "-m", markers, f"--junitxml={junit}", *paths]
    done = run(
        command,
        logs / f"tests-{name}.log",
        limit=clock.left(MOST_SECONDS, reserve),
        cwd=root,
        env={**PYTEST_ENV, "QPI_TEST_REQUIRE_GPU": "1" if name == "gpu" else "0", **env},
    )
    out = outcome_of(done, junit)
    say(f"tests, {name}: {out.passed} passed, {out.failed} failed, {out.skipped} skipped ({done.how})")
    return out


def together(outcomes: dict[str, Outcome]) -> dict:
    """The field "tests" of a result."""
    return {
        "passed": sum(out.passed for out in outcomes.values()),
        "failed": sum(out.failed for out in outcomes.values()),
        "skipped": sum(out.skipped for out in outcomes.values()),
        "failures": [f"{name}: {failure}" for name, out in outcomes.items() for failure in out.failures],
    }
