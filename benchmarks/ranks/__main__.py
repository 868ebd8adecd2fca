"""`python -m benchmarks.ranks`: one rank. Started by `benchmarks/multi_gpu.py`."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..results import write_json
from . import checks, speed
from .places import place_of
from .world import THROUGH, connect


def nccl_version(arguments: argparse.Namespace) -> str:
    """Of the NCCL under test, or an empty string."""
    if arguments.device == "cpu":
        return ""
    if arguments.through == "nccl4py":
        import nccl.core

        return str(nccl.core.get_version())
    import torch

    return ".".join(map(str, torch.cuda.nccl.version()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks", description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="where the ranks meet, and rank 0 leaves the result")
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--through", choices=THROUGH, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--split-rows", type=int, required=True)
    parser.add_argument("--rows", type=int, nargs="+", default=speed.SIZES)
    arguments = parser.parse_args()
    place = place_of(arguments.device, arguments.rank)
    where = (arguments.rank, arguments.size, arguments.folder, arguments.device, arguments.through)
    with connect(*where) as world:
        found = checks.run(world, place, arguments.steps, arguments.split_rows)
        result = {"nccl": nccl_version(arguments), "checks": found}
        if arguments.rank == 0:
            write_json(arguments.folder / "result.json", result)
        result |= speed.run(world, place, arguments.rows)
        if arguments.rank == 0:
            write_json(arguments.folder / "result.json", result)


if __name__ == "__main__":
    main()
