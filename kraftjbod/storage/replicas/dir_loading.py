"""LOOP. ``DirLoading``: loads the replicas of one log directory.

* ``.kafka_cleanshutdown`` is removed durably before any replica is served, because it describes the
  previous stop.
* Unknown names are skipped with one warning and never changed.
* A replica without a readable topic id is renamed to ``-stray``.
* Loading takes no space, so a full disk can be loaded. The exception is a replica whose creation
  was interrupted: it is skipped, and recreated when there is space.
* An operation that lacks a free descriptor or memory is repeated, because the directory is not at
  fault.
* Future copies, strays and deleted replicas are listed and not changed.

Other components decide about copies of one replica in several directories.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from kraftjbod.core.errors import LogDirImpairedError, OperatingError, OverloadedError
from kraftjbod.core.ids import TopicId, TopicPartition
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.telemetry import get_logger
from kraftjbod.storage.checkpoints import CorruptCheckpointError
from kraftjbod.storage.dir_names import CLEAN_SHUTDOWN_FILE, ReplicaDir, ReplicaDirKind
from kraftjbod.storage.log.log_handle import LogHandle, LogHost
from kraftjbod.storage.log.log_loader import LoadedLog, LogLoader, list_log_dir
from kraftjbod.storage.log.producer_state import ProducerLimits
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.moves.future_log import FutureLog
from kraftjbod.storage.moves.future_replica import FutureReplica
from kraftjbod.storage.replicas.offset_checkpoints import DirOffsets, read_offsets
from kraftjbod.storage.replicas.replica_registry import ReplicaRegistry
from kraftjbod.storage.replicas.stray_mark import FoundStray, StrayMark, examine_stray
from kraftjbod.storage.vfs import Vfs

T = TypeVar("T")
#: How long one operation is repeated while the process lacks descriptors or memory, in ms.
LACK_LIMIT_MS: Final = 30_000
_FIRST_RETRY_MS: Final = 10
_MAX_RETRY_MS: Final = 1_000


class LackBudget:
    """How long several operations may be repeated together while the process lacks descriptors or
    memory, in ms.
    """

    def __init__(self) -> None:
        self.left_ms = LACK_LIMIT_MS


class LoadProgress(NamedTuple):
    """Progress of loading a directory. ``scanned_bytes`` were checked after an unclean stop."""

    log_dir: LogDir
    logs_done: int
    logs_total: int
    scanned_bytes: int


class OpenedReplica(NamedTuple):
    """A replica that was loaded and can be served. ``scanned_bytes`` and ``was_future`` are those
    of :class:`LoadedLog`.
    """

    handle: LogHandle
    scanned_bytes: int
    was_future: bool


class Stray(NamedTuple):
    """A copy of a replica that is kept and not served.

    ``topic_partition`` is None if its name may have been shortened. ``known_since_ms`` is monotonic
    time of this process. The other values are those of :class:`FoundStray`.
    """

    log_dir: LogDir
    directory: str
    topic_partition: TopicPartition | None
    topic_id: TopicId | None
    last_epoch: int | None
    mark: StrayMark | None
    size_bytes: int
    holds_nothing: bool
    known_since_ms: int

    @classmethod
    def of_directory(
        cls,
        log_dir: LogDir,
        directory: str,
        topic_partition: TopicPartition | None,
        found: FoundStray,
        now_ms: int,
    ) -> Stray:
        return cls(
            log_dir=log_dir,
            directory=directory,
            topic_partition=topic_partition,
            topic_id=found.topic_id,
            last_epoch=found.last_epoch,
            mark=found.mark,
            size_bytes=found.size_bytes,
            holds_nothing=found.holds_nothing,
            known_since_ms=now_ms,
        )


class LoadedDir(NamedTuple):
    """Result of loading a log directory: open logs of the current replicas, and a list of all other
    copies.

    ``deleted`` are ``-delete`` copies, ``strays`` are ``-stray`` copies.
    """

    log_dir: LogDir
    offsets: DirOffsets
    handles: list[LogHandle]
    #: Handles that became replicas by a move and were loaded for the first time since.
    moved_here: list[LogHandle]
    futures: list[FutureReplica]
    #: Future copies whose checkpoint or topic id cannot be read.
    broken_futures: list[ReplicaDir]
    deleted: list[ReplicaDir]
    strays: list[Stray]


class DirLoading:
    """Opens the replicas of a log directory at the start, or when the directory is reattached or
    added. All methods run on the event loop.
    """

    def __init__(
        self,
        *,
        registry: ReplicaRegistry,
        host: LogHost,
        clock: Clock,
        producer_limits: ProducerLimits,
    ) -> None:
        self._registry = registry
        self._host = host
        self._clock = clock
        self._producer_limits = producer_limits
        self._log = get_logger()

    async def load(self, log_dir: LogDir, report: Callable[[LoadProgress], None]) -> LoadedDir:
        """Load everything in ``log_dir`` and return it. The clean shutdown mark is removed before
        the replicas are loaded, so that a crash from then on leads to a scan.

        :param report: called with the progress before each replica and at the end.
        :raises KafkaStorageError: the directory goes offline meanwhile.
        :raises OverloadedError: the directory is stalled, or descriptors or memory were lacking for
            more than 30 s.
        """
        vfs = log_dir.vfs
        clean_mark = f"{log_dir.path}/{CLEAN_SHUTDOWN_FILE}"
        mark = await self._outlast_lack(lambda: log_dir.read_text(OpKind.LOAD, clean_mark))
        was_clean = mark is not None
        offsets = await self._outlast_lack(lambda: read_offsets(log_dir))
        await self.load_step(log_dir, lambda: _unlink_durably(vfs, log_dir.path, clean_mark))
        listing = await self.load_step(log_dir, lambda: list_log_dir(vfs, log_dir.path))
        if listing.unknown:
            self._log.warning(
                "unknown_names_in_log_dir", log_dir=log_dir.path, names=list(listing.unknown)
            )
        loaded = LoadedDir(log_dir, offsets, [], [], [], [], [], [])
        current = []
        for replica in listing.replicas:
            if replica.kind is ReplicaDirKind.DELETE:
                loaded.deleted.append(replica)
            elif replica.kind is ReplicaDirKind.FUTURE:
                await self._list_future(loaded, replica)
            elif replica.kind is ReplicaDirKind.STRAY:
                await self._list_stray(loaded, replica.name, replica.topic_partition)
            elif replica.kind is ReplicaDirKind.CURRENT and replica.topic_partition:
                current.append(replica.topic_partition)
        total, scanned_bytes = len(current), 0
        for done, tp in enumerate(current):
            report(LoadProgress(log_dir, done, total, scanned_bytes))
            scanned_bytes += await self._load_one(loaded, tp, was_clean)
        report(LoadProgress(log_dir, total, total, scanned_bytes))
        return loaded

    async def _load_one(self, loaded: LoadedDir, tp: TopicPartition, was_clean: bool) -> int:
        """Load one replica into ``loaded``. Return the number of bytes that had to be scanned."""
        log_dir = loaded.log_dir
        try:
            opened = await self.open_replica(
                log_dir,
                f"{log_dir.path}/{tp}",
                tp,
                loaded.offsets,
                was_clean=was_clean and tp in loaded.offsets.recovery_points,
            )
        except CorruptCheckpointError as e:
            # The topic of these records is unknown, so they are kept and not served.
            self._log.error("replica_set_aside_as_stray", partition=str(tp), reason=str(e))
            target = self._registry.doomed_path(log_dir, tp, ReplicaDirKind.STRAY)
            source = f"{log_dir.path}/{tp}"
            await log_dir.run_operation(
                OpKind.RENAME, lambda: log_dir.vfs.rename(source, target), replica=tp
            )
            await self._list_stray(loaded, target.rpartition("/")[2], tp)
            return 0
        except LogDirImpairedError as e:
            if log_dir.state is not LogDirState.SATURATED:
                raise
            self._log.warning("replica_not_loaded", partition=str(tp), reason=e.message)
            return 0
        opened.handle.checkpointed_log_start = loaded.offsets.log_starts.get(tp, 0)
        loaded.handles.append(opened.handle)
        if opened.was_future:
            loaded.moved_here.append(opened.handle)
        return opened.scanned_bytes

    async def open_replica(
        self,
        log_dir: LogDir,
        directory: str,
        tp: TopicPartition,
        offsets: DirOffsets,
        *,
        was_clean: bool,
    ) -> OpenedReplica:
        """Load and, if necessary, recover the replica in ``directory``.

        :param offsets: content of the checkpoint files of the log directory.
        :param was_clean: whether the replica was closed cleanly, so that no scan is needed.
        :raises CorruptCheckpointError: its topic id cannot be read.
        :raises KafkaStorageError: the directory goes offline meanwhile.
        :raises LogDirImpairedError: the load needs space, and the disk is full.
        :raises OverloadedError: descriptors or memory were lacking for more than 30 s.
        """
        recovery_point = offsets.recovery_points.get(tp, 0)
        config = self._registry.config_of(tp.topic)

        def make_loader() -> LogLoader:
            return LogLoader(
                vfs=log_dir.vfs,
                directory=directory,
                topic_partition=tp,
                config=config,
                was_clean=was_clean,
                recovery_point=recovery_point,
                log_start_offset=offsets.log_starts.get(tp),
                producer_limits=self._producer_limits,
            )

        found = await self._outlast_lack(lambda: self._load_log(log_dir, make_loader(), tp))
        if found.truncated_bytes:
            tail = {"partition": str(tp), "truncated_bytes": found.truncated_bytes}
            self._log.warning("log_tail_truncated", log_dir=log_dir.path, **tail)
        handle = LogHandle(
            log=found.log,
            log_dir=log_dir,
            host=self._host,
            clock=self._clock,
            checkpointed_high_watermark=offsets.high_watermarks.get(tp, 0),
            checkpointed_recovery_point=recovery_point,
        )
        return OpenedReplica(handle, found.scanned_bytes, found.was_future)

    async def _load_log(
        self, log_dir: LogDir, loader: LogLoader, replica: TopicPartition
    ) -> LoadedLog:
        """Load a replica in steps, between which other operations of the directory run."""
        try:
            while True:
                found = await log_dir.run_operation(OpKind.LOAD, loader.step, replica=replica)
                if found is not None:
                    return found
        except asyncio.CancelledError:
            # A file may be open. Closing it may wait for the disk, so the event loop must not.
            with suppress(OperatingError):  # The directory is offline or overloaded.
                log_dir.submit_operation(OpKind.LOAD, loader.close, replica=replica)
            raise

    async def _list_stray(
        self, loaded: LoadedDir, name: str, topic_partition: TopicPartition | None
    ) -> None:
        log_dir = loaded.log_dir
        directory = f"{log_dir.path}/{name}"
        found = await self.load_step(log_dir, lambda: examine_stray(log_dir.vfs, directory))
        now_ms = self._clock.now_ms()
        loaded.strays.append(Stray.of_directory(log_dir, directory, topic_partition, found, now_ms))

    async def _list_future(self, loaded: LoadedDir, found: ReplicaDir) -> None:
        log_dir, tp = loaded.log_dir, found.topic_partition
        assert tp is not None, found
        assert found.unique is not None, found
        directory = f"{log_dir.path}/{found.name}"
        try:
            log = await self.load_step(
                log_dir, lambda: FutureLog.load(log_dir.vfs, directory, tp), replica=tp
            )
        except CorruptCheckpointError as e:
            self._log.warning("future_copy_unreadable", partition=str(tp), reason=str(e))
            loaded.broken_futures.append(found)
            return
        loaded.futures.append(FutureReplica(log=log, log_dir=log_dir, move_id=found.unique))

    async def load_step(
        self,
        log_dir: LogDir,
        op: Callable[[], T],
        *,
        replica: TopicPartition | None = None,
        budget: LackBudget | None = None,
    ) -> T:
        """Run ``op``, which must be idempotent, in the directory's thread. Repeat it while the
        process lacks descriptors or memory.

        :param budget: limit of the waits of several steps; by default this step may wait for 30 s.
        :raises KafkaStorageError: the directory is or goes offline.
        :raises OverloadedError: the directory is impaired, or the lack outlasted the budget.
        """
        return await self._outlast_lack(
            lambda: log_dir.run_operation(OpKind.LOAD, op, replica=replica), budget
        )

    async def _outlast_lack(
        self, attempt: Callable[[], Awaitable[T]], budget: LackBudget | None = None
    ) -> T:
        """Repeat ``attempt`` while the process lacks descriptors or memory.

        :raises OverloadedError: the lack outlasted ``budget``, by default 30 s.
        """
        budget, retry_ms = budget or LackBudget(), _FIRST_RETRY_MS
        while True:
            try:
                return await attempt()
            except LogDirImpairedError:
                raise
            except OverloadedError:
                if budget.left_ms <= 0:
                    raise
            await asyncio.sleep(retry_ms / 1000)
            budget.left_ms -= retry_ms
            retry_ms = min(2 * retry_ms, _MAX_RETRY_MS)


def _unlink_durably(vfs: Vfs, directory: str, path: str) -> None:
    vfs.unlink_if_exists(path)
    vfs.sync_dir(directory)
