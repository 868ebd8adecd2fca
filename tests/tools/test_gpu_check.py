"""tools/gpu_check.py as far as it goes without a GPU."""

import copy
import json
import subprocess
import sys
import time
from pathlib import Path

import gpu_check
import pytest
from benchmarks.__main__ import PARTS
from benchmarks.native import SEED_FILES, seed_sources
from benchmarks.results import Unavailable
from checks import bench, sanitizer, suites
from checks.process import Clock, Finished, run
from checks.sources import source_files, sources_sha256, why_stale
from fabricated import whole

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "gpu_check.py"


@pytest.fixture
def tree(tmp_path):
    for name, text in {
        "CMakeLists.txt": "project(x)",
        "cmake/a.cmake": "a",
        "cuda/kernels/b.cu": "b",
        "cuda/include/c.h": "c",
        "src/d.cpp": "d",
        "src/cython/e.pyx": "e",
        "python/f.py": "f",
    }.items():
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "tree"


# ---- the hash ------------------------------------------------------------------------------------------------------


def test_the_hash_covers_what_the_library_is_built_from(tree):
    assert [path.relative_to(tree).as_posix() for path in source_files(tree)] == [
        "CMakeLists.txt",
        "cmake/a.cmake",
        "cuda/include/c.h",
        "cuda/kernels/b.cu",
        "src/cython/e.pyx",
        "src/d.cpp",
    ]


@pytest.mark.parametrize("name", ["CMakeLists.txt", "cmake/a.cmake", "cuda/kernels/b.cu", "src/cython/e.pyx"])
def test_the_hash_sees_a_change(tree, name):
    before = sources_sha256(tree)
    with (tree / name).open("a", encoding="utf-8") as file:
        file.write(" ")
    assert sources_sha256(tree) != before


def test_the_hash_sees_a_new_file_a_renamed_one_and_moved_content(tree):
    seen = {sources_sha256(tree)}
    (tree / "src/g.cpp").write_text("", encoding="utf-8")
    seen.add(sources_sha256(tree))
    (tree / "src/g.cpp").rename(tree / "src/h.cpp")
    seen.add(sources_sha256(tree))
    (tree / "src/h.cpp").write_text("d", encoding="utf-8")
    (tree / "src/d.cpp").write_text("", encoding="utf-8")
    seen.add(sources_sha256(tree))
    assert len(seen) == 4


def test_the_hash_does_not_see_leftovers(tree):
    before = sources_sha256(tree)
    for name in ("src/__pycache__/e.cpython-311.pyc", "cuda/.b.cu.swp", "python/g.py", "build/x.o"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("left", encoding="utf-8")
    assert sources_sha256(tree) == before


def test_stale(tree):
    result = tree / "benchmarks/results/gpu.json"
    assert "no GPU result" in why_stale(tree, result)
    result.parent.mkdir(parents=True)
    result.write_text("{", encoding="utf-8")
    assert "cannot be read" in why_stale(tree, result)
    result.write_text("[]", encoding="utf-8")
    assert "cannot be read" in why_stale(tree, result)
    result.write_text(json.dumps({"sources_sha256": sources_sha256(tree)}), encoding="utf-8")
    assert why_stale(tree, result) is None
    (tree / "src/d.cpp").write_text("dd", encoding="utf-8")
    assert "other sources" in why_stale(tree, result)


def test_the_command_line_for_it_is_quick_needs_nothing_and_prints_one_line():
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-I", "-S", SCRIPT, "--stale"], capture_output=True, text=True, check=False, timeout=60
    )
    assert time.monotonic() - begun < 20
    assert done.stderr == ""
    reason = why_stale(ROOT, gpu_check.RESULT)
    assert (done.returncode, done.stdout) == ((0, "") if reason is None else (1, f"{reason}\n"))


# ---- comparing results ---------------------------------------------------------------------------------------------


