"""CuPy."""

from __future__ import annotations

import sys
from typing import Any

from .base import Adapter

__all__ = ["ADAPTER"]


class _CuPy(Adapter):
    name = "cupy"
    own_class = "ndarray"

    def current_stream(self, array: Any, device: int) -> Any:
        # CuPy keeps one current stream per device and thread.
        return self.ask_stream()(device)

    def ask_stream(self) -> Any:
        return sys.modules["cupy"].cuda.get_current_stream


ADAPTER = _CuPy()
