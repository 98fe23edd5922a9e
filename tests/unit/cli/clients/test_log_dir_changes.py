"""``kraftjbod-log-dirs --reattach``, ``--add`` and ``--forget``: requests, output and errors."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from kraftjbod.cli.clients.log_dir_changes import parse_change
from kraftjbod.cli.drain_tool import parse_directory
from kraftjbod.cli.log_dirs_tool import main
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import DirectoryId
from tests.unit.cli.mini_broker import BROKER_ID, DIRECTORY_ID, invoke, mini_broker

WHOLE = (
    "a broker's directory is named by its whole path on the broker's machine; if that is this one"
)


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (("--reattach", f"{BROKER_ID}:/d1"), (0, "/d1", False)),
        (("--reattach", f"{BROKER_ID}:dirid:AAAA"), (0, "dirid:AAAA", False)),
        (("--add", f"{BROKER_ID}:/mnt/a:b"), (1, "/mnt/a:b", False)),
        (("--forget", f"{BROKER_ID}:/d1", "--force"), (2, "/d1", True)),
    ],
)
async def test_log_dirs_change_sends_action_and_path_to_the_broker(
    words: tuple[str, ...], asked: tuple[int, str, bool]
) -> None:
    async with mini_broker() as broker:
        done = await invoke(main, "--bootstrap-server", broker.address, *words)
        assert done.exit_code == 0, done.stderr
        assert done.stdout == f"Broker {BROKER_ID}: directory is as it shall be\n"
        assert broker.log_dir_orders == [asked]


async def test_log_dirs_change_with_json_prints_the_response() -> None:
    async with mini_broker() as broker:
        words = ("--add", f"{BROKER_ID}:/d9", "--json")
        done = await invoke(main, "--bootstrap-server", broker.address, *words)
    assert json.loads(done.stdout) == {
        "broker": BROKER_ID,
        "directoryId": str(DirectoryId(DIRECTORY_ID)),
        "state": None,
        "message": "directory is as it shall be",
    }


async def test_log_dirs_change_refused_by_broker_prints_its_message_and_is_sent_once() -> None:
    async with mini_broker() as broker:
        broker.fail_next["AlterLogDirs"] = [ErrorCode.KAFKA_STORAGE_ERROR]
        words = ("--reattach", f"{BROKER_ID}:/d1")
        done = await invoke(main, "--bootstrap-server", broker.address, *words)
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr == "error: /d1: not like this\n"
        assert len(broker.log_dir_orders) == 1


async def test_log_dirs_change_of_unknown_broker_lists_running_brokers() -> None:
    async with mini_broker() as broker:
        done = await invoke(main, "--bootstrap-server", broker.address, "--forget", "99:/d1")
    assert done.exit_code == 1
    assert f"broker 99 does not exist or does not run; running are {BROKER_ID}" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--reattach", "/d1"),
        ("--reattach", "x:/d1"),
        ("--add", "1:"),
        ("--add", "1:/d1", "--force"),
        ("--add", "1:/d1", "--forget", "1:/d2"),
        ("--describe", "--add", "1:/d1"),
        ("--describe", "--force"),
    ],
)
async def test_log_dirs_change_with_wrong_options_is_a_usage_error(words: tuple[str, ...]) -> None:
    done = await invoke(main, "--bootstrap-server", "127.0.0.1:1", *words)
    assert done.exit_code == 2


async def test_log_dirs_change_rejects_relative_path_and_normalizes_absolute_one() -> None:
    done = await invoke(main, "--bootstrap-server", "127.0.0.1:1", "--add", "1:disk")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert f"'disk' is relative, and {WHOLE}: {Path.cwd()}/disk" in done.stderr
    for option in ("reattach", "add", "forget"):
        assert parse_change(option, "1:/d//x/../1/", force=False).target == "/d/1"
    with pytest.raises(click.BadParameter, match=WHOLE):
        parse_directory("1:some/disk")
