"""A story with a bit of everything, the same for the same seed: ``python -m tests.sim.story 7``.

It prints the hash of the trace, and with ``-v`` every line of it.
"""

from __future__ import annotations

import asyncio
import random
import sys

from kraftjbod.cli.clients.cluster_admin import create_topic
from kraftjbod.cli.clients.consumer import Consumer
from kraftjbod.cli.clients.producer import Producer
from kraftjbod.cli.clients.replica_admin import (
    Reassignment,
    alter_partition_reassignments,
    alter_replica_log_dirs,
)
from kraftjbod.core.ids import BrokerId, TopicPartition
from kraftjbod.metadata.state import MetadataState
from kraftjbod.protocol.records import Record
from kraftjbod.testing.simulation import SimulatedCluster
from kraftjbod.testing.simulation.simulated_cluster import SimulatedBroker, SimulatedClient
from kraftjbod.testing.simulation.simulated_host import WORLD_BEGAN_MS
from kraftjbod.testing.simulation.trace import Trace

TOPIC = "orders"
PARTITIONS = 12


async def produce(
    client: SimulatedClient, acked: dict[int, list[bytes]], *, pause_s: float
) -> None:
    """Produce one record after the other to each partition until cancelled."""
    producer = Producer(client.kafka, TOPIC)
    await client.kafka.retry(lambda: client.kafka.refresh_metadata([TOPIC]))
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


async def consume(client: SimulatedClient, count: dict[int, int]) -> dict[int, list[bytes]]:
    """Return the records of each partition from its beginning, at least so many."""
    found: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
    await client.kafka.retry(lambda: client.kafka.refresh_metadata([TOPIC]))
    consumer = Consumer(client.kafka, TOPIC, dict.fromkeys(range(PARTITIONS), 0))
    while any(len(found[partition]) < count.get(partition, 0) for partition in found):
        for fetched in await consumer.poll(1_000):
            for _, record in fetched:
                found[fetched.partition].append(record.value or b"")
    await consumer.close()
    return found


def settle(cluster: SimulatedCluster) -> None:
    """Wait until every replica is in sync."""

    def is_settled() -> bool:
        state = cluster.controller().state
        return (
            state is not None
            and all(is_known(broker, state) for broker in cluster.brokers.values())
            and all(
                len(partition.isr) == len(partition.replicas) and not partition.adding_replicas
                for _, partition in state.partitions()
            )
        )

    def is_known(broker: SimulatedBroker, state: MetadataState) -> bool:
        """The current daemon's state, not that of the daemon before it died."""
        known, wiring = state.brokers.get(BrokerId(broker.node_id)), broker.wiring
        return (
            broker.is_serving
            and known is not None
            and wiring is not None
            and not known.fenced
            and not known.impaired_log_dirs
            and known.epoch == wiring.cluster.lifecycle.broker_epoch
        )

    cluster.wait_for(is_settled, "every replica is in sync", timeout_ms=120_000)


def strike(cluster: SimulatedCluster, bob: SimulatedClient, chance: random.Random) -> None:
    """Strike one fault after the other, each healed before the next."""
    broker = cluster.broker(chance.randint(1, 3))
    cluster.run_for(chance.randint(500, 1500))
    broker.kill()
    cluster.run_for(chance.randint(10, 12_000))
    broker.start()
    settle(cluster)
    broker = cluster.broker(chance.randint(1, 3))
    cluster.network.partition(broker.name, "controller-100", one_way=chance.random() < 0.5)
    cluster.run_for(chance.randint(10, 12_000))
    cluster.network.heal()
    cluster.network.reset_connections("broker-1", "broker-3")
    settle(cluster)
    hung = chance.choice([path for b in cluster.brokers.values() for path in b.log_dirs])
    cluster.disks[hung].gate.close()
    cluster.run_for(chance.randint(10, 20_000))
    cluster.disks[hung].gate.open()
    settle(cluster)
    moved = TopicPartition(TOPIC, chance.randrange(PARTITIONS))
    bob.run(bob.kafka.refresh_metadata([TOPIC]))
    target = chance.choice(broker.log_dirs)
    bob.run(alter_replica_log_dirs(bob.kafka, broker.node_id, {target: [moved]}))
    reassignment = Reassignment(topic_partition=moved, replicas=[3, 1])
    bob.run(alter_partition_reassignments(bob.kafka, [reassignment]))
    settle(cluster)
    broker = cluster.broker(chance.randint(1, 3))
    broker.power_cut()
    cluster.run_for(chance.randint(10, 12_000))
    broker.start()
    settle(cluster)
    cluster.controller().kill()
    cluster.run_for(chance.randint(10, 5_000))
    cluster.controller().start()
    cluster.run_for(2_000)
    settle(cluster)


def tell(seed: int, trace: Trace | None = None) -> tuple[str, int]:
    """Return the trace's hash and the number of acknowledged records, all of which are there."""
    chance = random.Random(seed)
    with SimulatedCluster(seed, trace=trace) as cluster:
        cluster.start()
        alice, bob = cluster.client("alice"), cluster.client("bob")
        configs = {"min.insync.replicas": "2"}
        topic = create_topic(
            alice.kafka, TOPIC, partitions=PARTITIONS, replication_factor=3, configs=configs
        )
        alice.run(topic)
        acked: dict[int, list[bytes]] = {}
        producing = alice.begin(produce(alice, acked, pause_s=0.3))
        strike(cluster, bob, chance)
        assert not producing.done(), producing.exception()
        producing.cancel()
        found = bob.run(consume(bob, {p: len(values) for p, values in acked.items()}))
        for partition, values in acked.items():
            assert found[partition][: len(values)] == values, partition
        for broker in cluster.brokers.values():
            broker.stop()
        cluster.run_for(15_000)
        assert [broker.exit_code for broker in cluster.brokers.values()] == [0, 0, 0]
        assert cluster.bugs == []
        return cluster.trace.hash, sum(map(len, acked.values()))


if __name__ == "__main__":
    on_line = print if "-v" in sys.argv else None
    print(*tell(int(sys.argv[1]), Trace(on_line=on_line)))
