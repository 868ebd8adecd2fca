"""Numba's CUDA target."""

from __future__ import annotations

import sys
from typing import Any

from .base import Adapter

__all__ = ["ADAPTER"]


class _Numba(Adapter):
    name = "numba"
    own_class = "DeviceNDArray"

    def current_stream(self, array: Any, device: int) -> Any:
        # An array may be bound to a stream; kernels launched without one run on Numba's default stream.
        bound = getattr(array, "stream", 0)
        return bound if bound else sys.modules["numba.cuda"].default_stream()


ADAPTER = _Numba()
