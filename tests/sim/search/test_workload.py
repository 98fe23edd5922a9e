from __future__ import annotations

import asyncio
import random

from kraftjbod.cli.clients.cluster_admin import create_topic
from kraftjbod.cli.clients.cluster_client import (
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
)
from kraftjbod.protocol.records import Record, build_batch
from kraftjbod.testing.simulation.simulated_cluster import SimulatedCluster
from tests.sim.search.workload import LoadedTopic, Workload, damaged_batch, leader_of


def test_workload_reads_all_acknowledged_records() -> None:
    findings: list[str] = []
    with SimulatedCluster(9) as cluster:
        cluster.start()
        host = cluster.client("clients")
        topics = {
            "safe": LoadedTopic(name="safe", partitions=2),
            "loose": LoadedTopic(name="loose", partitions=1, acks=1),
            "blind": LoadedTopic(name="blind", partitions=1, acks=0),
        }
        workload = Workload(
            lambda name: host.new_kafka(client_id=name),
            topics,
            now_ms=lambda: cluster.now_ms,
            found=findings.append,
            rng=random.Random(9),
        )

        async def produce() -> None:
            for topic in topics.values():
                await create_topic(
                    host.kafka, topic.name, partitions=topic.partitions, replication_factor=3
                )
            workload.start()
            await asyncio.sleep(3)
            assert workload.silent_since(2_000) == []
            cluster.broker(2).kill()
            await asyncio.sleep(10)
            await workload.stop_producing()
            await asyncio.sleep(2)
            assert workload.unread() == []
            await workload.close()

        host.run(produce())
    ledger = workload.ledger
    assert findings == []
    assert len(ledger.streams) == 4 and ledger.acked > 100
    assert all(ack.leader in (1, 2, 3) for ack in ledger.streams["loose-0-0"].acks)
    blind = ledger.streams["blind-0-0"]
    assert blind.acks == [] and blind.next_number > 20
    assert workload._read_ms["blind", 0] > 10_000
    for partition in range(2):
        seen = ledger.seen["safe", partition]
        assert ledger.judge("safe", partition, dict(sorted(seen.items()))) == []
        assert len(seen) >= ledger.acked_end("safe", partition) > 20


def test_damaged_batch_is_found_although_its_records_can_be_decoded() -> None:
    """A flipped bit in the timestamp of a batch changes no value."""
    sound = build_batch([Record(value=b"one")])
    data = bytearray(sound + sound)
    assert damaged_batch(data) == ""
    data[len(sound) + 30] ^= 1
    assert damaged_batch(data).startswith(f"batch at {len(sound)}")


def test_leader_of_leaderless_or_unknown_partition_is_minus_one() -> None:
    partitions = {
        partition: PartitionMetadata(
            partition=partition,
            leader=leader,
            leader_epoch=0,
            replicas=(3,),
            isr=(3,),
            offline_replicas=(),
        )
        for partition, leader in enumerate((3, -1))
    }
    topic = TopicMetadata(
        name="t", topic_id=bytes(16), is_internal=False, error_code=0, partitions=partitions
    )
    metadata = ClusterMetadata(topics={"t": topic})
    assert [leader_of(metadata, "t", partition) for partition in (0, 1, 2)] == [3, -1, -1]
    assert leader_of(metadata, "deleted", 0) == -1
