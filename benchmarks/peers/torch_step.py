"""The step in PyTorch, for eager execution and for torch.compile. Nothing in it waits for the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from . import LAW, STATE


class State:
    """What the loop moves, as tensors of one element."""

    def __init__(self, device: str):
        self.lam = torch.tensor(STATE["lam"], device=device)
        self.kl_ema = torch.tensor(0.0, device=device)
        self.observations = torch.tensor(0, device=device)

    @property
    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.lam, self.kl_ema, self.observations


def step(q, pi, support, grad, lam, kl_ema, observations) -> None:
    """One step: q [B, A, Z], pi and grad [B, A], support [Z], all float32; the rest as in `State`."""
    values = (torch.softmax(q, -1) * support).sum(-1)
    log_target = torch.log_softmax(values / STATE["tau"], -1)
    log_policy = torch.log_softmax(pi, -1)
    target = log_target.exp()
    grad.add_(lam / q.shape[0] * (log_policy.exp() - target))
    kl = (target * (log_target - log_policy)).sum(-1).mean()
    average = torch.where(observations > 0, kl_ema + STATE["kl_alpha"] * (kl - kl_ema), kl)
    clamped = lam.clamp(LAW["lam_min"], LAW["lam_max"])
    raised = (clamped * LAW["lam_up"]).clamp(max=LAW["lam_max"])
    lowered = (clamped * LAW["lam_down"]).clamp(min=LAW["lam_min"])
    above = average > STATE["kl_target"] * LAW["kl_tolerance"]
    below = average < STATE["kl_target"] / LAW["kl_tolerance"]
    lam.copy_(torch.where(above, raised, torch.where(below, lowered, clamped)))
    kl_ema.copy_(average)
    observations.add_(1)


@contextmanager
def compiled() -> Iterator[Callable[..., None]]:
    """The step through torch.compile, which forgets the shapes and the code that it has seen before."""
    from torch._inductor import config, utils

    fresh_cache = getattr(utils, "fresh_cache", None) or utils.fresh_inductor_cache
    # Precompiled headers pay only where the next compilation finds them.
    once = {name: False for name in ("cpp_cache_precompile_headers",) if hasattr(config, name)}
    torch._dynamo.reset()
    with fresh_cache(), config.patch(once):
        yield torch.compile(step, dynamic=False, fullgraph=True)
    torch._dynamo.reset()
