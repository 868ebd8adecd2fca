"""The command line, one file a command: `info`, `isv`, `bench`, `simulate`, `demo` and `completion`.

Exit codes: 0 done, 1 it could not be done here (the message says why), 2 bad arguments, 130 interrupted. `isv audit`
exits with 1 on findings and with 2 on what it cannot read.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import qpi_distill as qpi

from . import bench, completion, demo, info, isv, simulate

__all__ = ["main", "parser"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments. Default: those of the process.

    Returns
    -------
    int
        The exit code.
    """
    args = parser().parse_args(argv)
    try:
        code: int = args.run(args)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(f"qpi-distill: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("qpi-distill: interrupted", file=sys.stderr)
        return 130


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    top = argparse.ArgumentParser(
        prog="qpi-distill", description="Pull a policy toward what a distributional critic knows."
    )
    top.add_argument("--version", action="version", version=f"qpi-distill {qpi.__version__}")
    commands = top.add_subparsers(metavar="command", required=True)
    for command in (info, isv, bench, simulate, demo, completion):
        command.add(commands)
    return top
