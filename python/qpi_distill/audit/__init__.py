"""Find numbers in C, C++ and CUDA sources that should be slots of the state vector.

`tokens` and `numbers` (the language), `structure` (where a literal stands), `vocabulary` (which names speak of
control), `rules`, `suppressions` (by comment), `baseline` (what is known), `files`. The command is
`qpi-distill isv audit`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from .files import sources
from .rules import RULES, Finding, Rule, findings_in
from .tokens import tokenize

__all__ = ["RULES", "Finding", "Found", "Report", "Rule", "audit", "findings_in", "sources"]


class Found(NamedTuple):
    """A finding, the file that it is in, and its line of code without white space and comments."""

    path: Path
    finding: Finding
    code: str


class Report(NamedTuple):
    """What an audit found in which files, and how many findings a comment allows."""

    files: list[Path]
    found: list[Found]
    allowed: int


def audit(paths: Iterable[Path], *, rules: Collection[str] = tuple(RULES), buffers: Collection[str] = ()) -> Report:
    """Audit files.

    Parameters
    ----------
    paths : iterable of Path
        The files; see `sources` for those in folders.
    rules : collection of str
        Ids of the rules to apply.
    buffers : collection of str
        Further names of state vectors; any name with the word "isv" is one.

    Raises
    ------
    OSError
        A file cannot be read.
    """
    files, found, allowed = list(paths), [], 0
    for path in files:
        # Any bytes will do: what is not UTF-8 stands in a comment or a string.
        text = path.read_bytes().decode("utf-8", errors="replace")
        findings, by_comment = findings_in(text, buffers)
        allowed += by_comment
        code = _code_of_lines(text) if findings else {}
        found += [Found(path, f, code.get(f.line, "")) for f in findings if f.rule in rules]
    return Report(files, found, allowed)


def _code_of_lines(text: str) -> dict[int, str]:
    """Return the tokens that begin on each line, one space between them."""
    lines: dict[int, list[str]] = {}
    for token in tokenize(text):
        if token.kind not in ("space", "newline", "comment"):
            lines.setdefault(token.line, []).append(" ".join(token.text.split()))
    return {line: " ".join(words) for line, words in lines.items()}
