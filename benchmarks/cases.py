"""What is measured. The figures to reach are in figures.py.

Standard library only: the reports read it on machines that have nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
SEED_SHAPE = (11, 21)

# What an option adds to the plain step (value_scale "none", reduction "mean", mode "add", one support for all actions).
OPTIONS = ("mask", "weights", "per_action", "running_std")
# Another member of the family instead. (The gradient of the total variation jumps where target and policy meet: its
# error against float64 says nothing.)
DIVERGENCES = ("reverse_kl", "jensen_shannon", "hellinger")
FAMILY = (*DIVERGENCES, "greedy", "quantile", "summary")
EPSILON = 0.125  # of the greedy target

# The peers that run the plain step of the seed's shape. In a float16 gradient the mean over millions of rows vanishes,
# and with it what a peer could be checked by.
PEERS = {"float32": ("seed", "triton", "cupy", "torch_eager", "torch_compile"), "bfloat16": ("triton",)}

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


def rows_for(actions: int, atoms: int, dtype: str = "float32", nbytes: float = 1e9) -> int:
    """How many rows of this shape make a batch of a gigabyte in this dtype."""
    return round(nbytes / (ITEM_BYTES[dtype] * actions * (atoms + 3)))


def plain(rows: int, actions: int = SEED_SHAPE[0], atoms: int = SEED_SHAPE[1], dtype: str = "float32") -> Case:
    """The plain step with logits and gradient of one dtype, and the peers that run it."""
    peers = PEERS.get(dtype, ()) if (actions, atoms) == SEED_SHAPE else ()
    return Case(rows, actions, atoms, dtype, dtype, dtype, peers=peers)


def sized(shape: tuple[int, int], dtype: str) -> Case:
    """The plain step on a gigabyte."""
    return plain(rows_for(*shape, dtype), *shape, dtype)


MILLION = 1 << 20
SMALL_ROWS = (32, 256, 1024, 4096, 16384)
OTHER_SHAPES = ((2, 51), (4, 51), (6, 51), (18, 51), (18, 200), (11, 101), (64, 101), (256, 51), (2, 1024))
COMPILED_ROWS = (MILLION, 32, 4096, 65536, 4 * MILLION, 256, 1024, 16384)  # by importance: compiling anew is slow

# By importance: where the time is short, the last ones are left out.
GPU_CASES = (
    *(plain(rows) for rows in (MILLION, 4 * MILLION, *SMALL_ROWS, 65536)),
    *(plain(4 * MILLION, dtype=dtype) for dtype in ("bfloat16", "float16")),
    *(sized(shape, dtype) for dtype in ("float32", "bfloat16") for shape in OTHER_SHAPES),
    *(Case(MILLION, options=(option,)) for option in (*OPTIONS, *FAMILY)),
)
COMPILED_CASES = tuple(plain(rows) for rows in COMPILED_ROWS)

CPU_CORES = 2  # what the CPU backend and its peers run on
CPU_CASES = tuple(Case(rows, backend="cpu", peers=("numpy", "torch_eager", "torch_compile")) for rows in (65536, 256))
