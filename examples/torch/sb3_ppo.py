"""Stable-Baselines3's PPO with a critic over returns that teaches the policy: a subclass of a few lines.

After PPO's own epochs, one pass over the same rollout trains the critic and distils it into the policy. Needs
stable-baselines3. `python sb3_ppo.py --updates 20`.
"""

from __future__ import annotations

import argparse

import torch
from stable_baselines3 import PPO
from torch import nn
from torch.nn import functional as F

from qpi_distill.torch import DistillLoss


class DistillPPO(PPO):
    """PPO for discrete actions, distilled from a critic over the atoms of `support`.

    Parameters
    ----------
    *args, **kwargs
        As for `PPO`.
    support : Tensor, shape [Z]
        Evenly spaced returns.
    lam, kl_target : float
        Slots of `DistillLoss`.
    """

    def __init__(self, *args, support, lam=0.1, kl_target=0.05, **kwargs):
        self.returns_support, self.distill_slots = support, {"lam": lam, "kl_target": kl_target}
        super().__init__(*args, **kwargs)

    def _setup_model(self):
        super()._setup_model()
        actions, inputs = int(self.action_space.n), self.policy.features_dim
        atoms = len(self.returns_support)
        layers = nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, actions * atoms), nn.Unflatten(-1, (actions, atoms))
        self.critic = nn.Sequential(*layers).to(self.device)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=1e-3)
        self.distill = DistillLoss(self.returns_support, reduction="mean", device=self.device, **self.distill_slots)

    def train(self):
        super().train()
        support = self.distill.support
        gap = support[1] - support[0]
        for data in self.rollout_buffer.get(self.batch_size):
            pi_logits = self.policy.get_distribution(data.observations).distribution.logits
            q_logits = self.critic(self.policy.extract_features(data.observations).detach())
            taken = q_logits[torch.arange(len(q_logits)), data.actions.long().flatten()]
            returns = data.returns.clamp(support[0], support[-1]).unsqueeze(-1)
            goal = (1 - (returns - support).abs() / gap).clamp(min=0)  # on the two neighbours
            loss = F.cross_entropy(taken, goal) + self.distill(pi_logits, q_logits)
            self.policy.optimizer.zero_grad()
            self.critic_optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
            self.critic_optimizer.step()
        self.distill.commit()
        self.logger.record("distill/lam", self.distill.lam.item())
        self.logger.record("distill/kl", self.distill.kl.item())
        print(f"update {self.num_timesteps // self.n_steps}: lam {self.distill.lam:.4f}, KL {self.distill.kl:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=20)
    updates = parser.parse_args().updates
    torch.set_num_threads(1)  # the networks are too small to share out
    agent = DistillPPO(
        "MlpPolicy", "CartPole-v1", support=torch.linspace(0, 100, 51), n_steps=256, seed=1, device="cpu"
    )
    agent.learn(256 * updates)
