"""Figures, reports and regressions, on fabricated results."""

import copy

import pytest
from benchmarks.cases import CPU_CASES, MILLION, plain
from benchmarks.figures import DEVICE, FIGURES, FIRST, LIMITS, find_row
from benchmarks.report import regressions, render
from fabricated import result, row, whole

# ---- reports -------------------------------------------------------------------------------------------------------


def test_every_figure_has_a_verdict():
    verdicts = {figure.what: figure.verdict(result())[1] for figure in FIRST}
    assert verdicts.pop("1 M rows: times faster than torch.compile") == "falls short"
    assert set(verdicts.values()) == {"pass"}
    assert {figure.verdict({})[1] for figure in FIGURES} == {"not measured"}


def test_a_whole_result_reaches_every_figure():
    assert {figure.what: verdict for figure in FIGURES if (verdict := figure.verdict(whole())[1]) != "pass"} == {}


def test_a_slow_result_reaches_no_limit():
    slow = whole(share=0.5)
    for step in slow["step"]:
        step["us"] = max(step["us"], 10)
        step["vs"] = dict.fromkeys(step["vs"], 1.4)
    slow["host_us"] |= {"bound": 5.0, "torch": 7.0, "cupy": 10.0, "numba": 10.0}
    assert {figure.verdict(slow)[1] for figure in LIMITS} == {"falls short"}


def test_microseconds_are_for_the_device_that_they_name():
    times = [figure for figure in LIMITS if figure.device]
    assert [figure.bound for figure in times] == [2.5, 2.8, 3.3, 4.5, 7.5]
    assert {figure.verdict(whole(device="B"))[1] for figure in times} == {f"for {DEVICE}"}


def test_figures_of_two_cores_are_not_taken_from_others():
    many = whole() | {"cpu": {"model": "Some CPU", "isa": "avx512", "cores": 16}}
    few = [figure for figure in LIMITS if figure.what.startswith("2 cores")]
    assert len(few) == 3
    assert {figure.verdict(many)[1] for figure in few} == {"not measured"}


def test_each_figure_prints_its_value_its_bound_and_its_verdict():
    lines = render(whole()).splitlines()
    table = lines[next(i for i, line in enumerate(lines) if line.startswith("figure ")) + 1 :]
    assert len(table) == len(FIGURES)
    assert all(line.endswith("  pass") for line in table)
    squeezed = [" ".join(line.split()) for line in table]
    assert "32 rows: a step 2.00 us <= 2.5 us pass" in squeezed
    assert "4 M rows: share of the copy rate 99.5 % >= 99 % pass" in squeezed


def test_rows_are_found_by_their_case():
    assert find_row(whole(), plain(4 * MILLION, dtype="float16"))["q_dtype"] == "float16"
    assert find_row(whole(), CPU_CASES[0])["backend"] == "cpu"
    assert find_row(whole(), plain(7)) == {}


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
    assert len(render(whole())) < 12000


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
    assert "fraction of copy: 0.9 before, 0.7 now" in found[0]
    assert "against torch_compile" in found[1]
    slower_host = result(host_us={"launches": 2, "rows": 32, "bare_c": 4.0, "bound": 7.0, "torch": 7.0})
    assert len(regressions(result(), slower_host)) == 1
    assert "cannot be compared" in regressions(result(), result(device="B"))[0]


def test_what_is_no_longer_measured_is_a_regression_but_a_peer_is_not():
    without = copy.deepcopy(whole())
    del without["step"][0]
    del without["step"][0]["vs"]["seed"]
    del without["host_us"]["numba"]
    found = regressions(whole(), without)
    assert len(found) == 2
    assert all("measured before, not now" in line for line in found)
    assert len(regressions(result(), {"device": "A"})) == 3 + 5


def test_cases_that_are_gone_are_not_missed():
    old = result(step=[*result()["step"], row(777)])
    assert regressions(old, result()) == []


@pytest.mark.parametrize("kind", ["grad", "kl"])
def test_larger_errors_are_regressions(kind):
    worse = copy.deepcopy(whole())
    worse["step"][3]["error"][kind] *= 1.4
    assert regressions(whole(), worse) == []
    worse["step"][3]["error"][kind] *= 1.4
    (line,) = regressions(whole(), worse)
    assert f"error of {kind}" in line
    assert regressions(worse, whole()) == []


def test_the_cpu_is_compared_on_the_same_cores_alone():
    slower = copy.deepcopy(whole())
    for step in slower["step"]:
        if step["backend"] == "cpu":
            step["vs"] = dict.fromkeys(step["vs"], 2.0)
    assert len(regressions(whole(), slower)) == 6
    slower["cpu"]["cores"] = 16
    assert regressions(whole(), slower) == []


def test_a_slower_import_is_a_regression():
    assert len(regressions(result(), result(import_s={"numpy": 0.1, "qpi_distill": 0.2}))) == 1
