"""Numba's CUDA target, the one that comes with Numba and the one of the package numba-cuda."""

from __future__ import annotations

import os
import sys
from typing import Any

from .base import Adapter

__all__ = ["ADAPTER"]


def _driver_of(cls: type) -> Any:
    """Numba's module of the driver, beside that of its arrays."""
    return sys.modules.get(cls.__module__.rpartition(".")[0] + ".driver")


def _uses_cuda_python(driver: Any) -> bool:
    """Whether Numba calls CUDA through cuda.bindings: numba-cuda does, Numba's own target where it is told to."""
    return bool(getattr(driver, "USE_NV_BINDING", True))


class _Numba(Adapter):
    name = "numba"
    own_class = "DeviceNDArray"

    def current_stream(self, array: Any, device: int) -> Any:
        # An array may be bound to a stream; kernels launched without one run on Numba's default stream.
        bound = getattr(array, "stream", 0)
        return bound if bound else sys.modules["numba.cuda"].default_stream()

    def default_stream(self, cls: type) -> int:
        # Numba launches on the null stream. What that is was decided when the driver's functions were looked up.
        driver = _driver_of(cls)
        if driver is None:
            return 0
        if not _uses_cuda_python(driver):
            return 2 if driver.config.CUDA_PER_THREAD_DEFAULT_STREAM else 1
        try:
            per_thread = int(os.environ.get("CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM", "0"))
        except ValueError:
            per_thread = 0
        return 2 if per_thread else 1

    def plain_memory(self, cls: type) -> type | None:
        # With ctypes the attribute is a ctypes pointer.
        driver = _driver_of(cls)
        memory = getattr(driver, "MemoryPointer", None)
        return memory if isinstance(memory, type) and _uses_cuda_python(driver) else None


ADAPTER = _Numba()
