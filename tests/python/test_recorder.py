"""The flight recorder: what it keeps, what it loses and says so, and where it writes it."""

from __future__ import annotations

import csv
import gc
import io
import sys
import types

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import qpi_distill as qpi
from qpi_distill import _isv
from stepping import observe, poke, random_problem, run

FIELDS = qpi.Recorder.dtype.names


@pytest.fixture
def recorded(backend):
    isv = qpi.ISV(device=backend.device)
    return isv, qpi.Recorder(isv, 8)


def test_a_record_is_the_isv_after_the_commit(backend, recorded):
    isv, recorder = recorded
    poke(backend, isv, target_entropy=1.5, agreement=0.25, tau=-1.0)
    for problem_rows in (5, 9):
        values = run(backend, random_problem(np.random.default_rng(0), problem_rows), isv=isv, call="step").values
        (record,) = recorder.drain(stream=backend.stream)
        for name in FIELDS:
            assert record[name] == values.raw[name], name
    assert record["commits"] == 2
    assert record["faults"] == _isv.FAULTS["tau"]
    assert record["agreement"] == 0.25


def test_a_bus_gives_the_records_of_a_native_layout(backend):
    drained = []
    for layout in ("native", "bus", qpi.Layout.bus(commits=2, lam_law=40)):
        isv = qpi.ISV(device=backend.device, layout=layout, preset="ziegler")
        recorder = qpi.Recorder(isv, 8)
        for kl in (0.5, 0.01, 0.2):
            observe(backend, isv, kl, agreement=kl)
        drained.append(recorder.drain(stream=backend.stream).tobytes())
    assert len(set(drained)) == 1


def test_the_dtype_is_packed_and_holds_slots():
    types_of = {s.name: {"f32": "<f4", "u32": "<u4", "u64": "<u8"}[s.type] for s in qpi.ISV.slot_info()}
    assert {name: qpi.Recorder.dtype[name].str for name in FIELDS} == {name: types_of[name] for name in FIELDS}
    assert qpi.Recorder.dtype.itemsize == sum(qpi.Recorder.dtype[name].itemsize for name in FIELDS) == 112


@pytest.mark.parametrize("capacity", [1, 2, 7, 64])
def test_whatever_the_rhythm_nothing_is_lost_unseen(backend, capacity):
    rng = np.random.default_rng(capacity)
    isv = qpi.ISV(device=backend.device)
    recorder = qpi.Recorder(isv, capacity)
    done, lost, numbers = 0, 0, []
    for burst in rng.integers(0, 2 * capacity + 2, 25).tolist():
        for _ in range(burst):
            observe(backend, isv, 0.5)
        new = recorder.drain(stream=backend.stream)
        assert_array_equal(new["commits"], np.arange(done + max(0, burst - capacity), done + burst) + 1)
        done += burst
        lost += max(0, burst - capacity)
        numbers += new["commits"].tolist()
        assert recorder.lost == lost
    assert recorder.records["commits"].tolist() == numbers
    assert done == len(numbers) + lost
    assert lost > 0


def test_draining_twice_gives_nothing_the_second_time(backend, recorded):
    isv, recorder = recorded
    observe(backend, isv, 0.5)
    assert len(recorder.drain(stream=backend.stream)) == 1
    again = recorder.drain(stream=backend.stream)
    assert (again.dtype, again.shape) == (qpi.Recorder.dtype, (0,))
    assert len(recorder.records) == 1


def test_commits_before_the_recorder_are_not_lost_ones(backend):
    isv = qpi.ISV(device=backend.device)
    for _ in range(5):
        observe(backend, isv, 0.5)
    recorder = qpi.Recorder(isv, 2)
    assert len(recorder.drain(stream=backend.stream)) == 0
    observe(backend, isv, 0.5)
    assert recorder.drain(stream=backend.stream)["commits"].tolist() == [6]
    assert recorder.lost == 0


