"""An extension of griffe, which mkdocstrings reads Python with: docstrings of compiled modules.

Signatures and types of a compiled module are in its stub, its docstrings in the Cython source of the same name.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import griffe

SOURCES = Path(__file__).resolve().parent.parent / "src" / "cython" / "qpi_distill"
# A class or function that begins with a docstring; its head may go over several lines.
DEFINITION = re.compile(
    r"^(?P<indent> *)(?:cdef )?(?P<kind>class|def) (?P<name>\w+)(?:(?!:\n).)*:\n"
    r'\s+"""(?P<text>.*?)"""',
    re.MULTILINE | re.DOTALL,
)


def docstrings(source: str) -> dict[str, str]:
    """Docstrings of a Cython module by dotted name."""
    found, owner = {}, ""
    for match in DEFINITION.finditer(source):
        if not match["indent"]:
            owner = f"{match['name']}." if match["kind"] == "class" else ""
        name = f"{owner}{match['name']}" if match["indent"] else match["name"]
        found[name] = inspect.cleandoc(match["text"])
    return found


class CythonDocstrings(griffe.Extension):
    """Fills in what stubs leave out."""

    def on_package(self, *, pkg: griffe.Module, **_) -> None:
        for module in pkg.modules.values():
            source = SOURCES / f"{module.name}.pyx"
            if not module.is_alias and source.is_file():
                for name, text in docstrings(source.read_text(encoding="utf-8")).items():
                    documented = self.member(module, name)
                    if documented is not None and documented.docstring is None:
                        documented.docstring = griffe.Docstring(text, parent=documented)

    @staticmethod
    def member(module: griffe.Module, name: str) -> griffe.Object | None:
        """The object of this dotted name that the stub declares."""
        try:
            found = module[name]
        except KeyError:
            return None
        return None if found.is_alias else found
