"""Which sources a result belongs to."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

FOLDERS = ("cmake", "cuda", "src")
FILES = ("CMakeLists.txt",)
DISTRIBUTED = ("python/qpi_distill/distributed",)  # what a data-parallel result is of besides


def source_files(root: Path, folders: tuple[str, ...] = FOLDERS, files: tuple[str, ...] = FILES) -> list[Path]:
    """What the library is built from, in a fixed order. Leftovers of editors and interpreters do not count."""
    found = [root / name for name in files]
    for folder in folders:
        found += [
            path
            for path in (root / folder).rglob("*")
            if path.is_file()
            and path.suffix != ".pyc"
            and not any(part.startswith(".") for part in path.relative_to(root).parts)
        ]
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def sources_sha256(root: Path, folders: tuple[str, ...] = FOLDERS, files: tuple[str, ...] = FILES) -> str:
    """One hash over the names and contents of those files."""
    total = hashlib.sha256()
    for path in source_files(root, folders, files):
        name = path.relative_to(root).as_posix()
        total.update(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}\n".encode())
    return total.hexdigest()


def why_stale(root: Path, result: Path) -> str | None:
    """Why a recorded result does not belong to the sources, or None where it does."""
    try:
        recorded = json.loads(result.read_text(encoding="utf-8")).get("sources_sha256")
    except FileNotFoundError:
        return f"no GPU result is recorded ({result.name} does not exist)"
    except (ValueError, AttributeError) as error:
        return f"{result.name} cannot be read: {error}"
    now = sources_sha256(root)
    if recorded != now:
        return f"the GPU result is of other sources: recorded {str(recorded)[:12]}, now {now[:12]}"
    return None
