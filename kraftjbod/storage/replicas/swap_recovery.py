"""LOOP. ``SwapRecovery``: repairs moves that a stop, a crash or a failed swap interrupted.

Once all directories are loaded, one rule applies per case:

* A current and a future copy: the move continues, from the durable bytes that agree with the log.
* No current copy, but ``-delete`` and ``-future`` with the same move id: a crash happened between
  the two renames of a swap. If the future copy holds everything that the ``-delete`` copy holds, it
  becomes the replica. Otherwise the ``-delete`` copy gets its name back, and the move continues. A
  shorter copy never replaces a longer one.
* Two current copies, one of them created by a move: the swap was undone while the other disk
  failed. The longer one stays. If both are equal, the older replica stays.
* Only a future copy: it stays, and the caller decides by the metadata.
* A ``-delete`` copy of a partition without a current one: it is an :class:`Orphan`, and stays until
  the caller restores or discards it, by the metadata.
* Any other ``-delete`` copy is removed.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple
from weakref import WeakValueDictionary

from kraftjbod.core.errors import (
    KafkaStorageError,
    LogDirImpairedError,
    OperatingError,
    OverloadedError,
    UnknownTopicOrPartitionError,
)
from kraftjbod.core.ids import TopicId, TopicIdPartition, TopicPartition
from kraftjbod.core.telemetry import get_logger
from kraftjbod.storage.checkpoints import CorruptCheckpointError
from kraftjbod.storage.dir_names import (
    FUTURE_CHECKPOINT,
    PARTITION_METADATA,
    ReplicaDir,
    ReplicaDirKind,
)
from kraftjbod.storage.log.leader_epochs import EpochEntries
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.moves.future_copy import agreed_before
from kraftjbod.storage.moves.future_replica import FutureReplica
from kraftjbod.storage.replicas.dir_loading import DirLoading, LackBudget, LoadedDir
from kraftjbod.storage.replicas.offset_checkpoints import DirOffsets
from kraftjbod.storage.replicas.replica_registry import ReplicaRegistry
from kraftjbod.storage.replicas.replica_swap import PurgeLater, ReplicaSwap, TryAgain
from kraftjbod.storage.replicas.stray_mark import examine_stray
from kraftjbod.storage.vfs import Vfs


class Orphan(NamedTuple):
    """A ``-delete`` copy of a partition that had no current copy when its directory was loaded.

    ``last_epoch`` is the newest leader epoch in its ``leader-epoch-checkpoint``, or None.
    """

    topic_partition: TopicPartition
    topic_id: TopicId
    log_dir: LogDir
    directory: str
    last_epoch: int | None
    size_bytes: int

    @property
    def key(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, self.topic_partition.partition)


class _Bounds(NamedTuple):
    """Offsets and leader epochs of an orphan's log."""

    log_start_offset: int
    log_end_offset: int
    epochs: EpochEntries