def test_control_brings_the_record_up_to_date(backend, recorded):
    isv, recorder = recorded
    isv.control(stream=backend.stream)
    assert len(recorder.drain(stream=backend.stream)) == 0
    run(backend, random_problem(np.random.default_rng(1), 4), isv=isv, call="distill_grad")
    isv.control(stream=backend.stream)
    (record,) = recorder.drain(stream=backend.stream)
    assert (
        record["reason"] == isv.read(stream=backend.stream).raw["reason"] != qpi.ISV(device="cpu").read().raw["reason"]
    )
    isv.control(stream=backend.stream)
    assert len(recorder.drain(stream=backend.stream)) == 0


def test_a_commit_without_rows_is_recorded(backend, recorded):
    isv, recorder = recorded
    isv.commit(stream=backend.stream)
    (record,) = recorder.drain(stream=backend.stream)
    assert (_isv.REASONS[record["reason"]], record["rows_last"]) == ("no_rows", 0)


def test_reset_and_load_start_anew(backend, recorded):
    isv, recorder = recorded
    for _ in range(3):
        observe(backend, isv, 0.5)
    state = isv.state_dict(stream=backend.stream)
    for _ in range(4):
        observe(backend, isv, 0.5)
    isv.load_state_dict(state)
    observe(backend, isv, 0.5)
    assert recorder.drain(stream=backend.stream)["commits"].tolist() == [4]
    isv.reset()
    observe(backend, isv, 0.5)
    assert recorder.drain(stream=backend.stream)["commits"].tolist() == [1]
    assert recorder.lost == 0


def test_one_recorder_at_a_time(backend, recorded):
    isv, recorder = recorded
    with pytest.raises(ValueError, match="has a recorder"):
        qpi.Recorder(isv)
    observe(backend, isv, 0.5)
    recorder.drain(stream=backend.stream)
    recorder.close()
    recorder.close()
    observe(backend, isv, 0.5)
    with pytest.raises(ValueError, match="closed"):
        recorder.drain()
    assert len(recorder.records) == 1
    with qpi.Recorder(isv, 2) as second:
        observe(backend, isv, 0.5)
        assert second.drain(stream=backend.stream)["commits"].tolist() == [3]
    observe(backend, isv, 0.5)


def test_the_ring_outlives_a_recorder_that_nobody_holds(backend):
    isv = qpi.ISV(device=backend.device)
    qpi.Recorder(isv, 4)
    gc.collect()
    junk = [np.ones(104 * 4, np.uint8) for _ in range(50)]
    for _ in range(9):
        observe(backend, isv, 0.5)
    assert all(x.all() for x in junk)
    assert isv._recorder.drain(stream=backend.stream)["commits"].tolist() == [6, 7, 8, 9]


def test_records_can_be_left_to_drain(backend):
    isv = qpi.ISV(device=backend.device)
    recorder = qpi.Recorder(isv, 4, keep=False)
    observe(backend, isv, 0.5)
    assert len(recorder.drain(stream=backend.stream)) == 1
    assert len(recorder.records) == 0


def test_bound_steps_are_recorded(backend):
    problem = random_problem(np.random.default_rng(3), 6)
    isv = qpi.ISV(device=backend.device)
    op = qpi.Distiller(actions=5, atoms=9, support=problem.support, isv=isv, reduction="sum")
    arrays = [backend.put(x) for x in (problem.q, problem.pi, problem.grad)]
    bound = op.bind(*arrays)
    recorder = qpi.Recorder(isv, 4)
    bound.step(backend.stream)
    bound.accumulate(backend.stream)
    bound.accumulate(backend.stream)
    op.commit(stream=backend.stream)
    assert recorder.drain(stream=backend.stream)["rows_last"].tolist() == [6, 12]


@pytest.mark.parametrize(
    ("capacity", "error"),
    [(0, ValueError), (-1, ValueError), (2**24 + 1, ValueError), (1.5, TypeError), ("4", TypeError)],
)
def test_capacities_that_cannot_be(isv, capacity, error):
    with pytest.raises(error, match=r"^capacity"):
        qpi.Recorder(isv, capacity)
    assert isv._recorder is None


