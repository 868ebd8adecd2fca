"""Every number of the demo, and the environments it knows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


class DemoError(Exception):
    """Something the demo needs is missing or does not work here. The message says what to do about it."""


#: What the policy is pulled toward besides its own surrogate: nothing, what Q knows, or the same with Q's actions
#: permuted at random.
ARMS = ("ppo", "distilled", "shuffled")


@dataclass(frozen=True, kw_only=True)
class Config:
    """One training run. The defaults are for MinAtar Breakout; `PRESETS` holds what other environments change."""

    # the run
    env: str = "MinAtar/Breakout"
    arm: str = "distilled"
    seed: int = 0
    steps: int = 400_000
    device: str = "cpu"

    # rollouts: envs * horizon steps make one policy iteration
    envs: int = 64
    horizon: int = 32
    gamma: float = 0.99
    trace: float = 0.95  # λ of the advantages and of the critic's targets
    reward_scale: float = 1.0

    # network and optimiser
    hidden: tuple[int, ...] = (128,)
    epochs: int = 3
    minibatches: int = 4
    rate: float = 2.0e-3  # falls linearly to a tenth of it
    max_grad_norm: float = 0.5

    # losses
    clip: float = 0.2
    entropy_coef: float = 0.01
    value_coef: float = 0.5
    critic_coef: float = 0.5

    # critic
    atoms: int = 21
    q_low: float = -1.0
    q_high: float = 9.0

    # distillation; the law is quicker than the library's default because a run here has some hundred commits
    lam: float = 0.1
    lam_min: float = 0.05
    lam_max: float = 0.3
    lam_down: float = 0.98
    tau: float = 0.25
    min_std: float = 0.05  # Q's spread that τ is measured in, at least: before that much, it is critic noise
    kl_target: float = 0.3
    kl_tolerance: float = 1.5

    @property
    def batch(self) -> int:
        """Steps of one policy iteration."""
        return self.envs * self.horizon

    @property
    def minibatch(self) -> int:
        """Rows of one gradient step."""
        return self.batch // self.minibatches

    @property
    def iterations(self) -> int:
        """Policy iterations of the run: `steps` rounded up to whole ones."""
        return max(1, -(-self.steps // self.batch))


#: Environments of the demo, and what each changes in `Config`.
PRESETS: dict[str, dict[str, Any]] = {
    "MinAtar/Breakout": {},
    "CartPole-v1": {
        "steps": 150_000,
        "envs": 16,
        "horizon": 64,
        "hidden": (64, 64),
        "rate": 1.0e-3,
        "reward_scale": 0.1,
        "q_low": 0.0,
        "q_high": 10.0,
    },
    "LunarLander-v3": {
        "steps": 200_000,
        "envs": 16,
        "horizon": 128,
        "hidden": (64, 64),
        "epochs": 8,
        "minibatches": 8,
        "rate": 1.0e-3,
        "gamma": 0.995,
        "reward_scale": 0.03,
        "q_low": -10.0,
        "q_high": 10.0,
        "lam": 0.03,
        "lam_min": 0.01,
        "lam_max": 0.1,
        "kl_target": 0.6,
    },
}


def preset(env: str, **changes: Any) -> Config:
    """Return the configuration for an environment of `PRESETS`, with `changes` on top.

    The bounds of λ widen to take in a `lam` that lies outside them.
    """
    config = Config(**{**PRESETS[env], **changes, "env": env})
    if config.lam == 0:
        return config
    return replace(config, lam_min=min(config.lam_min, config.lam), lam_max=max(config.lam_max, config.lam))
