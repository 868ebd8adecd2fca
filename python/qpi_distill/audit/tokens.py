"""C, C++ and CUDA source as tokens: comments, strings, raw strings, numbers, names, punctuation, with their places.

Line continuations are taken out first, as a compiler does it, except within raw strings. Nothing is refused: what is
no token becomes one of kind "other", and the `raw` texts of all tokens put together are the source.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from typing import NamedTuple

__all__ = ["Token", "tokenize"]

_SPLICE = re.compile(r"\\\r?\n")
_NEWLINE = re.compile(r"\r\n|\n|\r")
_PUNCTUATION = (
    *("<<<", ">>>", "<<=", ">>=", "<=>", "->*", "..."),
    *("::", "->", "++", "--", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||"),
    *("+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "##", ".*"),
    *"{}[]()<>;:,.?~!+-*/%^&|=#@",
)
_RAW_OPEN = re.compile(r'(?:u8|[uUL])?R"([^ ()\\\t\v\f\r\n]{0,16})\(')
_TOKEN = re.compile(
    r"(?P<newline>\r\n|\n|\r)"
    r"|(?P<space>[ \t\f\v]+)"
    r"|(?P<comment>//[^\r\n]*|/\*.*?(?:\*/|\Z))"
    rf"|(?P<raw_string>{_RAW_OPEN.pattern})"
    r'|(?P<string>(?:u8|[uUL])?"(?:[^"\\\r\n]|\\[^\r\n])*(?:"|\\?(?=[\r\n]|\Z)))'
    r"|(?P<char>(?:u8|[uUL])?'(?:[^'\\\r\n]|\\[^\r\n])*(?:'|\\?(?=[\r\n]|\Z)))"
    r"|(?P<number>\.?[0-9](?:[eEpP][+-]|'(?=[0-9A-Za-z_])|[0-9A-Za-z_.])*)"
    r"|(?P<name>[^\W\d][\w$]*|\$[\w$]*)"
    rf"|(?P<punct>{'|'.join(map(re.escape, _PUNCTUATION))})"
    r"|(?P<other>.)",
    re.DOTALL,
)


class Token(NamedTuple):
    """A token.

    Attributes
    ----------
    kind : str
        "newline", "space", "comment", "string", "char", "number", "name", "punct" or "other".
    text : str
        The token without line continuations.
    raw : str
        As it is in the source; continuations go with the token before them.
    line, column : int
        Where it begins, from 1.
    closed : bool
        False for a comment or a string that has no end.
    """

    kind: str
    text: str
    raw: str
    line: int
    column: int
    closed: bool = True


def tokenize(source: str) -> list[Token]:
    """Return the tokens of a source; their `raw` texts, put together, are the source."""
    text, places = _spliced(source)
    starts = [0, *(match.end() for match in _NEWLINE.finditer(source))]
    tokens = []
    at = taken = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None  # "other" takes any character
        kind, end, body = str(match.lastgroup), match.end(), match[0]
        closed = True
        if kind == "raw_string":
            # As written, continuations and all, up to the delimiter that it names itself.
            kind, stop = "string", source.find(f'){_delimiter(body)}"', places[at])
            closed = stop >= 0
            last = stop + len(_delimiter(body)) + 2 if closed else len(source)
            body, end = source[places[at] : last], bisect_left(places, last)
        elif kind == "comment" and body.startswith("/*"):
            closed = len(body) >= 4 and body.endswith("*/")
        elif kind in ("string", "char"):
            closed = _is_closed(body, '"' if kind == "string" else "'")
        line = bisect_right(starts, places[at])
        raw = source[taken : places[end]]
        tokens.append(Token(kind, body, raw, line, places[at] - starts[line - 1] + 1, closed))
        at, taken = end, places[end]
    if taken < len(source):  # nothing but continuations
        tokens.append(Token("space", "", source[taken:], 1, 1))
    return tokens


def _spliced(source: str) -> tuple[str, list[int] | range]:
    """Return the source without line continuations, and where each of its characters and its end were."""
    if "\\" not in source:
        return source, range(len(source) + 1)
    pieces, places, at = [], [], 0
    for match in _SPLICE.finditer(source):
        pieces.append(source[at : match.start()])
        places.extend(range(at, match.start()))
        at = match.end()
    pieces.append(source[at:])
    places.extend(range(at, len(source) + 1))
    return "".join(pieces), places


def _delimiter(opening: str) -> str:
    return opening[opening.index('"') + 1 : -1]


def _is_closed(body: str, quote: str) -> bool:
    """Say whether a string or character literal ends with the quote that it began with."""
    inner = body[body.index(quote) + 1 :]
    return re.fullmatch(rf"(?:[^{quote}\\]|\\.)*{quote}", inner, re.DOTALL) is not None
