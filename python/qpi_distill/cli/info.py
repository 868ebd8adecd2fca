"""`qpi-distill info`: what this machine has and what was built."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

import qpi_distill as qpi


def add(commands: Any) -> None:
    """Declare the command."""
    info = commands.add_parser(
        "info",
        help="what this machine has and what was built",
        description="Say what this machine has, what was built, which kernels exist, and why the GPU is not used.",
    )
    info.add_argument("--json", action="store_true", help="print one JSON object")
    info.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print what `qpi_distill.info()` knows."""
    info = qpi.info()
    if args.json:
        print(json.dumps(info, default=str))
        return 0
    from ..demo import terminal

    terminal.heading(f"qpi-distill {qpi.__version__}")
    terminal.table(["", ""], list(lines(info)))
    return 0


def lines(info: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield every entry of a nested dictionary as a name and a text."""
    for key, value in info.items():
        name = f"{prefix}{key}".replace("_", " ")
        if isinstance(value, dict):
            yield from lines(value, f"{name} ")
        elif isinstance(value, list | tuple) and any(isinstance(item, dict) for item in value):
            for number, item in enumerate(value):
                yield name if number == 0 else "", ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in item.items())
        elif isinstance(value, list | tuple):
            yield name, ", ".join(map(str, value)) or "none"
        elif isinstance(value, bool):
            yield name, "yes" if value else "no"
        elif value is not None and value != "":
            yield name, str(value)
