"""The figures to reach: ratios within one run and, where a figure is a time, microseconds on the device it names.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .cases import CPU_CASES, CPU_CORES, FAMILY, MILLION, OTHER_SHAPES, Case, plain, sized
from .results import case_fields, row_key

DEVICE = "NVIDIA H200"  # the one that bounds in microseconds are for
Value = Callable[[dict], float | None]


@dataclass(frozen=True)
class Figure:
    """A number to reach.

    Parameters
    ----------
    what : str
        The quantity.
    value : callable
        Takes it from a result; None where it was not measured.
    bound : float
        In `unit`.
    at_least : bool
        Whether the bound is a lower one.
    unit : str
        "x" for a ratio, "%" or "us".
    device : str
        The bound holds on this device alone; empty: on any.
    """

    what: str
    value: Value
    bound: float
    at_least: bool = True
    unit: str = "x"
    device: str = ""

    def verdict(self, result: dict) -> tuple[float | None, str]:
        """The value, and "pass", "falls short", "not measured" or that it is for another device."""
        value = self.value(result)
        if value is None:
            return None, "not measured"
        if self.device and result.get("device") != self.device:
            return value, f"for {self.device}"
        reached = value >= self.bound if self.at_least else value <= self.bound
        return value, "pass" if reached else "falls short"

    def text(self, value: float | None) -> str:
        """A value of this figure, with its unit."""
        if value is None:
            return "-"
        return f"{value:.1f} %" if self.unit == "%" else f"{value:.2f} {self.unit}"

    @property
    def wanted(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.bound:g} {self.unit}"


# ---- what a figure is about ----------------------------------------------------------------------------------------


def find_row(result: dict, case: Case) -> dict:
    """The row of a case, or an empty dict."""
    wanted = row_key(case_fields(case))
    return next((row for row in result.get("step", ()) if row_key(row) == wanted), {})


def versus(peer: str, case: Case) -> Value:
    """How many times longer a peer takes."""
    return lambda result: find_row(result, case).get("vs", {}).get(peer)


def on_few_cores(value: Value) -> Value:
    """The same where the CPU rows are of as many cores as the bound is for."""
    return lambda result: value(result) if result.get("cpu", {}).get("cores") == CPU_CORES else None


def percent_of_copy(case: Case) -> Value:
    def value(result: dict) -> float | None:
        fraction = find_row(result, case).get("fraction_of_copy")
        return None if fraction is None else 100 * fraction

    return value


def microseconds(case: Case) -> Value:
    return lambda result: find_row(result, case).get("us")


def host_ratio(name: str) -> Value:
    """Host time over that of the bare launches."""

    def value(result: dict) -> float | None:
        host = result.get("host_us", {})
        return host[name] / host["bare_c"] if name in host and host.get("bare_c") else None

    return value


def host_over_bound(name: str) -> Value:
    """Host microseconds that a call costs more than the bound step."""

    def value(result: dict) -> float | None:
        host = result.get("host_us", {})
        return host[name] - host["bound"] if {name, "bound"} <= set(host) else None

    return value


def import_ratio(result: dict) -> float | None:
    seconds = result.get("import_s", {})
    return seconds["qpi_distill"] / seconds["numpy"] if {"qpi_distill", "numpy"} <= set(seconds) else None


# ---- the figures ---------------------------------------------------------------------------------------------------


def rows_text(rows: int) -> str:
    return f"{rows // MILLION} M rows" if rows >= MILLION else f"{rows:,} rows".replace(",", " ")


def of_copy(what: str, case: Case, bound: float) -> Figure:
    return Figure(f"{what}: share of the copy rate", percent_of_copy(case), bound, unit="%")


LARGE_CPU, SMALL_CPU = CPU_CASES

# The step that works everywhere, and what it has to be better than.
FIRST = (
    Figure("1 M rows: times faster than the seed kernels", versus("seed", plain(MILLION)), 4.0),
    Figure("1 M rows: times faster than torch.compile", versus("torch_compile", plain(MILLION)), 2.5),
    Figure("32 rows: times faster than the seed kernels", versus("seed", plain(32)), 1.0),
    Figure("host: bound step over its bare C launches", host_ratio("bound"), 1.5, at_least=False),
    Figure("host: five fresh torch tensors over the same", host_ratio("torch"), 2.5, at_least=False),
    Figure("CPU, 65 536 rows: times faster than NumPy", versus("numpy", LARGE_CPU), 2.5),
    Figure("import: qpi_distill over numpy alone", import_ratio, 2.5, at_least=False),
)

# The hardware's limits: the memory's roof, the floor of a launch, the floor of the host.
LIMITS = (
    of_copy("1 M rows", plain(MILLION), 97),
    of_copy("4 M rows", plain(4 * MILLION), 99),
    of_copy("4 M rows, bfloat16", plain(4 * MILLION, dtype="bfloat16"), 93),
    of_copy("4 M rows, float16", plain(4 * MILLION, dtype="float16"), 93),
    *(
        of_copy(f"{shape[0]} x {shape[1]}, {dtype}", sized(shape, dtype), bound)
        for dtype, bound in (("float32", 92), ("bfloat16", 88))
        for shape in OTHER_SHAPES
    ),
    *(
        of_copy(f"1 M rows with {name}", Case(MILLION, options=(option,)), 95)
        for option, name in (("mask", "a mask"), ("weights", "row weights"), ("per_action", "per-action supports"))
    ),
    *(of_copy(f"1 M rows, {name}", Case(MILLION, options=(name,)), 95) for name in FAMILY),
    *(
        Figure(f"{rows_text(rows)}: a step", microseconds(plain(rows)), bound, False, "us", DEVICE)
        for rows, bound in ((32, 2.5), (256, 2.8), (1024, 3.3), (4096, 4.5), (16384, 7.5))
    ),
    Figure("host: bound step over its bare C launches", host_ratio("bound"), 1.15, at_least=False),
    *(
        Figure(f"host: five fresh {kind}, over the bound step", host_over_bound(name), bound, False, "us")
        for name, kind, bound in (
            ("torch", "torch tensors", 1),
            ("cupy", "CuPy arrays", 4),
            ("numba", "Numba arrays", 4),
        )
    ),
    *(
        Figure(
            f"{CPU_CORES} cores, {rows_text(case.rows)}: times faster than {name}",
            on_few_cores(versus(peer, case)),
            bound,
        )
        for case, peer, name, bound in (
            (LARGE_CPU, "torch_compile", "torch.compile", 4),
            (LARGE_CPU, "numpy", "NumPy", 11),
            (SMALL_CPU, "torch_compile", "torch.compile", 1.5),
        )
    ),
)

FIGURES = (*FIRST, *LIMITS)
