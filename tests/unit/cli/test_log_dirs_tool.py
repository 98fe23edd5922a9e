"""kraftjbod-log-dirs: three lines in Kafka's format, the document alone, or a table."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kraftjbod.cli.log_dirs_tool import main, size_text
from tests.unit.cli.mini_broker import BROKER_ID, MiniBroker, invoke, mini_broker

DOCUMENT: dict[str, Any] = {
    "version": 1,
    "brokers": [
        {
            "broker": BROKER_ID,
            "logDirs": [
                {
                    "logDir": "/d1",
                    "error": None,
                    "totalBytes": 4096,
                    "usableBytes": 1024,
                    "partitions": [
                        {"partition": "foo-0", "size": 0, "offsetLag": 0, "isFuture": False}
                    ],
                },
                {
                    "logDir": "/d2",
                    "error": "org.apache.kafka.common.errors.KafkaStorageException",
                    "totalBytes": -1,
                    "usableBytes": -1,
                    "partitions": [],
                },
            ],
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


async def test_json_is_the_document_alone() -> None:
    async with mini_broker() as broker:
        broker.create("foo")
        asked = words(broker, "--json", "--broker-list", str(BROKER_ID))
        assert json.loads((await invoke(main, *asked)).stdout) == DOCUMENT


async def test_the_table_tells_dead_from_living() -> None:
    async with mini_broker() as broker:
        shown = (await invoke(main, *words(broker, "--table"))).stdout
        assert "online" in shown
        assert "offline" in shown


async def test_brokers_that_do_not_exist_are_named() -> None:
    async with mini_broker() as broker:
        result = await invoke(main, *words(broker, "--broker-list", "7,9,8"))
        assert result.exit_code == 1
        assert result.stderr == (
            "ERROR: The given brokers do not exist from --broker-list: 8,9."
            " Current existent brokers: 7\n"
        )


async def test_wrong_usage_is_exit_code_2() -> None:
    for bad in (("--describe", "--broker-list", "x"), ()):
        assert (await invoke(main, "--bootstrap-server", "127.0.0.1:1", *bad)).exit_code == 2


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")]
)
def test_sizes_are_told_in_words(size: int, text: str) -> None:
    assert size_text(size) == text
