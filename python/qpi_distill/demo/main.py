"""What `qpi-distill demo` does."""

from __future__ import annotations

import json
from pathlib import Path

from . import plots, report, terminal
from .config import Config, DemoError
from .envs import missing
from .jobs import comparison, run_jobs


def demo(
    config: Config,
    *,
    seeds: int | None = None,
    processes: int = 2,
    picture: Path | None = None,
    as_json: bool = False,
    quiet: bool = False,
) -> None:
    """Run the demo and show what came of it.

    Parameters
    ----------
    config : Config
        The run, or the numbers that all runs of a comparison share.
    seeds : int, optional
        Compare the three arms on this many seeds, from `config.seed` on. Default: one run.
    processes : int
        Runs at a time.
    picture : pathlib.Path, optional
        Where the PNG goes. Default: none is drawn.
    as_json : bool
        Print one JSON object to stdout instead of the summary.
    quiet : bool
        Show no progress.

    Raises
    ------
    DemoError
        If a package or the device is missing, a run failed or the picture cannot be written.
    """
    if picture is not None:
        try:
            plots.available()
        except ImportError as error:
            raise missing("matplotlib", error) from error

    jobs = [[config]] if seeds is None else comparison(config, seeds)
    with terminal.progress(sum(map(len, jobs)), quiet=quiet) as display:
        runs = run_jobs(jobs, processes, display)

    if picture is not None:
        try:
            plots.draw_run(runs[0], picture) if seeds is None else plots.draw_comparison(runs, picture)
        except OSError as error:
            raise DemoError(f"--out {picture}: {error.strerror or error}") from error
    if as_json:
        kind = "run" if seeds is None else "comparison"
        print(json.dumps(report.as_json(kind, runs, None if picture is None else str(picture)), allow_nan=False))
        return
    if seeds is None:
        report.show_run(runs[0])
    else:
        report.show_comparison(runs)
    if picture is not None:
        print(f"\nPicture: {picture}")
