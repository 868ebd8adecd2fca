"""What distillation adds to a PPO update in torch: the lines marked with +."""

import torch

from qpi_distill.torch import DistillLoss  # +

ACTIONS, ATOMS, BATCH = 4, 21, 64
support = torch.linspace(-10, 10, ATOMS)
policy = torch.nn.Linear(8, ACTIONS)
critic = torch.nn.Linear(8, ACTIONS * ATOMS)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
distill = DistillLoss(support, reduction="mean", lam=0.5, kl_target=0.05)  # +

observations = torch.randn(BATCH, 8)
actions = torch.randint(ACTIONS, (BATCH,))
advantages = torch.randn(BATCH)

for iteration in range(2):
    for _minibatch in range(2):
        pi_logits = policy(observations)
        q_logits = critic(observations).view(BATCH, ACTIONS, ATOMS)
        chosen = torch.distributions.Categorical(logits=pi_logits).log_prob(actions)
        loss = -(chosen * advantages).mean()  # your surrogate
        loss = loss + distill(pi_logits, q_logits)  # +
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    distill.commit()  # + once per policy iteration: KL average, lam and tau
    print(f"iteration {iteration}: lam {distill.lam:.4f}, KL {distill.kl:.4f}")
