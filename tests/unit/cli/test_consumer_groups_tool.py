"""Flags that do not go together are refused before anybody is asked."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from kraftjbod.cli.consumer_groups_tool import main

NOBODY = ("--bootstrap-server", "127.0.0.1:1", "--timeout", "100")


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ("", "exactly one of --list, --describe"),
        ("--list --describe", "exactly one of --list, --describe"),
        ("--describe", "--describe needs --group or --all-groups"),
        ("--delete-offsets", "--delete-offsets needs --group or --all-groups"),
    ],
)
def test_what_is_asked_must_make_sense(flags: str, why: str) -> None:
    done = CliRunner().invoke(main, [*NOBODY, *flags.split()])
    assert done.exit_code == 2
    assert why in done.output


def test_without_a_cluster_it_says_so() -> None:
    done = CliRunner().invoke(main, [*NOBODY, "--list"])
    assert done.exit_code == 1
    assert "error: " in done.output
    done = CliRunner().invoke(main, [*NOBODY, "--list", "--json"])
    assert done.exit_code == 1
    assert "127.0.0.1:1" in json.loads(done.stdout)["error"]
