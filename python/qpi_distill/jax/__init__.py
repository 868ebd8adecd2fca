"""The distillation step for JAX: a loss with a custom gradient, and a state that is threaded through pure functions.

    from qpi_distill.jax import accumulate, commit, distill_loss, init_state

    state = init_state(kl_target=0.05)

    def loss(parameters, batch, state):
        ...
        pull, record = distill_loss(pi_logits, q_logits, support, state, reduction="mean")
        return ppo_loss + pull, record

    (_, record), gradient = jax.value_and_grad(loss, has_aux=True)(parameters, batch, state)
    state = accumulate(state, record)
    ...
    state = commit(state)  # once per policy iteration

Nothing imports this package but whoever names it.
"""

try:
    import jax as _jax
except ImportError as error:
    raise ImportError("qpi_distill.jax needs JAX: pip install 'qpi-distill[jax]'") from error

if _jax.__version_info__ < (0, 10):
    raise ImportError(f"qpi_distill.jax needs JAX 0.10 or later, found {_jax.__version__}")

from .functional import accumulate, commit, discard, distill_grad, distill_loss
from .options import Choices
from .state import State, init_state, read_state, slot, write_state

__all__ = [
    "Choices",
    "State",
    "accumulate",
    "commit",
    "discard",
    "distill_grad",
    "distill_loss",
    "init_state",
    "read_state",
    "slot",
    "write_state",
]
