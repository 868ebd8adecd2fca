"""The step in Triton: one kernel for the gradient and a partial KL of each program, a small one for the rest.

No atomics: a program adds its tiles in order and stores one number, and the second kernel adds those in order, so that
a grid gives the same bits each time. The tile sizes and the grid are tuned for each case (`TUNINGS`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from . import LAW, STATE

LOG2_E = tl.constexpr(math.log2(math.e))
TAU = tl.constexpr(STATE["tau"])
KL_TARGET = tl.constexpr(STATE["kl_target"])
KL_ALPHA = tl.constexpr(STATE["kl_alpha"])
LAM_MIN = tl.constexpr(LAW["lam_min"])
LAM_MAX = tl.constexpr(LAW["lam_max"])
TOLERANCE = tl.constexpr(LAW["kl_tolerance"])
LAM_UP = tl.constexpr(LAW["lam_up"])
LAM_DOWN = tl.constexpr(LAW["lam_down"])


class Tuning(NamedTuple):
    """One way to run the first kernel."""

    rows: int  # of a tile
    atoms: int  # that are loaded at once; fewer than there are: the softmax is taken online
    warps: int
    stages: int  # of the loop over tiles
    programs: int  # per multiprocessor, at most; beyond them a program takes several tiles


TUNINGS = (
    Tuning(rows=16, atoms=32, warps=8, stages=1, programs=32),
    Tuning(rows=8, atoms=32, warps=4, stages=1, programs=64),
    Tuning(rows=4, atoms=32, warps=4, stages=1, programs=64),
    Tuning(rows=1, atoms=32, warps=1, stages=1, programs=64),
    Tuning(rows=32, atoms=8, warps=4, stages=1, programs=64),
    Tuning(rows=16, atoms=8, warps=4, stages=1, programs=64),
    Tuning(rows=8, atoms=32, warps=4, stages=1, programs=8),
    Tuning(rows=8, atoms=32, warps=4, stages=3, programs=4),
)


@triton.jit
def rows_kernel(
    q,
    pi,
    support,
    grad,
    lam,
    partials,
    rows,
    ACTIONS: tl.constexpr,
    ATOMS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_ACTIONS: tl.constexpr,
    TILE_ATOMS: tl.constexpr,
    STAGES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Gradient of q [rows, ACTIONS, ATOMS], pi and grad [rows, ACTIONS]; the KL of a program's rows in partials."""
    if OVERLAP:
        gdc_launch_dependents()
    program = tl.program_id(0)
    action = tl.arange(0, TILE_ACTIONS)
    atom = tl.arange(0, TILE_ATOMS)
    in_tile = tl.arange(0, TILE_ROWS)
    pair = in_tile[:, None] * ACTIONS + action[None, :]
    scale = tl.load(lam) / rows
    kl = tl.zeros([TILE_ROWS], tl.float32)
    for tile in tl.range(program, tl.cdiv(rows, TILE_ROWS), tl.num_programs(0), num_stages=STAGES):
        first = tl.full([], TILE_ROWS, tl.int64) * tile
        here = (first + in_tile < rows)[:, None] & (action < ACTIONS)[None, :]
        q_tile = q + first * (ACTIONS * ATOMS) + pair[:, :, None] * ATOMS

        # Softmax over the atoms, to base 2: largest logit, sum of the weights, weighted sum of the support.
        top = tl.full([TILE_ROWS, TILE_ACTIONS], float("-inf"), tl.float32)
        norm = tl.zeros([TILE_ROWS, TILE_ACTIONS], tl.float32)
        value = tl.zeros([TILE_ROWS, TILE_ACTIONS], tl.float32)
        for start in tl.static_range(0, ATOMS, TILE_ATOMS):
            within = start + atom < ATOMS
            mask = here[:, :, None] & within[None, None, :]
            logits = tl.load(q_tile + (start + atom)[None, None, :], mask=mask, other=float("-inf")).to(tl.float32)
            points = tl.load(support + start + atom, mask=within, other=0.0)
            higher = tl.maximum(top, tl.max(logits, 2) * LOG2_E)
            weights = tl.exp2(logits * LOG2_E - higher[:, :, None])
            shrink = tl.exp2(top - higher)
            norm = norm * shrink + tl.sum(weights, 2)
            value = value * shrink + tl.sum(weights * points[None, None, :], 2)
            top = higher

        # Outside the tile everything above is NaN; it goes no further.
        target_logits = tl.where(here, value / norm / TAU, float("-inf"))
        policy_logits = tl.load(pi + first * ACTIONS + pair, mask=here, other=float("-inf")).to(tl.float32)
        shifted_target = target_logits - tl.max(target_logits, 1)[:, None]
        shifted_policy = policy_logits - tl.max(policy_logits, 1)[:, None]
        target = tl.exp(shifted_target)
        policy = tl.exp(shifted_policy)
        target_norm = tl.sum(target, 1)
        policy_norm = tl.sum(policy, 1)
        target = target / target_norm[:, None]
        policy = policy / policy_norm[:, None]
        slope = shifted_target - shifted_policy + (tl.log(policy_norm) - tl.log(target_norm))[:, None]
        kl += tl.sum(tl.where(here, target * slope, 0.0), 1)

        grad_tile = grad + first * ACTIONS + pair
        before = tl.load(grad_tile, mask=here, other=0.0).to(tl.float32)
        tl.store(grad_tile, (before + scale * (policy - target)).to(grad.dtype.element_ty), mask=here)
    tl.store(partials + program, tl.sum(kl))


