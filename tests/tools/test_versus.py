"""How peers are checked and timed, with a GPU and peers that are NumPy."""

import time
from contextlib import contextmanager

import numpy as np
import pytest
from benchmarks import arrays
from benchmarks.cases import plain
from benchmarks.peers import STATE, numpy_step
from numpy.testing import assert_allclose

pytest.importorskip("cuda.bindings.driver")
from benchmarks import versus
from benchmarks.peers.on_gpu import Peer, State

CASE = plain(500)


class NumpyGpu:
    """Device memory is NumPy's, and everything is done at once."""

    def set_bytes(self, array, byte):
        array.view(np.uint8)[...] = byte

    def fetch(self, array):
        return array

    def synchronize(self):
        pass

    def times_ms(self, launch, repeats):
        taken = []
        for _ in range(repeats):
            begun = time.perf_counter()
            launch()
            taken.append(1000 * (time.perf_counter() - begun))
        return taken


class NumpyPeer(Peer):
    """The step in NumPy, with a fault of its own."""

    slowness = 500  # so that a graph holds few steps

    def __init__(self, fault=""):
        super().__init__(NumpyGpu(), CASE, arrays.host_sets(CASE, 0))
        self.fault = fault
        self.put(State())

    def put(self, state):
        self.state = numpy_step.State(*state)

    def get(self):
        return State(self.state.lam, self.state.kl_ema, self.state.observations)

    def step(self, number):
        one, state = self.sets[number], self.state
        if self.fault == "nothing":
            return
        before = one.grad.copy(), State(state.lam, state.kl_ema, state.observations)
        numpy_step.step(one.q, one.pi, arrays.support_of(CASE), one.grad, state)
        if self.fault == "a sum":
            one.grad[...] = before[0] + (one.grad - before[0]) * CASE.rows
        elif self.fault == "a row":
            one.grad[-1] = before[0][-1]
        elif self.fault == "nan":
            one.grad[-1, -1] = np.nan
        elif self.fault == "no law":
            state.lam = before[1].lam
        elif self.fault == "no average":
            state.kl_ema = (state.kl_ema - before[1].kl_ema) / STATE["kl_alpha"] + before[1].kl_ema
        elif self.fault == "counts twice":
            state.observations += 1

    @contextmanager
    def graph(self, steps):
        yield lambda: self.steps(steps)


def check(peer):
    versus.check(peer.gpu, CASE, peer, peer.sets[0])


def test_a_peer_that_is_right_passes():
    check(NumpyPeer())


@pytest.mark.parametrize("fault", ["nothing", "a sum", "a row", "nan"])
def test_a_wrong_gradient_is_not_recorded(fault):
    with pytest.raises(RuntimeError, match=r"its gradient is .* not recorded"):
        check(NumpyPeer(fault))


def test_a_wrong_law_is_not_recorded():
    with pytest.raises(RuntimeError, match=r"its gradient is|lambda is"):
        check(NumpyPeer("no law"))


def test_a_wrong_average_is_not_recorded():
    with pytest.raises(RuntimeError, match="the moving average is"):
        check(NumpyPeer("no average"))


class SeedPeer(NumpyPeer):
    """A gradient that is a sum over the rows, and the KL of row 0."""

    sums = True
    first_row_alone = True

    def step(self, number):
        one, support, lam = self.sets[number], arrays.support_of(CASE), self.state.lam
        numpy_step.step(one.q[:1], one.pi[:1], support, np.zeros_like(one.grad[:1]), self.state)
        added = np.zeros_like(one.grad)
        numpy_step.step(one.q, one.pi, support, added, numpy_step.State(lam=lam))
        one.grad += added * CASE.rows


def test_a_peer_with_the_seeds_semantics_is_checked_by_them():
    check(SeedPeer())
    for name in ("sums", "first_row_alone"):
        peer = SeedPeer()
        setattr(peer, name, False)
        with pytest.raises(RuntimeError, match="not recorded"):
            check(peer)


def test_a_peer_is_timed_per_step():
    peer = NumpyPeer()
    timing = versus.peer_time(peer.gpu, CASE, peer, 4.0)
    step = min(peer.gpu.times_ms(lambda: peer.steps(1), 20)) * 1000
    assert 0.2 * step < timing.us < 20 * step
    assert timing.spread >= 0


@pytest.mark.parametrize("fault", ["nothing", "counts twice"])
def test_a_graph_that_does_not_make_its_steps_is_not_recorded(fault):
    peer = NumpyPeer(fault)
    with pytest.raises(RuntimeError, match="steps were timed"):
        versus.peer_time(peer.gpu, CASE, peer, 4.0)


def test_the_check_leaves_the_inputs_alone():
    peer = NumpyPeer()
    before = peer.sets[0].q.copy(), peer.sets[0].pi.copy()
    check(peer)
    assert_allclose(peer.sets[0].q, before[0])
    assert_allclose(peer.sets[0].pi, before[1])
