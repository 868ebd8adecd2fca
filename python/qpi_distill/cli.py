"""The command line: `qpi-distill info` and `qpi-distill demo`.

Exit codes: 0 done, 1 it could not be done here (the message says why), 2 bad arguments, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import qpi_distill as qpi

#: Seeds below which a comparison is refused: fewer say nothing at all.
MIN_SEEDS = 5


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
        code = args.run(args)
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

    info = commands.add_parser(
        "info",
        help="what this machine has and what was built",
        description="Say what this machine has, what was built, which kernels exist, and why the GPU is not used.",
    )
    info.add_argument("--json", action="store_true", help="print one JSON object")
    info.set_defaults(run=run_info)

    demo = commands.add_parser(
        "demo",
        help="train a small agent that uses the library",
        description="Train a PPO agent with a C51 critic, in NumPy, whose policy is distilled from that critic. "
        'Needs the extra: pip install "qpi-distill[demo]"',
    )
    add_demo_arguments(demo)
    demo.set_defaults(run=lambda args: run_demo(args, demo))
    return top


def add_demo_arguments(demo: argparse.ArgumentParser) -> None:
    """Declare the options of `qpi-distill demo`. Those left out take the environment's own numbers."""
    add = demo.add_argument
    add("--env", type=environment, default="MinAtar/Breakout", help="MinAtar/Breakout, CartPole-v1 or LunarLander-v3")
    add("--steps", type=whole(1), metavar="N", help="environment steps of a run")
    add("--seed", type=whole(0), metavar="N", default=0, help="the seed, or the first one of a comparison (default: 0)")
    add("--device", type=device, default="cpu", help="where the distiller works: cpu, cuda or cuda:N (default: cpu)")
    add("--lam", type=real(0.0), metavar="X", help="λ at the start; 0 is plain PPO")
    add("--tau", type=real(0.0, above=True), metavar="X", help="temperature of the target, in units of Q's spread")
    add("--kl-target", type=real(0.0, above=True), metavar="X", help="KL that the control law steers to, in nats")

    add = demo.add_argument_group("comparison").add_argument
    add("--compare", action="store_true", help="three arms: PPO, distilled, distilled from a shuffled Q")
    add("--seeds", type=whole(MIN_SEEDS), metavar="N", help=f"seeds of each arm (default: {MIN_SEEDS})")
    add("--processes", type=whole(1), metavar="N", default=2, help="runs at a time (default: 2)")

    add = demo.add_argument_group("output").add_argument
    add("--out", type=Path, metavar="PNG", help="the picture (default: qpi-demo.png or qpi-compare.png)")
    add("--no-picture", action="store_true", help="draw none")
    add("--json", action="store_true", help="print one JSON object instead of the summary")
    add("--quiet", action="store_true", help="show no progress")


# ---- argument types --------------------------------------------------------------------------------------------------


def whole(low: int) -> Callable[[str], int]:
    """Return an argument type: an integer of at least `low`."""

    def convert(text: str) -> int:
        try:
            value = int(text.replace("_", ""))
        except ValueError:
            value = low - 1
        if value < low or value >= 2**32:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to 4294967295")
        return value

    return convert


def real(low: float, *, above: bool = False) -> Callable[[str], float]:
    """Return an argument type: a finite number of at least, or `above`, `low`."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < low or (above and value == low):
            raise argparse.ArgumentTypeError(f"{text!r} is not a finite number {'>' if above else '>='} {low:g}")
        return value

    return convert


def device(text: str) -> str:
    """Argument type: a device."""
    if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not cpu, cuda or cuda:N")
    return text


def environment(text: str) -> str:
    """Argument type: one of the demo's environments, in any case; "breakout" or "cartpole" will do."""
    from .demo.config import PRESETS

    for name in PRESETS:
        short = re.sub(r"^minatar/|-v\d+$", "", name.lower())
        if text.lower() in (name.lower(), short):
            return name
    raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(PRESETS)}")


# ---- commands --------------------------------------------------------------------------------------------------------


def run_demo(args: argparse.Namespace, demo: argparse.ArgumentParser) -> int:
    """Check what only makes sense together, then run the demo."""
    from .demo.config import DemoError, preset
    from .demo.main import demo as run

    if args.seeds is not None and not args.compare:
        demo.error("argument --seeds: only with --compare; a single run takes --seed")
    if args.lam == 0 and args.compare:
        demo.error("argument --lam: 0 would make all arms of a comparison plain PPO")
    if args.no_picture and args.out is not None:
        demo.error("argument --out: not with --no-picture")
    picture = None
    if not args.no_picture:
        picture = args.out or Path("qpi-compare.png" if args.compare else "qpi-demo.png")
        if picture.suffix.lower() != ".png":
            demo.error(f"argument --out: {str(picture)!r} does not end in .png")
        if not picture.parent.is_dir():
            demo.error(f"argument --out: there is no folder {str(picture.parent)!r}")

    chosen = {name: getattr(args, name) for name in ("steps", "lam", "tau", "kl_target")}
    config = preset(
        args.env,
        seed=args.seed,
        device=args.device,
        **{name: value for name, value in chosen.items() if value is not None},
    )
    try:
        run(
            config,
            seeds=(args.seeds or MIN_SEEDS) if args.compare else None,
            processes=args.processes,
            picture=picture,
            as_json=args.json,
            quiet=args.quiet,
        )
    except DemoError as error:
        print(f"qpi-distill demo: error: {error}", file=sys.stderr)
        return 1
    return 0


def run_info(args: argparse.Namespace) -> int:
    """Print what `qpi_distill.info()` knows."""
    info = qpi.info()
    if args.json:
        print(json.dumps(info, default=str))
        return 0
    from .demo import terminal

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
