"""Several copies of one environment, stepped together.

MinAtar and gymnasium are imported when one of their environments is made, and not before.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .config import DemoError


class Environment(Protocol):
    """What the runner needs of one environment. Observations are written to the caller's row."""

    features: int
    actions: int

    def reset(self, out: NDArray[np.float32]) -> None:
        """Start an episode and write its first observation."""

    def step(self, action: int, out: NDArray[np.float32]) -> tuple[float, bool, bool]:
        """Act, write the observation that follows; return (reward, terminated, truncated)."""


class MinAtar:
    """A MinAtar game, its 10 by 10 grid of channels flattened, with the actions that matter in it."""

    def __init__(self, game: str, seed: int) -> None:
        try:
            # MinAtar imports pyplot; without a display that must not pick an interactive backend
            import matplotlib

            matplotlib.use("Agg", force=False)
            from minatar import Environment as Game
        except ImportError as error:
            raise missing("MinAtar", error) from error
        self.game = Game(game)
        # the game's own constructor has already drawn a start state from an unseeded generator: seed, then reset
        self.game.seed(seed)
        self.minimal = self.game.minimal_action_set()
        self.actions = len(self.minimal)
        self.features = int(np.prod(self.game.state_shape()))

    def reset(self, out: NDArray[np.float32]) -> None:
        self.game.reset()
        out[:] = self.game.state().reshape(-1)

    def step(self, action: int, out: NDArray[np.float32]) -> tuple[float, bool, bool]:
        reward, terminal = self.game.act(self.minimal[action])
        out[:] = self.game.state().reshape(-1)
        return float(reward), bool(terminal), False


class Gymnasium:
    """A gymnasium environment with vector observations and discrete actions."""

    def __init__(self, name: str, seed: int) -> None:
        try:
            import gymnasium

            self.env = gymnasium.make(name)
        except ImportError as error:
            raise missing("gymnasium", error) from error
        except Exception as error:
            # gymnasium reports a missing Box2D with a class of its own
            if type(error).__name__ == "DependencyNotInstalled":
                raise missing("gymnasium[box2d]", error) from error
            raise
        self.first_seed: int | None = seed
        self.actions = int(self.env.action_space.n)
        self.features = int(np.prod(self.env.observation_space.shape))

    def reset(self, out: NDArray[np.float32]) -> None:
        observation, _ = self.env.reset(seed=self.first_seed)
        self.first_seed = None
        out[:] = observation

    def step(self, action: int, out: NDArray[np.float32]) -> tuple[float, bool, bool]:
        observation, reward, terminated, truncated, _ = self.env.step(action)
        out[:] = observation
        return float(reward), bool(terminated), bool(truncated)


def missing(package: str, error: Exception) -> DemoError:
    """Return the error for a package that the extra brings."""
    return DemoError(f'the demo needs {package}, which cannot be imported ({error}): pip install "qpi-distill[demo]"')


def make(name: str, seed: int) -> Environment:
    """Return the environment called `name`: "MinAtar/<Game>" or a gymnasium id."""
    if name.startswith("MinAtar/"):
        return MinAtar(name.removeprefix("MinAtar/").lower(), seed)
    return Gymnasium(name, seed)


class Transition(NamedTuple):
    """What one step of all environments gave, arrays `[N]`."""

    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    cut_off: dict[int, NDArray[np.float32]]  # last observation of each episode that a time limit ended


class Runner:
    """`count` environments that restart by themselves.

    Attributes
    ----------
    observations : numpy.ndarray of float32
        `[N, features]`: what the policy sees next. Overwritten by `step`.
    returns : list of float
        Undiscounted return of every finished episode, in the order in which they finished.
    """

    def __init__(self, name: str, count: int, seed: int) -> None:
        seeds = np.random.SeedSequence(seed).generate_state(count)
        # 31 bits are a seed to every environment
        self.envs = [make(name, int(s) >> 1) for s in seeds]
        self.features, self.actions = self.envs[0].features, self.envs[0].actions
        self.observations = np.zeros((count, self.features), np.float32)
        self.returns: list[float] = []
        self.running = [0.0] * count
        for env, row in zip(self.envs, self.observations, strict=True):
            env.reset(row)

    def step(self, actions: NDArray[np.integer]) -> Transition:
        """Act in every environment; restart those whose episode ended."""
        count = len(self.envs)
        result = Transition(np.zeros(count, np.float32), np.zeros(count, bool), np.zeros(count, bool), {})
        for i, (env, action) in enumerate(zip(self.envs, actions.tolist(), strict=True)):
            row = self.observations[i]
            reward, terminated, truncated = env.step(action, row)
            result.rewards[i] = reward
            self.running[i] += reward
            if terminated or truncated:
                result.terminated[i] = terminated
                result.truncated[i] = truncated and not terminated
                if result.truncated[i]:
                    result.cut_off[i] = row.copy()
                self.returns.append(self.running[i])
                self.running[i] = 0.0
                env.reset(row)
        return result
