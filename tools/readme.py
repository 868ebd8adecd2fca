"""Write the generated parts of README.md: slots and laws from the headers, the figures from the result file.

python3 tools/readme.py            rewrite README.md
python3 tools/readme.py --check    exit 1 if it would change
"""

from __future__ import annotations

import argparse
import ctypes
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import measured  # noqa: E402  (the checkout is no package)
from benchmarks.figures import FIGURES  # noqa: E402
from generated import fill  # noqa: E402

HEADERS = ROOT / "cuda" / "include" / "qpi_distill"
MANIFEST = HEADERS / "isv_manifest.h"
LAWS = HEADERS / "laws.h"
ROLES = {"PARAM": "parameter", "STATE": "state", "OUTPUT": "output"}
ENTRY = re.compile(
    r"X\((\w+),\s*(F32|U32|U64),\s*(\w+),\s*([^,]+),\s*([^,]+),\s*([^,]+),\s*\"(\w+)\",\s*\"([^\"]+)\"\)"
)
LAW = re.compile(r"X\((\w+),\s*([A-Z_]+),\s*\"([^\"]+)\",\s*\"([^\"]+)\"\)")
INPUTS = {
    "NOTHING": "nothing",
    "KL": "`kl_ema`",
    "OBSERVATIONS": "`observations`",
    "ENTROPY": "entropy of the target",
    "PRIOR_KL": "`prior_kl`",
}


def number(text: str) -> str:
    text = text.strip()
    return "∞" if text == "INFINITY" else f"{ctypes.c_float(float(text)).value:.4g}" if "." in text else text


def slots() -> str:
    """The manifest as a table."""
    lines = ["| slot | type | role | default | unit | meaning |", "|---|---|---|---|---|---|"]
    for name, kind, role, default, _low, _high, unit, meaning in ENTRY.findall(MANIFEST.read_text()):
        shown = number(default) if role != "OUTPUT" else ""
        lines.append(f"| `{name}` | {kind.lower()} | {ROLES[role]} | {shown} | {unit} | {meaning} |")
    return "\n".join(lines)


def laws() -> str:
    """The registry of control laws as a table."""
    lines = ["| of | law | driven by | moves to | source |", "|---|---|---|---|---|"]
    for of in ("LAM", "TAU"):
        _, _, rest = LAWS.read_text().partition(f"#define QPI_{of}_LAWS(X)")
        entries, _, _ = rest.partition("#define")
        for name, kind, formula, source in LAW.findall(entries):
            lines.append(f"| `{of.lower()}` | `{name}` | {INPUTS[kind]} | `{formula}` | {source} |")
    return "\n".join(lines)


def figures() -> str:
    """The recorded run in short: the plain step by rows, the host, and how many figures are reached."""
    result = measured.load()
    if not result:
        return measured.NOTHING
    verdicts = [figure.verdict(result)[1] for figure in FIGURES]
    counts = {verdict: verdicts.count(verdict) for verdict in dict.fromkeys(verdicts)}
    texts = {"pass": "reached", "falls short": "not reached"}
    summary = ", ".join(f"{count} {texts.get(verdict, verdict)}" for verdict, count in counts.items())
    return "\n\n".join(
        (
            measured.machine(result) + " float32, 11 actions, 21 atoms, the whole step in a CUDA graph:",
            measured.steps(result),
            measured.host(result),
            f"Of the {len(FIGURES)} figures to reach: {summary}; docs/performance.md lists each.",
        )
    )


def generated(text: str) -> str:
    """The README with its generated parts made anew."""
    return fill(text, {"slots": slots, "laws": laws, "figures": figures})


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the README is out of date")
    options = parser.parse_args(arguments)
    path = ROOT / "README.md"
    before = path.read_text()
    after = generated(before)
    if options.check:
        return int(before != after)
    path.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
