"""benchmarks/multi_gpu.py: with processes on the CPU, and what it makes of results."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from benchmarks import multi_gpu
from benchmarks.ranks import checks
from benchmarks.ranks.data import STATE, split
from benchmarks.ranks.places import Host
from benchmarks.ranks.world import World

from backends import gpu_count
from qpi_distill.distributed import Exchange

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "multi_gpu.py"
CHECKS = {
    "same_bits",
    "same_bits_in_a_graph",
    "a_graph_does_the_same",
    "split_50_50",
    "split_90_10",
    "split_100_0",
    "skipped_shard",
}


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_three_ranks_on_the_cpu(tmp_path):
    command = [sys.executable, SCRIPT, "--device", "cpu", "--installed", "--ranks", "3", "--steps", "120"]
    command += ["--split-rows", "333", "--rows", "8", "64", "--work", tmp_path / "work", "--out", tmp_path / "out.json"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all checks passed" in done.stdout
    result = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert result["ranks"] == 3
    assert set(result["checks"]) == CHECKS
    assert all(check["ok"] for check in result["checks"].values())
    assert result["checks"]["same_bits"]["steps"] == 120
    assert result["checks"]["split_100_0"]["rows"] == [333, 0, 0]
    assert result["checks"]["skipped_shard"]["skipped"] == 111
    assert [row["rows"] for row in result["speed"]] == [8, 64]
    assert all(row["together_us"] > 0 for row in result["speed"])
    assert len(result["sources_sha256"]) == len(result["distributed_sha256"]) == 64
    assert result["sources_sha256"] != result["distributed_sha256"]


@pytest.mark.skipif(gpu_count()[0] > 0, reason="there are GPUs")
def test_without_gpus_nothing_is_written(tmp_path):
    out = tmp_path / "out.json"
    done = subprocess.run([sys.executable, SCRIPT, "--out", out], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no GPUs to run on" in done.stderr
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--device", "cpu", "--installed"], "needs --out"),
        (["--device", "cpu", "--out", "x"], "needs --installed or --wheel"),
        (["--device", "cpu", "--installed", "--out", "x", "--through", "nccl4py"], "connected by torch alone"),
        (["--steps", "0"], "counts"),
    ],
)
def test_arguments_that_do_not_go_together(words, message, capsys):
    with pytest.raises(SystemExit):
        multi_gpu.parse(words)
    assert message in capsys.readouterr().err


# ---- checks that can fail -------------------------------------------------------------------------------------------


class Echo(Exchange):
    """Two ranks, the other of which says what this one says, but for `change`."""

    rank, size = 0, 2

    def __init__(self, change):
        self.change = change

    def check(self, device):
        pass

    def all_gather(self, send, receive, device):
        parts = receive.reshape(2, -1)

        def gather(stream):
            parts[:] = send
            self.change(parts[1])

        return gather


def one_other_bit(part):
    if part.size > 1000:  # the history alone, not records or greetings
        part[5 * checks.RECORD_WORDS + 6] ^= 1


@pytest.mark.parametrize(("change", "differing"), [(lambda part: None, 0), (one_other_bit, 1)])
def test_one_bit_at_one_step_is_seen(change, differing):
    pytest.importorskip("torch")
    world = World(0, 2, Echo(change), None)
    found = checks.same_bits(world, Host(), 160)
    assert found["same_bits"]["differing"] == differing
    assert found["same_bits"]["ok"] == (differing == 0)


def path(lam, kl_ema):
    out = np.zeros(len(lam), [("lam", "f4"), ("kl_ema", "f4")])
    out["lam"], out["kl_ema"] = lam, kl_ema
    return out


def test_lam_may_take_another_path_only_where_the_average_is_on_a_bound():
    high = STATE["kl_target"] * STATE["kl_tolerance"]
    shared = path([0.1, 0.2, 0.3], [1, 1, 1])
    assert checks.kept_lam(shared, shared) == (True, None)
    assert checks.kept_lam(shared, path([0.1, 0.2, 0.4], [1, 1, 1])) == (False, 2)
    assert checks.kept_lam(shared, path([0.1, 0.25, 0.4], [1, high * (1 + 5e-7), 1])) == (True, 1)
    assert checks.kept_lam(shared, path([0.1, 0.25, 0.4], [1, high * (1 + 5e-6), 1])) == (False, 1)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.9, 1.0])
def test_a_split_is_one(share, size):
    shards = split(share, 101, size)
    assert len(shards) == size
    assert shards[0].start == 0
    assert shards[-1].stop == 101
    assert all(a.stop == b.start for a, b in pairwise(shards))
    assert size == 1 or shards[0].stop == round(101 * share)


# ---- what is made of a result --------------------------------------------------------------------------------------


def whole():
    row = {"rows": 1 << 20, "alone_us": 300.0, "without_exchange_us": 301.0, "together_us": 305.0, "exchange_us": 4.0}
    return {
        "device": "a GPU",
        "cuda": "13.0",
        "date": "now",
        "ranks": 2,
        "through": "torch",
        "checks": {"same_bits": {"differing": 0, "ok": True}},
        "floor": {"all_gather_us": 9.0},
        "speed": [{**row, "rows_per_s": 6_000_000, "speedup": 1.967}],
    }


def test_a_result_without_a_problem():
    assert multi_gpu.problems_of(whole()) == []
    text = multi_gpu.render(whole())
    assert "ok   same_bits  {'differing': 0}" in text
    assert "1.967" in text


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"checks": {"same_bits": {"ok": False}}}, "same_bits does not hold"),
        ({"checks": {}}, "nothing was checked"),
        ({"speed": []}, "nothing was timed"),
        ({"speed": [{"rows": 5, "speedup": 1.949}]}, "5 rows: 1.949 times one GPU, expected 1.95"),
        ({"notes": ["rank 1: exit status 1 after 3 s"]}, "rank 1: exit status 1 after 3 s"),
    ],
)
def test_problems_are_named(change, problem):
    assert multi_gpu.problems_of({**whole(), **change}) == [problem]
