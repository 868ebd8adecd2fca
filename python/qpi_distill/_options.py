"""What the adapters for frameworks can be asked to compute: names, defaults and checks of `qpi_distill.Distiller`."""

from __future__ import annotations

import functools
import math
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Literal, TypedDict, get_args

from ._devices import CPU
from ._plans import Plans
from .arrays import real_of

if TYPE_CHECKING:
    from typing import Any, Self

__all__ = ["CHOICES", "Choices", "Options"]

_Reduction = Literal["sum", "mean"]
_ValueScale = Literal["running_std", "none"]
_Critic = Literal["categorical", "quantile", "scalar"]
_Target = Literal["boltzmann", "greedy"]
_Divergence = Literal["forward_kl", "reverse_kl", "jensen_shannon", "hellinger", "total_variation"]
_ControlStat = Literal["kl", "loss"]

_NAMES = {
    "reduction": get_args(_Reduction),
    "value_scale": get_args(_ValueScale),
    "critic": get_args(_Critic),
    "target": get_args(_Target),
    "divergence": get_args(_Divergence),
    "control_stat": get_args(_ControlStat),
}
_NUMBERS = ("illegal_below", "epsilon", "beta", "policy_temperature")


class Choices(TypedDict, total=False):
    """Keywords of the losses; they mean what they mean to `qpi_distill.Distiller`.

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
        What the gradient lowers, and what the loss is the value of. Default "forward_kl".
    beta : float
        Of the Jensen-Shannon divergence, between 0 and 1. Default 0.5.
    policy_temperature : float
        Divides pi_logits in the divergence, not in the statistic. Default 1.
    control_stat : {"kl", "loss"}
        What feeds `kl_ema`: KL(target || policy) whatever the divergence, or the divergence. Default "kl".
    summary : bool
        Whether each commit also updates `loss_last`, `target_entropy`, `policy_entropy`, `uniform_entropy`,
        `agreement`, `pi_at_qstar` and `overlap`. Default False.
    """

    value_scale: _ValueScale
    illegal_below: float | None
    critic: _Critic
    target: _Target
    epsilon: float
    divergence: _Divergence
    beta: float
    policy_temperature: float
    control_stat: _ControlStat
    summary: bool


CHOICES = tuple(Choices.__annotations__)


@dataclass(frozen=True)
class Options:
    """The same with every value filled in: hashable, so that what was made for it is found again."""

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

    @classmethod
    def of(cls, reduction: str, choices: Choices | dict[str, Any], **own: Any) -> Self:
        """Return the options of a call. `own` is what a subclass has besides.

        Raises
        ------
        TypeError
            A keyword that does not exist, or something that is not a number where one is expected.
        ValueError
            A name that is no choice.
        """
        for name in choices:
            if name not in CHOICES:
                raise TypeError(f"there is no option {name!r}; the options are {', '.join(CHOICES)}")
        values = dict(choices)
        if values.get("illegal_below", 0) is None:
            del values["illegal_below"]
        for name in _NUMBERS:
            if name in values:
                values[name] = real_of(values[name], name)
        values["summary"] = bool(values.get("summary", False))
        options = cls(reduction, **values, **own)
        for name, known in _NAMES.items():
            found = getattr(options, name)
            if not isinstance(found, str) or found not in known:
                raise ValueError(f"{name}: {found!r} is not one of {', '.join(map(repr, known))}")
        return options

    def check_support(self, support: Any) -> None:
        """Refuse a support that the critic has no use for, and none where it needs one.

        Raises
        ------
        ValueError, TypeError
        """
        if self.critic == "categorical" and support is None:
            raise TypeError("support: required by a categorical critic")
        if self.critic != "categorical" and support is not None:
            raise ValueError(f"support: a {self.critic} critic has none; expected None")

    @property
    def plain_value(self) -> bool:
        """Whether the sum that feeds the statistic is also that of the loss."""
        plain = self.divergence == "forward_kl" and self.policy_temperature == 1
        return plain or self.control_stat == "loss"

    @property
    def mode(self) -> str:
        """What happens to a gradient that is there already: "write" or "add"."""
        return "write"

    def keywords(self) -> dict[str, Any]:
        """Return what the core needs besides sizes, strides and dtypes."""
        values = asdict(self)
        return {
            **{field.name: values[field.name] for field in fields(Options)},
            "mode": self.mode,
            "kl_stat": "mean",
            "kernel": "auto",
            "checked": False,
            "max_blocks": 0,
            "max_threads": 0,
        }

    @functools.cache  # noqa: B019  (options and sizes are few, and plans are kept for good)
    def check(
        self,
        actions: int = 1,
        atoms: int = 1,
        q_dtype: str = "float32",
        pi_dtype: str = "float32",
        grad_dtype: str = "float32",
    ) -> None:
        """Have the library check the problem, so that its own error comes before a call does."""
        Plans(CPU, actions, atoms, (0, 1), **self.keywords()).prepare(q_dtype, pi_dtype, grad_dtype)
