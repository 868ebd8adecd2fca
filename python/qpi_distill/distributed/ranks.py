"""The ranks of a data-parallel job, as one of them sees them."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Literal

import numpy as np

from .. import _core, _isv
from .._record import WORDS
from ..arrays import real_of
from ..isv import ISV
from .exchange import exchange_of
from .folds import folds_of
from .scratch import Scratch, address_of

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

__all__ = ["Ranks"]

_GREETING_WORDS = 128  # of 8 bytes: the version, then the slots
_VERSION_BYTES = 64
# What has to be equal for the ranks to go on equally: all but what the loop only writes.
_STEERING = [slot for slot in _isv.SLOTS if slot.role != "output"]


class Ranks:
    """Data parallel: the statistic of all ranks' rows moves an ISV that is the same, bit for bit, on every rank.

    Each rank has an ISV and distillers of its own, calls `accumulate` with its rows, and then `commit` of this class
    instead of the ISV's. In between, the ranks exchange their records (120 bytes) and each adds all of them up in the
    order of the ranks. A rank without rows, or whose rows are all skipped, adds nothing and takes part all the same.

    Made by all ranks together, like a process group: they compare their states (`check`), and everything that an
    exchange needs is prepared, so that the first `commit` may already be captured in a CUDA graph. A captured graph
    needs this object to outlive it.

    Parameters
    ----------
    isv : ISV
        This rank's state, with the same values on every rank.
    group : torch.distributed.ProcessGroup, mpi4py.MPI.Intracomm, nccl.core.Communicator or Exchange
        Who the ranks are. On a GPU: torch's NCCL backend, nccl4py, or MPI, for which the host waits.

    Attributes
    ----------
    rank, size : int
        This rank's number, and how many there are.

    Raises
    ------
    TypeError
        An ISV or a group that is none.
    ValueError
        A group that this process does not belong to or that does not serve the ISV's device; ranks that begin with
        other values, or with another version of this package.
    DeviceError
        On a GPU, NVRTC cannot be used.

    Notes
    -----
    The order of addition is written down here rather than left to an all-reduce, whose order may hang on the number of
    ranks, the message and the library: the result is the same on every rank and in every backend, and the same as when
    one process accumulates the shards one after the other.

    Examples
    --------
    >>> import qpi_distill as qpi
    >>> from mpi4py import MPI
    >>> isv = qpi.ISV(lam=0.1, kl_target=0.05, device="cpu")
    >>> ranks = Ranks(isv, MPI.COMM_SELF)
    >>> ranks.size
    1
    """

    def __init__(self, isv: ISV, group: Any) -> None:
        if not isinstance(isv, ISV):
            raise TypeError(f"isv: {type(isv).__name__} is not a qpi.ISV")
        device = isv._handle.device
        exchange = exchange_of(group)
        exchange.check(device)
        self._isv, self._exchange = isv, exchange
        self.rank, self.size = exchange.rank, exchange.size
        isv._state.enqueue(self._load, None)  # may fail: before the others count on this rank
        self.check()
        isv._state.enqueue(self._prepare, None)

    def _load(self, stream: int) -> None:
        self._folds = folds_of(self._isv._handle.device)

    def _prepare(self, stream: int) -> None:
        """Reserve memory, and do once what every step does: it loads kernels and makes connections."""
        isv, device = self._isv, self._isv._handle.device
        scratch = Scratch(isv, (self.size + 1) * (WORDS + 1) + 1)
        self._record = isv._view(isv.record, WORDS, "int64")
        self._records = scratch.take(self.size, WORDS)
        own, weights = scratch.take(1), scratch.take(self.size, 1)
        self._own_weight = address_of(own)
        self._weights = scratch.like(weights, "float64")
        self._scale = scratch.like(scratch.take(1), "float32")
        self._gather = self._exchange.all_gather(self._record, self._records, device)
        self._gather_weights = self._exchange.all_gather(own, weights, device)
        self._gather(stream)
        # Not into the record: one that has been begun stays this rank's own.
        self._folds.records(self._records, scratch.take(WORDS), stream)
        self._gather_weights(stream)
        self._folds.normalise(self._weights, 1.0, self._scale, stream)

    @property
    def isv(self) -> ISV:
        """The state that the commits move."""
        return self._isv

    # ---- what every step does --------------------------------------------------------------------------------------

    def commit(self, stream: Any = None) -> None:
        """Update the moving averages, lam and tau from the records of all ranks, which are empty afterwards.

        Parameters
        ----------
        stream : int or stream object, optional
            None: follow the last call on the ISV. A rank that has not called anything yet has no stream to follow; the
            host then waits.

        Raises
        ------
        CaptureError
            The stream is being captured and the exchange is by MPI.
        """
        self.all_reduce(stream)
        self._isv.commit(stream)

    def all_reduce(self, stream: Any = None) -> None:
        """Make this rank's record that of all ranks, and no more: `commit` or `discard` of the ISV may follow.

        Once a commit: a record that is that of all ranks already would be added up again.

        Parameters
        ----------
        stream : int or stream object, optional
            As for `commit`.

        Raises
        ------
        CaptureError
            As for `commit`.
        """
        self._isv._state.enqueue(self._all_reduce, stream)

    def _all_reduce(self, stream: int) -> None:
        self._gather(stream)
        self._folds.records(self._records, self._record, stream)

    def grad_scale(self, weight: float, *, gradients: Literal["sum", "mean"] = "sum", stream: Any = None) -> Any:
        """Return what makes the gradients of ``reduction="sum"`` those of the mean over all ranks' rows.

        All ranks call it together, with what the shards are: again when these change, and not for every step where they
        do not. Nothing waits. The array is the same one each time, so that a captured graph sees the newest value.

        Parameters
        ----------
        weight : float
            This rank's number of rows in a step; with `row_weights`, their sum. 0 for an empty shard.
        gradients : {"sum", "mean"}
            What the job does with the gradients of its ranks afterwards: adds them up, or averages them as
            `DistributedDataParallel` does.
        stream : int or stream object, optional
            As for `commit`.

        Returns
        -------
        array, shape [1], float32
            For `grad_scale` of the distiller's calls: 1 / (sum of the ranks' weights), times the number of ranks for
            "mean"; 0 where no rank has any. On the ISV's device.

        Raises
        ------
        ValueError
            A weight that is negative or not finite, another word for `gradients`.
        TypeError
            A weight that is not a number.
        CaptureError
            As for `commit`.
        """
        number = real_of(weight, "weight")
        if not 0 <= number < math.inf:
            raise ValueError(f"weight: {weight!r}, expected 0 or more and finite")
        if gradients not in ("sum", "mean"):
            raise ValueError(f"gradients: {gradients!r} is not one of 'sum', 'mean'")
        factor = float(self.size) if gradients == "mean" else 1.0
        low, high = struct.unpack("<2I", struct.pack("<d", number))

        def work(handle: int) -> None:
            self._gather_weights(handle)
            self._folds.normalise(self._weights, factor, self._scale, handle)

        state = self._isv._state
        state.write_words([(self._own_weight, low), (self._own_weight + 4, high)], stream)
        state.enqueue(work, stream)
        return self._scale

    # ---- what has to be the same -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise, on every rank alike, if the ranks' states differ. The host waits.

        All ranks call it together: where a state was set or a checkpoint loaded on each of them. Construction does.

        Raises
        ------
        ValueError
            Parameters or states of another rank differ from rank 0's, or its version of this package; the message says
            which.
        CaptureError
            The stream is being captured into a graph.
        """
        isv, state = self._isv, self._isv._state
        scratch = Scratch(isv, _GREETING_WORDS * (self.size + 1))
        mine, told = scratch.take(_GREETING_WORDS), scratch.take(self.size, _GREETING_WORDS)
        words = enumerate(_greeting(isv).view(np.uint32).tolist())
        state.write_words([(address_of(mine) + 4 * i, word) for i, word in words], None)
        device = isv._handle.device
        state.enqueue(lambda stream: self._exchange.all_gather(mine, told, device)(stream), None)
        data = state.download(address_of(told), 8 * _GREETING_WORDS * self.size, None)
        _compare(np.frombuffer(data, np.int64).reshape(self.size, _GREETING_WORDS))

    def __repr__(self) -> str:
        """Show who this is."""
        return f"<qpi.distributed.Ranks: rank {self.rank} of {self.size}, {self._isv!r}>"


