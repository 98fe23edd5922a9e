"""``LogManager``: every replica on this node, dir by dir.

* Dirs are loaded in parallel, each in its own thread; a dir that fails meanwhile is OFFLINE, and
  the others go on.
* Names that are none of ours are skipped with one warning and never touched.
* Two current copies of one partition are both held aside until the caller, who knows the
  metadata, resolves which one wins.
* ``.kafka_cleanshutdown`` is removed before a dir's first log is loaded, and written only where
  everything was loaded and closed without an error.

Roles and cluster metadata are not known here.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from kraftjbod.core.config import TopicConfig
from kraftjbod.core.errors import (
    KafkaStorageError,
    OperatingError,
    OverloadedError,
    UnknownTopicOrPartitionError,
)
from kraftjbod.core.ids import DirectoryId, TopicId, TopicPartition, Uuid
from kraftjbod.core.telemetry import get_logger
from kraftjbod.core.timing import Clock
from kraftjbod.storage.checkpoints import (
    CorruptCheckpointError,
    format_clean_shutdown,
    format_offsets,
    parse_offsets,
)
from kraftjbod.storage.dir_names import (
    CLEAN_SHUTDOWN_FILE,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    ReplicaDirKind,
    doomed_dir_name,
)
from kraftjbod.storage.housekeeping import Housekeeping
from kraftjbod.storage.log_dir import LogDir
from kraftjbod.storage.log_dir_policy import DirCandidate, OpKind, choose_dir
from kraftjbod.storage.log_handle import LogHandle
from kraftjbod.storage.log_loader import LogLoader, create_log, list_log_dir
from kraftjbod.storage.segment import LogSegment
from kraftjbod.storage.vfs import Vfs, write_atomically

#: How long the count of what each dir has promised is good for.
_CANDIDATES_FOR_MS: Final = 1_000
#: How many replicas may be on their way into one dir.
_CREATES_AT_ONCE: Final = 2


class LoadProgress(NamedTuple):
    """One dir while it is loaded; ``scanned_bytes`` had to be checked after an unclean stop."""

    log_dir: LogDir
    logs_done: int
    logs_total: int
    scanned_bytes: int


class LogManager:
    """All current replicas of a node. All methods are for the loop's thread."""

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
        producer_expiration_ms: int = 86_400_000,
    ) -> None:
        self._producer_expiration_ms = producer_expiration_ms
        self._dirs = tuple(dirs)
        self._clock = clock
        self._default_config = default_config
        self._random_bytes = random_bytes
        self._log = get_logger()
        self._configs: dict[str, TopicConfig] = {}
        self._handles: dict[TopicPartition, LogHandle] = {}
        #: Partitions with several current copies, until they are resolved.
        self._held_aside: dict[TopicPartition, list[LogHandle]] = {}
        self._creating: dict[TopicPartition, asyncio.Future[LogHandle]] = {}
        #: Where they are being made; they count there from the moment that it is decided.
        self._creating_in: dict[TopicPartition, LogDir] = {}
        #: A dir's thread must not be busy with new replicas only, while old ones are written to.
        self._create_slots = {d: asyncio.Semaphore(_CREATES_AT_ONCE) for d in self._dirs}
        #: What each dir has promised its replicas; counted anew from time to time.
        self._candidates: dict[LogDir, DirCandidate] = {}
        self._candidates_until_ms = 0
        #: Dirs whose logs are all known: only they may get a clean mark.
        self._loaded: set[LogDir] = set()
        self._housekeeping = {
            log_dir: Housekeeping(
                log_dir,
                clock=clock,
                handles=partial(self.handles_in, log_dir),
                checkpoint=partial(self._checkpoint_offsets, log_dir),
                retention_check_interval_ms=retention_check_interval_ms,
                checkpoint_interval_ms=checkpoint_interval_ms,
                flush_check_interval_ms=flush_check_interval_ms,
            )
            for log_dir in dirs
        }

    # -- what there is ----------------------------------------------------------------------

    def get(self, topic_partition: TopicPartition) -> LogHandle | None:
        return self._handles.get(topic_partition)

    def handles(self) -> list[LogHandle]:
        return list(self._handles.values())

    def handles_in(self, log_dir: LogDir) -> list[LogHandle]:
        return [handle for handle in self._handles.values() if handle.log_dir is log_dir]

    def dirs(self) -> Sequence[LogDir]:
        return self._dirs

    def online_dirs(self) -> list[LogDir]:
        return [log_dir for log_dir in self._dirs if log_dir.is_online]

    def offline_dirs(self) -> list[LogDir]:
        return [log_dir for log_dir in self._dirs if not log_dir.is_online]

    def dir_by_id(self, directory_id: DirectoryId) -> LogDir | None:
        return next((d for d in self._dirs if d.directory_id == directory_id), None)

    @property
    def duplicates(self) -> Mapping[TopicPartition, Sequence[LogHandle]]:
        """Partitions with several current copies, none of which :meth:`get` gives."""
        return self._held_aside

    # -- load -------------------------------------------------------------------------------

    async def load(self, on_progress: Callable[[LoadProgress], None] | None = None) -> None:
        """Load every replica of every online dir; recover what was not stopped cleanly."""
        report = on_progress or (lambda progress: None)
        await asyncio.gather(*(self._load_dir(d, report) for d in self.online_dirs()))
        for tp, copies in self._held_aside.items():
            copies.sort(key=lambda copy: copy.log_dir.path)
            self._log.warning(
                "replica_found_twice",
                partition=str(tp),
                log_dirs=[copy.log_dir.path for copy in copies],
            )

    async def _load_dir(self, log_dir: LogDir, report: Callable[[LoadProgress], None]) -> None:
        try:
            await self._load_logs(log_dir, report)
        except KafkaStorageError:
            # Told by log_dir_offline; what it had is gone for this process.
            self.drop(log_dir)
        else:
            self._loaded.add(log_dir)

    async def _load_logs(self, log_dir: LogDir, report: Callable[[LoadProgress], None]) -> None:
        vfs = log_dir.vfs
        clean_mark = f"{log_dir.path}/{CLEAN_SHUTDOWN_FILE}"
        was_clean = await log_dir.read_text(OpKind.LOAD, clean_mark) is not None
        recovery_points = await self._read_offsets(log_dir, RECOVERY_POINT_CHECKPOINT)
        log_starts = await self._read_offsets(log_dir, LOG_START_CHECKPOINT)
        high_watermarks = await self._read_offsets(log_dir, HIGH_WATERMARK_CHECKPOINT)
        await log_dir.run(OpKind.LOAD, lambda: _unlink_for_good(vfs, log_dir.path, clean_mark))
        listing = await log_dir.run(OpKind.LOAD, lambda: list_log_dir(vfs, log_dir.path))
        if listing.unknown:
            self._log.warning(
                "unknown_names_in_log_dir", log_dir=log_dir.path, names=list(listing.unknown)
            )
        current = []
        for replica in listing.replicas:
            if replica.kind is ReplicaDirKind.DELETE:
                self._purge_later(log_dir, f"{log_dir.path}/{replica.name}", None)
            elif replica.kind is ReplicaDirKind.CURRENT and replica.topic_partition:
                current.append(replica.topic_partition)
        total, scanned_bytes = len(current), 0
        for done, tp in enumerate(current):
            report(LoadProgress(log_dir, done, total, scanned_bytes))
            loader = LogLoader(
                vfs=vfs,
                directory=f"{log_dir.path}/{tp}",
                topic_partition=tp,
                config=self._config_of(tp.topic),
                was_clean=was_clean and tp in recovery_points,
                recovery_point=recovery_points.get(tp, 0),
                log_start_offset=log_starts.get(tp, 0),
                producer_expiration_ms=self._producer_expiration_ms,
                on_progress=lambda size_bytes: log_dir.beat(),
            )
            scanned_bytes += await self._load_log(
                log_dir,
                loader,
                tp,
                high_watermark=high_watermarks.get(tp, 0),
                checkpointed_recovery_point=recovery_points.get(tp, 0),
            )
        report(LoadProgress(log_dir, total, total, scanned_bytes))

    async def _load_log(
        self,
        log_dir: LogDir,
        loader: LogLoader,
        tp: TopicPartition,
        *,
        high_watermark: int,
        checkpointed_recovery_point: int,
    ) -> int:
        """Load one replica and take it in; how many bytes had to be scanned."""
        try:
            loaded = await log_dir.run(OpKind.LOAD, loader.load)
        except CorruptCheckpointError as e:
            # Whose records these are cannot be told any more; they are kept, not served.
            self._log.error("replica_set_aside_as_stray", partition=str(tp), reason=str(e))
            target = self._doomed_path(log_dir, tp, ReplicaDirKind.STRAY)
            source = f"{log_dir.path}/{tp}"
            await log_dir.run(OpKind.RENAME, lambda: log_dir.vfs.rename(source, target))
            return 0
        if loaded.cut_bytes:
            cut = {"partition": str(tp), "cut_bytes": loaded.cut_bytes}
            self._log.warning("log_tail_cut", log_dir=log_dir.path, **cut)
        self._take_in(
            LogHandle(
                log=loaded.log,
                log_dir=log_dir,
                host=self,
                clock=self._clock,
                checkpointed_high_watermark=high_watermark,
                checkpointed_recovery_point=checkpointed_recovery_point,
            )
        )
        return loaded.scanned_bytes

    async def _read_offsets(self, log_dir: LogDir, name: str) -> dict[TopicPartition, int]:
        path = f"{log_dir.path}/{name}"
        text = await log_dir.read_text(OpKind.LOAD, path)
        if text is None:
            return {}
        try:
            return parse_offsets(text, path)
        except CorruptCheckpointError as e:
            # Everything it told can be found again, only more slowly.
            self._log.warning("checkpoint_unreadable", path=path, reason=str(e))
            return {}

    def _take_in(self, handle: LogHandle) -> None:
        tp = handle.topic_partition
        if tp in self._held_aside:
            self._held_aside[tp].append(handle)
        elif tp in self._handles:
            self._held_aside[tp] = [self._handles.pop(tp), handle]
        else:
            self._handles[tp] = handle

    async def resolve(self, topic_partition: TopicPartition, winner: LogHandle) -> None:
        """Serve ``winner`` of several copies; the others become ``-delete``.

        A copy whose dir does not let it be renamed stays where it is; what that says of the dir
        the dir has judged.
        """
        copies = self._held_aside.pop(topic_partition)
        assert winner in copies, (winner, copies)
        self._handles[topic_partition] = winner
        for copy in copies:
            if copy is winner:
                continue
            try:
                await self._move_aside(copy, ReplicaDirKind.DELETE)
            except OperatingError as e:
                where = copy.log_dir.path
                self._log.warning("replica_copy_not_removed", log_dir=where, reason=e.message)

    # -- create and delete ------------------------------------------------------------------

    async def create(
        self,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        directory_id: DirectoryId | None = None,
        config: TopicConfig | None = None,
    ) -> LogHandle:
        """The replica, made in ``directory_id`` or in the dir with most room if there is none yet.

        One that is here already is given as it is: the caller compares its ``topic_id``.

        :raises KafkaStorageError: if that dir, or every dir, is offline; or if several copies
            wait to be resolved.
        """
        if (handle := self._handles.get(topic_partition)) is not None:
            return handle
        if topic_partition in self._held_aside:
            raise KafkaStorageError(f"{topic_partition} has several copies, none resolved yet")
        if (running := self._creating.get(topic_partition)) is not None:
            return await asyncio.shield(running)
        if config is not None:
            self._configs[topic_partition.topic] = config
        log_dir = self._dir_for(directory_id, self._config_of(topic_partition.topic))
        task = asyncio.ensure_future(self._create_in(log_dir, topic_partition, topic_id))
        self._creating[topic_partition] = task
        self._creating_in[topic_partition] = log_dir
        task.add_done_callback(lambda done: self._created(topic_partition, done))
        return await asyncio.shield(task)

    def _created(self, topic_partition: TopicPartition, done: asyncio.Future[LogHandle]) -> None:
        self._creating.pop(topic_partition, None)
        self._creating_in.pop(topic_partition, None)
        if not done.cancelled():
            done.exception()  # Whoever wanted the log may have given up; that is no news then.

    async def _create_in(self, log_dir: LogDir, tp: TopicPartition, topic_id: TopicId) -> LogHandle:
        vfs, root, config = log_dir.vfs, log_dir.path, self._config_of(tp.topic)
        aside = self._doomed_path(log_dir, tp, ReplicaDirKind.STRAY)

        def make() -> LogHandle:
            if vfs.exists(f"{root}/{tp}"):
                # Not loaded, so not known: kept for a human to look at.
                vfs.rename(f"{root}/{tp}", aside)
            log = create_log(
                vfs,
                root,
                tp,
                topic_id,
                config,
                producer_expiration_ms=self._producer_expiration_ms,
            )
            return LogHandle(log=log, log_dir=log_dir, host=self, clock=self._clock)

        async with self._create_slots[log_dir]:
            handle = await log_dir.run(OpKind.CREATE, make, replica=tp)
        if not log_dir.is_online:
            # It died after that, and was forgotten before there was something to forget.
            raise log_dir.offline_error()
        self._handles[tp] = handle
        return handle

    def _dir_for(self, directory_id: DirectoryId | None, config: TopicConfig) -> LogDir:
        if directory_id is None:
            directory_id = self._choose_dir(config)
        log_dir = self.dir_by_id(directory_id)
        if log_dir is None:
            raise KafkaStorageError(
                f"directory {directory_id} is none of this node's", directory_id=directory_id
            )
        if not log_dir.is_online:
            raise log_dir.offline_error()
        return log_dir

    def _choose_dir(self, config: TopicConfig) -> DirectoryId:
        """The dir for one more replica, which is promised its place there at once."""
        now_ms = self._clock.now_ms()
        if now_ms >= self._candidates_until_ms:
            # Not for each replica: a topic may bring thousands.
            self._candidates = {log_dir: self._candidate(log_dir) for log_dir in self._dirs}
            self._candidates_until_ms = now_ms + _CANDIDATES_FOR_MS
        chosen = choose_dir([self._candidates[log_dir] for log_dir in self.online_dirs()])
        if chosen is None:
            raise KafkaStorageError("every log dir is offline")
        for log_dir, candidate in self._candidates.items():
            if candidate.directory_id == chosen:
                self._candidates[log_dir] = replace(
                    candidate,
                    promised_bytes=candidate.promised_bytes + config.segment_bytes,
                    replicas=candidate.replicas + 1,
                )
        return chosen

    def _candidate(self, log_dir: LogDir) -> DirCandidate:
        here = self.handles_in(log_dir)
        coming = [tp for tp, where in self._creating_in.items() if where is log_dir]
        return DirCandidate(
            directory_id=log_dir.directory_id,
            usable_bytes=log_dir.space.usable_bytes,
            promised_bytes=sum(max(0, h.config.segment_bytes - h.size_bytes) for h in here)
            + sum(self._config_of(tp.topic).segment_bytes for tp in coming),
            replicas=len(here) + len(coming),
        )

    async def delete(self, topic_partition: TopicPartition) -> None:
        """Out of sight at once; the files go after ``file.delete.delay.ms``.

        :raises OverloadedError: too much waits for its dir; nothing has changed.
        :raises UnknownTopicOrPartitionError: there is none; its dir may have been dropped.
        :raises KafkaStorageError: its dir is offline or goes offline meanwhile.
        """
        await self._remove(topic_partition, ReplicaDirKind.DELETE)

    async def rename_stray(self, topic_partition: TopicPartition) -> None:
        """The metadata knows no such replica: keep its files under a ``-stray`` name.

        Raises as :meth:`delete`.
        """
        await self._remove(topic_partition, ReplicaDirKind.STRAY)

    async def _remove(self, topic_partition: TopicPartition, kind: ReplicaDirKind) -> None:
        handle = self._forget(topic_partition)
        try:
            await self._move_aside(handle, kind)
        except OverloadedError:
            self._handles[topic_partition] = handle
            raise

    async def _move_aside(self, handle: LogHandle, kind: ReplicaDirKind) -> None:
        target = self._doomed_path(handle.log_dir, handle.topic_partition, kind)
        await handle.move_aside(target)
        if kind is ReplicaDirKind.DELETE:
            self._purge_later(handle.log_dir, target, handle)
        else:
            await handle.close_files()

    def _forget(self, tp: TopicPartition) -> LogHandle:
        handle = self._handles.pop(tp, None)
        if handle is None:
            raise UnknownTopicOrPartitionError(f"there is no replica of {tp} here")
        return handle

    def _doomed_path(self, log_dir: LogDir, tp: TopicPartition, kind: ReplicaDirKind) -> str:
        return f"{log_dir.path}/{doomed_dir_name(tp, kind, Uuid.random(self._random_bytes))}"

    def drop(self, log_dir: LogDir) -> list[LogHandle]:
        """Forget the replicas of a dir that went OFFLINE, without touching a file; which ones.

        A metadata dir that is not among the log dirs has none.
        """
        gone = self.handles_in(log_dir)
        for handle in gone:
            del self._handles[handle.topic_partition]
        for tp, copies in list(self._held_aside.items()):
            # The copies left stay aside: metadata may name the one that is gone.
            self._held_aside[tp] = [copy for copy in copies if copy.log_dir is not log_dir]
            if not self._held_aside[tp]:
                del self._held_aside[tp]
        if log_dir in self._housekeeping:
            self._housekeeping[log_dir].forget()
        return gone

    # -- configuration ----------------------------------------------------------------------

    def update_config(self, topic: str, config: TopicConfig) -> None:
        """Let ``topic``'s replicas, present and future, follow ``config``."""
        self._configs[topic] = config
        for handle in self._every_handle():
            if handle.topic_partition.topic == topic:
                handle.set_config(config)

    def _config_of(self, topic: str) -> TopicConfig:
        return self._configs.get(topic, self._default_config)

    # -- checkpoints ------------------------------------------------------------------------

    async def checkpoint_high_watermarks(
        self, high_watermarks: Mapping[TopicPartition, int]
    ) -> None:
        """Write them, dir by dir; dirs that are or go offline are passed over."""
        by_dir: defaultdict[LogDir, dict[TopicPartition, int]] = defaultdict(dict)
        for tp, high_watermark in high_watermarks.items():
            if (handle := self._handles.get(tp)) is not None:
                by_dir[handle.log_dir][tp] = high_watermark
        await _each_online(
            self._write_offsets(log_dir, HIGH_WATERMARK_CHECKPOINT, offsets)
            for log_dir, offsets in by_dir.items()
        )

    async def checkpoint_recovery_points(self) -> None:
        """Recovery points and log start offsets of every online dir."""
        await _each_online(self._checkpoint_offsets(d) for d in self.online_dirs())

    async def _checkpoint_offsets(self, log_dir: LogDir) -> None:
        if log_dir not in self._loaded:
            return
        here = [handle for handle in self._every_handle() if handle.log_dir is log_dir]
        points = {handle.topic_partition: handle.recovery_point for handle in here}
        starts = {
            handle.topic_partition: handle.log_start_offset
            for handle in here
            if handle.log_start_offset > handle.first_segment_offset
        }
        for handle in here:
            handle.checkpointed_recovery_point = handle.recovery_point
        await self._write_offsets(log_dir, RECOVERY_POINT_CHECKPOINT, points)
        await self._write_offsets(log_dir, LOG_START_CHECKPOINT, starts)

    async def _write_offsets(
        self, log_dir: LogDir, name: str, offsets: Mapping[TopicPartition, int]
    ) -> None:
        path = f"{log_dir.path}/{name}"
        await log_dir.run(
            OpKind.CHECKPOINT,
            lambda: write_atomically(log_dir.vfs, path, format_offsets(offsets)),
        )

    # -- what handles ask for ---------------------------------------------------------------

    def request_flush(self, handle: LogHandle) -> None:
        self._housekeeping[handle.log_dir].request_flush(handle)

    def retire(self, handle: LogHandle, segments: Sequence[LogSegment]) -> None:
        chores = self._housekeeping[handle.log_dir]
        chores.purge_segments(handle, segments, handle.config.file_delete_delay_ms)

    async def lower_recovery_point(self, handle: LogHandle) -> None:
        if handle.checkpointed_recovery_point > handle.recovery_point:
            await self._checkpoint_offsets(handle.log_dir)

    def _purge_later(self, log_dir: LogDir, path: str, handle: LogHandle | None) -> None:
        config = self._default_config if handle is None else handle.config
        chores = self._housekeeping[log_dir]
        chores.purge_replica(path, handle, config.file_delete_delay_ms)

    # -- background and stop ----------------------------------------------------------------

    async def run_background(self) -> None:
        """Retention, checkpoints, flushes and purges, until cancelled."""
        async with asyncio.TaskGroup() as chores:
            for housekeeping in self._housekeeping.values():
                chores.create_task(housekeeping.run())

    async def close(self, broker_epoch: int) -> None:
        """Flush and close every log, and mark the dirs where all went well as clean."""
        await asyncio.gather(*(self._close_dir(d, broker_epoch) for d in self.online_dirs()))
        for log_dir in self._dirs:
            log_dir.close()

    async def _close_dir(self, log_dir: LogDir, broker_epoch: int) -> None:
        try:
            for handle in self._every_handle():
                if handle.log_dir is log_dir:
                    await handle.close()
            if log_dir not in self._loaded:
                return
            await self._checkpoint_offsets(log_dir)
            mark = f"{log_dir.path}/{CLEAN_SHUTDOWN_FILE}"
            data = format_clean_shutdown(broker_epoch)
            await log_dir.run(OpKind.CLOSE, lambda: write_atomically(log_dir.vfs, mark, data))
        except OperatingError as e:
            self._log.warning("log_dir_not_closed_cleanly", log_dir=log_dir.path, reason=e.message)

    def _every_handle(self) -> list[LogHandle]:
        aside = [copy for copies in self._held_aside.values() for copy in copies]
        return [*self._handles.values(), *aside]


async def _each_online(work: Iterable[Awaitable[None]]) -> None:
    """All of ``work``, one piece per dir; a dir that fails has judged itself already."""
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, OperatingError):
            raise outcome


def _unlink_for_good(vfs: Vfs, directory: str, path: str) -> None:
    vfs.unlink_if_exists(path)
    vfs.sync_dir(directory)
