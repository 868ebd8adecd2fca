"""The arrays of a call: checked under the names that the user knows, then seen as rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp

from .state import check_state
from .targets import vary_alike

if TYPE_CHECKING:
    from typing import Any

    from .options import Options
    from .state import State

__all__ = ["FLOATS", "Batch", "Extras", "need_array", "read_batch"]

FLOATS = ("float32", "float16", "bfloat16")
_MASKS = ("bool", "uint8", "int8")


class Extras(NamedTuple):
    """What counts as constant in a batch: q_logits [B, A, Z], support [Z] or [A, Z], and what may be missing."""

    q_logits: jax.Array
    support: jax.Array | None
    legal_actions: jax.Array | None
    row_weights: jax.Array | None


class Batch(NamedTuple):
    """A batch as rows, all of it varying over the same mesh axes: pi_logits [B, A], and the rest."""

    pi_logits: jax.Array
    extras: Extras
    slots: jax.Array


def need_array(value: Any, name: str, dtypes: tuple[str, ...], shape: tuple[int, ...] | None = None) -> jax.Array:
    """Return an argument as an array, if its dtype and its shape are what they have to be."""
    array = jnp.asarray(value)
    if array.dtype.name not in dtypes:
        raise TypeError(f"{name}: dtype {array.dtype.name} is not supported; expected {', '.join(dtypes)}")
    if shape is not None and array.shape != shape:
        raise ValueError(f"{name}: shape {array.shape}, expected {shape}")
    return array


def read_batch(
    pi_logits: Any,
    q_logits: Any,
    support: Any,
    state: State,
    legal_actions: Any,
    row_weights: Any,
    grad_dtype: str,
    options: Options,
) -> Batch:
    """Return the arguments of a call as rows.

    Raises
    ------
    ValueError
        A shape that does not fit, or numbers that the library refuses.
    TypeError
        A dtype that is not supported, or something that is not a state.
    """
    check_state(state)
    pi = need_array(pi_logits, "pi_logits", FLOATS)
    q = need_array(q_logits, "q_logits", FLOATS)
    if pi.ndim < 1:
        raise ValueError("pi_logits: shape (), expected (..., A)")
    *lead, actions = pi.shape
    rows = math.prod(lead)  # -1 would not do: an array without elements does not tell
    if options.critic == "scalar":
        q = need_array(q, "q_logits", FLOATS, pi.shape)[..., None]
    elif q.ndim != pi.ndim + 1 or q.shape[:-1] != pi.shape:
        expected = ", ".join([*map(str, pi.shape), "Z"])
        raise ValueError(f"q_logits: shape {q.shape}, expected ({expected})")
    atoms = q.shape[-1]
    options.check_support(support)
    if support is not None:
        support = need_array(support, "support", ("float32",))
        if support.shape not in ((atoms,), (actions, atoms)):
            raise ValueError(f"support: shape {support.shape}, expected ({atoms},) or ({actions}, {atoms})")
    if legal_actions is not None:
        legal_actions = need_array(legal_actions, "legal_actions", _MASKS, pi.shape).reshape(rows, actions)
    if row_weights is not None:
        row_weights = need_array(row_weights, "row_weights", ("float32",), tuple(lead)).reshape(rows)
    options.check(actions, atoms, q.dtype.name, pi.dtype.name, grad_dtype)
    extras = Extras(q.reshape(rows, actions, atoms), support, legal_actions, row_weights)
    leaves, tree = jax.tree.flatten(Batch(pi.reshape(rows, actions), extras, state.slots))
    return jax.tree.unflatten(tree, vary_alike(*leaves))
