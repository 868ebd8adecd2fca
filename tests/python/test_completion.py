"""Completion: the scripts are asked what follows a command line, in the shells that are installed."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from qpi_distill import cli
from qpi_distill.cli.completion import SCRIPTS, commands_of

CASES = [
    ("", {"info", "isv", "bench", "simulate", "demo", "completion", "--help", "--version"}, set()),
    ("isv ", {"show", "audit"}, {"info", "--rows"}),
    ("isv audit --b", {"--baseline", "--buffer"}, {"--json", "--write-baseline"}),
    ("isv show --role ", {"parameter", "state", "output"}, {"--json"}),
    ("isv show --role st", {"state"}, {"output"}),
    ("simulate --sensor r", {"row0", "random"}, {"mean"}),
    ("simulate --rows 5 --no", {"--noise", "--no-picture"}, {"--rows"}),
    ("simulate --rows ", set(), {"--rows", "--noise", "here.json"}),
    ("completion ", {"bash", "zsh", "fish"}, {"show"}),
    ("isv audit --baseline h", {"here.json"}, {"--json"}),
    ("isv audit h", {"here.json"}, {"--json"}),
    ("demo --out h", {"here.json"}, {"--json"}),
]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("completion")
    (folder / "here.json").touch()
    for shell, write in SCRIPTS.items():
        (folder / shell).write_text(write(list(commands_of(cli.parser()))))
    return folder


def asked(shell, folder, program, *arguments):
    path = shutil.which(shell) or pytest.skip(f"{shell} is not installed")
    flags = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    command = [path, *flags, "-c", program, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    return {line.partition("\t")[0] for line in done.stdout.splitlines()}


BASH = """
source ./bash
COMP_WORDS=(qpi-distill $1) COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
[[ -z "$1" || "$1" == *" " ]] && COMP_WORDS+=("") && COMP_CWORD=$(( COMP_CWORD + 1 ))
_qpi_distill
printf '%s\\n' "${COMPREPLY[@]}"
complete -p qpi-distill > /dev/null
"""
# What the completion system would do with the words and files that it is given.
ZSH = """
compdef() { [[ "$*" == "_qpi_distill qpi-distill" ]] || print "wrong compdef: $*" }
compadd() { shift; local word; for word in "$@"; do [[ "$word" == ${last}* ]] && print -r -- "$word"; done; true }
_files() { local file; for file in ${last}*(N); do print -r -- "$file"; done }
source ./zsh
words=(qpi-distill ${=1})
[[ -z "$1" || "$1" == *" " ]] && words+=("")
CURRENT=${#words} last="${words[-1]}"
_qpi_distill
"""
FISH = """
source ./fish
complete -C "qpi-distill $argv[1]"
test -n "$argv[1]"; or complete -C "qpi-distill --"
"""


@pytest.mark.parametrize(("line", "offered", "not_offered"), CASES, ids=[line or "nothing" for line, _, _ in CASES])
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_follows(scripts, shell, line, offered, not_offered):
    if shell == "bash":
        words = asked(shell, scripts, BASH, "bash", line)
    elif shell == "zsh":
        words = asked(shell, scripts, ZSH, "zsh", line)
    else:
        words = asked(shell, scripts, FISH, line)
    assert offered <= words
    assert not words & not_offered


def test_every_option_is_in_every_script():
    commands = list(commands_of(cli.parser()))
    assert ("isv", "audit") in [command.words for command in commands]
    for shell, write in SCRIPTS.items():
        script = write(commands)
        for command in commands:
            for name in [n for option in command.options for n in option.names]:
                written = name if shell != "fish" else f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                assert written in script


@pytest.mark.parametrize("shell", list(SCRIPTS))
def test_the_command(shell, capsys):
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert script == SCRIPTS[shell](list(commands_of(cli.parser())))
    assert cli.main(["completion", shell, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"shell": shell, "script": script}


def test_another_shell_is_refused(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["completion", "tcsh"])
    assert stop.value.code == 2
    assert "'tcsh'" in capsys.readouterr().err