def written(path, data):
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def test_two_results_are_compared_without_a_gpu(tmp_path, capsys):
    slow = copy.deepcopy(whole())
    slow["step"][0]["fraction_of_copy"] = 0.5
    good, bad = written(tmp_path / "good.json", whole()), written(tmp_path / "bad.json", slow)
    assert gpu_check.main(["--compare", str(good), str(good)]) == 0
    assert capsys.readouterr().out == "nothing is worse\n"
    assert gpu_check.main(["--compare", str(bad), str(good)]) == 1
    assert capsys.readouterr().out == "1048576 x 11 x 21 f32 (cuda), fraction of copy: 0.995 before, 0.5 now\n"
    assert gpu_check.main(["--compare", str(good), str(bad)]) == 0


def test_a_result_is_compared_with_the_recorded_one(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_check, "RESULT", written(tmp_path / "gpu.json", whole()))
    other = written(tmp_path / "other.json", whole(device="B"))
    assert gpu_check.main(["--compare", str(other)]) == 1
    assert "cannot be compared" in capsys.readouterr().out


def test_what_cannot_be_read_cannot_be_compared(tmp_path, capsys):
    assert gpu_check.main(["--compare", str(tmp_path / "none.json"), str(written(tmp_path / "a.json", whole()))]) == 2
    assert "none.json" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        gpu_check.main(["--compare", "a", "b", "c"])


def test_comparing_needs_nothing_but_python(tmp_path):
    good = written(tmp_path / "good.json", whole())
    command = [sys.executable, "-I", "-S", SCRIPT, "--compare", good, good]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "nothing is worse\n", "")


# ---- the parts of the benchmark ------------------------------------------------------------------------------------


@pytest.mark.parametrize("cores", [1, 4, 7, 8, 64])
def test_every_part_runs_once_and_compilers_share_the_time_where_there_are_cores(cores):
    groups = bench.groups(cores)
    assert sorted(part for parts in groups for part in parts) == sorted(PARTS)
    assert max(map(len, groups)) == (2 if cores >= 8 else 1)
    assert groups[0] == ("step",)
    assert set(groups[-1]) <= set(bench.TOGETHER)


FAKE = """
import json, pathlib, sys
part, output = sys.argv[2], pathlib.Path(sys.argv[4])
if part == "host":
    raise SystemExit(3)
if part == "peers":
    output.write_text(json.dumps({"step": [{"part": part}], "limit": sys.argv[8]}))
    import time
    time.sleep(60)
output.write_text(json.dumps({"step": [{"part": part}], "limit": sys.argv[8]}))
"""


def test_a_part_that_dies_or_is_stopped_takes_no_other_with_it(tmp_path, monkeypatch):
    package = tmp_path / "benchmarks"
    package.mkdir()
    (package / "__main__.py").write_text(FAKE, encoding="utf-8")
    monkeypatch.setitem(bench.SECONDS, "peers", 4)
    seen = list(bench.run_parts(tmp_path, tmp_path, tmp_path / "logs", Clock(0), {}, None))
    assert len(seen) == len(PARTS)
    assert [rows["step"][0]["part"] for rows in seen if "step" in rows] == [
        part for part in bench.SECONDS if part != "host"
    ]
    notes = [note for rows in seen for note in rows.get("notes", ())]
    assert len(notes) == 2
    assert "host: exit status 3" in notes[0]
    assert "peers: stopped after" in notes[1]
    assert {rows["limit"] for rows in seen if "limit" in rows} >= {"48", "32"}


# ---- results -------------------------------------------------------------------------------------------------------


def facts(**changes):
    return {"device": "A", "driver": "1", "cuda": "13.0", "date": "now", "sources_sha256": "abc", **changes}


