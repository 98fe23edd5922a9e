"""LOOP. ``FutureReplica``: the event loop's interface to one future copy of a move.

* :meth:`FutureReplica.catch_up` runs one bounded step. The current replica is still written to, so
  each step follows its new records, truncations and retention.
* One step runs at a time. If its caller was cancelled, the next caller waits for its end.
* A step fails at once when the source directory goes offline, though its thread may still run. The
  next operation waits for that thread, and is refused if the thread hangs.
* After a failed step, the state of the copy shows what is missing, and the next step repairs it.

The callers decide when to step, how fast, and when the copy replaces the replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

from kraftjbod.core.errors import OperatingError, OverloadedError
from kraftjbod.core.ids import DirectoryId, TopicId, TopicPartition, Uuid
from kraftjbod.core.loop.completion import to_its_end
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.log.log_values import CarriedState
from kraftjbod.storage.log.log_view import LogView, Truncation, lower_truncation
from kraftjbod.storage.log.producer_state import ProducerLimits
from kraftjbod.storage.log.unified_log import UnifiedLog
from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.log_dirs.outside_operations import run_copy
from kraftjbod.storage.moves.future_copy import SegmentExtent, extents_of
from kraftjbod.storage.moves.future_log import Copied, FutureLog
from kraftjbod.storage.segments.steps import take_step

T = TypeVar("T")
R = TypeVar("R")

#: Default size of a step.
STEP_BYTES: Final = 4 * 1024 * 1024
#: How long an operation waits for the thread of an abandoned step.
_LATE_MS: Final = 1_000


class _ThreadStep(Generic[T]):
    """Operation for a mover's thread that may be abandoned at any time."""

    def __init__(self, step: Callable[[bool], T]) -> None:
        self._step = step
        self._loop = asyncio.get_running_loop()
        self._has_begun = self._is_given_up = False
        self._ended = self._loop.create_future()

    def __call__(self, by_kernel: bool) -> T:
        self._has_begun = True
        if self._is_given_up:
            raise OverloadedError("the step was cancelled")
        try:
            return self._step(by_kernel)
        finally:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._ended.set_result, None)

    def give_up(self) -> asyncio.Future[None] | None:
        """Prevent the step from starting.

        If it has started and not ended, return a future for its end.
        """
        self._is_given_up = True
        return self._ended if self._has_begun and not self._ended.done() else None


class CopyStep(NamedTuple):
    """Result of a copy step: how many bytes it copied, and whether the copy now equals the replica
    (``is_caught_up``).

    ``lag_offsets`` is an upper bound of the number of offsets that are not copied.
    """

    copied_bytes: int
    is_caught_up: bool
    lag_offsets: int


