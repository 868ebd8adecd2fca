"""`qpi-distill bench`: how fast a step is on this machine, at the user's own shape."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import qpi_distill as qpi

from .arguments import device, real, whole

_ROWS = (256, 4096, 65536)
_MOST_ACTIONS = _MOST_ATOMS = 4096


def add(commands: Any) -> None:
    """Declare the command."""
    bench = commands.add_parser(
        "bench",
        help="how fast a step is on this machine",
        description="Time the plain step on this machine. Warm: on inputs that are in the last-level cache, as when "
        "the network has just written them; cold: on inputs that are not. A GPU is timed within a CUDA graph, "
        "the CPU by bound calls.",
    )
    add = bench.add_argument
    add("--device", type=device, help="cpu, cuda or cuda:N (default: a GPU if there is one)")
    add(
        "--rows",
        type=whole(1),
        action="append",
        metavar="N",
        help="rows of a batch; repeatable (default: 256, 4096 and 65536)",
    )
    add("--actions", type=whole(1), default=11, metavar="N", help="number of actions (default: 11)")
    add("--atoms", type=whole(1), default=21, metavar="N", help="number of atoms (default: 21)")
    add(
        "--dtype",
        choices=("float32", "float16", "bfloat16"),
        default="float32",
        help="of logits and gradient (default: float32)",
    )
    add("--threads", type=whole(1), metavar="N", help="upper bound on the CPU's threads (default: chosen)")
    add(
        "--seconds",
        type=real(0.0, above=True),
        default=0.5,
        metavar="X",
        help="time of each measurement (default: 0.5)",
    )
    add("--json", action="store_true", help="print one JSON object")
    bench.set_defaults(run=lambda args: run(args, bench))


def run(args: argparse.Namespace, bench: argparse.ArgumentParser) -> int:
    """Measure and print."""
    from ..bench import Shape, machine, measure

    for name, most in (("actions", _MOST_ACTIONS), ("atoms", _MOST_ATOMS)):
        if getattr(args, name) > most:
            bench.error(f"argument --{name}: '{getattr(args, name)}' is not a whole number from 1 to {most}")
    try:
        on = machine(args.device)
    except qpi.DeviceError as error:
        print(f"qpi-distill bench: error: --device {args.device}: {error}", file=sys.stderr)
        return 1
    if args.threads is not None and on.device != "cpu":
        bench.error(f"argument --threads: {args.threads} is for the CPU; the device is {on.device}")
    found = []
    with on:
        copy_bytes_s = on.copy_bytes_s()
        for rows in args.rows or _ROWS:
            shape = Shape(rows, args.actions, args.atoms, args.dtype)
            try:
                found += measure(on, shape, copy_bytes_s, budget_s=args.seconds, threads=args.threads or 0)
            except MemoryError as error:
                print(f"qpi-distill bench: error: --rows {rows}: {error}", file=sys.stderr)
                return 1
    about = {
        "version": qpi.__version__,
        "device": on.device,
        "name": on.name,
        "cores": on.cores,
        "cache_bytes": on.cache_bytes,
        "cache_known": on.cache_known,
        "copy_gb_s": copy_bytes_s / 1e9,
        "actions": args.actions,
        "atoms": args.atoms,
        "dtype": args.dtype,
    }
    if args.json:
        print(json.dumps({**about, "steps": [one._asdict() for one in found]}, allow_nan=False))
    else:
        _print(about, found)
    return 0


def _print(about: dict[str, Any], found: list[Any]) -> None:
    from ..demo import terminal

    units = "cores" if about["device"] == "cpu" else "multiprocessors"
    cache = f"{about['cache_bytes'] / 2**20:.0f} MiB of cache" + ("" if about["cache_known"] else " (assumed)")
    terminal.heading(f"{about['name']} ({about['device']}): {about['cores']} {units}, {cache}")
    print(f"{about['actions']} actions, {about['atoms']} atoms, {about['dtype']}")
    print(
        f"A copy moves {about['copy_gb_s']:.1f} GB/s, bytes read plus written"
        + (", on one thread\n" if about["device"] == "cpu" else "\n")
    )
    columns = ["rows", "cache", "median µs", "spread", "MB a step", "GB/s", "of a copy", "rows/s"]
    rows = [
        [
            f"{one.rows:,}",
            one.cache,
            f"{one.median_us:,.1f}",
            f"{one.spread:.0%}",
            f"{one.bytes / 1e6:,.2f}",
            f"{one.gb_s:,.1f}",
            f"{one.of_copy:.0%}",
            f"{one.rows_s:,.0f}",
        ]
        for one in found
    ]
    terminal.table(columns, rows, right=(0, 2, 3, 4, 5, 6, 7))
    print()
    for rows_, kernel in {one.rows: one.kernel for one in found}.items():
        print(f"{rows_:,} rows: {kernel}")
    if any(one.cache == "partly cold" for one in found):
        print("Partly cold: the inputs that take turns are less than twice the cache, so that some were still there.")
