"""``kraftjbod-log-dirs --describe``: Kafka's three lines, the JSON document, or a table."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kraftjbod.cli.clients.replica_admin import LogDirDescription, StrayReplica
from kraftjbod.cli.log_dirs_tool import main, print_strays, strays_document
from kraftjbod.core.ids import DirectoryId, TopicId
from tests.unit.cli.mini_broker import BROKER_ID, DIRECTORY_ID, MiniBroker, invoke, mini_broker

DOCUMENT: dict[str, Any] = {
    "version": 1,
    "brokers": [
        {
            "broker": BROKER_ID,
            "logDirs": [
                {
                    "logDir": "/d1",
                    "error": None,
                    "partitions": [
                        {"partition": "foo-0", "size": 0, "offsetLag": 0, "isFuture": False}
                    ],
                    "directoryId": str(DirectoryId(DIRECTORY_ID)),
                    "state": "online",
                    "isCordoned": False,
                    "totalBytes": 4096,
                    "usableBytes": 1024,
                    "queuedAssignments": 0,
                    "reserveBytes": 40,
                    "growthBytesPerSecond": 1024,
                    "diskGrowthBytesPerSecond": -2048,
                    "secondsUntilFull": 7200,
                    "latencyMs": 61.25,
                    "isSlow": True,
                    "lastScrubMs": 1_700_000_000_000,
                    "scrubErrors": 2,
                    "reason": None,
                    "assignedReplicas": None,
                },
                {
                    "logDir": "/d2",
                    "error": "org.apache.kafka.common.errors.KafkaStorageException",
                    "partitions": [],
                    "directoryId": None,
                    "state": None,
                    "isCordoned": False,
                    "totalBytes": None,
                    "usableBytes": None,
                    "queuedAssignments": None,
                    "reserveBytes": None,
                    "growthBytesPerSecond": None,
                    "diskGrowthBytesPerSecond": None,
                    "secondsUntilFull": None,
                    "latencyMs": None,
                    "isSlow": None,
                    "lastScrubMs": None,
                    "scrubErrors": None,
                    "reason": "[Errno 5] Input/output error",
                    "assignedReplicas": 3,
                },
            ],
            "lostReplicas": ["foo-1"],
        }
    ],
    "downBrokers": [],
}
DOWN = {
    "broker": 8,
    "logDirs": [
        {
            "logDir": "/d1",
            "directoryId": str(DirectoryId(DIRECTORY_ID)),
            "state": "down",
            "isCordoned": False,
            "assignedReplicas": 2,
        }
    ],
}


def words(broker: MiniBroker, *more: str) -> tuple[str, ...]:
    return ("--bootstrap-server", broker.address, "--describe", *more)


async def test_describe_prints_kafkas_three_lines() -> None:
    async with mini_broker() as broker:
        broker.create("foo")
        broker.create("bar")
        result = await invoke(main, *words(broker, "--topic-list", "foo"))
        first, second, third = result.stdout.splitlines()
        assert first == "Querying brokers for log directories information"
        assert second == f"Received log directory information from brokers {BROKER_ID}"
        assert json.loads(third) == DOCUMENT | {"downBrokers": [DOWN]}
        keys = list(json.loads(third)["brokers"][0]["logDirs"][0])
        assert keys[:3] == ["logDir", "error", "partitions"]


@pytest.mark.parametrize("flags", [("--json",), ("--format", "json")])
async def test_describe_with_json_prints_the_document_only(flags: tuple[str, ...]) -> None:
    async with mini_broker() as broker:
        broker.create("foo")
        asked = words(broker, *flags, "--broker-list", str(BROKER_ID))
        assert json.loads((await invoke(main, *asked)).stdout) == DOCUMENT


async def test_describe_reports_fenced_broker_from_metadata() -> None:
    async with mini_broker() as broker:
        shown = (await invoke(main, *words(broker, "--format", "table"))).stdout
        (down,) = [line.split() for line in shown.splitlines() if line.startswith("8 ")]
        assert down[:5] == ["8", "/d1", str(DirectoryId(DIRECTORY_ID)), "down", "2"]
        assert " ".join(down[5:]) == "the broker is down"
        asked = words(broker, "--json", "--broker-list", "8")
        reported = json.loads((await invoke(main, *asked)).stdout)
        assert (reported["brokers"], reported["downBrokers"]) == ([], [DOWN])


async def test_describe_reports_broker_that_does_not_answer_and_shows_the_others() -> None:
    async with mini_broker() as broker:
        broker.fencing[8] = False
        done = await invoke(main, *words(broker, "--format", "table"))
        assert (done.exit_code, done.stdout.count("the broker is down")) == (0, 1)
        assert done.stderr.startswith("broker 8 does not answer: ")


async def test_describe_lists_lost_replicas_below_the_table() -> None:
    async with mini_broker() as broker:
        shown = (await invoke(main, *words(broker, "--format", "table"))).stdout
        assert f"foo-1 on broker {BROKER_ID}: LOST, the last in-sync copy" in shown
        others = words(broker, "--format", "table", "--topic-list", "fo")
        assert "LOST" not in (await invoke(main, *others)).stdout


async def test_describe_of_unknown_brokers_names_them() -> None:
    async with mini_broker() as broker:
        result = await invoke(main, *words(broker, "--broker-list", "7,9,10"))
        assert result.exit_code == 1
        assert result.stderr == (
            "error: The given brokers do not exist from --broker-list: 9,10."
            " Current existent brokers: 7,8\n"
        )


async def test_log_dirs_with_wrong_options_exits_with_2() -> None:
    for bad in (("--describe", "--broker-list", "x"), ()):
        assert (await invoke(main, "--bootstrap-server", "127.0.0.1:1", *bad)).exit_code == 2


def test_print_strays_writes_lines_or_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    strays = (
        StrayReplica(
            topic="orders",
            partition=3,
            topic_id=TopicId(b"t" * 16),
            size_bytes=2048,
            set_aside_ms=1_700_000_000_000,
            reason="topic unknown",
            directory="orders-3.00-stray",
        ),
        StrayReplica(
            topic=None,
            partition=None,
            topic_id=None,
            size_bytes=0,
            set_aside_ms=None,
            reason=None,
            directory="cut.00-stray",
        ),
    )
    log_dir = LogDirDescription(
        path="/d1",
        error_code=0,
        total_bytes=-1,
        usable_bytes=-1,
        is_cordoned=False,
        replicas=(),
        strays=strays,
    )
    reported = strays_document({1: [log_dir]}, [])
    print_strays(reported, "kafka", [1])
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("orders-3 (topic id dHR0dHR0dHR0dHR0dHR0dA) on broker 1: /d1/orders-3.")
    assert first.endswith("set aside 2023-11-14 22:13 UTC: topic unknown")
    assert second.endswith("set aside at a time unknown: reason unknown")
    print_strays(strays_document({1: [log_dir]}, ["orders"]), "json", [1])
    (only,) = json.loads(capsys.readouterr().out)["strays"]
    assert (only["broker"], only["topic"], only["partition"]) == (1, "orders", 3)
    assert only["topicId"] == str(TopicId(b"t" * 16))
    print_strays(strays_document({1: [log_dir]}, ["other"]), "kafka", [1, 2])
    assert capsys.readouterr().out == "No replica is set aside on brokers 1,2.\n"
