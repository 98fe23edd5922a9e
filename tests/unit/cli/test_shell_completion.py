"""The completion scripts of conf/completion, which call the tools."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.metadata import entry_points

import click
import pytest

from tests.checkout import BIN, ROOT

BASH = ROOT / "conf/completion/kraftjbod.bash"
ZSH = ROOT / "conf/completion/_kraftjbod"


def bash_offers(*words: str) -> list[str]:
    """Return what bash offers for the last of ``words``."""
    script = (
        'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
        '_kraftjbod "$1" "${@: -1}" "${@: -2:1}"; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script, "bash", str(BASH), *words],
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completion_offers_commands_options_and_choices() -> None:
    server = ("--bootstrap-server", "h:1")
    transactions = str(BIN / "kraftjbod-transactions")
    assert bash_offers(transactions, *server, "describe-p") == ["describe-producers"]
    assert bash_offers("kraftjbod-transactions", *server, "find-hanging", "--max") == [
        "--max-transaction-timeout"
    ]
    assert bash_offers("kraftjbod-log-dirs", "--format", "") == ["kafka", "json", "table"]
    assert bash_offers("kraftjbod-log-dirs", "--bootstrap-server", "") == []


def test_completion_scripts_name_every_tool() -> None:
    scripts = [one for one in entry_points(group="console_scripts") if "kraftjbod-" in one.name]
    tools = sorted(one.name for one in scripts if isinstance(one.load(), click.Command))
    listed = BASH.read_text().partition("complete -F _kraftjbod")[2].replace("\\\n", "").split()
    assert listed == tools
    assert ZSH.read_text().splitlines()[0].split()[1:] == tools


#: Types $1 and a tab into an interactive zsh, and ends when its terminal shows $2.
_PRESS_TAB = """
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'fpath=($COMPLETIONS $fpath); autoload -Uz compinit; compinit -D -u; print re''ady'
zpty -r shell shown '*ready*'
zpty -n -w shell "$1"$'\\t'
zpty -r shell shown "*$2*"
zpty -d shell
"""


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh on this machine")
@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("kraftjbod-transactions --bootstrap-server h:1 describe-p", "describe-producers"),
        ("kraftjbod-log-dirs --format ta", "--format table"),
    ],
)
def test_zsh_completes_commands_and_choices(typed: str, shown: str) -> None:
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    subprocess.run(
        ["zsh", "-f", "-c", _PRESS_TAB, "zsh", typed, shown],
        env={**environment, "COMPLETIONS": str(ZSH.parent)},
        check=True,
        timeout=60,
        stdout=subprocess.DEVNULL,
    )
