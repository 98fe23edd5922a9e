"""``kraftjbod-console-producer`` sends each line as a record."""

from __future__ import annotations

import json

import pytest

from kraftjbod.cli.clients.partitioner import partition_of
from kraftjbod.cli.console_producer import main
from kraftjbod.core.errors import ErrorCode
from kraftjbod.protocol.record_batch import Compression, batches
from kraftjbod.protocol.records import Record, read_records
from tests.unit.cli.mini_broker import MiniBroker, invoke, mini_broker


def records_of(broker: MiniBroker, topic: str) -> dict[int, list[Record]]:
    return {
        partition: [record for place, _ in batches(log) for record in read_records(log, place)]
        for partition, log in enumerate(broker.topics[topic].logs)
    }


def words(broker: MiniBroker, *more: str) -> tuple[str, ...]:
    return ("--bootstrap-server", broker.address, "--topic", "t", *more)


async def test_console_producer_sends_each_line_including_unterminated_last_one() -> None:
    async with mini_broker() as broker:
        broker.create("t")
        result = await invoke(main, *words(broker), stdin=b"one\r\n\nthree")
        assert result.exit_code == 0, result.output
        assert [r.value for r in records_of(broker, "t")[0]] == [b"one", b"", b"three"]


async def test_console_producer_chooses_partition_by_key() -> None:
    async with mini_broker() as broker:
        broker.create("t", 3)
        options = ("--property", "parse.key=true", "--property", "key.separator=:")
        options += ("--property", "null.marker=NIL")
        await invoke(main, *words(broker, *options), stdin=b"a:1\nb:2\nc:NIL\nNIL:4\n")
        stored = records_of(broker, "t")
        values = [b"1", b"2", None]
        for key, value in zip([b"a", b"b", b"c"], values, strict=True):
            at = stored[partition_of(key, 3)]
            assert [r.value for r in at if r.key == key] == [value]
        assert [r.value for rs in stored.values() for r in rs if r.key is None] == [b"4"]


async def test_console_producer_distributes_keyless_batches_over_partitions() -> None:
    async with mini_broker() as broker:
        broker.create("t", 2)
        asked = words(broker, "--batch-size", "4", "--json")
        reported = await invoke(main, *asked, stdin=b"aaaa\nbbbb\ncccc\n")
        assert json.loads(reported.stdout) == {
            "version": 1,
            "topic": "t",
            "records": 3,
            "partitions": [
                {"partition": 0, "records": 2, "firstOffset": 0, "lastOffset": 1},
                {"partition": 1, "records": 1, "firstOffset": 0, "lastOffset": 0},
            ],
        }
        stored = records_of(broker, "t")
        assert [r.value for r in stored[0]] == [b"aaaa", b"cccc"]
        assert [r.value for r in stored[1]] == [b"bbbb"]


async def test_console_producer_stops_at_line_without_key() -> None:
    async with mini_broker() as broker:
        broker.create("t")
        asked = words(broker, "--property", "parse.key=true")
        result = await invoke(main, *asked, stdin=b"k\t1\nx\nk\t2\n")
        assert result.exit_code == 1
        assert result.stderr == "error: No key separator found on line number 2: 'x'\n"
        # The lines before the malformed one are sent.
        assert [r.value for r in records_of(broker, "t")[0]] == [b"1"]


@pytest.mark.parametrize("codec", ["", "gzip", "snappy", "lz4", "zstd"])
async def test_console_producer_applies_compression_and_acks(codec: str) -> None:
    async with mini_broker() as broker:
        log = broker.create("t").logs[0]
        # The codec may be omitted, as in Kafka's tool.
        options = ("--producer-property", "acks=1", "--compression-codec", *filter(None, [codec]))
        await invoke(main, *words(broker, *options), stdin=b"a\n" * 100)
        [(_, header)] = batches(log)
        assert header.compression == Compression[codec.upper() or "GZIP"]
        assert not header.has_producer_id
        assert len(records_of(broker, "t")[0]) == 100


async def test_console_producer_reports_refused_batch_in_one_line() -> None:
    async with mini_broker() as broker:
        broker.create("t")
        broker.fail_next["Produce"] = [ErrorCode.MESSAGE_TOO_LARGE]
        result = await invoke(main, *words(broker), stdin=b"a\n")
        assert (result.exit_code, result.stderr) == (1, "error: t-0: MESSAGE_TOO_LARGE\n")


@pytest.mark.parametrize(
    "bad",
    [
        ("--property", "parse.keys=true"),
        ("--producer-property", "acks=2"),
        ("--producer-property", "compression.type=rar"),
        ("--producer-property", "batch.size=big"),
    ],
)
async def test_console_producer_with_wrong_options_exits_with_2(bad: tuple[str, ...]) -> None:
    result = await invoke(main, "--bootstrap-server", "127.0.0.1:1", "--topic", "t", *bad)
    assert result.exit_code == 2
