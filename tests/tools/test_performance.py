"""docs/performance.md and its plot are what the result file says."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import generated
import measured
import performance
import pytest
from benchmarks.cases import OTHER_SHAPES
from benchmarks.figures import FIGURES
from fabricated import result, whole

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A page of its own, without a plot and a result."""
    monkeypatch.setattr(performance, "PAGE", tmp_path / "performance.md")
    monkeypatch.setattr(performance, "PLOT", tmp_path / "performance.svg")
    (tmp_path / "performance.md").write_text((ROOT / "docs/performance.md").read_text(encoding="utf-8"), "utf-8")
    return tmp_path


def record(monkeypatch, data):
    monkeypatch.setattr(measured, "load", lambda: data)


def test_the_page_and_the_plot_are_up_to_date():
    command = [sys.executable, "-I", "-S", ROOT / "tools/performance.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), "run python3 tools/performance.py"


def test_another_result_makes_both_stale_until_they_are_written_anew(folder, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    record(monkeypatch, whole())
    assert performance.main(["--check"]) == 1
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert performance.main([]) == 0
    assert performance.main(["--check"]) == 0
    faster = copy.deepcopy(whole())
    faster["step"][0]["us"] -= 0.1
    record(monkeypatch, faster)
    assert performance.main(["--check"]) == 1
    (folder / "performance.svg").unlink()
    record(monkeypatch, whole())
    assert performance.main(["--check"]) == 1


def test_the_plot_shows_every_contender(folder, monkeypatch):
    pytest.importorskip("matplotlib")
    record(monkeypatch, whole())
    performance.main([])
    drawn = performance.PLOT.read_text(encoding="utf-8")
    for name in ("qpi-distill", "seed kernels", "Triton", "torch.compile", "CuPy", "torch eager", "NVIDIA H200"):
        assert name in drawn
    first = performance.PLOT.read_bytes()
    performance.main([])
    assert performance.PLOT.read_bytes() == first


def test_what_the_plot_is_drawn_from():
    shown = performance.series(whole())
    rows = [32, 256, 1024, 4096, 16384, 65536, 1 << 20, 4 << 20]
    assert [point[0] for point in shown["roof"]] == rows
    assert list(shown["lines"]) == list(performance.COLOURS)
    for name, points in shown["lines"].items():
        assert [point[0] for point in points] == rows, name
    _, us, share = shown["lines"]["qpi-distill"][-1]
    assert share == pytest.approx(99.5, abs=0.1)
    assert us == pytest.approx(shown["roof"][-1][1] / 0.995, rel=1e-3)
    _, slower, smaller = shown["lines"]["seed"][-1]
    assert slower == pytest.approx(12 * us, rel=1e-3)
    assert smaller == pytest.approx(share / 12, abs=0.01)


def test_the_page_of_a_whole_result_has_no_hole():
    for name, part in performance.PARTS.items():
        text = part(whole())
        lines = [line for line in text.splitlines() if line.startswith("|")]
        assert (len(lines) > 2) == (name != "machine"), name
        assert not any("| |" in line for line in lines if name in ("steps", "shapes", "variants", "cpu", "errors")), (
            name
        )
    assert len(measured.figures(whole()).splitlines()) == len(FIGURES) + 2
    assert len(measured.shapes(whole()).splitlines()) == len(OTHER_SHAPES) + 2
    assert "≥ 99 %" in measured.figures(whole())
    assert "≤ 2.5 µs" in measured.figures(whole())


@pytest.mark.parametrize("data", [result(), result(step=[]), {**result(), "host_us": {}}])
def test_the_page_of_an_incomplete_result_can_be_written(data):
    text = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    assert "falls short" in performance.page(text, data) or not data["step"]


def test_without_a_result_the_page_says_so():
    text = performance.page((ROOT / "docs/performance.md").read_text(encoding="utf-8"), {})
    assert text.count(measured.NOTHING) == len(performance.PARTS)
    assert performance.page(text, {}) == text


def test_the_recorded_result_is_read(tmp_path):
    assert measured.load(tmp_path / "none.json") == {}
    (tmp_path / "gpu.json").write_text(json.dumps({"device": "A"}), encoding="utf-8")
    assert measured.load(tmp_path / "gpu.json") == {}, "nothing was timed"
    (tmp_path / "gpu.json").write_text(json.dumps(whole()), encoding="utf-8")
    assert measured.load(tmp_path / "gpu.json") == whole()


PLACE = "<!-- begin: {0} -->\nold\n<!-- end: {0} -->\n"


def test_parts_are_filled_in_and_the_rest_is_left():
    text = "before\n" + PLACE.format("a") + "between\n" + PLACE.format("b") + "after"
    got = generated.fill(text, {"b": lambda: "new b", "a": lambda: "new\na"})
    assert got == text.replace("old", "new\na", 1).replace("old", "new b", 1)
    assert generated.fill(got, {"b": lambda: "new b", "a": lambda: "new\na"}) == got


@pytest.mark.parametrize(
    "text", ["", PLACE.format("a") * 2, PLACE.format("a") + PLACE.format("b"), "<!-- begin: a -->"]
)
def test_a_part_without_a_place_and_a_place_without_a_part_are_errors(text):
    with pytest.raises(ValueError, match="place"):
        generated.fill(text, {"a": lambda: "new"})
