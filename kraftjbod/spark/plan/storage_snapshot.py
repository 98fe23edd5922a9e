"""WIRE. The storage of a live cluster as the tables ``log_dirs`` and ``replicas``.

Works with any Kafka cluster that reports the sizes of its disks (Kafka 3.3 and later). If a broker
reports no states, a directory is online or, with an error, offline.

* ``free_bytes`` is the space for replicas, without the space that the broker reserves.
* A write rate is the growth of a replica between two samples.
* A drained broker that is down becomes one directory, ``any``, with the replicas that metadata
  assigns to it. Each has the size of the largest live replica, and is copied from its leader. A
  partition without a leader is left out.
* The remaining replicas of a partition that is being reassigned are marked as future. They count at
  their current or future place with their final size, and no plan moves them. Replicas that are
  being removed are left out.

snapshot_frames.py builds the same tables from telemetry.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from kraftjbod.balance.placement import LogDir, Replica
from kraftjbod.cli.clients.cluster_client import ClusterClient, ClusterMetadata
from kraftjbod.cli.clients.config_admin import ConfigResource, ResourceType, describe_configs
from kraftjbod.cli.clients.replica_admin import (
    LogDirDescription,
    describe_log_dirs,
    list_partition_reassignments,
)
from kraftjbod.cli.drain.drain_run import kept_free
from kraftjbod.cli.reassignment.reassignment_status import LogDirs, Ongoing, is_offline
from kraftjbod.core.errors import StartupError
from kraftjbod.core.ids import ANY_DIRECTORY, TopicPartition
from kraftjbod.core.log_dir_state import LogDirState

T = TypeVar("T")

#: Number of brokers asked in parallel.
_AT_ONCE: Final = 64

Rates = Mapping[tuple[int, str, int], float]
"""Bytes per second by broker, topic and partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSnapshot:
    """The storage of a cluster at one moment, as the brokers report it: the input of a plan.

    ``ongoing`` has the running reassignments, ``log_dirs`` the directories by broker, and
    ``kept_free`` the bytes that each directory of a broker keeps free. ``rates`` are the write
    rates of replicas in bytes per second, by broker, topic and partition.
    """

    metadata: ClusterMetadata
    ongoing: Ongoing
    log_dirs: LogDirs
    kept_free: Mapping[int, int]
    rates: Rates
    lost: Collection[int] = ()
    """Drained brokers that are down."""

    @property
    def notes(self) -> list[str]:
        """Sentences about the parts of the cluster that a plan leaves out."""
        return _notes(self)

    @property
    def dirs(self) -> list[LogDir]:
        """The rows of the table ``log_dirs``."""
        return _dirs(self) + [
            LogDir(broker, None, ANY_DIRECTORY, None, LogDirState.ONLINE.value, True, 0, 0)
            for broker in self.lost
        ]

    @property
    def replicas(self) -> list[Replica]:
        """The rows of the table ``replicas``."""
        found = _replicas(self)
        return found + _lost_replicas(self, found) if self.lost else found


async def take_snapshot(
    client: ClusterClient, *, observe_s: float, drained: Collection[int] = ()
) -> StorageSnapshot:
    """Query every broker, twice if ``observe_s`` (seconds) is above 0; otherwise write rates are 0.

    :param drained: brokers that the plan drains completely. If one of them is down, its replicas
        are taken from metadata.
    :raises StartupError: the size of a disk is not reported.
    :raises OperatingError: a broker does not respond.
    """
    metadata = await client.retry(client.refresh_metadata)
    brokers = sorted(metadata.brokers)
    rates: Rates = {}
    began = time.monotonic()
    log_dirs = await _describe(client, brokers)
    if observe_s > 0:
        await asyncio.sleep(observe_s)
        before, log_dirs = log_dirs, await _describe(client, brokers)
        rates = _rates(before, log_dirs, time.monotonic() - began)
        metadata = await client.retry(client.refresh_metadata)
    require_sizes(log_dirs)
    kept = await _each(brokers, partial(_kept_by, client))
    ongoing = await client.retry(partial(list_partition_reassignments, client))
    return StorageSnapshot(
        metadata=metadata,
        ongoing=ongoing,
        log_dirs=log_dirs,
        kept_free=dict(zip(brokers, kept, strict=True)),
        rates=rates,
        lost=sorted(_absent(metadata) & set(drained)),
    )


async def _describe(client: ClusterClient, brokers: Sequence[int]) -> LogDirs:
    async def ask(broker: int) -> list[LogDirDescription]:
        return await client.retry(lambda: describe_log_dirs(client, broker))

    return dict(zip(brokers, await _each(brokers, ask), strict=True))


async def _each(brokers: Sequence[int], ask: Callable[[int], Awaitable[T]]) -> list[T]:
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(broker: int) -> T:
        async with gate:
            return await ask(broker)

    return await asyncio.gather(*map(one, brokers))


async def _kept_by(client: ClusterClient, broker: int) -> int:
    resource = ConfigResource(ResourceType.BROKER, str(broker))
    described = await client.retry(lambda: describe_configs(client, [resource]))
    return kept_free(described[resource])


def require_sizes(log_dirs: LogDirs) -> None:
    """Check that every online directory reports the size of its disk.

    :raises StartupError: naming the first directory that does not.
    """
    for broker, described in log_dirs.items():
        for log_dir in described:
            if not is_offline(log_dir) and min(log_dir.total_bytes, log_dir.usable_bytes) < 0:
                raise StartupError(
                    f"broker {broker} does not report how large the disk of {log_dir.path} is, so "
                    "nothing can be planned that is sure not to fill it; brokers do so since "
                    "Kafka 3.3"
                )


