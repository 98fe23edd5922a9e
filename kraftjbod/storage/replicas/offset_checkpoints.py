"""LOOP. ``OffsetCheckpoints``: the checkpoint files of log directories with offsets of replicas.

* Each directory has three: recovery points, log start offsets and high watermarks. Each file is
  replaced as a whole.
* An offset in a file may be lower than the actual one, or missing: then more is scanned. It must
  never be higher.
* A file with unchanged content is not rewritten, so an idle broker writes no checkpoints.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from kraftjbod.core.errors import OperatingError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.telemetry import get_logger
from kraftjbod.storage.checkpoints import CorruptCheckpointError, format_offsets, parse_offsets
from kraftjbod.storage.dir_names import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
)
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.log.log_view import LogView
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.replicas.replica_registry import ReplicaRegistry


class DirOffsets(NamedTuple):
    """Contents of the three checkpoint files of a directory; empty for a missing or damaged
    file.
    """

    recovery_points: dict[TopicPartition, int]
    log_starts: dict[TopicPartition, int]
    high_watermarks: dict[TopicPartition, int]


class OffsetCheckpoints:
    """Writes the recovery points, log start offsets and high watermarks of replicas to the three
    checkpoint files of each log directory. All methods run on the event loop.
    """

    def __init__(self, registry: ReplicaRegistry) -> None:
        self._registry = registry
        #: Replicas that the files of each directory name, or may name.
        self._named: defaultdict[LogDir, set[TopicPartition]] = defaultdict(set)
        #: Log start offsets of copies that are about to become replicas of a directory.
        self._announced: defaultdict[LogDir, dict[TopicPartition, int]] = defaultdict(dict)
        #: Content of each file. Missing while a file is being written, or after a failed write.
        self._written: dict[tuple[LogDir, str], Mapping[TopicPartition, int]] = {}
        #: Number of the latest write of each file.
        self._writes: Counter[tuple[LogDir, str]] = Counter()
        #: Held during a write of log start offsets that callers wait for.
        self._keeping: defaultdict[LogDir, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def write_high_watermarks(
        self,
        high_watermarks: Mapping[TopicPartition, int],
        is_gone: Callable[[TopicPartition], bool],
    ) -> None:
        """Write the high watermarks of each directory; skip directories that are or go offline, or
        refuse the write.

        :param is_gone: returns whether the entry of a partition without a log here may be removed.
            Such an entry must be removed before a new topic gets the name.
        """
        by_dir: defaultdict[LogDir, dict[TopicPartition, int]] = defaultdict(dict)
        for tp, high_watermark in high_watermarks.items():
            if (handle := self._registry.handles.get(tp)) is not None:
                by_dir[handle.log_dir][tp] = high_watermark
        await each_online(
            self._write(log_dir, HIGH_WATERMARK_CHECKPOINT, offsets)
            for log_dir, offsets in by_dir.items()
        )
        await each_online(
            self._forget(log_dir, gone)
            for log_dir, named in list(self._named.items())
            if log_dir.is_online and (gone := self._unheld(log_dir, named, is_gone))
        )

    def _unheld(
        self,
        log_dir: LogDir,
        named: Iterable[TopicPartition],
        is_gone: Callable[[TopicPartition], bool],
    ) -> set[TopicPartition]:
        here = {handle.topic_partition for handle in self._registry.every_handle_in(log_dir)}
        return {tp for tp in named if tp not in here and is_gone(tp)}

    async def write_recovery_points(self, log_dir: LogDir) -> None:
        """Write the recovery points and the log start offsets of a directory, durably.

        :raises KafkaStorageError: the directory is or goes offline.
        :raises OverloadedError: the directory is full or stalled, or its queue is full.
        """
        here = self._registry.every_handle_in(log_dir)
        for handle in here:
            handle.checkpointed_recovery_point = handle.recovery_point
        await self._write(log_dir, RECOVERY_POINT_CHECKPOINT, _points(here))
        await self._write_log_starts(log_dir)

    async def keep_log_start(self, handle: LogHandle) -> None:
        """Make the log start of ``handle`` durable: see :meth:`LogHandle.keep_log_start`. Callers
        that wait share the next write.
        """
        start = handle.log_start_offset
        async with self._keeping[handle.log_dir]:
            if handle.checkpointed_log_start < start:
                await self._write_log_starts(handle.log_dir)

    async def _write_log_starts(self, log_dir: LogDir) -> None:
        """Write the log start offsets of a directory's replicas and announced copies.

        Kafka's file omits offsets that equal the base of the first segment. This file has them, for
        two reasons:

        * Until the directory is synced, a removed segment may reappear after a crash.
        * After a clean stop, an entry of 0 lets the loader detect that segment 0 is missing.
        """
        here = self._registry.every_handle_in(log_dir)
        starts = {handle: handle.claimable_log_start for handle in here}
        said = {handle.topic_partition: start for handle, start in starts.items()}
        said |= self._announced[log_dir]
        await self._write(log_dir, LOG_START_CHECKPOINT, said)
        for handle, start in starts.items():
            handle.checkpointed_log_start = start

    def found(self, log_dir: LogDir, offsets: DirOffsets) -> None:
        """Record which replicas the checkpoint files named when the directory was loaded."""
        for named in offsets:
            self._named[log_dir].update(named)

    def remembers(self, tp: TopicPartition) -> bool:
        """Return whether a checkpoint file of an online directory names the partition.

        The log need not exist any more. A new log is named within seconds
        (``write_high_watermarks``).
        """
        return any(tp in named for log_dir, named in self._named.items() if log_dir.is_online)

    async def forget_earlier(self, log_dir: LogDir, tp: TopicPartition) -> None:
        """Remove the entries of an earlier replica of that name, if there are any, before a new one
        is created.

        After a crash, a start would otherwise use the old offsets for the new replica and not check
        its bytes. Errors are those of :meth:`write_recovery_points`.
        """
        if tp in self._named[log_dir]:
            await self._forget(log_dir, {tp})

    async def _forget(self, log_dir: LogDir, gone: AbstractSet[TopicPartition]) -> None:
        """Rewrite the files of a directory with its present replicas, without ``gone``."""
        here = self._registry.every_handle_in(log_dir)
        watermarks = {handle.topic_partition: handle.high_watermark for handle in here}
        await self._write(log_dir, HIGH_WATERMARK_CHECKPOINT, watermarks)
        await self.write_recovery_points(log_dir)
        now = self._registry.every_handle_in(log_dir)
        self._named[log_dir] -= gone - {handle.topic_partition for handle in (*here, *now)}

    async def announce(
        self, log_dir: LogDir, tp: TopicPartition, view: LogView, high_watermark: int
    ) -> None:
        """Write entries for a durable copy that is about to become a replica of ``log_dir``.

        The entries replace those of an earlier replica of the same partition. Until
        :meth:`arrived`, the log start offset of the copy stays in its file, even if the file is
        rewritten.

        Errors are those of :meth:`write_recovery_points`.

        :param view: state of the copied log.
        """
        here = self._registry.every_handle_in(log_dir)
        points = _points(here) | {tp: view.log_end_offset}
        watermarks = {handle.topic_partition: handle.high_watermark for handle in here}
        for handle in here:
            handle.checkpointed_recovery_point = handle.recovery_point
        await self._write(log_dir, RECOVERY_POINT_CHECKPOINT, points)
        self._announced[log_dir][tp] = view.log_start_offset
        await self._write_log_starts(log_dir)
        await self._write(log_dir, HIGH_WATERMARK_CHECKPOINT, watermarks | {tp: high_watermark})

    def arrived(self, log_dir: LogDir, tp: TopicPartition) -> None:
        """End an announcement of :meth:`announce`: the copy is a replica now, or the swap failed.
        No file is written.
        """
        self._announced[log_dir].pop(tp, None)

    async def _write(
        self, log_dir: LogDir, name: str, offsets: Mapping[TopicPartition, int]
    ) -> None:
        file = log_dir, name
        if self._written.get(file) == offsets:
            return
        self._written.pop(file, None)
        self._writes[file] += 1
        number = self._writes[file]
        self._named[log_dir].update(offsets)
        path = f"{log_dir.path}/{name}"
        data = format_offsets(offsets)
        await log_dir.replace_file(path, data)
        if self._writes[file] == number:
            self._written[file] = offsets


async def read_offsets(log_dir: LogDir) -> DirOffsets:
    """Return the contents of the three checkpoint files of a directory.

    :raises KafkaStorageError: the directory is or goes offline.
    :raises OverloadedError: its queue is full, or no descriptor is free.
    """
    return DirOffsets(
        await read_offset_file(log_dir, RECOVERY_POINT_CHECKPOINT),
        await read_offset_file(log_dir, LOG_START_CHECKPOINT),
        await read_offset_file(log_dir, HIGH_WATERMARK_CHECKPOINT),
    )


async def each_online(work: Iterable[Awaitable[None]]) -> None:
    """Run all ``work`` concurrently, one piece per directory. Ignore OperatingErrors, because the
    directories judged them; another error is raised when all pieces have ended.
    """
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, OperatingError):
            raise outcome


def _points(handles: Iterable[LogHandle]) -> dict[TopicPartition, int]:
    return {handle.topic_partition: handle.recovery_point for handle in handles}


async def read_offset_file(log_dir: LogDir, name: str) -> dict[TopicPartition, int]:
    """Return the offsets in the file ``name`` of ``log_dir``; empty if it is missing or damaged.
    Damage is logged.

    :raises KafkaStorageError: the directory is or goes offline.
    :raises OverloadedError: its queue is full, or no descriptor is free.
    """
    path = f"{log_dir.path}/{name}"
    text = await log_dir.read_text(OpKind.LOAD, path)
    if text is None:
        return {}
    try:
        return parse_offsets(text, path)
    except CorruptCheckpointError as e:
        # The content can be derived again, only more slowly.
        get_logger().warning("checkpoint_unreadable", path=path, reason=str(e))
        return {}
