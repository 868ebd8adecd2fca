"""A result as text: the table, the figures with their verdicts, and what got worse since another result.

Standard library only.
"""

from __future__ import annotations

from .cases import CPU_CASES, GPU_CASES
from .figures import FIGURES, import_ratio
from .results import case_fields, row_key

SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
PEERS = {
    "seed": "seed",
    "triton": "triton",
    "torch_compile": "compile",
    "cupy": "cupy",
    "torch_eager": "eager",
    "numpy": "numpy",
}
SHOWN_NOTES = 15
SHOWN_FAILURES = 20

# A ratio may be this much worse before it counts: timings of a few microseconds and of the host scatter more. Errors
# are of the same inputs in each run, but another order of the same additions may move the largest one.
TOLERANCE = 0.10
LOOSE_TOLERANCE = 0.25
ERROR_TOLERANCE = 0.5


def dtype_text(row: dict) -> str:
    names = [SHORT[row[key]] for key in ("q_dtype", "pi_dtype", "grad_dtype")]
    return names[0] if len(set(names)) == 1 else "/".join(names)


def case_text(row: dict) -> str:
    options = "".join(f" +{option}" for option in row["options"])
    return f"{row['rows']} x {row['actions']} x {row['atoms']} {dtype_text(row)}{options}"


