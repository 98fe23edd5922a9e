"""WIRE. The state of a topic as clients see it: leaders, in-sync replicas, and log directories.

:class:`ClusterWatch` polls the metadata during a scenario and records changes of leaders.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kraftjbod.cli.clients.cluster_client import ClusterClient, ClusterMetadata
from kraftjbod.cli.clients.replica_admin import describe_log_dirs
from kraftjbod.core.errors import OperatingError, StartupError
from kraftjbod.core.ids import DirectoryId

_POLL_S: Final = 0.02
_WATCH_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """A log directory that a fault may break.

    ``led`` has the topic's partitions whose leader is in the directory, and ``replicas`` is the
    number of the topic's replicas in it. Without a topic, ``replicas`` counts all and ``led`` is
    empty.
    """

    broker_id: int
    path: Path
    led: frozenset[int]
    replicas: int
    directory_id: DirectoryId | None = None
    """``None`` if the cluster does not report it, because it is not kraftjbod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderChange:
    """A change of a partition's leader, observed at ``at_s`` (monotonic). ``leader`` is the new
    leader's broker id, -1 without a leader."""

    at_s: float
    partition: int
    leader: int


async def victims(client: ClusterClient, topic: str | None) -> list[Victim]:
    """Return all log directories without error, most leaders first, then most replicas.

    :param topic: counts leaders and replicas of this topic; ``None``: all replicas, no leaders.
    :raises OperatingError: a broker does not answer, or the topic does not exist.
    """
    wanted = [] if topic is None else [topic]
    metadata = await client.retry(lambda: client.refresh_metadata(wanted))
    partitions = {} if topic is None else metadata.topic(topic).partitions
    found = []
    for broker_id in metadata.brokers:
        for log_dir in await describe_log_dirs(client, broker_id):
            if log_dir.error_code:
                continue
            hosted = [r for r in log_dir.replicas if topic in (None, r.topic)]
            led = frozenset(
                r.partition
                for r in hosted
                if r.partition in partitions and partitions[r.partition].leader == broker_id
            )
            found.append(
                Victim(
                    broker_id=broker_id,
                    path=Path(log_dir.path),
                    led=led,
                    replicas=len(hosted),
                    directory_id=log_dir.directory_id,
                )
            )
    return sorted(found, key=lambda victim: (len(victim.led), victim.replicas), reverse=True)


async def choose_victim(client: ClusterClient, topic: str) -> Victim:
    """Return the log directory from which most partitions of ``topic`` are led.

    :raises StartupError: no directory is online.
    """
    found = await victims(client, topic)
    if not found:
        raise StartupError("no broker has a log directory that is online")
    return found[0]


def is_in_sync(metadata: ClusterMetadata, topic: str) -> bool:
    partitions = metadata.topic(topic).partitions.values()
    return all(sorted(p.isr) == sorted(p.replicas) for p in partitions)


async def wait_in_sync(client: ClusterClient, topic: str, *, timeout_s: float) -> None:
    """Wait until all replicas of ``topic`` are in sync.

    :raises StartupError: a replica is not in sync after ``timeout_s`` seconds.
    :raises OperatingError: likewise, and a request for the metadata failed meanwhile.
    """
    if await seen(client, topic, lambda now: is_in_sync(now, topic), timeout_s) is None:
        raise StartupError(f"{topic} is not in sync again after {timeout_s:.0f} s")


async def seen(
    client: ClusterClient,
    topic: str,
    wanted: Callable[[ClusterMetadata], bool],
    timeout_s: float,
) -> float | None:
    """Return the time (monotonic, in seconds) when the metadata of ``topic`` first met ``wanted``.

    :returns: None if it did not within ``timeout_s`` seconds.
    :raises OperatingError: it did not, and a request for the metadata failed meanwhile.
    """
    deadline = time.monotonic() + timeout_s
    last_error: OperatingError | None = None
    while time.monotonic() < deadline:
        try:
            if wanted(await client.refresh_metadata([topic])):
                return time.monotonic()
        except OperatingError as e:
            last_error = e
        await asyncio.sleep(_POLL_S)
    if last_error is not None:
        raise last_error
    return None


class ClusterWatch:
    """Polls the metadata of a topic and records each leader change that two polls show.

    ``leaders`` has the newest leader by partition, and ``changes`` the changes in order.

    The watch has its own client, so that its requests do not wait for requests of others.
    """

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.leaders: dict[int, int] = {}
        self.changes: list[LeaderChange] = []
        #: Why the last request failed; None if it succeeded.
        self.trouble: str | None = None
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic

    async def run_watch(self) -> None:
        """Poll every 0.1 s until cancelled. An error of a poll is kept in ``trouble``, and is not
        raised."""
        async with ClusterClient(self._bootstrap_servers, request_timeout_ms=2000) as client:
            while True:
                try:
                    self._take(await client.refresh_metadata([self._topic]))
                    self.trouble = None
                except OperatingError as e:
                    self.trouble = str(e)
                await asyncio.sleep(_WATCH_S)

    def _take(self, metadata: ClusterMetadata) -> None:
        now_s = time.monotonic()
        for partition in metadata.topic(self._topic).partitions.values():
            before = self.leaders.get(partition.partition)
            if before is not None and before != partition.leader:
                self.changes.append(
                    LeaderChange(at_s=now_s, partition=partition.partition, leader=partition.leader)
                )
            self.leaders[partition.partition] = partition.leader
