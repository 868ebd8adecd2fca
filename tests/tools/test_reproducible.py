"""The comparison of two wheels sees every way in which they can differ. (The builds take minutes: `nox -s same`.)"""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "reproducible.py"
WHEN = (2023, 11, 14, 22, 13, 20)
PLAIN = (("a.py", b"a", WHEN), ("b.so", b"b", WHEN))


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("reproducible", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheel(path, members, comment=b""):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data, when in members:
            archive.writestr(zipfile.ZipInfo(name, when), data)
        archive.comment = comment
    return path


@pytest.mark.parametrize(
    ("members", "comment", "says"),
    [
        (PLAIN, b"", None),
        (PLAIN[:1], b"", "b.so: only in one"),
        ((PLAIN[0], ("b.so", b"c", WHEN)), b"", "b.so: other bytes"),
        ((PLAIN[0], ("b.so", b"b", (2024, *WHEN[1:]))), b"", "b.so: other time"),
        (PLAIN[::-1], b"", "another order"),
        (PLAIN, b"built here", "outside their members"),
    ],
    ids=["same", "member", "bytes", "time", "order", "archive"],
)
def test_differences_are_named(tool, tmp_path, capsys, members, comment, says):
    paths = wheel(tmp_path / "one.whl", PLAIN), wheel(tmp_path / "two.whl", members, comment)
    assert tool.main([str(path) for path in paths]) == int(says is not None)
    assert (says or "the same bytes") in capsys.readouterr().out
