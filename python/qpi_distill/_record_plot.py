"""The picture of a flight record. matplotlib is imported when one is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ._figures import COLOURS, GUIDE, STYLE, canvas
from .isv import code_name

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

__all__ = ["draw_records"]


def draw_records(records: Any, path: str | Path) -> None:
    """Write a picture of drained records to `path`."""
    import matplotlib

    x = records["commits"].astype(float)
    with matplotlib.rc_context(STYLE):
        figure = canvas(11, 8)
        panels = figure.subplots(3, 2, sharex=True)
        _curves(panels[0, 0], "λ", x, {"": records["lam"]}, log=True)
        _curves(panels[0, 1], "τ", x, {"": records["tau"]}, log=True)
        kls = {"batch": records["kl_last"], "moving average": records["kl_ema"]}
        _curves(panels[1, 0], "KL(target ‖ policy), nat", x, kls, log=True)
        panels[1, 0].plot(x, records["kl_target"], color=GUIDE, ls="--", lw=1, label="goal")
        panels[1, 0].legend()
        entropies = {
            "target": _measured(records["target_entropy"]),
            "policy": _measured(records["policy_entropy"]),
            "uniform": _measured(records["uniform_entropy"]),
        }
        _curves(panels[1, 1], "Entropy, nat", x, entropies)
        _curves(panels[2, 0], "Rows that prefer the same action", x, {"": _measured(records["agreement"])})
        panels[2, 0].set_ylim(-0.02, 1.02)
        _reasons(panels[2, 1], x, records["reason"])
        for panel in panels[2]:
            panel.set_xlabel("commit")
        figure.savefig(path)


def _measured(values: Any) -> Any:
    return np.where(values < 0, np.nan, values)


def _curves(panel: Any, title: str, x: Any, curves: dict[str, Any], *, log: bool = False) -> None:
    panel.set_title(title)
    shown = {name: y for name, y in curves.items() if np.isfinite(y).any()}
    for (name, y), colour in zip(shown.items(), COLOURS, strict=False):
        panel.plot(x, y, color=colour, lw=1.4, label=name or None)
    if not shown:
        panel.text(0.5, 0.5, "not measured", transform=panel.transAxes, ha="center", va="center", color="#888888")
    if log and any((y > 0).any() for y in shown.values()):
        panel.set_yscale("log", nonpositive="mask")
    if len(shown) > 1:
        panel.legend()


def _reasons(panel: Any, x: Any, codes: Any) -> None:
    panel.set_title("What the law of λ did")
    present = [int(code) for code in np.unique(codes)]
    for row, code in enumerate(present):
        at = x[codes == code]
        panel.scatter(at, np.full(len(at), row), s=6, marker="|", color=COLOURS[row % len(COLOURS)])
    panel.set_yticks(range(len(present)), [code_name("reason", code).replace("_", " ") for code in present])
    panel.set_ylim(-0.6, max(len(present), 1) - 0.4)
