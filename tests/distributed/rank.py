"""One rank of a job: runs every case and keeps what it finds. Not a test itself; see conftest.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))

from shards import COMMITS, KINDS, LONG, STATE, batches, part, shards, small_batch

import backends
import qpi_distill as qpi
from qpi_distill.distributed import Ranks
from stepping import arguments, distiller, make_isv

BEYOND_FLOAT64 = 2**53 + 1


def connect(way: str, folder: Path):
    """The group of all ranks."""
    if way == "mpi":
        from mpi4py import MPI

        return MPI.COMM_WORLD
    import torch.distributed as dist

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size)
    return dist.group.WORLD


def slots(isv) -> np.ndarray:
    return isv.slots.view(np.uint32).copy()


def data_parallel(group, kind: str, value_scale: str, gradients: str, **choices) -> dict:
    """Steps on shards of a batch: the slots after each, and this rank's gradients."""
    cpu = backends.make("cpu")
    isv = make_isv(cpu, STATE)
    ranks = Ranks(isv, group)
    found = {"slots": [], "grad": [], "skipped": []}
    for problem in batches(kind, ranks.size, value_scale):
        mine = part(problem, shards(kind, ranks.size)[ranks.rank])
        op = distiller(isv, mine, **choices)
        positional, keywords = arguments(cpu, mine)
        positional[2][:] = 0
        scale = ranks.grad_scale(mine.weights.sum(dtype=np.float64), gradients=gradients)
        op.accumulate(*positional, **{**keywords, "grad_scale": scale})
        ranks.commit()
        found["slots"].append(slots(isv))
        found["grad"].append(positional[2])
    return {"slots": np.array(found["slots"]), "grad": np.array(found["grad"])}


def long_run(group) -> dict:
    """Thousands of commits on small batches, which differ between ranks and are sometimes empty."""
    isv = qpi.ISV(device="cpu", **LONG)
    ranks = Ranks(isv, group)
    op = qpi.Distiller(actions=3, support=qpi.linspace(-1, 1, 5), isv=isv, reduction="mean", summary=True)
    history = np.empty((COMMITS, isv.slots.size), np.uint32)
    for step in range(COMMITS):
        q, pi = small_batch(step, ranks.rank)
        if len(pi):  # a rank without rows need not even call `accumulate`
            op.accumulate(q, pi, np.zeros_like(pi))
        ranks.commit()
        history[step] = isv.slots.view(np.uint32)
    return {"slots": history}


def faults(group) -> dict:
    """Rank 0 meets a bad grad_scale, all others a bad weight: united, and more than one of the same is one."""
    isv = qpi.ISV(device="cpu")
    ranks = Ranks(isv, group)
    op = qpi.Distiller(actions=3, support=qpi.linspace(-1, 1, 5), isv=isv, reduction="sum")
    q, pi = np.zeros((2, 3, 5), np.float32), np.ones((2, 3), np.float32)
    if ranks.rank == 0:
        op.accumulate(q, pi, np.zeros_like(pi), grad_scale=np.array([np.nan], np.float32))
    else:
        op.accumulate(q, pi, np.zeros_like(pi), row_weights=np.array([1, -1], np.float32))
    ranks.all_reduce()
    calls = int(isv.record_views().flags[1])
    isv.commit()
    values = isv.read(check=False)
    return {"faults": values.raw["faults"], "calls": calls, "skipped": values.skipped_last, "slots": slots(isv)}


def counts(group) -> dict:
    """Counts that float64 does not have."""
    isv = qpi.ISV(device="cpu")
    ranks = Ranks(isv, group)
    views = isv.record_views()
    views.sums[:] = 1
    views.counts[:] = BEYOND_FLOAT64, BEYOND_FLOAT64 + 2 * ranks.rank, 1
    ranks.commit()
    values = isv.read()
    return {"counts": np.array([values.rows_last, values.skipped_last, values.clipped_last], np.uint64)}


def begun(group) -> dict:
    """A record that was begun before the ranks met is still this rank's own; `discard` empties it."""
    isv = qpi.ISV(device="cpu")
    isv.record_views().counts[0] = 5
    ranks = Ranks(isv, group)
    kept = int(isv.record_views().counts[0])
    ranks.all_reduce()
    together = int(isv.record_views().counts[0])
    isv.discard()
    ranks.commit()
    return {"kept": kept, "together": together, "observations": isv.read().observations}


def strangers(group) -> dict:
    """Ranks that begin with other values are told so, all of them, by name; and go on working afterwards."""
    rank = Ranks(qpi.ISV(device="cpu"), group).rank
    isv = qpi.ISV(device="cpu", lam=0.5 if rank == 1 else 0.1, kl_target=0.3 if rank == 1 else 0.2)
    message = ""
    try:
        Ranks(isv, group)
    except ValueError as error:
        message = str(error)
    isv = qpi.ISV(device="cpu")
    ranks = Ranks(isv, group)
    ranks.commit()
    ranks.check()
    isv.set(tau=2.0 if rank == 1 else 3.0)
    later = ""
    try:
        ranks.check()
    except ValueError as error:
        later = str(error)
    return {"message": message, "later": later}


def main(way: str, folder: str) -> None:
    group = connect(way, Path(folder))
    found = {
        **{f"{kind}-{value_scale}": data_parallel(group, kind, value_scale, "sum")
           for kind in KINDS for value_scale in ("none", "running_std")},
        "averaged": data_parallel(group, "uneven", "none", "mean"),
        "long": long_run(group),
        "faults": faults(group),
        "counts": counts(group),
        "begun": begun(group),
        "strangers": strangers(group),
    }  # fmt: skip
    rank = Ranks(qpi.ISV(device="cpu"), group).rank
    np.savez(Path(folder, f"{rank}.npz"), **{f"{case}/{k}": v for case, data in found.items() for k, v in data.items()})
    if way == "gloo":
        import torch.distributed as dist

        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