@pytest.mark.parametrize("change", [{}, {"sources_sha256": "other"}, {"device": "B"}])
def test_a_part_is_added_to_a_result_of_the_same_sources_and_device(tmp_path, change):
    path = tmp_path / "gpu.json"
    recorded = facts(**change, date="then", tests={"passed": 3, "failed": 0, "skipped": 0}, notes=["old"])
    path.write_text(json.dumps(recorded), encoding="utf-8")
    gpu_check.Result(path, facts(), None, tmp_path).add(copy_tb_s=4.0)
    got = json.loads(path.read_text(encoding="utf-8"))
    assert got["copy_tb_s"] == 4.0
    assert got["date"] == "now"
    assert ("tests" in got) == (not change)
    assert "notes" not in got


def test_result_summary_and_logs_are_copied(tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    for name in ("tests-cpu", "tests-gpu", "build"):
        (logs / f"{name}.log").write_text(f"of {name}", encoding="utf-8")
    result = gpu_check.Result(tmp_path / "gpu.json", facts(), tmp_path / "out", logs)
    result.add(tests={"passed": 1, "failed": 0, "skipped": 2})
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "build.log",
        "gpu.json",
        "summary.txt",
        "tests.log",
    ]
    text = (tmp_path / "out/tests.log").read_text(encoding="utf-8")
    assert "of tests-cpu" in text
    assert "of tests-gpu" in text
    assert "1 passed, 0 failed, 2 skipped" in (tmp_path / "out/summary.txt").read_text(encoding="utf-8")


# ---- child processes -----------------------------------------------------------------------------------------------


def test_a_child_is_logged(tmp_path):
    done = run([sys.executable, "-c", "print('here'); raise SystemExit(3)"], tmp_path / "x.log", limit=60, cwd=tmp_path)
    assert (done.code, done.timed_out) == (3, False)
    assert "here" in done.text
    assert "exit status 3" in done.how


def test_a_child_that_takes_too_long_is_stopped_with_its_own_children(tmp_path):
    code = "import subprocess, sys, time\nsubprocess.Popen(['sleep', '50'])\nprint('begun')\ntime.sleep(50)"
    begun = time.monotonic()
    done = run([sys.executable, "-c", code], tmp_path / "x.log", limit=3, cwd=tmp_path)
    assert done.timed_out
    assert time.monotonic() - begun < 30
    assert "stopped" in done.how


def test_a_program_that_does_not_exist_has_failed(tmp_path):
    done = run([tmp_path / "none"], tmp_path / "x.log", limit=3, cwd=tmp_path)
    assert done.code != 0
    assert "none" in done.text


def test_the_clock():
    assert Clock(0).left(400, 50) == 400
    assert Clock(1e6).left(400) == 400
    assert Clock(1e-6).left(400, 50) == 1


def test_the_benchmark_leaves_half_of_a_short_time_to_the_checks():
    assert Clock(0).half_at_most(150) == 150
    assert Clock(1e6).half_at_most(150) == 150
    assert Clock(1e-6).half_at_most(150) == 0
    late = Clock(100)
    late.end = time.monotonic() + 100
    assert 49 < late.half_at_most(150) <= 50


# ---- the suites ----------------------------------------------------------------------------------------------------

JUNIT = """<?xml version="1.0"?>
<testsuites><testsuite name="pytest">
<testcase classname="tests.gpu.test_a" name="test_one"/>
<testcase classname="tests.gpu.test_a" name="test_two[x]"><failure message="no">text</failure></testcase>
<testcase classname="tests.gpu.test_a" name="test_three"><skipped message="why"/></testcase>
<testcase classname="tests.gpu.test_b" name="test_four"><error message="no">text</error></testcase>
</testsuite></testsuites>
"""

VERBOSE = """
[gw0] [  5%] PASSED tests/gpu/test_a.py::test_one[a b]
[gw1] [ 10%] FAILED tests/gpu/test_a.py::test_two
tests/gpu/test_a.py::test_three SKIPPED (why)                [ 15%]
tests/gpu/test_a.py::test_four PASSED                        [ 20%]
"""


