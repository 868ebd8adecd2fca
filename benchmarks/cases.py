"""What is measured, and the figures to reach. Everything that another campaign changes is in this file.

Standard library only: the reports read it on machines that have nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
SEED_SHAPE = (11, 21)

# What an option adds to the plain step (value_scale "none", reduction "mean", mode "add", one support for all actions).
OPTIONS = ("mask", "weights", "per_action", "running_std")

# Up to this many bytes the inputs stay in the last-level cache and are used again; beyond it, several sets take turns.
HOT_BYTES = 2 << 20


@dataclass(frozen=True)
class Case:
    """One whole step: its shape, its dtypes, its options, and the peers that run the same step."""

    rows: int
    actions: int = SEED_SHAPE[0]
    atoms: int = SEED_SHAPE[1]
    q_dtype: str = "float32"
    pi_dtype: str = "float32"
    grad_dtype: str = "float32"
    options: tuple[str, ...] = ()
    backend: str = "cuda"
    peers: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """What has to move: inputs once, the gradient in and out."""
        items = self.rows * self.actions
        moved = items * self.atoms * ITEM_BYTES[self.q_dtype]
        moved += items * (ITEM_BYTES[self.pi_dtype] + 2 * ITEM_BYTES[self.grad_dtype])
        if "mask" in self.options:
            moved += items
        if "weights" in self.options:
            moved += 4 * self.rows
        if "per_action" in self.options:
            moved += 4 * self.actions * self.atoms
        return moved

    @property
    def hot(self) -> bool:
        return self.bytes <= HOT_BYTES

    @property
    def name(self) -> str:
        dtype = self.q_dtype if self.q_dtype == self.pi_dtype == self.grad_dtype else "/".join(self.dtypes)
        options = " +" + " +".join(self.options) if self.options else ""
        return f"{self.rows} rows, {self.actions} x {self.atoms}, {dtype}{options} ({self.backend})"

    @property
    def dtypes(self) -> tuple[str, str, str]:
        return self.q_dtype, self.pi_dtype, self.grad_dtype


def rows_for(actions: int, atoms: int, nbytes: float = 1e9) -> int:
    """How many float32 rows of this shape make a batch of about a gigabyte."""
    return round(nbytes / (4 * actions * (atoms + 3)))


def in_dtype(rows: int, dtype: str) -> Case:
    return Case(rows, q_dtype=dtype, pi_dtype=dtype, grad_dtype=dtype)


MILLION = 1 << 20
COMPILED_ROWS = (32, 4096, 65536, MILLION)  # compiling anew for each shape is slow


def _peers(rows: int) -> tuple[str, ...]:
    return ("seed", "torch_eager", *(("torch_compile",) if rows in COMPILED_ROWS else ()))


GPU_CASES = (
    *(Case(rows, peers=_peers(rows)) for rows in (32, 256, 1024, 4096, 16384, 65536, MILLION, 4 * MILLION)),
    *(in_dtype(rows, dtype) for dtype in ("bfloat16", "float16") for rows in (MILLION, 4 * MILLION)),
    *(Case(MILLION, options=(option,)) for option in OPTIONS),
    *(Case(rows_for(*shape), *shape) for shape in ((4, 51), (18, 51), (64, 101), (256, 51), (2, 1024))),
)

CPU_CASES = tuple(Case(rows, backend="cpu", peers=("numpy", "torch_eager", "torch_compile")) for rows in (256, 65536))


# ---- the figures ---------------------------------------------------------------------------------------------------


def find_row(result: dict, rows: int, backend: str = "cuda") -> dict:
    """The plain float32 step of the seed's shape with this many rows, or an empty dict."""
    wanted = {"backend": backend, "rows": rows, "actions": SEED_SHAPE[0], "atoms": SEED_SHAPE[1]}
    for row in result.get("step", ()):
        plain = not row["options"] and {row["q_dtype"], row["pi_dtype"], row["grad_dtype"]} == {"float32"}
        if plain and all(row[key] == value for key, value in wanted.items()):
            return row
    return {}


def versus(peer: str, rows: int, backend: str = "cuda") -> Callable[[dict], float | None]:
    return lambda result: find_row(result, rows, backend).get("vs", {}).get(peer)


def host_ratio(name: str) -> Callable[[dict], float | None]:
    def value(result: dict) -> float | None:
        host = result.get("host_us", {})
        return host[name] / host["bare_c"] if name in host and host.get("bare_c") else None

    return value


def import_ratio(result: dict) -> float | None:
    seconds = result.get("import_s", {})
    return seconds["qpi_distill"] / seconds["numpy"] if {"qpi_distill", "numpy"} <= set(seconds) else None


@dataclass(frozen=True)
class Figure:
    """A number to reach. All of them are ratios within one run."""

    what: str
    value: Callable[[dict], float | None]
    bound: float
    at_least: bool = True

    def verdict(self, result: dict) -> tuple[float | None, str]:
        value = self.value(result)
        if value is None:
            return None, "not measured"
        reached = value >= self.bound if self.at_least else value <= self.bound
        return value, "pass" if reached else "falls short"


FIGURES = (
    Figure("1 M rows: times faster than the seed kernels", versus("seed", MILLION), 4.0),
    Figure("1 M rows: times faster than torch.compile", versus("torch_compile", MILLION), 2.5),
    Figure("32 rows: times faster than the seed kernels", versus("seed", 32), 1.0),
    Figure("host: bound step over its bare C launches", host_ratio("bound"), 1.5, at_least=False),
    Figure("host: five fresh torch tensors over the same", host_ratio("torch"), 2.5, at_least=False),
    Figure("CPU, 65 536 rows: times faster than NumPy", versus("numpy", 65536, "cpu"), 2.5),
    Figure("import: qpi_distill over numpy alone", import_ratio, 2.5, at_least=False),
)
