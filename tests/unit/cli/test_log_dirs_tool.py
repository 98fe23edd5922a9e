"""kraftjbod-log-dirs: three lines in Kafka's format, the document alone, or a table."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from kraftjbod.cli.log_dirs_tool import (
    _print_strays,
    _print_table,
    main,
    move_lines,
    strays_document,
)
from kraftjbod.cli.replica_admin import LogDirDescription, ReplicaSize, StrayReplica
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
                    "growthBytesPerSecond": -2048,
                    "latencyMs": 61.25,
                    "isSlow": True,
                    "lastScrubMs": 1_700_000_000_000,
                    "scrubErrors": 2,
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
                    "latencyMs": None,
                    "isSlow": None,
                    "lastScrubMs": None,
                    "scrubErrors": None,
                },
            ],
            "lostReplicas": ["foo-1"],
        }
    ],
}


def words(broker: MiniBroker, *more: str) -> tuple[str, ...]:
    return ("--bootstrap-server", broker.address, "--describe", *more)


async def test_three_lines_as_kafka_prints_them() -> None:
    async with mini_broker() as broker:
        broker.create("foo")
        broker.create("bar")
        result = await invoke(main, *words(broker, "--topic-list", "foo"))
        first, second, third = result.stdout.splitlines()
        assert first == "Querying brokers for log directories information"
        assert second == f"Received log directory information from brokers {BROKER_ID}"
        assert json.loads(third) == DOCUMENT
        keys = list(json.loads(third)["brokers"][0]["logDirs"][0])
        assert keys[:3] == ["logDir", "error", "partitions"]


@pytest.mark.parametrize("flags", [("--json",), ("--format", "json")])
async def test_json_is_the_document_alone(flags: tuple[str, ...]) -> None:
    async with mini_broker() as broker:
        broker.create("foo")
        asked = words(broker, *flags, "--broker-list", str(BROKER_ID))
        assert json.loads((await invoke(main, *asked)).stdout) == DOCUMENT


async def test_the_table_tells_dead_from_living() -> None:
    async with mini_broker() as broker:
        shown = (await invoke(main, *words(broker, "--format", "table"))).stdout
        assert "online" in shown
        assert "offline" in shown
        assert str(DirectoryId(DIRECTORY_ID)) in shown


async def test_a_replica_that_is_on_no_disk_is_told_below_the_table() -> None:
    async with mini_broker() as broker:
        shown = (await invoke(main, *words(broker, "--format", "table"))).stdout
        assert f"foo-1 on broker {BROKER_ID}: LOST, the last in-sync copy" in shown
        others = words(broker, "--format", "table", "--topic-list", "fo")
        assert "LOST" not in (await invoke(main, *others)).stdout


async def test_the_table_tells_of_the_disk() -> None:
    async with mini_broker() as broker:
        shown = (await invoke(main, *words(broker, "--format", "table"))).stdout
    headings, alive, dead = (
        next(line.split() for line in shown.splitlines() if word in line)
        for word in ("latency", "/d1", "/d2")
    )
    told = ["size", "used", "free", "free", "%", "growth", "latency", "last", "scrub"]
    assert headings[-len(told) :] == told
    row = " ".join(alive)
    assert "3.0 KiB 1.0 KiB 25 -2.0 KiB/s 61.2 ms, slow 2023-11-14 22:13, 2 damaged" in row
    assert dead[-1] == "B"


@pytest.mark.parametrize(
    ("told", "cells"),
    [
        ({}, ["0 B"]),
        ({"scrub_errors": 0}, ["0 B", "never"]),
        ({"is_cordoned": True, "state": "saturated"}, ["saturated, cordoned", "0 B"]),
        ({"growth_bytes_per_second": 0, "latency_ms": 0.0}, ["0 B", "0 B/s", "0.0 ms"]),
    ],
)
def test_what_is_not_told_is_blank(
    told: dict[str, Any], cells: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    described = LogDirDescription(
        path="/d1",
        error_code=0,
        total_bytes=-1,
        usable_bytes=-1,
        replicas=(),
        **{"is_cordoned": False, **told},
    )
    _print_table({1: [described]}, [])
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "/d1" in line]
    found = [cell for cell in re.split(r"  +", row.strip()) if cell not in ("1", "/d1", "0")]
    assert found == ([] if "state" in told else ["online"]) + cells


async def test_brokers_that_do_not_exist_are_named() -> None:
    async with mini_broker() as broker:
        result = await invoke(main, *words(broker, "--broker-list", "7,9,8"))
        assert result.exit_code == 1
        assert result.stderr == (
            "error: The given brokers do not exist from --broker-list: 8,9."
            " Current existent brokers: 7\n"
        )


async def test_wrong_usage_is_exit_code_2() -> None:
    for bad in (("--describe", "--broker-list", "x"), ()):
        assert (await invoke(main, "--bootstrap-server", "127.0.0.1:1", *bad)).exit_code == 2


def test_moves_are_told_with_how_far_they_are() -> None:
    def log_dir(path: str, *replicas: ReplicaSize, is_cordoned: bool = False) -> LogDirDescription:
        return LogDirDescription(
            path=path,
            error_code=0,
            total_bytes=-1,
            usable_bytes=-1,
            is_cordoned=is_cordoned,
            replicas=replicas,
        )

    def replica(topic: str, size: int, lag: int = 0, *, is_future: bool = False) -> ReplicaSize:
        return ReplicaSize(
            topic=topic, partition=0, size_bytes=size, offset_lag=lag, is_future=is_future
        )

    found = {
        1: [
            log_dir("/d1", replica("foo", 4096), replica("bar", 0)),
            log_dir(
                "/d2",
                replica("foo", 1024, 30, is_future=True),
                replica("bar", 0, is_future=True),
            ),
        ]
    }
    foo = "foo-0 on broker 1: /d1 -> /d2, 25 %, 1.0 KiB of 4.0 KiB, 30 records behind"
    bar = "bar-0 on broker 1: /d1 -> /d2, 0 %, 0 B of 0 B, 0 records behind"
    assert move_lines(found, []) == [foo, bar]
    assert move_lines(found, ["foo"]) == [foo]


def test_strays_are_a_line_each_or_one_document(capsys: pytest.CaptureFixture[str]):
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
    told = strays_document({1: [log_dir]}, [])
    _print_strays(told, "kafka")
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("orders-3 (topic id dHR0dHR0dHR0dHR0dHR0dA) on broker 1: /d1/orders-3.")
    assert first.endswith("set aside 2023-11-14 22:13 UTC: topic unknown")
    assert second.endswith("set aside at a time unknown: reason unknown")
    _print_strays(strays_document({1: [log_dir]}, ["orders"]), "json")
    (only,) = json.loads(capsys.readouterr().out)["strays"]
    assert (only["broker"], only["topic"], only["partition"]) == (1, "orders", 3)
    assert only["topicId"] == str(TopicId(b"t" * 16))
