"""The state as arrays: the slots of the ISV, and the record between two commits."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import _isv
from ..isv import ISV, ISVValues
from ..layout import Layout
from .records import RECORD_WORDS

if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "SLOT_WORDS",
    "State",
    "check_state",
    "check_words",
    "init_state",
    "read_state",
    "slot",
    "slot_of",
    "write_state",
]

_LAYOUT = Layout.native()
_SLOTS = {slot.name: slot for slot in _isv.SLOTS}
SLOT_WORDS = _LAYOUT.words


class State(NamedTuple):
    """What a loop's state is made of: a pytree of two small arrays. Donate it where the old one is not needed.

    Attributes
    ----------
    slots : Array, shape [S], uint32
        The slots of an ISV in the native layout, bit for bit.
    record : Array, shape [R], uint32
        The statistic since the last commit (`qpi_record`), bit for bit.
    """

    slots: jax.Array
    record: jax.Array


def init_state(*, preset: str | None = None, **values: float | str) -> State:
    """Return a new state on the default device; `jax.device_put` brings it to others.

    Parameters
    ----------
    preset : str, optional
        As for `qpi_distill.ISV`.
    **values : float, int or str
        Initial values by slot name, as for `qpi_distill.ISV`.

    Raises
    ------
    ValueError, TypeError
        As for `qpi_distill.ISV`.
    """
    isv = ISV(device="cpu", preset=preset, **values)
    return State(jnp.array(isv.slots.view(np.uint32)[:SLOT_WORDS]), jnp.zeros(RECORD_WORDS, jnp.uint32))


def read_state(state: State, check: bool = True) -> ISVValues:
    """Return the values of all slots. The host waits for the device; not to be traced.

    Parameters
    ----------
    state : State
        Of one loop.
    check : bool
        Whether to raise `FaultError` if `faults` is not empty.

    Raises
    ------
    FaultError
        Values on the device made no sense; the message names them.
    ValueError
        Several states in one, as `vmap` or `pmap` make them: read each of them.
    TypeError
        Something other than a state.
    """
    return _host_isv(state).read(check=check)


def write_state(state: State, **values: float | str) -> State:
    """Return the state with other values in some slots, checked as `qpi_distill.ISV.set` checks them; not to be traced.

    Parameters
    ----------
    state : State
        Of one loop.
    **values : float, int or str
        Parameters and states by slot name.

    Raises
    ------
    ValueError, TypeError
        As for `qpi_distill.ISV.set`, and as for `read_state`.
    """
    isv = _host_isv(state)
    isv.set(**values)
    return State(jnp.array(isv.slots.view(np.uint32)[:SLOT_WORDS]), state.record)


def slot(state: State, name: str) -> jax.Array:
    """Return the value of one slot, to log or to compute with; may be traced.

    Parameters
    ----------
    state : State
        Of one loop.
    name : str
        A slot's name.

    Returns
    -------
    Array, shape []
        float32, or uint32; of a 64-bit counter the lower 32 bits.

    Raises
    ------
    TypeError
        No slot has that name.
    """
    check_state(state)
    if name not in _SLOTS:
        raise TypeError(f"the ISV has no slot {name!r}; the slots are {', '.join(_SLOTS)}")
    return slot_of(state.slots, name)


def slot_of(slots: jax.Array, name: str) -> jax.Array:
    """Return the value of a slot that exists."""
    word = slots[_LAYOUT[name]]
    return lax.bitcast_convert_type(word, jnp.float32) if _SLOTS[name].type == "f32" else word


def check_state(state: Any) -> None:
    """Raise unless this is the state of one loop."""
    if not isinstance(state, State):
        raise TypeError(f"state: {type(state).__name__} is not a State; expected what init_state returned")
    for name, array, words in (("slots", state.slots, SLOT_WORDS), ("record", state.record, RECORD_WORDS)):
        check_words(f"state.{name}", array, words)


def check_words(name: str, array: Any, words: int) -> None:
    """Raise unless this is an array of so many 32-bit words."""
    if getattr(array, "dtype", None) != jnp.uint32:
        raise TypeError(f"{name}: {getattr(array, 'dtype', type(array).__name__)}, expected uint32")
    if array.shape != (words,):
        raise ValueError(f"{name}: shape {array.shape}, expected ({words},)")


def _host_isv(state: State) -> ISV:
    """Return an ISV on a copy of the slots."""
    check_state(state)
    return ISV.from_buffer(np.array(state.slots), layout=_LAYOUT, device="cpu")
