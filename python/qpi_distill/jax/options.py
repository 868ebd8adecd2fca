"""What to compute, as names for the user and as numbers for the compiled program."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, fields
from typing import Literal, TypedDict

import numpy as np

from .._devices import CPU
from .._plans import Plans
from ..arrays import real_of

__all__ = ["Choices", "Options"]

# The enumerators of qpi_distill.h.
_CODES = {
    "reduction": {"sum": 1, "mean": 2},
    "value_scale": {"none": 0, "running_std": 1},
    "critic": {"categorical": 0, "quantile": 1, "scalar": 1},
    "target": {"boltzmann": 0, "greedy": 1},
    "divergence": {
        "forward_kl": 0,
        "reverse_kl": 1,
        "jensen_shannon": 2,
        "hellinger": 3,
        "total_variation": 4,
    },
    "control_stat": {"kl": 0, "loss": 1},
}
_MODES = {"add": 0, "write": 1}
_NUMBERS = ("illegal_below", "epsilon", "beta", "policy_temperature")


class Choices(TypedDict, total=False):
    """Keywords that `distill_loss` and `distill_grad` share; they mean what they mean to `qpi_distill.Distiller`.

    Attributes
    ----------
    value_scale : {"running_std", "none"}
        Whether values are divided by their running standard deviation within a row. Default "running_std".
    illegal_below : float or None
        pi_logits at or below it mark an illegal action. Default None: only -inf does.
    critic : {"categorical", "quantile", "scalar"}
        What q_logits are. Default "categorical".
    target : {"boltzmann", "greedy"}
        softmax(E_Q / tau), or the epsilon-soft greedy policy. Default "boltzmann".
    epsilon : float
        Of the greedy target, 0 to 1. Default 0.
    divergence : {"forward_kl", "reverse_kl", "jensen_shannon", "hellinger", "total_variation"}
        What the gradient lowers. Default "forward_kl".
    beta : float
        Of the Jensen-Shannon divergence, between 0 and 1. Default 0.5.
    policy_temperature : float
        Divides pi_logits in the divergence, not in the statistic. Default 1.
    control_stat : {"kl", "loss"}
        What feeds `kl_ema`. Default "kl".
    summary : bool
        Whether each commit also updates entropies, agreement and the like. Default False. `distill_loss` does so too
        where its value is not a KL(target || policy).
    """

    value_scale: Literal["running_std", "none"]
    illegal_below: float | None
    critic: Literal["categorical", "quantile", "scalar"]
    target: Literal["boltzmann", "greedy"]
    epsilon: float
    divergence: Literal["forward_kl", "reverse_kl", "jensen_shannon", "hellinger", "total_variation"]
    beta: float
    policy_temperature: float
    control_stat: Literal["kl", "loss"]
    summary: bool


@dataclass(frozen=True)
class Options:
    """The same with every value filled in: hashable, so that a compiled program is found again."""

    reduction: str
    value_scale: str = "running_std"
    illegal_below: float = -math.inf
    critic: str = "categorical"
    target: str = "boltzmann"
    epsilon: float = 0.0
    divergence: str = "forward_kl"
    beta: float = 0.5
    policy_temperature: float = 1.0
    control_stat: str = "kl"
    summary: bool = False
    add: bool = False

    @classmethod
    def of(cls, reduction: str, choices: Choices, *, add: bool = False) -> Options:
        """Return the options of a call.

        Raises
        ------
        TypeError
            A keyword that does not exist, or something that is not a number where one is expected.
        ValueError
            A name that is no choice.
        """
        known = [field.name for field in fields(cls) if field.name not in ("reduction", "add")]
        for name in choices:
            if name not in known:
                raise TypeError(f"there is no option {name!r}; the options are {', '.join(known)}")
        values = dict(choices)
        if values.get("illegal_below", 0) is None:
            del values["illegal_below"]
        for name in _NUMBERS:
            if name in values:
                values[name] = real_of(values[name], name)
        values["summary"] = bool(values.get("summary", False))
        options = cls(reduction, add=add, **values)
        for name, codes in _CODES.items():
            found = getattr(options, name)
            if not isinstance(found, str) or found not in codes:
                raise ValueError(f"{name}: {found!r} is not one of {', '.join(map(repr, codes))}")
        return options

    @property
    def plain_value(self) -> bool:
        """Whether the sum that feeds the statistic is also that of the loss."""
        plain = self.divergence == "forward_kl" and self.policy_temperature == 1
        return plain or self.control_stat == "loss"

    def attributes(self) -> dict[str, np.int32 | np.float32]:
        """Return what the compiled program carries along: a description of the problem, valid in any process."""
        codes = {name: np.int32(codes[getattr(self, name)]) for name, codes in _CODES.items()}
        numbers = {name: np.float32(getattr(self, name)) for name in _NUMBERS}
        mode = np.int32(_MODES["add" if self.add else "write"])
        return {**codes, **numbers, "mode": mode, "summary": np.int32(self.summary)}

    @functools.cache  # noqa: B019  (options and sizes are few, and plans are kept for good)
    def check(self, actions: int, atoms: int, q_dtype: str, pi_dtype: str, grad_dtype: str) -> None:
        """Have the library check the problem, so that its own error comes while the call is traced."""
        plans = Plans(
            CPU,
            actions,
            atoms,
            (0, 1),
            reduction=self.reduction,
            mode="add" if self.add else "write",
            value_scale=self.value_scale,
            kl_stat="mean",
            kernel="auto",
            illegal_below=self.illegal_below,
            checked=False,
            max_blocks=0,
            max_threads=0,
            critic=self.critic,
            target=self.target,
            epsilon=self.epsilon,
            divergence=self.divergence,
            beta=self.beta,
            policy_temperature=self.policy_temperature,
            control_stat=self.control_stat,
            summary=self.summary,
        )
        plans.prepare(q_dtype, pi_dtype, grad_dtype)
