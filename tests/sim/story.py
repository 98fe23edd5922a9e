"""A story with a bit of everything, the same for the same seed: ``python -m tests.sim.story 7``.

It prints the hash of the trace; with ``-v`` every line of it.
"""

from __future__ import annotations

import asyncio
import sys

from kraftjbod.cli.clients.cluster_admin import create_topic
from kraftjbod.cli.clients.producer import Producer
from kraftjbod.cli.clients.replica_admin import (
    Reassignment,
    alter_partition_reassignments,
    alter_replica_log_dirs,
)
from kraftjbod.core.ids import TopicPartition
from kraftjbod.protocol.records import Record
from kraftjbod.testing.simulation import SimulatedCluster
from kraftjbod.testing.simulation.simulated_cluster import SimulatedClient
from kraftjbod.testing.simulation.simulated_host import WORLD_BEGAN_MS
from kraftjbod.testing.simulation.trace import Trace

TOPIC = "orders"
PARTITIONS = 12


async def produce(
    client: SimulatedClient, acked: dict[int, list[bytes]], *, pause_s: float
) -> None:
    """One record after the other to each partition, until it is cancelled."""
    producer = Producer(client.kafka, TOPIC)
    await client.kafka.refresh_metadata([TOPIC])
    await asyncio.gather(*(_produce(producer, p, acked, pause_s) for p in range(PARTITIONS)))


async def _produce(
    producer: Producer, partition: int, acked: dict[int, list[bytes]], pause_s: float
) -> None:
    count = 0
    while True:
        value = b"%d/%d" % (partition, count)
        record = Record(key=b"k", value=value, timestamp_ms=WORLD_BEGAN_MS)
        await producer.send(partition, [record])
        acked.setdefault(partition, []).append(value)
        count += 1
        await asyncio.sleep(pause_s)


def tell(seed: int, trace: Trace | None = None) -> tuple[str, dict[int, list[bytes]]]:
    """The hash of the trace, and what was acknowledged."""
    with SimulatedCluster(seed, trace=trace) as cluster:
        cluster.start()
        alice, bob = cluster.client("alice"), cluster.client("bob")
        configs = {"min.insync.replicas": "2"}
        topic = create_topic(
            alice.kafka, TOPIC, partitions=PARTITIONS, replication_factor=3, configs=configs
        )
        alice.run(topic)
        acked: dict[int, list[bytes]] = {}
        producing = alice.begin(produce(alice, acked, pause_s=0.05))
        cluster.run_for(2_000)
        cluster.broker(1).kill()
        cluster.run_for(3_000)
        cluster.broker(1).start()
        cluster.network.partition("broker-2", "controller-100")
        cluster.disks["/broker-3/d0"].gate.close()
        cluster.run_for(4_000)
        cluster.network.heal()
        cluster.disks["/broker-3/d0"].gate.open()
        cluster.run_for(2_000)
        moves = {"/broker-2/d2": [TopicPartition(TOPIC, p) for p in range(PARTITIONS)]}
        bob.run(bob.kafka.refresh_metadata([TOPIC]))
        bob.run(alter_replica_log_dirs(bob.kafka, 2, moves))
        wish = Reassignment(topic_partition=TopicPartition(TOPIC, 0), replicas=[3, 1])
        bob.run(alter_partition_reassignments(bob.kafka, [wish]))
        cluster.broker(2).power_cut()
        cluster.run_for(1_000)
        cluster.controller().kill()
        cluster.network.reset_connections("broker-1", "broker-3")
        cluster.broker(2).start()
        cluster.run_for(1_000)
        cluster.controller().start()
        cluster.run_for(10_000)
        producing.cancel()
        cluster.broker(3).stop()
        cluster.run_for(15_000)
        assert cluster.broker(3).exit_code == 0
        return cluster.trace.hash, acked


if __name__ == "__main__":
    on_line = print if "-v" in sys.argv else None
    digest, values = tell(int(sys.argv[1]), Trace(on_line=on_line))
    print(digest, sum(map(len, values.values())))
