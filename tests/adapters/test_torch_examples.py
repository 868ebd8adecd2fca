"""The torch examples run: two updates on the CPU, in which the controller moves lam."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "torch"
NEEDS = {
    "ten_lines": (),
    "cleanrl_ppo": ("gymnasium",),
    "sb3_ppo": ("gymnasium", "stable_baselines3"),
    "torchrl_ppo": ("gymnasium", "tensordict", "torchrl"),
}


def test_every_example_is_run():
    assert {path.stem for path in FOLDER.glob("*.py")} == set(NEEDS)


@pytest.mark.parametrize("name", NEEDS)
def test_two_updates(name, tmp_path):
    for package in NEEDS[name]:
        pytest.importorskip(package)
    arguments = ["--updates", "2"] if name != "ten_lines" else []
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, FOLDER / f"{name}.py", *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=140,
    )
    assert done.returncode == 0, done.stderr
    found = [tuple(map(float, pair)) for pair in re.findall(r"lam (\S+?),?\s+KL (\S+)", done.stdout)]
    assert len(found) == 2, done.stdout
    (lam, kl), (next_lam, next_kl) = found
    # The policies begin far from their critics: KL is above the dead zone, and lam goes up by the law's factor.
    assert min(kl, next_kl) > 3 * 0.05
    assert next_lam == pytest.approx(1.2 * lam, rel=1e-3)
