"""Write docs/reference/ from the headers: the slots, the control laws and the C interface.

python3 tools/reference_pages.py            rewrite the pages
python3 tools/reference_pages.py --check    exit 1 and name the pages that would change
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import readme  # noqa: E402  (the checkout is no package)
from generated import table  # noqa: E402

INCLUDE = ROOT / "cuda" / "include"
PAGES = ROOT / "docs" / "reference"
NOTE = "<!-- Made by tools/reference_pages.py from the headers: change those. -->\n"
WORDS = {"F32": "float32, 1 word", "U32": "uint32, 1 word", "U64": "uint64, 2 words, low word first"}
PRESET = re.compile(r"X\((\w+),\s*(\w+),\s*((?:V\(\w+,\s*[^)]+\)\s*)+),\s*\"([^\"]+)\"\)")
VALUE = re.compile(r"V\((\w+),\s*([^)]+)\)")
SECTION = re.compile(r"^/\* ---- (.+?) -{3,}[ \t]*(?:\n \*/|$)", re.MULTILINE)


def slots() -> str:
    """One entry a slot, with its range."""
    parts = [
        NOTE,
        "# Slots of the state vector\n",
        "Every number of the loop, from `qpi_distill/isv_manifest.h`. A *parameter* is set by the host, a *state* is "
        "moved by the loop and saved with it, an *output* is written for people. A layout may lack any of them: the "
        "workspace then holds it, from its default on. In Python `ISV(...)` and `ISV.set(...)` take them by name and "
        "check the range; in C `qpi_isv_slot_info` gives the same entries, `QPI_SLOT_<name>` their numbers.\n",
    ]
    rows = []
    for name, kind, role, default, low, high, unit, meaning in readme.ENTRY.findall(readme.MANIFEST.read_text()):
        bounds = "" if role == "OUTPUT" else f"{bound(low)} to {bound(high)}"
        shown = "" if role == "OUTPUT" else readme.number(default)
        rows.append([f"`{name}`", WORDS[kind], readme.ROLES[role], shown, bounds, unit, cell(meaning)])
    parts.append(table(["slot", "type", "role", "default", "range", "unit", "meaning"], rows))
    return "\n".join(parts) + "\n"


def bound(text: str) -> str:
    text = text.strip()
    if "COUNT" in text:
        return "the last law"
    return "∞" if text == "INFINITY" else f"{float(text):.4g}"


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def laws() -> str:
    """The registry of laws, and the presets with the numbers that they set."""
    text = readme.LAWS.read_text()
    presets = []
    for name, law, values, source in PRESET.findall(text[text.index("#define QPI_PRESETS") :]):
        sets = ", ".join(f"`{slot}` {value.strip()}" for slot, value in VALUE.findall(values))
        presets.append([f"`{name}`", f"`{law}`", sets, source])
    return "\n".join(
        (
            NOTE,
            "# Control laws\n",
            "From `qpi_distill/laws.h`. The slots `lam_law` and `tau_law` choose one, by name in Python and by number "
            "in C. Every law keeps to `[lam_min, lam_max]` or `[tau_min, tau_max]`. In the formulas `clip` is to the "
            "law's own bound, `error` is KL / goal − 1, and t goes from 0 to 1 over `lam_steps` or `tau_steps` "
            "observations.\n",
            readme.laws(),
            "\n## Presets\n",
            "A law of λ with the numbers of its source: `ISV(preset=...)`, `qpi_preset_get`.\n",
            table(["preset", "law", "sets", "source"], presets),
            "",
        )
    )


def c_interface() -> str:
    """The public header, section by section, as it stands."""
    text = (INCLUDE / "qpi_distill.h").read_text()
    preface = re.match(r"/\* (.*?)\*/", text, re.DOTALL).group(1)
    marks = list(SECTION.finditer(text))
    parts = [
        NOTE,
        "# The C interface\n",
        "`#include <qpi_distill.h>`, plain C99 without a CUDA header; link `libqpi_distill.so`. C++ has "
        "`qpi_distill.hpp` on top of it. [Embedding](../howto/embedding.md) says how to find both.\n",
        block(re.sub(r"^ \* ?", "", preface, flags=re.MULTILINE), "text"),
    ]
    for mark, following in zip(marks, [*marks[1:], None], strict=True):
        body = text[mark.end() : following.start() if following else text.index("#ifdef __cplusplus", mark.end())]
        # The ruler opens a comment; where the section has more to say, the comment goes on.
        opened = not mark.group(0).endswith("*/")
        title = mark.group(1)
        parts += [f"## {title[0].upper()}{title[1:]}\n", block(("/*" if opened else "") + body, "c")]
    return "\n".join(parts)


def block(text: str, language: str) -> str:
    return f"```{language}\n{text.strip()}\n```\n"


MAKERS = {"slots.md": slots, "laws.md": laws, "c.md": c_interface}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a page is out of date")
    options = parser.parse_args(arguments)
    stale = []
    for name, make in MAKERS.items():
        path, text = PAGES / name, make()
        if not path.exists() or path.read_text() != text:
            stale.append(name)
            if not options.check:
                path.write_text(text)
    if options.check and stale:
        print(f"out of date: {', '.join(stale)}", file=sys.stderr)
    return int(options.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
