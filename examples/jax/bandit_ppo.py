"""PPO on a contextual bandit whose critic knows more than the advantages say; every update is one compiled program.

A context decides which of four arms pays; the reward is noisy. The critic learns the distribution of the reward of each
arm (C51); the policy learns from PPO's clipped surrogate, and is pulled toward what the critic expects.
"""

from __future__ import annotations

import argparse
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from qpi_distill.jax import State, accumulate, commit, distill_loss, init_state, read_state

ARMS, ATOMS, CONTEXT, HIDDEN = 4, 21, 6, 32
ROWS, EPOCHS, MINIBATCHES = 256, 2, 4
RATE, CLIP = 0.05, 0.2
SUPPORT = jnp.linspace(-3.0, 3.0, ATOMS)


class Batch(NamedTuple):
    context: jax.Array  # [B, CONTEXT]
    arm: jax.Array  # [B]
    log_prob: jax.Array  # [B]
    reward: jax.Array  # [B]


def new_network(key: jax.Array, outputs: int) -> list[jax.Array]:
    first, second = jax.random.split(key)
    return [
        jax.random.normal(first, (CONTEXT, HIDDEN)) / CONTEXT**0.5,
        0.1 * jax.random.normal(second, (HIDDEN, outputs)) / HIDDEN**0.5,
    ]


def network(weights: list[jax.Array], context: jax.Array) -> jax.Array:
    return jnp.tanh(context @ weights[0]) @ weights[1]


def policy(parameters: dict, context: jax.Array) -> jax.Array:
    return network(parameters["policy"], context)


def critic(parameters: dict, context: jax.Array) -> jax.Array:
    return network(parameters["critic"], context).reshape(-1, ARMS, ATOMS)


def play(parameters: dict, task: jax.Array, key: jax.Array) -> Batch:
    """Pull one arm for each of a batch of contexts."""
    for_context, for_arm, for_noise = jax.random.split(key, 3)
    context = jax.random.normal(for_context, (ROWS, CONTEXT))
    logits = policy(parameters, context)
    arm = jax.random.categorical(for_arm, logits)
    log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), arm[:, None], 1)[:, 0]
    paid = jnp.tanh(context @ task)
    reward = jnp.take_along_axis(paid, arm[:, None], 1)[:, 0] + 0.5 * jax.random.normal(for_noise, (ROWS,))
    return Batch(context, arm, log_prob, reward)


def on_atoms(value: jax.Array) -> jax.Array:
    """Return the distribution over the two atoms around each value that has it as its mean."""
    place = (jnp.clip(value, SUPPORT[0], SUPPORT[-1]) - SUPPORT[0]) / (SUPPORT[1] - SUPPORT[0])
    return jnp.maximum(0, 1 - jnp.abs(place[:, None] - jnp.arange(ATOMS)))


def losses(parameters: dict, batch: Batch, state: State) -> tuple[jax.Array, jax.Array]:
    """Return PPO's loss, the critic's and the distillation; and what is to be counted."""
    logits, q_logits = policy(parameters, batch.context), critic(parameters, batch.context)
    advantage = (batch.reward - batch.reward.mean()) / (batch.reward.std() + 1e-6)
    ratio = jnp.exp(jnp.take_along_axis(jax.nn.log_softmax(logits), batch.arm[:, None], 1)[:, 0] - batch.log_prob)
    surrogate = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage).mean()

    taken = jnp.take_along_axis(q_logits, batch.arm[:, None, None], 1)[:, 0]
    critic_loss = -(on_atoms(batch.reward) * jax.nn.log_softmax(taken)).sum(-1).mean()

    pull, record = distill_loss(logits, q_logits, SUPPORT, state, reduction="mean")
    return -surrogate + critic_loss + pull, record


@functools.partial(jax.jit, donate_argnums=(0, 1))
def update(parameters: dict, state: State, task: jax.Array, key: jax.Array) -> tuple[dict, State, jax.Array]:
    """Play, learn from minibatches, commit once. The old parameters and the old state are given away."""
    for_play, for_order = jax.random.split(key)
    batch = play(parameters, task, for_play)

    def learn(carry, rows):
        parameters, state = carry
        part = jax.tree.map(lambda leaf: leaf[rows], batch)
        gradient, record = jax.grad(losses, has_aux=True)(parameters, part, state)
        parameters = jax.tree.map(lambda p, g: p - RATE * g, parameters, gradient)
        return (parameters, accumulate(state, record)), None

    orders = jax.vmap(lambda key: jax.random.permutation(key, ROWS))(jax.random.split(for_order, EPOCHS))
    (parameters, state), _ = jax.lax.scan(learn, (parameters, state), orders.reshape(EPOCHS * MINIBATCHES, -1))
    return parameters, commit(state), batch.reward.mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    keys = jax.random.split(jax.random.key(options.seed), options.updates + 3)
    parameters = {"policy": new_network(keys[0], ARMS), "critic": new_network(keys[1], ARMS * ATOMS)}
    task = jax.random.normal(keys[2], (CONTEXT, ARMS))
    state = init_state(lam=0.1, tau=0.5, kl_target=0.02)
    for number, key in enumerate(keys[3:]):
        parameters, state, reward = update(parameters, state, task, key)
        if number % 20 == 0 or number == options.updates - 1:
            values = read_state(state)
            print(f"update {number:4d}  reward {reward:6.3f}  lam {values.lam:.4f}  KL {values.kl_ema:.4f}")


if __name__ == "__main__":
    main()
