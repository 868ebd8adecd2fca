"""The parts of the benchmark that drive a GPU, on one that is made of host memory."""

import pytest
from benchmarks.arrays import support_of
from benchmarks.cases import OPTIONS, Case, plain
from benchmarks.peers import numpy_step
from benchmarks.results import Recorder, Unavailable
from numpy.testing import assert_array_equal

pytest.importorskip("cuda.bindings.driver")
from benchmarks import gpu, ours, step, timing, versus
from benchmarks.peers.on_gpu import BUS, Peer, Seed, State
from host_gpu import HostDriver, HostGpu, HostOurs, as_numpy

CASES = (plain(5000), plain(300, 3, 5, "bfloat16"), Case(300, options=OPTIONS))


@pytest.fixture
def driver(monkeypatch):
    """The driver of the host; what was allocated has to be free again at the end."""
    driver = HostDriver()
    monkeypatch.setattr(gpu, "driver", driver)
    monkeypatch.setattr(step, "SPARE_BYTES", 0)
    monkeypatch.setattr(timing, "COPY_BYTES", (1 << 16, 1 << 18))
    monkeypatch.setattr(timing, "MOST_STEPS", 8)
    for module in (ours, step):
        monkeypatch.setattr(module, "Ours", HostOurs)
    for module in (step, versus):
        monkeypatch.setattr(module, "GPU_CASES", CASES)
    yield driver
    assert not driver.allocated


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_sets_are_filled_apart_and_freed(driver, case):
    with step.device_sets(HostGpu(), case) as sets:
        assert len(sets) == (1 if case.hot else 2)
        assert len({one.q.address for one in sets}) == len(sets)
        for one in sets:
            views = one.through(as_numpy)
            assert views.q.shape == (case.rows, case.actions, case.atoms)
            period = min(case.rows, (1 << 20) // (case.actions * case.atoms))
            assert_array_equal(views.q[period:], views.q[: case.rows - period])
            assert_array_equal(views.pi[period:], views.pi[: case.rows - period])
            assert len(set(views.pi[:, 0].tolist())) > period / 3
            assert not views.grad.any()
            assert (views.legal is not None) == ("mask" in case.options)
            assert (views.weights is not None) == ("weights" in case.options)


@pytest.mark.usefixtures("driver")
def test_memory_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(HostDriver, "cuMemGetInfo", lambda self: (0, 1000, 1000))
    with pytest.raises(Unavailable, match="GB of device memory"), step.device_sets(HostGpu(), CASES[1]):
        pass


@pytest.mark.usefixtures("driver")
def test_every_step_is_timed_and_compared_with_float64(tmp_path):
    recorder = Recorder(tmp_path / "x.json")
    step.run(recorder, HostGpu())
    assert "notes" not in recorder.data
    assert recorder.data["copy_tb_s"] >= 0
    assert [row["rows"] for row in recorder.data["step"]] == [5000, 300, 300]
    for row in recorder.data["step"]:
        assert row["us"] > 0
        assert row["spread"] >= 0
        assert 0 < row["error"]["grad"] < (4e-3 if row["grad_dtype"] == "bfloat16" else 5e-6)
        assert 0 <= row["error"]["kl"] < 1e-6


class Good(Peer):
    """NumPy's step on the same memory."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.arrays = [one.through(as_numpy) for one in self.sets]
        self.put(State())

    def put(self, state):
        self.state = numpy_step.State(*state)

    def get(self):
        return State(self.state.lam, self.state.kl_ema, self.state.observations)

    def step(self, number):
        one = self.arrays[number]
        numpy_step.step(one.q, one.pi, support_of(self.case), one.grad, self.state)


class Bad(Good):
    def step(self, number):
        super().step(number)
        self.arrays[number].grad[-1, -1] += 1


class Absent(Peer):
    def __init__(self, *arguments):
        raise Unavailable("CuPy is not installed")


@pytest.mark.usefixtures("driver")
def test_right_peers_are_recorded_and_the_others_noted(tmp_path, monkeypatch):
    for name, peer in {"Triton": Good, "Torch": Bad, "CuPy": Absent}.items():
        monkeypatch.setattr(versus, name, peer)
    monkeypatch.setattr(versus, "GPU_CASES", CASES[:1])
    recorder = Recorder(tmp_path / "x.json")
    versus.run(recorder, HostGpu(), tmp_path, None, compiled=False)
    (row,) = recorder.data["step"]
    assert set(row["vs"]) == {"triton"}
    assert row["vs"]["triton"] > 0
    notes = recorder.data["notes"]
    assert len(notes) == 3
    assert "--seeds" in notes[0]
    assert notes[1] == "CuPy is not installed"
    assert notes[2].startswith("torch_eager, 5000 rows")
    assert "not recorded" in notes[2]


class SeedLibrary:
    """The two seed kernels, in NumPy."""

    def __init__(self, case, sets):
        self.case, self.sets = case, {one.q.address: one.through(as_numpy) for one in sets}

    def seed_step(self, q, pi, support, bus, grad, rows, stream):
        assert (rows, stream) == (self.case.rows, None)
        one, words = self.sets[q], as_numpy(bus_of(bus))
        values = support_of(self.case)
        state = numpy_step.State(float(words[BUS["lam"]]), float(words[BUS["kl_ema"]]), words[BUS["kl_ema"]] != 0)
        lam = state.lam
        numpy_step.step(one.q[:1], one.pi[:1], values, one.grad[:1].copy(), state)
        added = one.grad * 0
        numpy_step.step(one.q, one.pi, values, added, numpy_step.State(lam))
        one.grad += added * rows
        words[BUS["lam"]], words[BUS["kl_ema"]] = state.lam, state.kl_ema


def bus_of(address):
    return step.DeviceArray(address, (494,), "float32", "cpu")


@pytest.mark.usefixtures("driver")
def test_the_seed_kernels_are_checked_by_what_they_do():
    case = CASES[0]
    with step.device_sets(HostGpu(), case) as sets:
        peer = Seed(HostGpu(), case, sets, SeedLibrary(case, sets))
        versus.check(peer.gpu, case, peer, sets[0])
        assert versus.peer_time(peer.gpu, case, peer, 4.0).us > 0
        assert peer.get().observations is None
        peer.close()
