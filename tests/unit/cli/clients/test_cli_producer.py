"""Producer of the tools: order, retries, acks and compression."""

from __future__ import annotations

import asyncio

import pytest

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.producer import Producer
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.protocol.record_batch import Compression, batches, check_crc, read_header
from kraftjbod.protocol.records import Record, read_records
from tests.unit.cli.mini_broker import mini_broker


def texts(*values: bytes) -> list[Record]:
    return [Record(value=value) for value in values]


async def test_send_appends_concurrent_batches_in_call_order() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        log = broker.create("t").logs[0]
        await client.refresh_metadata()
        producer = Producer(client, "t")
        sent = [producer.send(0, texts(b"%d" % i, b"x")) for i in range(5)]
        assert await asyncio.gather(*sent) == [0, 2, 4, 6, 8]
        headers = [header for _, header in batches(log)]
        assert [h.base_sequence for h in headers] == [0, 2, 4, 6, 8]
        assert {h.producer_id for h in headers} == {5}


async def test_send_retries_after_retriable_produce_errors() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        log = broker.create("t").logs[0]
        broker.fail_next["Produce"] = [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REQUEST_TIMED_OUT]
        await client.refresh_metadata()
        assert await Producer(client, "t").send(0, texts(b"a")) == 0
        assert len(list(batches(log))) == 1
        assert broker.asked.count("Produce") == 3


async def test_send_after_batch_in_doubt_fails_for_that_partition_only() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        broker.create("t", 2)
        broker.fail_next["Produce"] = [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
        await client.refresh_metadata()
        producer = Producer(client, "t")
        with pytest.raises(OperatingError, match="OUT_OF_ORDER"):
            await producer.send(0, texts(b"a"))
        with pytest.raises(OperatingError, match="in doubt"):
            await producer.send(0, texts(b"b"))
        assert await producer.send(1, texts(b"b")) == 0


async def test_send_with_acks_0_or_1_requests_no_producer_id() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        broker.create("t")
        await client.refresh_metadata()
        assert await Producer(client, "t", acks=1).send(0, texts(b"a")) == 0
        assert await Producer(client, "t", acks=0).send(0, texts(b"b")) == -1
        assert "InitProducerId" not in broker.asked


async def test_send_with_acks_0_refreshes_metadata_after_connection_was_closed() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        broker.create("t")
        await client.refresh_metadata()
        producer = Producer(client, "t", acks=0)
        await producer.send(0, texts(b"a"))
        asked = broker.asked.count("Metadata")
        await producer.send(0, texts(b"b"))
        assert broker.asked.count("Metadata") == asked
        # With acks=0 a broker closes the connection to report that it does not lead the partition.
        await broker.server.close(timeout_ms=1_000)
        await broker.start_again()
        async with asyncio.timeout(10):
            while client.open_connections:
                await asyncio.sleep(0.01)
        await producer.send(0, texts(b"c"))
        assert broker.asked.count("Metadata") == asked + 1


async def test_send_with_gzip_appends_compressed_batch_with_same_records() -> None:
    sent = [Record(value=b"a" * 1000, key=b"k"), Record(value=None)]
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        packed = broker.create("t").logs[0]
        await client.refresh_metadata()
        await Producer(client, "t", compression=Compression.GZIP).send(0, sent)
    assert len(packed) < 1000
    check_crc(packed, 0, read_header(packed))
    assert [(r.key, r.value) for r in read_records(packed)] == [(r.key, r.value) for r in sent]
