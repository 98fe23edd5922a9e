"""Consumer of the tools: start offsets, retriable errors, control batches and aborted
transactions."""

from __future__ import annotations

import pytest

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.consumer import AbortedTransaction, Consumer, FetchedRecords
from kraftjbod.cli.clients.producer import Producer
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.protocol.control_records import TransactionMarker, build_marker
from kraftjbod.protocol.records import Record, build_batch
from tests.faults.rig import stamped
from tests.unit.cli.mini_broker import MiniBroker, mini_broker

POLL_MS = 20_000


async def fill(broker: MiniBroker, client: ClusterClient, counts: list[int]) -> None:
    broker.create("t", len(counts))
    await client.refresh_metadata()
    producer = Producer(client, "t")
    for partition, count in enumerate(counts):
        for first in range(0, count, 3):
            numbers = range(first, min(first + 3, count))
            await producer.send(partition, [Record(value=b"%d" % n) for n in numbers])


async def read_all(consumer: Consumer, expected: int) -> list[tuple[int, int, bytes | None]]:
    read: list[tuple[int, int, bytes | None]] = []
    while len(read) < expected:
        for fetched in await consumer.poll(POLL_MS):
            read += [(fetched.partition, r.offset, r.value) for _, r in fetched]
    await consumer.close()
    return sorted(read)


async def test_poll_reads_each_partition_from_its_start_offset() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        await fill(broker, client, [5, 4])
        consumer = Consumer(client, "t", {0: 4, 1: 2})
        assert await read_all(consumer, 3) == [(0, 4, b"4"), (1, 2, b"2"), (1, 3, b"3")]
        assert consumer.positions == {0: 5, 1: 4}


async def test_poll_retries_after_retriable_fetch_and_metadata_errors() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        await fill(broker, client, [1])
        broker.fail_next["Fetch"] = [
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.KAFKA_STORAGE_ERROR,
        ]
        broker.fail_next["Metadata"] = [ErrorCode.LEADER_NOT_AVAILABLE]
        assert await read_all(Consumer(client, "t", {0: 0}), 1) == [(0, 0, b"0")]


async def test_poll_raises_offset_out_of_range() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        await fill(broker, client, [1])
        broker.fail_next["Fetch"] = [ErrorCode.OFFSET_OUT_OF_RANGE]
        consumer = Consumer(client, "t", {0: 9})
        with pytest.raises(OperatingError, match="OFFSET_OUT_OF_RANGE"):
            await consumer.poll(POLL_MS)
        await consumer.close()


async def test_poll_skips_control_batches_and_advances_position() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        await fill(broker, client, [1])
        marker = build_batch([Record(key=b"\0\0\0\0", value=b"")], base_offset=1, is_control=True)
        broker.topics["t"].logs[0] += marker
        consumer = Consumer(client, "t", {0: 0})
        assert await read_all(consumer, 1) == [(0, 0, b"0")]
        assert consumer.positions == {0: 2}


async def test_poll_skips_partition_after_stop_reading() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        await fill(broker, client, [1, 1])
        consumer = Consumer(client, "t", {0: 0, 1: 0})
        consumer.stop_reading(0)
        assert await read_all(consumer, 1) == [(1, 0, b"0")]


def test_fetched_records_exclude_records_of_aborted_transactions() -> None:
    def written(value: bytes, offset: int, producer_id: int) -> bytes:
        batch = build_batch(
            [Record(value=value)],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=True,
        )
        return stamped(batch, base_offset=offset, leader_epoch=0)

    def ended(offset: int, producer_id: int, *, is_commit: bool) -> bytes:
        marker = TransactionMarker(is_commit, 0)
        batch = build_marker(marker, producer_id=producer_id, producer_epoch=0, timestamp_ms=0)
        return stamped(batch, base_offset=offset, leader_epoch=0)

    log = [
        written(b"kept", 0, 7),
        ended(1, 7, is_commit=True),
        written(b"aborted", 2, 7),
        written(b"also kept", 3, 8),
        ended(4, 7, is_commit=False),
        written(b"kept again", 5, 7),
        ended(6, 7, is_commit=True),
        ended(7, 8, is_commit=True),
    ]
    fetched = FetchedRecords(
        partition=0,
        start_offset=0,
        next_offset=8,
        batches=memoryview(b"".join(log)),
        aborted=(AbortedTransaction(2, 7),),
    )
    assert [record.value for _, record in fetched] == [b"kept", b"also kept", b"kept again"]
