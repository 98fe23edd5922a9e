"""``make docs``: completion of all tools for bash and zsh, written from their own parsers."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Final

import click

_HEAD: Final = "# Completion of kraftjbod's tools. `make docs` writes this from their parsers.\n\n"
_FILE, _VALUE = "@file", "@value"
_BASH: Final = """
_kraftjbod() {
  local word=$2 place=${1##*/} each values
  for each in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    [[ -z $(_kraftjbod_words "$place $each") ]] || place+=" $each"
  done
  values=$(_kraftjbod_values "$place $3")
  case $values in
    @file) mapfile -t COMPREPLY < <(compgen -f -- "$word") ;;
    @value) COMPREPLY=() ;;
    "") mapfile -t COMPREPLY < <(compgen -W "$(_kraftjbod_words "$place")" -- "$word") ;;
    *) mapfile -t COMPREPLY < <(compgen -W "$values" -- "$word") ;;
  esac
}
"""
_ZSH: Final = """
_kraftjbod() {
  local place=${words[1]:t} each values
  for each in ${words[2,CURRENT-1]}; do
    [[ -z $(_kraftjbod_words "$place $each") ]] || place+=" $each"
  done
  values=$(_kraftjbod_values "$place ${words[CURRENT-1]}")
  case $values in
    @file) _files ;;
    @value) _message value ;;
    "") compadd -- ${=$(_kraftjbod_words "$place")} ;;
    *) compadd -- ${=values} ;;
  esac
}

_kraftjbod "$@"
"""


def tools() -> dict[str, click.Command]:
    """What the package installs, by name."""
    scripts = entry_points(group="console_scripts")
    loaded = {one.name: one.load() for one in scripts if one.name.startswith("kraftjbod-")}
    return {name: made for name, made in sorted(loaded.items()) if isinstance(made, click.Command)}


def bash() -> str:
    names = " ".join(tools())
    return _HEAD + _tables() + _BASH + f"\ncomplete -o filenames -F _kraftjbod {names}\n"


def zsh() -> str:
    return f"#compdef {' '.join(tools())}\n" + _HEAD + _tables() + _ZSH


def _tables() -> str:
    places = [one for name, tool in tools().items() for one in _places(name, tool)]
    words = [(place, " ".join(_words(command))) for place, command in places]
    values = [
        (f"{place} {option}", found)
        for place, command in places
        for option, found in _values(command)
    ]
    return _table("words", words) + "\n" + _table("values", values)


def _table(name: str, rows: list[tuple[str, str]]) -> str:
    lines = "".join(f'    "{place}") echo "{found}" ;;\n' for place, found in rows)
    return f'_kraftjbod_{name}() {{\n  case "$1" in\n{lines}  esac\n}}\n'


def _places(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for word, inner in sorted(command.commands.items()):
            yield from _places(f"{name} {word}", inner)


def _options(command: click.Command) -> Iterator[click.Option]:
    for one in command.get_params(click.Context(command)):
        if isinstance(one, click.Option) and not one.hidden:
            yield one


def _words(command: click.Command) -> list[str]:
    named = [name for one in _options(command) for name in (*one.opts, *one.secondary_opts)]
    # The help names of our tools come from the context that a call makes.
    options = sorted({*(name for name in named if name.startswith("--")), "--help"})
    inner = sorted(command.commands) if isinstance(command, click.Group) else []
    return [*inner, *options]


def _values(command: click.Command) -> Iterator[tuple[str, str]]:
    for one in _options(command):
        if one.is_flag or one.count:
            continue
        found = _VALUE
        if isinstance(one.type, click.Choice):
            found = " ".join(map(str, one.type.choices))
        elif isinstance(one.type, click.Path) or one.name == "files":
            found = _FILE
        for name in one.opts:
            yield name, found
