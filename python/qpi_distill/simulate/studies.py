"""Ready-made comparisons, and the arms that they are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..isv import ISV
from .plant import Plant
from .run import Arm

__all__ = ["STUDIES", "Study", "arm"]

#: Where the seed kernels' first controller started, and fell from.
_SYMMETRIC_START = 0.5


@dataclass(frozen=True)
class Study:
    """A comparison: plants by name, arms, and how long."""

    title: str
    plants: dict[str, Plant]
    arms: tuple[Arm, ...]
    steps: int
    burn_in: int
    seeds: int


def arm(law: str, **values: Any) -> Arm:
    """Return the arm of a preset, or of a law of lam with its defaults.

    Parameters
    ----------
    law : str
        A preset's name or a law's; a preset comes first.
    **values
        More slots, over those of the preset.

    Raises
    ------
    ValueError
        Neither a preset nor a law.
    """
    laws = [entry.name for entry in ISV.laws()["lam"]]
    if law in ISV.presets():
        start = {"lam": _SYMMETRIC_START} if law == "symmetric" else {}
        return Arm(law, {"preset": law, **start, **values})
    if law in laws:
        return Arm(law, {"lam_law": law, **values})
    known = ", ".join(dict.fromkeys([*ISV.presets(), *laws]))
    raise ValueError(f"law: {law!r} is neither a preset nor a law; these are {known}")


def _laws(target: float) -> Study:
    names = ("symmetric", "seed", "schulman", "ziegler", "log_dual", "log_pi")
    return Study(
        title=f"Laws compared at a KL goal of {target:g} nat; the critic is drawn anew half way",
        plants={"mean": Plant(drift=4000)},
        arms=tuple(arm(name, kl_target=target) for name in names),
        steps=8000,
        burn_in=1000,
        seeds=5,
    )


STUDIES = {
    "collapse": Study(
        title="What the law is shown decides: row 0 of the batch, or the mean of the batch (KL goal 0.5 nat)",
        plants={
            "row 0, one fixed state": Plant(sensor="row0"),
            "row 0, random": Plant(sensor="random"),
            "batch mean": Plant(sensor="mean"),
        },
        arms=tuple(arm(name, kl_target=0.5) for name in ("symmetric", "seed", "log_pi")),
        steps=6000,
        burn_in=1000,
        seeds=3,
    ),
    "laws": _laws(1.0),
    "infeasible": _laws(0.3),
}
