"""The pictures. matplotlib is imported when one is drawn."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._figures import GUIDE, STYLE
from . import report
from .agent import Run
from .config import ARMS, Config

#: Colours that colour-blind readers can tell apart.
COLOUR = {"ppo": "#7a7a7a", "distilled": "#0072b2", "shuffled": "#d55e00"}
SECOND = "#cc79a7"


def available() -> None:
    """Raise ImportError if matplotlib cannot be imported."""
    import matplotlib.figure  # noqa: F401


def thousands(axes: Any) -> None:
    """Label the x axis in environment steps."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel("environment steps")


def plain_log(axes: Any) -> None:
    """Label a logarithmic y axis with plain numbers at 1, 2 and 5 of every decade."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def guide(axes: Any, level: float, text: str) -> None:
    """Draw a labelled horizontal line."""
    axes.axhline(level, color=GUIDE, linewidth=1, linestyle=(0, (4, 3)))
    axes.annotate(
        text,
        (1, level),
        xycoords=("axes fraction", "data"),
        xytext=(-2, 3),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=8.5,
        color=GUIDE,
    )


def frame(axes: Sequence[Any], config: Config, actions: int) -> None:
    """Write titles, guides and limits of the five panels."""
    returns, lam, kl, entropy, agreement = axes
    returns.set_title("Return, mean of the last 100 episodes")
    lam.set_title("λ, weight of the distillation term")
    lam.set_ylim(0, 1.12 * config.lam_max)
    guide(lam, config.lam_max, "ceiling")
    guide(lam, config.lam_min, "floor")
    kl.set_title("KL(target ‖ π), moving average, nat")
    kl.set_yscale("log")
    plain_log(kl)
    kl.axhspan(
        config.kl_target / config.kl_tolerance,
        config.kl_target * config.kl_tolerance,
        color="#0072b2",
        alpha=0.09,
        lw=0,
    )
    guide(kl, config.kl_target, "target and dead zone")
    entropy.set_title("Entropy, nat")
    entropy.set_ylim(0, 1.15 * math.log(actions))
    guide(entropy, math.log(actions), "uniform")
    agreement.set_title("Agreement: argmax π = argmax Q")
    agreement.set_ylim(0, 1.04)
    agreement.yaxis.set_major_formatter("{x:.0%}")
    guide(agreement, 1 / actions, "chance")
    for panel in axes:
        thousands(panel)


def smooth(values: Sequence[float]) -> np.ndarray:
    """Return the centred mean over about 3 % of a series."""
    x = np.asarray(values, float)
    half = max(1, round(0.015 * len(x)))
    return np.array([x[max(0, i - half) : i + half + 1].mean() for i in range(len(x))])


def figure(title: str, subtitle: str) -> tuple[Any, Any]:
    """Return an empty page of 2 x 3 panels."""
    from matplotlib.figure import Figure

    page = Figure(figsize=(13, 7.4), dpi=120, layout="constrained", facecolor="white")
    page.get_layout_engine().set(rect=(0.005, 0.04, 0.99, 0.865), w_pad=0.12, h_pad=0.1)
    panels = page.subplots(2, 3)
    page.text(0.012, 0.975, title, fontsize=15, fontweight="bold", va="top")
    page.text(0.012, 0.935, subtitle, fontsize=10, color="#555555", va="top")
    return page, panels


def draw_run(run: Run, path: Path) -> None:
    """Write the picture of one run to `path`."""
    import matplotlib

    c, h = run.config, run.history
    x, main = h["steps"], COLOUR["distilled"]
    with matplotlib.rc_context(STYLE):
        page, panels = figure(
            f"{c.env}: PPO with a policy distilled from its C51 critic",
            f"seed {c.seed}, {int(x[-1]):,} steps, {len(x)} policy iterations, device {c.device}",
        )
        axes = list(panels.flat)
        returns, lam, kl, entropy, agreement, card = axes
        frame(axes[:5], c, run.actions)
        returns.plot(x, h["episode_return"], color=main, lw=2)
        lam.plot(x, h["lam"], color=main, lw=2)
        kl.plot(x, h["kl"], color=main, lw=0.8, alpha=0.35, label="each iteration")
        kl.plot(x, h["kl_ema"], color=main, lw=2, label="moving average")
        kl.legend(loc="best")
        for name, colour, label in (("target_entropy", main, "target"), ("policy_entropy", SECOND, "policy")):
            entropy.plot(x, h[name], color=colour, lw=0.8, alpha=0.3)
            entropy.plot(x, smooth(h[name]), color=colour, lw=2, label=label)
        entropy.legend(loc="upper right", bbox_to_anchor=(1, 0.88), ncols=2)
        agreement.plot(x, h["agreement"], color=main, lw=0.8, alpha=0.35)
        agreement.plot(x, smooth(h["agreement"]), color=main, lw=2)
        write_card(card, run)
        page.text(
            0.012, 0.012, "One run shows the loop, not what distillation is worth.", fontsize=9.5, color="#555555"
        )
        page.savefig(path)


def write_card(axes: Any, run: Run) -> None:
    """Fill a panel with the outcome in words."""
    c, h = run.config, run.history
    n = report.number
    axes.set_axis_off()
    axes.set_title("Last tenth of the run")
    lines = [
        ("return", f"{n(run.final('episode_return'), 2)}   (at the start {n(run.first_return, 2)})"),
        ("λ", f"{n(run.final('lam'))}   ({n(min(h['lam']))} … {n(max(h['lam']))})"),
        ("KL EMA", f"{n(run.final('kl_ema'))}   (target {c.kl_target:g})"),
        ("entropy", f"target {n(run.final('target_entropy'))}, policy {n(run.final('policy_entropy'))}"),
        ("agreement", f"{run.final('agreement'):.0%}   (chance {1 / run.actions:.0%})"),
        ("std of Q", f"{n(run.final('value_std'))} within a state;  τ = {c.tau:g} of it"),
        ("time", f"{run.seconds:.1f} s,  {h['steps'][-1] / run.seconds:,.0f} steps/s"),
        # no-break spaces keep each count with its word
        ("law", textwrap.fill(report.law(run).replace(" ", "\u00a0").replace(",\u00a0", ", "), 40)),
    ]
    for i, (name, text) in enumerate(lines):
        y = 0.96 - 0.115 * i
        for x, entry, colour in ((0.0, name, "#777777"), (0.25, text, "black")):
            # aligned by the first line; a long text must not make the panel narrower
            axes.text(x, y, entry, transform=axes.transAxes, color=colour, va="top").set_in_layout(False)


def draw_comparison(runs: Sequence[Run], path: Path) -> None:
    """Write the picture of a comparison to `path`: every seed thin, the arms' means thick."""
    import matplotlib
    from matplotlib.lines import Line2D

    c, actions = runs[0].config, runs[0].actions
    seeds = sorted({run.config.seed for run in runs})
    arms = {arm: [run for run in runs if run.config.arm == arm] for arm in ARMS}
    with matplotlib.rc_context(STYLE):
        page, panels = figure(
            f"{c.env}: three arms, {len(seeds)} seeds each",
            "Thin: a seed. Thick: the mean of the seeds. The shuffled arm replays the λ of its seed's distilled run.",
        )
        axes = list(panels.flat)
        frame(axes[:5], c, actions)
        axes[3].set_title("Entropy of the target, nat")
        for arm, members in arms.items():
            x = members[0].history["steps"]
            for panel, name in zip(
                axes[:5], ("episode_return", "lam", "kl_ema", "target_entropy", "agreement"), strict=True
            ):
                noisy = name in ("target_entropy", "agreement")
                curves = np.array([smooth(m.history[name]) if noisy else m.history[name] for m in members])
                # the replayed λ lies on the one it came from: dashes let both be seen
                dash = (0, (2, 2)) if (arm, name) == ("shuffled", "lam") else "-"
                for curve in curves:
                    panel.plot(x, curve, color=COLOUR[arm], lw=0.8, alpha=0.4, ls=dash)
                panel.plot(x, curves.mean(axis=0), color=COLOUR[arm], lw=2.4, ls=dash)
        strip(axes[5], arms)
        page.legend(
            handles=[Line2D([], [], color=COLOUR[arm], lw=3, label=arm) for arm in ARMS],
            loc="upper right",
            bbox_to_anchor=(0.995, 0.985),
            ncols=3,
            fontsize=11,
        )
        page.text(0.012, 0.012, report.CAVEAT.format(seeds=len(seeds)), fontsize=9.5, color="#555555")
        page.savefig(path)


def strip(axes: Any, arms: dict[str, list[Run]]) -> None:
    """Draw the final return of every seed as a dot."""
    axes.set_title("Return of each seed, last tenth of the run")
    for i, (arm, members) in enumerate(arms.items()):
        finals = [m.final("episode_return") for m in members]
        spread = np.linspace(-0.16, 0.16, len(finals)) if len(finals) > 1 else [0.0]
        axes.scatter(i + np.asarray(spread), finals, s=46, color=COLOUR[arm], edgecolor="white", zorder=3)
        axes.hlines(np.mean(finals), i - 0.28, i + 0.28, color=COLOUR[arm], lw=2.4)
        axes.annotate(
            f"{np.mean(finals):.2f}",
            (i + 0.3, np.mean(finals)),
            va="center",
            ha="left",
            color=COLOUR[arm],
            fontweight="bold",
        )
    if axes.get_ylim()[0] > 0:
        axes.set_ylim(bottom=0)
    axes.set_xticks(range(len(arms)), list(arms))
    axes.set_xlim(-0.5, len(arms) - 0.35)
    axes.grid(axis="x", visible=False)
