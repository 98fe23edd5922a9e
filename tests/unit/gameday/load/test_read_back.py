"""``read_back``: from the start of a load to the end of the topic."""

from __future__ import annotations

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.producer import Producer
from kraftjbod.gameday.load.numbered_stream import NumberedStream
from kraftjbod.gameday.load.partition_load import PartitionLoad
from kraftjbod.gameday.load.read_back import end_offsets, read_back
from tests.unit.cli.mini_broker import mini_broker


async def test_read_back_reads_topic_to_its_end() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        broker.create("t", 2)
        await client.refresh_metadata(["t"])
        producer = Producer(client, "t")
        loads = [PartitionLoad(p, NumberedStream(f"r{p}", size_bytes=64)) for p in (0, 1)]
        for load in loads:
            assert await load.send(producer, 6)
        counted: list[int] = []
        findings = await read_back(client, "t", loads, counted.append)
        assert all(found.is_good and found.found == 6 for found in findings)
        assert sum(counted) == 12


async def test_read_back_skips_records_before_the_start_offsets() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        broker.create("t")
        await client.refresh_metadata(["t"])
        before, after = (PartitionLoad(0, NumberedStream("r", size_bytes=64)) for _ in range(2))
        producer = Producer(client, "t")
        assert await before.send(producer, 5)
        starts = await end_offsets(client, "t", [0])
        assert starts == {0: 5}
        assert await after.send(producer, 3)
        [found] = await read_back(client, "t", [after], lambda _: None, starts=starts)
        assert (found.is_good, found.found) == (True, 3)
        [found] = await read_back(client, "t", [after], lambda _: None)
        assert (found.twice, found.found) == (3, 8), "the records of the same run, twice"
