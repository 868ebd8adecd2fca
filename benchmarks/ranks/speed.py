"""What a shared step costs: one device alone, all of them without an exchange, and with it."""

from __future__ import annotations

import numpy as np

import qpi_distill as qpi
from qpi_distill._record import WORDS
from qpi_distill.distributed import Ranks
from qpi_distill.distributed.exchange import exchange_of

from .data import ACTIONS, STATE, batch, distiller
from .world import World

SIZES = (64, 4096, 65_536, 1 << 20)
PERIOD_ROWS = 4096
WARM, REPEATS = 4, 20
GRAPH_US = 3000
MOST_STEPS = 200
CPU_STEPS = 4  # there is no launch to hide, and an exchange takes milliseconds where the ranks outnumber the cores


def steps_for(rows: int, device: str) -> int:
    """Steps in a graph: so many that its launch does not show; the same on every rank, which have to meet in each."""
    if device == "cpu":
        return CPU_STEPS
    return max(min(int(GRAPH_US / (10 + 3e-4 * rows)), MOST_STEPS), 1)


def median_us(place, enqueue, steps: int) -> float:
    """Median time of one of `steps` steps that `enqueue` makes. Every rank makes the same number of calls."""
    enqueue()
    launch = place.capture(enqueue)
    place.times_us(launch, WARM)
    return float(np.median(place.times_us(launch, REPEATS))) / steps


def repeated(steps: int, *work):
    """A function that does this work so many times."""

    def enqueue() -> None:
        for _ in range(steps):
            for one in work:
                one()

    return enqueue


def floors(world: World, place) -> dict:
    """The bare exchange, an all-reduce of as many float64 beside it, and the exchange with the adding up."""
    handle = place.stream[0] if place.stream else 0
    (send, sent), (receive, _) = place.words(WORDS), place.words(world.size, WORDS)
    gather = exchange_of(world.group).all_gather(send, receive, place.ordinal)
    out = {"all_gather_us": lambda: gather(handle)}
    ranks = Ranks(qpi.ISV(**STATE, device=place.device), world.group)
    out["all_gather_and_fold_us"] = lambda: ranks.all_reduce(*place.stream)
    if type(world.group).__module__.startswith("torch"):
        import torch

        numbers = sent.view(torch.float64)

        def all_reduce() -> None:
            if place.stream:
                with torch.cuda.stream(torch.cuda.ExternalStream(handle, device=place.device)):
                    torch.distributed.all_reduce(numbers, group=world.group)
            else:
                torch.distributed.all_reduce(numbers, group=world.group)

        out["all_reduce_us"] = all_reduce
    steps = steps_for(0, place.device)
    return {name: median_us(place, repeated(steps, one), steps) for name, one in out.items()}


def times(world: World, place, rows: int) -> dict:
    """One row of the result: microseconds of a step with so many rows on each rank."""
    period = batch((world.rank,), min(rows, PERIOD_ROWS), 1)
    q, pi = (place.tile(array, rows) for array in period)
    grad = place.tile(np.zeros((len(period[1]), ACTIONS), np.float32), rows)
    isv = qpi.ISV(**STATE, device=place.device)
    ranks = Ranks(isv, world.group)
    bound = distiller(isv, "mean").bind(q, pi, grad)
    steps = steps_for(rows, place.device)

    def step() -> None:
        bound.step(*place.stream)

    def accumulate() -> None:
        bound.accumulate(*place.stream)

    alone = 0.0
    for rank in range(world.size):  # each by itself, while the others wait
        if rank == world.rank:
            alone = median_us(place, repeated(steps, step), steps)
        world.meet()
    local = median_us(place, repeated(steps, accumulate, lambda: isv.commit(*place.stream)), steps)
    world.meet()
    together = median_us(place, repeated(steps, accumulate, lambda: ranks.commit(*place.stream)), steps)
    told = world.tell((alone, local, together))
    alone, local, together = (max(values) for values in zip(*told, strict=True))
    return {
        "rows": rows,
        "alone_us": round(alone, 3),
        "without_exchange_us": round(local, 3),
        "together_us": round(together, 3),
        "exchange_us": round(together - local, 3),
        "rows_per_s": round(1e6 * rows * world.size / together),
        "speedup": round(world.size * alone / together, 3),
    }


def run(world: World, place, sizes) -> dict:
    """Floors and all sizes."""
    world.meet()
    floor = floors(world, place)
    told = world.tell(floor)
    rows = [times(world, place, size) for size in sizes]
    return {"floor": {name: round(max(rank[name] for rank in told), 3) for name in floor}, "speed": rows}
