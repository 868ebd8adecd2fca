"""The rules: what each finds, why it matters, and an example of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from .. import Layout
from .numbers import Number, number_of
from .structure import Define, Function, Item, Segment, Structure, structure_of
from .suppressions import Suppressions
from .tokens import Token, tokenize
from .vocabulary import STRUCTURE, defaults_equal_to, is_code, is_control, is_state, slot_for, words_of

__all__ = ["RULES", "Finding", "Rule", "findings_in"]


class Rule(NamedTuple):
    """A rule.

    Attributes
    ----------
    id, title : str
    why : str
        The rationale.
    bad, good : str
        A line that it finds, and what to write instead.
    """

    id: str
    title: str
    why: str
    bad: str
    good: str


RULES = {
    rule.id: rule
    for rule in (
        Rule(
            "ISV001",
            "bare index into a state vector",
            "A number says nothing about the slot, and goes on compiling when the layout changes. A name, or the index "
            "from qpi_layout, does neither.",
            "float lam = isv[486];",
            "float lam = isv[layout.index[QPI_SLOT_lam]];",
        ),
        Rule(
            "ISV002",
            "number beside a control-like name",
            "A number that steers λ, τ, the KL or an average belongs into a slot: there it can be seen, changed while "
            "a captured graph runs, and saved with the state. A slot that is read counts as such a name. Left alone "
            "are 0, 1, 2 and 1/2 in formulas (a bound that is the default of a slot is none), numbers below 1e-6, "
            "which guard a division or a logarithm, bit operations, sizes, and lists of numbers.",
            "tau = fmaxf(tau, 1e-3f);",
            "tau = fmaxf(tau, isv[TAU_MIN]);",
        ),
        Rule(
            "ISV003",
            "default of a slot, written as a number",
            "A function that has the state vector at hand computes with a number that is the default of a parameter. "
            "Should that parameter be meant, setting it would not reach here. Round numbers from 0.1 on are too "
            "common to say anything, except as bounds.",
            "y = x * 0.998f;",
            "y = x * isv[LAM_DOWN];",
        ),
        Rule(
            "ISV004",
            "constant that duplicates the default of a slot",
            "The number is written down twice; only one of the two can be set, saved and recorded.",
            "#define KL_TOLERANCE 3.0f",
            "const float kl_tolerance = isv[KL_TOLERANCE_INDEX];",
        ),
        Rule(
            "ISV005",
            "control constant that is no slot",
            "A named constant of the control loop is still one that needs a compiler to be changed.",
            "constexpr float kLambdaRamp = 1.5f;",
            "const float ramp = isv[LAM_UP];",
        ),
        Rule(
            "ISV900",
            "source or comment that the audit cannot follow",
            "A comment or string without an end hides what comes after it, and a comment to the audit that it does not "
            "understand allows nothing.",
            "// qpi-audit: alow ISV002",
            "// qpi-audit: allow ISV002 why",
        ),
    )
}

_TRIVIAL = (0, 1, 2, 0.5)
_GUARD = 1e-6  # below it a number keeps a division or a logarithm defined
_ROUND = 0.1  # from it on a number of one digit is too common to mean a slot
_BITWISE = frozenset(["%", "<<", ">>", "&", "|", "^", "~", "%=", "<<=", ">>=", "&=", "|=", "^="])
_ARITHMETIC = frozenset(["+", "-", "*", "/", "<", ">", "<=", ">=", "==", "!=", "+=", "-=", "*=", "/="])
_CONST = frozenset(["const", "constexpr", "constinit"])
_BUS = {index: name for name, index in Layout.bus().to_dict().items()}


class Finding(NamedTuple):
    """What a rule found.

    Attributes
    ----------
    rule : str
        Its id.
    line, column : int
        Where, from 1.
    literal : str
        The number, as it is written.
    message : str
        What it is, and which slot it may mean.
    slot : str or None
        The slot that it may mean.
    """

    rule: str
    line: int
    column: int
    literal: str
    message: str
    slot: str | None


def findings_in(source: str, buffers: Collection[str] = ()) -> tuple[list[Finding], int]:
    """Audit a source.

    Parameters
    ----------
    source : str
    buffers : collection of str
        Further names of state vectors. Any name with the word "isv" is one.

    Returns
    -------
    findings : list of Finding
        In the order of the source, without those that a comment allows.
    allowed : int
        How many findings a comment allows.
    """
    tokens = tokenize(source)
    suppressions = Suppressions(tokens, RULES)
    found = {(f.line, f.column, f.rule): f for f in _Audit(structure_of(tokens), buffers).run()}
    for token in tokens:
        # An apostrophe in a line that the preprocessor drops is no character.
        if not token.closed and token.kind != "char":
            finding = _finding("ISV900", token, f"a {token.kind} that has no end", None, literal="")
            found[finding.line, finding.column, finding.rule] = finding
    kept = [f for f in found.values() if not suppressions.allow(f.rule, f.line)]
    for token, why in suppressions.wrong:
        kept.append(
            _finding("ISV900", token, f"a comment to the audit that is not understood: {why}", None, literal="")
        )
    return sorted(kept, key=lambda f: f[1:3]), len(found) + len(suppressions.wrong) - len(kept)


def _finding(rule: str, token: Token, message: str, slot: str | None, literal: str | None = None) -> Finding:
    return Finding(rule, token.line, token.column, token.text if literal is None else literal, message, slot)


class _Audit:
    """The rules over one structure."""

    def __init__(self, structure: Structure, buffers: Collection[str]) -> None:
        self.structure = structure
        self.buffers = buffers
        self.touches = {}
        for function in {id(s.function): s.function for s in structure.segments if s.function}.values():
            self.touches[id(function)] = any(map(self.is_state, function.names))
        self.anywhere = any(self.touches.values())
        self.bases = {(i.base.line, i.base.column) for i in structure.indices if self.is_state(i.base.text)}
        self.indexing = {token.text for index in structure.indices for token in index.tokens if token.kind == "name"}

    def is_state(self, name: str) -> bool:
        return is_state(name, self.buffers)

    def has_state(self, function: Function | None) -> bool:
        return function is not None and self.touches[id(function)]

    def run(self) -> Iterator[Finding]:
        yield from self.indices()
        for define in self.structure.defines:
            if define.name is not None:
                yield from self.define(define)
        for segment in self.structure.segments:
            constant = _constant_of(segment)
            if constant is not None:
                yield from self.constant(*constant)
            elif segment.items:
                yield from self.expression(segment)

    # ---- ISV001 ------------------------------------------------------------------------------------------------------

    def indices(self) -> Iterator[Finding]:
        for index in self.structure.indices:
            numbers = [token for token in index.tokens if token.kind == "number"]
            if numbers and self.is_state(index.base.text) and not any(t.kind == "name" for t in index.tokens):
                yield self.bare_index(numbers[0], f"{index.base.text}[{''.join(t.text for t in index.tokens)}]")

    def bare_index(self, token: Token, shown: str) -> Finding:
        number = number_of(token.text) if shown.endswith(f"[{token.text}]") else None
        slot = None if number is None else _BUS.get(number.value)
        told = f": {slot} in the layout 'bus'" if slot else ""
        return _finding("ISV001", token, f"{shown} indexes a state vector by a bare number{told}", slot)

    # ---- ISV004, ISV005 ----------------------------------------------------------------------------------------------

    def define(self, define: Define) -> Iterator[Finding]:
        assert define.name is not None
        signed = _literal_of(define.body)
        if signed is not None:
            yield from self.constant(define.name.text, *signed)
        elif define.body:
            yield from self.expression(Segment([Item(token) for token in define.body], None))

    def constant(self, name: str, token: Token, number: Number, sign: int) -> Iterator[Finding]:
        value = sign * number.value
        if not number.decimal or value == 0 or (number.real and abs(value) < _GUARD):
            return
        if not number.real and (name in self.indexing or value in _BUS or is_code(name) or is_state(name)):
            return  # the name of an index
        equal = defaults_equal_to(value)
        if is_control(name):
            slot = slot_for([name], value)
            if slot is not None and slot in equal:
                text = f"{name} = {token.text} duplicates the default of slot {slot.name}"
                yield _finding("ISV004", token, text, slot.name)
            else:
                near = f"; slot {slot.name} may be what it is" if slot is not None else ""
                yield _finding(
                    "ISV005", token, f"{name} = {token.text} is a control constant{near}", slot and slot.name
                )
        elif equal and self.anywhere and number.real and _tells(value) and not STRUCTURE & set(words_of(name)):
            names = " or ".join(slot.name for slot in equal)
            text = f"{name} = {token.text} is the default of slot {names}"
            yield _finding("ISV004", token, text, equal[0].name)

    # ---- ISV002, ISV003 ----------------------------------------------------------------------------------------------

    def expression(self, segment: Segment) -> Iterator[Finding]:
        items = segment.items
        if segment.enumerator or items[0].token.text in ("case", "goto", "using", "typedef"):
            return
        control = [i.token.text for i in items if i.token.kind == "name" and is_control(i.token.text)]
        read = [i.token.text for i in items if (i.token.line, i.token.column) in self.bases]
        listed = sum(1 for item in items if item.call == "{" and item.token.kind == "number") > 1
        for at, item in enumerate(items):
            number = number_of(item.token.text) if item.token.kind == "number" else None
            if number is None or not number.decimal or (listed and item.call == "{"):
                continue
            before = items[at - 1].token.text if at else ""
            after = items[at + 1].token.text if at + 1 < len(items) else ""
            base = items[at - 2].token.text if before == "+" and at > 1 else ""
            if self.is_state(base) and not base.isupper() and not number.real:
                yield self.bare_index(item.token, f"{base}[{item.token.text}]")
                continue
            if before in _BITWISE or after in _BITWISE or (before == ":" and "?" not in [i.token.text for i in items]):
                continue
            hints = [end for end, call in (("min", "max"), ("max", "min")) if call in item.call or "clamp" in item.call]
            if number.real and number.value < _GUARD:
                continue
            beside = control + (read if number.real else [])
            if number.real and len(items) == 1 and segment.function is not None:  # a list of macros is a table
                beside = sorted(filter(is_control, segment.call_names))
            if beside and not self.is_trivial(number.value, beside, hints):
                slot = slot_for(beside, number.value, hints)
                near = f"; slot {slot.name} may be what it is" if slot is not None else ""
                text = f"{item.token.text} beside {beside[0]} is a number of the control loop{near}"
                yield _finding("ISV002", item.token, text, slot and slot.name)
            elif not beside and number.real and number.value not in _TRIVIAL and self.has_state(segment.function):
                equal = defaults_equal_to(number.value) if hints or _tells(number.value) else []
                if equal and (item.call not in ("", "{") or before in _ARITHMETIC or after in _ARITHMETIC):
                    names_ = " or ".join(slot.name for slot in equal)
                    text = f"{item.token.text} is the default of slot {names_}, which this function could read"
                    yield _finding("ISV003", item.token, text, equal[0].name)

    @staticmethod
    def is_trivial(value: float, control: list[str], hints: list[str]) -> bool:
        """Say whether a number is part of a formula rather than a choice."""
        if value not in _TRIVIAL:
            return False
        if value == 0 or not hints:
            return True
        slot = slot_for(control, value, hints)
        return slot is None or slot.default != value or slot.role != "param"


def _constant_of(segment: Segment) -> tuple[str, Token, Number, int] | None:
    """Return name and value where a segment declares a constant."""
    tokens = [item.token for item in segment.items]
    words = {token.text for token in tokens}
    if not words & _CONST:
        return None
    at = next((i for i in range(1, len(tokens)) if tokens[i].text == "="), None)
    if at is None:  # name{literal}
        at = next((i for i, item in enumerate(segment.items) if i and item.call == "{"), None)
        if at is None:
            return None
        value = tokens[at:]
    else:
        value = tokens[at + 1 :]
    if tokens[at - 1].kind != "name":
        return None
    signed = _literal_of(value)
    return None if signed is None else (tokens[at - 1].text, *signed)


def _literal_of(tokens: Collection[Token]) -> tuple[Token, Number, int] | None:
    """Return the literal that the tokens are, apart from a sign, brackets and a cast to a number."""
    casts = ("float", "double", "int", "unsigned", "static_cast")
    bare = [token for token in tokens if token.text not in ("(", ")", *casts)]
    sign = 1
    if len(bare) == 2 and bare[0].text in ("+", "-"):
        sign = -1 if bare[0].text == "-" else 1
        bare = bare[1:]
    number = number_of(bare[0].text) if len(bare) == 1 and bare[0].kind == "number" else None
    return None if number is None else (bare[0], number, sign)


def _tells(value: float) -> bool:
    """Say whether a number is special enough to mean a slot without a name beside it."""
    digits = f"{value:.9e}".split("e")[0].replace(".", "").strip("-0")
    return len(digits) > 1 or abs(value) < _ROUND
