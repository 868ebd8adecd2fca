"""NVTX ranges: what they are put around, that they nest right, and that nothing is left of them."""

from __future__ import annotations

import os
import subprocess
import sys
import types

import numpy as np
import pytest

import qpi_distill as qpi
from qpi_distill import nvtx


class Domain:
    """Writes down what is pushed and popped."""

    def __init__(self):
        self.events, self.depth = [], 0

    def get_event_attributes(self, message):
        return message

    def push_range(self, message):
        self.events.append(message)
        self.depth += 1

    def pop_range(self):
        self.depth -= 1
        assert self.depth >= 0


@pytest.fixture
def domain(monkeypatch):
    one = Domain()
    monkeypatch.setitem(sys.modules, "nvtx", types.SimpleNamespace(get_domain=lambda name: one))
    yield one
    nvtx.disable()


METHODS = [(owner, name) for owner, names in nvtx._METHODS for name in names]


def methods():
    return [(owner.__dict__.get(name), getattr(owner, name)) for owner, name in METHODS]


def arrays():
    return np.zeros((3, 2, 2), np.float32), np.zeros((3, 2), np.float32), np.zeros((3, 2), np.float32)


def make():
    isv = qpi.ISV(device="cpu", lam=0.5)
    return isv, qpi.Distiller(actions=2, support=[0, 1], isv=isv, reduction="sum", value_scale="none")


def test_off_there_is_nothing_of_them(domain):
    before = methods()
    assert not nvtx.enabled()
    with nvtx.ranges():
        assert nvtx.enabled()
        assert all(new[1] is not old[1] for new, old in zip(methods(), before, strict=True))
    assert not nvtx.enabled()
    assert methods() == before
    assert qpi.Distiller.step is qpi._core.Operator.step


def test_each_call_has_its_range(domain):
    isv, op = make()
    recorder = qpi.Recorder(isv)
    with nvtx.ranges():
        op.step(*arrays())
        op.accumulate(*arrays())
        op.commit()
        op.distill_grad(*arrays())
        op.measure(*arrays()[:2])
        isv.control()
        isv.set(tau=2.0)
        assert isv.read().tau == 2.0
        bound = op.bind(*arrays())
        bound.step()
        assert bound.rows == 3
        recorder.drain()
    told = [event for event in domain.events if event != "ISV.read"]  # set reads where it has to check
    assert told == [
        *("Distiller.step", "Distiller.accumulate", "Distiller.commit", "Distiller.distill_grad", "Distiller.measure"),
        *("ISV.control", "ISV.set", "Distiller.bind", "Bound.step", "Recorder.drain"),
    ]
    assert domain.depth == 0


def test_the_results_are_the_same(domain):
    rng = np.random.default_rng(0)
    q, pi = rng.normal(size=(5, 2, 2)).astype(np.float32), rng.normal(size=(5, 2)).astype(np.float32)
    grads = []
    for on in (False, True):
        _, op = make()
        if on:
            nvtx.enable()
            nvtx.enable()  # twice is once
        grads.append(np.zeros_like(pi))
        op.step(q, pi, pi_grad=grads[-1])
        op.bind(q, pi, grads[-1]).step()
    assert np.array_equal(*grads)
    assert domain.events.count("Distiller.step") == 1


def test_an_error_ends_the_range(domain):
    _, op = make()
    with nvtx.ranges(), pytest.raises(ValueError, match="q_logits"):
        op.step(np.zeros((3, 3, 2), np.float32), *arrays()[1:])
    assert (domain.events, domain.depth) == (["Distiller.step"], 0)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with pytest.raises(ImportError, match=r'pip install "qpi-distill\[nvtx\]"'):
        nvtx.enable()
    assert not nvtx.enabled()


@pytest.mark.parametrize("asked", ["1", "0", ""])
def test_the_environment_asks_for_them(asked):
    pytest.importorskip("nvtx")
    code = "import sys, qpi_distill; print('nvtx' in sys.modules, 'qpi_distill.nvtx' in sys.modules)"
    env = {**os.environ, "QPI_DISTILL_NVTX": asked}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.split() == [str(asked == "1")] * 2


def test_with_the_package_itself():
    pytest.importorskip("nvtx")
    _, op = make()
    with nvtx.ranges():
        bound = op.bind(*arrays())
        bound.step()
        op.step(*arrays())
    assert op.isv.read().commits == 2
