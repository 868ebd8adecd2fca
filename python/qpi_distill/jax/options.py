"""What to compute, as numbers for the compiled program."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .. import _options
from .._options import Choices

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
    "mode": {"add": 0, "write": 1},
}
_NUMBERS = ("illegal_below", "epsilon", "beta", "policy_temperature")


@dataclass(frozen=True)
class Options(_options.Options):
    """The options of a call, and whether it adds to a gradient that is there."""

    add: bool = False

    @property
    def mode(self) -> str:
        """What happens to a gradient that is there already."""
        return "add" if self.add else "write"

    def attributes(self) -> dict[str, np.int32 | np.float32]:
        """Return what the compiled program carries along: a description of the problem, valid in any process."""
        codes = {name: np.int32(codes[getattr(self, name)]) for name, codes in _CODES.items()}
        numbers = {name: np.float32(getattr(self, name)) for name in _NUMBERS}
        return {**codes, **numbers, "summary": np.int32(self.summary)}
