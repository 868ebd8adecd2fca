"""The command line: `qpi-distill info`, `qpi-distill demo` and `qpi-distill simulate`.

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
from dataclasses import replace
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

    simulate = commands.add_parser(
        "simulate",
        help="run control laws against a plant, in seconds",
        description="Run control laws of λ and τ, with the library's own code, against a table of policies between two "
        "teachers, and compare how they hold the KL. It shows how a law behaves, not what it does for learning.",
        epilog=f"presets and laws: {', '.join(known_laws())}",
    )
    add_simulate_arguments(simulate)
    simulate.set_defaults(run=lambda args: run_simulate(args, simulate))
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


def known_laws() -> list[str]:
    """Return what `qpi-distill simulate` takes for a law: presets, then laws."""
    return list(dict.fromkeys([*qpi.ISV.presets(), *(law.name for law in qpi.ISV.laws()["lam"])]))


def add_simulate_arguments(simulate: argparse.ArgumentParser) -> None:
    """Declare the options of `qpi-distill simulate`."""
    from .simulate import STUDIES

    add = simulate.add_argument
    add("laws", nargs="*", metavar="LAW", help="presets or laws to compare")
    add("--study", choices=list(STUDIES), help="a ready-made comparison (default, without any LAW: laws)")
    add("--steps", type=whole(1), metavar="N", help="steps of a run, one commit each (default: 6000)")
    add("--burn-in", type=whole(0), metavar="N", help="steps that the figures leave out (default: a sixth)")
    add("--seeds", type=whole(1), metavar="N", help="seeds of each run (default: 3)")
    add("--processes", type=whole(1), metavar="N", default=2, help="runs at a time (default: 2)")

    add = simulate.add_argument_group("law").add_argument
    add(
        "--kl-target", type=real(0.0, above=True), metavar="X", help="KL that the law steers to, in nats (default: 0.5)"
    )
    add(
        "--set",
        type=assignment,
        action="append",
        metavar="SLOT=X",
        dest="slots",
        help="any slot of the ISV; repeatable",
    )

    add = simulate.add_argument_group("plant").add_argument
    add("--sensor", choices=("mean", "row0", "random"), help="what the law is shown: batch mean, row 0, a random row")
    add("--rows", type=whole(1), metavar="N", help="rows of a batch (default: 64)")
    add("--noise", type=real(0.0), metavar="X", help="log standard deviation of noise on the KL that the law is shown")
    add("--lag", type=whole(0), metavar="N", help="steps by which that KL is late")
    add("--bias", type=real(0.0, above=True), metavar="X", help="factor on it")
    add("--drift", type=whole(1), metavar="N", help="step at which the critic's values are drawn anew")

    add = simulate.add_argument_group("output").add_argument
    add(
        "--out", type=Path, metavar="PNG", help="the picture (default: qpi-simulate.png, where matplotlib is installed)"
    )
    add("--no-picture", action="store_true", help="draw none")
    add("--json", action="store_true", help="print one JSON object instead of the table")
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


def assignment(text: str) -> tuple[str, float | int | str]:
    """Argument type: a slot's name and its value, a number or the name of a law."""
    name, equals, value = text.partition("=")
    types = {slot.name: slot.type for slot in qpi.ISV.slot_info() if slot.role != "output"}
    if not equals or name not in types:
        raise argparse.ArgumentTypeError(f"{text!r} is not SLOT=X with a slot of the ISV that the host may set")
    try:
        return name, float(value) if types[name] == "f32" else int(value)
    except ValueError:
        if name in ("lam_law", "tau_law"):
            return name, value
        raise argparse.ArgumentTypeError(f"{text!r}: {value!r} is not a number") from None


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


def run_simulate(args: argparse.Namespace, simulate: argparse.ArgumentParser) -> int:
    """Check what only makes sense together, then run the simulation."""
    from .simulate import STUDIES, Plant, Study, arm
    from .simulate.main import SimulationError
    from .simulate.main import main as run

    plant = {name: getattr(args, name) for name in ("sensor", "rows", "noise", "lag", "bias", "drift")}
    plant = {name: value for name, value in plant.items() if value is not None}
    slots = dict(args.slots or ())
    if args.kl_target is not None:
        slots["kl_target"] = args.kl_target
    chosen = args.study or (None if args.laws or plant or slots else "laws")
    if chosen is not None and (args.laws or plant or slots):
        simulate.error("argument --study: has its own laws and plants; leave out LAW and the options of law and plant")
    picture = args.out
    if picture is None and not args.no_picture:
        picture = Path("qpi-simulate.png")
    if args.no_picture and args.out is not None:
        simulate.error("argument --out: not with --no-picture")
    if picture is not None and picture.suffix.lower() != ".png":
        simulate.error(f"argument --out: {str(picture)!r} does not end in .png")
    if picture is not None and not picture.parent.is_dir():
        simulate.error(f"argument --out: there is no folder {str(picture.parent)!r}")

    if chosen is not None:
        study = STUDIES[chosen]
        steps, seeds = args.steps or study.steps, args.seeds or study.seeds
        # The drift stays half way.
        scaled = {n: replace(p, drift=p.drift * steps // study.steps) for n, p in study.plants.items()}
        study = replace(study, plants=scaled, steps=steps, seeds=seeds, burn_in=study.burn_in * steps // study.steps)
    else:
        goal = slots.pop("kl_target", 0.5)
        try:
            arms = tuple(arm(law, kl_target=goal, **slots) for law in args.laws or list(qpi.ISV.presets()))
        except ValueError as error:
            simulate.error(str(error))
        for one in arms:
            try:
                qpi.ISV(device="cpu", **{"lam": 0.1, **one.values})
            except (ValueError, TypeError) as error:
                simulate.error(f"{one.name}: {error}")
        steps = args.steps or 6000
        setting = Plant(**plant)
        title = f"KL goal {goal:g} nat, {setting.rows} rows a batch, sensor {setting.sensor}"
        study = Study(title, {setting.sensor: setting}, arms, steps, steps // 6, args.seeds or 3)
    if args.burn_in is not None:
        if args.burn_in >= steps:
            simulate.error(f"argument --burn-in: {args.burn_in} leaves nothing of {steps} steps")
        study = replace(study, burn_in=args.burn_in)
    try:
        run(
            study,
            processes=args.processes,
            picture=picture,
            needed=args.out is not None,
            as_json=args.json,
            quiet=args.quiet,
        )
    except SimulationError as error:
        print(f"qpi-distill simulate: error: {error}", file=sys.stderr)
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
