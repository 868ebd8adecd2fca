"""`qpi-distill simulate`: run control laws against a plant."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import qpi_distill as qpi

from .arguments import assignment, real, whole


def add(commands: Any) -> None:
    """Declare the command."""
    simulate = commands.add_parser(
        "simulate",
        help="run control laws against a plant, in seconds",
        description="Run control laws of λ and τ, with the library's own code, against a table of policies between two "
        "teachers, and compare how they hold the KL. It shows how a law behaves, not what it does for learning.",
        epilog=f"presets and laws: {', '.join(known_laws())}",
    )
    add_arguments(simulate)
    simulate.set_defaults(run=lambda args: run(args, simulate))


def known_laws() -> list[str]:
    """Return what `qpi-distill simulate` takes for a law: presets, then laws."""
    return list(dict.fromkeys([*qpi.ISV.presets(), *(law.name for law in qpi.ISV.laws()["lam"])]))


def add_arguments(simulate: argparse.ArgumentParser) -> None:
    """Declare the options of `qpi-distill simulate`."""
    from ..simulate import STUDIES

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


def run(args: argparse.Namespace, simulate: argparse.ArgumentParser) -> int:
    """Check what only makes sense together, then run the simulation."""
    from ..simulate import STUDIES, Plant, Study, arm
    from ..simulate.main import SimulationError
    from ..simulate.main import main as compare

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
        compare(
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
