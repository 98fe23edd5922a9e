"""LOOP. ``LogMaker``: makes the logs of new replicas, in the dir asked for or in one that is
chosen.

* Two wishes for one replica are one creation; whoever gives up waiting does not stop it.
* From the moment that a dir is decided on, the replica counts there.
* Nothing that a dir remembers of an earlier replica of that name is believed of the new one.

Whether there shall be a replica, and in which dir metadata wants it, is not known here.
"""

from __future__ import annotations

import asyncio
from typing import Final

from kraftjbod.core.errors import KafkaStorageError
from kraftjbod.core.ids import DirectoryId, TopicId, TopicPartition
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.storage.cleaning.cleaner_offsets import CleanerOffsets
from kraftjbod.storage.dir_names import ReplicaDirKind
from kraftjbod.storage.dirs.log_dir import LogDir
from kraftjbod.storage.dirs.log_dir_policy import OpKind
from kraftjbod.storage.log.log_handle import LogHandle, LogHost
from kraftjbod.storage.log.log_loader import create_log, is_half_made
from kraftjbod.storage.log.producer_state import ProducerLimits
from kraftjbod.storage.manager.dir_chooser import DirChooser
from kraftjbod.storage.replicas.offset_checkpoints import OffsetCheckpoints
from kraftjbod.storage.replicas.replica_registry import ReplicaRegistry

#: How many replicas may be on their way into one dir.
_AT_ONCE: Final = 2


class LogMaker:
    """All methods are for the loop's thread."""

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
        #: Where they are being made.
        self._making_in: dict[TopicPartition, LogDir] = {}
        #: A dir's thread must not be busy with new replicas only, while old ones are written to.
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
        """The replica, made in ``directory_id``, or else where most space is free, if it is new.

        One that is here already is given as it is: the caller compares its ``topic_id``.

        :raises LogDirImpairedError: if that dir, or every dir, takes no new replica now.
        :raises KafkaStorageError: if that dir, or every dir, is offline; or if several copies
            wait to be resolved.
        """
        if (handle := self._registry.handles.get(topic_partition)) is not None:
            return handle
        if topic_partition in self._registry.held_aside:
            raise KafkaStorageError(f"{topic_partition} has several copies, none resolved yet")
        if (running := self._making.get(topic_partition)) is not None:
            return await asyncio.shield(running)
        if config is not None:
            self._registry.set_config(topic_partition.topic, config)
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
                # Not loaded, so not known: kept for a person to examine.
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

        async with self._slots.setdefault(log_dir, asyncio.Semaphore(_AT_ONCE)):
            await self._checkpoints.forget_earlier(log_dir, tp)
            await self._cleaner_offsets.forget(log_dir, tp)
            handle = await log_dir.run(OpKind.CREATE, make, replica=tp)
        if not log_dir.is_online:
            # It died after that, and was forgotten before there was something to forget.
            raise log_dir.offline_error()
        self._registry.handles[tp] = handle
        return handle

    def _made(self, topic_partition: TopicPartition, done: asyncio.Future[LogHandle]) -> None:
        self._making.pop(topic_partition, None)
        self._making_in.pop(topic_partition, None)
        if not done.cancelled():
            done.exception()  # Whoever wanted the log may have given up; that is no news then.