def table(rows: list[list[str]]) -> list[str]:
    """Columns of equal width: the first to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(first: str, *others: str) -> str:
        return "  ".join([first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]).rstrip()

    return [line(*row) for row in rows]


def step_lines(result: dict) -> list[str]:
    lines = []
    for backend in ("cuda", "cpu"):
        rows = [row for row in result.get("step", ()) if row["backend"] == backend]
        if not rows:
            continue
        peers = [peer for peer in PEERS if any(peer in row["vs"] for row in rows)]
        head = ["us", "spread", "% copy", "error", "KL error", *(f"vs {PEERS[peer]}" for peer in peers)]
        cells = [["whole step, " + backend, "kernel", "cache", *head]]
        for row in rows:
            fraction, error = row.get("fraction_of_copy"), row.get("error", {})
            cells.append(
                [
                    case_text(row),
                    row.get("kernel", "-"),
                    row["cache"],
                    f"{row['us']:.2f}" if "us" in row else "-",
                    f"{100 * row['spread']:.1f} %" if "spread" in row else "-",
                    "-" if fraction is None else f"{100 * fraction:.1f}",
                    *(f"{error[name]:.1e}" if name in error else "-" for name in ("grad", "kl")),
                    *(f"{row['vs'][peer]:.2f}" if peer in row["vs"] else "-" for peer in peers),
                ]
            )
        lines += ["", *table(cells)]
    return lines


def host_lines(result: dict) -> list[str]:
    host = dict(result.get("host_us", {}))
    if not host:
        return []
    launches, rows = host.pop("launches", "?"), host.pop("rows", "?")
    floor = host.get("bare_c")

    def text(name: str, us: float) -> str:
        return f"{name} {us:.2f}" + (f" ({us / floor:.2f}x)" if floor and name != "bare_c" else "")

    parts = ", ".join(text(name, us) for name, us in host.items())
    return ["", f"host, us a step of {launches} launches, {rows} rows: {parts}"]


def figure_lines(result: dict) -> list[str]:
    cells = [["figure", "reached", "wanted", ""]]
    for figure in FIGURES:
        value, verdict = figure.verdict(result)
        cells.append([figure.what, figure.text(value), figure.wanted, verdict])
    return ["", *table(cells)]


def failure_lines(failures: list[str]) -> list[str]:
    """The failures, or where there are many the first of each file and how many more it has."""
    if len(failures) <= SHOWN_FAILURES:
        return [f"  failed: {failure}" for failure in failures]
    files: dict[str, list[str]] = {}
    for failure in failures:
        files.setdefault(failure.partition("::")[0], []).append(failure)
    return [
        f"  failed: {first}" + (f" (+ {len(rest)} of this file)" if rest else "") for first, *rest in files.values()
    ]


def check_lines(result: dict) -> list[str]:
    """Tests and sanitizers."""
    lines = []
    tests = result.get("tests")
    if tests:
        lines.append(f"tests: {tests['passed']} passed, {tests['failed']} failed, {tests['skipped']} skipped")
        lines += failure_lines(tests.get("failures", []))
    sanitizer = result.get("sanitizer")
    if sanitizer:
        lines.append("sanitizer: " + ", ".join(f"{tool} {verdict}" for tool, verdict in sanitizer.items()))
    return lines


def head_line(result: dict) -> str:
    facts = [
        result.get("device") or "unknown device",
        f"driver {result.get('driver') or '?'}",
        f"CUDA {result.get('cuda') or '?'}",
        result.get("date") or "",
    ]
    if result.get("copy_tb_s"):
        facts.append(f"copy {result['copy_tb_s']:.3f} TB/s")
    return ", ".join(fact for fact in facts if fact)


def render(result: dict) -> str:
    """The whole report; the figures come last."""
    lines = [head_line(result), *check_lines(result), *step_lines(result), *host_lines(result)]
    cpu = result.get("cpu")
    if cpu:
        lines.append(f"CPU rows: {cpu['cores']} cores of {cpu['model'] or 'an unknown processor'}, {cpu['isa']}")
    imports = result.get("import_s")
    if imports:
        lines.append("import, s: " + ", ".join(f"{name} {seconds:.3f}" for name, seconds in imports.items()))
    notes = result.get("notes", [])
    if notes:
        lines += ["", *(f"note: {note}" for note in notes[:SHOWN_NOTES])]
        if len(notes) > SHOWN_NOTES:
            lines.append(f"... and {len(notes) - SHOWN_NOTES} notes more")
    if any(result.get(key) for key in ("step", "host_us", "import_s")):
        lines += figure_lines(result)
    return "\n".join(lines)


def regressions(old: dict, new: dict) -> list[str]:
    """What is worse in `new` than in `old`, one line each: ratios, errors, and steps that were not measured.

    Only ratios are compared, and only between results of the same kind of device; those of the CPU only where the cores
    and the instruction set are the same. A peer that is missing in `new` is passed over: the time may have been short.
    """
    if old.get("device") != new.get("device"):
        return [f"results of {old.get('device')} and {new.get('device')} cannot be compared"]
    found = []

    def compare(what: str, before: float | None, after: float | None, tolerance: float, *, lower: bool = False) -> None:
        if not before or not after:
            return
        loss = after / before if lower else before / after
        if loss > 1 + tolerance:
            found.append(f"{what}: {before:.3g} before, {after:.3g} now")

    processors = [result.get("cpu", {}) for result in (old, new)]
    same = all(processors[0].get(fact) == processors[1].get(fact) for fact in ("cores", "isa"))

    known = {row_key(case_fields(case)) for case in (*GPU_CASES, *CPU_CASES)}
    fresh = {row_key(row): row for row in new.get("step", ())}
    for row in old.get("step", ()):
        name = f"{case_text(row)} ({row['backend']})"
        now = fresh.get(row_key(row), {})
        if "us" in row and "us" not in now and row_key(row) in known:
            found.append(f"{name}: measured before, not now")
        if not now or (row["backend"] == "cpu" and not same):
            continue
        tolerance = LOOSE_TOLERANCE if row["cache"] == "hot" or row["backend"] == "cpu" else TOLERANCE
        compare(f"{name}, fraction of copy", row.get("fraction_of_copy"), now.get("fraction_of_copy"), tolerance)
        for peer, before in row["vs"].items():
            compare(f"{name}, against {peer}", before, now["vs"].get(peer), tolerance)
        for kind, before in row.get("error", {}).items():
            after = now.get("error", {}).get(kind)
            compare(f"{name}, error of {kind}", before, after, ERROR_TOLERANCE, lower=True)
    hosts = [result.get("host_us", {}) for result in (old, new)]
    for name in hosts[0]:
        if name not in hosts[1]:
            found.append(f"host, {name}: measured before, not now")
        elif all(host.get("bare_c") for host in hosts) and name not in ("bare_c", "launches", "rows"):
            before, after = (host[name] / host["bare_c"] for host in hosts)
            compare(f"host, {name} over bare C", before, after, LOOSE_TOLERANCE, lower=True)
    ratios = [import_ratio(result) for result in (old, new)]
    compare("import over NumPy's", *ratios, LOOSE_TOLERANCE, lower=True)
    return found
