"""torch.distributed: gloo for the CPU, NCCL for GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from .exchange import Exchange

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["TorchExchange", "all_gather", "exchange"]

_LEGACY_STREAM = 1
# The newer name where there is one: the older one then warns.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
# A GPU's record has to be sent in the order of its stream, which of torch's own backends NCCL alone does.
_UNFIT = {"cpu": ("nccl",), "cuda": ("gloo", "mpi")}


class TorchExchange(Exchange):
    """A process group of torch.distributed.

    Parameters
    ----------
    group : torch.distributed.ProcessGroup
        With a backend for the device of the ISV.
    """

    def __init__(self, group: Any) -> None:
        if not isinstance(group, dist.ProcessGroup):
            raise TypeError(f"group: {type(group).__qualname__} is not a torch.distributed ProcessGroup")
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("group: this process is not one of its ranks")

    def check(self, device: int) -> None:
        """Raise `ValueError` if no fitting backend serves the device."""
        kind = "cpu" if device < 0 else "cuda"
        serving = dict(pair.split(":") for pair in dist.get_backend_config(self.group).split(","))
        backend = serving.get(kind)
        if backend is None or backend in _UNFIT[kind]:
            has = "none" if backend is None else repr(backend)
            need = "'gloo'" if kind == "cpu" else "'nccl'"
            raise ValueError(f"group: its backend for {kind} is {has}, but the ISV is on {kind}, which needs {need}")

    def all_gather(self, send: Any, receive: Any, device: int) -> Callable[[int], None]:
        """Prepare one all-gather of a tensor."""
        if device < 0:
            one, all_of_them = torch.from_numpy(send), torch.from_numpy(receive).view(-1)
            return lambda stream: all_gather(all_of_them, one, group=self.group)
        where = torch.device("cuda", device)
        one, all_of_them = torch.as_tensor(send, device=where), torch.as_tensor(receive, device=where).view(-1)

        def gather(stream: int) -> None:
            with torch.cuda.stream(_stream(stream, where)):
                all_gather(all_of_them, one, group=self.group)

        return gather


def _stream(handle: int, device: torch.device) -> torch.cuda.Stream:
    """Return torch's object for a stream."""
    if handle == _LEGACY_STREAM:
        return torch.cuda.default_stream(device)
    return torch.cuda.ExternalStream(handle, device=device)


def exchange(group: Any) -> TorchExchange:
    """Return the exchange of a process group."""
    if not (dist.is_available() and dist.is_initialized()):
        raise ValueError("group: torch.distributed is not initialised; call init_process_group first")
    return TorchExchange(group)
