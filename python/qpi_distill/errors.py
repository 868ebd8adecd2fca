"""What qpi-distill raises.

Wrong arguments raise the builtin types: `ValueError` (a number, a shape, a combination), `TypeError` (a dtype, a kind
of object), `BufferError` (memory that is read-only, overlapping, null or on another device), `OverflowError` (a size
beyond the limits) and `MemoryError`. The classes here are for everything else. A call that raises has changed nothing.
"""

from __future__ import annotations

__all__ = ["CaptureError", "CudaError", "DeviceError", "FaultError", "QpiError"]


class QpiError(Exception):
    """Base class of the exceptions below."""


class DeviceError(QpiError, RuntimeError):
    """There is no GPU to work on: no driver, a driver that is too old, no such device, or a build without CUDA."""


class CudaError(QpiError, RuntimeError):
    """CUDA refused a call; the message holds its error name."""


class CaptureError(QpiError, RuntimeError):
    """A host read or write that cannot be part of a CUDA graph was asked of a stream that is being captured."""


class FaultError(QpiError, ArithmeticError):
    """The device met values that make no sense and did not do what depended on them.

    Parameters
    ----------
    message : str
        What to tell the user.
    faults : tuple of str
        Names of the faults, in the order of their bits.

    Attributes
    ----------
    faults : tuple of str
        Names of the faults. `ISV.clear_faults` clears them.
    """

    def __init__(self, message: str, faults: tuple[str, ...] = ()) -> None:
        super().__init__(message, faults)
        self.faults = tuple(faults)

    def __str__(self) -> str:
        """Return the message alone."""
        return str(self.args[0])
