"""The plant: a table of softmax policies between two teachers, and the sensor that the law looks through."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]
    Single = npt.NDArray[np.float32]

__all__ = ["Batch", "Plant", "Table"]


@dataclass(frozen=True)
class Plant:
    """What is controlled, and how its KL is seen.

    Parameters
    ----------
    states, actions : int
        Size of the table.
    rows : int
        Rows of a batch, drawn anew at every step; only their states move.
    rate : float
        Step size on the policies' logits.
    advantage_scale, advantage_noise : float
        Standard deviation of the policy gradient's own advantages, and of their estimation noise at every step.
    value_scale : float
        Standard deviation of the critic's values Q, which know nothing of the advantages.
    sensor : {"mean", "row0", "random"}
        What the law is shown: the mean KL of the batch; the KL of row 0, which is one fixed state without advantages of
        its own (padding, a dead environment) and so is soon aligned; the KL of one random row.
    noise : float
        Log standard deviation of noise on the KL that the law is shown.
    lag : int
        Steps by which that KL is late.
    bias : float
        Factor on it.
    drift : int
        Step at which the critic's values are drawn anew; 0: never.

    Raises
    ------
    ValueError
        A number outside its range.
    """

    states: int = 512
    actions: int = 11
    rows: int = 64
    rate: float = 0.3
    advantage_scale: float = 1.0
    advantage_noise: float = 1.0
    value_scale: float = 0.2
    sensor: Literal["mean", "row0", "random"] = "mean"
    noise: float = 0.0
    lag: int = 0
    bias: float = 1.0
    drift: int = 0

    def __post_init__(self) -> None:
        for name, low in (("states", 2), ("actions", 2), ("rows", 1), ("lag", 0), ("drift", 0)):
            if getattr(self, name) < low:
                raise ValueError(f"{name}: {getattr(self, name)!r} is below {low}")
        for name in ("rate", "advantage_scale", "advantage_noise", "value_scale", "noise", "bias"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}: {value!r} is not a finite number of at least 0")
        if self.sensor not in ("mean", "row0", "random"):
            raise ValueError(f"sensor: {self.sensor!r} is not 'mean', 'row0' or 'random'")


@dataclass(frozen=True)
class Batch:
    """What one step of the plant shows, an entry for each seed."""

    kl: Array  # of the whole batch
    seen: Array  # what the law is shown
    target_entropy: Array
    policy_entropy: Array
    agreement: Array


class Table:
    """The plant at work: one table of policies for each seed.

    Parameters
    ----------
    plant : Plant
    seeds : sequence of int
        A seed decides table, batches and noise, whatever law is run and whatever seeds run beside it.
    """

    def __init__(self, plant: Plant, seeds: list[int]) -> None:
        self.plant = plant
        self._random = [np.random.default_rng(seed) for seed in seeds]
        shape = (plant.states, plant.actions)
        # One row a state, those of the seeds behind each other.
        self._first = plant.states * np.arange(len(seeds))[:, None]
        self._advantages = plant.advantage_scale * self._normal(shape).reshape(-1, plant.actions)
        self._values = plant.value_scale * self._normal(shape).reshape(-1, plant.actions)
        self._logits = np.zeros_like(self._values)
        if plant.sensor == "row0":
            self._advantages[self._first] = 0
        self._late: list[Array] = []
        self._step = 0

    def _normal(self, shape: tuple[int, ...]) -> Single:
        return np.stack([random.standard_normal(shape, np.float32) for random in self._random])

    def step(self, lam: Array, tau: Array) -> Batch:
        """Move the states of one batch, with lam and tau of each seed, and return what it showed before the move."""
        plant = self.plant
        if plant.drift and self._step == plant.drift:
            self._values = plant.value_scale * self._normal((plant.states, plant.actions)).reshape(-1, plant.actions)
        self._step += 1
        states = np.stack([random.integers(0, plant.states, plant.rows) for random in self._random])
        noise = plant.advantage_noise * self._normal((plant.rows, plant.actions))
        if plant.sensor == "row0":
            states[:, 0] = 0
            noise[:, 0] = 0
        rows = self._first + states
        lam, tau = (x.astype(np.float32)[:, None, None] for x in (lam, tau))

        values, logits = self._values.take(rows, 0), self._logits.take(rows, 0)
        log_target, target = _softmax(values / tau)
        log_policy, policy = _softmax(logits)
        kl = (target * (log_target - log_policy)).sum(-1)
        advantages = self._advantages.take(rows, 0) + noise
        pull = policy * (advantages - (policy * advantages).sum(-1, keepdims=True))
        # A state that was drawn twice moves once, by the last of its rows.
        self._logits[rows] = logits + plant.rate * (pull - lam * (policy - target))
        return Batch(
            kl=kl.mean(-1),
            seen=self._seen(kl),
            target_entropy=-(target * log_target).sum(-1).mean(-1),
            policy_entropy=-(policy * log_policy).sum(-1).mean(-1),
            agreement=(values.argmax(-1) == policy.argmax(-1)).mean(-1),
        )

    def _seen(self, kl: Single) -> Array:
        plant = self.plant
        seen = (kl.mean(-1) if plant.sensor == "mean" else kl[:, 0]).astype(np.float64)
        if plant.noise:
            # The mean of the noise's factor is 1.
            seen = seen * np.exp(plant.noise * self._normal(()) - plant.noise**2 / 2)
        self._late.append(plant.bias * seen)
        return self._late.pop(0) if len(self._late) > plant.lag else self._late[0]

    def agreement(self) -> Array:
        """Return the share of all states where policy and critic prefer the same action, for each seed."""
        same = self._logits.argmax(-1) == self._values.argmax(-1)
        return same.reshape(len(self._random), -1).mean(-1)


def _softmax(logits: Single) -> tuple[Single, Single]:
    """Return the logarithm of the softmax over the last axis, and the softmax."""
    shifted = logits - logits.max(-1, keepdims=True)
    exponentials = np.exp(shifted)
    mass = exponentials.sum(-1, keepdims=True)
    return shifted - np.log(mass), exponentials / mass
