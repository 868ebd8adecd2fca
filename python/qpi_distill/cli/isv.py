"""`qpi-distill isv`: print the manifest of the state vector, and audit sources against it."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import qpi_distill as qpi

_ROLES = {"param": "parameter", "state": "state", "output": "output"}


def add(commands: Any) -> None:
    """Declare the command and its two parts."""
    isv = commands.add_parser(
        "isv",
        help="the slots of the state vector, and an audit against them",
        description="The manifest of the state vector (ISV), and an audit of C, C++ and CUDA sources against it.",
    )
    parts = isv.add_subparsers(metavar="part", required=True)
    _add_show(parts)
    _add_audit(parts)


# ---- show ------------------------------------------------------------------------------------------------------------


def _add_show(parts: Any) -> None:
    show = parts.add_parser(
        "show",
        help="names, types, roles, defaults, ranges, units and meanings",
        description="Print the manifest: name, type, role, default, range, unit and meaning of every slot, and its "
        "index in the two layouts.",
    )
    show.add_argument("slots", nargs="*", metavar="SLOT", help="only these slots")
    show.add_argument("--role", choices=list(_ROLES.values()), help="only slots of this role")
    show.add_argument("--json", action="store_true", help="print one JSON object")
    show.set_defaults(run=lambda args: _show(args, show))


def _show(args: argparse.Namespace, show: argparse.ArgumentParser) -> int:
    manifest = qpi.ISV.slot_info()
    known = [slot.name for slot in manifest]
    for name in args.slots:
        if name not in known:
            show.error(f"argument SLOT: {name!r} is no slot; the slots are {', '.join(known)}")
    native, bus = qpi.Layout.native().to_dict(), qpi.Layout.bus().to_dict()
    slots = [
        {
            "name": slot.name,
            "type": slot.type,
            "role": _ROLES[slot.role],
            "default": None if slot.role == "output" else slot.default,
            "low": slot.low,
            "high": slot.high if math.isfinite(slot.high) else None,
            "unit": slot.unit,
            "meaning": slot.meaning,
            "native": native[slot.name],
            "bus": bus.get(slot.name),
        }
        for slot in manifest
        if (not args.slots or slot.name in args.slots) and args.role in (None, _ROLES[slot.role])
    ]
    if args.json:
        print(json.dumps({"version": qpi.__version__, "slots": slots}, allow_nan=False))
        return 0
    from ..demo import terminal

    rows = []
    for slot in slots:
        default = "" if slot["default"] is None else f"{slot['default']:g}"
        high = "inf" if slot["high"] is None else f"{slot['high']:g}"
        where = f"{slot['native']}" if slot["bus"] is None else f"{slot['native']} / {slot['bus']}"
        bounds = "" if slot["role"] == "output" else f"{slot['low']:g} to {high}"
        rows.append([slot["name"], slot["type"], slot["role"], default, bounds, slot["unit"], where, slot["meaning"]])
    terminal.table(["slot", "type", "role", "default", "range", "unit", "native / bus", "meaning"], rows)
    return 0


# ---- audit -----------------------------------------------------------------------------------------------------------


def _add_audit(parts: Any) -> None:
    audit = parts.add_parser(
        "audit",
        help="find numbers in C, C++ and CUDA sources that should be slots",
        description="Find numbers in C, C++ and CUDA sources that should be slots of the state vector: bare indices "
        "into it, numbers that steer the loop, constants that duplicate a default.",
        epilog="exit codes: 0 nothing found, 1 findings (with --baseline: new ones), 2 bad arguments or an unreadable "
        "file. A comment `qpi-audit: allow ISV002 why` allows a finding on its line or, alone on a line, on the next.",
    )
    add = audit.add_argument
    add("paths", nargs="*", type=Path, metavar="PATH", help="files, and folders of .c .cc .cpp .cu .cuh .h .hpp .inl")
    add("--rules", action="store_true", help="print the rules, with rationale and example, and stop")
    add("--ignore", type=_rule, action="append", default=[], metavar="ID", help="leave this rule out; repeatable")
    add("--buffer", action="append", default=[], metavar="NAME", help="a state vector by this name; repeatable")
    add("--exclude", action="append", default=[], metavar="GLOB", help="paths to leave out; repeatable")
    add("--json", action="store_true", help="print one JSON object")

    add = audit.add_argument_group("baseline").add_mutually_exclusive_group().add_argument
    add("--baseline", type=Path, metavar="FILE", help="report only what is not in this file")
    add("--write-baseline", type=Path, metavar="FILE", help="write what is found to this file, and exit with 0")
    audit.set_defaults(run=lambda args: _audit(args, audit))


def _rule(text: str) -> str:
    """Argument type: the id of a rule."""
    from ..audit import RULES

    if text.upper() not in RULES:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(RULES)}")
    return text.upper()


def _audit(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    from ..audit import RULES, audit, sources

    if args.rules:
        _print_rules(args.json)
        return 0
    if not args.paths:
        parser.error("argument PATH: none given; expected files or folders")
    for path in args.paths:
        if not path.exists():
            parser.error(f"argument PATH: {str(path)!r} does not exist; expected a file or a folder")
    known = _known(args.baseline, parser)
    files = sources(args.paths, args.exclude)
    if not files:
        parser.error(f"argument PATH: there is no C, C++ or CUDA source in {', '.join(map(str, args.paths))}")
    try:
        report = audit(files, rules=set(RULES) - set(args.ignore), buffers=args.buffer)
    except OSError as error:
        parser.error(f"argument PATH: {error.filename!r} cannot be read: {error.strerror}")

    from ..audit.baseline import relative_to, write_baseline

    target = args.write_baseline or args.baseline
    folder = target.parent if target is not None else Path()
    keys = [(found.finding.rule, relative_to(found.path, folder), found.code) for found in report.found]
    if args.write_baseline is not None:
        try:
            write_baseline(args.write_baseline, keys)
        except OSError as error:
            parser.error(f"argument --write-baseline: {str(args.write_baseline)!r}: {error.strerror}")
    new = []
    for found, key in zip(report.found, keys, strict=True):
        if known[key] > 0:
            known[key] -= 1
        else:
            new.append(found)
    if args.write_baseline is not None:
        new = []
    gone = sum(known.values())
    counts = {
        "files": len(report.files),
        "findings": len(new),
        "known": len(report.found) - len(new),
        "gone": gone,
        "allowed": report.allowed,
    }
    if args.json:
        listed = [{"path": found.path.as_posix(), **found.finding._asdict(), "code": found.code} for found in new]
        print(json.dumps({**counts, "found": listed}))
    else:
        _print(new, counts, args)
    return 1 if new else 0


def _known(path: Path | None, parser: argparse.ArgumentParser) -> Any:
    from collections import Counter

    from ..audit.baseline import BaselineError, read_baseline

    if path is None:
        return Counter()
    try:
        return read_baseline(path)
    except OSError as error:
        parser.error(f"argument --baseline: {str(path)!r}: {error.strerror}")
    except BaselineError as error:
        parser.error(f"argument --baseline: {str(path)!r} {error}")


def _print(new: list[Any], counts: dict[str, int], args: argparse.Namespace) -> None:
    from ..demo import terminal

    for found in new:
        place = f"{found.path}:{found.finding.line}:{found.finding.column}:"
        terminal.line((place, "bold"), (f" {found.finding.rule} ", "red"), (found.finding.message, ""))
    told = [f"{counts['files']} files", f"{counts['findings']} findings"]
    told += [f"{counts[name]} {text}" for name, text in (("known", "known"), ("allowed", "allowed")) if counts[name]]
    print(", ".join(told), file=sys.stderr)
    if counts["gone"]:
        print(f"{counts['gone']} of the baseline are gone: write it anew", file=sys.stderr)
    if args.write_baseline is not None:
        print(f"Baseline: {args.write_baseline}", file=sys.stderr)


def _print_rules(as_json: bool) -> None:
    from ..audit import RULES

    if as_json:
        print(json.dumps({"rules": [rule._asdict() for rule in RULES.values()]}))
        return
    import textwrap

    from ..demo import terminal

    for rule in RULES.values():
        terminal.heading(f"{rule.id}  {rule.title}")
        print(textwrap.fill(rule.why, 100, initial_indent="  ", subsequent_indent="  "))
        print(f"  found:   {rule.bad}\n  instead: {rule.good}\n")
