"""The loss, the gradient and the state's moves as pure functions of arrays."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from .batch import FLOATS, need_array, read_batch
from .options import Options
from .records import RECORD_WORDS, add_records, record_sum, sum_over_axis, without_summary
from .state import State, check_state, check_words, slot_of
from .targets import call_commit, call_distill, vary_alike

if TYPE_CHECKING:
    from collections.abc import Hashable
    from typing import Any, Literal, Unpack

    from jax.typing import ArrayLike

    from .batch import Batch, Extras
    from .options import Choices

__all__ = ["accumulate", "commit", "discard", "distill_grad", "distill_loss"]


def distill_loss(
    pi_logits: ArrayLike,
    q_logits: ArrayLike,
    support: ArrayLike | None,
    state: State,
    *,
    reduction: Literal["sum", "mean"],
    legal_actions: ArrayLike | None = None,
    row_weights: ArrayLike | None = None,
    **choices: Unpack[Choices],
) -> tuple[jax.Array, jax.Array]:
    """Return lam * KL(target || policy), or lam * another divergence, of a batch, and its record for `accumulate`.

    Value, gradient and record come from one pass over the logits. The gradient is with respect to pi_logits alone, is
    kept in float32, multiplied by what comes in from above, and rounded once to the dtype of pi_logits; everything else
    counts as constant. There is neither forward mode nor a second derivative.

    Parameters
    ----------
    pi_logits : array, shape [..., A], float32, float16 or bfloat16
        The policy's logits; -inf marks an illegal action.
    q_logits : array, shape [..., A, Z], float32, float16 or bfloat16
        The critic's logits over the atoms; quantiles for ``critic="quantile"``; values [..., A] for
        ``critic="scalar"``.
    support : array, shape [Z] or [A, Z], float32
        Value of each atom; None for a quantile or scalar critic.
    state : State
        What `init_state` or `commit` returned. It is read alone.
    reduction : {"sum", "mean"}
        Sum over the rows, or that over the number of rows (every row counts, skipped ones too). Required, because the
        choice changes the strength by a factor of the batch size.
    legal_actions : array, shape [..., A], bool, uint8 or int8, optional
        0 marks an illegal action.
    row_weights : array, shape [...], float32, optional
        Weights >= 0 of the rows.
    **choices
        See `Choices`.

    Returns
    -------
    loss : Array, shape [], float32
        lam * sum(row_weights * divergence), divided by the number of rows for "mean". What feeds `kl_ema` enters the
        value with at most `kl_row_max` a row (the plain KL, or any divergence with ``control_stat="loss"``); the
        gradient is not bounded by it.
    record : Array, shape [R], uint32
        The statistic.

    Raises
    ------
    ValueError
        A shape that does not fit, an option that does not exist.
    TypeError
        A dtype that is not supported.

    Notes
    -----
    Under `jax.vmap` each element is a batch of its own, with its own value and record, one after the other. Where rows
    are meant, leave out the `vmap`: leading dimensions are free.
    """
    options = Options.of(reduction, choices)
    batch = read_batch(pi_logits, q_logits, support, state, legal_actions, row_weights, "float32", options)
    return _jitted_loss(*batch, options)


def distill_grad(
    pi_logits: ArrayLike,
    q_logits: ArrayLike,
    support: ArrayLike | None,
    state: State,
    *,
    reduction: Literal["sum", "mean"],
    pi_grad: ArrayLike | None = None,
    legal_actions: ArrayLike | None = None,
    row_weights: ArrayLike | None = None,
    grad_scale: ArrayLike | None = None,
    **choices: Unpack[Choices],
) -> tuple[jax.Array, State]:
    """Return the gradient of lam * KL(target || policy), and the state with the batch's statistic in its record.

    For those who assemble gradients by hand: no value, and nothing to differentiate.

    Parameters
    ----------
    pi_logits, q_logits, support, state, reduction, legal_actions, row_weights
        As for `distill_loss`.
    pi_grad : array, shape [..., A], float32 or the dtype of pi_logits, optional
        A gradient to add to, in its own dtype. Inside `jit` it is added to in place if nothing else uses it.
    grad_scale : array of one element, float32, optional
        Multiplies the gradient, never the statistic.
    **choices
        See `Choices`.

    Returns
    -------
    pi_grad : Array, shape [..., A]
        Of the dtype of the pi_grad given, else of pi_logits.
    state : State
        The slots as they were; call `commit` once per policy iteration.

    Raises
    ------
    ValueError, TypeError
        As for `distill_loss`.
    """
    options = Options.of(reduction, choices, add=pi_grad is not None)
    pi = need_array(pi_logits, "pi_logits", FLOATS)
    if pi_grad is None:
        pi_grad = jnp.zeros(pi.shape, pi.dtype)
    else:
        pi_grad = need_array(pi_grad, "pi_grad", tuple(dict.fromkeys(("float32", pi.dtype.name))), pi.shape)
    if grad_scale is not None:
        grad_scale = need_array(grad_scale, "grad_scale", ("float32",))
        if grad_scale.size != 1:
            raise ValueError(f"grad_scale: shape {grad_scale.shape}, expected one element")
        grad_scale = grad_scale.reshape(1)
    batch = read_batch(pi, q_logits, support, state, legal_actions, row_weights, pi_grad.dtype.name, options)
    rows = pi_grad.reshape(batch.pi_logits.shape)
    gradient, record = _gradient(batch, state.record, rows, grad_scale, options)
    return gradient.reshape(pi.shape), State(state.slots, record)


@functools.partial(jax.jit, inline=True)
def accumulate(state: State, record: jax.Array) -> State:
    """Return the state with a batch's record added to its own; micro-batches and heads count as one observation.

    Parameters
    ----------
    state : State
        What the batch was computed with, or what `accumulate` made of that.
    record : Array, shape [R], uint32
        From `distill_loss`.

    Raises
    ------
    ValueError, TypeError
        Something else than a record; of a `vmap`, add up its records one by one.
    """
    check_state(state)
    check_words("record", record, RECORD_WORDS)
    return State(state.slots, add_records(*vary_alike(state.record, record)))


@functools.partial(jax.jit, static_argnames=("axis_name",), inline=True)
def commit(state: State, *, axis_name: Hashable | tuple[Hashable, ...] | None = None) -> State:
    """Return the state after one observation: averages, lam and tau have moved, the record is empty.

    Parameters
    ----------
    state : State
        With what has been accumulated.
    axis_name : str or tuple of str, optional
        Mapped axes (of `shard_map` or `pmap`) whose devices hold parts of the batch: their records are added up first,
        so that every device commits the same. Required there, or each would go its own way.

    Raises
    ------
    TypeError, ValueError
        Something other than a state.
    """
    check_state(state)
    record = state.record if axis_name is None else sum_over_axis(state.record, axis_name)
    return State(*call_commit(state.slots, record))


def discard(state: State) -> State:
    """Return the state without what has been accumulated: for an optimiser step that was skipped.

    Parameters
    ----------
    state : State
        Its slots are kept.
    """
    check_state(state)
    return State(state.slots, jnp.zeros_like(state.record))


# ---- the work --------------------------------------------------------------------------------------------------------


def _evaluate(
    pi_logits: jax.Array, extras: Extras, slots: jax.Array, options: Options
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the loss, the record and the gradient of the loss."""
    # Zeros: where a fault of the state forbids to write, there is no gradient.
    zeros = jnp.zeros(pi_logits.shape, jnp.float32)
    # Where the statistic is of something else, the summary has the value of the loss.
    called = options if options.plain_value else replace(options, summary=True)
    gradient, record = call_distill(pi_logits, extras, slots, zeros, None, called)
    found = record_sum(record, "weighted_kl" if options.plain_value else "summary_loss")
    if called.summary and not options.summary:
        record = without_summary(record)
    scale = jnp.where(slot_of(slots, "lam_off") != 0, 0, slot_of(slots, "lam"))
    if options.reduction == "mean":
        scale = scale / max(pi_logits.shape[0], 1)
    return found * scale, record, gradient


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _loss(pi_logits: jax.Array, extras: Extras, slots: jax.Array, options: Options) -> tuple[jax.Array, jax.Array]:
    loss, record, _ = _evaluate(pi_logits, extras, slots, options)
    return loss, record


def _loss_forward(
    pi_logits: jax.Array, extras: Extras, slots: jax.Array, options: Options
) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    loss, record, gradient = _evaluate(pi_logits, extras, slots, options)
    # An empty array carries the dtype to the backward pass.
    return (loss, record), (gradient, pi_logits[:0])


def _loss_backward(
    options: Options, kept: tuple[jax.Array, jax.Array], cotangents: tuple[jax.Array, Any]
) -> tuple[jax.Array, None, None]:
    gradient, like = kept
    return (gradient * cotangents[0]).astype(like.dtype), None, None


_loss.defvjp(_loss_forward, _loss_backward)
_jitted_loss = jax.jit(_loss, static_argnums=3, inline=True)


@functools.partial(jax.jit, static_argnums=4, inline=True)
def _gradient(
    batch: Batch, record: jax.Array, pi_grad: jax.Array, grad_scale: jax.Array | None, options: Options
) -> tuple[jax.Array, jax.Array]:
    gradient, found = call_distill(*batch, pi_grad, grad_scale, options)
    return gradient, add_records(*vary_alike(record, found))
