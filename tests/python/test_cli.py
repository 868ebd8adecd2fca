"""The command line: exit codes, what goes to stdout and stderr, JSON."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pty
import subprocess
import sys

import pytest

import qpi_distill as qpi
from qpi_distill import cli
from qpi_distill.cli.arguments import environment
from qpi_distill.cli.info import lines

COMMANDS = ("info", "isv", "bench", "simulate", "demo", "completion")


def run(*args, cwd=None):
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "qpi_distill", *args], capture_output=True, text=True, encoding="utf-8", cwd=cwd
    )


def refused(capsys, *args):
    """Run the command here; return what it says on refusing its arguments."""
    with pytest.raises(SystemExit) as stop:
        cli.main(args)
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"qpi-distill {qpi.__version__}\n"


def test_help_names_the_commands_and_options(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for command in COMMANDS:
        assert command in text
    with pytest.raises(SystemExit) as stop:
        cli.main(["demo", "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for option in ("--env", "--steps", "--seed", "--seeds", "--device", "--out", "--lam", "--tau", "--kl-target"):
        assert option in text
    assert 'pip install "qpi-distill[demo]"' in " ".join(text.split())


def test_no_command_and_unknown_command(capsys):
    assert "command" in refused(capsys)
    assert "nonsense" in refused(capsys, "nonsense")


# ---- info ------------------------------------------------------------------------------------------------------------


def test_info(capsys):
    assert cli.main(["info"]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert qpi.__version__ in text
    info = qpi.info()
    for kernel in info["cpu"]["kernels"]:
        assert kernel in text
    if not info["gpu"]["usable"]:
        assert info["gpu"]["reason"] in text


def test_info_json(capsys):
    assert cli.main(["info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == qpi.info()


def test_info_needs_no_extra():
    code = (
        "import sys\n"
        "for name in ('rich', 'matplotlib', 'minatar', 'gymnasium'): sys.modules[name] = None\n"
        "from qpi_distill.cli import main\n"
        "raise SystemExit(main(['info']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert qpi.__version__ in done.stdout


def test_lines_of_an_answer_with_devices():
    info = {
        "gpu": {
            "built": True,
            "kernels": ["tile"],
            "reason": "",
            "devices": [{"ordinal": 0, "name": "A"}, {"ordinal": 1}],
        }
    }
    assert list(lines(info)) == [
        ("gpu built", "yes"),
        ("gpu kernels", "tile"),
        ("gpu devices", "ordinal 0, name A"),
        ("", "ordinal 1"),
    ]


# ---- isv show --------------------------------------------------------------------------------------------------------


def test_the_manifest(capsys):
    assert cli.main(["isv", "show"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert len(table) == 1 + len(qpi.ISV.slot_info())
    for line, slot in zip(table[1:], qpi.ISV.slot_info(), strict=True):
        assert line.split()[:2] == [slot.name, slot.type]
        assert line.endswith(slot.meaning)
    assert "486" in table[1]


def test_the_manifest_as_json(capsys):
    assert cli.main(["isv", "show", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["version"] == qpi.__version__
    for told, slot in zip(answer["slots"], qpi.ISV.slot_info(), strict=True):
        for field in ("name", "type", "unit", "meaning", "low"):
            assert told[field] == getattr(slot, field)
        assert told["role"] == {"param": "parameter"}.get(slot.role, slot.role)
        assert told["default"] == (None if slot.role == "output" else slot.default)
    at = {told["name"]: told for told in answer["slots"]}
    assert (at["lam"]["bus"], at["tau_min"]["bus"]) == (486, None)
    assert at["tau"]["high"] is None  # infinite
    assert qpi.Layout.native().to_dict() == {name: told["native"] for name, told in at.items()}


def test_a_part_of_the_manifest(capsys):
    assert cli.main(["isv", "show", "tau", "lam", "lam_law", "--role", "state", "--json"]) == 0
    assert [s["name"] for s in json.loads(capsys.readouterr().out)["slots"]] == ["lam", "tau"]
    assert "argument SLOT: 'lamda' is no slot; the slots are lam, tau" in refused(capsys, "isv", "show", "lamda")
    assert "--role" in refused(capsys, "isv", "show", "--role", "param")


# ---- what holds for all commands -------------------------------------------------------------------------------------


def leaves(parser, words=()):
    inner = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not inner:
        yield words, parser
    for action in inner:
        for name, command in action.choices.items():
            yield from leaves(command, (*words, name))


def test_every_command_takes_json_and_says_what_it_is_for():
    commands = dict(leaves(cli.parser()))
    assert {words[0] for words in commands} == set(COMMANDS)
    for words, command in commands.items():
        assert "--json" in command._option_string_actions, words
        assert command.description, words
        for action in command._actions:
            assert action.help, (words, action.dest)


@pytest.mark.parametrize("color", [True, False])
def test_colours_are_for_a_terminal_that_takes_them(color):
    pytest.importorskip("rich")
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    env.pop("NO_COLOR", None)
    if not color:
        env["NO_COLOR"] = "1"
    ours, theirs = pty.openpty()
    done = subprocess.Popen([sys.executable, "-m", "qpi_distill", "info"], stdout=theirs, env=env)
    os.close(theirs)
    output = b""
    try:
        while piece := os.read(ours, 4096):
            output += piece
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert done.wait() == 0
    assert qpi.__version__.encode() in output
    assert (b"\x1b[" in output) == color


# ---- demo: arguments -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "named", "says"),
    [
        (["--env", "Pong"], "--env", "'Pong' is not one of MinAtar/Breakout"),
        (["--steps", "0"], "--steps", "'0' is not a whole number from 1"),
        (["--steps", "many"], "--steps", "'many' is not a whole number"),
        (["--seed", "-1"], "--seed", "'-1' is not a whole number from 0"),
        (["--seed", "4294967296"], "--seed", "is not a whole number"),
        (["--device", "gpu"], "--device", "'gpu' is not cpu, cuda or cuda:N"),
        (["--lam", "-0.1"], "--lam", "'-0.1' is not a finite number >= 0"),
        (["--lam", "nan"], "--lam", "'nan' is not a finite number"),
        (["--tau", "0"], "--tau", "'0' is not a finite number > 0"),
        (["--kl-target", "inf"], "--kl-target", "'inf' is not a finite number > 0"),
        (["--compare", "--seeds", "4"], "--seeds", "'4' is not a whole number from 5"),
        (["--seeds", "5"], "--seeds", "only with --compare"),
        (["--compare", "--lam", "0"], "--lam", "plain PPO"),
        (["--processes", "0"], "--processes", "whole number from 1"),
        (["--out", "picture.svg"], "--out", "does not end in .png"),
        (["--out", "no/such/folder/x.png"], "--out", "there is no folder"),
        (["--out", "x.png", "--no-picture"], "--out", "not with --no-picture"),
        (["--nonsense"], "--nonsense", "unrecognized"),
    ],
)
def test_bad_arguments_are_named(capsys, args, named, says):
    text = refused(capsys, "demo", *args)
    assert named in text
    assert says in text


@pytest.mark.parametrize(
    ("text", "env"),
    [("breakout", "MinAtar/Breakout"), ("minatar/breakout", "MinAtar/Breakout"), ("CARTPOLE", "CartPole-v1")],
)
def test_environment_names(text, env):
    assert environment(text) == env


# ---- demo: runs ------------------------------------------------------------------------------------------------------


def test_missing_extra_is_named(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.main(["demo", "--steps", "1", "--quiet"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert 'pip install "qpi-distill[demo]"' in captured.err
    assert "matplotlib" in captured.err


def test_interruption(capsys, monkeypatch):
    from qpi_distill.demo import main as demo

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run_jobs", interrupt)
    assert cli.main(["demo", "--no-picture"]) == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.fixture(scope="module")
def gymnasium():
    if importlib.util.find_spec("gymnasium") is None:
        pytest.skip("gymnasium is not installed")


def test_demo_prints_a_summary_and_draws(gymnasium, tmp_path):
    pytest.importorskip("matplotlib")
    done = run("demo", "--env", "CartPole-v1", "--steps", "3000", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert done.stderr == ""  # nobody is looking
    assert "Picture: qpi-demo.png" in done.stdout
    assert "agreement" in done.stdout
    assert (tmp_path / "qpi-demo.png").read_bytes()[:4] == b"\x89PNG"


def test_demo_json(gymnasium, tmp_path):
    args = ["--steps", "2000", "--seed", "7", "--lam", "0.2", "--tau", "0.5", "--kl-target", "0.1", "--no-picture"]
    done = run("demo", "--env", "CartPole-v1", "--json", "--quiet", *args, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    answer = json.loads(done.stdout)
    assert answer["kind"] == "run"
    assert answer["picture"] is None
    (only,) = answer["runs"]
    config = only["config"]
    assert (config["seed"], config["lam"], config["tau"], config["kl_target"]) == (7, 0.2, 0.5, 0.1)
    assert only["summary"]["steps"] == only["history"]["steps"][-1] >= 2000
    assert list(tmp_path.iterdir()) == []


def test_compare_json(gymnasium, tmp_path):
    pytest.importorskip("matplotlib")
    done = run("demo", "--compare", "--env", "CartPole-v1", "--steps", "1000", "--json", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["kind"] == "comparison"
    assert "proves nothing about benefit" in answer["note"]
    arms = [(r["summary"]["arm"], r["summary"]["seed"]) for r in answer["runs"]]
    assert sorted(arms) == [(arm, seed) for arm in ("distilled", "ppo", "shuffled") for seed in range(5)]
    assert (tmp_path / "qpi-compare.png").stat().st_size > 20_000


def test_demo_without_a_gpu_says_why(gymnasium, tmp_path):
    if qpi.info()["gpu"]["usable"]:
        pytest.skip("there is a GPU")
    done = run("demo", "--env", "CartPole-v1", "--device", "cuda", "--no-picture", "--quiet", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "--device cuda" in done.stderr
    assert "Traceback" not in done.stderr
