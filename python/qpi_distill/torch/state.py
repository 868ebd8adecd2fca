"""The state as tensors: the slots of the ISV, and the record between two commits."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from .. import _isv
from ..isv import ISV, ISVValues
from ..layout import Layout

if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "RECORD_WORDS",
    "SLOT_NAMES",
    "SLOT_WORDS",
    "SUMMARY",
    "SUMMARY_LOSS",
    "WEIGHTED_KL",
    "State",
    "new_state",
    "read_state",
    "slot_view",
    "write_slots",
]

_LAYOUT = Layout.native()
_PLACES = {slot.name: (_LAYOUT[slot.name], slot.type == "f32") for slot in _isv.SLOTS}
SLOT_NAMES = tuple(slot.name for slot in _isv.SLOTS)
SLOT_WORDS = _LAYOUT.words
RECORD_WORDS = _isv.RECORD_SIZE // 8
"""Of 8 bytes each: three float64 sums, three int64 counts, two uint32 of fault bits and calls, the float64 summary."""
WEIGHTED_KL, SUMMARY, SUMMARY_LOSS = 0, 7, 8
"""Words of the record: the sum that feeds the statistic; where the summary begins; its sum of the divergence."""


class State(NamedTuple):
    """What a loop's state is made of. Integers, so that `half()` and `to(dtype)` leave the bits alone.

    Attributes
    ----------
    slots : Tensor, shape [S], int32
        The slots of an ISV in the native layout, bit for bit.
    record : Tensor, shape [R], int64
        The statistic since the last commit, bit for bit.
    """

    slots: torch.Tensor
    record: torch.Tensor


def new_state(device: Any = None, *, preset: str | None = None, **values: float | str) -> State:
    """Return a new state.

    Parameters
    ----------
    device : torch.device or str, optional
        None: torch's default device.
    preset : str, optional
        As for `qpi_distill.ISV`.
    **values : float, int or str
        Initial values by slot name, as for `qpi_distill.ISV`.

    Returns
    -------
    State

    Raises
    ------
    ValueError, TypeError
        As for `qpi_distill.ISV`.
    """
    isv = ISV(device="cpu", preset=preset, **values)
    slots = torch.from_numpy(isv.slots.view(np.int32)[:SLOT_WORDS].copy())
    target = torch.get_default_device() if device is None else torch.device(device)
    return State(slots.to(target), torch.zeros(RECORD_WORDS, dtype=torch.int64, device=target))


def read_state(slots: torch.Tensor, check: bool = True) -> ISVValues:
    """Return the values of all slots. The host waits for the device.

    Parameters
    ----------
    slots : Tensor, shape [S], int32
        Slots of a state.
    check : bool
        Whether to raise `FaultError` if `faults` is not empty.

    Raises
    ------
    FaultError
        Values on the device made no sense; the message names them.
    """
    return _host_isv(slots)[0].read(check=check)


def write_slots(slots: torch.Tensor, values: dict[str, Any]) -> None:
    """Store values by slot name, checked as `ISV.set` checks them. The host waits for the device."""
    isv, words = _host_isv(slots)
    isv.set(**values)
    slots.copy_(words)


def _host_isv(slots: torch.Tensor) -> tuple[ISV, torch.Tensor]:
    """Return an ISV on a copy of the slots, and that copy."""
    words = slots.detach().cpu().clone()
    return ISV.from_buffer(words, layout=_LAYOUT, device="cpu"), words


def slot_view(slots: torch.Tensor, name: str) -> torch.Tensor:
    """Return one slot as a tensor without dimensions that shares the memory: float32, or int32 (the low word)."""
    if name not in _PLACES:
        raise TypeError(f"the ISV has no slot {name!r}; the slots are {', '.join(SLOT_NAMES)}")
    place, real = _PLACES[name]
    return slots.view(torch.float32)[place] if real else slots[place]
