"""Connects the ranks: the group under test, and beside it gloo for what the hosts tell each other."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

THROUGH = ("torch", "nccl4py")
PATIENCE = timedelta(seconds=120)


class World:
    """One rank's connections.

    Parameters
    ----------
    rank, size : int
        This process's number, and how many there are.
    group : object
        What `Ranks` is given.
    """

    def __init__(self, rank: int, size: int, group, hosts):
        self.rank, self.size, self.group, self._hosts = rank, size, group, hosts

    def tell(self, value) -> list:
        """What every rank says, in their order."""
        import torch.distributed as dist

        told: list = [None] * self.size
        dist.all_gather_object(told, value, group=self._hosts)
        return told

    def meet(self) -> None:
        """Wait for all ranks."""
        self.tell(None)


@contextmanager
def connect(rank: int, size: int, folder: Path, device: str, through: str):
    """The world of a rank, as long as it lasts."""
    import torch.distributed as dist

    dist.init_process_group(
        "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl",
        init_method=f"file://{folder / 'rendezvous'}",
        rank=rank,
        world_size=size,
        timeout=PATIENCE,
    )
    hosts = dist.new_group(backend="gloo", timeout=PATIENCE)
    group, finish = dist.group.WORLD, lambda: None
    if through == "nccl4py":
        import nccl.core

        name = [nccl.core.get_unique_id() if rank == 0 else None]
        dist.broadcast_object_list(name, src=0, group=hosts)
        group = nccl.core.Communicator.init(size, rank, name[0])
        finish = group.destroy
    try:
        yield World(rank, size, group, hosts)
    finally:
        finish()
        dist.destroy_process_group()
