"""`qpi-distill completion`: a script that completes the command line in bash, zsh or fish.

The script is written from the parser, so that it knows what the parser knows, and runs no Python while one types.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

#: Where the script goes, by shell; shown in the help.
SHELLS = {
    "bash": "~/.local/share/bash-completion/completions/qpi-distill",
    "zsh": "_qpi-distill in a folder of $fpath",
    "fish": "~/.config/fish/completions/qpi-distill.fish",
}


class Option(NamedTuple):
    """An option, or what stands for itself (then `names` is empty).

    Attributes
    ----------
    names : tuple of str
        How it is written.
    help : str
    takes : {"nothing", "value", "file"}
    choices : tuple of str
        The values that it takes, where they can be listed.
    """

    names: tuple[str, ...]
    help: str
    takes: str
    choices: tuple[str, ...]


class Command(NamedTuple):
    """A command: its words after the program's name, its options, its commands in turn with their help."""

    words: tuple[str, ...]
    options: list[Option]
    commands: dict[str, str]


def add(commands: Any) -> None:
    """Declare the command."""
    completion = commands.add_parser(
        "completion",
        help="print a script for the completion of a shell",
        description="Print a script that completes the commands and options of qpi-distill in a shell.",
        epilog="where it goes: " + "; ".join(f"{shell}: {where}" for shell, where in SHELLS.items()),
    )
    completion.add_argument("shell", choices=list(SHELLS), help="the shell")
    completion.add_argument("--json", action="store_true", help="print the script within a JSON object")
    completion.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    from . import parser

    script = SCRIPTS[args.shell](list(commands_of(parser())))
    print(json.dumps({"shell": args.shell, "script": script}) if args.json else script, end="\n" if args.json else "")
    return 0


def commands_of(parser: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[Command]:
    """Yield a parser's commands, itself first."""
    options, commands, inner = [], {}, []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            commands = {choice.dest: choice.help or "" for choice in action._choices_actions}
            inner = [(name, action.choices[name]) for name in commands]
            continue
        choices = tuple(map(str, action.choices or ()))
        takes = "nothing" if action.nargs == 0 else "file" if action.type is Path else "value"
        options.append(Option(tuple(action.option_strings), _one_line(action.help), takes, choices))
    yield Command(words, options, commands)
    for name, command in inner:
        yield from commands_of(command, (*words, name))


def _one_line(text: str | None) -> str:
    return " ".join((text or "").replace("%%", "%").split())


def _quoted(text: str) -> str:
    """Return a text as one word of a shell; what fish takes for an escape is left out."""
    return "'" + text.replace("\\", "").replace("'", "") + "'"


# ---- bash and zsh ----------------------------------------------------------------------------------------------------


def _cases(commands: list[Command]) -> Iterator[str]:
    """Yield, for each command, what may follow it and which of its options take what."""
    for command in commands:
        words = [name for option in command.options for name in option.names] + list(command.commands)
        words += [choice for option in command.options if not option.names for choice in option.choices]
        files = [n for o in command.options if o.takes == "file" for n in (o.names or ("-",))]
        values = [n for o in command.options if o.takes == "value" and o.names for n in o.names]
        yield f"    {_quoted(' '.join(command.words))})"
        for name, listed in (("words", words), ("files", files), ("values", values), ("commands", command.commands)):
            yield f"      {name}={_quoted(' '.join(listed))}"
        chosen = [o for o in command.options if o.names and o.choices]
        if chosen:
            yield '      case "$1" in'
            for option in chosen:
                yield f"        {'|'.join(option.names)}) choices={_quoted(' '.join(option.choices))} ;;"
            yield "      esac"
        yield "      ;;"


_SHARED = r"""# Completion of qpi-distill for {shell}. Written by: qpi-distill completion {shell}

# What may follow a command, given its words and the word before the cursor.
_qpi_distill_table() {{
  words= files= values= commands= choices=
  case "$2" in
{cases}
  esac
}}

# Sets `words`, or `use_files` where a path is wanted; arguments: the words up to the cursor, without the last.
_qpi_distill_find() {{
  local word previous="" command=""
  use_files=
  _qpi_distill_table "" ""
  shift
  for word in "$@"; do
    case " $commands " in
      *" $word "*) command="${{command:+$command }}$word"; _qpi_distill_table "" "$command" ;;
    esac
    previous="$word"
  done
  _qpi_distill_table "$previous" "$command"
  if [ -n "$choices" ]; then words="$choices"; return; fi
  if [ -n "$previous" ]; then
    case " $files " in *" $previous "*) words=""; use_files=1; return ;; esac
    case " $values " in *" $previous "*) words=""; return ;; esac
  fi
  case " $files " in *" - "*) use_files=1 ;; esac
}}
"""

_BASH = (
    _SHARED
    + r"""
_qpi_distill() {{
  local words files values commands choices use_files
  local current="${{COMP_WORDS[COMP_CWORD]}}"
  _qpi_distill_find "${{COMP_WORDS[@]:0:COMP_CWORD}}"
  COMPREPLY=()
  local reply
  while IFS= read -r reply; do
    [ -n "$reply" ] && COMPREPLY+=("$reply")
  done < <(
    compgen -W "$words" -- "$current"
    [ -n "$use_files" ] && compgen -f -- "$current"
  )
}}
complete -o filenames -F _qpi_distill qpi-distill
"""
)

_ZSH = (
    "#compdef qpi-distill\n"
    + _SHARED
    + r"""
_qpi_distill() {{
  local -a line=("${{(@)words[1,CURRENT-1]}}")
  local words files values commands choices use_files
  _qpi_distill_find "${{line[@]}}"
  compadd -- ${{=words}}
  [[ -n "$use_files" ]] && _files
  return 0
}}
if [[ "$funcstack[1]" = "_qpi-distill" ]]; then
  _qpi_distill "$@"
elif (( $+functions[compdef] )); then
  compdef _qpi_distill qpi-distill
fi
"""
)


def bash(commands: list[Command]) -> str:
    """Return the script for bash."""
    return _BASH.format(shell="bash", cases="\n".join(_cases(commands)))


def zsh(commands: list[Command]) -> str:
    """Return the script for zsh."""
    return _ZSH.format(shell="zsh", cases="\n".join(_cases(commands)))


# ---- fish ------------------------------------------------------------------------------------------------------------


def fish(commands: list[Command]) -> str:
    """Return the script for fish."""
    lines = [
        "# Completion of qpi-distill for fish. Written by: qpi-distill completion fish",
        "",
        "complete -c qpi-distill -f",
    ]
    for command in commands:
        seen = [f"__fish_seen_subcommand_from {word}" for word in command.words]
        here = [*seen, f"not __fish_seen_subcommand_from {' '.join(command.commands)}"] if command.commands else seen
        where = f"complete -c qpi-distill -n {_quoted('; and '.join(here))}"
        for name, text in command.commands.items():
            lines.append(f"{where} -a {name} -d {_quoted(text)}")
        for option in command.options:
            written = [f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in option.names]
            takes = {"nothing": "", "value": " -x", "file": " -r -F"}[option.takes]
            if option.choices:
                takes = f"{' -x' if option.names else ''} -a {_quoted(' '.join(option.choices))}"
            elif not option.names:
                takes = " -F" if option.takes == "file" else ""
            if written or takes:
                lines.append(f"{where} {' '.join(written)}{takes} -d {_quoted(option.help)}".replace("  ", " "))
    return "\n".join(lines) + "\n"


SCRIPTS = {"bash": bash, "zsh": zsh, "fish": fish}
