"""``python -m tests.bench.controller.scripted_broker HOST:PORT,... CLUSTER_ID``: no disks.

Registers three brokers with two directories each, creates topics, and reports each replica of the
first broker with the product's ``AssignmentsManager``. It follows the metadata but has no logs, so
that the figures are those of the control plane. It prints a JSON object with the seconds of each
step and its memory.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import uvloop

from kraftjbod.broker.cluster.assignments_manager import AssignmentsManager
from kraftjbod.broker.cluster.controller_channel import ControllerChannel
from kraftjbod.core.ids import BrokerEpoch, BrokerId, DirectoryId, TopicId, TopicIdPartition, Uuid
from kraftjbod.core.metadata_version import SUPPORTED_FEATURES
from kraftjbod.core.telemetry import Metrics
from kraftjbod.daemon.process.environment import SystemClock
from kraftjbod.metadata.record_codec import decode_entry
from kraftjbod.metadata.state import MetadataDelta, MetadataState
from kraftjbod.protocol import rpc_messages as m
from kraftjbod.protocol.rpc_quorum_messages import FetchMetadataRequest

BROKERS: Final = (1, 2, 3)
ME: Final = BrokerId(1)
TOPIC_PARTITIONS: Final = 500
_TIMEOUT_MS: Final = 60_000
_FETCH_BYTES: Final = 8 * 1024 * 1024


class ScriptedBroker:
    """The control plane's half of a broker; ``state`` is its metadata."""

    def __init__(self, channel: ControllerChannel, cluster_id: str) -> None:
        self._channel = channel
        self._cluster_id = cluster_id
        self._epoch = BrokerEpoch(-1)
        self.state = MetadataState()

    async def register(self, broker_id: BrokerId) -> None:
        """Register a broker with two directories and have it unfenced."""
        registered = await self._channel.call(
            m.BrokerRegistrationRequest(
                broker_id=broker_id,
                cluster_id=self._cluster_id,
                incarnation_id=Uuid.random(os.urandom),
                listeners=(m.ListenerInfo(name="PLAINTEXT", host="127.0.0.1", port=9092),),
                log_dirs=tuple(directory_of(broker_id, number) for number in (0, 1)),
                features=dict(SUPPORTED_FEATURES),
            ),
            timeout_ms=_TIMEOUT_MS,
        )
        heartbeat = m.BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=registered.broker_epoch,
            current_metadata_offset=registered.broker_epoch,
            want_fence=False,
            want_shut_down=False,
        )
        answer = await self._channel.call(heartbeat, timeout_ms=_TIMEOUT_MS)
        assert not answer.is_fenced, answer
        if broker_id == ME:
            self._epoch = registered.broker_epoch

    async def create_topics(self, partitions: int) -> None:
        for number in range(partitions // TOPIC_PARTITIONS):
            topic = m.NewTopic(
                name=f"many-{number}", num_partitions=TOPIC_PARTITIONS, replication_factor=3
            )
            # Repeated after a change of controllers, the request names the same topic.
            wanted = m.CreateTopicsRequestRpc(
                topics=(topic,), topic_ids=(TopicId.random(os.urandom),)
            )
            created = await self._channel.call(wanted, timeout_ms=_TIMEOUT_MS)
            assert not created.topics[0].error_code, created

    async def follow(self) -> None:
        """Replay the metadata to its present end."""
        behind = True
        while behind:
            answer = await self._channel.fetch_metadata(
                FetchMetadataRequest(
                    broker_id=ME,
                    fetch_offset=self.state.offset + 1,
                    max_wait_ms=0,
                    max_bytes=_FETCH_BYTES,
                )
            )
            delta = MetadataDelta()
            for entry in answer.entries:
                self.state.replay(
                    decode_entry(entry.payload),
                    offset=entry.offset,
                    epoch=entry.epoch,
                    delta=delta,
                )
            behind = self.state.offset < answer.high_watermark

    async def assign_all(self) -> int:
        """Report a directory for each replica of this broker. Return the number of replicas."""
        manager = AssignmentsManager(
            broker_id=ME,
            broker_epoch=lambda: self._epoch,
            is_replica=lambda key: self.state.partition(key) is not None,
            channel=self._channel,
            clock=SystemClock(),
            random_unit=random.random,
            metrics=Metrics(),
            request_timeout_ms=_TIMEOUT_MS,
        )
        replicas = [key for key, _ in self.state.partitions()]
        for key in replicas:
            manager.assign(key, directory_of(ME, key.partition % 2))
        await manager.idle()
        await manager.close()
        return len(replicas)

    def require_assigned(self) -> None:
        """Check that the metadata has the reported directories."""
        for key, partition in self.state.partitions():
            found = partition.directory_of(ME)
            assert found == directory_of(ME, key.partition % 2), _wrong(key, found)


def directory_of(broker_id: BrokerId, number: int) -> DirectoryId:
    return DirectoryId(f"{broker_id}/{number}".encode().rjust(16, b"~"))


def _wrong(key: TopicIdPartition, found: DirectoryId | None) -> str:
    return f"{key} is in {found}"


@asynccontextmanager
async def _channel_to(address: str) -> AsyncIterator[ControllerChannel]:
    addresses = []
    for one in address.split(","):
        host, _, port = one.rpartition(":")
        addresses.append((host, int(port)))
    channel = ControllerChannel(
        addresses=addresses,
        clock=SystemClock(),
        random_unit=random.random,
        request_timeout_ms=_TIMEOUT_MS,
    )
    try:
        yield channel
    finally:
        channel.close()


async def create_a_topic(
    address: str, name: str = "one-more", *, partitions: int = 1, timeout_ms: int = _TIMEOUT_MS
) -> None:
    """Create a topic, by default the smallest request that writes to the metadata log."""
    async with _channel_to(address) as channel:
        topic = m.NewTopic(name=name, num_partitions=partitions, replication_factor=1)
        await channel.call(m.CreateTopicsRequestRpc(topics=(topic,)), timeout_ms=timeout_ms)


async def _live(address: str, cluster_id: str, partitions: int) -> dict[str, float]:
    seconds: dict[str, float] = {}
    started = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal started
        seconds[name] = time.perf_counter() - started
        started = time.perf_counter()

    async with _channel_to(address) as channel:
        broker = ScriptedBroker(channel, cluster_id)
        for broker_id in map(BrokerId, BROKERS):
            await broker.register(broker_id)
        lap("register_s")
        await broker.create_topics(partitions)
        lap("create_s")
        await broker.follow()
        lap("follow_creation_s")
        count = await broker.assign_all()
        lap("assign_s")
        assert count == partitions, count
        await broker.follow()
        lap("follow_assignment_s")
        broker.require_assigned()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {**seconds, "rss_mb": pages * os.sysconf("SC_PAGE_SIZE") / 1e6}


def main() -> None:
    address, cluster_id, partitions = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(_live(address, cluster_id, int(partitions)))))


if __name__ == "__main__":
    main()
