"""What has to hold: equal bits on every rank at every step, and the statistic and lam of one device for any split."""

from __future__ import annotations

import numpy as np

import qpi_distill as qpi
from qpi_distill.distributed import Ranks
from qpi_distill.distributed.exchange import exchange_of

from .data import STATE, batch, distiller, split
from .world import World

SETS, SET_ROWS = 40, 256
SPLIT_STEPS = 60
SPLITS = {"split_50_50": 0.5, "split_90_10": 0.9, "split_100_0": 1.0}
TOLERANCE = 1e-6
GRAD_TOLERANCE = 2e-6
RECORD_WORDS = qpi.Recorder.dtype.itemsize // 8


# ---- the same bits --------------------------------------------------------------------------------------------------


class History:
    """A loop over sets of this rank's own, each commit of which is kept on the device."""

    def __init__(self, world: World, place, steps: int):
        self.place, self.steps = place, steps
        self.isv = qpi.ISV(**STATE, device=place.device)
        op = distiller(self.isv, "mean")
        self.ranks = Ranks(self.isv, world.group)
        self.recorder = qpi.Recorder(self.isv, steps)
        self.bound = []
        for i in range(SETS):
            q, pi = (place.put(array) for array in batch((world.rank, i), SET_ROWS, i // 7))
            self.bound.append(op.bind(q, pi, place.put(np.zeros((SET_ROWS, op.actions), np.float32))))
        place.settle()

    def run(self, steps: int) -> None:
        for step in range(steps):
            self.bound[step % SETS].accumulate(*self.place.stream)
            self.ranks.commit(*self.place.stream)

    def differing(self, world: World) -> int:
        """At how many steps some rank has other bits than rank 0: compared on the device, one number read."""
        count = self.steps * RECORD_WORDS
        own = self.place.view(self.recorder._ring.address, count)
        told, tensor = self.place.words(world.size, count)
        gather = exchange_of(world.group).all_gather(own, told, self.place.ordinal)
        gather(*self.place.stream or (0,))
        self.place.settle()
        steps = tensor.view(world.size, self.steps, RECORD_WORDS)
        return int((steps != steps[:1]).any(0).any(-1).sum().item())


def same_bits(world: World, place, steps: int) -> dict:
    """`steps` commits on different data, one after the other, and again out of a graph."""
    steps = -(-steps // SETS) * SETS
    one_by_one, replayed = History(world, place, steps), History(world, place, steps)
    one_by_one.run(steps)
    launch = place.capture(lambda: replayed.run(SETS))
    for _ in range(steps // SETS):
        launch()
    place.settle()
    out, drained = {}, []
    for name, history in {"same_bits": one_by_one, "same_bits_in_a_graph": replayed}.items():
        differing = history.differing(world)
        records = history.recorder.drain(*place.stream)
        lam = records["lam"]
        moved = bool((np.diff(lam) > 0).any() and (np.diff(lam) < 0).any())
        whole = len(records) == steps and int(records["observations"][-1]) == steps
        out[name] = {
            "steps": steps,
            "differing": differing,
            "lam_moved_both_ways": moved,
            "ok": differing == 0 and moved and whole,
        }
        drained.append(records)
    equal = drained[0].tobytes() == drained[1].tobytes()
    out["a_graph_does_the_same"] = {"ok": equal}
    return out


# ---- one device's statistic, however the rows are split -------------------------------------------------------------


def kept_lam(shared: np.ndarray, alone: np.ndarray) -> tuple[bool, int | None]:
    """Whether lam is the same path, and the step at which it may leave it: the average on a bound of the dead zone."""
    other = np.flatnonzero(shared["lam"] != alone["lam"])
    if not len(other):
        return True, None
    step = int(other[0])
    bounds = STATE["kl_target"] * np.array([STATE["kl_tolerance"], 1 / STATE["kl_tolerance"]])
    near = np.abs(alone["kl_ema"][step] / bounds - 1).min() <= TOLERANCE
    return bool(near), step


def against_one(world: World, place, shards: list[slice], skipped: slice | None = None) -> dict:
    """A rank's part of batches that a single device has whole, every rank checking its own gradients."""
    mine = shards[world.rank]
    isv, whole = (qpi.ISV(**STATE, device=place.device) for _ in range(2))
    ranks = Ranks(isv, world.group)
    op, single = distiller(isv, "sum"), distiller(whole, "mean")
    recorders = [qpi.Recorder(one, SPLIT_STEPS) for one in (isv, whole)]
    scale = ranks.grad_scale(mine.stop - mine.start, stream=place.stream[0] if place.stream else None)
    worst_gradient = 0.0
    for step in range(SPLIT_STEPS):
        q, pi = batch((step,), shards[-1].stop, step // 7)
        if skipped is not None:
            pi[skipped] = np.nan
        part = [place.put(array) for array in (q[mine], pi[mine], np.zeros_like(pi[mine]))]
        all_of_it = [place.put(array) for array in (q, pi, np.zeros_like(pi))]
        place.settle()
        keyword = {"stream": place.stream[0]} if place.stream else {}
        op.accumulate(*part, grad_scale=scale, **keyword)
        ranks.commit(*place.stream)
        single.accumulate(*all_of_it, **keyword)
        whole.commit(*place.stream)
        want, got = place.get(all_of_it[2]), place.get(part[2])
        if got.size:
            worst_gradient = max(worst_gradient, float(np.abs(got - want[mine]).max() / np.abs(want).max()))
    shared, alone = (recorder.drain(*place.stream) for recorder in recorders)
    worst = float(np.abs(shared["kl_last"].astype(np.float64) / alone["kl_last"] - 1).max())
    same_path, left_at = kept_lam(shared, alone)
    counts = all((shared[name] == alone[name]).all() for name in ("rows_last", "skipped_last", "observations"))
    skips = int(shared["skipped_last"][-1])
    expected = 0 if skipped is None else skipped.stop - skipped.start
    close = worst <= TOLERANCE and worst_gradient <= GRAD_TOLERANCE
    moved = len(np.unique(alone["lam"])) > 2
    return {
        "rows": [at.stop - at.start for at in shards],
        "steps": SPLIT_STEPS,
        "skipped": skips,
        "kl_error": worst,
        "gradient_error": worst_gradient,
        "lam_same": same_path,
        "lam_left_at": left_at,
        "lam_moved": moved,
        "ok": moved and same_path and close and counts and skips == expected,
    }


def splits(world: World, place, rows: int) -> dict:
    """Equal, uneven and empty shards, and one whose rows are all skipped."""
    out = {}
    for name, share in SPLITS.items():
        shards = split(1 / world.size if name == "split_50_50" else share, rows, world.size)
        out[name] = against_one(world, place, shards)
    if world.size > 1:
        shards = split(1 / world.size, rows, world.size)
        out["skipped_shard"] = against_one(world, place, shards, shards[-1])
    return out


def run(world: World, place, steps: int, split_rows: int) -> dict:
    """All of them; a check holds if it holds on every rank."""
    mine = {**same_bits(world, place, steps), **splits(world, place, split_rows)}
    told = world.tell(mine)
    out = {}
    for name, first in told[0].items():
        verdicts = [rank[name]["ok"] for rank in told]
        errors = {key: max(rank[name][key] for rank in told) for key in first if key.endswith("_error")}
        out[name] = {**first, **errors, "ok": all(verdicts)}
    return out
