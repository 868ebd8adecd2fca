"""Which files are audited."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from pathlib import Path

__all__ = ["SUFFIXES", "sources"]

#: Endings of the sources that are looked for in a folder; a file that is named itself may have any.
SUFFIXES = (".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".inl")


def sources(paths: Iterable[Path], exclude: Sequence[str] = ()) -> list[Path]:
    """Return the sources in folders, and the files named, each once and in order.

    Parameters
    ----------
    paths : iterable of Path
        Files and folders. Folders whose name begins with a dot are not entered.
    exclude : sequence of str
        Patterns of paths to leave out: ``*`` also matches separators.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            for inner in sorted(path.rglob("*")):
                hidden = any(part.startswith(".") for part in inner.relative_to(path).parts)
                if inner.suffix.lower() in SUFFIXES and not hidden and inner.is_file():
                    found[inner] = None
        else:
            found[path] = None
    return [path for path in found if not any(fnmatch(path.as_posix(), pattern) for pattern in exclude)]
