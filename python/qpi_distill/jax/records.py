"""The record of a batch as an array: what the library adds up in 64 bits, and how records add up.

JAX has 64-bit numbers only where it is told to, so that a record travels as its 32-bit words and is taken apart inside
`jax.enable_x64`, which holds for these few operations alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._record import CALLS, COUNTS, FAULTS, RECORD, SUMS

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["RECORD_WORDS", "add_records", "record_sum", "sum_over_axis", "without_summary"]

RECORD_WORDS = RECORD.itemsize // 4
_OFFSETS = {name: offset for name, (_, offset) in RECORD.fields.items()}
_BITS = np.arange(32, dtype=np.uint32)


def _split(record: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the members as float64 and as int64, with 0 for those of the other kind. Inside `enable_x64`."""
    pairs = record.reshape(-1, 2)
    sums = lax.bitcast_convert_type(pairs, jnp.float64)
    counts = lax.bitcast_convert_type(pairs, jnp.int64)
    return jnp.where(SUMS, sums, 0.0), jnp.where(COUNTS, counts, 0)


def _join(sums: jax.Array, counts: jax.Array, faults: jax.Array, calls: jax.Array) -> jax.Array:
    """Return the record of these members. Inside `enable_x64`."""
    pairs = jnp.where(
        SUMS[:, None], lax.bitcast_convert_type(sums, jnp.uint32), lax.bitcast_convert_type(counts, jnp.uint32)
    )
    return pairs.reshape(-1).at[np.array([FAULTS, CALLS])].set(jnp.stack([faults, calls]))


def add_records(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return the record of two batches together: sums and counts added, faults united."""
    with jax.enable_x64(True):
        (sums, counts), (more_sums, more_counts) = _split(a), _split(b)
        return _join(sums + more_sums, counts + more_counts, a[FAULTS] | b[FAULTS], a[CALLS] + b[CALLS])


def sum_over_axis(record: jax.Array, axis_name: Hashable) -> jax.Array:
    """Return the record of all devices along a mapped axis, the same bits on each of them."""
    with jax.enable_x64(True):
        sums, counts = _split(record)
        bits = (record[FAULTS] >> _BITS) & np.uint32(1)
        sums, counts, bits, calls = lax.psum((sums, counts, bits, record[CALLS]), axis_name)
        faults = jnp.where(bits != 0, np.uint32(1) << _BITS, np.uint32(0)).sum(dtype=jnp.uint32)
        return _join(sums, counts, faults, calls)


def record_sum(record: jax.Array, name: str) -> jax.Array:
    """Return one of the record's sums, rounded to float32."""
    at = _OFFSETS[name] // 4
    with jax.enable_x64(True):
        wide = lax.bitcast_convert_type(record[at : at + 2], jnp.float64)
        return lax.convert_element_type(wide, jnp.float32)


def without_summary(record: jax.Array) -> jax.Array:
    """Return the record as a call without summary leaves it, so that a commit leaves the slots alone as well."""
    return record.at[_OFFSETS["summary_weight"] // 4 :].set(0)
