"""Write the generated parts of README.md: slots and laws from the headers, the figures from the result file.

python3 tools/readme.py            rewrite README.md
python3 tools/readme.py --check    exit 1 if it would change
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.cases import FIGURES  # noqa: E402  (the checkout is no package)

HEADERS = ROOT / "cuda" / "include" / "qpi_distill"
MANIFEST = HEADERS / "isv_manifest.h"
LAWS = HEADERS / "laws.h"
RESULT = ROOT / "benchmarks" / "results" / "gpu.json"
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


def step_rows(result: dict) -> list[str]:
    peers = {"seed": "seed kernels", "torch_compile": "torch.compile", "torch_eager": "torch eager"}
    lines = [
        "| rows | µs a step | of the copy rate | " + " | ".join(f"{text} take" for text in peers.values()) + " |",
        "|---|---|---|" + "---|" * len(peers),
    ]
    for row in result["step"]:
        plain = row["backend"] == "cuda" and not row["options"] and (row["actions"], row["atoms"]) == (11, 21)
        if not plain or row["q_dtype"] != "float32" or "us" not in row:
            continue
        fraction = f"{100 * row['fraction_of_copy']:.0f} %" if row["cache"] == "cold" else "in cache"
        cells = [f"{row['vs'][peer]:.1f}×" if peer in row["vs"] else "" for peer in peers]
        first = f"{row['rows']:,}".replace(",", " ")
        lines.append(f"| {first} | {row['us']:.1f} | {fraction} | " + " | ".join(cells) + " |")
    return lines


def figures() -> str:
    """The recorded run: the plain step by rows, and each figure with its bound."""
    if not RESULT.exists():
        return "No run is recorded yet."
    result = json.loads(RESULT.read_text())
    lines = [
        f"{result['device']}, driver {result['driver']}, {result['date']}: float32, 11 actions, 21 atoms, the whole "
        f"step in a CUDA graph; the GPU copies {result['copy_tb_s']:.2f} TB/s.",
        "",
        *step_rows(result),
        "",
        "| figure, within one run | reached | bound |",
        "|---|---|---|",
    ]
    for figure in FIGURES:
        value, _verdict = figure.verdict(result)
        sign = "≥" if figure.at_least else "≤"
        reached = "not measured" if value is None else f"{value:.2f}"
        lines.append(f"| {figure.what} | {reached} | {sign} {figure.bound:g} |")
    return "\n".join(lines)


def generated(text: str) -> str:
    """The README with its generated parts made anew."""
    for name, make in (("slots", slots), ("laws", laws), ("figures", figures)):
        begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
        head, _, rest = text.partition(begin)
        _, _, tail = rest.partition(end)
        text = f"{head}{begin}\n{make()}\n{end}{tail}"
    return text


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
