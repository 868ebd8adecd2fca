"""A baseline: the findings that are known, so that only new ones count.

An entry is a rule, a path and the line of code without its white space and comments, and how often it is there: lines
may move, files above may grow.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

__all__ = ["BaselineError", "Key", "read_baseline", "relative_to", "write_baseline"]

Key = tuple[str, str, str]
_FORMAT = "qpi_distill.audit/1"


class BaselineError(ValueError):
    """A file that is no baseline; the message says why."""


def relative_to(path: Path, folder: Path) -> str:
    """Return a path as the baseline in `folder` names it, wherever the audit is run from."""
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()


def write_baseline(path: Path, keys: Iterable[Key]) -> None:
    """Write a baseline: sorted, one entry a line, so that a change reads well."""
    entries = [
        json.dumps({"rule": rule, "path": where, "code": code, "count": count}, ensure_ascii=False)
        for (rule, where, code), count in sorted(Counter(keys).items())
    ]
    body = ",\n  ".join(entries)
    findings = f"[\n  {body}\n]" if entries else "[]"
    path.write_text(f'{{"format": "{_FORMAT}",\n"findings": {findings}}}\n', encoding="utf-8")


def read_baseline(path: Path) -> Counter[Key]:
    """Read a baseline.

    Raises
    ------
    OSError
        It cannot be read.
    BaselineError
        It is none.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BaselineError(f"is no JSON: {error}") from None
    if not isinstance(data, Mapping) or data.get("format") != _FORMAT:
        raise BaselineError(f"is no baseline of format {_FORMAT!r}")
    known: Counter[Key] = Counter()
    try:
        for entry in data["findings"]:
            known[str(entry["rule"]), str(entry["path"]), str(entry["code"])] += int(entry["count"])
    except (KeyError, TypeError, ValueError) as error:
        raise BaselineError(f"has an entry that is none: {error!r}") from None
    return known
