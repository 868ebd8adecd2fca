"""What a run or a comparison says in words and numbers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from . import terminal
from .agent import Run
from .config import ARMS

#: Quantities of the summary, as means over the last tenth of a run: name in the history, and what it is called.
SUMMARY = {
    "episode_return": "return",
    "lam": "λ",
    "kl_ema": "KL EMA",
    "target_entropy": "target entropy",
    "policy_entropy": "policy entropy",
    "agreement": "agreement",
}

CAVEAT = (
    "This shows the loop running. It proves nothing about benefit: {seeds} seeds of one environment, numbers chosen by "
    "hand, one set of them for all arms."
)

ARM_NOTES = {
    "ppo": "PPO alone: the same network and critic, λ = 0",
    "distilled": "the policy is also pulled toward softmax(E_Q / τ), with the λ of the control law",
    "shuffled": "likewise, but toward Q with each state's actions permuted at random: the same entropy, no "
    "information; it replays the λ of the distilled run of its seed",
}


def number(value: float, digits: int = 3) -> str:
    """Return a number as text, a dash where there is none."""
    return f"{value:.{digits}f}" if math.isfinite(value) else "-"


def summary(run: Run) -> dict[str, Any]:
    """Return the outcome of a run as plain values."""
    return {
        "arm": run.config.arm,
        "seed": run.config.seed,
        "steps": int(run.history["steps"][-1]),
        "seconds": run.seconds,
        "episodes": run.episodes,
        **{name: run.final(name) for name in SUMMARY},
        "first_return": run.first_return,
        "law": dict(run.reasons),
    }


def law(run: Run) -> str:
    """Return what the control law did, in words."""
    parts = sorted(run.reasons.items(), key=lambda item: -item[1])
    return ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in parts)


def show_run(run: Run) -> None:
    """Print the summary of one run."""
    c, h = run.config, run.history
    steps = int(h["steps"][-1])
    terminal.heading(f"\n{c.env}, seed {c.seed}, on {c.device}")
    rows = [
        (
            "return",
            f"{number(run.final('episode_return'), 2)} (at the start {number(run.first_return, 2)})",
        ),
        (
            "λ",
            f"{number(run.final('lam'))} (start {number(c.lam)}, lowest {number(min(h['lam']))}, "
            f"highest {number(max(h['lam']))})",
        ),
        (
            "KL EMA",
            f"{number(run.final('kl_ema'))} (target {number(c.kl_target)}, dead zone "
            f"{number(c.kl_target / c.kl_tolerance)} to {number(c.kl_target * c.kl_tolerance)})",
        ),
        (
            "target entropy",
            f"{number(run.final('target_entropy'))} nat (policy "
            f"{number(run.final('policy_entropy'))}, uniform {number(math.log(run.actions))})",
        ),
        (
            "agreement",
            f"{run.final('agreement'):.0%} of states with argmax π = argmax Q (chance {1 / run.actions:.0%})",
        ),
        ("control law", f"{len(h['steps'])} commits: {law(run)}"),
        (
            "time",
            f"{run.seconds:.1f} s for {steps:,} steps and {run.episodes:,} episodes, "
            f"{steps / run.seconds:,.0f} steps/s",
        ),
    ]
    terminal.table(["", "last tenth of the run"], rows)


def show_comparison(runs: Sequence[Run]) -> None:
    """Print every seed of every arm, the arms' means and ranges, and what that does not prove."""
    first = runs[0].config
    seeds = sorted({run.config.seed for run in runs})
    terminal.heading(f"\n{first.env}, {int(runs[0].history['steps'][-1]):,} steps a run, on {first.device}")
    by_key = {(run.config.arm, run.config.seed): run for run in runs}

    def cells(values: Sequence[float], digits: int) -> list[str]:
        mean = sum(values) / len(values)
        return [
            *(number(v, digits) for v in values),
            number(mean, digits),
            f"{number(min(values), digits)} to {number(max(values), digits)}",
        ]

    for name, digits in (("episode_return", 2), ("lam", 3), ("kl_ema", 3), ("agreement", 3)):
        rows = [[arm, *cells([by_key[arm, seed].final(name) for seed in seeds], digits)] for arm in ARMS]
        columns = [SUMMARY[name], *(f"seed {seed}" for seed in seeds), "mean", "range"]
        terminal.table(columns, rows, right=range(1, len(columns)))
        print()
    print("Means over the last tenth of each run.")
    for arm in ARMS:
        print(f"  {arm}: {ARM_NOTES[arm]}")
    print(CAVEAT.format(seeds=len(seeds)))


def as_json(kind: str, runs: Sequence[Run], picture: str | None) -> dict[str, Any]:
    """Return runs as one JSON-ready object; what is not a finite number becomes null."""
    return {
        "kind": kind,
        "picture": picture,
        "note": CAVEAT.format(seeds=len({run.config.seed for run in runs})),
        "runs": [
            {
                "config": dataclasses.asdict(run.config),
                "summary": finite(summary(run)),
                "history": finite(run.history),
            }
            for run in runs
        ],
    }


def finite(value: Any) -> Any:
    """Replace every number that JSON cannot hold by None."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
