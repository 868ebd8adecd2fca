"""The step as functions, for code that would rather not keep a `Distiller`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from . import _arrays, _core, _seed
from ._devices import CPU
from .distiller import Distiller
from .isv import ISV

if TYPE_CHECKING:
    from typing import Any, Literal

__all__ = ["distill_grad", "info", "lambda_controller", "seed_distill_grad", "seed_lambda_controller", "step"]

_CACHED_OPERATORS = 16


def step(
    q_logits: Any,
    pi_logits: Any,
    pi_grad: Any,
    *,
    support: Any,
    isv: ISV,
    reduction: Literal["sum", "mean"],
    legal_actions: Any = None,
    row_weights: Any = None,
    grad_scale: Any = None,
    stream: Any = None,
    **options: Any,
) -> None:
    """Run `Distiller.step` once: gradient, moving averages and control law.

    The `Distiller` is made at the first call with these options and kept with the ISV. Looking it up costs a few
    microseconds; code that runs often, or is captured into a CUDA graph, makes its own.

    Parameters
    ----------
    q_logits : array, shape [..., A, Z]
    pi_logits, pi_grad : array, shape [..., A]
        As for `Distiller.step`.
    support : array, shape [Z] or [A, Z]
    isv : ISV
    reduction : {"sum", "mean"}
        As for `Distiller`.
    legal_actions, row_weights, grad_scale, stream
        As for `Distiller.step`.
    **options
        Further options of `Distiller`.

    Raises
    ------
    ValueError, TypeError, BufferError, OverflowError
        As for `Distiller` and `Distiller.step`.
    """
    _operator(q_logits, support, isv, reduction, options).step(
        q_logits,
        pi_logits,
        pi_grad,
        legal_actions=legal_actions,
        row_weights=row_weights,
        grad_scale=grad_scale,
        stream=stream,
    )


def distill_grad(
    q_logits: Any,
    pi_logits: Any,
    pi_grad: Any,
    *,
    support: Any,
    isv: ISV,
    reduction: Literal["sum", "mean"],
    legal_actions: Any = None,
    row_weights: Any = None,
    grad_scale: Any = None,
    stream: Any = None,
    **options: Any,
) -> None:
    """Run `Distiller.distill_grad` once: gradient and moving averages, lam stays.

    Parameters and errors as for `step`.
    """
    _operator(q_logits, support, isv, reduction, options).distill_grad(
        q_logits,
        pi_logits,
        pi_grad,
        legal_actions=legal_actions,
        row_weights=row_weights,
        grad_scale=grad_scale,
        stream=stream,
    )


def lambda_controller(isv: ISV, stream: Any = None) -> None:
    """Let the control law move lam, on kl_ema as it stands.

    Parameters
    ----------
    isv : ISV
        The state.
    stream : int or stream object, optional
        None: follow the last call on this ISV.
    """
    if not isinstance(isv, ISV):
        raise TypeError(f"isv: {type(isv).__name__} is not a qpi.ISV")
    isv.control(stream)


def _operator(q_logits: Any, support: Any, isv: ISV, reduction: str, options: dict[str, Any]) -> Distiller:
    """Return the Distiller for these arguments; the least recently used one of too many goes."""
    if not isinstance(isv, ISV):
        raise TypeError(f"isv: {type(isv).__name__} is not a qpi.ISV")
    shape = getattr(q_logits, "shape", None)
    if shape is None:
        shape = _arrays.describe(q_logits, "q_logits").shape
    if len(shape) < 2:
        raise ValueError(f"q_logits: shape {tuple(shape)}, expected [..., A, Z]")
    arguments: dict[str, Any] = {"actions": int(shape[-2]), "atoms": int(shape[-1]), "reduction": reduction} | options
    if isinstance(support, (np.ndarray, list, tuple, range)):
        values = np.asarray(support)
        identity: Any = (values.dtype.str, values.shape, values.tobytes())
    else:
        identity = id(support)  # kept alive beside the operator, so that no other object gets this identity
    key = (identity, tuple(sorted((name, type(value).__name__, str(value)) for name, value in arguments.items())))
    operators = isv._operators
    operator, kept = operators.pop(key, (None, support))
    if operator is None:
        operator = Distiller(support=support, isv=isv, **arguments)
        while len(operators) >= _CACHED_OPERATORS:
            operators.pop(next(iter(operators)), None)
    operators[key] = operator, kept
    return operator


def seed_distill_grad(
    q_logits: Any, pi_logits: Any, atom_supports: Any, isv_bus: Any, pi_grad_logits: Any, stream: Any = None
) -> None:
    """Run the first seed kernel, `rl_q_pi_distill_grad`, to the letter: KL of row 0, zero sentinel, floors and all.

    For code that must not change; everything else wants `Distiller`.

    Parameters
    ----------
    q_logits : array, shape [..., 11, 21], float32
    pi_logits : array, shape [..., 11], float32
    atom_supports : array, shape [21], float32
    isv_bus : array, shape [494 or more], float32, or ISV
        The bus; slot 486 lam, 487 tau, 488 KL EMA, 493 EMA alpha.
    pi_grad_logits : array, shape [..., 11], float32
        Added to.
    stream : int or stream object, optional
        As for `Distiller.step`.

    Raises
    ------
    ValueError, TypeError, BufferError, OverflowError
        As for `Distiller.step`; all arrays have to be in C order.
    """
    bus = _bus(isv_bus)
    device = _device_of(
        isv_bus=bus,
        q_logits=q_logits,
        pi_logits=pi_logits,
        atom_supports=atom_supports,
        pi_grad_logits=pi_grad_logits,
    )
    _seed.seed_distill_grad(q_logits, pi_logits, atom_supports, bus, pi_grad_logits, device, stream)


def seed_lambda_controller(isv_bus: Any, stream: Any = None) -> None:
    """Run the second seed kernel, `rl_q_distill_lambda_controller`, to the letter.

    Parameters
    ----------
    isv_bus : array, shape [494 or more], float32, or ISV
        The bus; slot 486 lam, 488 KL EMA, 491 KL target.
    stream : int or stream object, optional
        As for `Distiller.step`.

    Raises
    ------
    ValueError, TypeError, BufferError
        As for `seed_distill_grad`.
    """
    bus = _bus(isv_bus)
    _seed.seed_lambda_controller(bus, _device_of(isv_bus=bus), stream)


def _bus(isv: Any) -> Any:
    if not isinstance(isv, ISV):
        return isv
    if isv.layout.to_dict().get("lam") != 486:
        raise ValueError(f"isv_bus: an ISV with {isv.layout!r}; the seed kernels need the bus layout")
    return isv.slots


def _device_of(**arrays: Any) -> int:
    """Return the device that the arrays are on, from the first that tells."""
    pointers = []
    for name, array in arrays.items():
        pointers.append(_arrays.describe(array, name))
        if pointers[-1].ordinal >= CPU:
            return pointers[-1].ordinal
    from . import _gpu

    return _gpu.device_of(pointers[0].address)


def info() -> dict[str, Any]:
    """Return what the library holds and what the machine has. Creates no CUDA context.

    Returns
    -------
    dict
        Versions, kernels of the CPU and of the GPU, devices, and the reason why no GPU is used if none is.
    """
    import json

    answer: dict[str, Any] = json.loads(_core.build_info())
    return answer
