"""The distillation step as an object."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from . import _arrays, _core, _pointer
from ._devices import CPU
from ._log import logger
from ._record import RECORD, SUMMARY
from .arrays import bound_of, index_of, real_of
from .isv import ISV, fault_names

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Literal

__all__ = ["Distiller", "Statistic"]

_SHOWN_ROWS = (256, 4096, 1 << 20)  # whose kernels are logged


class Statistic(NamedTuple):
    """What `Distiller.measure` found in a batch.

    Attributes
    ----------
    kl : float
        Weighted mean of KL(target || policy) over the rows, in nats; NaN without weight.
    weight : float
        Sum of the weights.
    value_std : float
        Weighted root mean square of the action values' deviations within their row; NaN without weight.
    rows, skipped, clipped : int
        Rows in the statistic, rows left out whole, rows whose KL was over `kl_row_max`.
    faults : tuple of str
        Names of the faults met in the rows.
    loss, target_entropy, policy_entropy, uniform_entropy, agreement, pi_at_qstar, overlap : float
        Weighted means of what ``summary=True`` asks for (see `Distiller`); NaN without.
    """

    kl: float
    weight: float
    value_std: float
    rows: int
    skipped: int
    clipped: int
    faults: tuple[str, ...]
    loss: float = math.nan
    target_entropy: float = math.nan
    policy_entropy: float = math.nan
    uniform_entropy: float = math.nan
    agreement: float = math.nan
    pi_at_qstar: float = math.nan
    overlap: float = math.nan


class Distiller(_core.Operator):
    """Pull a policy toward what a critic knows, once per call of `step`.

    For a batch of rows b, actions a and atoms z:

        E_Q[b,a]      = sum_z softmax(q_logits[b,a,:])[z] * support[a,z]
        target[b]     = softmax(E_Q[b,:] / tau)
        pi_grad[b,a] += lam * (softmax(pi_logits[b,:])[a] - target[b,a])
        KL[b]         = sum_a target[b,a] * (log target[b,a] - log softmax(pi_logits[b,:])[a])

    which is the gradient of lam * KL(target || policy) with respect to pi_logits. Its batch mean moves ISV slot
    `kl_ema`, and a control law moves `lam` to hold that near `kl_target`. Construction plans the kernels, so that the
    first step may already be part of a CUDA graph.

    That is the plain step. `critic`, `target`, `divergence` and `policy_temperature` choose other members of its
    family; `summary` adds up what a trainer wants to see of both policies.

    Parameters
    ----------
    support : array or sequence of float, shape [Z] or [A, Z], optional
        Value of each atom, for all actions or per action; of a categorical critic alone, and required there. Lists and
        NumPy arrays are copied to the device once; an array of another library that is on the ISV's device already is
        used in place (float32).
    isv : ISV
        The state; it decides about the device.
    reduction : {"sum", "mean"}
        Gradient of the sum over the rows, or of their mean (every row of the call counts, skipped ones too). Required,
        because the choice changes the strength by a factor of the batch size.
    actions : int, optional
        A; required unless the support is [A, Z].
    atoms : int, optional
        Z, checked against the support; of a quantile critic the number of quantiles, and required there.
    mode : {"add", "write"}
        Whether pi_grad is added to or overwritten.
    value_scale : {"running_std", "none"}
        Whether E_Q is divided by the running standard deviation of the values within a row.
    kl_stat : {"mean", "row0"}
        Statistic of a batch; "row0" takes row 0 alone, as the seed kernels do.
    illegal_below : float, optional
        pi_logits at or below it mark an illegal action. None: only -inf does.
    q_dtype, pi_dtype, grad_dtype : str or dtype
        What is planned at once; others are planned when they are met, or by `prepare`. grad_dtype is float32 or
        pi_dtype.
    checked : bool
        Whether every call asks the driver where each pointer lives (`bind` asks once in any case).
    kernel : {"auto", "stream", "tile", "block", "baseline", "avx2", "avx512"}
        Forces a kernel of the GPU (the first three after "auto") or of the CPU, for tests and benchmarks.
    max_blocks, max_threads : int
        Upper bounds on the GPU's grid and the CPU's threads; 0: chosen. The results do not depend on them.
    critic : {"categorical", "quantile", "scalar"}
        What q_logits are: logits over the support's atoms (C51, HL-Gauss); quantiles [..., A, Z], whose mean is the
        value (QR-DQN, IQN); values [..., A].
    target : {"boltzmann", "greedy"}
        softmax(E_Q / tau); or the epsilon-soft greedy policy, in which actions of equal value share.
    epsilon : float
        Of the greedy target: the share that all legal actions have, 0 to 1.
    divergence : {"forward_kl", "reverse_kl", "jensen_shannon", "hellinger", "total_variation"}
        What the gradient lowers, for t = target and p = softmax(pi_logits / policy_temperature): KL(t || p);
        KL(p || t); beta KL(t || m) + (1 - beta) KL(p || m) with m = beta t + (1 - beta) p (Lin 1991);
        1 - sum sqrt(t p) (Beran 1977); sum |t - p| / 2.
    beta : float
        Of the Jensen-Shannon divergence, between 0 and 1.
    policy_temperature : float
        Divides pi_logits in the divergence, not in the statistic. No factor makes up for it.
    control_stat : {"kl", "loss"}
        What feeds `kl_ema` and with it the law of lam: KL(target || softmax(pi_logits)) whatever the divergence, or
        the divergence, whose unit `kl_target` and `kl_row_max` then have.
    summary : bool
        Whether each commit also updates `loss_last`, `target_entropy`, `policy_entropy`, `uniform_entropy`,
        `agreement`, `pi_at_qstar` and `overlap`, from the same pass.

    Raises
    ------
    ValueError
        An option, a size or a shape that cannot be; support values that are not finite.
    TypeError
        A dtype or an object that is not supported.
    BufferError
        A support on another device.

    See Also
    --------
    ISV : The state and the numbers that steer it.

    Notes
    -----
    The gradient is of a loss to minimise and is meant to be added before clipping. Call `step`, or `accumulate` for the
    parts of a batch and `commit` once, per policy iteration: the rates of the control law are per commit.
    """

    def __init__(
        self,
        *,
        support: Any = None,
        isv: ISV,
        reduction: Literal["sum", "mean"],
        actions: int | None = None,
        atoms: int | None = None,
        mode: Literal["add", "write"] = "add",
        value_scale: Literal["running_std", "none"] = "running_std",
        kl_stat: Literal["mean", "row0"] = "mean",
        illegal_below: float | None = None,
        q_dtype: Any = "float32",
        pi_dtype: Any = "float32",
        grad_dtype: Any = "float32",
        checked: bool = False,
        kernel: Literal["auto", "stream", "tile", "block", "baseline", "avx2", "avx512"] = "auto",
        max_blocks: int = 0,
        max_threads: int = 0,
        critic: Literal["categorical", "quantile", "scalar"] = "categorical",
        target: Literal["boltzmann", "greedy"] = "boltzmann",
        epsilon: float = 0.0,
        divergence: Literal[
            "forward_kl", "reverse_kl", "jensen_shannon", "hellinger", "total_variation"
        ] = "forward_kl",
        beta: float = 0.5,
        policy_temperature: float = 1.0,
        control_stat: Literal["kl", "loss"] = "kl",
        summary: bool = False,
    ) -> None:
        if not isinstance(isv, ISV):
            raise TypeError(f"isv: {type(isv).__name__} is not a qpi.ISV")
        if critic in ("quantile", "scalar"):
            source = _without_support(critic, support, actions, atoms)
        else:
            source = _with_support(support, actions, atoms, isv)
        super().__init__(
            isv._handle,
            *source,
            reduction=reduction,
            mode=mode,
            value_scale=value_scale,
            kl_stat=kl_stat,
            kernel=kernel,
            illegal_below=-math.inf if illegal_below is None else real_of(illegal_below, "illegal_below"),
            q_dtype=q_dtype,
            pi_dtype=pi_dtype,
            grad_dtype=grad_dtype,
            checked=checked,
            max_blocks=bound_of(max_blocks, "max_blocks"),
            max_threads=bound_of(max_threads, "max_threads"),
            critic=critic,
            target=target,
            epsilon=real_of(epsilon, "epsilon"),
            divergence=divergence,
            beta=real_of(beta, "beta"),
            policy_temperature=real_of(policy_temperature, "policy_temperature"),
            control_stat=control_stat,
            summary=bool(summary),
        )
        self._isv = isv
        self._shape = (source.actions, source.atoms)
        self._dtypes = (q_dtype, pi_dtype, grad_dtype)
        if logger.isEnabledFor(logging.DEBUG):
            for rows in _SHOWN_ROWS:
                logger.debug("%r: a step on %d rows runs %s", self, rows, self.explain(rows))

    @property
    def isv(self) -> ISV:
        """The state that the steps move."""
        return self._isv

    @property
    def actions(self) -> int:
        """A, the number of actions."""
        return self._shape[0]

    @property
    def atoms(self) -> int:
        """Z, the number of atoms."""
        return self._shape[1]

    def measure(
        self,
        q_logits: Any,
        pi_logits: Any,
        *,
        legal_actions: Any = None,
        row_weights: Any = None,
        stream: Any = None,
    ) -> Statistic:
        """Return the statistic of a batch: no gradient, no change to the ISV or its record. The host waits for it.

        Parameters
        ----------
        q_logits, pi_logits, legal_actions, row_weights : array
            As for `step`.
        stream : int or stream object, optional
            As for `step`.

        Raises
        ------
        CaptureError
            The stream is being captured into a graph.
        ValueError, TypeError, BufferError, OverflowError
            As for `step`.
        """
        state = self._isv._state
        with state.measuring():
            handle = self.measure_into(state.record, q_logits, pi_logits, legal_actions, row_weights, stream)
            record = np.frombuffer(state.measured(RECORD.itemsize, handle), RECORD)[0]
        weight = float(record["weight"])
        return Statistic(
            float(record["weighted_kl"]) / weight if weight > 0 else math.nan,
            weight,
            math.sqrt(float(record["weighted_variance"]) / weight) if weight > 0 else math.nan,
            int(record["rows"]),
            int(record["skipped"]),
            int(record["clipped"]),
            fault_names(int(record["faults"])),
            *(
                float(record[f"summary_{name}"] / record["summary_weight"])
                if record["summary_weight"] > 0
                else math.nan
                for name in SUMMARY
            ),
        )

    def explain(self, rows: int) -> str:
        """Return which kernel a call with this many rows of packed arrays runs, on which grid, and why.

        Parameters
        ----------
        rows : int
            Number of rows.
        """
        return self.describe(index_of(rows, "rows"), *self._dtypes)

    def __repr__(self) -> str:
        """Show sizes and device."""
        return f"<qpi.Distiller {self.actions} actions, {self.atoms} atoms, on {self._isv.device}>"


class _Source(NamedTuple):
    """Sizes of a critic's output, and the support."""

    actions: int
    atoms: int
    address: int
    strides: tuple[int, int]
    memory: Any