class FutureReplica:
    """Event loop's interface to one future copy of a move: copies the replica in steps while it
    changes, and finally makes the copy the replica. All methods run on the event loop.
    """

    def __init__(self, *, log: FutureLog, log_dir: LogDir, move_id: Uuid) -> None:
        self._log = log
        self._directory = log.directory
        self.topic_partition: TopicPartition = log.topic_partition
        self.topic_id: TopicId = log.topic_id
        #: The directory of the copy.
        self.log_dir = log_dir
        self.move_id = move_id
        #: Directory of the current replica when the move started.
        self.source_directory_id: DirectoryId = log.source_directory_id
        self._extents: tuple[SegmentExtent, ...] = log.extents
        #: The copy holds everything below this offset, and possibly a little more.
        self.log_end_offset = max((base for base, _ in self._extents), default=0)
        self._is_resumed = not log.was_loaded
        #: A truncation that no completed step has followed yet.
        self._truncation: Truncation | None = None
        self._running: asyncio.Future[Any] | None = None
        #: Completed when the thread of an abandoned step is done.
        self._late: asyncio.Future[None] | None = None
        #: The copy becomes the replica without a swap, or is removed. Later operations are refused.
        self._is_over = False

    def __repr__(self) -> str:
        return f"<FutureReplica {self.topic_partition} {self.size_bytes} B in {self.log_dir.path}>"

    @property
    def claimed_start_offset(self) -> int:
        """Log start offset of the replica at the time of the last copy step. The copy holds no
        earlier records.
        """
        return self._log.log_start_offset

    @property
    def claimed_end_offset(self) -> int:
        """Log end offset of the replica as of the last step.

        The bytes below it need not be copied yet.
        """
        return self._log.log_end_offset

    @property
    def is_over(self) -> bool:
        """Whether the copy is being removed, or made the replica because no current replica exists.

        A swap (:meth:`become_current`) does not set it. A failure resets it.
        """
        return self._is_over

    def replaces(self, view: LogView) -> bool:
        """Return whether the copy may become the replica: it was finished, is intact, and covers
        ``view``.
        """
        return self._log.replaces(view)

    @property
    def size_bytes(self) -> int:
        return sum(size_bytes for _, size_bytes in self._extents)

    def lag_of(self, source: LogHandle) -> int:
        """Return an upper bound of the number of offsets of ``source`` that are not copied yet."""
        return max(0, source.log_end_offset - self.log_end_offset)

    def is_caught_up(self, source: LogHandle) -> bool:
        """Return whether the copy has all segments of the last view of ``source``, byte for byte,
        and no truncation is left to follow.
        """
        was_truncated = self._truncation is not None or source.has_truncation
        return not was_truncated and self._extents == extents_of(source.view)

    async def catch_up(
        self, source: LogHandle, executor: LogDirExecutor, max_bytes: int = STEP_BYTES
    ) -> CopyStep:
        """Copy at most ``max_bytes`` of missing records, and remove records that the source
        removed.

        Cancelling the wait does not cancel the step.

        :param executor: a mover's thread.
        :raises KafkaStorageError: with the ``directory_id`` of the directory at fault, now offline.
        :raises OverloadedError: a directory is impaired, a former step hangs, or the copy was
            removed; try again later.
        """
        await self.settle()
        if not self._is_resumed:
            await self.resume(source.view)
        if self.is_caught_up(source):
            return CopyStep(0, True, 0)
        copied = await self._alone(lambda: self._step(source, executor, max_bytes))
        if copied.is_view_stale:
            await source.refresh()
        lag_offsets = self.lag_of(source)
        return CopyStep(copied.copied_bytes, self.is_caught_up(source), lag_offsets)

    async def _step(self, source: LogHandle, executor: LogDirExecutor, max_bytes: int) -> Copied:
        self._truncation = truncation = lower_truncation(self._truncation, source.take_truncation())
        view, log, source_vfs = source.view, self._log, source.log_dir.vfs

        def settle(copied: Copied) -> Copied:
            # Only one step runs at a time, so no other truncation can be pending here.
            self._truncation = None
            self._publish(copied.extents, view)
            return copied

        return await self._in_thread(
            source,
            executor,
            lambda by_kernel: log.step(
                view, truncation, source_vfs, max_bytes=max_bytes, by_kernel=by_kernel
            ),
            read_again=lambda: log.read_again(source_vfs),
            settle=settle,
        )

    async def _in_thread(
        self,
        source: LogHandle,
        executor: LogDirExecutor,
        step: Callable[[bool], T],
        *,
        read_again: Callable[[], None],
        settle: Callable[[T], R],
    ) -> R:
        in_thread = _ThreadStep(step)
        try:
            return await run_copy(
                source.log_dir,
                self.log_dir,
                executor,
                in_thread,
                read_again=read_again,
                settle=settle,
                replica=self.topic_partition,
            )
        finally:
            self._late = in_thread.give_up()

    async def settle(self) -> None:
        """Wait until no step is running.

        :raises OverloadedError: a step that was abandoned still hangs in its thread.
        """
        while self._running is not None and not self._running.done():
            await asyncio.wait({self._running})
        if self._late is not None and not self._late.done():
            await asyncio.wait({self._late}, timeout=_LATE_MS / 1000)
            if not self._late.done():
                raise OverloadedError(f"a step of the move of {self.topic_partition} hangs")

    # -- for the LogManager -----------------------------------------------------------------

    async def resume(self, view: LogView) -> None:
        """Compare the copy with ``view`` after a restart, before the log is appended to.

        If this fails, :meth:`catch_up` repeats it. Errors are those of :meth:`catch_up`.
        """
        self._is_resumed = False
        await self._alone(lambda: self._resume(view))

    async def _resume(self, view: LogView) -> None:
        log, work = self._log, self._log.resume_steps(view)
        is_done = False
        try:
            while not is_done:
                # Other operations of the directory run between the steps.
                is_done = bool(
                    await self.log_dir.run_operation(
                        OpKind.LOAD, partial(take_step, work), replica=self.topic_partition
                    )
                )
        except OperatingError:
            # A step that was refused leaves a file open. Closing it may wait for the disk.
            with suppress(OperatingError):  # The directory is offline or overloaded.
                self.log_dir.submit_operation(OpKind.LOAD, work.close, replica=self.topic_partition)
            raise
        self._is_resumed = True
        self._publish(log.extents, view)

    async def sync(self) -> None:
        """Make the copied bytes durable, so that a restart continues from there.

        :raises KafkaStorageError: the directory of the copy is or goes offline.
        :raises OverloadedError: as :meth:`catch_up`.
        """
        sync, replica = self._log.sync, self.topic_partition
        await self._alone(lambda: self.log_dir.run_operation(OpKind.CLOSE, sync, replica=replica))

    async def finish(
        self, source: LogHandle, carried: CarriedState, executor: LogDirExecutor
    ) -> None:
        """Transfer leader epochs, producers and indexes to the copy, durably. Its segments must
        equal those of ``carried.view``.

        Errors are those of :meth:`catch_up`.
        """
        log = self._log
        await self._alone(
            lambda: self._in_thread(
                source,
                executor,
                lambda by_kernel: log.finish(carried),
                read_again=lambda: None,
                settle=lambda done: None,
            )
        )

    async def become_current(
        self, carried: CarriedState, config: TopicConfig, producer_limits: ProducerLimits
    ) -> UnifiedLog:
        """Rename the copy to the replica's name, durably, and return its log.

        After an error only :meth:`come_back` may follow.
        """
        log = self._log
        return await self.log_dir.run_operation(
            OpKind.RENAME,
            lambda: log.become_current(carried, config, producer_limits),
            replica=self.topic_partition,
        )

    async def come_back(self) -> None:
        """Rename the copy back to its future name after a failed swap, even in an impaired
        directory.
        """
        log, directory, replica = self._log, self._directory, self.topic_partition
        await self._alone(
            lambda: self.log_dir.run_operation(
                OpKind.UNDO, lambda: log.move_to(directory), replica=replica
            )
        )

    async def leave_as_current(self, stray: str, *, only_claimed: bool) -> str:
        """Rename the copy to the replica's name, to be loaded as the replica. Return the new path.

        Later operations on the copy are refused, unless this fails.

        :param stray: new path of an unknown directory that already has the replica's name.
        :param only_claimed: whether to truncate bytes that the checkpoint does not claim.
        """
        log, vfs, plain = self._log, self.log_dir.vfs, f"{self.log_dir.path}/{self.topic_partition}"

        def leave() -> None:
            if only_claimed:
                log.discard_unclaimed()
            log.close_files()
            if vfs.exists(plain) and log.directory != plain:
                vfs.rename(plain, stray)
            log.move_to(plain)

        replica = self.topic_partition
        await self._last(lambda: self.log_dir.run_operation(OpKind.RENAME, leave, replica=replica))
        return plain

    async def discard(self, directory: str) -> None:
        """Rename the copy to ``directory``, so that no start treats it as a replica. Later
        operations on the copy are refused, unless this fails.
        """
        log, replica = self._log, self.topic_partition
        await self._last(
            lambda: self.log_dir.run_operation(
                OpKind.DELETE, lambda: log.discard(directory), replica=replica
            )
        )

    async def _last(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``work`` after the running operation and refuse later operations, unless ``work``
        fails.
        """
        self._is_over = True
        try:
            await self.settle()
            return await self._run(work())
        except BaseException:
            self._is_over = False
            raise

    async def _alone(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``work`` after the running operation.

        :raises OverloadedError: the copy was removed or promoted meanwhile.
        """
        await self.settle()
        if self._is_over:
            raise OverloadedError(f"the copy of {self.topic_partition} was abandoned")
        return await self._run(work())

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` to its end, even if the caller is cancelled."""
        running = asyncio.ensure_future(work)
        self._running = running
        return await to_its_end(running)

    def _publish(self, extents: tuple[SegmentExtent, ...], view: LogView) -> None:
        self._extents = extents
        self.log_end_offset = _end_offset(extents, view)


def _end_offset(extents: tuple[SegmentExtent, ...], view: LogView) -> int:
    """Return an offset below which all records are within ``extents``, a partial copy of
    ``view``.
    """
    if not extents:
        return view.segments[0].base_offset
    if extents == extents_of(view):
        return view.log_end_offset
    base_offset, size_bytes = extents[-1]
    for at, segment in enumerate(view.segments):
        if segment.base_offset == base_offset:
            if at + 1 < len(view.segments) and segment.size_bytes == size_bytes:
                return view.segments[at + 1].base_offset
            return segment.offset_below(size_bytes)
    return base_offset
