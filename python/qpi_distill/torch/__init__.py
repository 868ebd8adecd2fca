"""The distillation step for PyTorch: a loss with autograd, and a module that keeps the state.

    from qpi_distill.torch import DistillLoss

    distill = DistillLoss(torch.linspace(-10, 10, 21), reduction="mean", kl_target=0.05)
    loss = ppo_loss + distill(pi_logits, q_logits)
    loss.backward()
    ...
    distill.commit()  # once per policy iteration

Nothing imports this package but whoever names it.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("qpi_distill.torch needs PyTorch: pip install 'qpi-distill[torch]'") from error

from .._options import Choices
from .functional import collect, commit, distill_loss
from .module import DistillLoss
from .state import State, new_state, read_state

__all__ = ["Choices", "DistillLoss", "State", "collect", "commit", "distill_loss", "new_state", "read_state"]