class SwapRecovery:
    """Repairs moves after directories were loaded, at the start and later. Methods run on the event
    loop.

    :param resolve: serves one of several current copies (:meth:`LogManager.resolve`).
    """

    def __init__(
        self,
        *,
        registry: ReplicaRegistry,
        swap: ReplicaSwap,
        loading: DirLoading,
        purge_later: PurgeLater,
        try_again: TryAgain,
        resolve: Callable[[TopicPartition, LogHandle], Awaitable[None]],
    ) -> None:
        self._registry = registry
        self._swap = swap
        self._loading = loading
        self._purge_later = purge_later
        self._try_again = try_again
        self._resolve = resolve
        self._log = get_logger()
        self._offsets: dict[LogDir, DirOffsets] = {}
        #: By topic id and partition, and then by directory.
        self._orphans: defaultdict[TopicIdPartition, dict[str, Orphan]] = defaultdict(dict)
        #: Orphans whose logs were read, by directory.
        self._bounds: dict[str, _Bounds] = {}
        #: An orphan is read, restored or discarded by one caller at a time.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def orphans(self) -> list[Orphan]:
        return [orphan for copies in self._orphans.values() for orphan in copies.values()]

    def orphans_of(self, key: TopicIdPartition) -> list[Orphan]:
        """Return the orphans of this partition with this topic id. O(result)."""
        return list(self._orphans[key].values()) if key in self._orphans else []

    def _is_orphan(self, orphan: Orphan) -> bool:
        return self._orphans.get(orphan.key, {}).get(orphan.directory) == orphan

    def _put_orphan(self, orphan: Orphan) -> None:
        self._orphans[orphan.key][orphan.directory] = orphan

    def _take_orphan(self, orphan: Orphan) -> bool:
        """Remove the orphan from the list. Return whether it was there."""
        if not self._is_orphan(orphan):
            return False
        copies = self._orphans[orphan.key]
        del copies[orphan.directory]
        if not copies:
            del self._orphans[orphan.key]
        self._bounds.pop(orphan.directory, None)
        return True

    async def settle(self, loaded: Sequence[LoadedDir]) -> None:
        """Continue or undo the interrupted moves of directories that were just loaded, remove
        ``-delete`` copies that are not needed, and list the others as orphans.

        A removal that is refused is retried later. A directory that fails meanwhile goes OFFLINE.
        """
        self._offsets |= {found.log_dir: found.offsets for found in loaded}
        await self._swap.ended(_replicas_in(loaded))
        await self._settle_duplicates([h for found in loaded for h in found.moved_here])
        futures: defaultdict[TopicPartition, list[FutureReplica]] = defaultdict(list)
        for found in loaded:
            for future in found.futures:
                futures[future.topic_partition].append(future)
            for broken in found.broken_futures:
                await self._remove_broken(found.log_dir, broken)
        for future in self._waiting_for(loaded):
            futures[future.topic_partition].append(future)
        for tp, copies in futures.items():
            best = await self._best_of(copies)
            replaced = self._replaced_by(best, loaded)
            if replaced is not None and not self._registry.has_current(tp):
                await self._repair_swap(best, *replaced)
            await self._resume(best)
        budget = LackBudget()
        for found in loaded:
            for doomed in found.deleted:
                await self._remove_or_keep_orphan(found.log_dir, doomed, budget)

    def _waiting_for(self, loaded: Sequence[LoadedDir]) -> list[FutureReplica]:
        """Return the future copies in the registry whose current or ``-delete`` copy was just
        loaded.
        """
        come = {handle.topic_partition for found in loaded for handle in found.handles}
        return [
            future
            for tp, future in self._registry.futures.items()
            if tp in come or self._replaced_by(future, loaded) is not None
        ]

    async def _settle_duplicates(self, moved_here: Sequence[LogHandle]) -> None:
        for tp in list(self._registry.held_aside):
            # A directory may have failed during the previous step.
            copies = self._registry.held_aside.get(tp, ())
            if (winner := _copy_that_stays(copies, moved_here)) is not None:
                await self._resolve(tp, winner)
                where = winner.log_dir.path
                self._log.warning("undone_swap_settled", partition=str(tp), log_dir=where)
        for handle in moved_here:
            if self._registry.handles.get(handle.topic_partition) is handle:
                await self._forget_move(handle)

    async def restore(self, orphan: Orphan) -> LogHandle:
        """Give a ``-delete`` copy its name back and serve it as the replica. There must be no
        current copy.

        Errors are those of :meth:`LogManager.restore_deleted`.
        """
        tp, log_dir = orphan.topic_partition, orphan.log_dir
        assert not self._registry.has_current(tp), tp
        async with self._lock_of(orphan):
            # No other caller may restore or remove it meanwhile.
            if not self._take_orphan(orphan):
                raise UnknownTopicOrPartitionError(f"{orphan.directory} is no orphan any more")
            try:
                handle, *_ = await self._loading.open_replica(
                    log_dir, orphan.directory, tp, self._offsets[log_dir], was_clean=False
                )
                await handle.come_back(f"{log_dir.path}/{tp}")
            except CorruptCheckpointError as e:
                # Its files stay until the next start, and it is not tried again.
                raise OperatingError(f"{orphan.directory} is no replica any more: {e}") from e
            except BaseException:
                if log_dir.is_online:
                    self._put_orphan(orphan)
                raise
            self._registry.put(handle)
            return handle

    async def is_covered(self, orphan: Orphan) -> bool:
        """Return whether the served copy has all records of the orphan, except those before its
        own log start. False if no copy is served.

        The first call for an orphan recovers its log as after a crash. Cost: a scan of the log from
        its recovery point, in steps.

        Errors are those of :meth:`LogManager.restore_deleted`.
        """
        async with self._lock_of(orphan):
            if not self._is_orphan(orphan):
                return False
            bounds = self._bounds.get(orphan.directory)
            if bounds is None:
                bounds = await self._read_bounds(orphan)
                if not self._is_orphan(orphan):
                    return False
                self._bounds[orphan.directory] = bounds
        served = self._registry.handles.get(orphan.topic_partition)
        if served is None or served.topic_id != orphan.topic_id:
            return False
        view, end = served.view, bounds.log_end_offset
        start = max(bounds.log_start_offset, view.log_start_offset)
        if start >= end:
            return True
        parted = agreed_before(bounds.epochs, view.epochs, start)
        return view.log_end_offset >= end and (parted is None or parted >= end)

    async def _read_bounds(self, orphan: Orphan) -> _Bounds:
        log_dir = orphan.log_dir
        try:
            handle, *_ = await self._loading.open_replica(
                log_dir,
                orphan.directory,
                orphan.topic_partition,
                self._offsets[log_dir],
                was_clean=False,
            )
        except CorruptCheckpointError as e:
            raise OperatingError(f"{orphan.directory} is no replica any more: {e}") from e
        view = handle.view
        await handle.close_files()
        return _Bounds(view.log_start_offset, view.log_end_offset, view.epochs)

    def _lock_of(self, orphan: Orphan) -> asyncio.Lock:
        lock = self._locks.get(orphan.directory)
        if lock is None:
            lock = self._locks[orphan.directory] = asyncio.Lock()
        return lock

    async def discard(self, orphan: Orphan) -> None:
        """Rename and remove a ``-delete`` copy that is not needed. No effect if it is no orphan any
        more.
        """
        async with self._lock_of(orphan):
            if not self._take_orphan(orphan):
                return  # Its directory failed, or another caller was faster.
            await self._rename_and_remove(orphan.log_dir, orphan.directory, orphan.topic_partition)

    async def release(self, orphan: Orphan, take: Callable[[Orphan], Awaitable[None]]) -> None:
        """Pass a ``-delete`` copy to ``take``, which renames it. No effect if it is no orphan any
        more. It stays an orphan if ``take`` fails.
        """
        async with self._lock_of(orphan):
            if not self._take_orphan(orphan):
                return
            try:
                await take(orphan)
            except BaseException:
                if orphan.log_dir.is_online:
                    self._put_orphan(orphan)
                raise

    def forget_all_in(self, log_dir: LogDir) -> None:
        """Forget the orphans of a directory that is OFFLINE."""
        for orphan in self.orphans():
            if orphan.log_dir is log_dir:
                self._take_orphan(orphan)

    # -- futures ----------------------------------------------------------------------------

    async def _best_of(self, copies: list[FutureReplica]) -> FutureReplica:
        """Return the longest of several future copies of one replica, and remove the others."""
        copies.sort(key=lambda copy: (copy.size_bytes, copy.log_dir.path))
        best = copies.pop()
        for copy in copies:
            self._log.warning(
                "future_copy_dropped",
                partition=str(copy.topic_partition),
                log_dir=copy.log_dir.path,
                reason=f"the copy in {best.log_dir.path} is further",
            )
            self._unregister(copy)
            await self._swap.remove_unneeded(copy)
        return best

    async def _resume(self, future: FutureReplica) -> None:
        """Register a future copy, after comparing it with the current copy if there is one.

        A copy that cannot be used is removed.
        """
        tp = future.topic_partition
        if not future.log_dir.is_online or future.is_over:
            return
        current = self._registry.handles.get(tp)
        reason = None
        if current is not None and current.log_dir is future.log_dir:
            reason = "the replica is in the same directory"
        elif current is not None and current.topic_id != future.topic_id:
            reason = "it belongs to another topic of that name"
        if reason is not None:
            where = future.log_dir.path
            self._log.warning(
                "future_copy_of_no_use", partition=str(tp), log_dir=where, reason=reason
            )
            self._unregister(future)
            await self._swap.remove_unneeded(future)
            return
        try:
            if current is not None:
                await future.resume(current.view)
        except KafkaStorageError:
            return  # The event log_dir_offline was logged; the copy is forgotten.
        except LogDirImpairedError as e:
            # It must be compared before the replica is appended to, and the disk is full.
            where = future.log_dir.path
            self._log.warning(
                "future_copy_not_resumed", partition=str(tp), log_dir=where, reason=e.message
            )
            self._unregister(future)
            await self._swap.remove_unneeded(future)
            return
        except OverloadedError as e:
            # An abandoned step hangs in its thread. The next step of the move resumes the copy.
            self._log.info("future_copy_resumed_later", partition=str(tp), reason=e.message)
        if future.is_over:
            return  # The copy was removed during the comparison.
        if self._registry.futures.setdefault(tp, future) is not future:
            # Another move was requested meanwhile.
            await self._swap.remove_unneeded(future)

    def _unregister(self, future: FutureReplica) -> None:
        if self._registry.futures.get(future.topic_partition) is future:
            del self._registry.futures[future.topic_partition]

    async def _remove_broken(self, log_dir: LogDir, broken: ReplicaDir) -> None:
        """Remove a future copy that cannot be read.

        The move starts over if it is still requested.
        """
        assert broken.topic_partition is not None, broken
        path = self._registry.doomed_path(log_dir, broken.topic_partition, ReplicaDirKind.DELETE)
        source, vfs = f"{log_dir.path}/{broken.name}", log_dir.vfs

        def rename() -> None:
            vfs.unlink_if_exists(f"{source}/{PARTITION_METADATA}")
            _rename_if_exists(vfs, source, path)

        await self._rename_and_purge(log_dir, rename, path, broken.topic_partition)

    # -- broken swaps -----------------------------------------------------------------------

    def _replaced_by(
        self, future: FutureReplica, loaded: Sequence[LoadedDir]
    ) -> tuple[LoadedDir, ReplicaDir] | None:
        """Return the ``-delete`` copy with the move id of ``future``, and its directory; None
        without one.
        """
        for found in loaded:
            for doomed in found.deleted:
                is_same = doomed.topic_partition == future.topic_partition
                if is_same and doomed.unique == future.move_id:
                    return found, doomed
        return None

    async def _repair_swap(
        self, future: FutureReplica, found: LoadedDir, doomed: ReplicaDir
    ) -> None:
        """Make the future copy or the ``-delete`` copy the replica, after a crash between the two
        renames.

        The future copy wins if it holds everything that the other copy holds.
        """
        tp, log_dir = future.topic_partition, found.log_dir
        try:
            replaced, *_ = await self._loading.open_replica(
                log_dir, f"{log_dir.path}/{doomed.name}", tp, found.offsets, was_clean=False
            )
            won = future.replaces(replaced.view) and await self._promoted(future)
            if won:
                await replaced.close_files()
            else:
                await replaced.come_back(f"{log_dir.path}/{tp}")
                found.deleted.remove(doomed)
                self._registry.put(replaced)
        except (CorruptCheckpointError, OperatingError) as e:
            self._log.error("swap_not_mended", partition=str(tp), reason=str(e))
            return
        winner = future.log_dir if won else log_dir
        self._log.warning("swap_mended", partition=str(tp), log_dir=winner.path)

    async def _promoted(self, future: FutureReplica) -> bool:
        tp = future.topic_partition
        high_watermark = self._offsets[future.log_dir].high_watermarks.get(tp, 0)
        try:
            await self._swap.open_as_current(future, high_watermark=high_watermark, is_whole=True)
        except OperatingError as e:
            self._log.warning("future_copy_not_opened", partition=str(tp), reason=e.message)
            return False
        return True

    async def _forget_move(self, handle: LogHandle) -> None:
        """Remove ``future-copy-checkpoint`` from a replica that was loaded for the first time after
        a move.
        """
        path, vfs = f"{handle.directory}/{FUTURE_CHECKPOINT}", handle.log_dir.vfs
        try:
            await handle.log_dir.run_operation(OpKind.DELETE, lambda: vfs.unlink_if_exists(path))
        except OperatingError as e:
            self._log.info("move_not_forgotten", path=path, reason=e.message)

    # -- removals ---------------------------------------------------------------------------

    async def _remove_or_keep_orphan(
        self, log_dir: LogDir, doomed: ReplicaDir, budget: LackBudget
    ) -> None:
        """Remove a ``-delete`` copy, or list it as an orphan. If it cannot be read within
        ``budget``, it is listed when the descriptors suffice.
        """
        directory, tp = f"{log_dir.path}/{doomed.name}", doomed.topic_partition
        if tp is not None and not self._registry.has_current(tp):
            try:
                orphan = await self._examined(log_dir, directory, tp, budget)
            except (OperatingError, CorruptCheckpointError) as e:
                self._note_unknown(directory, e)
                if isinstance(e, OverloadedError):
                    self._try_again(log_dir, partial(self._list_late, log_dir, directory, tp))
                if isinstance(e, OperatingError):
                    return  # It may be the only copy.
            else:
                self._put_orphan(orphan)
                return
        await self._rename_and_remove(log_dir, directory, tp)

    async def _list_late(self, log_dir: LogDir, directory: str, tp: TopicPartition) -> None:
        """List a ``-delete`` copy as an orphan. Its files stay if they cannot be read, or if the
        partition has a current copy meanwhile: the metadata decides about it.

        :raises OverloadedError: descriptors or memory are lacking, or the directory is impaired.
        """
        budget = LackBudget()
        budget.left_ms = 0
        try:
            self._put_orphan(await self._examined(log_dir, directory, tp, budget))
        except CorruptCheckpointError as e:
            self._note_unknown(directory, e)

    def _note_unknown(self, directory: str, error: Exception) -> None:
        self._log.info("deleted_replica_not_known", path=directory, reason=str(error))

    async def _rename_and_remove(
        self, log_dir: LogDir, directory: str, tp: TopicPartition | None
    ) -> None:
        """Remove a copy, under a new name that does not look like half of a swap.

        The other half may be in an offline directory. If that move continued later, it would rename
        the present replica to the old name, and the pending removal would delete that replica.
        """
        if tp is None:
            self._purge_later(log_dir, directory, None)
            return
        path = self._registry.doomed_path(log_dir, tp, ReplicaDirKind.DELETE)
        vfs = log_dir.vfs
        await self._rename_and_purge(
            log_dir, lambda: _rename_if_exists(vfs, directory, path), path, tp
        )

    async def _rename_and_purge(
        self, log_dir: LogDir, rename: Callable[[], None], path: str, tp: TopicPartition
    ) -> None:
        async def remove() -> None:
            await log_dir.run_operation(OpKind.DELETE, rename, replica=tp)
            self._purge_later(log_dir, path, None)

        try:
            await remove()
        except OverloadedError:
            self._try_again(log_dir, remove)
        except OperatingError as e:
            self._log.info("leftover_copy_not_removed", path=path, reason=e.message)

    async def _examined(
        self, log_dir: LogDir, directory: str, tp: TopicPartition, budget: LackBudget
    ) -> Orphan:
        """Return the ``-delete`` copy in ``directory`` as an orphan.

        :raises OperatingError: as :meth:`DirLoading.load_step`.
        :raises CorruptCheckpointError: its topic id cannot be read.
        """
        vfs = log_dir.vfs
        found = await self._loading.load_step(
            # An operator may have removed the directory since it was listed.
            log_dir,
            lambda: examine_stray(vfs, directory) if vfs.is_dir(directory) else None,
            budget=budget,
        )
        if found is None or found.topic_id is None:
            raise CorruptCheckpointError(f"{directory}/{PARTITION_METADATA} has no topic id")
        return Orphan(tp, found.topic_id, log_dir, directory, found.last_epoch, found.size_bytes)


