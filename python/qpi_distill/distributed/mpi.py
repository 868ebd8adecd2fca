"""MPI through mpi4py: the CPU, and GPUs for which the host waits, because MPI knows nothing of streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpi4py import MPI

from .exchange import Exchange

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["MpiExchange", "exchange"]


class MpiExchange(Exchange):
    """An intra-communicator of mpi4py.

    On a GPU the host waits for the stream before it sends, so that an exchange cannot be captured in a CUDA graph.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Over all the ranks.
    cuda_aware : bool
        On a GPU, whether MPI may be given device memory; otherwise the few bytes go through memory of the host. An MPI
        that does not understand device memory crashes on it, and cannot be asked in a portable way.
    """

    def __init__(self, comm: Any, *, cuda_aware: bool = False) -> None:
        if not MPI.Is_initialized() or MPI.Is_finalized():
            raise ValueError("group: MPI is not initialised, or is finalised already")
        if not isinstance(comm, MPI.Comm):
            raise TypeError(f"group: {type(comm).__qualname__} is not an mpi4py Comm")
        if comm == MPI.COMM_NULL or comm.Is_inter():
            raise ValueError("group: the MPI communicator is null or connects two groups; expected one over all ranks")
        self.comm, self.cuda_aware = comm, bool(cuda_aware)
        self.rank, self.size = comm.Get_rank(), comm.Get_size()

    def check(self, device: int) -> None:
        """Serve every device."""

    def all_gather(self, send: Any, receive: Any, device: int) -> Callable[[int], None]:
        """Prepare `MPI_Allgather`."""
        if device < 0:
            return lambda stream: self._send(send, receive)
        from .. import _gpu

        if self.cuda_aware:

            def direct(stream: int) -> None:
                _gpu.refuse_capture(device, stream, "exchanging records by MPI")
                _gpu.synchronize(stream)
                self._send(send, receive)

            return direct
        mirror, mirrors = _gpu.HostMirror(send), _gpu.HostMirror(receive)

        def staged(stream: int) -> None:
            _gpu.refuse_capture(device, stream, "exchanging records by MPI")
            mirror.fetch(stream)
            _gpu.synchronize(stream)
            self._send(mirror.array, mirrors.array)
            mirrors.store(stream)

        return staged

    def _send(self, send: Any, receive: Any) -> None:
        self.comm.Allgather([send, MPI.INT64_T], [receive, MPI.INT64_T])


def exchange(group: Any) -> MpiExchange:
    """Return the exchange of a communicator."""
    return MpiExchange(group)
