"""The benchmark as far as it goes without a GPU: cases, arrays, errors, peers, results."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks import cores
from benchmarks.arrays import (
    DeviceArray,
    host_sets,
    normal_block,
    period_of,
    period_set,
    set_count,
    support_of,
    to_bfloat16,
    widen,
)
from benchmarks.cases import (
    COMPILED_CASES,
    CPU_CASES,
    FAMILY,
    GPU_CASES,
    MILLION,
    OPTIONS,
    OTHER_SHAPES,
    Case,
    plain,
    rows_for,
    sized,
)
from benchmarks.ours import Ours, kernel_name, largest_error
from benchmarks.peers import LAW, STATE, numpy_step
from benchmarks.reference import evaluate, law
from benchmarks.results import Recorder, Unavailable, case_fields, row_key, update, write_json
from benchmarks.timing import Timing, steps_per_graph, wall_time
from fabricated import row
from numpy.testing import assert_allclose

import qpi_distill as qpi

ROOT = Path(__file__).resolve().parents[2]

# ---- cases ---------------------------------------------------------------------------------------------------------


def test_bytes_of_a_step():
    assert Case(1).bytes == 1056
    assert Case(10, options=("mask", "weights")).bytes == 10 * (1056 + 11 + 4)
    assert Case(3, options=("per_action",)).bytes == 3 * 1056 + 4 * 231
    assert plain(1, dtype="bfloat16").bytes == 528
    assert Case(1, q_dtype="float16", pi_dtype="float16").bytes == 462 + 22 + 88


def test_small_cases_are_hot_and_large_ones_take_turns():
    assert [Case(rows).hot for rows in (32, 1024, 4096)] == [True, True, False]
    l2 = 60 << 20
    assert set_count(Case(1024), l2) == 1
    for rows in (4096, 65536, MILLION):
        case = Case(rows)
        assert set_count(case, l2) >= 2
        assert set_count(case, l2) * case.bytes >= 4 * l2


def test_every_regime_has_its_cases():
    measured = {row_key(case_fields(case)) for case in GPU_CASES}
    assert len(measured) == len(GPU_CASES)
    wanted = [plain(rows) for rows in (32, 256, 1024, 4096, 16384, 65536, MILLION, 4 * MILLION)]
    wanted += [plain(4 * MILLION, dtype=dtype) for dtype in ("bfloat16", "float16")]
    wanted += [sized(shape, dtype) for shape in OTHER_SHAPES for dtype in ("float32", "bfloat16")]
    wanted += [Case(MILLION, options=(option,)) for option in (*OPTIONS, *FAMILY)]
    assert {row_key(case_fields(case)) for case in wanted} == measured
    assert {row_key(case_fields(case)) for case in COMPILED_CASES} <= measured
    assert [case.rows for case in CPU_CASES] == [65536, 256]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", OTHER_SHAPES)
def test_other_shapes_are_a_gigabyte_of_their_dtype(shape, dtype):
    case = sized(shape, dtype)
    assert set(case.dtypes) == {dtype}
    assert abs(case.bytes - 1e9) < case.bytes / case.rows
    assert rows_for(*shape, "bfloat16") in (2 * rows_for(*shape) + offset for offset in (-1, 0, 1))


def test_peers_run_what_they_can():
    for case in GPU_CASES:
        if case.options or (case.actions, case.atoms) != (11, 21):
            assert not case.peers
        elif case.q_dtype != "float32":
            assert case.peers == (("triton",) if case.q_dtype == "bfloat16" else ())
    assert {"seed", "triton", "cupy", "torch_eager", "torch_compile"} == set(plain(32).peers)


def test_a_graph_holds_every_set_equally_often():
    for estimate in (0.5, 4, 50, 1000, 1e5):
        for sets in (1, 2, 56, 160):
            steps = steps_per_graph(estimate, sets)
            assert steps >= sets
            assert steps % sets == 0


# ---- arrays --------------------------------------------------------------------------------------------------------


def test_bfloat16_is_rounded_to_nearest_and_read_back():
    values = normal_block()
    assert_allclose(widen(to_bfloat16(values), "bfloat16"), values, rtol=2**-8)
    exact = np.array([0, 1, -2.5, np.nan], np.float32)
    assert_allclose(widen(to_bfloat16(exact), "bfloat16"), exact)


def test_supports():
    assert support_of(Case(1)).shape == (21,)
    per_action = support_of(Case(1, options=("per_action",)))
    assert per_action.shape == (11, 21)
    assert per_action.dtype == np.float32
    assert len(np.unique(per_action[:, 0])) == 11


def test_rows_repeat_after_a_period():
    case = Case(10000, options=("mask", "weights"))
    period = period_of(case)
    assert 0 < period < case.rows
    one = host_sets(case, 0)[0]
    for array in (one.q, one.pi, one.grad, one.legal, one.weights):
        assert len(array) == case.rows
        assert np.array_equal(array[period:], array[: case.rows - period])
    assert one.legal.any(axis=1).all()
    assert not one.legal.all()
    assert period_of(Case(5)) == 5
    assert period_of(Case(5, 4096, 4096)) == 1


def test_sizes_of_device_arrays():
    assert DeviceArray(0, (3, 5), "bfloat16", 0).nbytes == 30
    assert DeviceArray(0, (3, 5), "uint8", 0).nbytes == 15
    assert DeviceArray(0, (3,), "float32", 0).__cuda_array_interface__["typestr"] == "<f4"


# ---- errors against float64 ----------------------------------------------------------------------------------------


def error_of(case, change=lambda grad: grad):
    one = host_sets(case, 0)[0]
    one.grad[...] = np.nan if one.grad.dtype.kind == "f" else 0x7FC0
    arrays = one.through(
        lambda array: qpi.pointer(array.ctypes.data, array.shape, case_dtype(case, array), device="cpu")
    )
    return largest_error(case, arrays, "cpu", lambda: change(one.grad))


def case_dtype(case, array):
    return "bfloat16" if array.dtype == np.uint16 else array.dtype.name


@pytest.mark.parametrize("options", [(), *((option,) for option in (*OPTIONS, *FAMILY)), OPTIONS])
def test_the_library_is_near_the_reference(options):
    error = error_of(Case(7000, options=options))
    assert 0 < error["grad"] < 5e-6
    assert 0 <= error["kl"] < 1e-6


@pytest.mark.parametrize(("dtype", "most"), [("float16", 2**-11), ("bfloat16", 2**-8)])
def test_half_precision_errors_are_those_of_one_rounding(dtype, most):
    error = error_of(plain(600, 5, 9, dtype))
    assert 1e-5 < error["grad"] <= most + 1e-5
    assert error["kl"] < 1e-6


def test_errors_show():
    case = Case(7000)

    def spoilt(index, value):
        def change(grad):
            grad = grad.copy()
            grad[index] += value
            return grad

        return change

    for index in ((0, 0), (5000, 3), (6999, 10)):
        assert_allclose(error_of(case, spoilt(index, 0.01))["grad"], 0.01, rtol=1e-3)
    assert np.isnan(error_of(case, spoilt((6999, 10), np.nan))["grad"])


def test_the_reference_weighs_rows():
    case = Case(3, options=("weights",))
    period = period_set(case)
    reference = evaluate(case, period)
    expected = (reference.kl * period.weights).sum() / period.weights.sum()
    assert_allclose(reference.mean_kl(3), expected)
    assert_allclose(reference.mean_kl(4), np.average(reference.kl[[0, 1, 2, 0]], weights=period.weights[[0, 1, 2, 0]]))


@pytest.mark.parametrize(
    ("lam", "kl", "want"), [(0.1, 1, 0.12), (0.1, 0.05, 0.1), (0.1, 0, 0.0998), (0.9, 1, 1), (0, 0, 0.05)]
)
def test_the_reference_law(lam, kl, want):
    assert_allclose(law(lam, kl), want)


# ---- the peers compute the library's step --------------------------------------------------------------------------


def run_ours(case, steps):
    sets = host_sets(case, 0)
    ours = Ours(case, sets, "cpu")
    ours.steps(steps)
    return sets[0].grad, ours.isv.read()


@pytest.fixture(params=["as measured", "falling", "in the dead zone"])
def kl_target(request, monkeypatch):
    target = {"as measured": STATE["kl_target"], "falling": 1e3, "in the dead zone": 1.0}[request.param]
    monkeypatch.setitem(STATE, "kl_target", target)


@pytest.mark.usefixtures("kl_target")
def test_numpy_peer():
    case, steps = Case(300), 20
    want, values = run_ours(case, steps)
    (one,) = host_sets(case, 0)
    state = numpy_step.State()
    for _ in range(steps):
        numpy_step.step(one.q, one.pi, support_of(case), one.grad, state)
    assert_allclose(one.grad, want, atol=2e-6)
    assert_allclose([state.lam, state.kl_ema], [values.lam, values.kl_ema], rtol=1e-5)
    assert state.observations == values.observations


@pytest.mark.usefixtures("kl_target")
def test_torch_peer():
    torch = pytest.importorskip("torch")
    from benchmarks.peers import torch_step

    case, steps = Case(300), 20
    want, values = run_ours(case, steps)
    one = host_sets(case, 0)[0].through(torch.from_numpy)
    state = torch_step.State("cpu").tensors
    for _ in range(steps):
        torch_step.step(one.q, one.pi, torch.from_numpy(support_of(case)), one.grad, *state)
    assert_allclose(one.grad.numpy(), want, atol=2e-6)
    assert_allclose([float(state[0]), float(state[1])], [values.lam, values.kl_ema], rtol=1e-5)
    assert int(state[2]) == values.observations


INTERPRETED = """
import sys
import torch
from benchmarks import arrays, reference
from benchmarks.cases import plain
from benchmarks.peers.triton_step import TUNINGS, Step

