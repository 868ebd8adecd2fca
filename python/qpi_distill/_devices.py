"""Device arguments: from "cuda:1", 1 or an object of cuda.core to the number that the C library uses."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from . import _core
from ._log import logger
from .errors import DeviceError

if TYPE_CHECKING:
    from typing import Any

__all__ = ["CPU", "ordinal_of", "why_no_gpu"]

CPU = -1
"""Number of the CPU; a GPU's is its ordinal."""


@functools.cache
def why_no_gpu() -> str | None:
    """Return why no GPU can be used, or None where one can. Creates no CUDA context."""
    import json

    gpu = json.loads(_core.build_info())["gpu"]
    if gpu["usable"]:
        return None
    logger.debug("no GPU is used: %s", gpu["reason"])
    return str(gpu["reason"])


def ordinal_of(device: Any) -> int:
    """Return the number of a device.

    Parameters
    ----------
    device : None, str, int or object
        None: the current GPU if one can be used, else the CPU. "cpu"; "cuda" for the current GPU, "cuda:1" or 1 for one
        by its ordinal; or an object with a `device_id` (`cuda.core.Device`) or such a text (`torch.device`).

    Raises
    ------
    ValueError
        If it names no device.
    DeviceError
        If it names a GPU and none can be used.
    """
    if device is None:
        return CPU if why_no_gpu() is not None else _current()
    if not isinstance(device, (str, int)):
        device = getattr(device, "device_id", None) if hasattr(device, "device_id") else str(device)
    if isinstance(device, str):
        match = re.fullmatch(r"cpu|cuda(?::(\d+))?", device)
        if match is None:
            raise ValueError(f"device: {device!r} is not 'cpu', 'cuda', 'cuda:<ordinal>' or an ordinal")
        if device == "cpu":
            return CPU
        device = None if match[1] is None else int(match[1])
    elif isinstance(device, bool) or device < 0:
        raise ValueError(f"device: {device!r} is not 'cpu', 'cuda', 'cuda:<ordinal>' or an ordinal")
    reason = why_no_gpu()
    if reason is not None:
        raise DeviceError(f"no GPU can be used: {reason}")
    if device is None:
        return _current()
    from . import _gpu

    count = _gpu.device_count()
    if device >= count:
        raise DeviceError(f"device: there is no GPU {device}; this process sees {count}")
    return int(device)


def _current() -> int:
    """Return the ordinal of the GPU whose context is current, or 0."""
    from . import _gpu

    return _gpu.current_device()
