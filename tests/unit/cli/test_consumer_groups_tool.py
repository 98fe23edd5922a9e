"""Options of ``kraftjbod-consumer-groups`` that are checked before any request."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from kraftjbod.cli.consumer_groups_tool import main

UNREACHABLE = ("--bootstrap-server", "127.0.0.1:1", "--timeout", "100")


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ("", "exactly one of --list, --describe"),
        ("--list --describe", "exactly one of --list, --describe"),
        ("--describe", "--describe needs --group or --all-groups"),
        ("--delete-offsets", "--delete-offsets needs --group or --all-groups"),
        ("--list --validate-regex a", "exactly one of --list, --describe"),
    ],
)
def test_consumer_groups_rejects_conflicting_options(flags: str, why: str) -> None:
    done = CliRunner().invoke(main, [*UNREACHABLE, *flags.split()])
    assert done.exit_code == 2
    assert why in done.output


def test_validate_regex_needs_no_cluster() -> None:
    done = CliRunner().invoke(main, ["--validate-regex", "t.*|u"])
    assert (done.exit_code, done.stdout) == (0, "The regular expression `t.*|u` is valid.\n")
    done = CliRunner().invoke(main, ["--validate-regex", "(?=t)"])
    assert done.exit_code == 1
    assert done.stdout.startswith("The regular expression `(?=t)` is invalid: ")
    done = CliRunner().invoke(main, ["--validate-regex", "(", "--json"])
    assert done.exit_code == 1 and json.loads(done.stdout)["isValid"] is False


def test_list_without_bootstrap_server_is_a_usage_error() -> None:
    done = CliRunner().invoke(main, ["--list"])
    assert done.exit_code == 2 and "Missing option '--bootstrap-server'" in done.output


def test_list_without_reachable_cluster_reports_the_address() -> None:
    done = CliRunner().invoke(main, [*UNREACHABLE, "--list"])
    assert done.exit_code == 1
    assert "error: " in done.output
    done = CliRunner().invoke(main, [*UNREACHABLE, "--list", "--json"])
    assert done.exit_code == 1
    assert "127.0.0.1:1" in json.loads(done.stdout)["error"]
