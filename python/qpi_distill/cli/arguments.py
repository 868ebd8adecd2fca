"""Types of arguments. What does not convert is named with its value and what was expected."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable

import qpi_distill as qpi


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
    from ..demo.config import PRESETS

    for name in PRESETS:
        short = re.sub(r"^minatar/|-v\d+$", "", name.lower())
        if text.lower() in (name.lower(), short):
            return name
    raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(PRESETS)}")
