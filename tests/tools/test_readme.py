"""The README's generated parts are what the manifest and the result file say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str) -> int:
    return subprocess.run([sys.executable, ROOT / "tools" / "readme.py", *arguments], check=False).returncode


def test_the_readme_is_up_to_date():
    assert run("--check") == 0, "run python3 tools/readme.py"


def test_every_slot_is_in_the_table():
    import qpi_distill as qpi

    text = (ROOT / "README.md").read_text()
    for name in qpi.Layout.native().to_dict():
        assert f"| `{name}` |" in text
