"""LOOP. ``LogManager``: all replicas of this node, by log directory.

* Directories are loaded in parallel, each in its own thread. A directory that cannot be loaded goes
  OFFLINE, and the others are served.
* If two current copies of one partition exist, neither is served until the caller has looked up
  the right directory in the metadata and calls :meth:`LogManager.resolve`.
* ``.kafka_cleanshutdown`` is written only if every log was loaded and closed without an error.
* This class handles the files of moves: future copies are created, removed and promoted. Other
  components decide about moves, roles and cluster metadata.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from kraftjbod.core.errors import (
    OperatingError,
    OverloadedError,
    UnknownTopicOrPartitionError,
)
from kraftjbod.core.ids import (
    BrokerEpoch,
    DirectoryId,
    TopicId,
    TopicIdPartition,
    TopicPartition,
    Uuid,
)
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.telemetry import get_logger
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.storage.checkpoints import CleanShutdown, format_clean_shutdown
from kraftjbod.storage.cleaning.cleaner_offsets import CleanerOffsets
from kraftjbod.storage.cleaning.cleaning_pause import CleaningPauses
from kraftjbod.storage.cleaning.log_cleaner import CleanerLimits, LogCleaner
from kraftjbod.storage.dir_names import CLEAN_SHUTDOWN_FILE, ReplicaDirKind
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.log.producer_state import DEFAULT_PRODUCER_LIMITS, ProducerLimits
from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.manager.closing import close_logs, with_reserve
from kraftjbod.storage.manager.dir_arrivals import DirArrivals
from kraftjbod.storage.manager.housekeeping import Housekeeping
from kraftjbod.storage.manager.log_maker import LogMaker
from kraftjbod.storage.moves.future_replica import FutureReplica
from kraftjbod.storage.replicas.dir_loading import DirLoading, LoadedDir, LoadProgress
from kraftjbod.storage.replicas.offset_checkpoints import OffsetCheckpoints, each_online
from kraftjbod.storage.replicas.replica_registry import ReplicaRegistry
from kraftjbod.storage.replicas.replica_swap import ReplicaSwap
from kraftjbod.storage.replicas.stray_mark import StrayReason
from kraftjbod.storage.replicas.stray_replicas import StrayReplicas
from kraftjbod.storage.replicas.swap_recovery import Orphan, SwapRecovery
from kraftjbod.storage.segments.segment import LogSegment
from kraftjbod.storage.segments.segment_cache import (
    DEFAULT_CACHE_LIMITS,
    CacheLimits,
    SegmentCache,
)
from kraftjbod.storage.vfs import write_atomically


class LogManager:
    """All replicas of a node in its log directories: finds, creates, moves and deletes them, and
    runs the background tasks. All methods run on the event loop.
    """

    def __init__(
        self,
        *,
        dirs: Sequence[LogDir],
        clock: Clock,
        default_config: TopicConfig,
        random_bytes: Callable[[int], bytes],
        retention_check_interval_ms: int = 300_000,
        checkpoint_interval_ms: int = 60_000,
        flush_check_interval_ms: int = 1000,
        producer_limits: ProducerLimits = DEFAULT_PRODUCER_LIMITS,
        cleaner: CleanerLimits | None = None,
        cache_limits: CacheLimits = DEFAULT_CACHE_LIMITS,
    ) -> None:
        """Create a manager for ``dirs``, which are not loaded yet.

        :param cleaner: limits of the log cleaner; None for the defaults.
        :param cache_limits: limits of the segment cache of each directory.
        """
        self._producer_limits = producer_limits
        self._clock = clock
        self._log = get_logger()
        self._registry = ReplicaRegistry(
            dirs=dirs, default_config=default_config, random_bytes=random_bytes
        )
        self._checkpoints = OffsetCheckpoints(self._registry)
        self._cleaner_offsets = CleanerOffsets(self._registry)
        self._cleaning_pauses = CleaningPauses(self._forbids_cleaning)
        self.cleaner = LogCleaner(
            limits=cleaner or CleanerLimits(),
            clock=clock,
            pauses=self._cleaning_pauses,
            offsets=self._cleaner_offsets,
            handles_in=self.handles_in,
        )
        #: Replicas that are being created.
        self.maker = LogMaker(
            registry=self._registry,
            checkpoints=self._checkpoints,
            cleaner_offsets=self._cleaner_offsets,
            host=self,
            clock=clock,
            producer_limits=producer_limits,
        )
        #: Directories whose logs are all known. Only they may get a clean shutdown mark.
        self._loaded: set[LogDir] = set()
        #: For every directory so far. In an OFFLINE directory it has nothing to do.
        self._housekeeping: dict[LogDir, Housekeeping] = {}
        #: Running tasks of the directories, during :meth:`run_background`.
        self._chores: dict[LogDir, asyncio.Task[None]] = {}
        self._background: asyncio.TaskGroup | None = None
        self._make_housekeeping = partial(
            Housekeeping,
            clock=clock,
            retention_check_interval_ms=retention_check_interval_ms,
            checkpoint_interval_ms=checkpoint_interval_ms,
            flush_check_interval_ms=flush_check_interval_ms,
            cache_limits=cache_limits,
        )
        for log_dir in dirs:
            self._equip(log_dir)
        self._make_moving_parts()

    def _make_moving_parts(self) -> None:
        """Create the components for moves, strays and directories added at run time."""
        self._loading = DirLoading(
            registry=self._registry,
            host=self,
            clock=self._clock,
            producer_limits=self._producer_limits,
        )
        self._swap = ReplicaSwap(
            registry=self._registry,
            checkpoints=self._checkpoints,
            host=self,
            clock=self._clock,
            loading=self._loading,
            purge_later=self._purge_later,
            purge_now=self._purge_now,
            try_again=self._try_again,
            producer_limits=self._producer_limits,
        )
        self._recovery = SwapRecovery(
            registry=self._registry,
            swap=self._swap,
            loading=self._loading,
            purge_later=self._purge_later,
            try_again=self._try_again,
            resolve=self.resolve,
        )
        #: Copies that are kept and not served.
        self.strays = StrayReplicas(
            registry=self._registry, loading=self._loading, clock=self._clock
        )
        #: Directories that are added and removed at run time.
        self.arrivals = DirArrivals(
            registry=self._registry,
            checkpoints=self._checkpoints,
            loading=self._loading,
            swap=self._swap,
            recovery=self._recovery,
            equip=self._equip,
            begin=self._begin,
            end=self._end,
            move_aside=self._move_aside,
            found_strays=self.strays.found,
        )

    def _equip(self, log_dir: LogDir) -> None:
        """Create the background tasks of a directory, before the directory is loaded."""
        self._housekeeping[log_dir] = self._make_housekeeping(
            log_dir,
            handles=partial(self.handles_in, log_dir),
            checkpoint=partial(self.checkpoint_offsets, log_dir),
            clean=partial(self.cleaner.run_cleaner, log_dir),
        )

    def _begin(self, log_dir: LogDir) -> None:
        """Start the background tasks of a directory that was added at run time and loaded."""
        self._loaded.add(log_dir)
        if self._background is not None:
            chores = self._housekeeping[log_dir].run_jobs()
            self._chores[log_dir] = self._background.create_task(chores)

    def _end(self, log_dir: LogDir) -> None:
        """Stop the background tasks of a directory that was removed."""
        self._loaded.discard(log_dir)
        if (chores := self._chores.pop(log_dir, None)) is not None:
            chores.cancel()

    # -- state ------------------------------------------------------------------------------

    def get(self, topic_partition: TopicPartition) -> LogHandle | None:
        return self._registry.handles.get(topic_partition)

    def handles(self) -> list[LogHandle]:
        return list(self._registry.handles.values())

    def handles_in(self, log_dir: LogDir) -> list[LogHandle]:
        return self._registry.handles_in(log_dir)

    def dirs(self) -> Sequence[LogDir]:
        return self._registry.dirs

    def online_dirs(self) -> list[LogDir]:
        return self._registry.online_dirs()

    def offline_dirs(self) -> list[LogDir]:
        return [log_dir for log_dir in self._registry.dirs if not log_dir.is_online]

    def dir_by_id(self, directory_id: DirectoryId) -> LogDir | None:
        return self._registry.dir_by_id(directory_id)

    def remembers(self, topic_partition: TopicPartition) -> bool:
        """Return whether a checkpoint of an online directory names the partition.

        The log need not exist any more: it may have been removed by another program.
        """
        return self._checkpoints.remembers(topic_partition)

    @property
    def duplicates(self) -> Mapping[TopicPartition, Sequence[LogHandle]]:
        """Partitions with several current copies. :meth:`get` does not return them until
        :meth:`resolve`.
        """
        return self._registry.held_aside

    # -- load -------------------------------------------------------------------------------

    async def load(self, on_progress: Callable[[LoadProgress], None] | None = None) -> None:
        """Load every replica of every online directory; recover logs of directories without a clean
        mark.

        A directory whose load fails for any reason goes OFFLINE. With an empty registry it would
        look like an empty disk, and its replicas would be recreated without their records.
        """
        report = on_progress or (lambda progress: None)
        found = await asyncio.gather(*(self._load_dir(d, report) for d in self.online_dirs()))
        # A directory may have failed while others were still being loaded.
        loaded = [content for content in found if content and content.log_dir.is_online]
        for dir_content in loaded:
            for handle in dir_content.handles:
                self._registry.take_in(handle)
            self.strays.found(dir_content.strays)
        await self._recovery.settle(loaded)
        for tp, copies in self._registry.held_aside.items():
            copies.sort(key=lambda copy: copy.log_dir.path)
            self._log.warning(
                "replica_found_twice",
                partition=str(tp),
                log_dirs=[copy.log_dir.path for copy in copies],
            )

    async def _load_dir(
        self, log_dir: LogDir, report: Callable[[LoadProgress], None]
    ) -> LoadedDir | None:
        try:
            loaded = await self._loading.load(log_dir, report)
            self._checkpoints.found(log_dir, loaded.offsets)
        except OperatingError as e:
            log_dir.go_offline(f"it could not be loaded: {e.message}")
            return None
        except Exception as e:
            # A bug that the content of one disk triggers must not stop the other directories.
            self._log.error("log_dir_load_crashed", log_dir=log_dir.path, exc_info=e)
            log_dir.go_offline(f"it could not be loaded: {e!r}")
            return None
        self._loaded.add(log_dir)
        return loaded

    async def resolve(self, topic_partition: TopicPartition, winner: LogHandle) -> None:
        """Serve ``winner``, one of the copies in :attr:`duplicates`. Rename the other copies to
        ``-delete``.

        If the directory of a copy refuses or fails the rename, the copy keeps its name and is not
        served.
        """
        copies = self._registry.held_aside.pop(topic_partition)
        assert winner in copies, (winner, copies)
        self._registry.put(winner)
        losers = [copy for copy in copies if copy is not winner]
        for copy in losers:
            self._registry.begin_leaving(copy)
        try:
            for copy in losers:
                try:
                    await self._move_aside(copy, ReplicaDirKind.DELETE)
                except OperatingError as e:
                    where = copy.log_dir.path
                    self._log.warning("replica_copy_not_removed", log_dir=where, reason=e.message)
                self._registry.left(copy)
        finally:
            for copy in losers:
                self._registry.left(copy)

    # -- future copies ----------------------------------------------------------------------

    def future(self, topic_partition: TopicPartition) -> FutureReplica | None:
        return self._registry.futures.get(topic_partition)

    def futures(self) -> list[FutureReplica]:
        return list(self._registry.futures.values())

    async def create_future(
        self, topic_partition: TopicPartition, target: LogDir, move_id: Uuid
    ) -> FutureReplica:
        """Create an empty future copy in ``target`` of a current replica.

        :raises UnknownTopicOrPartitionError: no replica exists here.
        :raises OperatingError: INVALID_TOPIC_EXCEPTION if the name is too long to be moved,
            REASSIGNMENT_IN_PROGRESS if a future copy exists (drop it first), INVALID_REQUEST if the
            replica is in ``target``.
        :raises KafkaStorageError: ``target`` is offline or goes offline meanwhile.
        :raises OverloadedError: a directory is full or stalled, or its queue is full.
        """
        # Once the future copy exists, its existence forbids compaction.
        async with self._cleaning_pauses.paused(topic_partition, by="a move"):
            await self._cleaner_offsets.forget(target, topic_partition)
            if (source := self.get(topic_partition)) is not None:
                # A copy opens the source's files by name.
                await source.name_compacted()
            return await self._swap.create_future(topic_partition, target, move_id)

    async def drop_future(self, topic_partition: TopicPartition) -> None:
        """Cancel a move by removing its future copy. No effect if there is none.

        If the directory of the copy is offline, the files stay.

        :raises OverloadedError: the directory is stalled, or its queue is full; nothing has
            changed.
        :raises KafkaStorageError: the directory goes offline meanwhile; the copy is forgotten.
        """
        await self._swap.drop_future(topic_partition)

    async def promote_future(
        self, topic_partition: TopicPartition, executor: LogDirExecutor
    ) -> LogHandle:
        """Replace the replica by its future copy. Return the handle of the new replica.

        The missing bytes are copied first, in ``executor``. The caller ensures that nothing is
        appended or truncated meanwhile. The old handle can be read until its files are removed
        after ``file.delete.delay.ms``. After an error the old handle is still the replica, unless
        its own directory is offline.

        :raises UnknownTopicOrPartitionError: there is no replica, or no future copy.
        :raises OverloadedError: the replica was appended to, or a directory is busy: try again.
        :raises KafkaStorageError: with the ``directory_id`` of the directory that went offline.
        """
        handle = await self._swap.promote_future(topic_partition, executor)
        # Store the replica's clean offset in its new directory. If that fails, the log is only
        # cleaned again.
        await each_online([self._cleaner_offsets.write(handle.log_dir)])
        return handle

    async def adopt_future(self, topic_partition: TopicPartition) -> LogHandle:
        """Make the future copy the replica because no current copy exists (KIP-113 §3).

        The copy is recovered as after a crash, and contains the records that had been copied.

        :raises UnknownTopicOrPartitionError: there is no future copy.
        :raises OperatingError: INVALID_REQUEST, if there is a current copy.
        :raises KafkaStorageError: the directory of the copy is offline or goes offline meanwhile.
        :raises OverloadedError: the directory is impaired, or its queue is full: try again.
        """
        return await self._swap.adopt_future(topic_partition)

    @property
    def orphans(self) -> Sequence[Orphan]:
        """``-delete`` copies of partitions that had no current copy when their directories were
        loaded.

        The caller restores or discards each one.
        """
        return tuple(self._recovery.orphans())

    def orphans_of(self, key: TopicIdPartition) -> list[Orphan]:
        """Return the orphans of this partition with this topic id."""
        return self._recovery.orphans_of(key)

    async def restore_deleted(self, orphan: Orphan) -> LogHandle:
        """Restore a ``-delete`` copy as the replica. The restored copy may be older than the lost
        copy.

        :raises UnknownTopicOrPartitionError: the copy does not exist any more.
        :raises OperatingError: its topic id cannot be read any more.
        :raises KafkaStorageError: its directory goes offline meanwhile.
        :raises OverloadedError: its directory is impaired, or its queue is full: try again.
        """
        return await self._recovery.restore(orphan)

    async def discard_deleted(self, orphan: Orphan) -> None:
        """Remove a ``-delete`` copy that is not needed. No effect if another caller has restored or
        removed it.
        """
        await self._recovery.discard(orphan)

    async def keep_as_stray(self, orphan: Orphan, metadata_log_id: Uuid | None) -> None:
        """Rename a ``-delete`` copy to ``-stray``, because it has records that the served copy
        lacks. No effect if another caller has restored or removed it.

        :raises KafkaStorageError: its directory is offline or goes offline meanwhile.
        :raises OverloadedError: its directory is impaired, or its queue is full: try again.
        """
        await self._recovery.release(
            orphan,
            lambda it: self.strays.adopt(
                it.log_dir, it.directory, it.topic_partition, metadata_log_id
            ),
        )

    async def is_covered(self, orphan: Orphan) -> bool:
        """Return whether the served copy has all records of the orphan, except those before its
        own log start; see :meth:`SwapRecovery.is_covered`. Errors are those of
        :meth:`restore_deleted`.
        """
        return await self._recovery.is_covered(orphan)

    # -- create and delete ------------------------------------------------------------------

    async def create(
        self,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        directory_id: DirectoryId | None = None,
        config: TopicConfig | None = None,
    ) -> LogHandle:
        """Return the replica of the partition, and create it if it does not exist.

        Arguments and errors are those of :meth:`LogMaker.create`. An existing replica is returned
        even if its topic id differs.
        """
        return await self.maker.create(topic_partition, topic_id, directory_id, config)

    async def delete(self, topic_partition: TopicPartition) -> None:
        """Remove the replica at once. Its files are deleted after ``file.delete.delay.ms``.

        :raises OverloadedError: the directory is STALLED, or its queue is full; nothing has
            changed.
        :raises UnknownTopicOrPartitionError: there is no replica; its directory may have been
            dropped.
        :raises KafkaStorageError: its directory is offline or goes offline meanwhile. The replica
            stays removed.
        """
        await self._remove(topic_partition, ReplicaDirKind.DELETE)

    async def rename_stray(
        self,
        topic_partition: TopicPartition,
        reason: StrayReason,
        metadata_log_id: Uuid | None = None,
    ) -> None:
        """Remove a replica that the metadata does not contain, but keep its files under a
        ``-stray`` name.

        :param metadata_log_id: id of the metadata log that lacks the replica, for the mark in the
            directory.
        :raises OperatingError: the same errors as :meth:`delete`.
        """
        await self._remove(topic_partition, ReplicaDirKind.STRAY, reason, metadata_log_id)

    async def _remove(
        self,
        topic_partition: TopicPartition,
        kind: ReplicaDirKind,
        reason: StrayReason = StrayReason.SUPERSEDED,
        metadata_log_id: Uuid | None = None,
    ) -> None:
        handle = self._forget(topic_partition)
        try:
            async with self._cleaning_pauses.paused(topic_partition, by="a removal"):
                await self._move_aside(handle, kind, reason, metadata_log_id)
        except OverloadedError:
            self._registry.put(handle)
            raise
        self._cleaner_offsets.drop(topic_partition)

    async def _move_aside(
        self,
        handle: LogHandle,
        kind: ReplicaDirKind,
        reason: StrayReason = StrayReason.SUPERSEDED,
        metadata_log_id: Uuid | None = None,
    ) -> None:
        if kind is ReplicaDirKind.STRAY:
            await self.strays.set_aside(handle, reason, metadata_log_id)
            return
        target = self._registry.doomed_path(handle.log_dir, handle.topic_partition, kind)
        await handle.move_aside(target)
        self._purge_later(handle.log_dir, target, handle)

    def _forget(self, tp: TopicPartition) -> LogHandle:
        handle = self._registry.remove(tp)
        if handle is None:
            raise UnknownTopicOrPartitionError(f"there is no replica of {tp} here")
        return handle

    def drop(self, log_dir: LogDir) -> list[LogHandle]:
        """Forget the replicas of an OFFLINE directory, without file operations. Return their
        handles, except those of :attr:`duplicates`.

        For the metadata directory, which need not be a log directory, the list is empty.
        """
        gone = self._registry.forget_all_in(log_dir)
        self._recovery.forget_all_in(log_dir)
        self.strays.forget_all_in(log_dir)
        if log_dir in self._housekeeping:
            self._housekeeping[log_dir].forget()
        return gone

    # -- configuration ----------------------------------------------------------------------

    def set_default_config(self, config: TopicConfig) -> None:
        """Set the configuration of later logs whose topics have no configuration of their own.
        Existing logs keep theirs.
        """
        self._registry.set_default_config(config)

    def update_config(self, topic: str, config: TopicConfig, partitions: Iterable[int]) -> None:
        """Apply ``config`` to the current replicas of ``topic``, and to those created later.
        Retention runs soon in their saturated directories.

        :param partitions: the partitions of the topic.
        """
        followed = self._registry.set_config(topic, config, partitions)
        for log_dir in dict.fromkeys(handle.log_dir for handle in followed):
            self._housekeeping[log_dir].retain_soon()

    # -- checkpoints ------------------------------------------------------------------------

    async def checkpoint_high_watermarks(
        self,
        high_watermarks: Mapping[TopicPartition, int],
        is_gone: Callable[[TopicPartition], bool] = lambda _: False,
    ) -> None:
        """Write ``replication-offset-checkpoint`` of each directory; skip directories that are or
        go offline, or refuse the write.

        :param is_gone: returns whether the entry of a partition without a log may be removed.
        """
        await self._checkpoints.write_high_watermarks(high_watermarks, is_gone)

    async def checkpoint_offsets(self, log_dir: LogDir) -> None:
        """Write the recovery points and log start offsets of a directory, durably. No effect if it
        is not loaded.

        :raises KafkaStorageError: the directory is or goes offline.
        :raises OverloadedError: the directory is full or stalled, or its queue is full.
        """
        if log_dir in self._loaded:
            await self._checkpoints.write_recovery_points(log_dir)

    # -- LogHost: called by the handles ------------------------------------------------------

    def request_flush(self, handle: LogHandle) -> None:
        self._housekeeping[handle.log_dir].request_flush(handle)

    def retire(self, handle: LogHandle, segments: Sequence[LogSegment]) -> None:
        chores = self._housekeeping[handle.log_dir]
        chores.purge_segments(handle, segments, handle.config.file_delete_delay_ms)

    def segment_cache(self, log_dir: LogDir) -> SegmentCache[LogSegment]:
        return self._housekeeping[log_dir].segment_cache

    @property
    def index_cache_bytes(self) -> int:
        """Size of the segment indexes in memory, in bytes."""
        return sum(self.segment_cache(log_dir).index_bytes for log_dir in self.dirs())

    @property
    def open_segments(self) -> int:
        """Number of open segment files."""
        return sum(self.segment_cache(log_dir).open_segments for log_dir in self.dirs())

    async def lower_claims(self, handle: LogHandle) -> None:
        if (
            handle.checkpointed_recovery_point > handle.recovery_point
            or handle.log_start_offset > handle.claimable_log_start
        ):
            await self.checkpoint_offsets(handle.log_dir)
        self.cleaner.truncated(handle.topic_partition)
        await self._cleaner_offsets.lower(handle, handle.recovery_point)

    async def keep_log_start(self, handle: LogHandle) -> None:
        await self._checkpoints.keep_log_start(handle)

    def _purge_later(self, log_dir: LogDir, path: str, handle: LogHandle | None) -> None:
        config = self._registry.config_of("") if handle is None else handle.config
        chores = self._housekeeping[log_dir]
        chores.purge_replica(path, handle, config.file_delete_delay_ms)

    def _purge_now(self, log_dir: LogDir, path: str) -> None:
        self._housekeeping[log_dir].purge_replica(path, None, 0)

    def _try_again(self, log_dir: LogDir, removal: Callable[[], Awaitable[object]]) -> None:
        self._housekeeping[log_dir].try_again(removal)

    def _forbids_cleaning(self, topic_partition: TopicPartition) -> str | None:
        """Return why the replica must not be cleaned now, other than a pause; None if it may be
        cleaned.
        """
        handle = self.get(topic_partition)
        if handle is None:
            return "there is no such replica here"
        if handle.log_dir.state is not LogDirState.ONLINE:
            return f"its log dir is {handle.log_dir.state.value}"
        if topic_partition in self._registry.futures:
            return "it is being moved"
        return None

    # -- background and stop ----------------------------------------------------------------

    async def run_background(self) -> None:
        """Run retention, checkpoints, flushes, cleaning and removals of all directories until
        cancelled.
        """
        async with asyncio.TaskGroup() as self._background:
            for log_dir in self.dirs():
                chores = self._housekeeping[log_dir].run_jobs()
                self._chores[log_dir] = self._background.create_task(chores)
            # Keep running without directories, because one may be added later.
            await asyncio.Event().wait()

    async def close(
        self,
        broker_epoch: int,
        incarnation_id: Uuid | None = None,
        *,
        doubtful: Collection[TopicPartition] = (),
    ) -> None:
        """Flush and close every log, write a clean shutdown mark to each online directory, and
        close the directories. Errors are logged.

        A directory gets no mark after an error, after an incomplete load, or if it holds a replica
        in ``doubtful``. The log of such a replica may lack records although no other broker knows
        that.

        :param broker_epoch: stored in the mark, like ``incarnation_id``.
        """
        stop = CleanShutdown(BrokerEpoch(broker_epoch), incarnation_id)
        await asyncio.gather(*(self._close_dir(d, stop, doubtful) for d in self.online_dirs()))
        self.cleaner.close()
        for log_dir in self.dirs():
            log_dir.close()
        await asyncio.gather(*(log_dir.unlocked() for log_dir in self.dirs()))

    async def _close_dir(
        self, log_dir: LogDir, stop: CleanShutdown, doubtful: Collection[TopicPartition]
    ) -> None:
        """Close the logs of a directory and write its mark.

        An error prevents the mark and is only logged.
        """
        handles = self._registry.every_handle_in(log_dir)
        is_doubtful = any(handle.topic_partition in doubtful for handle in handles)
        failed = await close_logs(log_dir, handles)
        for future in self._registry.futures_in(log_dir):
            try:
                await with_reserve(future.sync)
            except OperatingError as e:
                failed = failed or e
        mark = stop if failed is None and log_dir in self._loaded and not is_doubtful else None
        try:
            await with_reserve(partial(self._write_stop, log_dir, mark))
            if failed is not None:
                raise failed
        except OperatingError as e:
            self._log.warning("log_dir_not_closed_cleanly", log_dir=log_dir.path, reason=e.message)

    async def _write_stop(self, log_dir: LogDir, stop: CleanShutdown | None) -> None:
        """Write the checkpoints, and the clean shutdown mark if ``stop`` is given."""
        await self.checkpoint_offsets(log_dir)
        if stop is not None:
            mark, data = f"{log_dir.path}/{CLEAN_SHUTDOWN_FILE}", format_clean_shutdown(stop)
            write = log_dir.if_ours(lambda: write_atomically(log_dir.vfs, mark, data))
            await log_dir.run_operation(OpKind.CLOSE, write)
