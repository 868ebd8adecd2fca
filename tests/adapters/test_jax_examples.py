"""The JAX examples run on the CPU, and learn."""

from __future__ import annotations

import os
import re
import sys

import pytest

from toolchain import ROOT, run

pytest.importorskip("jax")

FOLDER = ROOT / "examples/jax"


def test_every_example_is_run():
    assert {path.name for path in FOLDER.glob("*.py")} == {"bandit_ppo.py"}


def test_ppo_on_a_bandit(tmp_path):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    printed = run([sys.executable, FOLDER / "bandit_ppo.py", "--updates", "41"], cwd=tmp_path, env=environment)
    lines = re.findall(r"update +(\d+) +reward +(\S+) +lam (\S+) +KL (\S+)", printed)
    assert [int(line[0]) for line in lines] == [0, 20, 40], printed
    rewards, lams, kls = (list(map(float, column)) for column in list(zip(*lines, strict=True))[1:])
    assert rewards[-1] > rewards[0] + 0.3  # arms pay 0 on average, 1 at most
    assert kls[-1] < kls[0] / 2
    # The first KL is above the dead zone: lam goes up by the law's factor, and later to its bound.
    assert lams[0] == pytest.approx(0.12, abs=1e-4)
    assert lams[-1] == 1.0