@triton.jit
def finish_kernel(lam, kl_ema, observations, partials, count, rows, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    """Batch mean, moving average, control law."""
    if OVERLAP:
        gdc_wait()
    lane = tl.arange(0, BLOCK)
    sums = tl.zeros([BLOCK], tl.float32)
    for start in range(0, count, BLOCK):
        sums += tl.load(partials + start + lane, mask=start + lane < count, other=0.0)
    kl = tl.sum(sums) / rows
    seen = tl.load(observations)
    before = tl.load(kl_ema)
    average = tl.where(seen > 0, before + KL_ALPHA * (kl - before), kl)
    clamped = tl.minimum(tl.maximum(tl.load(lam), LAM_MIN), LAM_MAX)
    raised = tl.minimum(clamped * LAM_UP, LAM_MAX)
    lowered = tl.maximum(clamped * LAM_DOWN, LAM_MIN)
    stepped = tl.where(average < KL_TARGET / TOLERANCE, lowered, clamped)
    stepped = tl.where(average > KL_TARGET * TOLERANCE, raised, stepped)
    tl.store(lam, stepped)
    tl.store(kl_ema, average)
    tl.store(observations, seen + 1)


def power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


class Step:
    """The step with one tuning, for batches of `rows` rows.

    Parameters
    ----------
    rows, actions, atoms : int
        The shape.
    device : str
        Of the tensors.
    tuning : Tuning
        How the first kernel runs.
    multiprocessors : int
        Of the GPU.
    overlap : bool
        Whether the second kernel is launched while the first one ends (programmatic dependent launch).
    """

    def __init__(
        self, rows: int, actions: int, atoms: int, device: str, tuning: Tuning, multiprocessors: int, overlap: bool
    ):
        tiles = -(-rows // tuning.rows)
        self.programs = min(tiles, tuning.programs * multiprocessors)
        self.partials = torch.zeros(self.programs, device=device)
        self.rows, self.overlap = rows, overlap
        self.options = {
            "ACTIONS": actions,
            "ATOMS": atoms,
            "TILE_ROWS": tuning.rows,
            "TILE_ACTIONS": power_of_two(actions),
            "TILE_ATOMS": min(tuning.atoms, power_of_two(atoms)),
            "STAGES": tuning.stages,
            "OVERLAP": overlap,
            "num_warps": tuning.warps,
        }
        self.finish = {"BLOCK": min(power_of_two(self.programs), 4096), "OVERLAP": overlap}
        self.finish |= {"num_warps": 8 if self.programs > 256 else 1}
        if overlap:
            self.finish["launch_pdl"] = True

    def __call__(self, q, pi, support, grad, lam, kl_ema, observations) -> None:
        """One step: the tensors as in `torch_step.step`; logits and gradient may be of half precision."""
        rows_kernel[(self.programs,)](q, pi, support, grad, lam, self.partials, self.rows, **self.options)
        finish_kernel[(1,)](lam, kl_ema, observations, self.partials, self.programs, self.rows, **self.finish)
