"""The examples run with two processes, which print the same lam and KL and learn."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from launching import launch

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "distributed"
WAYS = {"torch_ranks": "gloo", "mpi_ranks": "mpi"}
LINE = re.compile(r"^rank (\d) update (\d+) rows (\d+) lam (\S+) KL (\S+)$", re.MULTILINE)


def test_every_example_is_run():
    assert {path.stem for path in FOLDER.glob("*.py")} == set(WAYS)


@pytest.mark.parametrize("name", WAYS)
def test_two_ranks(name, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    text = launch(WAYS[name], 2, FOLDER / f"{name}.py", "--updates", 60)
    found = LINE.findall(text)
    one, other = ([line[1:] for line in found if line[0] == rank] for rank in "01")
    assert one == other
    assert [line[0] for line in one] == ["10", "20", "30", "40", "50", "60"], text
    assert {line[1] for line in one} == {"96"}
    kls, lams = [float(line[3]) for line in one], [float(line[2]) for line in one]
    assert kls[-1] < kls[0] / 2
    assert max(lams) > lams[0] or min(lams) < lams[0]


def free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
