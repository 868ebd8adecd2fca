"""NCCL through nccl4py: GPUs without any framework.

Relied on, of nccl4py 0.6: `Communicator.is_valid`, `.rank`, `.nranks`, `.device`, and `.allgather(send, receive,
stream=handle)`, which takes anything with `__cuda_array_interface__` and an integer as the stream, and puts the parts
in the order of the ranks. NCCL collectives may be captured in CUDA graphs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nccl.core import Communicator

from .exchange import Exchange

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["NcclExchange", "exchange"]


class NcclExchange(Exchange):
    """A communicator of nccl4py.

    Parameters
    ----------
    communicator : nccl.core.Communicator
        Of the GPU that the ISV is on.
    """

    def __init__(self, communicator: Communicator) -> None:
        if not isinstance(communicator, Communicator):
            raise TypeError(f"group: {type(communicator).__qualname__} is not an nccl4py Communicator")
        if not communicator.is_valid:
            raise ValueError("group: the NCCL communicator is not initialised, or is destroyed already")
        self.communicator = communicator
        self.rank, self.size = communicator.rank, communicator.nranks

    def check(self, device: int) -> None:
        """Raise `ValueError` if the communicator is of another device."""
        if device < 0:
            raise ValueError("group: NCCL serves GPUs alone, but the ISV is on cpu")
        mine = int(self.communicator.device.device_id)
        if mine != device:
            raise ValueError(f"group: the NCCL communicator is of cuda:{mine}, but the ISV is on cuda:{device}")

    def all_gather(self, send: Any, receive: Any, device: int) -> Callable[[int], None]:
        """Prepare `ncclAllGather`."""
        return lambda stream: self.communicator.allgather(send, receive, stream=stream)


def exchange(group: Any) -> NcclExchange:
    """Return the exchange of a communicator."""
    return NcclExchange(group)
