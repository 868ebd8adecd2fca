"""Which names speak of control, and which slot of the manifest a name and a number may mean."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable

from .._isv import SLOTS, Slot

__all__ = ["CONTROL", "STRUCTURE", "defaults_equal_to", "is_code", "is_control", "is_state", "slot_for", "words_of"]

#: Words of the loop. A name with one of them is a control-like name.
CONTROL = frozenset(
    (
        *("lam", "lambda", "tau", "temperature", "kl", "ema", "alpha", "tolerance", "distill"),
        *("warmup", "ramp", "decay", "slew", "gain", "deadzone", "deadband"),
    )
)
#: Words of layout and size. A name with one of them is none, whatever else is in it.
STRUCTURE = frozenset(
    (
        *("index", "indices", "idx", "slot", "slots", "offset", "size", "sizes", "count", "counts"),
        *("num", "n", "dim", "dims", "id", "ids", "stride", "block", "blocks", "thread", "threads"),
        *("warp", "warps", "lane", "lanes", "width", "height", "bit", "bits", "mask", "align"),
        *("alignment", "version", "code", "bytes", "rows", "cols", "columns", "capacity", "len"),
        *("length", "word", "words", "law", "stat"),
    )
)

# Those that other fields use as well.
_ELSEWHERE = frozenset(("alpha", "gain", "ramp"))

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_]+")
# The words of a name as the manifest would say them.
_SYNONYMS = {
    "lambda": "lam",
    "temperature": "tau",
    "minimum": "min",
    "floor": "min",
    "lower": "min",
    "maximum": "max",
    "ceiling": "max",
    "ceil": "max",
    "upper": "max",
    "ramp": "up",
    "decay": "down",
    "tol": "tolerance",
    "deadzone": "tolerance",
    "deadband": "tolerance",
    "goal": "target",
}
_NEAR = 1e-6  # of two numbers that are the same float32


def words_of(name: str) -> list[str]:
    """Return the words of a name in snake case, camel case or capitals, in lower case."""
    return [word.lower() for word in _WORD.findall(name)]


def is_control(name: str) -> bool:
    """Say whether a name speaks of the control of the loop."""
    words = set(words_of(name))
    return bool(words & CONTROL) and not words & STRUCTURE


def is_code(name: str) -> bool:
    """Say whether an integer of this name is more likely a code than a number of the loop: of graphics, mostly."""
    return not set(words_of(name)) & CONTROL - _ELSEWHERE


def is_state(name: str, buffers: Collection[str] = ()) -> bool:
    """Say whether a name is that of a state vector: one of `buffers`, or with "isv" for a word."""
    words = set(words_of(name))
    return name in buffers or ("isv" in words and not words & STRUCTURE)


def defaults_equal_to(value: float) -> list[Slot]:
    """Return the slots that the host sets whose default is this number."""
    return [slot for slot in SLOTS if _has_default(slot, value)]


def _has_default(slot: Slot, value: float) -> bool:
    chosen = slot.role == "param" or slot.default > 0  # a state that begins at 0 or "not measured" begins at nothing
    return slot.role != "output" and chosen and math.isclose(slot.default, value, rel_tol=_NEAR)


def slot_for(names: Iterable[str], value: float, hints: Iterable[str] = ()) -> Slot | None:
    """Return the slot that names and a number most likely mean, or None where none suggests itself.

    Parameters
    ----------
    names : iterable of str
        Names beside the number.
    value : float
        The number.
    hints : iterable of str
        Further words, such as "min" for what a maximum is taken with.
    """
    told = {_SYNONYMS.get(word, word) for name in names for word in words_of(name)} | set(hints)
    best, most = None, 0
    for slot in SLOTS:
        words = set(slot.name.split("_"))
        shared, equal = len(words & told), _has_default(slot, value)
        # One word alone is the name itself, and a state is no number that one writes down.
        if not shared or not (equal or (shared > 1 and slot.role == "param")):
            continue
        score = 4 * equal + 2 * shared - len(words - told)
        if score > most:
            best, most = slot, score
    return best