def test_what_is_no_isv():
    with pytest.raises(TypeError, match=r"^isv: list"):
        qpi.Recorder([])


# ---- writers -------------------------------------------------------------------------------------------------------


@pytest.fixture
def flown():
    """A recorder with a few commits of every kind."""
    import backends

    backend = backends.make("cpu")
    isv = qpi.ISV(device="cpu", preset="log_pi", lam=0.1)
    recorder = qpi.Recorder(isv, 64)
    for i in range(20):
        poke(backend, isv, agreement=-1 if i < 5 else i / 20, target_entropy=1 + i / 10, tau=-1 if i == 12 else 0.7)
        observe(backend, isv, 0.05 * (1 + i))
    isv.commit()
    recorder.drain()
    return recorder


def test_csv(flown, tmp_path):
    flown.to_csv(tmp_path / "run.csv")
    text = (tmp_path / "run.csv").read_text(encoding="utf-8")
    buffer = io.StringIO()
    flown.to_csv(buffer)
    assert buffer.getvalue() == text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 21
    for row, record in zip(rows, flown.records, strict=True):
        assert tuple(row) == FIELDS
        assert np.float32(row["lam"]) == record["lam"]
        assert int(row["rows_last"]) == record["rows_last"]
        assert row["reason"] == _isv.REASONS[record["reason"]]
        assert row["lam_law"] == "log_pi"
        assert (
            row["agreement"] == "" if record["agreement"] < 0 else np.float32(row["agreement"]) == record["agreement"]
        )
    assert rows[-1]["reason"] == "no_rows"
    assert rows[0]["prior_kl"] == ""
    flown.to_csv(tmp_path / "two.csv", flown.records[:2])
    assert len((tmp_path / "two.csv").read_text(encoding="utf-8").splitlines()) == 3


class Writer:
    def __init__(self, folder=None):
        self.folder, self.events, self.closed = folder, [], False
        Writer.last = self

    def add_scalar(self, tag, value, step):
        self.events.append((tag, value, step))

    def close(self):
        self.closed = True


def test_tensorboard(flown, monkeypatch, tmp_path):
    writer = Writer()
    flown.to_tensorboard(writer, prefix="a/")
    lam = [(value, step) for tag, value, step in writer.events if tag == "a/lam"]
    assert lam == list(zip(flown.records["lam"].tolist(), range(1, 22), strict=True))
    agreement = [step for tag, _, step in writer.events if tag == "a/agreement"]
    assert agreement == list(range(6, 22))
    assert not any(tag == "a/prior_kl" for tag, _, _ in writer.events)
    measured = {name for name in FIELDS if name != "commits" and (flown.records[name] >= 0).any()}
    assert {tag.removeprefix("a/") for tag, _, _ in writer.events} == measured >= {"lam_law", "tau_law", "faults"}
    assert not writer.closed

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setitem(sys.modules, "tensorboardX", types.SimpleNamespace(SummaryWriter=Writer))
    flown.to_tensorboard(tmp_path, flown.records[:1])
    assert (Writer.last.folder, Writer.last.closed) == (str(tmp_path), True)
    assert ("qpi/lam", flown.records["lam"][0], 1) in Writer.last.events
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ImportError, match="tensorboardX"):
        flown.to_tensorboard(tmp_path)


def test_tensorboard_events_can_be_read_back(flown, tmp_path):
    pytest.importorskip("tensorboardX")
    flown.to_tensorboard(str(tmp_path))
    (events,) = tmp_path.iterdir()
    assert b"qpi/kl_ema" in events.read_bytes()


def test_png(flown, tmp_path):
    image = pytest.importorskip("matplotlib.image")
    flown.to_png(tmp_path / "run.png")
    pixels = image.imread(tmp_path / "run.png")
    assert pixels.shape[0] > 500
    assert pixels.std() > 0.05
    flown.to_png(tmp_path / "empty.png", flown.records[:0])
    empty = image.imread(tmp_path / "empty.png")
    assert (empty != pixels).any()
