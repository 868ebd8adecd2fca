"""Where a literal stands: the expressions of a source, and what is no arithmetic left out.

This is no compiler: types, macros and templates are not expanded. Brackets are matched, and what a bracket is follows
from what is before it: a call, an index, a block, an attribute, template arguments, a launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .tokens import Token

__all__ = ["Define", "Function", "Index", "Item", "Segment", "Structure", "structure_of"]

#: Functions whose arguments belong to one thought: a number beside a name in them is beside it.
MATHEMATICS = frozenset(
    f"{prefix}{name}{suffix}"
    for name in (
        *("min", "max", "fmin", "fmax", "clamp", "saturate", "lerp", "fma", "abs", "fabs"),
        *("pow", "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log1p", "tanh"),
    )
    for prefix in ("", "__")
    for suffix in ("", "f", "_rn")
)
_CASTS = frozenset(
    (
        *("float", "double", "half", "T", "scalar_t", "__half", "__nv_bfloat16", "static_cast", "int"),
        *("unsigned", "__float2half", "__float2bfloat16"),
    )
)
# What stands in the brackets after these is no arithmetic of the program.
_NO_ARITHMETIC = frozenset(
    (
        *("__launch_bounds__", "__maxnreg__", "__cluster_dims__", "__block_size__", "__attribute__"),
        *("__declspec", "__align__", "alignas", "alignof", "sizeof", "decltype", "static_assert"),
        *("_Static_assert", "asm", "__asm__", "__asm", "noexcept", "volatile", "_Pragma", "__pragma"),
        *("for",),
    )
)
_CONTROL_FLOW = frozenset(["if", "while", "switch", "return", "catch"])
_TYPE_BLOCKS = frozenset(["struct", "class", "union", "namespace", "extern", "concept"])
_TEMPLATE_PUNCT = frozenset(("::", ",", "*", "&", "...", "(", ")", "[", "]", "-", "+", ".", "=", ":"))
_AFTER_TEMPLATE = frozenset(("(", "::", "{", ";", ",", ")", "<<<", "&", "*", "&&", ">", "..."))
_MOST_TEMPLATE_TOKENS = 200
_CLOSERS = {"(": ")", "[": "]", "{": "}", "<<<": ">>>"}


@dataclass
class Function:
    """A function's body, and the names in its head and body."""

    names: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Item:
    """A token of an expression, and the mathematical function whose argument it is."""

    token: Token
    call: str = ""


@dataclass
class Segment:
    """The tokens of one expression or declaration; an argument of a call is one of its own."""

    items: list[Item]
    function: Function | None
    #: Names of the call that it is an argument of, the other arguments included.
    call_names: set[str] = field(default_factory=set)
    enumerator: bool = False  # the codes of an enumeration are no numbers of the loop


@dataclass(frozen=True)
class Index:
    """What stands between the brackets after a name."""

    base: Token
    tokens: tuple[Token, ...]
    function: Function | None


@dataclass(frozen=True)
class Define:
    """A #define without parameters, or the body of one with them (then `name` is None)."""

    name: Token | None
    body: tuple[Token, ...]


@dataclass
class Structure:
    """What `structure_of` finds."""

    segments: list[Segment] = field(default_factory=list)
    indices: list[Index] = field(default_factory=list)
    defines: list[Define] = field(default_factory=list)


def structure_of(tokens: Sequence[Token]) -> Structure:
    """Return the expressions, indices and macros of a source."""
    code, directives = _apart(tokens)
    found = Structure()
    _Walk(found).run(code)
    for directive in directives:
        define = _define(directive)
        if define is not None:
            found.defines.append(define)
            if define.name is None:
                _Walk(found).run(define.body)
    return found


def _apart(tokens: Sequence[Token]) -> tuple[list[Token], list[list[Token]]]:
    """Return what counts of the code, and each preprocessor line."""
    code: list[Token] = []
    directives: list[list[Token]] = []
    fresh, into = True, code
    for token in tokens:
        if token.kind == "newline":
            fresh, into = True, code
        elif token.kind == "punct" and token.text == "#" and fresh:
            fresh, into = False, []
            directives.append(into)
        elif token.kind == "space" and into is not code:
            into.append(token)
        elif token.kind not in ("space", "comment"):
            fresh = False
            into.append(token)
    return code, directives


