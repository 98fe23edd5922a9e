"""What bash would be offered; that the scripts are current, test_manual.py says."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.checkout import ROOT

BASH = ROOT / "conf/completion/kraftjbod.bash"
ZSH = ROOT / "conf/completion/_kraftjbod"


def offered(*words: str) -> list[str]:
    script = (
        'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
        '_kraftjbod "$1" "${@: -1}" "${@: -2:1}"; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script, "bash", str(BASH), *words],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_commands_options_and_choices() -> None:
    assert "find-hanging" in offered("kraftjbod-transactions", "")
    assert offered("/usr/bin/kraftjbod-transactions", "describe-p") == ["describe-producers"]
    server = ("--bootstrap-server", "h:1")
    inner = offered("kraftjbod-transactions", *server, "find-hanging", "--max")
    assert inner == ["--max-transaction-timeout"]
    assert offered("kraftjbod-log-dirs", "--format", "") == ["kafka", "json", "table"]
    assert offered("kraftjbod-log-dirs", "--bootstrap-server", "") == []


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh on this machine")
def test_zsh_understands_its_script() -> None:
    subprocess.run(["zsh", "-n", str(ZSH)], check=True)
