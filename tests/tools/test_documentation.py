"""The documentation: its generated pages are up to date, its snippets run, and so do the docstrings' examples."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import qpi_distill as qpi

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"(?P<skip><!-- not run: [^>]+ -->\n)?^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = sorted(path for path in DOCS.rglob("*.md") if BLOCK.search(path.read_text(encoding="utf-8")))


def test_generated_pages_are_up_to_date():
    done = subprocess.run([sys.executable, ROOT / "tools/reference_pages.py", "--check"], check=False)
    assert done.returncode == 0, "run python3 tools/reference_pages.py"


def test_every_slot_law_preset_and_function_has_its_entry():
    slots = (DOCS / "reference/slots.md").read_text(encoding="utf-8")
    assert [slot.name for slot in qpi.ISV.slot_info() if f"| `{slot.name}` |" not in slots] == []
    laws = (DOCS / "reference/laws.md").read_text(encoding="utf-8")
    named = [law.name for of in qpi.ISV.laws().values() for law in of] + list(qpi.ISV.presets())
    assert [name for name in named if f"| `{name}` |" not in laws] == []
    header = (ROOT / "cuda/include/qpi_distill.h").read_text(encoding="utf-8")
    declared = re.findall(r"^QPI_API .*$", header, re.MULTILINE)
    page = (DOCS / "reference/c.md").read_text(encoding="utf-8")
    assert declared
    assert [line for line in declared if line not in page] == []


def test_there_are_pages_with_snippets():
    assert {"index.md", "tutorial.md", "howto/masks.md"} <= {str(path.relative_to(DOCS)) for path in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_snippets_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    names: dict[str, object] = {"__name__": page.stem}
    for block in BLOCK.finditer(text):
        # Compiled in any case: what cannot run here is Python all the same. Line numbers are the page's.
        line = text.count("\n", 0, block.start("code"))
        code = compile("\n" * line + block["code"], str(page), "exec")
        if not block["skip"]:
            exec(code, names)


@pytest.mark.parametrize("name", ["arrays", "distiller", "functions", "isv", "layout", "prometheus", "recorder"])
def test_examples_of_docstrings(name):
    module = importlib.import_module(f"qpi_distill.{name}")
    outcome = doctest.testmod(module, extraglobs={"qpi": qpi}, optionflags=doctest.ELLIPSIS)
    assert outcome.failed == 0


def test_links_of_the_readme_lead_somewhere():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = [target for target in re.findall(r"\]\(([^)#]+)", text) if "://" not in target]
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_links_that_leave_the_site_lead_somewhere():
    """MkDocs checks those within; tools/docs_hooks.py shows these as paths."""
    links = [
        (page, target)
        for page in DOCS.rglob("*.md")
        for target in re.findall(r"\]\((\.\./[^)#\s]+)", page.read_text(encoding="utf-8"))
    ]
    assert links
    assert [(str(page), target) for page, target in links if not (page.parent / target).exists()] == []


def test_docstrings_of_cython_sources_are_those_of_the_modules():
    pytest.importorskip("griffe")
    extension = tool("griffe_pyx")
    for name, owner in (("_core", "Operator"), ("_bound", "Bound")):
        found = extension.docstrings((extension.SOURCES / f"{name}.pyx").read_text(encoding="utf-8"))
        compiled = getattr(importlib.import_module(f"qpi_distill.{name}"), owner)
        public = [
            member for member in ("step", "accumulate", "distill_grad", "prepare", "bind") if member in dir(compiled)
        ]
        assert {"step", "accumulate", "distill_grad"} <= set(public)
        for member in public:
            assert found[f"{owner}.{member}"] == inspect.getdoc(getattr(compiled, member))


def tool(name):
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "tools"))


def test_the_hook_shows_paths_of_what_the_site_lacks():
    page = type("Page", (), {"file": type("File", (), {"src_uri": "howto/embedding.md"})})
    text = "[c](../../examples/c/distill.c), [in](../reference/c.md), [near](masks.md), ![plot](../../x.svg)"
    want = "`examples/c/distill.c`, [in](../reference/c.md), [near](masks.md), ![plot](../../x.svg)"
    assert tool("docs_hooks").on_page_markdown(text, page=page) == want
