"""The custom operators, and the only place where tensors meet the library.

`distill` is pure: everything that it computes is an output, and what it needs besides is allocated anew, so that it may
run any number of times (recomputation, capture into a graph, several threads). `collect` and `commit` move the state.
"""

from __future__ import annotations

import functools
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from .. import _core, _isv
from .._devices import CPU
from .options import options_of
from .state import RECORD_WORDS, SLOT_WORDS, SUMMARY, SUMMARY_LOSS, WEIGHTED_KL, slot_view

if TYPE_CHECKING:
    from typing import Any

    from torch import Tensor

    from .._options import Options

__all__ = ["collect", "commit", "differentiable", "distill", "scale_grad"]

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_MASKS = (torch.bool, torch.uint8, torch.int8)
_INDICES = _isv.native_layout()
_DEVICES = ("cpu", "cuda")
_LIBRARY = torch.library.Library("qpi_distill", "FRAGMENT")


# ---- checks, the same for tensors and for their fakes ----------------------------------------------------------------


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _need(tensor: Tensor, name: str, shape: tuple[Any, ...], dtypes: tuple[torch.dtype, ...], like: Tensor) -> None:
    if tensor.dtype not in dtypes:
        raise TypeError(
            f"{name}: dtype {_name(tensor.dtype)} is not supported; expected {', '.join(map(_name, dtypes))}"
        )
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name}: shape {tuple(tensor.shape)}, expected {shape}")
    if tensor.device != like.device:
        raise ValueError(f"{name}: is on {tensor.device}, but q_logits is on {like.device}")


def _need_state(tensor: Tensor, name: str, words: int, dtype: torch.dtype) -> None:
    if tensor.dtype != dtype or tuple(tensor.shape) != (words,) or not tensor.is_contiguous():
        found = f"{_name(tensor.dtype)}{list(tensor.shape)}"
        raise ValueError(f"{name}: is {found}, expected contiguous {_name(dtype)}[{words}]")


def _check(
    q_logits: Tensor,
    pi_logits: Tensor,
    support: Tensor | None,
    slots: Tensor,
    legal_actions: Tensor | None,
    row_weights: Tensor | None,
    options: Options,
) -> None:
    axes = "A" if options.critic == "scalar" else "A, Z"
    if q_logits.dim() < _trailing(options):
        raise ValueError(f"q_logits: shape {tuple(q_logits.shape)}, expected (..., {axes})")
    _need(q_logits, "q_logits", tuple(q_logits.shape), _FLOATS, q_logits)
    shape = tuple(q_logits.shape if options.critic == "scalar" else q_logits.shape[:-1])
    _need(pi_logits, "pi_logits", shape, _FLOATS, q_logits)
    options.check_support(support)
    if support is not None:
        expected = tuple(q_logits.shape[-1:] if support.dim() == 1 else q_logits.shape[-2:])
        _need(support, "support", expected, (torch.float32,), q_logits)
    if legal_actions is not None:
        _need(legal_actions, "legal_actions", shape, _MASKS, q_logits)
    if row_weights is not None:
        _need(row_weights, "row_weights", shape[:-1], (torch.float32,), q_logits)
    _need_state(slots, "slots", SLOT_WORDS, torch.int32)
    if slots.device != q_logits.device:
        raise ValueError(f"slots: is on {slots.device}, but q_logits is on {q_logits.device}")


def _trailing(options: Options) -> int:
    """Return how many dimensions of q_logits are not rows: a scalar critic has no atoms."""
    return 1 if options.critic == "scalar" else 2


# ---- the library on tensors ------------------------------------------------------------------------------------------


def _ordinal(device: torch.device) -> int:
    if device.type == "cpu":
        return CPU
    if device.type == "cuda":
        return torch.cuda.current_device() if device.index is None else device.index
    raise ValueError(f"q_logits: is on {device}; expected cpu or cuda")


def _stream(device: torch.device) -> Any:
    return None if device.type == "cpu" else torch.cuda.current_stream(device)


class _Shared:
    """Something of the library's that calls borrow to run on memory of their own, one at a time."""

    def __init__(self, ordinal: int) -> None:
        self.lock = threading.Lock()
        self.handle = _isv.Isv(ordinal, 0, SLOT_WORDS, 0, _INDICES, None)


@functools.cache
def _committer(ordinal: int) -> _Shared:
    return _Shared(ordinal)


class _Operator(_Shared):
    """The plans of one problem. Kept for good: a captured graph needs its plans as long as it is replayed.

    Parameters
    ----------
    ordinal : int
        The device.
    actions, atoms : int
        Sizes of the problem.
    strides : tuple of int
        Of the support, per action and per atom.
    options : str
        What `options_text` wrote.
    """

    def __init__(self, ordinal: int, actions: int, atoms: int, strides: tuple[int, int], options: str) -> None:
        super().__init__(ordinal)
        chosen = options_of(options)
        # Where the statistic is of something else, the summary has the value of the loss.
        self.options = chosen if chosen.plain_value else replace(chosen, summary=True)
        self.operator = _core.Operator(
            self.handle,
            actions,
            atoms,
            0,
            strides,
            None,
            q_dtype="float32",
            pi_dtype="float32",
            grad_dtype="float32",
            **self.options.keywords(),
        )


