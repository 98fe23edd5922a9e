"""Our tools on a cluster, in the test's own process or started like from a shell.

A process needs half a second of CPU before its first output; :func:`tool` calls the command that
the installed script would call. A few tests of :func:`started` show that the scripts in bin/ do the
same."""

from __future__ import annotations

import subprocess
from importlib.metadata import EntryPoint, entry_points
from typing import Final

import click
from click.testing import CliRunner

from tests.checkout import BIN
from tests.integration.cluster import Cluster

_TIMEOUT_S: Final = 120

Done = subprocess.CompletedProcess[str]


def tool(name: str, cluster: Cluster, *words: str, stdin: str = "") -> Done:
    """Call ``kraftjbod-<name>`` on the cluster; unexpected exceptions are raised here.

    Its streams are those of the whole process: only one call at a time."""
    return called(name, "--bootstrap-server", cluster.bootstrap, *words, stdin=stdin)


def called(name: str, *words: str, stdin: str = "") -> Done:
    """Call a tool without the cluster's bootstrap servers."""
    script = f"kraftjbod-{name}"
    (entry,) = entry_points(group="console_scripts", name=script)
    done = CliRunner().invoke(
        _command(entry), words, input=stdin, prog_name=script, catch_exceptions=False
    )
    return Done([script, *words], done.exit_code, done.stdout, done.stderr)


def _command(entry: EntryPoint) -> click.Command:
    command = entry.load()
    assert isinstance(command, click.Command)
    return command


def started(name: str, cluster: Cluster, *words: str, stdin: str = "") -> Done:
    """Start ``bin/kraftjbod-<name>`` as a process, from a directory outside the checkout."""
    command = [BIN / f"kraftjbod-{name}", "--bootstrap-server", cluster.bootstrap, *words]
    return subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=_TIMEOUT_S,
        cwd="/",
    )
