"""Texts with generated parts: what stands between `<!-- begin: name -->` and `<!-- end: name -->` is made by a tool."""

from __future__ import annotations

from collections.abc import Callable, Mapping


def fill(text: str, parts: Mapping[str, Callable[[], str]]) -> str:
    """The text with its parts made anew. ValueError where a part has no place, or a place has no part."""
    for name, make in parts.items():
        begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
        if text.count(begin) != 1 or text.count(end) != 1 or text.index(end) < text.index(begin):
            raise ValueError(f"the text has no place for {name}, or more than one")
        head, _, rest = text.partition(begin)
        tail = rest.partition(end)[2]
        text = f"{head}{begin}\n{make()}\n{end}{tail}"
    if text.count("<!-- begin: ") != len(parts):
        raise ValueError(f"the text has a place for something else than {', '.join(parts)}")
    return text


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in (head, ["---"] * len(head), *rows))


def spaced(number: int) -> str:
    """An integer with its thousands apart."""
    return f"{number:,}".replace(",", " ")
