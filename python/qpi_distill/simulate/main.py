"""What `qpi-distill simulate` does."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..demo import terminal
from .plots import draw_study
from .run import Outcome, simulate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .studies import Study

__all__ = ["SimulationError", "main", "run_study"]

_COLUMNS = {
    "kl": "KL",
    "in_band": "within ×/÷1.5",
    "kl_seen": "KL seen",
    "lam": "λ end",
    "log_std": "std of ln λ",
    "travel": "mean |Δ ln λ|",
    "agreement": "agree end",
}


class SimulationError(Exception):
    """What cannot be done here; the message says why."""


def main(
    study: Study,
    *,
    processes: int = 2,
    picture: Path | None = None,
    needed: bool = False,
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Run a study and show what came of it.

    Parameters
    ----------
    study : Study
    processes : int
        Runs at a time.
    picture : pathlib.Path, optional
        Where the PNG goes. Default: none is drawn.
    needed : bool
        Whether a picture that cannot be drawn for want of matplotlib is an error.
    as_json : bool
        Print one JSON object to stdout instead of the table.
    quiet : bool
        Show no progress.

    Raises
    ------
    SimulationError
        matplotlib is needed and missing, or the picture cannot be written.
    """
    if picture is not None:
        try:
            import matplotlib  # noqa: F401
        except ImportError as error:
            if needed:
                raise SimulationError(f'--out needs matplotlib ({error}): pip install "qpi-distill[plot]"') from error
            picture = None
    runs = list(run_study(study, processes, quiet=quiet))
    if picture is not None:
        try:
            draw_study(study, runs, picture)
        except OSError as error:
            raise SimulationError(f"--out {picture}: {error.strerror or error}") from error
    if as_json:
        print(json.dumps(_as_json(study, runs, picture), allow_nan=False))
        return
    _show(study, runs)
    if picture is not None:
        print(f"\nPicture: {picture}")


def run_study(study: Study, processes: int = 1, *, quiet: bool = True) -> Iterator[tuple[str, Outcome]]:
    """Yield (name of the plant, outcome) for every plant and arm of a study, in order."""
    jobs = [(name, arm) for name in study.plants for arm in study.arms]
    plants = [study.plants[name] for name, _ in jobs]
    arms = [arm for _, arm in jobs]
    many = min(processes, len(jobs)) > 1
    pool = ProcessPoolExecutor(min(processes, len(jobs)), mp_context=get_context("spawn")) if many else None
    try:
        work = [study] * len(jobs)
        outcomes = (map if pool is None else pool.map)(_job, plants, arms, work)
        for number, ((name, arm), outcome) in enumerate(zip(jobs, outcomes, strict=True), 1):
            if not quiet and sys.stderr.isatty():
                print(f"[{number}/{len(jobs)}]  {name}: {arm.name}", file=sys.stderr, flush=True)
            yield name, outcome
    finally:
        if pool is not None:
            pool.shutdown(cancel_futures=True)


def _job(plant: Any, arm: Any, study: Study) -> Outcome:
    return simulate(arm, plant, steps=study.steps, seeds=range(study.seeds))


def _spread(values: Any) -> str:
    if np.ptp(values) <= 5e-4 * np.abs(values).max():
        return f"{values.mean():.3g}"
    return f"{values.mean():.3g} [{values.min():.3g}..{values.max():.3g}]"


def _show(study: Study, runs: list[tuple[str, Outcome]]) -> None:
    terminal.heading(study.title)
    rows = []
    for name, outcome in runs:
        figures = outcome.summary(study.burn_in)
        plant = [name] if len(study.plants) > 1 else []
        rows.append([*plant, outcome.arm.name, *(_spread(figures[column]) for column in _COLUMNS)])
    first = ["KL seen from", "law"] if len(study.plants) > 1 else ["law"]
    columns = [*first, *_COLUMNS.values()]
    terminal.table(columns, rows, right=range(len(first), len(columns)))
    print(
        f"\n{study.seeds} seeds, mean [lowest..highest]; means over steps {study.burn_in} to {study.steps}. "
        "One plant, and no evidence about learning."
    )


def _as_json(study: Study, runs: list[tuple[str, Outcome]], picture: Path | None) -> dict[str, Any]:
    return {
        "title": study.title,
        "steps": study.steps,
        "burn_in": study.burn_in,
        "seeds": study.seeds,
        "picture": None if picture is None else str(picture),
        "runs": [
            {
                "plant": name,
                "law": outcome.arm.name,
                "values": dict(outcome.arm.values),
                "figures": {key: values.tolist() for key, values in outcome.summary(study.burn_in).items()},
            }
            for name, outcome in runs
        ],
    }
