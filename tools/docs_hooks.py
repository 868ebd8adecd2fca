"""What MkDocs does to the pages besides rendering them."""

from __future__ import annotations

import posixpath
import re

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(?:#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page, **_) -> str:
    """Links that lead out of docs/ work in the repository; the site has no such files and shows their paths."""
    folder = posixpath.dirname(page.file.src_uri)

    def shown(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, match.group(2)))
        inside = path.startswith("docs/")
        return match.group(0) if inside else f"`{path}`"

    return LINK.sub(shown, markdown)
