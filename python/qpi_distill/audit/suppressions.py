"""Comments that speak to the audit.

// qpi-audit: allow ISV002 why            this line; alone on its line: the next line of code
// qpi-audit: allow ISV002, ISV003 why    several rules; no rule: all of them
// qpi-audit: off                         from here on, until
// qpi-audit: on
// qpi-audit: allow-file ISV004 why       the whole file
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from .tokens import Token

__all__ = ["Suppressions"]

_COMMENT = re.compile(r"qpi-audit:\s*(?P<what>[\w-]*)(?P<rest>[^\r\n]*)")
_RULES = re.compile(r"\s*(ISV\d+(?:\s*,\s*ISV\d+)*)?")


class Suppressions:
    """What the comments of a source allow.

    Parameters
    ----------
    tokens : sequence of Token
        The source.
    rules : collection of str
        Ids of the rules there are.

    Attributes
    ----------
    wrong : list of (Token, str)
        Comments that are not understood, and why.
    """

    def __init__(self, tokens: Sequence[Token], rules: Collection[str]) -> None:
        self._lines: dict[int, set[str]] = {}
        self._file: set[str] = set()
        self._off: list[tuple[int, int]] = []
        self.wrong: list[tuple[Token, str]] = []
        code_lines = sorted({t.line for t in tokens if t.kind not in ("space", "newline", "comment")})
        with_code, off_since = set(code_lines), 0
        for token in tokens:
            match = _COMMENT.search(token.text) if token.kind == "comment" else None
            if match is None:
                continue
            named = _RULES.match(match["rest"])
            ids = set(re.findall(r"ISV\d+", named[1])) if named is not None and named[1] else set(rules)
            unknown = sorted(ids - set(rules))
            if unknown:
                self.wrong.append((token, f"{', '.join(unknown)} is no rule"))
            elif match["what"] == "allow-file":
                self._file |= ids
            elif match["what"] == "allow":
                last = token.line + token.raw.rstrip("\r\n").count("\n")
                line = token.line if token.line in with_code else next((n for n in code_lines if n > last), last)
                self._lines.setdefault(line, set()).update(ids)
            elif match["what"] == "off":
                off_since = off_since or token.line
            elif match["what"] == "on":
                if off_since:
                    self._off.append((off_since, token.line))
                off_since = 0
            else:
                self.wrong.append((token, f"{match['what']!r} is not allow, allow-file, off or on"))
        if off_since:
            self._off.append((off_since, max([off_since, *code_lines])))

    def allow(self, rule: str, line: int) -> bool:
        """Say whether a finding of a rule at a line is allowed."""
        allowed = rule in self._file or rule in self._lines.get(line, ())
        return allowed or any(first <= line <= last for first, last in self._off)
