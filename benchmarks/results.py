"""Result rows: what tells two of them apart, and how the results of several runs become one."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Iterable
from pathlib import Path

from .cases import Case

KEY = ("backend", "q_dtype", "pi_dtype", "grad_dtype", "options", "actions", "atoms", "rows")


class Unavailable(RuntimeError):
    """Something that this machine lacks; the message says what."""


def row_key(row: dict) -> tuple:
    return tuple(tuple(row[name]) if name == "options" else row[name] for name in KEY)


def case_fields(case: Case) -> dict:
    """The part of a result row that the case alone decides."""
    return {
        "backend": case.backend,
        "q_dtype": case.q_dtype,
        "pi_dtype": case.pi_dtype,
        "grad_dtype": case.grad_dtype,
        "options": list(case.options),
        "actions": case.actions,
        "atoms": case.atoms,
        "rows": case.rows,
        "bytes": case.bytes,
        "cache": "hot" if case.hot else "cold",
    }


def merge_rows(old: Iterable[dict], new: Iterable[dict]) -> list[dict]:
    """The old rows with what the new ones have measured of the same cases, then the rows for other cases."""
    rows = {row_key(row): row for row in old}
    for row in new:
        before = rows.get(row_key(row), {})
        rows[row_key(row)] = {**before, **row, "vs": {**before.get("vs", {}), **row.get("vs", {})}}
    return list(rows.values())


def update(old: dict, new: dict) -> dict:
    """`old` with what `new` has measured: rows by case, host figures by name, notes added, other fields replaced."""
    merged = {**old, **new}
    if "step" in merged:
        merged["step"] = merge_rows(old.get("step", ()), new.get("step", ()))
    for name in ("host_us", "host_spread"):
        if name in merged:
            merged[name] = {**old.get(name, {}), **new.get(name, {})}
    if "notes" in merged:
        merged["notes"] = list(dict.fromkeys((*old.get("notes", ()), *new.get("notes", ()))))
    return merged


def write_json(path: Path, data: dict) -> None:
    """Replace a file in one go, so that whoever stops the process still finds a whole one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}.tmp")
    beside.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)


class Recorder:
    """The result of one process, on disk after every measurement.

    Parameters
    ----------
    path : Path
        The file.
    limit : float
        Seconds after which no further measurement is begun; 0: none.
    """

    def __init__(self, path: Path, limit: float = 0):
        self.path = path
        self.data: dict = {}
        self.end = time.monotonic() + limit if limit else float("inf")

    def put(self, **values) -> None:
        self.data = update(self.data, values)
        write_json(self.path, self.data)

    def note(self, text: str) -> None:
        """Say why something is missing."""
        print(f"note: {text}", file=sys.stderr, flush=True)
        self.put(notes=[text])

    def attempt(self, what: str, measure, *arguments):
        """Run one measurement; whatever goes wrong becomes a note. Returns None then."""
        begun = time.monotonic()
        if begun > self.end:
            self.note(f"{what}: out of time")
            return None
        try:
            return measure(*arguments)
        except Unavailable as error:
            self.note(str(error))
            return None
        except Exception as error:
            traceback.print_exc()
            text = " ".join(str(error).split())
            self.note(f"{what}: {type(error).__name__}: {text[:200]}")
            return None
        finally:
            print(f"{time.monotonic() - begun:6.1f} s  {what}", file=sys.stderr, flush=True)
