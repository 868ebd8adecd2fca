"""How fast a step is on this machine, at the user's own shape. The command is `qpi-distill bench`.

Caches are the catch. A step on inputs that the last one has left in the cache (warm) is what a small batch sees that
the network has just written; a step on inputs that are nowhere near (cold) is what a large batch sees. Both are
measured where they differ: warm on one set of inputs, cold on as many sets in turn as take several times the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from .. import ISV, Distiller, linspace
from .._devices import CPU, ordinal_of
from .timing import Timing, wall_time

__all__ = ["Measurement", "Shape", "Timing", "machine", "measure", "wall_time"]

_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_BLOCK = 1 << 18  # values that the arrays repeat
_CACHES = 4  # a cold measurement goes through several times the cache
_FEWEST_CACHES = 2  # less, and some of it is warm
_MOST_SETS = 1024  # more would measure the cache misses of Python


class Shape(NamedTuple):
    """Sizes of a step, and the dtype of its logits and its gradient."""

    rows: int
    actions: int = 11
    atoms: int = 21
    dtype: str = "float32"

    @property
    def bytes(self) -> int:
        """What has to move: inputs once, the gradient in and out."""
        return self.rows * self.actions * (self.atoms + 3) * _ITEM_BYTES[self.dtype]


class Measurement(NamedTuple):
    """One line of the benchmark.

    Attributes
    ----------
    rows : int
    cache : {"warm", "cold", "partly cold"}
        Partly cold: neither memory nor 1024 sets of inputs sufficed for twice the cache.
    kernel : str
        Which kernel ran, on which grid, and why.
    median_us, spread : float
        Of a step; the spread is the middle half of the repetitions as a share of the median.
    repeats : int
    bytes, working_set_bytes : int
        What a step has to move, and all inputs together.
    gb_s, rows_s : float
        Bytes and rows a second: the former in 10^9.
    of_copy : float
        Bytes a second as a share of what a copy of memory reaches.
    """

    rows: int
    cache: Literal["warm", "cold", "partly cold"]
    kernel: str
    median_us: float
    spread: float
    repeats: int
    bytes: int
    working_set_bytes: int
    gb_s: float
    rows_s: float
    of_copy: float


def machine(device: Any) -> Any:
    """Return the machine that a device names, to be used in a ``with`` statement.

    Raises
    ------
    DeviceError
        A GPU was named and none can be used.
    """
    ordinal = ordinal_of(device)
    if ordinal == CPU:
        from .cpu import Cpu

        return Cpu()
    from .gpu import Gpu

    return Gpu(ordinal)


def measure(
    on: Any, shape: Shape, copy_bytes_s: float, *, budget_s: float = 0.5, threads: int = 0
) -> list[Measurement]:
    """Measure the plain step, warm and cold.

    Parameters
    ----------
    on : Cpu or Gpu
        The machine.
    shape : Shape
    copy_bytes_s : float
        What the machine copies in a second.
    budget_s : float
        About how long each measurement takes.
    threads : int
        Upper bound on the CPU's threads. 0: chosen.

    Raises
    ------
    MemoryError
        One set of inputs is more than the memory that may be taken.
    """
    memory = on.memory_bytes()
    if shape.bytes > memory:
        raise MemoryError(f"{shape.rows} rows take {shape.bytes} bytes; {memory} may be taken here")
    wanted = max(math.ceil(_CACHES * on.cache_bytes / shape.bytes), 1)
    count = max(min(wanted, memory // shape.bytes, _MOST_SETS), 1)
    cold = "cold" if count * shape.bytes >= _FEWEST_CACHES * on.cache_bytes else "partly cold"
    plans: list[tuple[Any, int]] = [(cold, count)]
    if shape.bytes <= on.cache_bytes:
        plans.insert(0, ("warm", 1))
    try:
        return _measure(on, shape, plans, copy_bytes_s, budget_s, threads)
    finally:
        on.release()


def _measure(
    on: Any, shape: Shape, plans: list[tuple[Any, int]], copy_bytes_s: float, budget_s: float, threads: int
) -> list[Measurement]:
    isv = ISV(device=on.device)
    op = Distiller(
        actions=shape.actions,
        support=linspace(-10, 10, shape.atoms),
        isv=isv,
        reduction="mean",
        q_dtype=shape.dtype,
        pi_dtype=shape.dtype,
        grad_dtype=shape.dtype,
        max_threads=threads,
    )
    normal = np.random.default_rng(1).standard_normal(_BLOCK, dtype=np.float32)
    logits, zeros = _as(normal, shape.dtype), _as(np.zeros(_BLOCK, np.float32), shape.dtype)
    sizes = (shape.rows, shape.actions)
    stream = {} if on.device == "cpu" else {"stream": on.handle}
    bound = [
        op.bind(
            on.array((*sizes, shape.atoms), shape.dtype, logits),
            on.array(sizes, shape.dtype, logits),
            on.array(sizes, shape.dtype, zeros),
            **stream,
        )
        for _ in range(max(count for _, count in plans))
    ]
    kernel, found = op.explain(shape.rows), []
    for cache, count in plans:
        step: Callable[[int], None]
        if stream:

            def step(i: int) -> None:
                bound[i].step(on.handle)
        else:

            def step(i: int) -> None:
                bound[i].step()

        timing = on.time(step, count, budget_s)
        seconds = 1e-6 * timing.us
        rate = shape.bytes / seconds
        found.append(
            Measurement(
                shape.rows,
                cache,
                kernel,
                timing.us,
                timing.spread,
                timing.repeats,
                shape.bytes,
                count * shape.bytes,
                rate / 1e9,
                shape.rows / seconds,
                rate / copy_bytes_s,
            )
        )
    isv.read(**stream)  # raises on a fault: a step that did nothing has no time
    return found


def _as(values: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """Return float32 values in a dtype of the benchmark, bfloat16 as the upper halves of the words."""
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return values.astype(dtype)