def _define(directive: list[Token]) -> Define | None:
    words = [token for token in directive if token.kind != "space"]
    if len(words) < 2 or words[0].text != "define" or words[1].kind != "name":
        return None
    at = directive.index(words[1]) + 1
    rest = directive[at:]
    if rest and rest[0].text == "(":  # without a space: parameters
        closing = next((i for i, token in enumerate(rest) if token.text == ")"), len(rest))
        return Define(None, tuple(token for token in rest[closing + 1 :] if token.kind != "space"))
    return Define(words[1], tuple(token for token in rest if token.kind != "space"))


@dataclass
class _Frame:
    """An open bracket."""

    closer: str
    segment: Segment | None  # where its tokens go; None: nowhere
    call: str = ""
    names: set[str] = field(default_factory=set)  # of a call: its own and those in its arguments
    commas_part: bool = False  # whether commas begin a new segment
    base: Token | None = None  # of an index
    tokens: list[Token] = field(default_factory=list)  # what is in it
    block: bool = False
    enumeration: bool = False
    function: Function | None = None
    head: list[Token] = field(default_factory=list)  # of a block: the statement so far


class _Walk:
    def __init__(self, found: Structure) -> None:
        self.found = found
        self.stack = [_Frame("", None, commas_part=True, block=True)]
        self._new_segment(self.stack[0])

    def run(self, code: Sequence[Token]) -> None:
        skip_to = 0
        before: Token | None = None  # template arguments and launches do not count
        for i, token in enumerate(code):
            if i < skip_to:
                continue
            frame = self.stack[-1]
            if token.kind == "punct":
                if token.text == "<" and before is not None and before.kind == "name":
                    skip_to = _template_end(code, i)
                    if skip_to:
                        continue
                if token.text in _CLOSERS:
                    after = code[i + 1] if i + 1 < len(code) else None
                    self._open(frame, token, before, after)
                    before = before if token.text == "<<<" else token
                    continue
                if token.text in (")", "]", "}", ">>>") and self._close(token.text):
                    before = before if token.text == ">>>" else token
                    continue
            self._take(frame, token)
            if frame.closer != ">>>":
                before = token
        while len(self.stack) > 1:
            self._close(self.stack[-1].closer)

    # ---- brackets --------------------------------------------------------------------------------------------------

    def _open(self, frame: _Frame, token: Token, before: Token | None, after: Token | None) -> None:
        closer = _CLOSERS[token.text]
        name = before.text if before is not None and before.kind == "name" else ""
        function = frame.function
        silent = frame.segment is None
        if token.text == "[":
            attribute = after is not None and after.text == "["
            base = before if name and not attribute else None
            self.stack.append(_Frame(closer, None, base=base, function=function))
        elif silent or token.text == "<<<" or name in _NO_ARITHMETIC:
            self.stack.append(_Frame(closer, None, function=function))
        elif token.text == "(":
            if name and name.lower() not in MATHEMATICS and name not in _CASTS:
                call = name not in _CONTROL_FLOW
                inner = _Frame(closer, None, names={name} if call else set(), commas_part=call, function=function)
                self._new_segment(inner)
                self.stack.append(inner)
            else:
                call = name.lower() if name.lower() in MATHEMATICS else frame.call
                self.stack.append(_Frame(closer, frame.segment, call=call, function=function))
        else:
            self._open_brace(frame, closer, before)

    def _open_brace(self, frame: _Frame, closer: str, before: Token | None) -> None:
        head = {token.text for token in frame.head}
        first = frame.head[0].text if frame.head else ""
        assigned = before is not None and before.text in ("=", ",", "(", "return")
        labelled = before is not None and before.text == ":"
        if frame.block and "enum" in head and not assigned:
            inner = _Frame(closer, None, commas_part=True, block=True, enumeration=True, function=frame.function)
        elif (
            frame.block
            and not assigned
            and (not frame.head or labelled or head & _TYPE_BLOCKS or ")" in head or first in ("else", "do", "try"))
        ):
            function = frame.function
            if function is None and ")" in head and not head & _TYPE_BLOCKS - {"extern"}:
                function = Function({token.text for token in frame.head if token.kind == "name"})
            inner = _Frame(closer, None, commas_part=True, block=True, function=function)
        else:  # an initialiser belongs to what it initialises, a list of numbers is data
            self.stack.append(_Frame(closer, frame.segment, call="{", function=frame.function))
            return
        self._new_segment(inner)
        self.stack.append(inner)

    def _close(self, closer: str) -> bool:
        """Close the bracket that this one ends, and those in it that were left open; False where there is none."""
        depth = next((d for d in range(len(self.stack) - 1, 0, -1) if self.stack[d].closer == closer), 0)
        if not depth:
            return False
        # Not out of a block by a bracket that is no brace: branches of the preprocessor may leave one open.
        if closer != "}" and any(frame.block for frame in self.stack[depth + 1 :]):
            return False
        ended = self.stack[depth]
        for frame in self.stack[depth + 1 :]:
            ended.tokens += frame.tokens
        del self.stack[depth:]
        outer = self.stack[-1]
        outer.tokens += ended.tokens
        if ended.base is not None:
            self.found.indices.append(Index(ended.base, tuple(ended.tokens), ended.function))
        if ended.block:
            self._new_segment(outer)
            outer.head = []
        elif closer == ")":
            outer.head.append(Token("punct", ")", ")", 0, 0))
        return True

    # ---- tokens ----------------------------------------------------------------------------------------------------

    def _take(self, frame: _Frame, token: Token) -> None:
        frame.tokens.append(token)
        if frame.block:
            frame.head.append(token)
        else:
            for outer in reversed(self.stack):
                if outer.block:
                    outer.head.append(token)
                    break
        if frame.function is not None and token.kind == "name":
            frame.function.names.add(token.text)
        if frame.segment is None:
            return
        if frame.names and token.kind == "name":
            frame.names.add(token.text)
        splits = token.kind == "punct" and (
            token.text in (";", "&&", "||") or (token.text == "," and frame.commas_part)
        )
        label = token.text == ":" and bool(frame.segment.items) and frame.segment.items[0].token.text == "case"
        if splits or label:
            self._split(frame)
            if token.text == ";" and frame.block:
                frame.head, frame.tokens = [], []
        else:
            frame.segment.items.append(Item(token, frame.call))

    def _split(self, frame: _Frame) -> None:
        """Begin a new segment, for this bracket and for those around it that share it."""
        old = frame.segment
        self._new_segment(frame)
        for outer in self.stack:
            if outer is not frame and outer.segment is old:
                outer.segment = frame.segment

    def _new_segment(self, frame: _Frame) -> None:
        frame.segment = Segment([], frame.function, frame.names, frame.enumeration)
        self.found.segments.append(frame.segment)


def _template_end(code: Sequence[Token], at: int) -> int:
    """Return where the template arguments that may begin at `at` end, past their bracket, or 0 where there are none."""
    depth, brackets = 0, 0
    for i in range(at, min(len(code), at + _MOST_TEMPLATE_TOKENS)):
        token = code[i]
        if token.text == "<":
            depth += 1
        elif token.text in (">", ">>", ">>>"):
            depth -= len(token.text)
            if depth <= 0:
                after = code[i + 1] if i + 1 < len(code) else None
                called = after is None or after.kind == "name" or after.text in _AFTER_TEMPLATE
                return i + 1 if called and brackets == 0 else 0
        elif token.text in ("(", "["):
            brackets += 1
        elif token.text in (")", "]"):
            brackets -= 1
            if brackets < 0:
                return 0
        elif token.kind == "punct" and token.text not in _TEMPLATE_PUNCT and not (token.text == "&&" and brackets):
            return 0
    return 0
