"""The loss and the state's two moves as functions of tensors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from . import ops

if TYPE_CHECKING:
    from typing import Literal

    from torch import Tensor

    from .state import State

__all__ = ["collect", "commit", "distill_loss"]


def distill_loss(
    pi_logits: Tensor,
    q_logits: Tensor,
    support: Tensor,
    state: State,
    *,
    reduction: Literal["sum", "mean"],
    value_scale: Literal["running_std", "none"] = "running_std",
    legal_actions: Tensor | None = None,
    row_weights: Tensor | None = None,
    illegal_below: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return lam * KL(target || policy) of a batch, and the batch's record.

    Pure: the state is read and not moved. Value, gradient and record come from one pass over the logits; the backward
    pass multiplies the gradient by what comes in from above (the factor of a GradScaler, for example), in float32, and
    rounds it once to the dtype of pi_logits. q_logits gets no gradient, and there is no second derivative.

    Parameters
    ----------
    pi_logits : Tensor, shape [..., A], float32, float16 or bfloat16
        The policy's logits; -inf marks an illegal action. Any strides.
    q_logits : Tensor, shape [..., A, Z], float32, float16 or bfloat16
        The critic's logits over the atoms. Any strides.
    support : Tensor, shape [Z] or [A, Z], float32
        Value of each atom.
    state : State
        What `new_state` returned, on the same device.
    reduction : {"sum", "mean"}
        Sum of the rows' KL, or that over the number of rows (every row counts, skipped ones too). Required, because
        the choice changes the strength by a factor of the batch size.
    value_scale : {"running_std", "none"}
        Whether expected values are divided by their running standard deviation within a row.
    legal_actions : Tensor, shape [..., A], bool, uint8 or int8, optional
        0 marks an illegal action.
    row_weights : Tensor, shape [...], float32, optional
        Weights >= 0 of the rows.
    illegal_below : float, optional
        pi_logits at or below it mark an illegal action. None: only -inf does.

    Returns
    -------
    loss : Tensor, shape [], float32
        lam * sum(row_weights * KL), divided by the number of rows for "mean". A row's KL enters its value with at most
        `kl_row_max`, its gradient unbounded.
    record : Tensor, shape [R], int64
        The statistic, for `collect`.

    Raises
    ------
    ValueError
        A shape that does not fit, an option that does not exist, tensors on several devices.
    TypeError
        A dtype that is not supported.
    """
    below = -math.inf if illegal_below is None else float(illegal_below)
    loss, _, record = ops.differentiable(
        q_logits, pi_logits, support, state.slots, legal_actions, row_weights, reduction, value_scale, below
    )
    return loss, record


def collect(state: State, record: Tensor) -> None:
    """Add the record of a batch to that of the state; micro-batches and heads count as one observation.

    Inside a backward pass nothing is added: there, a forward pass is the recomputation of one that has been counted.

    Parameters
    ----------
    state : State
        Its record is changed.
    record : Tensor, shape [R], int64
        From `distill_loss`.
    """
    ops.collect(state.record, record)


def commit(state: State) -> None:
    """Update the moving averages, lam and tau from the state's record, which is empty afterwards.

    Parameters
    ----------
    state : State
        Changed in place, in the order of the current stream.
    """
    ops.commit(state.slots, state.record)