def _with_support(support: Any, actions: Any, atoms: Any, isv: ISV) -> _Source:
    """Return what a categorical critic is made of."""
    if support is None:
        raise TypeError("support: required by a categorical critic")
    pointer = _support_on_device(support, isv)
    shape, strides = pointer.shape, pointer.strides
    if pointer.ndim not in (1, 2):
        raise ValueError(f"support: shape {shape}, expected [Z] or [A, Z]")
    if pointer.ndim == 1 and actions is None:
        raise ValueError("actions: required where the support has shape [Z]")
    if pointer.ndim == 2 and actions is not None and actions != shape[0]:
        raise ValueError(f"actions: {actions}, but the support has shape {shape}")
    if atoms is not None and atoms != shape[-1]:
        raise ValueError(f"atoms: {atoms}, but the support has shape {shape}")
    count = shape[0] if actions is None else index_of(actions, "actions")
    # Unused strides are the packed ones, so that they do not keep a fast kernel from being chosen.
    per_atom = 1 if shape[-1] == 1 else strides[-1]
    per_action = 0 if pointer.ndim == 1 else shape[-1] if shape[0] == 1 else strides[0]
    return _Source(count, shape[-1], pointer.address, (per_action, per_atom), pointer)


def _without_support(critic: str, support: Any, actions: Any, atoms: Any) -> _Source:
    """Return what a quantile or a scalar critic is made of."""
    if support is not None:
        raise ValueError(f"support: a {critic} critic has none; expected None")
    if actions is None:
        raise ValueError(f"actions: required by a {critic} critic")
    if critic == "scalar":
        if atoms not in (None, 1):
            raise ValueError(f"atoms: {atoms}, but a scalar critic has none; expected None or 1")
        atoms = 1
    elif atoms is None:
        raise ValueError("atoms: required by a quantile critic: the number of quantiles")
    return _Source(index_of(actions, "actions"), index_of(atoms, "atoms"), 0, (0, 1), None)


