"""``python -m tests.bench.main --only memory``: a broker's memory per replica, connection, etc.

One broker gets more and more replicas, segments, connections, group members and producer ids. Each
figure is the growth of its resident memory divided by their number, with the number of opened
descriptors beside it. docs/operate.md has the table.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

from kraftjbod.core.errors import ErrorCode
from kraftjbod.local.cluster_process import ClusterProcesses
from kraftjbod.local.daemon_process import DaemonProcess
from kraftjbod.net.kafka_client import KafkaConnection
from kraftjbod.protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    FindCoordinatorRequest,
    ProduceRequest,
)
from tests.bench.figures import Report, rss_mb, running_cluster
from tests.faults.rig import batch

REPLICAS: Final = 2_000
SEGMENTS: Final = 2_000
CONNECTIONS: Final = 2_000
MEMBERS: Final = 2_000
PRODUCERS: Final = 10_000
_TIMEOUT_MS: Final = 120_000
_SEGMENT_BYTES: Final = 16 * 1024
_BATCHES_AT_ONCE: Final = 50
_RETRY_S: Final = 0.5
_LOADING: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


def per_item(report: Report) -> None:
    """Measure the memory per item on one broker with three directories."""
    with running_cluster(brokers=1, dirs=3) as cluster:
        asyncio.run(_Memory(cluster, report).measure())


class _Memory:
    def __init__(self, cluster: ClusterProcesses, report: Report) -> None:
        self._broker: DaemonProcess = cluster.brokers[1]
        self._bootstrap = cluster.bootstrap_servers.split(",")[0]
        self._admin = AdminClient({"bootstrap.servers": self._bootstrap})
        self._report = report

    async def measure(self) -> None:
        self._report.add("broker without load", rss_mb(self._broker), "MB")
        await self._grown("replica", REPLICAS, self._add_replicas)
        await self._grown("segment of 16 KiB", SEGMENTS, self._add_segments)
        connections: list[KafkaConnection] = []
        await self._grown("idle connection", CONNECTIONS, lambda: self._connect(connections))
        await self._grown("group member", MEMBERS, self._add_members)
        await self._grown("producer id of a partition", PRODUCERS, self._add_producers)
        for connection in connections:
            connection.close()

    async def _grown(self, name: str, count: int, grow: Callable[[], Awaitable[None]]) -> None:
        before, files = rss_mb(self._broker), self._descriptors()
        await grow()
        grown_kb = (rss_mb(self._broker) - before) * 1e3 / count
        files = self._descriptors() - files
        self._report.add(f"{name}, memory", grown_kb, "kB", how=f"of {count:,}")
        self._report.add(f"{name}, descriptors", files / count, "each", how=f"of {count:,}")

    def _descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self._broker.pid}/fd"))

    # -- what grows -------------------------------------------------------------------------

    async def _add_replicas(self) -> None:
        await self._create("replicas", REPLICAS)

    async def _create(self, topic: str, partitions: int, **config: str) -> None:
        made = self._admin.create_topics([NewTopic(topic, partitions, 1, config=config)])
        await asyncio.to_thread(made[topic].result, _TIMEOUT_MS / 1000)
        connection = await self._connection()
        await _until_written(connection, topic, partitions - 1)
        connection.close()

    async def _add_segments(self) -> None:
        await self._create("segments", 1, **{"segment.bytes": str(_SEGMENT_BYTES)})
        connection = await self._connection()
        one = batch(body=bytes(_SEGMENT_BYTES - 200))
        for _ in range(SEGMENTS // _BATCHES_AT_ONCE):
            await _produce(connection, "segments", [one] * _BATCHES_AT_ONCE)
        connection.close()

    async def _connect(self, kept: list[KafkaConnection]) -> None:
        kept.extend([await self._connection() for _ in range(CONNECTIONS)])

    async def _add_members(self) -> None:
        """Members of 20 groups on one connection, which they share."""
        connection = await self._connection()
        for group in {_group_of(number) for number in range(MEMBERS)}:
            await self._find(connection, group)
        for number in range(MEMBERS):
            request = ConsumerGroupHeartbeatRequest(
                group_id=_group_of(number),
                member_id=f"member-{number}",
                member_epoch=0,
                rebalance_timeout_ms=300_000,
                subscribed_topic_names=["segments"],
                topic_partitions=[],
            )
            while True:
                answer = await connection.request(request, timeout_ms=_TIMEOUT_MS, version=1)
                if answer.error_code not in _LOADING:
                    break
                await asyncio.sleep(_RETRY_S)
            assert answer.error_code == ErrorCode.NONE, answer
        connection.close()

    async def _find(self, connection: KafkaConnection, group: str) -> None:
        while True:
            request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
            (found,) = (await connection.request(request, timeout_ms=_TIMEOUT_MS)).coordinators
            if found.error_code == ErrorCode.NONE:
                return
            await asyncio.sleep(_RETRY_S)

    async def _add_producers(self) -> None:
        await self._create("producers", 1)
        connection = await self._connection()
        made = [batch(producer=(1_000 + number, 0, 0)) for number in range(PRODUCERS)]
        for some in _parts(made, _BATCHES_AT_ONCE):
            await _produce(connection, "producers", some)
        connection.close()

    async def _connection(self) -> KafkaConnection:
        host, _, port = self._bootstrap.rpartition(":")
        return await KafkaConnection.connect(
            host, int(port), client_id="memory", timeout_ms=_TIMEOUT_MS
        )


async def _until_written(connection: KafkaConnection, topic: str, partition: int) -> None:
    """Wait until the replica with the highest number takes records; it is created last."""
    while await _produce_one(connection, topic, partition, batch()) != ErrorCode.NONE:
        await asyncio.sleep(_RETRY_S)


async def _produce(connection: KafkaConnection, topic: str, batches: list[bytes]) -> None:
    """A request for each batch, because a request holds one batch of a partition."""
    asked = (_produce_one(connection, topic, 0, one) for one in batches)
    assert set(await asyncio.gather(*asked)) == {ErrorCode.NONE}


async def _produce_one(
    connection: KafkaConnection, topic: str, partition: int, records: bytes
) -> int:
    """The error code of the answer."""
    kind = ProduceRequest
    data = kind.PartitionProduceData(index=partition, records=records)
    request = kind(
        acks=1,
        timeout_ms=_TIMEOUT_MS,
        topic_data=[kind.TopicProduceData(name=topic, partition_data=[data])],
    )
    answer = await connection.request(request, timeout_ms=_TIMEOUT_MS, version=9)
    (topic_answer,) = answer.responses
    (partition_answer,) = topic_answer.partition_responses
    return int(partition_answer.error_code)


def _group_of(number: int) -> str:
    return f"group-{number % 20}"


def _parts(made: list[bytes], size: int) -> Iterator[list[bytes]]:
    for at in range(0, len(made), size):
        yield made[at : at + size]