def finished(tmp_path, text="", code=0, timed_out=False):
    log = tmp_path / "some.log"
    log.write_text(text, encoding="utf-8")
    return Finished(code, 1.0, timed_out, log)


def test_counts_come_from_the_junit_file(tmp_path):
    junit = tmp_path / "x.xml"
    junit.write_text(JUNIT, encoding="utf-8")
    out = suites.outcome_of(finished(tmp_path, code=1), junit)
    assert (out.passed, out.failed, out.skipped) == (1, 2, 1)
    assert out.failures == ["tests.gpu.test_a::test_two[x] - no", "tests.gpu.test_b::test_four - no"]


def test_without_one_they_come_from_the_log(tmp_path):
    junit = tmp_path / "x.xml"
    junit.write_text(JUNIT[:100], encoding="utf-8")
    out = suites.outcome_of(finished(tmp_path, VERBOSE, -9, timed_out=True), junit)
    assert (out.passed, out.failed, out.skipped) == (2, 2, 1)
    assert out.failures[0] == "tests/gpu/test_a.py::test_two"
    assert "stopped" in out.failures[1]


@pytest.mark.parametrize("code", [1, 2, 3, 4, 5, -11])
def test_a_run_that_breaks_is_a_failure(tmp_path, code):
    out = suites.outcome_of(finished(tmp_path, "", code), tmp_path / "none.xml")
    assert out.failed == 1


def test_a_clean_run_is_none(tmp_path):
    assert suites.outcome_of(finished(tmp_path, VERBOSE.replace("FAILED", "PASSED")), tmp_path / "none.xml").failed == 0


def test_suites_are_summed():
    got = suites.together({"gpu": suites.Outcome(1, 1, 2, ["a"]), "cpu": suites.Outcome(5, 0, 0)})
    assert got == {"passed": 6, "failed": 1, "skipped": 2, "failures": ["gpu: a"]}


# ---- compute-sanitizer ---------------------------------------------------------------------------------------------

CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
RACES = "========= RACECHECK SUMMARY: {} hazards displayed (0 errors, 0 warnings)\n"


@pytest.mark.parametrize(
    ("text", "code", "tests", "failed", "want"),
    [
        (CLEAN, 0, 5, 0, "passed"),
        (RACES.format(0), 0, 5, 0, "passed"),
        (CLEAN + CLEAN, 0, 5, 0, "passed"),
        (CLEAN + CLEAN.replace("0 errors", "2 errors"), 86, 5, 0, "failed: 2 errors"),
        (CLEAN.replace("0 errors", "1 error"), 86, 5, 0, "failed: 1 errors"),
        (RACES.format(3), 86, 5, 0, "failed: 3 hazards"),
        (CLEAN, 86, 5, 0, "failed: it found errors"),
        (CLEAN, 1, 5, 2, "failed: 2 tests fail under it"),
        (CLEAN, 0, 0, 0, "failed: no test ran"),
        (CLEAN, 5, 0, 0, "failed: no test ran"),
        (CLEAN, 3, 5, 0, "failed: exit status 3 after 1 s"),
        ("========= Error: Device not supported\n", 1, 0, 0, "not run: Device not supported"),
        ("", 127, 0, 0, "not run: exit status 127 after 1 s"),
    ],
)
def test_verdicts(tmp_path, text, code, tests, failed, want):
    assert sanitizer.verdict(finished(tmp_path, text, code), tests, failed) == want


def test_a_tool_that_is_stopped_has_not_passed(tmp_path):
    assert sanitizer.verdict(finished(tmp_path, CLEAN, -15, timed_out=True), 5, 0).startswith("failed: stopped")


def test_the_seed_folder_is_looked_at_before_compiling(tmp_path):
    assert seed_sources(None) == []
    with pytest.raises(Unavailable, match="does not hold"):
        seed_sources(tmp_path)
    for name in SEED_FILES:
        (tmp_path / name).touch()
    assert [path.name for path in seed_sources(tmp_path)] == list(SEED_FILES)