def _rename_if_exists(vfs: Vfs, source: str, target: str) -> None:
    """Rename the directory ``source``. An operator may have removed it since it was listed."""
    if vfs.exists(source):
        vfs.rename(source, target)


def _replicas_in(loaded: Sequence[LoadedDir]) -> set[TopicPartition]:
    """Return the partitions with a current, future or deleted copy in the loaded directories.

    Strays and unreadable future copies do not count.
    """
    come: set[TopicPartition] = set()
    for found in loaded:
        come.update(handle.topic_partition for handle in found.handles)
        come.update(future.topic_partition for future in found.futures)
        doomed = (directory.topic_partition for directory in found.deleted)
        come.update(tp for tp in doomed if tp is not None)
    return come


def _copy_that_stays(
    copies: Sequence[LogHandle], moved_here: Sequence[LogHandle]
) -> LogHandle | None:
    """Return the one of two copies that stays; None if the caller has to decide.

    :param moved_here: copies that were created by a move.
    """
    stayed = [copy for copy in copies if copy not in moved_here]
    moved = [copy for copy in copies if copy in moved_here]
    if len(stayed) != 1 or len(moved) != 1:
        return None
    a, b = stayed[0].view, moved[0].view
    parted = agreed_before(a.epochs, b.epochs, max(a.log_start_offset, b.log_start_offset))
    if parted is not None and parted < min(a.log_end_offset, b.log_end_offset):
        return stayed[0]
    return moved[0] if b.log_end_offset > a.log_end_offset else stayed[0]
