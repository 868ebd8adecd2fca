"""PPO in one file, in the manner of CleanRL, with a critic over returns that teaches the policy.

The critic gives a distribution over returns for every action and learns it from the returns of the actions taken. The
policy learns from the clipped surrogate and, through `DistillLoss`, from what the critic knows of the other actions.
Needs gymnasium. `python cleanrl_ppo.py --updates 100` learns CartPole.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F

from qpi_distill.torch import DistillLoss


@dataclass
class Args:
    env: str = "CartPole-v1"
    envs: int = 4
    steps: int = 128
    updates: int = 100
    epochs: int = 4
    minibatches: int = 4
    learning_rate: float = 1e-3
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy: float = 0.01
    atoms: int = 51
    highest_return: float = 100.0
    lam: float = 0.1
    kl_target: float = 0.05
    seed: int = 1


class Agent(nn.Module):
    """Policy logits [B, A], and critic logits [B, A, Z] over the atoms of the return."""

    def __init__(self, inputs: int, actions: int, atoms: int):
        super().__init__()
        self.actor = self.network(inputs, actions)
        self.critic = self.network(inputs, actions * atoms)
        self.shape = (actions, atoms)

    @staticmethod
    def network(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))

    def forward(self, x):
        return self.actor(x), self.critic(x).unflatten(-1, self.shape)


def state_value(pi_logits, q_logits, support):
    """V = sum over actions of policy times expected return."""
    return (pi_logits.softmax(-1) * (q_logits.softmax(-1) @ support)).sum(-1)


def two_hot(returns, support):
    """Put the mass of each return on its two neighbours, so that the mean is the return."""
    place = (returns.clamp(support[0], support[-1]) - support[0]) / (support[1] - support[0])
    low = place.floor().long().clamp(max=len(support) - 2)
    share = (place - low).unsqueeze(-1)
    rows = F.one_hot(low, len(support)) * (1 - share)
    return rows + F.one_hot(low + 1, len(support)) * share


def train(args: Args) -> None:
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # the networks are too small to share out
    envs = gym.vector.SyncVectorEnv(
        [lambda: gym.wrappers.RecordEpisodeStatistics(gym.make(args.env)) for _ in range(args.envs)],
        autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
    )
    inputs, actions = envs.single_observation_space.shape[0], int(envs.single_action_space.n)
    agent = Agent(inputs, actions, args.atoms)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate)
    support = torch.linspace(0, args.highest_return, args.atoms)
    distill = DistillLoss(support, reduction="mean", lam=args.lam, kl_target=args.kl_target)

    observation = torch.as_tensor(envs.reset(seed=args.seed)[0])
    for update in range(1, args.updates + 1):
        # Collect a batch: [T, N].
        rollout: dict[str, list] = {name: [] for name in ("x", "action", "log_prob", "value", "reward", "done")}
        finished: list[float] = []
        for _ in range(args.steps):
            with torch.no_grad():
                pi_logits, q_logits = agent(observation)
            policy = Categorical(logits=pi_logits)
            action = policy.sample()
            rollout["x"].append(observation)
            rollout["action"].append(action)
            rollout["log_prob"].append(policy.log_prob(action))
            rollout["value"].append(state_value(pi_logits, q_logits, support))
            following, reward, terminated, truncated, info = envs.step(action.numpy())
            rollout["reward"].append(torch.as_tensor(reward, dtype=torch.float32))
            rollout["done"].append(torch.as_tensor(terminated | truncated, dtype=torch.float32))
            observation = torch.as_tensor(following)
            if "final_info" in info:
                finished += info["final_info"]["episode"]["r"][info["_final_info"]].tolist()
        batch = {name: torch.stack(values) for name, values in rollout.items()}

        # Generalised advantage estimation.
        with torch.no_grad():
            next_value = state_value(*agent(observation), support)
        advantages, running = torch.zeros_like(batch["reward"]), torch.zeros(args.envs)
        for t in reversed(range(args.steps)):
            alive = 1 - batch["done"][t]
            error = batch["reward"][t] + args.gamma * next_value * alive - batch["value"][t]
            running = error + args.gamma * args.gae_lambda * alive * running
            advantages[t], next_value = running, batch["value"][t]
        batch["advantage"], batch["return"] = advantages, advantages + batch["value"]
        flat = {name: values.flatten(0, 1) for name, values in batch.items()}

        for _ in range(args.epochs):
            for index in torch.randperm(args.steps * args.envs).chunk(args.minibatches):
                mini = {name: values[index] for name, values in flat.items()}
                pi_logits, q_logits = agent(mini["x"])
                policy = Categorical(logits=pi_logits)
                ratio = (policy.log_prob(mini["action"]) - mini["log_prob"]).exp()
                advantage = (mini["advantage"] - mini["advantage"].mean()) / (mini["advantage"].std() + 1e-8)
                clipped = ratio.clamp(1 - args.clip, 1 + args.clip)
                policy_loss = -torch.min(ratio * advantage, clipped * advantage).mean()
                taken = q_logits[torch.arange(len(index)), mini["action"]]
                critic_loss = F.cross_entropy(taken, two_hot(mini["return"], support))
                loss = policy_loss + critic_loss - args.entropy * policy.entropy().mean()
                loss = loss + distill(pi_logits, q_logits)  # q_logits gets no gradient from it
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        distill.commit()

        episodes = f"{np.mean(finished):6.1f}" if finished else "     -"
        print(f"update {update:4d}  return {episodes}  lam {distill.lam:.4f}  KL {distill.kl:.4f}")
    envs.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in vars(Args()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    train(Args(**vars(parser.parse_args())))
