"""WIRE. The scenario of a consumer that reads a log from its beginning, without page cache.

No part of the cluster fails: the scenario measures the consumer's effect on producers. The consumer
and the producer of its backlog are separate processes, so that they do not slow down the load.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from kraftjbod.cli.clients.cluster_admin import create_topic, delete_topic
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.core.errors import ErrorCode, OperatingError, StartupError
from kraftjbod.gameday.faults.cluster_watch import victims, wait_in_sync
from kraftjbod.gameday.faults.fault import RETURN_TIMEOUT_S, CannotPlay, Target

#: Mark of the time at which the consumer has read the whole backlog.
READ: Final = "backlog is read"
_PARTITIONS: Final = 6
_REPLICATION_FACTOR: Final = 3
_RECORD_BYTES: Final = 1_000
#: Assumed minimum of backlog bytes per second on a slow disk.
_LEAST_BYTES_PER_S: Final = 2_000_000
_PRODUCER: Final = "kraftjbod.cli.perf.producer_perf_tool"
_CONSUMER: Final = "kraftjbod.cli.perf.consumer_perf_tool"


class ColdReader:
    """A consumer that reads a topic from the disks, because the page cache does not have it.

    :meth:`aim` fills the topic and removes it from the page cache, and :meth:`inject` starts the
    consumer.
    """

    def __init__(
        self, bootstrap_servers: str, mark: Callable[[str], None], *, backlog_bytes: int
    ) -> None:
        """:param mark: records an event of the scenario."""
        self._bootstrap_servers = bootstrap_servers
        self._mark = mark
        self._records = max(1, backlog_bytes // _RECORD_BYTES)
        self._limit_s = RETURN_TIMEOUT_S + backlog_bytes / _LEAST_BYTES_PER_S
        self._topic: str | None = None
        self._process: subprocess.Popen[str] | None = None

    async def prepare(self, client: ClusterClient) -> None:
        """Do nothing: the backlog's name derives from the topic of the load."""

    async def aim(self, client: ClusterClient, topic: str) -> Target:
        """Fill the backlog and remove it from the page cache.

        :raises CannotPlay: this user cannot read the segment files, or they are on another host.
        :raises StartupError: the backlog cannot be written in time.
        """
        backlog = f"{topic}-backlog"
        await create_topic(
            client,
            backlog,
            partitions=_PARTITIONS,
            replication_factor=_REPLICATION_FACTOR,
            configs={"min.insync.replicas": "2"},
        )
        self._topic = backlog
        record_formats = ("--num-records", str(self._records), "--record-size", str(_RECORD_BYTES))
        self._start(_PRODUCER, "--topic", backlog, *record_formats, "--throughput", "-1")
        await self._ended("write the backlog")
        await wait_in_sync(client, backlog, timeout_s=RETURN_TIMEOUT_S)
        paths = {victim.path for victim in await victims(client, backlog) if victim.replicas}
        size_bytes = await asyncio.to_thread(evict_topic, sorted(paths), backlog)
        return Target(
            broker_id=-1,
            what=f"a consumer of {backlog} from its beginning, {size_bytes // 1_000_000} MB on "
            f"{len(paths)} disks and not in memory",
            led=frozenset(),
        )

    def inject(self) -> None:
        assert self._topic is not None
        self._start(_CONSUMER, "--topic", self._topic, "--num-records", str(self._records))

    async def wait_noticed(self, client: ClusterClient) -> float | None:
        """Wait until the consumer has read the backlog. Return None, because brokers do not report
        readers."""
        await self._ended("read the backlog")
        self._mark(READ)
        return None

    async def heal(self, client: ClusterClient) -> None:
        """Do nothing: the consumer has ended."""

    async def undo(self, client: ClusterClient) -> None:
        """End the consumer and delete the backlog, as far as they exist.

        :raises StartupError: the topic cannot be deleted.
        """
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.communicate)
            self._process = None
        topic, self._topic = self._topic, None
        if topic is not None:
            try:
                await client.retry(lambda: delete_topic(client, topic))
            except OperatingError as e:
                if e.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise StartupError(f"{e}; delete the topic {topic} by hand") from e

    def _start(self, module: str, *words: str) -> None:
        command = [sys.executable, "-m", module, "--bootstrap-server", self._bootstrap_servers]
        self._process = subprocess.Popen(  # noqa: S603 - a module of this package
            [*command, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    async def _ended(self, what: str) -> None:
        """Wait for the process that :meth:`_start` started.

        :raises StartupError: the process failed or took too long.
        """
        process = self._process
        assert process is not None
        try:
            said, _ = await asyncio.to_thread(process.communicate, timeout=self._limit_s)
        except subprocess.TimeoutExpired as e:
            raise StartupError(f"it took more than {self._limit_s:.0f} s to {what}") from e
        self._process = None
        if process.returncode:
            raise StartupError(f"could not {what}: {said.strip()[-500:]}")


def evict_topic(paths: Sequence[Path], topic: str) -> int:
    """Flush the segments of ``topic`` and remove their pages from memory; return their size
    in bytes.

    :raises CannotPlay: a directory or a segment cannot be opened.
    """
    size_bytes = 0
    try:
        for path in paths:
            for replica in path.iterdir():
                if replica.name.rpartition("-")[0] != topic:
                    continue
                for segment in replica.glob("*.log"):
                    size_bytes += _evict_file(segment)
    except OSError as e:
        raise CannotPlay(
            f"segments cannot be removed from memory: {e}. Run this on the brokers' host, as root "
            "or as their user"
        ) from e
    return size_bytes


def _evict_file(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY)
    try:
        # The kernel does not drop dirty pages.
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        return os.fstat(fd).st_size
    finally:
        os.close(fd)
