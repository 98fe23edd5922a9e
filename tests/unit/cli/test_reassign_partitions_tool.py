"""Command line of ``kraftjbod-reassign-partitions``: options, files, output and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kraftjbod.cli.reassign_partitions_tool import main
from kraftjbod.core.errors import ErrorCode
from tests.unit.cli.mini_broker import BROKER_ID, invoke
from tests.unit.cli.reassignment.moving_broker import MovingBroker, moving_broker


def written(tmp_path: Path, log_dir: str = "/d2") -> str:
    entry = {"topic": "foo", "partition": 0, "replicas": [BROKER_ID], "log_dirs": [log_dir]}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"version": 1, "partitions": [entry]}))
    return str(path)


def words(broker: MovingBroker, action: str, path: str, *more: str) -> tuple[str, ...]:
    at = ("--bootstrap-server", broker.address, f"--{action}")
    return (*at, "--reassignment-json-file", path, *more)


async def test_reassign_partitions_executes_cancels_and_verifies_a_plan(tmp_path: Path) -> None:
    async with moving_broker() as broker:
        broker.hold("foo")
        path = written(tmp_path)
        started = await invoke(main, *words(broker, "execute", path))
        assert (started.exit_code, started.stdout.splitlines()[-1]) == (
            0,
            "Successfully started moving log directory to /d2 for replica foo-0 with broker 7",
        )
        again = await invoke(main, *words(broker, "execute", path))
        assert again.exit_code == 1
        assert again.stderr.startswith(
            "error: Cannot execute because there is an existing partition"
        )
        cancelled = await invoke(main, *words(broker, "cancel", path, "--preserve-throttles"))
        assert "Successfully cancelled partition reassignment for: foo-0" in cancelled.stdout
        reported = json.loads((await invoke(main, *words(broker, "verify", path, "--json"))).stdout)
        assert reported["partitions"][0] | reported["moves"][0] == {
            "topic": "foo",
            "partition": 0,
            "broker": 7,
            "replicas": [7, 8],
            "logDir": "/d1",
            "movingTo": None,
            "target": "/d2",
            "isActive": False,
            "isDone": False,
        }
        verified = await invoke(main, *words(broker, "verify", path))
        assert verified.exit_code == 0
        assert (
            "Partition foo-0 on broker 7 is not being moved from log dir /d1 to /d2.\n"
            in verified.stdout
        )


async def test_verify_with_progress_of_a_completed_plan_clears_throttles(tmp_path: Path) -> None:
    async with moving_broker() as broker:
        broker.hold("foo", log_dir="/d2")
        broker.create("bar")
        path = written(tmp_path)
        verified = await invoke(main, *words(broker, "verify", path, "--progress"))
        assert verified.stdout.splitlines()[-1] == "Clearing topic-level throttles on topic foo"


async def test_generate_prints_proposal_and_list_reports_no_reassignments(tmp_path: Path) -> None:
    async with moving_broker() as broker:
        broker.hold("foo")
        broker.replicas = (BROKER_ID,)
        topics = tmp_path / "topics.json"
        topics.write_text('{"topics":[{"topic":"foo"}],"version":1}')
        at = ("--bootstrap-server", broker.address)
        asked = ("--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "7")
        proposed = await invoke(main, *at, *asked, "--disable-rack-aware")
        assert proposed.stdout.splitlines()[3:4] == [
            "Proposed partition reassignment configuration"
        ]
        assert (await invoke(main, *at, "--list")).stdout == ("No partition reassignments found.\n")


@pytest.mark.parametrize("content", [None, "{", '{"version":3}'])
async def test_verify_with_malformed_file_reports_error_in_one_line(
    tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "plan.json"
    if content is not None:
        path.write_text(content)
    result = await invoke(
        main, "--bootstrap-server", "127.0.0.1:1", "--verify", "--reassignment-json-file", str(path)
    )
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


async def test_execute_reports_move_refused_by_broker_in_one_line(tmp_path: Path) -> None:
    async with moving_broker() as broker:
        broker.hold("foo")
        broker.replicas = (BROKER_ID,)
        broker.fail_next["AlterReplicaLogDirs"] = [ErrorCode.LOG_DIR_NOT_FOUND]
        result = await invoke(main, *words(broker, "execute", written(tmp_path)))
        assert (result.exit_code, result.stderr) == (
            1,
            "error: Failed to alter dir for foo-0-7: foo-0: LOG_DIR_NOT_FOUND\n",
        )


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ((), "Command must include exactly one action: --generate, --execute, --verify"),
        (("--list", "--verify"), "Command must include exactly one action"),
        (("--verify",), "--verify needs --reassignment-json-file"),
        (("--generate", "--broker-list", "1"), "--generate needs --topics-to-move-json-file"),
        (("--list", "--additional"), "Option --additional can't be used with --list"),
        (
            ("--verify", "--reassignment-json-file", "x", "--throttle", "5"),
            "Option --throttle can't be used with --verify",
        ),
        (("--execute", "--reassignment-json-file", "x", "--throttle", "0"), "'--throttle': 0 is"),
    ],
)
async def test_reassign_partitions_with_wrong_options_exits_with_2(
    flags: tuple[str, ...], complaint: str
) -> None:
    result = await invoke(main, "--bootstrap-server", "127.0.0.1:1", *flags)
    assert result.exit_code == 2
    assert complaint in result.stderr
