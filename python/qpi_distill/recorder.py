"""The flight recorder: what each commit did, kept on the device until the host wants to know."""

from __future__ import annotations

import csv
import importlib
import io
import operator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from . import _isv
from .isv import ISV, code_name, fault_names

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    import numpy.typing as npt

    Records = npt.NDArray[np.void]

__all__ = ["Recorder"]

_TYPES = {"f32": "<f4", "u32": "<u4", "u64": "<u8"}
_DTYPE = np.dtype(
    {
        "names": [name for name, _, _ in _isv.FLIGHT_FIELDS],
        "formats": [_TYPES[kind] for _, kind, _ in _isv.FLIGHT_FIELDS],
        "offsets": [offset for _, _, offset in _isv.FLIGHT_FIELDS],
        "itemsize": _isv.FLIGHT_SIZE,
    }
)
# Means over the batch that are negative where nobody has measured them.
MEASURES = tuple(s.name for s in _isv.SLOTS if s.role == "state" and s.default == -1)
_SCALARS = tuple(name for name, _, _ in _isv.FLIGHT_FIELDS if name != "commits")  # commits is the step
_CODES = ("lam_law", "tau_law", "reason", "tau_reason")


class Recorder:
    """A ring on the ISV's device into which every commit writes a record: lam, tau, KLs, entropies, rows, reasons.

    Training never waits for it: the commit stores a few words more, and `drain` copies the ring in stream order and
    waits beside it. What is not drained before the ring comes round is lost, counted and seen in `lost`.

    A call to `control` (or `lambda_controller`) brings the record of the last commit up to date, unless it has been
    drained. A CUDA graph records if it was captured while the recorder was there; it must not be replayed once the
    recorder is closed or gone.

    Parameters
    ----------
    isv : ISV
        What to record; it can have one recorder at a time. The commits so far are not recorded.
    capacity : int
        Records that the ring holds, of 112 bytes each. Default: 4096.
    keep : bool
        Whether drained records are kept for `records` and the writers. Otherwise only `drain` returns them.

    Attributes
    ----------
    lost : int
        Commits whose records were overwritten before they were drained.

    Raises
    ------
    TypeError
        `isv` is no ISV, or `capacity` no integer.
    ValueError
        A capacity that is not from 1 to 2**24, or an ISV that has a recorder.
    CaptureError
        The ISV's stream is being captured into a graph.

    Examples
    --------
    >>> isv = ISV(device="cpu")
    >>> recorder = Recorder(isv)
    >>> isv.commit()
    >>> [code_name("reason", code) for code in recorder.drain()["reason"]]
    ['no_rows']
    """

    #: The NumPy dtype of a record: a field for each slot that is recorded, under the slot's name.
    dtype = _DTYPE

    def __init__(self, isv: ISV, capacity: int = 4096, *, keep: bool = True) -> None:
        if not isinstance(isv, ISV):
            raise TypeError(f"isv: {type(isv).__name__} is not a qpi.ISV")
        try:
            capacity = operator.index(capacity)
        except TypeError:
            raise TypeError(f"capacity: {capacity!r} is not an integer") from None
        if not 1 <= capacity <= _isv.FLIGHT_MAX:
            raise ValueError(f"capacity: {capacity} is outside [1, {_isv.FLIGHT_MAX}]")
        if isv._recorder is not None:
            raise ValueError("isv: has a recorder already; close that first")
        self._isv = isv
        self._keep = keep
        self._drained: list[Records] = []
        self.lost = 0
        self._seen = int(isv.read(check=False).commits)
        self._ring: Any = isv._state.make_ring(capacity * _isv.FLIGHT_SIZE)
        isv._handle.record_to(self._ring.address, capacity, self._ring.memory)
        isv._recorder = self

    def _restart(self, commits: int, stream: Any) -> None:
        """Forget what is in the ring; the next commit's number is `commits` + 1."""
        self._ring.clear(stream)
        self._seen = commits

    def close(self) -> None:
        """Stop recording. What has been drained stays; what has not is gone."""
        if self._isv._recorder is self:
            self._isv._handle.record_to(0, 0, None)
            self._isv._recorder = None

    def __enter__(self) -> Recorder:
        """Return the recorder itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop recording."""
        self.close()

    # ---- reading ---------------------------------------------------------------------------------------------------

    def drain(self, stream: Any = None) -> Records:
        """Return the records of the commits since the last drain, oldest first.

        Parameters
        ----------
        stream : int or stream object, optional
            The stream after whose work so far they are taken, as for `ISV.read`. None: follow the last call on the ISV.

        Returns
        -------
        structured array, shape [n], dtype `Recorder.dtype`
            Laws and reasons are codes, faults bits; measures that were not taken are negative. Gaps in `commits` are
            lost records.

        Raises
        ------
        ValueError
            The recorder is closed.
        CaptureError
            The stream is being captured into a graph.
        """
        if self._isv._recorder is not self:
            raise ValueError("the recorder is closed")
        ring = np.frombuffer(self._ring.read(stream), _DTYPE)
        new = ring[ring["commits"] > self._seen]
        new = new[np.argsort(new["commits"])]
        if len(new):
            newest = int(new["commits"][-1])
            self.lost += newest - self._seen - len(new)
            self._seen = newest
            if self._keep:
                self._drained.append(new)
        return new

    @property
    def records(self) -> Records:
        """All records that have been drained and kept, oldest first, as `drain` returns them."""
        if len(self._drained) != 1:
            self._drained = [np.concatenate([np.empty(0, _DTYPE), *self._drained])]
        return self._drained[0]

    # ---- writing ---------------------------------------------------------------------------------------------------

    def to_csv(self, path: str | Path | io.TextIOBase, records: Records | None = None) -> None:
        """Write records as comma-separated values, with names for laws, reasons and faults; not measured is empty.

        Parameters
        ----------
        path : str, Path or text file
            Where to.
        records : structured array, optional
            Default: `records`.
        """
        records = self.records if records is None else records
        if isinstance(path, (str, Path)):
            with Path(path).open("w", newline="", encoding="utf-8") as file:
                _write_csv(file, records)
        else:
            _write_csv(path, records)

    def to_tensorboard(self, writer: Any, records: Records | None = None, *, prefix: str = "qpi/") -> None:
        """Write records as scalars, one tag a field, at the step that is the commit's number.

        Laws and reasons are codes, faults bits; measures that were not taken are left out.

        Parameters
        ----------
        writer : SummaryWriter, str or Path
            Anything with ``add_scalar(tag, value, global_step)``, such as torch's or tensorboardX's writer. A folder:
            a writer for it is made with whichever of these two is installed, and closed.
        records : structured array, optional
            Default: `records`.
        prefix : str
            What the tags begin with.

        Raises
        ------
        ImportError
            A folder was given, and neither package is installed.
        """
        records = self.records if records is None else records
        if isinstance(writer, (str, Path)):
            own = _summary_writer()(str(writer))
            try:
                self.to_tensorboard(own, records, prefix=prefix)
            finally:
                own.close()
            return
        steps = records["commits"].tolist()
        for name in _SCALARS:
            for step, value in zip(steps, records[name].tolist(), strict=True):
                if name not in MEASURES or value >= 0:
                    writer.add_scalar(f"{prefix}{name}", value, step)

    def to_png(self, path: str | Path, records: Records | None = None) -> None:
        """Draw records: lam, tau, KL, entropies and agreement, and what the law did. Needs matplotlib.

        Parameters
        ----------
        path : str or Path
            The picture.
        records : structured array, optional
            Default: `records`.

        Raises
        ------
        ImportError
            matplotlib is not installed.
        """
        from ._record_plot import draw_records

        draw_records(self.records if records is None else records, path)


def _write_csv(file: Any, records: Records) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(records.dtype.names)
    columns = []
    for name in records.dtype.names:
        values = records[name].tolist()
        if name in _CODES:
            values = [code_name(name, code) for code in values]
        elif name == "faults":
            values = [" ".join(fault_names(bits)) for bits in values]
        elif records.dtype[name].kind == "f":
            # the shortest text that gives the same float32 back
            values = ["" if name in MEASURES and x < 0 else str(x) for x in records[name]]
        columns.append(values)
    writer.writerows(zip(*columns, strict=True))


def _summary_writer() -> Any:
    for package in ("torch.utils.tensorboard", "tensorboardX"):
        try:
            return importlib.import_module(package).SummaryWriter
        except ImportError:
            continue
    raise ImportError(
        "writing TensorBoard events needs torch with tensorboard, or tensorboardX (pip install tensorboardX); or pass "
        "an object with add_scalar(tag, value, global_step)"
    )
