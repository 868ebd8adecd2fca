"""Build the CPU wheel twice, from copies of the sources in two places, and say what differs.

python3 tools/reproducible.py                    exit 1 and name the files that differ
python3 tools/reproducible.py first.whl second.whl    compare two wheels that are there
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EPOCH = "1700000000"  # any fixed time will do


def differences(first: Path, second: Path) -> list[str]:
    """What two wheels do not have in common: members, their bytes, their attributes, their order."""
    with zipfile.ZipFile(first) as one, zipfile.ZipFile(second) as two:
        entries, others = ({entry.filename: entry for entry in archive.infolist()} for archive in (one, two))
        found = [f"{name}: only in one of them" for name in sorted(entries.keys() ^ others.keys())]
        for name in sorted(entries.keys() & others.keys()):
            a, b = entries[name], others[name]
            if one.read(name) != two.read(name):
                found.append(f"{name}: other bytes")
            if (a.date_time, a.external_attr) != (b.date_time, b.external_attr):
                found.append(f"{name}: other time or mode")
        if not found and list(entries) != list(others):
            found.append("the members come in another order")
    if not found and first.read_bytes() != second.read_bytes():
        found.append("the archives differ outside their members")
    return found


def copy_sources(target: Path) -> None:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name)


def build(sources: Path, wheels: Path) -> Path:
    environment = {**os.environ, "QPI_CUDA": "OFF", "SOURCE_DATE_EPOCH": EPOCH}
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(wheels), str(sources)]
    subprocess.run(command, env=environment, check=True)
    (wheel,) = wheels.glob("*.whl")
    return wheel


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheels", nargs="*", type=Path, help="two wheels to compare; without them they are built")
    options = parser.parse_args(arguments)
    if len(options.wheels) not in (0, 2):
        parser.error("two wheels, or none")
    with tempfile.TemporaryDirectory() as scratch:
        wheels = options.wheels
        if not wheels:
            # Names of different lengths: a path that gets into a file moves what comes after it.
            folders = [Path(scratch, name) for name in ("first", "the_second_one")]
            for folder in folders:
                copy_sources(folder / "sources")
            wheels = [build(folder / "sources", folder / "wheels") for folder in folders]
        found = differences(*wheels)
    print("\n".join(found) or "the same bytes")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
