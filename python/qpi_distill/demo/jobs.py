"""Training runs in worker processes.

Every run happens in a worker with one BLAS thread, a single one too: the matrices are small, and a seed gives the same
numbers alone, beside others and on any number of cores.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from .agent import Run, train
from .config import ARMS, Config, DemoError
from .terminal import Silent

#: Runs that one worker does in this order. A "shuffled" run after a "distilled" one replays its λ.
Job = Sequence[Config]

BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def run_name(config: Config) -> str:
    """Return what a run is called on screen."""
    return f"{config.arm:<9} seed {config.seed}"


def comparison(base: Config, seeds: int) -> list[Job]:
    """Return the jobs of three arms on `seeds` seeds each, longest first."""
    of_seed = [{arm: replace(base, arm=arm, seed=seed) for arm in ARMS} for seed in range(base.seed, base.seed + seeds)]
    return [[runs["distilled"], runs["shuffled"]] for runs in of_seed] + [[runs["ppo"]] for runs in of_seed]


def run_jobs(jobs: Sequence[Job], processes: int, display: Silent) -> list[Run]:
    """Run jobs, at most `processes` at a time.

    Parameters
    ----------
    jobs : sequence of sequence of Config
        What to run.
    processes : int
        Workers.
    display : Silent
        Shows the progress.

    Returns
    -------
    list of Run
        In the order of the jobs, whatever order they finished in.

    Raises
    ------
    DemoError
        If a package or a device is missing, or a worker died.
    """
    context = multiprocessing.get_context("spawn")
    tasks: Any = context.Queue()
    events: Any = context.Queue()
    for item in enumerate(jobs):
        tasks.put(item)
    workers = [
        context.Process(target=work, args=(tasks, events), daemon=True) for _ in range(min(processes, len(jobs)))
    ]
    for _ in workers:
        tasks.put(None)
    runs: dict[tuple[int, int], Run] = {}
    total = sum(map(len, jobs))
    try:
        with one_blas_thread():
            for worker in workers:
                worker.start()
        while len(runs) < total:
            kind, *content = next_event(events, workers)
            if kind == "progress":
                display.update(*content)
            elif kind == "run":
                where, run = content
                runs[where] = run
                display.finish(run_name(run.config), latest(run), run.seconds)
            else:
                raise DemoError(content[0])
        for worker in workers:
            worker.join(timeout=5.0)
    finally:
        for worker in workers:
            if worker.is_alive():
                worker.terminate()
    return [runs[where] for where in sorted(runs)]


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Make processes that start meanwhile use one BLAS thread: NumPy reads these variables when it is imported."""
    before = {name: os.environ.get(name) for name in BLAS_THREADS}
    os.environ.update(dict.fromkeys(BLAS_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def next_event(events: Any, workers: Sequence[Any]) -> tuple:
    """Wait for what a worker has to say; notice one that died without a word."""
    while True:
        try:
            return events.get(timeout=1.0)
        except queue.Empty:
            for worker in workers:
                if worker.exitcode:
                    raise DemoError(f"a worker process died with exit code {worker.exitcode}") from None


def latest(run: Run) -> dict[str, float]:
    """Return the newest number of every series."""
    return {name: values[-1] for name, values in run.history.items()}


def work(tasks: Any, events: Any) -> None:
    """Do jobs until there are no more. Runs in a worker."""
    # Ctrl-C goes to the whole process group; the parent ends its workers
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        while (task := tasks.get()) is not None:
            number, job = task
            before: Run | None = None
            for i, config in enumerate(job):
                replay = before.history["lam"] if before is not None and config.arm == "shuffled" else None
                before = train(config, on_iteration=Reporter(config, events), lam_path=replay)
                events.put(("run", (number, i), before))
    except DemoError as error:
        events.put(("error", str(error)))
    except Exception:
        events.put(("error", "a training run failed:\n" + traceback.format_exc()))


class Reporter:
    """Sends a run's progress, at most a hundred times."""

    def __init__(self, config: Config, events: Any) -> None:
        self.name, self.total, self.events = run_name(config), config.iterations, events
        self.every = max(1, self.total // 100)

    def __call__(self, run: Run) -> None:
        done = len(run.history["steps"])
        if done % self.every == 0 or done == self.total:
            self.events.put(("progress", self.name, done / self.total, latest(run)))
