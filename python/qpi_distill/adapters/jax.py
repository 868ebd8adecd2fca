"""JAX: inputs only, because its arrays are immutable."""

from __future__ import annotations

from .base import Adapter

__all__ = ["ADAPTER"]


class _Jax(Adapter):
    name = "jax"
    immutable = True
    # The array interface has no stream; `__dlpack__(stream=...)` orders JAX's own work before ours. JAX has no current
    # stream, so that calls on a GPU have to name one.
    prefers_dlpack = True


ADAPTER = _Jax()