def _greeting(isv: ISV) -> NDArray[np.int64]:
    """Return what tells ranks apart: the version, and every slot that steers."""
    saved = isv.state_dict()
    words, at, steering = saved["words"], 0, []
    for slot in _isv.SLOTS:
        if slot.role != "output":
            steering.append(words[at : at + slot.words])
        at += slot.words
    text = _core.version().encode().ljust(_VERSION_BYTES, b"\0")[:_VERSION_BYTES]
    data = text + np.concatenate(steering).tobytes()
    return np.frombuffer(data.ljust(8 * _GREETING_WORDS, b"\0"), np.int64)


def _compare(told: NDArray[np.int64]) -> None:
    """Raise `ValueError` if the greetings differ; the first rank that does is named."""
    for rank, greeting in enumerate(told):
        if np.array_equal(greeting, told[0]):
            continue
        first, other = (bytes(row[: _VERSION_BYTES // 8]).rstrip(b"\0").decode() for row in (told[0], greeting))
        if first != other:
            raise ValueError(f"group: rank {rank} has qpi-distill {other}, but rank 0 has {first}")
        names, at = [], _VERSION_BYTES // 4
        words = told.view(np.uint32)
        for slot in _STEERING:
            if not np.array_equal(words[0, at : at + slot.words], words[rank, at : at + slot.words]):
                names.append(slot.name)
            at += slot.words
        raise ValueError(
            f"isv: rank {rank} has another {', '.join(names)} than rank 0; make every ISV with the same "
            "values, or load the same checkpoint"
        )
