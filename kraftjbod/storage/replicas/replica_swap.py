"""LOOP. ``ReplicaSwap``: creates, removes and promotes future copies.

The order of a swap is KIP-113's. Each step is durable before the next one starts:

1. The copy is completed and synced, and the checkpoints of its directory name it.
2. The replica's directory becomes ``-delete``, with the id of the move in its name.
3. The ``-future`` directory, whose name has the same id, gets the replica's name.

After any failure one copy is current: both renames are undone, each when its disk permits. A crash
between 2 and 3 is repaired when the directories are loaded. The old directory is removed only after
the copy was opened and the last readers are done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Final, TypeVar

from kraftjbod.core.errors import (
    ErrorCode,
    OperatingError,
    OverloadedError,
    UnknownTopicOrPartitionError,
)
from kraftjbod.core.ids import TopicPartition, Uuid
from kraftjbod.core.loop.completion import to_its_end
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.telemetry import get_logger
from kraftjbod.storage.dir_names import ReplicaDirKind, future_dir_name
from kraftjbod.storage.log.log_handle import LogHandle, LogHost
from kraftjbod.storage.log.log_values import CarriedState
from kraftjbod.storage.log.producer_state import ProducerLimits
from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.moves.future_copy import extents_of
from kraftjbod.storage.moves.future_log import FutureLog
from kraftjbod.storage.moves.future_replica import FutureReplica
from kraftjbod.storage.replicas.dir_loading import DirLoading
from kraftjbod.storage.replicas.offset_checkpoints import DirOffsets, OffsetCheckpoints, each_online
from kraftjbod.storage.replicas.replica_registry import ReplicaRegistry

#: Most copy steps while appends wait. If they do not suffice, appends were not stopped.
_LAST_STEPS: Final = 64
#: Number and interval of tries to rename a copy back in an impaired directory: 30 s in all.
_TAKE_BACK_TRIES: Final = 300
_TAKE_BACK_PAUSE_MS: Final = 100

#: Interval of checks whether the target still responds while appends wait.
_POLL_MS: Final = 100
T = TypeVar("T")


#: ``(dir, path, handle or None)``: remove a directory after the topic's delay.
PurgeLater = Callable[[LogDir, str, LogHandle | None], None]
TryAgain = Callable[[LogDir, Callable[[], Awaitable[object]]], None]


class ReplicaSwap:
    """Creates and removes future copies, and replaces a replica by its complete future copy. All
    methods run on the event loop.

    :param checkpoints: writes the offsets of a completed copy before the swap.
    :param host: notified by the handles of promoted copies.
    :param loading: opens a copy that becomes a replica.
    :param purge_later: removes a directory after the topic's delay.
    :param try_again: repeats a removal that an impaired directory refused.
    :param purge_now: removes the directory at a path without a delay.
    :param producer_limits: limits of the producers that a promoted log remembers.
    """

    def __init__(
        self,
        *,
        registry: ReplicaRegistry,
        checkpoints: OffsetCheckpoints,
        host: LogHost,
        clock: Clock,
        loading: DirLoading,
        purge_later: PurgeLater,
        try_again: TryAgain,
        purge_now: Callable[[LogDir, str], None],
        producer_limits: ProducerLimits,
    ) -> None:
        self._registry = registry
        self._checkpoints = checkpoints
        self._host = host
        self._clock = clock
        self._loading = loading
        self._purge_later = purge_later
        self._try_again = try_again
        self._purge_now = purge_now
        self._producer_limits = producer_limits
        #: Renames of future copies that are being undone. The next step of the move waits for them.
        self._ways_back: set[asyncio.Future[bool]] = set()
        #: Running swaps.
        self._running: dict[TopicPartition, asyncio.Future[LogHandle]] = {}
        #: Copies that become replicas without a swap. The event is set when that has succeeded or
        #: failed.
        self._opening: dict[TopicPartition, asyncio.Event] = {}
        self._log = get_logger()

    # -- creation and removal ---------------------------------------------------------------

    async def create_future(
        self, tp: TopicPartition, target: LogDir, move_id: Uuid
    ) -> FutureReplica:
        """Create and register an empty future copy of the current replica of ``tp`` in ``target``.
        A directory there with the name of the replica, which is not served, becomes a stray.

        Errors are those of :meth:`LogManager.create_future`.
        """
        source = self._require_current(tp)
        future_dir_name(tp, move_id)  # Raises an error if the name is too long.
        if target is source.log_dir:
            raise OperatingError(
                f"{tp} is already in {target.path}", code=ErrorCode.INVALID_REQUEST
            )
        if tp in self._registry.futures:
            raise OperatingError(
                f"{tp} is being moved to {self._registry.futures[tp].log_dir.path} already",
                code=ErrorCode.REASSIGNMENT_IN_PROGRESS,
            )
        await self._registry.name_free(target, tp)
        stray = self._registry.doomed_path(target, tp, ReplicaDirKind.STRAY)
        vfs, root = target.vfs, target.path

        def make() -> FutureLog:
            if vfs.exists(f"{root}/{tp}"):
                # Not loaded as a replica, and in the way of the new one.
                vfs.rename(f"{root}/{tp}", stray)
            return FutureLog.create(
                vfs,
                root,
                tp,
                source.topic_id,
                move_id=move_id,
                source_directory_id=source.log_dir.directory_id,
            )

        log = await target.run_operation(OpKind.CREATE, make, replica=tp)
        if not target.is_online:
            raise target.offline_error()
        future = FutureReplica(log=log, log_dir=target, move_id=move_id)
        # Another future copy may have come with a reattached directory meanwhile. The move that was
        # requested last wins.
        former = self._registry.futures.get(tp)
        self._registry.futures[tp] = future
        if former is not None:
            await self.remove_unneeded(former)
        return future

    async def drop_future(self, tp: TopicPartition) -> None:
        """Forget the future copy of ``tp`` and remove its files, unless its directory is offline.
        No effect if there is none.

        Errors are those of :meth:`LogManager.drop_future`.
        """
        if (opening := self._opening.get(tp)) is not None:
            # Its directory is possibly being renamed to the replica's name now.
            await opening.wait()
        future = self._registry.futures.pop(tp, None)
        if future is not None and future.log_dir.is_online:
            try:
                await self.remove(future)
            except OverloadedError:
                self._registry.futures.setdefault(tp, future)
                raise

    async def remove_unneeded(self, future: FutureReplica) -> None:
        """Remove a copy, and retry later if the directory is busy or impaired.

        If the directory fails, the next start removes the copy.
        """
        try:
            await self.remove(future)
        except OverloadedError:
            self._try_again(future.log_dir, lambda: self.remove(future))
        except OperatingError as e:
            self._log.info("future_copy_not_removed", reason=e.message)

    async def remove(self, future: FutureReplica) -> None:
        """Remove a copy that is not in the registry any more. No effect if it is being removed.

        :raises OverloadedError: its directory is stalled or busy; the copy is unchanged.
        :raises KafkaStorageError: its directory is or goes offline.
        """
        if future.is_over:
            return
        path = self._registry.doomed_path(
            future.log_dir, future.topic_partition, ReplicaDirKind.DELETE
        )
        await future.discard(path)
        self._purge_now(future.log_dir, path)

    async def adopt_future(self, tp: TopicPartition) -> LogHandle:
        """Make the future copy of ``tp`` the replica, because there is no current one: see
        :meth:`LogManager.adopt_future`.
        """
        future = self._registry.futures.get(tp)
        if future is None:
            raise UnknownTopicOrPartitionError(f"there is no future copy of {tp} here")
        if self._registry.has_current(tp):
            raise OperatingError(
                f"{tp} has a current copy: its future copy is promoted, not adopted",
                code=ErrorCode.INVALID_REQUEST,
            )
        return await self.open_as_current(future, high_watermark=0, is_whole=False)

    async def open_as_current(
        self, future: FutureReplica, *, high_watermark: int, is_whole: bool
    ) -> LogHandle:
        """Make the copy the replica of a partition without a current copy, and return its handle.

        Errors are those of :meth:`LogManager.adopt_future`.

        :param high_watermark: initial high watermark, limited to the log.
        :param is_whole: whether the copy was completed, so that no scan is needed.
        """
        opening = self._opening[future.topic_partition] = asyncio.Event()
        try:
            return await self._open_as_current(future, high_watermark, is_whole=is_whole)
        finally:
            del self._opening[future.topic_partition]
            opening.set()

    async def _open_as_current(
        self, future: FutureReplica, high_watermark: int, *, is_whole: bool
    ) -> LogHandle:
        target, tp = future.log_dir, future.topic_partition
        stray = self._registry.doomed_path(target, tp, ReplicaDirKind.STRAY)
        directory = await future.leave_as_current(stray, only_claimed=is_whole)
        points = {tp: future.claimed_end_offset} if is_whole else {}
        offsets = DirOffsets(points, {tp: future.claimed_start_offset}, {tp: high_watermark})
        handle, *_ = await self._loading.open_replica(
            target, directory, tp, offsets, was_clean=is_whole
        )
        if not target.is_online:
            raise target.offline_error()
        self._registry.futures.pop(tp, None)
        self._registry.put(handle)
        return handle

    # -- the swap ---------------------------------------------------------------------------

    async def promote_future(self, tp: TopicPartition, executor: LogDirExecutor) -> LogHandle:
        """Replace the replica of ``tp`` by its future copy: see :meth:`LogManager.promote_future`.

        Cancelling the call does not cancel the swap.
        """
        source, future = self._require_current(tp), self._registry.futures.get(tp)
        if future is None:
            raise UnknownTopicOrPartitionError(f"there is no future copy of {tp} here")
        running = asyncio.ensure_future(self._promote(source, future, executor))
        self._running[tp] = running
        running.add_done_callback(lambda _: self._running.pop(tp, None))
        # A swap runs to its end, even if the caller is cancelled.
        return await to_its_end(running)

    async def ended(self, replicas: Collection[TopicPartition]) -> None:
        """Wait for the end of the swaps of ``replicas``.

        Needed because a directory that failed during a swap may be back before an operation of the
        swap on the other directory ends.
        """
        while running := {swap for tp, swap in self._running.items() if tp in replicas}:
            await asyncio.wait(running)

    async def _promote(
        self, source: LogHandle, future: FutureReplica, executor: LogDirExecutor
    ) -> LogHandle:
        try:
            with source.retention_paused():
                whole = asyncio.ensure_future(self._complete_copy(source, future, executor))
                carried = await _unless_impaired(whole, future.log_dir)
                _require_mirror(source, future, carried)
                handle = await self._change_places(source, future, carried)
        finally:
            self._checkpoints.arrived(future.log_dir, source.topic_partition)
        await each_online([self._checkpoints.write_recovery_points(source.log_dir)])
        return handle

    async def _complete_copy(
        self, source: LogHandle, future: FutureReplica, executor: LogDirExecutor
    ) -> CarriedState:
        """Copy the rest, durably, and announce the copy in the checkpoints. Return the log's state.

        After a failure the copy is still a future copy, and the source stays current.
        """
        carried = await self._copy_the_rest(source, future, executor)
        await future.finish(source, carried, executor)
        tp, high_watermark = source.topic_partition, source.high_watermark
        await self._checkpoints.announce(future.log_dir, tp, carried.view, high_watermark)
        return carried

    async def _copy_the_rest(
        self, source: LogHandle, future: FutureReplica, executor: LogDirExecutor
    ) -> CarriedState:
        await source.refresh()
        for _ in range(_LAST_STEPS):
            if (await future.catch_up(source, executor)).is_caught_up:
                break
        carried = await source.carried_state()
        _require_mirror(source, future, carried)
        return carried

    async def _change_places(
        self, source: LogHandle, future: FutureReplica, carried: CarriedState
    ) -> LogHandle:
        tp, plain = source.topic_partition, source.directory
        aside = self._registry.doomed_path(
            source.log_dir, tp, ReplicaDirKind.DELETE, future.move_id
        )
        try:
            await source.give_way(aside)
            log = await future.become_current(
                carried, self._registry.config_of(tp.topic), self._producer_limits
            )
            if not future.log_dir.is_online:
                # The directory failed after the rename, before the registry knew the replica.
                raise future.log_dir.offline_error()
        except OperatingError:
            self._run_in_background(self._take_back(future.log_dir, future.come_back))
            if not await self._take_back(source.log_dir, lambda: source.come_back(plain)):
                # A start could treat its ``-delete`` name as a removal, so the failure must show.
                source.log_dir.go_offline("a swap of replicas could not be taken back")
            raise
        self._registry.futures.pop(tp, None)
        handle = LogHandle(
            log=log,
            log_dir=future.log_dir,
            host=self._host,
            clock=self._clock,
            checkpointed_high_watermark=source.high_watermark,
            checkpointed_recovery_point=carried.view.log_end_offset,
            checkpointed_log_start=carried.view.log_start_offset,
        )
        self._registry.put(handle)
        if source.log_dir.is_online:
            self._purge_later(source.log_dir, aside, source)
        return handle

    async def _take_back(self, log_dir: LogDir, come_back: Callable[[], Awaitable[None]]) -> bool:
        """Undo one of the two renames, with retries on an impaired disk.

        Return whether that succeeded.
        """
        for _ in range(_TAKE_BACK_TRIES):
            if not log_dir.is_online:
                return False
            try:
                await come_back()
            except OverloadedError:
                await asyncio.sleep(_TAKE_BACK_PAUSE_MS / 1000)
            except OperatingError as e:
                if log_dir.is_online:
                    self._log.warning("swap_not_undone", log_dir=log_dir.path, reason=e.message)
                return False
            else:
                return True
        return False

    def _run_in_background(self, work: Coroutine[None, None, bool]) -> None:
        task = asyncio.ensure_future(work)
        self._ways_back.add(task)
        task.add_done_callback(self._ways_back.discard)

    def _require_current(self, tp: TopicPartition) -> LogHandle:
        handle = self._registry.handles.get(tp)
        if handle is None:
            raise UnknownTopicOrPartitionError(f"there is no replica of {tp} here")
        return handle


async def _unless_impaired(whole: asyncio.Future[T], target: LogDir) -> T:
    """Wait for ``whole`` and return its result, unless ``target`` stops responding.

    Appends wait meanwhile. An operation in a thread continues, and the next step of the move waits
    for it.

    :raises LogDirImpairedError: the target is impaired before ``whole`` is done.
    """
    while not whole.done():
        await asyncio.wait({whole}, timeout=_POLL_MS / 1000)
        if target.is_impaired and not whole.done():
            whole.cancel()
            raise target.impaired_error()
    return whole.result()


def _require_mirror(source: LogHandle, future: FutureReplica, carried: CarriedState) -> None:
    """Raise an error unless the copy mirrors the log with the state ``carried``.

    :raises OverloadedError: ``source`` has changed since; nothing was done, try again.
    """
    is_same = extents_of(source.view) == extents_of(carried.view)
    if not is_same or not future.is_caught_up(source):
        raise OverloadedError(
            f"{source.topic_partition} was written to while its copy took its place: "
            f"{future.log_end_offset} of {source.log_end_offset} offsets are copied, try again"
        )