def _support_on_device(support: Any, isv: ISV) -> _pointer.Pointer:
    """Return the support as float32 on the ISV's device: copied from the host, or in place."""
    device = isv._handle.device
    if isinstance(support, np.ma.MaskedArray):
        raise BufferError("support: masked arrays are not supported")
    if not isinstance(support, (np.ndarray, list, tuple, range)):
        pointer = _arrays.describe(support, "support")
        if pointer.ordinal == device or (pointer.ordinal < CPU and device > CPU):
            if pointer.dtype != "float32":
                raise TypeError(f"support: dtype {pointer.dtype} is not supported in place; expected float32")
            return pointer
        if pointer.ordinal != CPU or pointer.dtype == "bfloat16":
            raise BufferError(f"support: is on {pointer.device}, but the ISV is on {isv.device}")
        support = np.asarray(pointer)
    return _copied(support, isv)


def _copied(support: np.ndarray[Any, Any] | Sequence[Any], isv: ISV) -> _pointer.Pointer:
    values = np.asarray(support)
    if values.dtype.kind not in "fiu" and values.dtype.name != "bfloat16":
        raise TypeError(f"support: dtype {values.dtype.name} is not supported; expected real numbers")
    with np.errstate(over="ignore"):
        values = np.array(values, np.float32, order="C")
    if not np.isfinite(values).all():
        raise ValueError("support: every value has to be finite in float32")
    device = isv._handle.device
    if device == CPU:
        return _arrays.describe(values, "support")
    from . import _gpu

    memory = _gpu.upload(isv._handle, values.tobytes())
    return _pointer.Pointer(memory.address, values.shape, "float32", device, None, False, memory)