for rows, shape, dtype, tuning in (
    (37, (11, 21), "float32", TUNINGS[0]),
    (37, (11, 21), "float32", TUNINGS[4]),
    (50, (3, 5), "float32", TUNINGS[6]),
    (5, (2, 33), "float32", TUNINGS[4]),
):
    case = plain(rows, *shape, dtype)
    period = arrays.period_set(case)
    one = period.through(torch.from_numpy)
    lam, kl_ema, observations = torch.tensor(0.1), torch.tensor(0.5), torch.tensor(1)
    step = Step(rows, *shape, "cpu", tuning, 2, False)
    step(one.q, one.pi, torch.from_numpy(arrays.support_of(case)), one.grad, lam, kl_ema, observations)
    want = reference.evaluate(case, period)
    average = 0.5 + 0.05 * (want.mean_kl(rows) - 0.5)
    assert want.gradient_error(one.grad.numpy(), dtype, 0.1 / rows) < 1e-5 * 0.1 / rows
    assert abs(float(kl_ema) - average) < 1e-6
    assert abs(float(lam) - reference.law(0.1, average)) < 1e-7
    assert int(observations) == 2
print("right")
"""


def test_triton_peer_in_its_interpreter():
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    if tuple(map(int, np.__version__.split(".")[:2])) >= (2, 4):
        pytest.skip("Triton's interpreter needs NumPy below 2.4")
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.stdout == "right\n", done.stderr


def test_the_peers_use_the_defaults_of_the_library():
    values = qpi.ISV(device="cpu").read()
    for name, value in LAW.items():
        assert_allclose(getattr(values, name), value, rtol=1e-6)


def test_ours_counts_its_steps():
    case = Case(64)
    ours = Ours(case, host_sets(case, 0), "cpu")
    ours.steps(3)
    ours.expect(3)
    with pytest.raises(RuntimeError, match="the state has seen 3"):
        ours.expect(4)
    assert ours.kernel in ("baseline", "avx2", "avx512")


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("GPU 0, tile kernel, 32 rows at once, then the finish kernel; packed", "tile"),
        ("CPU, avx512, 16 thread(s); the widest instruction set", "avx512"),
        ("nothing runs: no rows", "nothing runs: no rows"),
    ],
)
def test_kernel_names(text, want):
    assert kernel_name(text) == want


def test_a_timing_is_a_median_and_its_spread():
    timing = Timing.of([1.0, 2.0, 3.0, 4.0, 100.0])
    assert timing.us == 3.0
    assert_allclose(timing.spread, (4.0 - 2.0) / 3.0)
    assert timing.us == statistics.median([1, 2, 3, 4, 100])


def test_wall_time_is_per_step():
    calls = []
    assert wall_time(lambda: calls.append(0), 2, budget_s=0.001).us < 1e5
    assert len(calls) >= 5


# ---- results -------------------------------------------------------------------------------------------------------


def test_rows_of_a_case_become_one():
    first = {"step": [row(seed=2.0), row(32, seed=1.0)], "notes": ["a"], "host_us": {"bound": 3.0}}
    only_peer = {key: value for key, value in row(torch_compile=3.0).items() if key not in ("us", "kernel")}
    second = {"step": [only_peer, row(256)], "notes": ["a", "b"], "host_us": {"torch": 4.0}, "copy_tb_s": 4.0}
    got = update(first, second)
    assert [entry["rows"] for entry in got["step"]] == [MILLION, 32, 256]
    assert got["step"][0]["vs"] == {"seed": 2.0, "torch_compile": 3.0}
    assert got["step"][0]["us"] == 280.0
    assert got["notes"] == ["a", "b"]
    assert got["host_us"] == {"bound": 3.0, "torch": 4.0}
    assert got["copy_tb_s"] == 4.0
    assert update(first, {"step": [row(us=1.0)]})["step"][0]["us"] == 1.0


def test_the_recorder_writes_as_it_goes_and_survives_errors(tmp_path):
    recorder = Recorder(tmp_path / "x.json")

    def fail(error):
        raise error

    assert recorder.attempt("well", lambda: 3) == 3
    assert recorder.attempt("badly", fail, RuntimeError("of\na kind")) is None
    assert recorder.attempt("missing", fail, Unavailable("torch is not installed")) is None
    assert recorder.attempt("missing too", fail, Unavailable("torch is not installed")) is None
    recorder.put(step=[row()])
    recorder.put(step=[row(32)])
    got = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert got["notes"] == ["badly: RuntimeError: of a kind", "torch is not installed"]
    assert [entry["rows"] for entry in got["step"]] == [MILLION, 32]
    late = Recorder(tmp_path / "y.json", limit=1e-9)
    assert late.attempt("anything", lambda: 3) is None
    assert "out of time" in late.data["notes"][0]


def test_json_is_written_whole(tmp_path):
    write_json(tmp_path / "a/b.json", {"x": [1, None]})
    assert json.loads((tmp_path / "a/b.json").read_text(encoding="utf-8")) == {"x": [1, None]}
    assert len(list((tmp_path / "a").iterdir())) == 1


# ---- processors ----------------------------------------------------------------------------------------------------


@pytest.fixture
def processors(tmp_path, monkeypatch):
    """Eight processors on four cores: 0 and 4 share one, 1 and 5, and so on. Gives what the process is kept to."""
    for cpu in range(8):
        file = tmp_path / f"cpu{cpu}/topology/thread_siblings_list"
        file.parent.mkdir(parents=True)
        file.write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    allowed = set(range(8))
    monkeypatch.setattr(cores, "CPUS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(allowed))

    def keep(_, cpus):
        allowed.intersection_update(cpus)

    monkeypatch.setattr(os, "sched_setaffinity", keep)
    for name in cores.THREAD_LIMITS:
        monkeypatch.setenv(name, "8")
    return allowed


def test_few_processors_are_on_cores_of_their_own(processors):
    assert cores.few(2) == {0, 1}
    assert cores.few(6) == {0, 1, 2, 3, 4, 5}
    processors -= {1, 2, 3, 5}
    assert cores.few(2) == {0, 6}
    assert cores.few(9) == {0, 4, 6, 7}


def test_two_processes_keep_out_of_each_others_way(processors):
    cores.leave(2)
    assert processors == {2, 3, 6, 7}
    processors |= set(range(8))
    cores.keep_to(2)
    assert processors == {0, 1}
    assert {os.environ[name] for name in cores.THREAD_LIMITS} == {"2"}
    cores.leave(2)
    assert processors, "the last cores are not left"


def test_processors_without_a_topology(tmp_path, monkeypatch):
    monkeypatch.setattr(cores, "CPUS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 9})
    assert cores.few(2) == {3, 5}


def test_the_processor_has_a_name(tmp_path, monkeypatch):
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: Some CPU @ 2 GHz\n")
    monkeypatch.setattr(cores, "CPUINFO", file)
    assert cores.cpu_model() == "Some CPU @ 2 GHz"
    monkeypatch.setattr(cores, "CPUINFO", tmp_path / "none")
    assert cores.cpu_model() == ""
