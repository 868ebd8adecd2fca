"""The value of a numeric literal of C, C++ and CUDA."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Number", "number_of"]

_SUFFIX = r"(?P<suffix>[A-Za-z_]\w*)?"
_HEX_FLOAT = re.compile(rf"0[xX](?=[0-9a-fA-F.])([0-9a-fA-F]*\.?[0-9a-fA-F]*[pP][+-]?[0-9]+){_SUFFIX}")
_INTEGER = re.compile(rf"(?P<digits>0[xX][0-9a-fA-F]+|0[bB][01]+|[0-9]+){_SUFFIX}")
_DECIMAL = re.compile(rf"((?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+){_SUFFIX}")
_INTEGER_SUFFIX = re.compile(r"(?i:u?(?:ll?|z)?|(?:ll?|z)u)|_\w+")
_FLOAT_SUFFIX = re.compile(r"[fFlLhH]|(?i:f16|f32|f64|f128|bf16)|_\w+")


class Number(NamedTuple):
    """A literal's value.

    Attributes
    ----------
    value : float or int
    real : bool
        Whether it is written as a floating-point number.
    decimal : bool
        Whether it is written to base 10: others are bit patterns, mostly.
    """

    value: float | int
    real: bool
    decimal: bool


def number_of(text: str) -> Number | None:
    """Return the value of a literal with its suffix and digit separators, or None where it is no such thing."""
    plain = text.replace("'", "")
    if match := _HEX_FLOAT.fullmatch(plain):
        return _real(f"0x{match[1]}", match["suffix"], float.fromhex, decimal=False)
    if match := _DECIMAL.fullmatch(plain):
        return _real(match[1], match["suffix"], float, decimal=True)
    if (match := _INTEGER.fullmatch(plain)) and _INTEGER_SUFFIX.fullmatch(match["suffix"] or ""):
        digits = match["digits"].lower()
        if len(digits) > 80:  # beyond any type, and slow to convert
            return None
        if digits.startswith(("0x", "0b")):
            return Number(int(digits, 0), False, False)
        octal = len(digits) > 1 and digits[0] == "0"
        if octal and not set(digits) <= set("01234567"):
            return None
        return Number(int(digits, 8 if octal else 10), False, not octal)
    return None


def _real(digits: str, suffix: str | None, convert: type[float] | object, *, decimal: bool) -> Number | None:
    if suffix and not _FLOAT_SUFFIX.fullmatch(suffix):
        return None
    try:
        return Number(convert(digits), True, decimal)  # type: ignore[operator]
    except (OverflowError, ValueError):
        return None
