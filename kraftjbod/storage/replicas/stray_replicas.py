"""LOOP. ``StrayReplicas``: copies in this node's directories that are kept and not served.

* A copy that the metadata does not contain is marked with the reason, renamed, and listed here.
* It is restored or removed only on request of a caller that knows the metadata.
* The strays of an OFFLINE directory are forgotten, and found again when it is reattached.
* On a full disk the mark is written later, when there is space. Until then the stray's name has the
  id of the metadata log, so that a start after a crash can write the mark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeVar

from kraftjbod.core.errors import LogDirImpairedError, OperatingError, OverloadedError
from kraftjbod.core.ids import TopicIdPartition, TopicPartition, Uuid
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.telemetry import get_logger
from kraftjbod.storage.checkpoints import CorruptCheckpointError
from kraftjbod.storage.dir_names import STRAY_MARK, ReplicaDirKind, parse_replica_dir
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.log_dirs.stepwise_removal import remove_replica_dir
from kraftjbod.storage.replicas.dir_loading import DirLoading, Stray
from kraftjbod.storage.replicas.offset_checkpoints import DirOffsets
from kraftjbod.storage.replicas.replica_registry import ReplicaRegistry
from kraftjbod.storage.replicas.stray_mark import (
    StrayMark,
    StrayReason,
    examine_stray,
    write_stray_mark,
)

T = TypeVar("T")
_ASK_AGAIN_S: Final = 0.1


class StrayReplicas:
    """Lists, marks, restores and removes strays: copies in the node's directories that are kept and
    not served. All methods run on the event loop.
    """

    def __init__(self, *, registry: ReplicaRegistry, loading: DirLoading, clock: Clock) -> None:
        self._registry = registry
        self._loading = loading
        self._clock = clock
        self._strays: list[Stray] = []
        #: Marks that are not written yet, by the strays' directories.
        self._owed_marks: dict[str, StrayMark] = {}
        self._log = get_logger(component="stray_replicas")

    def all(self) -> Sequence[Stray]:
        return tuple(self._strays)

    def strays_of(self, key: TopicIdPartition) -> list[Stray]:
        """Return the strays of this partition with this topic id."""
        return [
            stray
            for stray in self._strays
            if stray.topic_id == key.topic_id
            and stray.topic_partition is not None
            and stray.topic_partition.partition == key.partition
        ]

    def unreadable(self, topic_partition: TopicPartition) -> list[Stray]:
        """Return the strays with this topic and partition in their name, but without a readable
        topic id.
        """
        return [
            stray
            for stray in self._strays
            if stray.topic_id is None and stray.topic_partition == topic_partition
        ]

    def found(self, strays: Iterable[Stray]) -> None:
        self._strays += strays

    def forget_all_in(self, log_dir: LogDir) -> None:
        for stray in self._strays:
            if stray.log_dir is log_dir:
                self._owed_marks.pop(stray.directory, None)
        self._strays = [stray for stray in self._strays if stray.log_dir is not log_dir]

    async def set_aside(
        self, handle: LogHandle, reason: StrayReason, metadata_log_id: Uuid | None
    ) -> None:
        """Mark a replica as stray, rename its directory to ``-stray``, and end requests to its
        handle.

        After the rename, the call waits for a busy or stalled directory.

        :raises OverloadedError: the directory's queue is full, or it is stalled; the replica is
            unchanged.
        :raises KafkaStorageError: its directory is offline or goes offline meanwhile.
        """
        log_dir, directory = handle.log_dir, handle.directory
        mark = StrayMark(
            reason=reason,
            set_aside_ms=self._clock.wall_ms(),
            metadata_log_id=metadata_log_id,
            log_start_offset=handle.log_start_offset,
            high_watermark=handle.high_watermark,
        )
        is_marked = True
        try:
            await log_dir.run_operation(
                OpKind.CHECKPOINT, lambda: write_stray_mark(log_dir.vfs, directory, mark)
            )
        except LogDirImpairedError as e:
            is_marked = False
            self._log.warning("stray_not_marked", directory=directory, reason=e.message)
        tp = handle.topic_partition
        target = self._stray_path(log_dir, tp, None if is_marked else metadata_log_id)
        await handle.move_aside(target)
        # It is no replica any more, so retry until the directory responds or is offline.
        await _until_taken(handle.close_files)
        found = await _until_taken(
            lambda: log_dir.run_operation(OpKind.LOAD, lambda: examine_stray(log_dir.vfs, target))
        )
        self._strays.append(Stray.of_directory(log_dir, target, tp, found, self._clock.now_ms()))
        if not is_marked:
            self._owed_marks[target] = mark

    async def adopt(
        self, log_dir: LogDir, directory: str, tp: TopicPartition, metadata_log_id: Uuid | None
    ) -> None:
        """Rename ``directory``, a copy of ``tp`` that is not served, to ``-stray``, and list it.

        Its name has the id of the metadata log, by which :meth:`queue_lost_marks` marks it. No
        effect if an operator removed ``directory`` since it was listed.

        :raises OverloadedError: the directory is impaired or its queue is full; nothing has
            changed.
        :raises KafkaStorageError: the directory is offline or goes offline meanwhile.
        """
        target = self._stray_path(log_dir, tp, metadata_log_id)
        vfs = log_dir.vfs

        def rename() -> bool:
            if not vfs.exists(directory):
                return False
            vfs.rename(directory, target)
            return True

        if not await log_dir.run_operation(OpKind.RENAME, rename, replica=tp):
            return
        found = await _until_taken(
            lambda: log_dir.run_operation(OpKind.LOAD, lambda: examine_stray(vfs, target))
        )
        self._strays.append(Stray.of_directory(log_dir, target, tp, found, self._clock.now_ms()))

    def _stray_path(self, log_dir: LogDir, tp: TopicPartition, named_by: Uuid | None) -> str:
        """Return a path for the stray.

        ``named_by`` becomes the id in the name if that path is free and not shortened; else the id
        is random.
        """
        if named_by is not None:
            path = self._registry.doomed_path(log_dir, tp, ReplicaDirKind.STRAY, named_by)
            is_free = all(stray.directory != path for stray in self._strays)
            if is_free and _tp_in(path) == tp:
                return path
        return self._registry.doomed_path(log_dir, tp, ReplicaDirKind.STRAY)

    def queue_lost_marks(self, metadata_log_id: Uuid) -> None:
        """Queue a mark for each stray without one whose name has the id of this metadata log.

        The node stopped before there was space for the mark. The original reason is unknown, so the
        mark has the most cautious one, and the present time.
        """
        for stray in self._strays:
            if stray.mark is not None or stray.directory in self._owed_marks:
                continue
            if _unique_in(stray.directory) == metadata_log_id:
                self._owed_marks[stray.directory] = StrayMark(
                    reason=StrayReason.NOT_A_REPLICA,
                    set_aside_ms=self._clock.wall_ms(),
                    metadata_log_id=metadata_log_id,
                )

    async def write_queued_marks(self) -> None:
        """Write queued marks where there is space.

        A stray without a mark would never be removed.
        """
        for stray in self.all():
            mark = self._owed_marks.get(stray.directory)
            if mark is None:
                continue
            write = partial(write_stray_mark, stray.log_dir.vfs, stray.directory, mark)
            try:
                await stray.log_dir.run_operation(OpKind.CHECKPOINT, write)
            except OperatingError:
                continue  # The directory is still full, or offline.
            self._owed_marks.pop(stray.directory, None)
            if stray in self._strays:
                self._strays[self._strays.index(stray)] = stray._replace(mark=mark)

    async def take_back(self, stray: Stray) -> LogHandle:
        """Restore a stray as the replica and return its handle. No current replica may exist.

        The log is recovered as after a crash.

        :raises KafkaStorageError: its directory is offline or goes offline meanwhile.
        :raises OverloadedError: its directory is impaired or busy. The replica may be restored
            already.
        :raises OperatingError: its topic id cannot be read any more.
        """
        tp, log_dir = stray.topic_partition, stray.log_dir
        assert tp is not None, stray
        assert not self._registry.has_current(tp), tp
        offsets = DirOffsets({}, {}, {})
        if stray.mark is not None:
            offsets.log_starts[tp] = stray.mark.log_start_offset
            offsets.high_watermarks[tp] = stray.mark.high_watermark
        try:
            handle, *_ = await self._loading.open_replica(
                log_dir, stray.directory, tp, offsets, was_clean=False
            )
        except CorruptCheckpointError as e:
            self._forget(stray)
            self._strays.append(stray._replace(topic_id=None))
            raise OperatingError(f"{stray.directory} is no replica any more: {e}") from e
        await handle.come_back(f"{log_dir.path}/{tp}")
        self._forget(stray)
        self._registry.put(handle)
        path = f"{handle.directory}/{STRAY_MARK}"
        await log_dir.run_operation(
            OpKind.DELETE, lambda: log_dir.vfs.unlink_if_exists(path), replica=tp
        )
        return handle

    async def remove(self, stray: Stray) -> None:
        """Remove the stray's files, one by one. After the first one the stray cannot be restored.

        :raises OverloadedError: the directory is stalled, or its queue is full; call again.
        :raises KafkaStorageError: its directory is offline or goes offline meanwhile.
        """
        log_dir = stray.log_dir
        log_dir.require_allowed(OpKind.DELETE)
        self._forget(stray)
        try:
            await remove_replica_dir(log_dir, stray.directory)
        except BaseException:
            if log_dir.is_online:
                self._strays.append(stray)
            raise

    def _forget(self, stray: Stray) -> None:
        """Forget the stray with the directory of ``stray``; the listed object may be another one,
        or missing.
        """
        self._owed_marks.pop(stray.directory, None)
        self._strays = [one for one in self._strays if one.directory != stray.directory]


def _unique_in(directory: str) -> Uuid | None:
    named = parse_replica_dir(directory.rpartition("/")[2])
    return None if named is None else named.unique


def _tp_in(directory: str) -> TopicPartition | None:
    named = parse_replica_dir(directory.rpartition("/")[2])
    return None if named is None else named.topic_partition


async def _until_taken(step: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await step()
        except OverloadedError:
            await asyncio.sleep(_ASK_AGAIN_S)