_operator = functools.cache(_Operator)


def _rows(tensor: Tensor, trailing: int) -> Tensor:
    """Return the tensor with one leading dimension: a view where its strides allow, else a copy."""
    lead = tensor.dim() - trailing
    if lead == 1:
        return tensor
    return tensor.reshape(-1, *tensor.shape[lead:]) if tensor.numel() else tensor.reshape(0, *tensor.shape[lead:])


# ---- distill ---------------------------------------------------------------------------------------------------------


# The two operators of every step are registered by hand: what `custom_op` puts around a function costs as much as ours.
_LIBRARY.define(
    "distill(Tensor q_logits, Tensor pi_logits, Tensor? support, Tensor slots, Tensor? legal_actions, "
    "Tensor? row_weights, str options) -> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order),
)
_LIBRARY.define(
    "scale_grad(Tensor pi_grad, Tensor grad_output, Tensor pi_logits) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order),
)


@torch.library.impl("qpi_distill::distill", _DEVICES, lib=_LIBRARY)
def distill(
    q_logits: Tensor,
    pi_logits: Tensor,
    support: Tensor | None,
    slots: Tensor,
    legal_actions: Tensor | None,
    row_weights: Tensor | None,
    options: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return loss [], its gradient [..., A] (both float32) and the record [R] of one batch; nothing is changed.

    `options` is what `options_text` wrote.
    """
    chosen = options_of(options)
    _check(q_logits, pi_logits, support, slots, legal_actions, row_weights, chosen)
    device = q_logits.device
    actions = pi_logits.shape[-1]
    atoms = 1 if chosen.critic == "scalar" else q_logits.shape[-1]
    shared = _operator(_ordinal(device), actions, atoms, _support_strides(support, actions, atoms), options)
    q_rows, pi_rows = _rows(q_logits, _trailing(chosen)), _rows(pi_logits, 1)
    rows = pi_rows.shape[0]
    # Zeros: where a fault of the state forbids to write, there is no gradient.
    pi_grad = torch.zeros(pi_logits.shape, dtype=torch.float32, device=device)
    workspace = torch.empty(_isv.WORKSPACE_SIZE, dtype=torch.uint8, device=device)
    stream = _stream(device)
    with shared.lock:
        shared.operator.relocate(slots.data_ptr(), workspace.data_ptr(), 0 if support is None else support.data_ptr())
        shared.handle.call("workspace_init", stream)
        shared.operator.accumulate(
            q_rows,
            pi_rows,
            pi_grad.view(rows, actions),
            legal_actions=None if legal_actions is None else _rows(legal_actions, 1),
            row_weights=None if row_weights is None else _rows(row_weights, 0),
            stream=stream,
        )
    record = workspace[: 8 * RECORD_WORDS].view(torch.int64).clone()
    scale = slot_view(slots, "lam") if chosen.reduction == "sum" else slot_view(slots, "lam") / max(rows, 1)
    loss = record.view(torch.float64)[WEIGHTED_KL if chosen.plain_value else SUMMARY_LOSS] * scale
    if shared.options.summary and not chosen.summary:
        record[SUMMARY:].zero_()  # a commit then leaves the slots alone that nobody asked for
    return loss.masked_fill_(slot_view(slots, "lam_off") != 0, 0).to(torch.float32), pi_grad, record


def _support_strides(support: Tensor | None, actions: int, atoms: int) -> tuple[int, int]:
    """Return strides per action and atom; unused ones are the packed ones, which every kernel takes."""
    if support is None:
        return 0, 1
    steps = support.stride()
    return 0 if support.dim() == 1 else atoms if actions == 1 else steps[0], 1 if atoms == 1 else steps[-1]


@torch.library.register_fake("qpi_distill::distill", lib=_LIBRARY)
def _(
    q_logits: Tensor,
    pi_logits: Tensor,
    support: Tensor | None,
    slots: Tensor,
    legal_actions: Tensor | None,
    row_weights: Tensor | None,
    options: str,
) -> tuple[Tensor, Tensor, Tensor]:
    _check(q_logits, pi_logits, support, slots, legal_actions, row_weights, options_of(options))
    return (
        q_logits.new_empty((), dtype=torch.float32),
        q_logits.new_empty(pi_logits.shape, dtype=torch.float32),
        q_logits.new_empty((RECORD_WORDS,), dtype=torch.int64),
    )


@torch.library.impl("qpi_distill::scale_grad", _DEVICES, lib=_LIBRARY)
def scale_grad(pi_grad: Tensor, grad_output: Tensor, pi_logits: Tensor) -> Tensor:
    """Return pi_grad * grad_output, rounded once, to the dtype of pi_logits.

    An operator of its own, which names pi_logits and refuses to be differentiated: plain arithmetic would take the
    gradient for a constant in a second backward pass.
    """
    return torch.mul(pi_grad, grad_output).to(pi_logits.dtype)


@torch.library.register_fake("qpi_distill::scale_grad", lib=_LIBRARY)
def _(pi_grad: Tensor, grad_output: Tensor, pi_logits: Tensor) -> Tensor:
    return torch.empty_like(pi_grad, dtype=pi_logits.dtype)


def _refuse(ctx: Any, grad: Tensor) -> None:
    raise RuntimeError("qpi_distill::scale_grad: the distillation loss has no second derivative")


torch.library.register_autograd("qpi_distill::scale_grad", _refuse, lib=_LIBRARY)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    _, pi_grad, record = output
    ctx.mark_non_differentiable(pi_grad, record)
    ctx.save_for_backward(pi_grad, inputs[1])


def _backward(ctx: Any, grad_loss: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    gradient = None
    if ctx.needs_input_grad[1]:
        pi_grad, pi_logits = ctx.saved_tensors
        gradient = torch.ops.qpi_distill.scale_grad(pi_grad, grad_loss, pi_logits)
    return None, gradient, None, None, None, None, None


torch.library.register_autograd("qpi_distill::distill", _backward, setup_context=_save, lib=_LIBRARY)


class _ScaleGrad(torch.autograd.Function):
    """`scale_grad`, as `_Distill` is `distill`."""

    @staticmethod
    def forward(pi_grad: Tensor, grad_output: Tensor, pi_logits: Tensor) -> Tensor:
        return torch.ops.qpi_distill.scale_grad(pi_grad, grad_output, pi_logits)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        """Save nothing."""

    backward = staticmethod(_refuse)


class _Distill(torch.autograd.Function):
    """`distill` for the transforms of torch.func, to which the derivative of an operator is not open."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        return torch.ops.qpi_distill.distill(*arguments)

    setup_context = staticmethod(_save)

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        pi_grad, pi_logits = ctx.saved_tensors
        return None, _ScaleGrad.apply(pi_grad, grad_loss, pi_logits), None, None, None, None, None


def differentiable(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Call `distill` in the way that whoever differentiates it understands."""
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        return _Distill.apply(*arguments)
    return torch.ops.qpi_distill.distill(*arguments)


# ---- collect and commit ----------------------------------------------------------------------------------------------


@torch.library.custom_op(
    "qpi_distill::collect", mutates_args=("record",), schema="(Tensor(a!) record, Tensor found) -> ()"
)
def collect(record: Tensor, found: Tensor) -> None:
    """Add the record of a batch to that of the state, unless a backward pass is running.

    A forward pass inside a backward pass is a recomputation (activation checkpointing): its batch has been counted.
    """
    _need_state(record, "record", RECORD_WORDS, torch.int64)
    _need_state(found, "found", RECORD_WORDS, torch.int64)
    if torch._C._current_graph_task_id() != -1:
        return
    record.view(torch.float64)[:3] += found.view(torch.float64)[:3]
    record[3:6] += found[3:6]
    record.view(torch.float64)[SUMMARY:] += found.view(torch.float64)[SUMMARY:]
    faults, calls = record.view(torch.int32)[12:14]
    more_faults, more_calls = found.view(torch.int32)[12:14]
    faults |= more_faults
    calls += more_calls


@collect.register_fake
def _(record: Tensor, found: Tensor) -> None:
    _need_state(record, "record", RECORD_WORDS, torch.int64)
    _need_state(found, "found", RECORD_WORDS, torch.int64)


@torch.library.custom_op(
    "qpi_distill::commit", mutates_args=("slots", "record"), schema="(Tensor(a!) slots, Tensor(b!) record) -> ()"
)
def commit(slots: Tensor, record: Tensor) -> None:
    """Move averages, lam and tau by the record, which is empty afterwards."""
    _check_pair(slots, record)
    workspace = torch.zeros(_isv.WORKSPACE_SIZE, dtype=torch.uint8, device=slots.device)
    inside = workspace[: 8 * RECORD_WORDS].view(torch.int64)
    inside.copy_(record)
    shared = _committer(_ordinal(slots.device))
    with shared.lock:
        shared.handle.relocate(slots.data_ptr(), workspace.data_ptr())
        shared.handle.call("commit", _stream(slots.device))
    record.copy_(inside)


@commit.register_fake
def _(slots: Tensor, record: Tensor) -> None:
    _check_pair(slots, record)


def _check_pair(slots: Tensor, record: Tensor) -> None:
    _need_state(slots, "slots", SLOT_WORDS, torch.int32)
    _need_state(record, "record", RECORD_WORDS, torch.int64)
    if record.device != slots.device:
        raise ValueError(f"record: is on {record.device}, but slots is on {slots.device}")
