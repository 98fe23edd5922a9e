"""``PartitionLoad``: acknowledged records of one producer, and those in doubt."""

from __future__ import annotations

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.producer import Producer
from kraftjbod.core.errors import ErrorCode
from kraftjbod.gameday.load.numbered_stream import NumberedStream
from kraftjbod.gameday.load.partition_load import PartitionLoad
from tests.unit.cli.mini_broker import mini_broker


async def test_partition_load_sends_batches_until_one_is_refused() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        broker.create("t")
        await client.refresh_metadata(["t"])
        producer = Producer(client, "t")
        load = PartitionLoad(0, NumberedStream("run", size_bytes=64))
        assert await load.send(producer, 3)
        assert await load.send(producer, 2)
        assert [(ack.offset, ack.count) for ack in load.acks] == [(0, 3), (3, 2)]
        broker.fail_next["Produce"] = [ErrorCode.MESSAGE_TOO_LARGE]
        assert not await load.send(producer, 4)
        assert (load.acked, load.in_doubt) == (5, 4)
        assert "MESSAGE_TOO_LARGE" in (load.error or "")
