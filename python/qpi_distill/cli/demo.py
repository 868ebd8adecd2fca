"""`qpi-distill demo`: train a small agent that uses the library."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from .arguments import device, environment, real, whole

#: Seeds below which a comparison is refused: fewer say nothing at all.
MIN_SEEDS = 5


def add(commands: Any) -> None:
    """Declare the command."""
    demo = commands.add_parser(
        "demo",
        help="train a small agent that uses the library",
        description="Train a PPO agent with a C51 critic, in NumPy, whose policy is distilled from that critic. "
        'Needs the extra: pip install "qpi-distill[demo]"',
    )
    add_arguments(demo)
    demo.set_defaults(run=lambda args: run(args, demo))


def add_arguments(demo: argparse.ArgumentParser) -> None:
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


def run(args: argparse.Namespace, demo: argparse.ArgumentParser) -> int:
    """Check what only makes sense together, then run the demo."""
    from ..demo.config import DemoError, preset
    from ..demo.main import demo as train

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
        train(
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