def _rates(before: LogDirs, now: LogDirs, elapsed_s: float) -> Rates:
    """Return the write rates, in bytes per second, of replicas that stayed in their directory.

    A replica that became smaller has the rate 0.
    """
    was = _sizes(before)
    return {
        (broker, topic, partition): max(0, size - was[broker, path, topic, partition]) / elapsed_s
        for (broker, path, topic, partition), size in _sizes(now).items()
        if (broker, path, topic, partition) in was
    }


def _sizes(log_dirs: LogDirs) -> dict[tuple[int, str, str, int], int]:
    return {
        (broker, log_dir.path, held.topic, held.partition): held.size_bytes
        for broker, described in log_dirs.items()
        for log_dir in described
        for held in log_dir.replicas
        if not held.is_future
    }


def _absent(metadata: ClusterMetadata) -> set[int]:
    """Return the brokers that have replicas and are down."""
    return {
        broker
        for topic in metadata.topics.values()
        for partition in topic.partitions.values()
        for broker in partition.replicas
    } - metadata.brokers.keys()


def _notes(snapshot: StorageSnapshot) -> list[str]:
    notes = [
        f"log directory {log_dir.path} of broker {broker} is offline: its replicas cannot be read "
        "and stay out of the plan"
        for broker, described in snapshot.log_dirs.items()
        for log_dir in described
        if is_offline(log_dir)
    ]
    for broker in sorted(_absent(snapshot.metadata)):
        if broker not in snapshot.lost:
            notes.append(f"broker {broker} does not run: its replicas stay out of the plan")
            continue
        notes.append(f"broker {broker} does not run: its replicas are copied from their leaders")
        leaderless = sum(
            partition.leader < 0
            for topic in snapshot.metadata.topics.values()
            for partition in topic.partitions.values()
            if broker in partition.replicas
        )
        if leaderless:
            notes.append(
                f"{leaderless} partitions of broker {broker} have no leader to copy from and stay "
                "out of the plan; kraftjbod-leader-election elects one where a replica is left"
            )
    if snapshot.ongoing:
        notes.append(
            f"{len(snapshot.ongoing)} partitions are being reassigned: they count as if that were "
            "done"
        )
    return notes


def _dirs(snapshot: StorageSnapshot) -> list[LogDir]:
    return [
        LogDir(
            broker,
            snapshot.metadata.brokers[broker].rack,
            log_dir.path,
            str(log_dir.directory_id) if log_dir.directory_id else None,
            _state(log_dir),
            log_dir.is_cordoned,
            max(0, log_dir.total_bytes),
            max(0, log_dir.usable_bytes - snapshot.kept_free[broker]),
        )
        for broker, described in snapshot.log_dirs.items()
        for log_dir in described
    ]


def _state(log_dir: LogDirDescription) -> str:
    if is_offline(log_dir):
        return LogDirState.OFFLINE.value
    return log_dir.state or LogDirState.ONLINE.value


def _replicas(snapshot: StorageSnapshot) -> list[Replica]:
    assigned = {
        TopicPartition(name, index): partition
        for name, topic in snapshot.metadata.topics.items()
        for index, partition in topic.partitions.items()
    }
    full = _full_sizes(snapshot)
    rows: list[Replica] = []
    for broker, described in snapshot.log_dirs.items():
        for log_dir in described:
            for held in log_dir.replicas:
                key = TopicPartition(held.topic, held.partition)
                ongoing = snapshot.ongoing.get(key)
                if ongoing is not None and broker in ongoing.removing:
                    continue
                partition = assigned.get(key)
                rows.append(
                    Replica(
                        *key,
                        broker,
                        log_dir.path,
                        full.get(key, held.size_bytes),
                        0.0 if held.is_future else snapshot.rates.get((broker, *key), 0.0),
                        partition is not None and partition.leader == broker,
                        held.is_future or ongoing is not None,
                        partition.replicas if partition else None,
                    )
                )
    return rows


def _lost_replicas(snapshot: StorageSnapshot, found: Sequence[Replica]) -> list[Replica]:
    """Return the replicas of drained brokers that are down, with sizes of the live ones in
    ``found``."""
    largest: dict[tuple[str, int], Replica] = {}
    for one in found:
        known = largest.get(one[:2])
        if known is None or known.size_bytes < one.size_bytes:
            largest[one[:2]] = one
    rows = []
    for name, topic in snapshot.metadata.topics.items():
        for index, partition in topic.partitions.items():
            ongoing = snapshot.ongoing.get(TopicPartition(name, index))
            living = largest.get((name, index))
            if partition.leader < 0 or living is None:
                continue
            rows += [
                Replica(
                    name,
                    index,
                    broker,
                    ANY_DIRECTORY,
                    living.size_bytes,
                    living.write_rate,
                    False,
                    ongoing is not None,
                    partition.replicas,
                )
                for broker in partition.replicas
                if broker in snapshot.lost and (ongoing is None or broker not in ongoing.removing)
            ]
    return rows


def _full_sizes(snapshot: StorageSnapshot) -> dict[TopicPartition, int]:
    """Return the final size of the replicas of each partition that is being reassigned."""
    sizes: dict[TopicPartition, int] = defaultdict(int)
    for described in snapshot.log_dirs.values():
        for log_dir in described:
            for held in log_dir.replicas:
                key = TopicPartition(held.topic, held.partition)
                if key in snapshot.ongoing:
                    sizes[key] = max(sizes[key], held.size_bytes)
    return sizes
