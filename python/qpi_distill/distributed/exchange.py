"""How the ranks of a job send each other a few bytes: what a backend has to say, and which one serves a group."""

from __future__ import annotations

import abc
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["Exchange", "exchange_of"]

# Top-level module of a group's class -> file in this folder.
_FILES = {"torch": "torch", "mpi4py": "mpi", "nccl": "nccl"}


class Exchange(abc.ABC):
    """The ranks of a job as one library connects them.

    `Ranks` finds the one for a group of torch.distributed, mpi4py or nccl4py. Another library is a subclass of this.

    Attributes
    ----------
    rank : int
        This process's number, 0 .. size - 1.
    size : int
        How many ranks there are.
    """

    rank: int
    size: int

    @abc.abstractmethod
    def check(self, device: int) -> None:
        """Raise, before anything is sent, where memory of a device cannot be exchanged.

        Parameters
        ----------
        device : int
            -1 for the CPU, or the ordinal of a GPU.

        Raises
        ------
        ValueError
            The group does not serve that device.
        """

    @abc.abstractmethod
    def all_gather(self, send: Any, receive: Any, device: int) -> Callable[[int], None]:
        """Prepare the sending of one array again and again; nothing is sent yet.

        Parameters
        ----------
        send : array, shape [m], int64
            This rank's part: of NumPy on the CPU, with `__cuda_array_interface__` on a GPU.
        receive : array, shape [size, m], int64
            All parts in the order of the ranks.
        device : int
            Where both are.

        Returns
        -------
        callable
            Given the handle of a stream (0 on the CPU), sends what is in `send` by then and fills `receive`: in the
            order of the stream, if it can, and without allocating. Called with the GPU's context current. Every rank
            calls it the same number of times.
        """


def exchange_of(group: Any) -> Exchange:
    """Return the exchange of a group.

    Raises
    ------
    TypeError
        If it is none that is known.
    """
    if isinstance(group, Exchange):
        return group
    for base in type(group).__mro__:
        file = _FILES.get(base.__module__.partition(".")[0])
        if file is not None:
            exchange: Exchange = importlib.import_module(f".{file}", __package__).exchange(group)
            return exchange
    hint = " (call torch.distributed.init_process_group first)" if group is None else ""
    raise TypeError(
        f"group: {type(group).__module__}.{type(group).__qualname__} is not a torch.distributed ProcessGroup, an "
        f"mpi4py Comm, an nccl4py Communicator or a qpi_distill.distributed.Exchange{hint}"
    )
