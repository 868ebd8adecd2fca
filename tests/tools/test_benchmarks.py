"""The benchmark as far as it goes without a GPU: cases, peers, results, reports."""

import json

import numpy as np
import pytest
from benchmarks.arrays import host_sets, random_block, set_count, support_of
from benchmarks.cases import CPU_CASES, FIGURES, GPU_CASES, MILLION, Case
from benchmarks.ours import Ours, kernel_name
from benchmarks.peers import LAW, STATE, numpy_step
from benchmarks.report import regressions, render
from benchmarks.results import Recorder, Unavailable, case_fields, row_key, update, write_json
from benchmarks.timing import steps_per_graph, wall_us
from numpy.testing import assert_allclose

import qpi_distill as qpi

# ---- cases ---------------------------------------------------------------------------------------------------------


def test_bytes_of_a_step():
    assert Case(1).bytes == 1056
    assert Case(10, options=("mask", "weights")).bytes == 10 * (1056 + 11 + 4)
    assert Case(3, options=("per_action",)).bytes == 3 * 1056 + 4 * 231
    assert Case(1, q_dtype="bfloat16", pi_dtype="bfloat16", grad_dtype="bfloat16").bytes == 528
    assert Case(1, q_dtype="float16", pi_dtype="float16").bytes == 462 + 22 + 88


def test_small_cases_are_hot_and_large_ones_take_turns():
    assert [Case(rows).hot for rows in (32, 1024, 4096)] == [True, True, False]
    l2 = 60 << 20
    assert set_count(Case(1024), l2) == 1
    for rows in (4096, 65536, MILLION):
        case = Case(rows)
        assert set_count(case, l2) >= 2
        assert set_count(case, l2) * case.bytes >= 4 * l2


def test_cases_are_told_apart_and_the_large_shapes_are_a_gigabyte():
    keys = [row_key(case_fields(case)) for case in (*GPU_CASES, *CPU_CASES)]
    assert len(set(keys)) == len(keys)
    other = [case for case in GPU_CASES if (case.actions, case.atoms) != (11, 21)]
    assert other
    assert all(0.9e9 < case.bytes < 1.1e9 for case in other)


def test_a_graph_holds_every_set_equally_often():
    for estimate in (0.5, 4, 50, 1000, 1e5):
        for sets in (1, 2, 56, 160):
            steps = steps_per_graph(estimate, sets)
            assert steps >= sets
            assert steps % sets == 0


# ---- arrays --------------------------------------------------------------------------------------------------------


def test_bfloat16_blocks_round_to_nearest():
    wide, narrow = random_block("float32"), random_block("bfloat16")
    back = (narrow.astype(np.uint32) << np.uint32(16)).view(np.float32)
    assert_allclose(back, wide, rtol=2**-8)


def test_supports():
    assert support_of(Case(1)).shape == (21,)
    per_action = support_of(Case(1, options=("per_action",)))
    assert per_action.shape == (11, 21)
    assert per_action.dtype == np.float32
    assert len(np.unique(per_action[:, 0])) == 11


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


def test_wall_time_is_per_step():
    calls = []
    assert wall_us(lambda: calls.append(0), 2, budget_s=0.001) < 1e5
    assert len(calls) >= 5


# ---- results -------------------------------------------------------------------------------------------------------


def row(rows=MILLION, us=280.0, fraction=0.9, backend="cuda", **vs):
    case = Case(rows, backend=backend)
    return {**case_fields(case), "kernel": "tile", "us": us, "fraction_of_copy": fraction, "vs": vs}


def result(**changes):
    return {
        "device": "A",
        "driver": "580",
        "cuda": "13.0",
        "date": "then",
        "copy_tb_s": 4.28,
        "tests": {"passed": 10, "failed": 1, "skipped": 2, "failures": ["gpu: tests.x::test_y"]},
        "sanitizer": dict.fromkeys(("memcheck", "racecheck", "initcheck", "synccheck"), "passed"),
        "step": [
            row(seed=5.0, torch_compile=2.0),
            row(32, 4.0, 0.01, seed=1.2),
            row(65536, 9000.0, None, "cpu", numpy=6.0),
        ],
        "host_us": {"launches": 2, "rows": 32, "bare_c": 4.0, "bound": 5.0, "torch": 7.0},
        "import_s": {"numpy": 0.1, "qpi_distill": 0.15},
        **changes,
    }


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


# ---- reports -------------------------------------------------------------------------------------------------------


def test_every_figure_has_a_verdict():
    verdicts = {figure.what: figure.verdict(result())[1] for figure in FIGURES}
    assert verdicts.pop("1 M rows: times faster than torch.compile") == "falls short"
    assert set(verdicts.values()) == {"pass"}
    assert {figure.verdict({})[1] for figure in FIGURES} == {"not measured"}


def test_a_figure_is_about_the_plain_step():
    masked = {**row(seed=9.0), "options": ["mask"]}
    half = {**row(seed=9.0), "pi_dtype": "float16"}
    assert FIGURES[0].verdict({"step": [masked, half]}) == (None, "not measured")


def test_the_report_shows_what_there_is():
    text = render(result(notes=["CuPy is not installed"]))
    for part in (
        "A, driver 580, CUDA 13.0, then, copy 4.280 TB/s",
        "10 passed, 1 failed, 2 skipped",
        "failed: gpu: tests.x::test_y",
        "memcheck passed",
        "1048576 x 11 x 21 f32",
        "90.0",
        "bound 5.00 (1.25x)",
        "numpy 0.100",
        "note: CuPy is not installed",
        "falls short",
    ):
        assert part in text
    assert max(map(len, text.splitlines())) < 130


def test_the_report_of_an_incomplete_result():
    assert "not measured" not in render({"tests": {"passed": 1, "failed": 0, "skipped": 0}})
    assert "not measured" in render({"step": [row()]})
    incomplete = {key: value for key, value in row(torch_compile=3.0).items() if key not in ("us", "kernel")}
    assert "3.00" in render({"step": [incomplete], "host_us": {"bound": 3.0}})


def test_a_long_report_is_cut():
    failures = [f"gpu: tests.gpu.test_{i % 4}::test_{i} - no" for i in range(500)]
    tests = {"passed": 0, "failed": 500, "skipped": 0, "failures": failures}
    text = render(result(tests=tests, notes=[f"note {i}" for i in range(300)]))
    assert len(text) < 8000
    assert "failed: gpu: tests.gpu.test_3::test_3 - no (+ 124 of this file)" in text


def test_regressions():
    assert regressions(result(), result()) == []
    slower = result(
        step=[row(fraction=0.7, seed=5.0, torch_compile=1.5), row(32, seed=1.1), row(65536, backend="cpu", numpy=5.5)]
    )
    found = regressions(result(), slower)
    assert len(found) == 2
    assert "fraction of copy: 0.900 before, 0.700 now" in found[0]
    assert "against torch_compile" in found[1]
    slower_host = result(host_us={"launches": 2, "rows": 32, "bare_c": 4.0, "bound": 7.0, "torch": 7.0})
    assert len(regressions(result(), slower_host)) == 1
    assert "cannot be compared" in regressions(result(), result(device="B"))[0]
    assert regressions(result(), {"device": "A"}) == []
