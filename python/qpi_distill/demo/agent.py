"""The agent: collect a rollout, learn from it, commit, repeat."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import qpi_distill as qpi

from . import critic, ppo
from .config import Config
from .distill import make_term
from .envs import Runner
from .networks import Adam, Array, Network, clip_norm

#: What is recorded after every policy iteration.
SERIES = (
    "steps",  # environment steps so far
    "episode_return",  # mean of the last 100 episodes that had finished; NaN before the first
    "lam",  # λ, after the commit
    "kl",  # KL(target ‖ π) of this iteration's minibatches
    "kl_ema",  # its moving average, which the law sees
    "value_std",  # running standard deviation of Q within a state
    "target_entropy",  # mean entropy of the target over the rollout, nats
    "policy_entropy",  # mean entropy of π over the rollout, nats
    "agreement",  # share of states with argmax π = argmax E_Q (ties: first index)
    "pi_at_qstar",  # mean π(argmax E_Q)
)

#: Episodes that `episode_return` averages over.
WINDOW = 100


@dataclass
class Run:
    """What a training run left behind."""

    config: Config
    actions: int
    history: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in SERIES})
    reasons: dict[str, int] = field(default_factory=dict)  # what the law did, and in how many commits
    episodes: int = 0
    seconds: float = 0.0

    @property
    def first_return(self) -> float:
        """The return of the first iteration that finished episodes: of a policy that has learned little yet."""
        return next((value for value in self.history["episode_return"] if np.isfinite(value)), float("nan"))

    def final(self, name: str, share: float = 0.1) -> float:
        """Mean of a series over the last `share` of the run, NaN where it has no value there."""
        values = np.asarray(self.history[name])
        tail = values[-max(1, round(share * len(values))) :]
        tail = tail[np.isfinite(tail)]
        return float(tail.mean()) if tail.size else float("nan")


@dataclass
class Rollout:
    """`T` steps of `N` environments; what belongs to a state has one more in time: where the rollout stopped."""

    states: Array  # [T + 1, N, features]
    features: Array  # [T + 1, N, width]: the trunk's output
    logits: Array  # [T + 1, N, A]
    actions: NDArray[np.int64]  # [T, N]
    rewards: Array  # [T, N]
    terminated: NDArray[np.bool_]  # [T, N]
    done: NDArray[np.bool_]  # [T, N]: terminated, or cut off by a time limit
    cut_off: dict[tuple[int, int], Array]  # (t, n) -> last observation of an episode that a time limit ended


class Agent:
    """PPO with a C51 critic beside its value head, all three heads on one trunk.

    Parameters
    ----------
    config : Config
        The run.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        streams = np.random.SeedSequence(config.seed).spawn(4)
        init, self.act_rng, self.batch_rng, self.shuffle_rng = map(np.random.default_rng, streams)
        self.runner = Runner(config.env, config.envs, config.seed)
        self.actions = self.runner.actions
        self.support = qpi.linspace(config.q_low, config.q_high, config.atoms)
        self.net = Network(
            self.runner.features,
            config.hidden,
            {"pi": (self.actions, 0.01), "value": (1, 1.0), "q": (self.actions * config.atoms, 0.1)},
            init,
        )
        self.optimiser = Adam(self.net.theta)
        self.term = make_term(config, self.actions, self.support)

    def q_logits(self, features: Array) -> Array:
        """Return the critic's logits, `[..., A, Z]`."""
        q = self.net.head("q", features)
        return q.reshape(*q.shape[:-1], self.actions, self.config.atoms)

    def collect(self) -> Rollout:
        """Play `horizon` steps in every environment."""
        c, runner = self.config, self.runner
        lead = (c.horizon, c.envs)
        width = self.net.weight["pi"].shape[0]
        roll = Rollout(
            states=np.empty((c.horizon + 1, c.envs, runner.features), np.float32),
            features=np.empty((c.horizon + 1, c.envs, width), np.float32),
            logits=np.empty((c.horizon + 1, c.envs, self.actions), np.float32),
            actions=np.empty(lead, np.int64),
            rewards=np.empty(lead, np.float32),
            terminated=np.empty(lead, bool),
            done=np.empty(lead, bool),
            cut_off={},
        )
        for t in range(c.horizon + 1):
            roll.states[t] = runner.observations
            roll.features[t] = self.net.trunk(roll.states[t])[-1]
            roll.logits[t] = self.net.head("pi", roll.features[t])
            if t == c.horizon:
                break
            roll.actions[t] = ppo.sample(self.act_rng, roll.logits[t])
            step = runner.step(roll.actions[t])
            roll.rewards[t] = step.rewards
            roll.terminated[t] = step.terminated
            roll.done[t] = step.terminated | step.truncated
            roll.cut_off.update({(t, n): state for n, state in step.cut_off.items()})
        roll.rewards *= c.reward_scale
        return roll

    def evaluate(self, features: Array, logits: Array) -> tuple[Array, Array, Array]:
        """Return V, E_Q and Z^π of states: `[...]`, `[..., A]` and `[..., Z]`."""
        mass = critic.softmax(self.q_logits(features))
        policy = critic.softmax(logits)
        return (
            self.net.head("value", features)[..., 0],
            mass @ self.support,
            np.matmul(policy[..., None, :], mass)[..., 0, :],
        )

    def targets(self, roll: Rollout) -> tuple[Array, Array, Array, Array]:
        """Return advantages, value targets `[T, N]`, the critic's targets `[T, N, Z]` and E_Q `[T, N, A]`."""
        c = self.config
        values, expected, mixture = self.evaluate(roll.features, roll.logits)
        next_values, next_mass = values[1:].copy(), mixture[1:].copy()
        if roll.cut_off:
            where = tuple(np.array(list(roll.cut_off)).T)
            features = self.net.trunk(np.stack(list(roll.cut_off.values())))[-1]
            next_values[where], _, next_mass[where] = self.evaluate(features, self.net.head("pi", features))
        advantage = ppo.advantages(roll.rewards, values[:-1], next_values, roll.terminated, roll.done, c.gamma, c.trace)
        q_targets = critic.lambda_distributions(
            self.support, roll.rewards, roll.terminated, roll.done, next_mass, c.gamma, c.trace
        )
        return advantage, advantage + values[:-1], q_targets, expected[:-1]

    def learn(self, roll: Rollout, rate: float) -> Array:
        """Run the epochs of one policy iteration; return E_Q of the rollout's states, `[T, N, A]`."""
        c, net = self.config, self.net
        advantage, returns, q_targets, expected = self.targets(roll)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)

        # one row per step
        states = roll.states[:-1].reshape(c.batch, -1)
        actions, advantage, returns = roll.actions.reshape(-1), advantage.reshape(-1), returns.reshape(-1)
        q_targets = q_targets.reshape(c.batch, -1)
        old_logits = roll.logits[:-1].reshape(c.batch, -1)
        old_log_prob = ppo.log_softmax(old_logits)[np.arange(c.batch), actions]
        pi_grad = np.empty((c.minibatch, self.actions), np.float32)

        for _ in range(c.epochs):
            order = self.batch_rng.permutation(c.batch)
            for start in range(0, c.minibatches * c.minibatch, c.minibatch):
                rows = order[start : start + c.minibatch]
                activations = net.trunk(states[rows])
                logits = net.head("pi", activations[-1])
                values = net.head("value", activations[-1])
                q_logits = self.q_logits(activations[-1])

                # the policy gradient of PPO first, then the distiller adds to it
                ppo.policy_grad(
                    logits,
                    actions[rows],
                    old_log_prob[rows],
                    advantage[rows],
                    clip=c.clip,
                    entropy_coef=c.entropy_coef,
                    out=pi_grad,
                )
                self.term.add(self.shown(q_logits), logits, pi_grad)

                _, v_grad = ppo.value_grad(values[:, 0], returns[rows])
                _, q_grad = critic.cross_entropy_grad(q_logits, actions[rows], q_targets[rows])
                v_grad *= c.value_coef
                q_grad *= c.critic_coef
                heads = {"pi": pi_grad, "value": v_grad[:, None], "q": q_grad.reshape(c.minibatch, -1)}
                net.backward(activations, heads)
                clip_norm(net.grad, c.max_grad_norm)
                self.optimiser.step(net.grad, rate)
        return expected

    def shown(self, q_logits: Array) -> Array:
        """Return the critic that the distiller sees.

        In the shuffled arm every row's actions are permuted at random: each target keeps its entropy, and says
        nothing about which action is good.
        """
        if self.config.arm != "shuffled":
            return q_logits
        order = self.shuffle_rng.permuted(np.tile(np.arange(self.actions), (len(q_logits), 1)), axis=1)
        return np.take_along_axis(q_logits, order[:, :, None], axis=1)

    def train(self, on_iteration: Callable[[Run], None] | None = None, lam_path: Sequence[float] | None = None) -> Run:
        """Run all policy iterations.

        Parameters
        ----------
        on_iteration : callable, optional
            Called after every policy iteration with the run so far.
        lam_path : sequence of float, optional
            λ after each commit, from another run, in place of what the law makes of it here. Default: the law.

        Returns
        -------
        Run
        """
        c = self.config
        run = Run(c, self.actions)
        start = time.perf_counter()
        for i in range(c.iterations):
            rate = c.rate * (1.0 - 0.9 * i / c.iterations)
            roll = self.collect()
            expected = self.learn(roll, rate)
            state = self.term.commit()
            reason = state.reason.lower()
            if lam_path is not None:
                state, reason = self.term.set_lam(lam_path[i]), "replayed"
            self.record(run, roll, expected, state)
            run.reasons[reason] = run.reasons.get(reason, 0) + 1
            run.seconds = time.perf_counter() - start
            if on_iteration is not None:
                on_iteration(run)
        return run

    def record(self, run: Run, roll: Rollout, expected: Array, state: Any) -> None:
        """Append one policy iteration to the run's history."""
        c, finished = self.config, self.runner.returns
        logits = roll.logits[:-1]
        policy = critic.softmax(logits)
        temperature = max(state.tau, state.tau_min) * max(state.value_std, state.min_std)
        best = expected.argmax(axis=-1)
        row = {
            "steps": (len(run.history["steps"]) + 1) * c.batch,
            "episode_return": np.mean(finished[-WINDOW:]) if finished else np.nan,
            "lam": state.lam,
            "kl": state.kl_last,
            "kl_ema": state.kl_ema,
            "value_std": state.value_std,
            "target_entropy": entropy(critic.softmax(expected / temperature)),
            "policy_entropy": entropy(policy),
            "agreement": np.mean(logits.argmax(axis=-1) == best),
            "pi_at_qstar": np.mean(np.take_along_axis(policy, best[..., None], axis=-1)),
        }
        for name in SERIES:
            run.history[name].append(float(row[name]))
        run.episodes = len(finished)


def entropy(p: Array) -> float:
    """Mean entropy of distributions over the last axis, nats."""
    return float(-(p * np.log(np.maximum(p, 1e-30))).sum(axis=-1).mean())


def train(
    config: Config,
    on_iteration: Callable[[Run], None] | None = None,
    lam_path: Sequence[float] | None = None,
) -> Run:
    """Train one agent. See `Agent.train`."""
    return Agent(config).train(on_iteration, lam_path)
