"""The picture of a study: lam, KL and agreement over the steps, every seed thin and their mean thick."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._figures import COLOURS, GUIDE, STYLE, canvas

if TYPE_CHECKING:
    from pathlib import Path

    from .run import Outcome
    from .studies import Study

__all__ = ["draw_study"]

_POINTS = 400  # of a curve


def draw_study(study: Study, runs: list[tuple[str, Outcome]], path: str | Path) -> None:
    """Write the picture of a study to `path`."""
    import matplotlib

    plants = list(study.plants)
    with matplotlib.rc_context(STYLE):
        figure = canvas(13, 0.8 + 2.9 * len(plants))
        figure.suptitle(study.title, fontweight="bold", x=0.01, ha="left")
        panels = figure.subplots(len(plants), 3, squeeze=False, sharex=True)
        for (on_lam, on_kl, on_agreement), plant in zip(panels, plants, strict=True):
            where = "" if len(plants) == 1 else f" ({plant})"
            on_lam.set_title(f"λ{where}")
            on_kl.set_title("KL of the whole batch, nat")
            on_agreement.set_title("Rows that prefer the same action")
            outcomes = [outcome for name, outcome in runs if name == plant]
            for outcome, colour in zip(outcomes, _colours(len(outcomes)), strict=True):
                name = outcome.arm.name
                lam = outcome.records["lam"].astype(np.float64)
                # λ as it is, the others smoothed: a batch is a small sample.
                _curve(on_lam, lam, colour, name, smooth=False)
                _curve(on_kl, outcome.kl, colour, name, smooth=True)
                _curve(on_agreement, outcome.agreement, colour, name, smooth=True)
            goal = float(outcomes[0].records["kl_target"][0, 0])
            on_kl.axhline(goal, color=GUIDE, ls="--", lw=1)
            for panel in (on_lam, on_kl):
                panel.set_yscale("log", nonpositive="mask")
            on_agreement.set_ylim(-0.02, 1.02)
        panels[0, 0].legend(fontsize=8)
        for panel in panels[-1]:
            panel.set_xlabel("step")
        figure.savefig(path)


def _colours(count: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(count)]


def _curve(panel: Any, values: Any, colour: str, name: str, *, smooth: bool) -> None:
    steps = values.shape[1]
    stride = max(1, steps // _POINTS)
    kept = steps // stride * stride
    blocks = values[:, :kept].reshape(len(values), -1, stride)
    x = np.arange(blocks.shape[1]) * stride
    y = blocks.mean(-1) if smooth else blocks[..., 0]
    for seed in y:
        panel.plot(x, seed, color=colour, lw=0.7, alpha=0.35)
    panel.plot(
        x, np.exp(np.log(y).mean(0)) if not smooth and (y > 0).all() else y.mean(0), color=colour, lw=2, label=name
    )
