"""``kraftjbod-console-consumer`` prints records as lines."""

from __future__ import annotations

import json

import pytest

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.producer import Producer
from kraftjbod.cli.console_consumer import main
from kraftjbod.protocol.records import Record
from tests.unit.cli.mini_broker import MiniBroker, invoke, mini_broker


async def fill(broker: MiniBroker) -> None:
    broker.create("t", 2)
    async with ClusterClient(broker.address) as client:
        await client.refresh_metadata()
        producer = Producer(client, "t")
        await producer.send(0, [Record(key=b"k", value=b"%d" % i) for i in range(3)])
        await producer.send(1, [Record(value=b"x", timestamp_ms=5)])


def words(broker: MiniBroker, *more: str) -> tuple[str, ...]:
    return ("--bootstrap-server", broker.address, "--topic", "t", *more)


async def test_console_consumer_from_beginning_reads_all_partitions() -> None:
    async with mini_broker() as broker:
        await fill(broker)
        result = await invoke(main, *words(broker, "--from-beginning", "--max-messages", "4"))
        assert sorted(result.stdout.splitlines()) == ["0", "1", "2", "x"]
        assert result.stderr == "Processed a total of 4 messages\n"


async def test_console_consumer_reads_one_partition_from_an_offset() -> None:
    async with mini_broker() as broker:
        await fill(broker)
        options = ("--partition", "0", "--offset", "1", "--max-messages", "2")
        result = await invoke(main, *words(broker, *options, "--property", "print.key=true"))
        assert result.stdout == "k\t1\nk\t2\n"
        assert result.stderr == "Processed a total of 2 messages\n"


async def test_console_consumer_with_json_prints_all_fields_of_a_record() -> None:
    async with mini_broker() as broker:
        await fill(broker)
        options = ("--partition", "0", "--offset", "1", "--max-messages", "1", "--json")
        reported = json.loads((await invoke(main, *words(broker, *options))).stdout)
    assert reported == {
        "topic": "t",
        "partition": 0,
        "offset": 1,
        "timestampMs": 0,
        "timestampType": "CreateTime",
        "key": "k",
        "value": "1",
        "headers": [],
    }


async def test_console_consumer_stops_at_or_skips_unreadable_records() -> None:
    async with mini_broker() as broker:
        await fill(broker)
        options = ("--partition", "0", "--offset", "2", "--max-messages", "1")
        options += (
            "--value-deserializer",
            "org.apache.kafka.common.serialization.LongDeserializer",
        )
        ended = await invoke(main, *words(broker, *options))
        assert ended.exit_code == 1
        assert "error: t-0 at offset 2 does not have the given format: " in ended.stderr
        skipped = await invoke(main, *words(broker, *options, "--skip-message-on-error"))
        assert (skipped.exit_code, skipped.stdout) == (0, "")
        assert skipped.stderr.endswith("Processed a total of 1 messages\n")


async def test_console_consumer_starts_at_log_end_by_default() -> None:
    async with mini_broker() as broker:
        await fill(broker)
        result = await invoke(main, *words(broker, "--timeout-ms", "1"))
        assert (result.stdout, result.exit_code) == ("", 0)


async def test_console_consumer_fails_for_missing_topic_or_partition() -> None:
    async with mini_broker() as broker:
        missing = await invoke(main, *words(broker))
        assert (missing.exit_code, missing.stderr) == (1, "error: topic t does not exist\n")
        await fill(broker)
        missing = await invoke(main, *words(broker, "--partition", "7"))
        assert (missing.exit_code, missing.stderr) == (1, "error: t has no partition 7\n")


@pytest.mark.parametrize(
    "bad",
    [
        ("--offset", "1"),
        ("--partition", "0", "--offset", "soon"),
        ("--partition", "0", "--offset", "1", "--from-beginning"),
        ("--property", "print.colour=true"),
        ("--property", "print.key=true", "--json"),
        ("--group", "g", "--partition", "0"),
        ("--group", "g", "--command-property", "group.id=h"),
        ("--include", "t"),
        ("--from-beginning", "--command-property", "auto.offset.reset=latest"),
        ("--value-deserializer", "my.own.Deserializer"),
    ],
)
async def test_console_consumer_with_wrong_options_exits_with_2(bad: tuple[str, ...]) -> None:
    result = await invoke(main, "--bootstrap-server", "127.0.0.1:1", "--topic", "t", *bad)
    assert result.exit_code == 2
