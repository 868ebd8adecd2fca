"""The benchmark that ships: its figures belong together, its caches are named honestly, its time is taken right."""

from __future__ import annotations

import json
import time

import pytest

import qpi_distill as qpi
from qpi_distill import bench, cli
from qpi_distill.bench import cpu, timing

FAST = ["--device", "cpu", "--seconds", "0.01"]


def test_json(capsys):
    arguments = ["--rows", "64", "--rows", "3", "--actions", "5", "--atoms", "7", "--threads", "1", "--json"]
    assert cli.main(["bench", *FAST, *arguments]) == 0
    captured = capsys.readouterr()
    answer = json.loads(captured.out)
    assert captured.err == ""
    assert (answer["device"], answer["actions"], answer["atoms"], answer["dtype"]) == ("cpu", 5, 7, "float32")
    assert answer["copy_gb_s"] > 0.1
    assert answer["cache_bytes"] > 0
    steps = answer["steps"]
    assert [step["rows"] for step in steps] == [64, 64, 3, 3]
    assert [step["cache"] == "warm" for step in steps] == [True, False, True, False]
    for step in steps:
        assert step["bytes"] == 4 * step["rows"] * 5 * (7 + 3)
        assert step["median_us"] > 0
        assert step["spread"] >= 0
        assert step["repeats"] >= 5
        assert step["rows_s"] == pytest.approx(1e6 * step["rows"] / step["median_us"])
        assert step["gb_s"] == pytest.approx(1e-3 * step["bytes"] / step["median_us"])
        assert step["of_copy"] == pytest.approx(step["gb_s"] / answer["copy_gb_s"])
        assert step["working_set_bytes"] % step["bytes"] == 0
        many = step["working_set_bytes"] >= 2 * answer["cache_bytes"]
        assert many == (step["cache"] == "cold")
        assert "1 thread" in step["kernel"]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_table(dtype, capsys):
    assert cli.main(["bench", *FAST, "--rows", "4096", "--dtype", dtype]) == 0
    text = capsys.readouterr().out
    assert dtype in text
    assert "4,096" in text
    assert qpi.info()["cpu"]["kernels"][-1] in text
    assert "\x1b" not in text


class Small(cpu.Cpu):
    """A machine with a cache of 1 MiB, and room for so much."""

    def __init__(self, room):
        super().__init__()
        self.cache_bytes, self.room = 1 << 20, room

    def memory_bytes(self):
        return self.room


@pytest.mark.parametrize(
    ("rows", "room", "expected"),
    [
        (64, 1 << 30, [("warm", 1), ("cold", 63)]),
        (1, 1 << 30, [("warm", 1), ("partly cold", 1024)]),
        (512, 3 << 20, [("warm", 1), ("cold", 5)]),
        (512, 1 << 20, [("warm", 1), ("partly cold", 1)]),
        (1500, 16 << 20, [("cold", 3)]),
        (1500, 2 << 20, [("partly cold", 1)]),
        (8192, 16 << 20, [("cold", 1)]),
    ],
)
def test_what_is_warm_and_what_is_cold(rows, room, expected):
    shape = bench.Shape(rows)
    found = bench.measure(Small(room), shape, 1e9, budget_s=0.001)
    assert [(one.cache, one.working_set_bytes // shape.bytes) for one in found] == expected


def test_too_many_rows():
    with pytest.raises(MemoryError, match="1056000 bytes; 1000 may be taken"):
        bench.measure(Small(1000), bench.Shape(1000), 1e9)


def test_too_many_rows_on_the_command_line(capsys):
    assert cli.main(["bench", *FAST, "--rows", "4294967295", "--json"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "--rows 4294967295" in captured.err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--rows", "0"], "argument --rows: '0' is not a whole number from 1"),
        (["--actions", "4097"], "argument --actions: '4097' is not a whole number from 1 to 4096"),
        (["--atoms", "9999"], "argument --atoms: '9999' is not a whole number from 1 to 4096"),
        (["--dtype", "float64"], "argument --dtype: invalid choice: 'float64'"),
        (["--device", "tpu"], "argument --device: 'tpu' is not cpu, cuda or cuda:N"),
        (["--seconds", "0"], "argument --seconds: '0' is not a finite number > 0"),
        (["--threads", "x"], "argument --threads: 'x' is not a whole number"),
    ],
)
def test_bad_arguments(args, says, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["bench", *args])
    captured = capsys.readouterr()
    assert (stop.value.code, captured.out) == (2, "")
    assert says in captured.err


def test_without_a_gpu_it_says_why(capsys):
    if qpi.info()["gpu"]["usable"]:
        pytest.skip("there is a GPU")
    assert cli.main(["bench", "--device", "cuda"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "--device cuda" in captured.err


@pytest.mark.gpu
def test_on_a_gpu(capsys):
    rows = ["--rows", "256", "--rows", "1048576"]
    assert cli.main(["bench", "--device", "cuda", "--seconds", "0.02", "--json", *rows]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["device"].startswith("cuda:")
    small, cold, large = answer["steps"]
    assert [small["cache"], cold["cache"], large["cache"]] == ["warm", "cold", "cold"]
    assert small["median_us"] < large["median_us"]
    assert 0.05 < large["of_copy"] < 1.2


def test_the_time_is_that_of_one_step():
    on = cpu.Cpu()
    seen = []

    def step(i):
        seen.append(i)
        time.sleep(0.002)

    taken = on.time(step, 3, 0.05)
    assert 2000 <= taken.us < 20000
    assert set(seen) == {0, 1, 2}
    assert seen[:6] == [0, 1, 2, 0, 1, 2]


def test_timing():
    taken = timing.Timing.of([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (taken.us, taken.spread, taken.repeats) == (3.0, pytest.approx(2 / 3), 5)


def test_cache_sizes_are_read(tmp_path):
    for which in range(4):
        for index, (level, size, shared) in enumerate(
            [(1, "32K", str(which)), (2, "1M", str(which)), (3, "16384K", "0-1" if which < 2 else "2-3")]
        ):
            folder = tmp_path / f"cpu{which}/cache/index{index}"
            folder.mkdir(parents=True)
            for name, text in (("level", level), ("size", size), ("shared_cpu_list", shared)):
                (folder / name).write_text(f"{text}\n")
    assert cpu.cache_bytes_of({0, 1}, tmp_path) == 16 << 20
    assert cpu.cache_bytes_of({0, 1, 2}, tmp_path) == 32 << 20
    assert cpu.cache_bytes_of({7}, tmp_path) is None
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: A CPU: fast\n")
    assert cpu.cpu_model(info) == "A CPU: fast"
    assert cpu.cpu_model(tmp_path / "none") == ""
