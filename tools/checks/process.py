"""Child processes with a log and a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

STARTED = time.monotonic()
CANNOT_START = 127


def say(text: str) -> None:
    """One line of progress, with the seconds since the start."""
    print(f"[{time.monotonic() - STARTED:5.0f} s] {text}", flush=True)


class Clock:
    """The time that is left of a limit in seconds; 0: there is none."""

    def __init__(self, limit: float):
        self.end = STARTED + limit if limit else None

    def left(self, most: float, reserve: float = 0) -> float:
        """At most `most` seconds, and no more than what is left but for `reserve`; at least one."""
        return most if self.end is None else max(min(most, self.end - reserve - time.monotonic()), 1.0)

    def half_at_most(self, seconds: float) -> float:
        """So many seconds, but no more than half of what is left."""
        return seconds if self.end is None else max(min(seconds, (self.end - time.monotonic()) / 2), 0.0)


@dataclass
class Finished:
    """How a child process ended."""

    code: int
    seconds: float
    timed_out: bool
    log: Path

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    @property
    def how(self) -> str:
        if self.timed_out:
            return f"stopped after {self.seconds:.0f} s"
        return f"exit status {self.code} after {self.seconds:.0f} s"


def run(
    command: Sequence[object], log: Path, *, limit: float, cwd: Path, env: dict[str, str] | None = None
) -> Finished:
    """Run a command; all that it prints goes to `log`. At the limit it is stopped with everything it has started."""
    words = [str(word) for word in command]
    log.parent.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with log.open("w", encoding="utf-8") as out:
        out.write(f"$ {' '.join(words)}\n")
        out.flush()
        try:
            child = subprocess.Popen(
                words,
                cwd=cwd,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            out.write(f"{error}\n")
            return Finished(CANNOT_START, 0.0, False, log)
        timed_out = False
        try:
            child.wait(limit)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            _stop(child)
    return Finished(child.returncode, time.monotonic() - begun, timed_out, log)


def _stop(child: subprocess.Popen) -> None:
    """End the group of a child process, which may have left others behind."""
    for number, patience in ((signal.SIGTERM, 3), (signal.SIGKILL, 10)):
        try:
            os.killpg(child.pid, number)
        except (ProcessLookupError, PermissionError):
            break
        try:
            child.wait(patience)
        except subprocess.TimeoutExpired:
            continue
    if child.returncode is None:
        print(f"process {child.pid} does not end", file=sys.stderr)


def tail(text: str, lines: int) -> str:
    return "\n".join(text.rstrip().splitlines()[-lines:])
