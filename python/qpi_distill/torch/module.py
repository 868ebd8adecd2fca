"""The loss as a module that keeps its state in buffers."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import torch
from torch import nn

from .. import _isv
from .._options import CHOICES, Options
from . import ops
from .functional import collect, commit
from .options import options_of, options_text
from .state import SLOT_NAMES, SUMMARY, State, new_state, read_state, slot_view, write_slots

if TYPE_CHECKING:
    from typing import Any, Literal

    from torch import Tensor

    from ..isv import ISVValues

__all__ = ["DistillLoss"]

_FAULT_BITS = max(_isv.FAULTS.values()).bit_length()


class DistillLoss(nn.Module):
    """lam * KL(target || policy), or lam * another divergence, with lam and tau moved by the library's control laws.

    In training mode a forward pass adds its statistic to the record, which `commit` turns into one step of the moving
    averages and of the control laws. In evaluation mode, and where activation checkpointing runs a forward pass again,
    nothing is added. Buffers hold the whole state: `to`, `state_dict`, `load_state_dict` and `deepcopy` carry it, bit
    for bit, and casts to another dtype leave it alone.

    Parameters
    ----------
    support : Tensor or sequence of float, shape [Z] or [A, Z], optional
        Value of each atom, finite; of a categorical critic alone, and required there.
    reduction : {"sum", "mean"}
        As for `distill_loss`; "mean" beside a loss that is a mean over the batch.
    device : torch.device or str, optional
        Where the buffers are made; None: torch's default device.
    preset : str, optional
        As for `qpi_distill.ISV`.
    **values
        Options by name (`critic`, `divergence`, `summary`, ...: see `Choices`), and initial values by slot name (`lam`,
        `tau`, `kl_target`, ...), as for `qpi_distill.ISV`.

    Raises
    ------
    ValueError
        A support that is not finite or has another number of dimensions; a value outside its range.
    TypeError
        A name that is neither an option's nor a slot's; a categorical critic without support.

    Notes
    -----
    `DistributedDataParallel` averages the gradients, so that "mean" over equal shards is the mean over all rows. Keep
    the module outside of it, since its forward pass would overwrite the buffers by those of rank 0, and call
    `all_reduce` before `commit`.

    Examples
    --------
    >>> import torch
    >>> distill = DistillLoss([-1.0, 1.0], reduction="mean", lam=0.5, value_scale="none")
    >>> logits = torch.zeros(4, 2, requires_grad=True)
    >>> distill(logits, torch.tensor([[[9.0, -9.0], [-9.0, 9.0]]]).expand(4, 2, 2)).backward()
    >>> distill.commit()
    >>> bool(logits.grad[0, 0] > 0 > logits.grad[0, 1])
    True
    """

    slots: Tensor
    record: Tensor
    support_bits: Tensor | None

    def __init__(
        self,
        support: Any = None,
        *,
        reduction: Literal["sum", "mean"],
        device: Any = None,
        preset: str | None = None,
        **values: Any,
    ) -> None:
        super().__init__()
        _refuse_near_misses(values)
        choices = {name: values.pop(name) for name in CHOICES if name in values}
        self._options = options_text(reduction, **choices)
        self.options.check_support(support)
        state = new_state(device, preset=preset, **values)
        self.register_buffer("slots", state.slots)
        self.register_buffer("record", state.record)
        self.register_buffer("support_bits", None if support is None else _support_bits(support, state.slots.device))

    # ---- the loss ----------------------------------------------------------------------------------------------------

    def forward(
        self,
        pi_logits: Tensor,
        q_logits: Tensor,
        *,
        legal_actions: Tensor | None = None,
        row_weights: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of a batch; in training mode, add its statistic to the record.

        Parameters
        ----------
        pi_logits, q_logits, legal_actions, row_weights : Tensor
            As for `distill_loss`.

        Returns
        -------
        Tensor, shape [], float32

        Raises
        ------
        ValueError, TypeError
            As for `distill_loss`.
        """
        loss, _, record = ops.differentiable(
            q_logits, pi_logits, self.support, self.slots, legal_actions, row_weights, self._options
        )
        if self.training:
            collect(self.state, record)
        return loss

    def commit(self) -> None:
        """Update the moving averages, lam and tau from the record: once per policy iteration. Nothing waits."""
        commit(self.state)

    def discard(self) -> None:
        """Empty the record without using it: for an optimiser step that was skipped."""
        self.record.zero_()

    def all_reduce(self, group: Any = None) -> None:
        """Make the record that of all ranks, so that `commit` does the same on each of them.

        Parameters
        ----------
        group : torch.distributed.ProcessGroup, optional
            None: the default group.
        """
        # One message of float64: counts are exact up to 2^53, and fault bits travel as counts, because not every
        # backend can combine bits.
        places = torch.arange(_FAULT_BITS, device=self.record.device, dtype=torch.int32)
        words = self.record.view(torch.int32)
        bits = (words[12] >> places) & 1
        reals = self.record.view(torch.float64)
        parts = [reals[:3], self.record[3:6].double(), bits.double(), words[13:14].double(), reals[SUMMARY:]]
        message = torch.cat(parts)
        torch.distributed.all_reduce(message, group=group)
        sums, counts, bits, calls, summary = message.split([len(part) for part in parts])
        reals[:3] = sums
        self.record[3:6] = counts.long()
        words[12] = ((bits > 0).int() << places).sum(dtype=torch.int32)
        words[13:14] = calls.int()
        reals[SUMMARY:] = summary

    # ---- what it holds -----------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """Slots and record, for the functions of this package."""
        return State(self.slots, self.record)

    @property
    def options(self) -> Options:
        """What was chosen at construction, by attribute: `reduction`, `critic`, `divergence`, ..."""
        return options_of(self._options)

    @property
    def support(self) -> Tensor | None:
        """Value of each atom, shape [Z] or [A, Z], float32; None where the critic has none."""
        return None if self.support_bits is None else self.support_bits.view(torch.float32)

    @property
    def lam(self) -> Tensor:
        """The weight of the loss now, a tensor without dimensions on the device. Nothing waits."""
        return self.slot("lam")

    @property
    def tau(self) -> Tensor:
        """The temperature of the target now, as `lam`."""
        return self.slot("tau")

    @property
    def kl(self) -> Tensor:
        """The batch KL of the last commit that had rows, in nats, as `lam`; the divergence for control_stat="loss"."""
        return self.slot("kl_last")

    def slot(self, name: str) -> Tensor:
        """Return a copy of one slot, on the device and in stream order. Nothing waits.

        Parameters
        ----------
        name : str
            Name of the slot.

        Returns
        -------
        Tensor, shape [], float32 or int32
            Of a 64-bit counter, the low 32 bits; `read` has all of them.

        Raises
        ------
        TypeError
            If it is not the name of a slot.
        """
        return slot_view(self.slots, name).clone()

    def read(self, check: bool = True) -> ISVValues:
        """Return the values of all slots. The host waits for the device.

        Parameters
        ----------
        check : bool
            Whether to raise `FaultError` if the device met values that make no sense.

        Raises
        ------
        FaultError
            Values on the device made no sense; the message names them.
        """
        return read_state(self.slots, check)

    @torch.no_grad()
    def set(self, **values: float | str) -> None:
        """Change parameters or states, checked. The host waits for the device.

        Parameters
        ----------
        **values : float, int or str
            By slot name, as for `qpi_distill.ISV.set`.

        Raises
        ------
        ValueError, TypeError
            As for `qpi_distill.ISV.set`.
        """
        write_slots(self.slots, values)

    def get_extra_state(self) -> dict[str, Any]:
        """Return what tells whether a saved state fits: the names of the slots, in their order."""
        return {"slots": list(SLOT_NAMES)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Refuse a state that was saved with other slots."""
        if list(state.get("slots", ())) != list(SLOT_NAMES):
            raise ValueError("state: was saved by a version of qpi-distill with other slots")

    def extra_repr(self) -> str:
        """Show the support's shape and the options that are not the defaults; the values would wait for the device."""
        options = self.options
        shown = {} if self.support_bits is None else {"support": tuple(self.support_bits.shape)}
        shown["reduction"] = options.reduction
        defaults = Options(options.reduction)
        shown |= {name: getattr(options, name) for name in CHOICES if getattr(options, name) != getattr(defaults, name)}
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())


def _support_bits(support: Any, device: torch.device) -> Tensor:
    """Return the support as the buffer keeps it."""
    atoms = torch.as_tensor(support, dtype=torch.float32, device=device).detach().clone()
    if atoms.dim() not in (1, 2) or atoms.numel() == 0:
        raise ValueError(f"support: shape {tuple(atoms.shape)}, expected [Z] or [A, Z]")
    if not bool(torch.isfinite(atoms).all()):
        raise ValueError("support: every value has to be finite in float32")
    return atoms.contiguous().view(torch.int32)


def _refuse_near_misses(values: dict[str, Any]) -> None:
    """Name the option that a keyword was meant to be, where it is close to one and is no slot's."""
    for name in values:
        if name not in CHOICES and name not in SLOT_NAMES:
            near = difflib.get_close_matches(name, (*CHOICES, *SLOT_NAMES), 1)
            if near and near[0] in CHOICES:
                raise TypeError(f"there is no option {name!r}; did you mean {near[0]}?")
