"""Write what docs/performance.md shows of the recorded run: its tables and figures, and the plot beside it.

python3 tools/performance.py            rewrite both (the plot needs matplotlib)
python3 tools/performance.py --check    exit 1 if either is of another run; needs nothing but Python
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import measured  # noqa: E402  (the checkout is no package)
from generated import fill  # noqa: E402

PAGE = ROOT / "docs" / "performance.md"
PLOT = ROOT / "docs" / "performance.svg"
PARTS = {
    "machine": measured.machine,
    "roof": measured.roof,
    "steps": measured.steps,
    "shapes": measured.shapes,
    "variants": measured.variants,
    "host": measured.host,
    "cpu": measured.cpu,
    "errors": measured.errors,
    "figures": measured.figures,
}
OURS = "qpi-distill"
COLOURS = {
    OURS: "#0072b2",
    "seed": "#d55e00",
    "triton": "#009e73",
    "torch_compile": "#cc79a7",
    "cupy": "#e69f00",
    "torch_eager": "#56b4e9",
}


def page(text: str, result: dict) -> str:
    """The page with its generated parts made anew."""
    make = {name: partial(part, result) if result else lambda: measured.NOTHING for name, part in PARTS.items()}
    return fill(text, make)


def series(result: dict) -> dict:
    """What the plot shows: the roof in microseconds; rows, microseconds, share of the copy rate of each contender."""
    rows = measured.plain_rows(result)
    lines: dict[str, list[list[float]]] = {OURS: []}
    for row in rows:
        for name, ratio in {OURS: 1.0, **row["vs"]}.items():
            us = row["us"] * ratio
            share = 100 * row["bytes"] / (us * result["copy_tb_s"] * 1e6)
            lines.setdefault(name, []).append([row["rows"], round(us, 3), round(share, 2)])
    roof = [[row["rows"], round(row["bytes"] / result["copy_tb_s"] / 1e6, 4)] for row in rows]
    return {
        "device": result.get("device", ""),
        "roof": roof,
        "lines": {name: lines[name] for name in COLOURS if name in lines},
    }


def digest(shown: dict) -> str:
    """What tells a plot's data and its drawing from others; it stands in the file."""
    drawing = Path(__file__).read_bytes()
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode() + drawing).hexdigest()


def draw(shown: dict, path: Path) -> None:
    """Draw microseconds and the share of the copy rate over rows, as SVG."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    style = {"font.size": 9, "axes.titlesize": 10, "axes.grid": True, "grid.alpha": 0.3}
    style |= {"svg.fonttype": "none", "svg.hashsalt": OURS}  # the same file for the same data
    with matplotlib.rc_context(style):
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
        left.plot(*zip(*shown["roof"], strict=True), color="black", linestyle="--", label="the bytes at the copy rate")
        for name, points in shown["lines"].items():
            rows, us, share = zip(*points, strict=True)
            look = {"color": COLOURS[name], "marker": "o", "markersize": 3, "linewidth": 2 if name == OURS else 1.2}
            left.plot(rows, us, label=measured.PEERS.get(name, name), **look)
            right.plot(rows, share, **look)
        right.axhline(100, color="black", linestyle="--", linewidth=1)
        left.set(xscale="log", yscale="log", xlabel="rows", ylabel="µs a step", title=shown["device"])
        right.set(xscale="log", xlabel="rows", ylabel="% of the copy rate", ylim=(0, 105))
        right.set_title("float32, 11 actions × 21 atoms, in a CUDA graph")
        left.set_ylim(bottom=1)  # below it there is nothing but the bytes of batches that are all launch
        left.legend(fontsize=8)
        figure.savefig(path, format="svg", metadata={"Date": None, "Description": digest(shown)})
        pyplot.close(figure)


def stale(result: dict) -> list[str]:
    """What is not of this result, one line each."""
    found = []
    text = PAGE.read_text(encoding="utf-8")
    if page(text, result) != text:
        found.append(f"{PAGE.name} is of another run")
    drawn = PLOT.read_text(encoding="utf-8") if PLOT.exists() else ""
    if result and digest(series(result)) not in drawn:
        found.append(f"{PLOT.name} is of another run, or was drawn by another version of {Path(__file__).name}")
    return found


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if something is of another run")
    arguments = parser.parse_args(words)
    result = measured.load()
    if arguments.check:
        found = stale(result)
        print("\n".join(found), end="\n" if found else "")
        return int(bool(found))
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), result), encoding="utf-8")
    if result:
        draw(series(result), PLOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
