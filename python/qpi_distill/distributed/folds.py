"""What every rank does with the parts of all ranks: one record of them, and one normaliser."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .._record import COUNTS, FAULTS, WORDS, fold
from ..errors import DeviceError

if TYPE_CHECKING:
    from typing import Any

__all__ = ["SOURCE", "DeviceFolds", "HostFolds", "definitions", "folds_of"]

SOURCE = Path(__file__).with_name("fold.cu")


class HostFolds:
    """On the CPU, by NumPy."""

    def records(self, records: Any, into: Any, stream: int) -> None:
        """Make one record of those of all ranks."""
        fold(records, into)

    def normalise(self, weights: Any, factor: float, scale: Any, stream: int) -> None:
        """Store `factor` over the sum of the weights, or 0 where there is no weight."""
        total = np.add.accumulate(weights)[-1]
        with np.errstate(over="ignore"):  # beyond float32 it is infinite, as on a GPU; the step then has a fault
            scale[0] = factor / total if total > 0 else 0


def definitions() -> list[tuple[str, str]]:
    """Return what `fold.cu` wants to have defined."""
    counts = sum(1 << int(word) for word in np.flatnonzero(COUNTS))
    return [("WORDS", str(WORDS)), ("COUNT_WORDS", f"{counts}u"), ("FLAG_WORD", str(FAULTS // 2))]


class DeviceFolds:
    """On a GPU, by the kernels of `fold.cu`. Made and called with its context current.

    Parameters
    ----------
    ordinal : int
        The GPU.

    Raises
    ------
    DeviceError
        NVRTC, which compiles them, cannot be used.
    """

    def __init__(self, ordinal: int) -> None:
        from cuda.core import Device, LaunchConfig, Program, ProgramOptions, Stream, launch

        options = ProgramOptions(std="c++17", arch=f"sm_{Device(ordinal).arch}", define_macro=definitions(), fma=False)
        try:
            program = Program(SOURCE.read_text(encoding="utf-8"), "c++", options)
            code = program.compile("cubin")
        except Exception as error:
            raise DeviceError(
                f"records are added up on a GPU by a kernel that NVRTC compiles, and it cannot be used: {error}; "
                "pip install 'qpi-distill[nccl]' has it"
            ) from error
        self._fold, self._normalise = code.get_kernel("fold_records"), code.get_kernel("normalise")
        self._launch, self._stream = launch, Stream.from_handle
        self._warp = LaunchConfig(grid=1, block=32)
        self._one = LaunchConfig(grid=1, block=1)

    def records(self, records: Any, into: Any, stream: int) -> None:
        """Enqueue: make one record of those of all ranks."""
        count = np.int32(records.shape[0])
        self._launch(self._stream(stream), self._warp, self._fold, records.address, count, into.address)

    def normalise(self, weights: Any, factor: float, scale: Any, stream: int) -> None:
        """Enqueue: store `factor` over the sum of the weights, or 0 where there is no weight."""
        arguments = (weights.address, np.int32(weights.shape[0]), np.float64(factor), scale.address)
        self._launch(self._stream(stream), self._one, self._normalise, *arguments)


_lock = threading.Lock()


@functools.cache
def _device_folds(ordinal: int) -> DeviceFolds:
    return DeviceFolds(ordinal)


def folds_of(device: int) -> HostFolds | DeviceFolds:
    """Return what adds up on a device; on a GPU, with its context current."""
    if device < 0:
        return HostFolds()
    with _lock:
        return _device_folds(device)
