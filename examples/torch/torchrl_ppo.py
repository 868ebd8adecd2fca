"""TorchRL's ClipPPOLoss with a critic over returns that teaches the policy: two more terms of the loss.

Needs torchrl, tensordict and gymnasium. `python torchrl_ppo.py --updates 50`.
"""

from __future__ import annotations

import argparse

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torch.nn import functional as F
from torchrl.envs import GymEnv
from torchrl.modules import OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from qpi_distill.torch import DistillLoss

ATOMS, STEPS, EPOCHS, MINIBATCH = 51, 256, 4, 64


class Distilled(nn.Module):
    """A TorchRL loss module and what a critic over returns adds to it.

    Parameters
    ----------
    loss : LossModule
        Gives the terms of PPO.
    actor, critic : nn.Module
        From observations to logits of the policy [B, A] and of the critic [B, A, Z].
    distill : DistillLoss
        Holds the support.
    """

    def __init__(self, loss, actor, critic, distill):
        super().__init__()
        self.loss, self.actor, self.critic, self.distill = loss, actor, critic, distill

    def forward(self, data):
        out = self.loss(data)
        support = self.distill.support
        pi_logits, q_logits = self.actor(data["observation"]), self.critic(data["observation"])
        taken = (q_logits * data["action"].unsqueeze(-1)).sum(-2)
        returns = data["value_target"].clamp(support[0], support[-1])
        goal = (1 - (returns - support).abs() / (support[1] - support[0])).clamp(min=0)  # on the two neighbours
        out["loss_returns"] = F.cross_entropy(taken, goal)
        out["loss_distill"] = self.distill(pi_logits, q_logits)
        return out


def network(inputs, *outputs):
    layers = [nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, torch.Size(outputs).numel())]
    return nn.Sequential(*layers, nn.Unflatten(-1, outputs)) if len(outputs) > 1 else nn.Sequential(*layers)


def train(updates):
    torch.manual_seed(1)
    torch.set_num_threads(1)  # the networks are too small to share out
    env = GymEnv("CartPole-v1")
    env.set_seed(1)
    inputs, actions = env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1]
    net, critic = network(inputs, actions), network(inputs, actions, ATOMS)
    module = TensorDictModule(net, in_keys=["observation"], out_keys=["logits"])
    actor = ProbabilisticActor(
        module, in_keys=["logits"], spec=env.action_spec, distribution_class=OneHotCategorical, return_log_prob=True
    )
    value = ValueOperator(network(inputs, 1), in_keys=["observation"])
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=value)
    distill = DistillLoss(torch.linspace(0, 100, ATOMS), reduction="mean", lam=0.1, kl_target=0.05)
    loss_of = Distilled(ClipPPOLoss(actor, value), net, critic, distill)
    parameters = list(dict.fromkeys([*net.parameters(), *value.parameters(), *critic.parameters()]))
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    for update in range(1, updates + 1):
        with torch.no_grad():
            data = env.rollout(STEPS, actor, break_when_any_done=False)
            advantage(data)
        for _ in range(EPOCHS):
            for index in torch.randperm(STEPS).split(MINIBATCH):
                out = loss_of(data[index])
                optimizer.zero_grad()
                sum(term for name, term in out.items() if name.startswith("loss_")).backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                optimizer.step()
        distill.commit()
        episodes = max(int(data["next", "done"].sum()), 1)
        print(f"update {update}: return {STEPS / episodes:.1f}, lam {distill.lam:.4f}, KL {distill.kl:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=50)
    train(parser.parse_args().updates)
