"""The loss and the state's two moves as functions of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import ops
from .options import options_text

if TYPE_CHECKING:
    from typing import Literal, Unpack

    from torch import Tensor

    from .._options import Choices
    from .state import State

__all__ = ["collect", "commit", "distill_loss"]


def distill_loss(
    pi_logits: Tensor,
    q_logits: Tensor,
    support: Tensor | None,
    state: State,
    *,
    reduction: Literal["sum", "mean"],
    legal_actions: Tensor | None = None,
    row_weights: Tensor | None = None,
    **choices: Unpack[Choices],
) -> tuple[Tensor, Tensor]:
    """Return lam * KL(target || policy) of a batch, or lam * another divergence, and the batch's record.

    Pure: the state is read and not moved. Value, gradient and record come from one pass over the logits; the backward
    pass multiplies the gradient by what comes in from above (the factor of a GradScaler, for example), in float32, and
    rounds it once to the dtype of pi_logits. q_logits gets no gradient, and there is no second derivative.

    Parameters
    ----------
    pi_logits : Tensor, shape [..., A], float32, float16 or bfloat16
        The policy's logits; -inf marks an illegal action. Any strides.
    q_logits : Tensor, shape [..., A, Z], float32, float16 or bfloat16
        The critic's logits over the atoms; quantiles for ``critic="quantile"``; values [..., A] for
        ``critic="scalar"``. Any strides.
    support : Tensor, shape [Z] or [A, Z], float32
        Value of each atom; None for a quantile or scalar critic.
    state : State
        What `new_state` returned, on the same device.
    reduction : {"sum", "mean"}
        Sum over the rows, or that over the number of rows (every row counts, skipped ones too). Required, because the
        choice changes the strength by a factor of the batch size.
    legal_actions : Tensor, shape [..., A], bool, uint8 or int8, optional
        0 marks an illegal action.
    row_weights : Tensor, shape [...], float32, optional
        Weights >= 0 of the rows.
    **choices
        See `Choices`.

    Returns
    -------
    loss : Tensor, shape [], float32
        lam * sum(row_weights * divergence), divided by the number of rows for "mean". What feeds `kl_ema` enters the
        value with at most `kl_row_max` a row (the plain KL, or any divergence with ``control_stat="loss"``); the
        gradient is not bounded by it.
    record : Tensor, shape [R], int64
        The statistic, for `collect`.

    Raises
    ------
    ValueError
        A shape that does not fit, an option's value that cannot be, tensors on several devices.
    TypeError
        A dtype that is not supported, an option that does not exist, a categorical critic without support.
    """
    options = options_text(reduction, **choices)
    loss, _, record = ops.differentiable(q_logits, pi_logits, support, state.slots, legal_actions, row_weights, options)
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
