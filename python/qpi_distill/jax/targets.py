"""The library's handlers as JAX knows them: registered once, called inside traced programs."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax import lax

from .. import _isv
from ..paths import _existing
from .records import RECORD_WORDS

if TYPE_CHECKING:
    from .batch import Extras
    from .options import Options

__all__ = ["call_commit", "call_distill", "vary_alike"]

_BATCH, _COMMIT = "qpi_distill_batch", "qpi_distill_commit"
_WORKSPACE_WORDS = _isv.WORKSPACE_SIZE // 4


def _register() -> ctypes.CDLL:
    library = ctypes.CDLL(_existing("lib/libqpi_jax.so", "the handlers for JAX"))
    for platform in ("cpu", "cuda"):
        for target, name in ((_BATCH, "distill"), (_COMMIT, "commit")):
            handler = getattr(library, f"qpi_jax_{name}_{platform}")
            jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(handler), platform=platform.replace("cuda", "CUDA"))
    return library


_LIBRARY = _register()  # kept: programs hold its addresses


def vary_alike(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """Return arrays that vary over the same mesh axes, those of all of them: what a call inside `shard_map` needs."""
    axes = frozenset().union(*(_varying(array) for array in arrays))
    return tuple(
        lax.pcast(array, tuple(sorted(missing, key=str)), to="varying")
        if (missing := axes - _varying(array))
        else array
        for array in arrays
    )


def _varying(array: jax.Array) -> frozenset[str]:
    return jax.typeof(array).manual_axis_type.varying


def _like(array: jax.Array, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    """Return the type of a result with the dtype of an operand of the same rank, and on the same devices."""
    kind = jax.typeof(array)
    return jax.ShapeDtypeStruct(shape, kind.dtype, sharding=kind.sharding, manual_axis_type=kind.manual_axis_type)


def call_distill(
    pi_logits: jax.Array,
    extras: Extras,
    slots: jax.Array,
    pi_grad: jax.Array,
    grad_scale: jax.Array | None,
    options: Options,
) -> tuple[jax.Array, jax.Array]:
    """Return the gradient [B, A] and the record [R] of a batch of rows.

    pi_grad is handed over to become the gradient. The library's workspace is memory that XLA lends for the call.
    """
    operands = vary_alike(
        extras.q_logits,
        pi_logits,
        _or_nothing(extras.support, jnp.float32),
        slots,
        pi_grad,
        _or_nothing(extras.legal_actions, jnp.uint8),
        _or_nothing(extras.row_weights, jnp.float32),
        _or_nothing(grad_scale, jnp.float32),
    )
    call = jax.ffi.ffi_call(
        _BATCH,
        (_like(operands[4], operands[4].shape), _like(operands[3], (_WORKSPACE_WORDS,))),
        input_output_aliases={4: 0},
        vmap_method="sequential",
    )
    gradient, workspace = call(*operands, **options.attributes())
    return gradient, workspace[:RECORD_WORDS]


def call_commit(slots: jax.Array, record: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return slots and record after a commit."""
    workspace = jnp.concatenate([record, jnp.zeros(_WORKSPACE_WORDS - RECORD_WORDS, jnp.uint32)])
    slots, workspace = vary_alike(slots, workspace)
    call = jax.ffi.ffi_call(
        _COMMIT,
        (_like(slots, slots.shape), _like(workspace, workspace.shape)),
        input_output_aliases={0: 0, 1: 1},
        # Seen on a GPU: the first commit of a mapped one finds an empty record. Refused there, rather than wrong.
        vmap_method="sequential" if _platform() == "cpu" else None,
    )
    slots, workspace = call(slots, workspace)
    return slots, workspace[:RECORD_WORDS]


def _platform() -> str:
    device = jax.config.jax_default_device
    return str(getattr(device, "platform", device or jax.default_backend()))


def _or_nothing(array: jax.Array | None, dtype: jnp.dtype) -> jax.Array:
    return jnp.zeros(0, dtype) if array is None else array
