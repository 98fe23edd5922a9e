"""LOOP. ``LogMaker``: creates the logs of new replicas, in a given or a chosen log directory.

* Concurrent requests for one replica share one creation, which continues if a caller is cancelled.
* A replica that is being created counts for the directory that was chosen.
* Checkpoint entries of an earlier replica of the same name are removed first.

The callers decide whether a replica should exist, and which directory the metadata assigns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kraftjbod.core.errors import KafkaStorageError, LogDirImpairedError
from kraftjbod.core.ids import DirectoryId, TopicId, TopicPartition
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.storage.cleaning.cleaner_offsets import CleanerOffsets
from kraftjbod.storage.dir_names import ReplicaDirKind
from kraftjbod.storage.log.log_handle import LogHandle, LogHost
from kraftjbod.storage.log.log_loader import create_log, is_half_made
from kraftjbod.storage.log.producer_state import ProducerLimits
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import DirCandidate, OpKind, choose_dir
from kraftjbod.storage.moves.future_replica import FutureReplica
from kraftjbod.storage.replicas.offset_checkpoints import OffsetCheckpoints
from kraftjbod.storage.replicas.replica_registry import ReplicaRegistry

#: Most concurrent creations in one directory.
_AT_ONCE: Final = 2
#: How long the promised bytes of the directories are valid before they are counted again.
_COUNTED_FOR_MS: Final = 1_000


class LogMaker:
    """Creates the logs of new replicas in a given or a chosen log directory, one creation per
    replica at a time. All methods run on the event loop.
    """

    def __init__(
        self,
        *,
        registry: ReplicaRegistry,
        checkpoints: OffsetCheckpoints,
        cleaner_offsets: CleanerOffsets,
        host: LogHost,
        clock: Clock,
        producer_limits: ProducerLimits,
    ) -> None:
        self._registry = registry
        self._checkpoints = checkpoints
        self._cleaner_offsets = cleaner_offsets
        self._host = host
        self._clock = clock
        self._producer_limits = producer_limits
        self._making: dict[TopicPartition, asyncio.Future[LogHandle]] = {}
        #: Directories of the replicas that are being created.
        self._making_in: dict[TopicPartition, LogDir] = {}
        #: Limits creations, so that appends to existing replicas get their turn in the thread.
        self._slots: dict[LogDir, asyncio.Semaphore] = {}
        self._chooser = DirChooser(registry=registry, clock=clock, being_made=self._making_in)

    def is_making(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._making

    def is_making_in(self, log_dir: LogDir) -> bool:
        return log_dir in self._making_in.values()

    async def create(
        self,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        directory_id: DirectoryId | None = None,
        config: TopicConfig | None = None,
    ) -> LogHandle:
        """Return the handle of the replica; create the replica if it does not exist.

        An existing replica is returned unchanged. The caller compares its ``topic_id``.

        :param directory_id: the directory of a new replica; None: :class:`DirChooser` chooses one.
        :param config: the topic's configuration, set before a replica is created; None: the
            configuration set before.
        :raises LogDirImpairedError: that directory, or every directory, accepts no new replica now.
        :raises OverloadedError: the queue of the directory is full.
        :raises KafkaStorageError: that directory, or every directory, is offline, the id is
            unknown, or there are several copies that are not resolved yet.
        """
        if (handle := self._registry.handles.get(topic_partition)) is not None:
            return handle
        if topic_partition in self._registry.held_aside:
            raise KafkaStorageError(f"{topic_partition} has several copies, none resolved yet")
        if (running := self._making.get(topic_partition)) is not None:
            return await asyncio.shield(running)
        if config is not None:
            self._registry.set_config(topic_partition.topic, config, [topic_partition.partition])
        log_dir = self._dir_for(directory_id, self._registry.config_of(topic_partition.topic))
        task = asyncio.ensure_future(self._make_in(log_dir, topic_partition, topic_id))
        self._making[topic_partition] = task
        self._making_in[topic_partition] = log_dir
        task.add_done_callback(lambda done: self._made(topic_partition, done))
        return await asyncio.shield(task)

    def _dir_for(self, directory_id: DirectoryId | None, config: TopicConfig) -> LogDir:
        if directory_id is None:
            return self._chooser.choose(config)
        return self._registry.require_online(directory_id)

    async def _make_in(self, log_dir: LogDir, tp: TopicPartition, topic_id: TopicId) -> LogHandle:
        vfs, root, config = log_dir.vfs, log_dir.path, self._registry.config_of(tp.topic)
        aside = self._registry.doomed_path(log_dir, tp, ReplicaDirKind.STRAY)

        def make() -> LogHandle:
            if vfs.exists(f"{root}/{tp}") and not is_half_made(vfs, f"{root}/{tp}"):
                # The directory was not loaded as a replica, so it is kept for an operator to
                # examine.
                vfs.rename(f"{root}/{tp}", aside)
            log = create_log(
                vfs,
                root,
                tp,
                topic_id,
                config,
                producer_limits=self._producer_limits,
            )
            return LogHandle(log=log, log_dir=log_dir, host=self._host, clock=self._clock)

        await self._registry.name_free(log_dir, tp)
        async with self._slots.setdefault(log_dir, asyncio.Semaphore(_AT_ONCE)):
            await self._checkpoints.forget_earlier(log_dir, tp)
            await self._cleaner_offsets.forget(log_dir, tp)
            handle = await log_dir.run_operation(OpKind.CREATE, make, replica=tp)
        if not log_dir.is_online:
            # The directory failed before the registry contained the replica.
            raise log_dir.offline_error()
        self._registry.put(handle)
        return handle

    def _made(self, topic_partition: TopicPartition, done: asyncio.Future[LogHandle]) -> None:
        self._making.pop(topic_partition, None)
        self._making_in.pop(topic_partition, None)
        if not done.cancelled():
            done.exception()  # Mark it as retrieved, because all callers may have been cancelled.


class DirChooser:
    """Chooses the directory of a new replica: the one with the most free bytes that are not
    promised.

    Promised bytes are the rest of a segment for each replica, and the remaining bytes of replicas
    that are being moved or created. They are counted only from time to time, because a topic may
    have thousands of replicas. Choices in between are added at once. Whether a directory accepts
    new replicas is checked each time.

    :param being_made: directories of replicas that are being created and not in the registry yet.
    """

    def __init__(
        self,
        *,
        registry: ReplicaRegistry,
        clock: Clock,
        being_made: Mapping[TopicPartition, LogDir],
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._being_made = being_made
        self._counted: dict[LogDir, DirCandidate] = {}
        self._counted_until_ms = 0

    def choose(self, config: TopicConfig) -> LogDir:
        """Return a directory for a replica with ``config``. Space for one segment of the replica
        counts as promised there from now on.

        :raises LogDirImpairedError: each online directory is impaired or cordoned.
        :raises KafkaStorageError: every directory is offline.
        """
        online = self._registry.online_dirs()
        if not online:
            raise KafkaStorageError("every log dir is offline")
        now_ms = self._clock.now_ms()
        if now_ms >= self._counted_until_ms or not self._counted.keys() >= set(online):
            self._counted = {log_dir: self._count(log_dir) for log_dir in online}
            self._counted_until_ms = now_ms + _COUNTED_FOR_MS
        by_id = {log_dir.directory_id: log_dir for log_dir in online}
        chosen = choose_dir([self._as_it_is(log_dir) for log_dir in online])
        if chosen is None:
            states = ", ".join(
                f"{log_dir.path} is {log_dir.state.value if log_dir.is_impaired else 'cordoned'}"
                for log_dir in online
            )
            state = online[0].state.value
            raise LogDirImpairedError(
                f"no log dir takes new replicas now: {states}",
                directory_id=None,
                path=None,
                state=state,
            )
        log_dir = by_id[chosen]
        counted = self._counted[log_dir]
        self._counted[log_dir] = replace(
            counted,
            promised_bytes=counted.promised_bytes + config.segment_bytes,
            replicas=counted.replicas + 1,
        )
        return log_dir

    def _as_it_is(self, log_dir: LogDir) -> DirCandidate:
        return replace(
            self._counted[log_dir],
            is_cordoned=log_dir.is_cordoned,
            is_impaired=log_dir.is_impaired,
        )

    def _count(self, log_dir: LogDir) -> DirCandidate:
        here, arriving = self._registry.handles_in(log_dir), self._registry.futures_in(log_dir)
        coming = [tp for tp, where in self._being_made.items() if where is log_dir]
        return DirCandidate(
            directory_id=log_dir.directory_id,
            usable_bytes=log_dir.space.usable_bytes,
            promised_bytes=sum(max(0, h.config.segment_bytes - h.size_bytes) for h in here)
            + sum(self._bytes_to_come(future) for future in arriving)
            + sum(self._registry.config_of(tp.topic).segment_bytes for tp in coming),
            replicas=len(here) + len(arriving) + len(coming),
        )

    def _bytes_to_come(self, future: FutureReplica) -> int:
        """Return the bytes that a move has still to copy, plus a segment as for any replica."""
        source = self._registry.handles.get(future.topic_partition)
        rest = 0 if source is None else max(0, source.size_bytes - future.size_bytes)
        return rest + self._registry.config_of(future.topic_partition.topic).segment_bytes
