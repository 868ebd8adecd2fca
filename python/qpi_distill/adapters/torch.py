"""PyTorch."""

from __future__ import annotations

import sys
from typing import Any

from .base import Adapter

__all__ = ["ADAPTER"]


class _Torch(Adapter):
    name = "torch"
    null_is_default = True
    always_writable = True
    # Versions without the exchange API send bfloat16 through the array interface under a type string that says nothing,
    # or says float16.
    prefers_dlpack = True
    lazy = True

    def current_stream(self, array: Any, device: int) -> Any:
        return sys.modules["torch"].cuda.current_stream(device)

    def exported(self, array: Any) -> Any:
        # `__dlpack__` refuses tensors that require grad. A detached alias is the same memory, and the caller's own
        # tensor keeps its flags.
        return array.detach()

    def refuse_lazy(self, array: Any, name: str) -> None:
        # The imaginary part of a conjugate is a view whose sign is changed when it is used; exports show the memory.
        if array.is_neg():
            raise BufferError(f"{name}: is lazily negated (torch.Tensor.is_neg); pass resolve_neg() of it")


ADAPTER = _Torch()
