"""What goes to the terminal: plain text, or rich's rendering where rich is installed and someone is looking."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, TextIO


def lively(stream: TextIO) -> bool:
    """Say whether `stream` is a terminal that takes more than plain text: not with NO_COLOR (https://no-color.org)."""
    return stream.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")


def decorated(stream: TextIO) -> bool:
    """Say whether `stream` is a terminal that rich may draw on, with rich installed and colours not refused."""
    if not lively(stream):
        return False
    try:
        import rich  # noqa: F401
    except ImportError:
        return False
    return True


def heading(text: str) -> None:
    """Print a heading to stdout."""
    if decorated(sys.stdout):
        from rich.console import Console
        from rich.text import Text

        Console().print(Text(text, style="bold cyan"))
    else:
        print(text)


def line(*parts: tuple[str, str]) -> None:
    """Print a line of (text, style) to stdout."""
    if decorated(sys.stdout):
        from rich.console import Console
        from rich.text import Text

        Console().print(Text.assemble(*parts), soft_wrap=True, highlight=False)
    else:
        print("".join(text for text, _ in parts))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> None:
    """Print a table to stdout; `right` lists the columns that are aligned to the right."""
    if decorated(sys.stdout):
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        grid = Table(box=box.SIMPLE_HEAD, header_style="bold", show_header=any(columns))
        for i, name in enumerate(columns):
            grid.add_column(name, justify="right" if i in right else "left", overflow="fold")
        for row in rows:
            grid.add_row(*(Text(cell) for cell in row))
        Console().print(grid)
        return
    lines = [list(columns), *map(list, rows)] if any(columns) else [list(row) for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        cells = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))]
        print("  " + "  ".join(cells).rstrip())


class Silent:
    """A progress display that shows nothing; also what the others share.

    Use it as a context manager. A display counts whole runs and, between them, the share of each run that is done.
    """

    def __init__(self, runs: int) -> None:
        self.runs = runs
        self.finished = 0

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def update(self, name: str, share: float, numbers: dict[str, float]) -> None:
        """Show how far the run `name` is: its share done in [0, 1] and its latest numbers."""

    def finish(self, name: str, numbers: dict[str, float], seconds: float) -> None:
        """Show that the run `name` is done."""
        self.finished += 1


class Lines(Silent):
    """Progress without rich: one line redrawn on a terminal; plain, a line every tenth."""

    def __init__(self, runs: int, stream: TextIO) -> None:
        super().__init__(runs)
        self.stream, self.live = stream, lively(stream)
        self.shares: dict[str, float] = {}
        self.tenth = 0
        self.width = 0

    def __exit__(self, *exc: object) -> None:
        if self.live and self.width:
            self.stream.write("\n")

    def update(self, name: str, share: float, numbers: dict[str, float]) -> None:
        self.shares[name] = share
        done = sum(self.shares.values()) / self.runs
        tenth = int(10 * done + 1e-9)
        if not self.live and (self.runs > 1 or tenth == self.tenth):
            return
        self.tenth = tenth
        line = f"{done:4.0%}  {name}  {describe(numbers)}"
        if self.live:
            self.stream.write("\r" + line.ljust(self.width))
            self.width = len(line)
        else:
            self.stream.write(line + "\n")
        self.stream.flush()

    def finish(self, name: str, numbers: dict[str, float], seconds: float) -> None:
        super().finish(name, numbers, seconds)
        if self.runs > 1:
            line = f"[{self.finished}/{self.runs}]  {name}  {describe(numbers)}  {seconds:.0f} s"
            self.stream.write(("\r" if self.live else "") + line.ljust(self.width) + "\n")
            self.width = 0
            self.stream.flush()


class Bars(Silent):
    """Progress with rich: a bar for every run at work, and one for all of them if they are several."""

    def __init__(self, runs: int, stream: TextIO) -> None:
        super().__init__(runs)
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(file=stream)
        self.progress = Progress(
            TextColumn("[bold]{task.description}"),
            # what is left of the line beside the texts
            BarColumn(bar_width=min(30, max(6, console.width - 74))),
            TimeRemainingColumn(compact=True),
            TextColumn("[cyan]{task.fields[numbers]}"),
            console=console,
        )
        self.tasks: dict[str, Any] = {}
        self.shares: dict[str, float] = {}

    def __enter__(self) -> Bars:
        self.progress.start()
        if self.runs > 1:
            self.total = self.progress.add_task(f"{self.runs} runs", total=self.runs, numbers="")
        return self

    def __exit__(self, *exc: object) -> None:
        self.progress.stop()

    def update(self, name: str, share: float, numbers: dict[str, float]) -> None:
        if name not in self.tasks:
            self.tasks[name] = self.progress.add_task(name, total=1.0, numbers="")
        self.progress.update(self.tasks[name], completed=share, numbers=describe(numbers))
        self.shares[name] = share
        if self.runs > 1:
            self.progress.update(self.total, completed=sum(self.shares.values()))

    def finish(self, name: str, numbers: dict[str, float], seconds: float) -> None:
        super().finish(name, numbers, seconds)
        self.update(name, 1.0, numbers)
        if self.runs > 1:
            self.progress.remove_task(self.tasks.pop(name))
            self.progress.console.print(f"{name}  {describe(numbers)}  {seconds:.0f} s", highlight=False)


def progress(runs: int, *, quiet: bool, stream: TextIO | None = None) -> Silent:
    """Return the progress display that suits `stream` (default stderr): none where nobody is looking."""
    stream = stream or sys.stderr
    if quiet or not stream.isatty():
        return Silent(runs)
    return Bars(runs, stream) if decorated(stream) else Lines(runs, stream)


def describe(numbers: dict[str, float]) -> str:
    """Return the numbers that a progress line shows."""
    return (
        f"return {numbers['episode_return']:6.2f}  λ {numbers['lam']:.3f}  "
        f"KL {numbers['kl_ema']:.3f}  agreement {numbers['agreement']:4.0%}"
    )
