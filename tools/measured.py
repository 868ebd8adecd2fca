"""The recorded GPU run as Markdown: what README.md and docs/performance.md show of it. Nothing is typed by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "gpu.json"
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from benchmarks.cases import FAMILY, GPU_CASES, ITEM_BYTES, OPTIONS, OTHER_SHAPES, SEED_SHAPE, Case, plain, sized  # noqa: E402
from benchmarks.figures import FIGURES, Figure, find_row, rows_text  # noqa: E402
from generated import spaced, table  # noqa: E402

NOTHING = "No run is recorded yet."
PEERS = {
    "seed": "seed kernels",
    "triton": "Triton",
    "torch_compile": "torch.compile",
    "cupy": "CuPy",
    "torch_eager": "torch eager",
}
HOST = {
    "bare_c": "the bare launches, from C",
    "bound": "a bound step",
    "pointers": "five raw pointers",
    "torch": "five fresh torch tensors",
    "cupy": "five fresh CuPy arrays",
    "numba": "five fresh Numba arrays",
}
CPU_PEERS = {"numpy": "NumPy", "torch_eager": "torch eager", "torch_compile": "torch.compile"}


def load(path: Path = RESULT) -> dict:
    """The recorded run, or an empty dict where there is none or nothing was timed in it."""
    result = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return result if "copy_tb_s" in result else {}


def plain_rows(result: dict) -> list[dict]:
    """The measured plain float32 steps of the seed's shape on the GPU, by rows."""
    cases = [case for case in GPU_CASES if case == plain(case.rows)]
    found = [find_row(result, case) for case in sorted(cases, key=lambda case: case.rows)]
    return [row for row in found if "us" in row]


def times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.1f}×"


def percent(row: dict) -> str:
    """How much of the copy rate a row reaches."""
    if "fraction_of_copy" not in row:
        return ""
    return f"{100 * row['fraction_of_copy']:.0f} %" if row["cache"] == "cold" else "in cache"


def small(error: dict, name: str) -> str:
    return f"{error[name]:.1e}" if name in error else ""


# ---- parts ---------------------------------------------------------------------------------------------------------


def machine(result: dict) -> str:
    """Where and when, and the roof."""
    return (
        f"{result['device']}, driver {result['driver']}, CUDA {result['cuda']}, {result['date']}. It copies "
        f"{result['copy_tb_s']:.2f} TB/s, bytes read plus bytes written."
    )


def roof(result: dict) -> str:
    """What a row of the seed's shape moves, and how fast that could be at best."""
    actions, atoms = SEED_SHAPE
    lines = []
    for dtype, size in ITEM_BYTES.items():
        case = plain(1, dtype=dtype)
        parts = [size * actions * atoms, size * actions, 2 * size * actions]
        floor = [f"{rows * case.bytes / result['copy_tb_s'] / 1e6:.0f}" for rows in (1 << 20, 4 << 20)]
        lines.append([dtype, *map(str, parts), str(case.bytes), *floor])
    head = ["dtype", "q logits", "π logits", "gradient, in and out", "bytes a row", "1 M rows, µs", "4 M rows, µs"]
    return table(head, lines)


def steps(result: dict) -> str:
    """The plain step by rows, and how many times longer each peer takes."""
    rows = plain_rows(result)
    peers = [peer for peer in PEERS if any(peer in row["vs"] for row in rows)]
    return table(
        [
            "rows",
            "µs a step",
            "of the copy rate",
            *(f"{PEERS[peer]} take{'' if peer == 'seed' else 's'}" for peer in peers),
        ],
        [
            [spaced(row["rows"]), f"{row['us']:.1f}", percent(row), *(times(row["vs"].get(peer)) for peer in peers)]
            for row in rows
        ],
    )


def shapes(result: dict) -> str:
    """Every other shape, on a gigabyte, in float32 and bfloat16."""
    lines = []
    for shape in OTHER_SHAPES:
        found = [find_row(result, sized(shape, dtype)) for dtype in ("float32", "bfloat16")]
        cells = [cell for row in found for cell in (row.get("kernel", ""), percent(row))]
        lines.append([f"{shape[0]} × {shape[1]}", *cells])
    return table(
        ["actions × atoms", "kernel, float32", "of the copy rate", "kernel, bfloat16", "of the copy rate"], lines
    )


def variants(result: dict) -> str:
    """Half precision and options, on the seed's shape."""
    half = [plain(4 << 20, dtype=dtype) for dtype in ("bfloat16", "float16")]
    optional = [Case(1 << 20, options=(option,)) for option in (*OPTIONS, *FAMILY)]
    lines = []
    for case in (*half, *optional):
        row = find_row(result, case)
        kind = ", ".join(case.options) or case.q_dtype
        us = f"{row['us']:.0f}" if "us" in row else ""
        per_row = case.bytes / case.rows
        lines.append([f"{rows_text(case.rows)}, {kind}", f"{per_row:.0f}", row.get("kernel", ""), us, percent(row)])
    return table(["case", "bytes a row", "kernel", "µs", "of the copy rate"], lines)


def host(result: dict) -> str:
    """What a call costs the host."""
    measured = result.get("host_us", {})
    floor = measured.get("bare_c")
    lines = [
        [text, f"{measured[name]:.2f}", f"{measured[name] / floor:.2f}×" if floor else ""]
        for name, text in HOST.items()
        if name in measured
    ]
    return table(["host, a step", "µs", "of the bare launches"], lines)


def cpu(result: dict) -> str:
    """The CPU backend and its peers."""
    facts = result.get("cpu", {})
    rows = [row for row in result.get("step", ()) if row["backend"] == "cpu" and "us" in row]
    where = f"{facts['cores']} cores of {facts['model']}, {facts['isa']}." if facts else "The cores are not recorded."
    lines = [
        [spaced(row["rows"]), f"{row['us']:.0f}", *(times(row["vs"].get(peer)) for peer in CPU_PEERS)]
        for row in sorted(rows, key=lambda row: row["rows"])
    ]
    return f"{where}\n\n{table(['rows', 'µs a step', *(f'{text} takes' for text in CPU_PEERS.values())], lines)}"


def errors(result: dict) -> str:
    """The largest distances from float64."""
    shown: dict[tuple, dict] = {}
    for row in result.get("step", ()):
        error = row.get("error")
        if error:
            dtype = row["q_dtype"] if row["q_dtype"] == row["grad_dtype"] else f"{row['q_dtype']}, {row['grad_dtype']}"
            worst = shown.setdefault((row["backend"], dtype), {"grad": 0.0, "kl": 0.0})
            for name in worst:
                worst[name] = max(worst[name], error[name])
    if not shown:
        return "Not measured in the recorded run."
    lines = [[*key, small(worst, "grad"), small(worst, "kl")] for key, worst in shown.items()]
    return table(["backend", "dtype", "gradient, λ = 1", "batch KL, nats"], lines)


def figures(result: dict) -> str:
    """Every figure with its bound and its verdict."""

    def cells(figure: Figure) -> list[str]:
        value, verdict = figure.verdict(result)
        shown = "" if value is None else figure.text(value)
        wanted = figure.wanted
        return [
            text.replace(">=", "≥").replace("<=", "≤").replace(" us", " µs").replace(" x", "×")
            for text in (figure.what, shown, wanted, verdict)
        ]

    return table(["figure", "reached", "wanted", ""], [cells(figure) for figure in FIGURES])
