"""LOOP. ``Scrub``: repeatedly reads the cold segments of one log directory, to find bit rot.

* Cold segments are closed, flushed and not being moved to another directory. One pass reads all of
  them. The next pass starts ``log.dir.scrub.interval.ms`` after the start of the previous one. A
  restart continues an unfinished pass.
* The scrub has its own thread and reads small pieces, limited by
  ``log.dir.scrub.max.bytes.per.second``. It pauses while the directory is not ONLINE or is busy.
* Damage found by one read is read again, because memory and cables can fail too. Confirmed damage
  is recorded in the log, as if a reader had found it. ``on_damage`` decides about the replica.
  Known damage is passed to ``on_damage`` again in each pass, without a new read.
* Index files that do not match their segments are rewritten.

A failed read is judged as any other: the directory goes OFFLINE, and the scrub ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple, TypeVar

from kraftjbod.core.errors import KafkaStorageError, OperatingError, OverloadedError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.loop.timing import Clock, TokenBucket
from kraftjbod.core.telemetry import get_logger
from kraftjbod.storage.dir_names import SCRUB_FILE
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.log_dirs.outside_operations import run_beside
from kraftjbod.storage.scrubbing.scrub_state import (
    ScrubPosition,
    ScrubState,
    format_scrub_state,
    parse_scrub_state,
)
from kraftjbod.storage.segments.segment import LogSegment
from kraftjbod.storage.segments.segment_scrub import SegmentScrub
from kraftjbod.storage.vfs import write_atomically

T = TypeVar("T")

#: How often the scrub checks whether it may continue, and how often it stores its position.
_POLL_MS: Final = 1_000
_SAVE_INTERVAL_MS: Final = 10_000
#: Delay after the start of the daemon, which has more urgent work.
_FIRST_PASS_AFTER_MS: Final = 60_000
#: One step at a time; a cancelled step may still run beside the next.
_MAX_OPS: Final = 4


@dataclass(slots=True)
class ScrubFigures:
    """Counters of one directory's scrub since the daemon started. ``bytes`` and ``segments`` were
    read, ``passes`` were completed, ``indexes_mended`` are index files that were rewritten.
    """

    bytes: int = 0
    segments: int = 0
    passes: int = 0
    #: Damaged parts of logs.
    damages_found: int = 0
    #: Replicas that were found damaged and are intact again.
    replicas_repaired: int = 0
    indexes_mended: int = 0


class _Cold(NamedTuple):
    """A segment to check. The next segment of the log starts at ``end_offset``."""

    handle: LogHandle
    segment: LogSegment
    end_offset: int


class Scrub:
    """Reads the closed segments of one log directory in passes, to find bit rot before a reader
    does. All methods run on the event loop.

    :param replicas: returns the partitions with replicas in the directory.
    :param get: returns the current replica of a partition, in any directory.
    :param is_busy: returns whether the scrub has to pause.
    :param on_damage: called with the handle of a damaged replica.
    """

    def __init__(
        self,
        log_dir: LogDir,
        *,
        clock: Clock,
        replicas: Callable[[], Iterable[TopicPartition]],
        get: Callable[[TopicPartition], LogHandle | None],
        is_moving: Callable[[TopicPartition], bool],
        is_busy: Callable[[], bool],
        on_damage: Callable[[LogHandle], None],
        interval_ms: int,
        max_bytes_per_second: int,
    ) -> None:
        self.log_dir = log_dir
        self.figures = ScrubFigures()
        self.state = ScrubState()
        self._clock = clock
        self._replicas = replicas
        self._get = get
        self._is_moving = is_moving
        self._is_busy = is_busy
        self._on_damage = on_damage
        self._interval_ms = interval_ms
        self._bucket = TokenBucket(max_bytes_per_second, clock.now_ms())
        self._executor = log_dir.make_executor(
            name=f"log-dir-scrub:{log_dir.path}", clock=clock, max_ops=_MAX_OPS
        )
        self._saved_at_ms = 0
        #: Replicas that this pass still has to read, in order. The first is being read.
        self._todo: deque[TopicPartition] = deque()
        #: Replicas that were found damaged and are not repaired yet.
        self._damaged: dict[TopicPartition, LogHandle] = {}
        self._log = get_logger(component="scrub", log_dir=log_dir.path)

    def __repr__(self) -> str:
        return f"<Scrub {self.log_dir.path} {self.state}>"

    async def run_passes(self) -> None:
        """Run passes until the directory is OFFLINE or the task is cancelled, then let the scrub's
        thread end. Callable once.
        """
        try:
            await asyncio.sleep(min(_FIRST_PASS_AFTER_MS, self._interval_ms) / 1000)
            await self.log_dir.jobs.keep("scrub", self._until_offline)
        finally:
            self._executor.shutdown(wait=False)

    async def _until_offline(self) -> None:
        try:
            await self.load()
            while True:
                while not self.state.is_due(self._clock.wall_ms(), self._interval_ms):
                    await self._rest(_POLL_MS)
                await self.scrub_all()
        except KafkaStorageError as e:
            self._log.info("log_scrub_ended", reason=e.message)

    async def scrub_all(self) -> None:
        """Continue the unfinished pass, or run a new one, to its end. The call waits while the
        directory is impaired or busy.

        :raises KafkaStorageError: the directory is or goes offline.
        """
        if not self.state.is_under_way:
            self.state = replace(
                self.state, began_ms=self._clock.wall_ms(), damages=0, position=None
            )
            self._log.info("log_scrub_began")
        position = self.state.position
        self._todo = deque(
            tp
            for tp in sorted(self._replicas())
            if position is None or tp >= position.topic_partition
        )
        while (cold := self._next()) is not None:
            if await self._check_unless_gone(cold):
                self._note_position(cold)
                if self._clock.now_ms() - self._saved_at_ms >= _SAVE_INTERVAL_MS:
                    await self._save()
        completed_ms = max(self._clock.wall_ms(), self.state.began_ms)
        self.state = replace(self.state, completed_ms=completed_ms, position=None)
        self.figures.passes += 1
        self._log.info("log_scrub_completed", damages=self.state.damages)
        await self._save()

    def count_repairs(self) -> None:
        """Count replicas that were found damaged and are intact now, in
        ``figures.replicas_repaired``.
        """
        for tp, handle in list(self._damaged.items()):
            if self._get(tp) is not handle:
                del self._damaged[tp]
            elif handle.damaged_from is None:
                del self._damaged[tp]
                self.figures.replicas_repaired += 1

    # -- which segment ----------------------------------------------------------------------

    def _next(self) -> _Cold | None:
        """Return the next segment of this pass; None at its end.

        Report known damage of replicas on the way.
        """
        while self._todo:
            tp, position = self._todo[0], self.state.position
            handle = self._get(tp)
            if handle is not None and handle.log_dir is self.log_dir and not self._is_moving(tp):
                is_begun = position is not None and position.topic_partition == tp
                if not is_begun and handle.damaged_from is not None:
                    self._on_damage(handle)
                from_offset = position.offset if is_begun and position is not None else 0
                cold = _first_cold(handle, from_offset)
                if cold is not None:
                    return cold
            self._todo.popleft()
        return None

    def _note_position(self, cold: _Cold) -> None:
        position = ScrubPosition(cold.handle.topic_partition, cold.end_offset)
        self.state = replace(self.state, position=position)

    # -- one segment ------------------------------------------------------------------------

    async def _check_unless_gone(self, cold: _Cold) -> bool:
        """Check a segment. Return False if the check has to be repeated later."""
        await self._until_free()
        try:
            partition = str(cold.handle.topic_partition)
            await self.log_dir.jobs.attempt(
                "scrub", partial(self._check, cold), partition=partition
            )
        except OverloadedError as e:
            self._log.info("log_scrub_put_off", reason=e.message)
            await self._rest(_POLL_MS)
            return False
        except KafkaStorageError:
            raise
        except OperatingError as e:
            # The replica was deleted or moved during the read.
            self._log.info("log_scrub_passed_over", reason=e.message)
        return True

    async def _check(self, cold: _Cold) -> None:
        scrub = await self._read(cold)
        if scrub is not None and scrub.damages:
            again = await self._read(cold)
            if again is not None and not again.damages:
                self._log.warning(
                    "log_scrub_readings_differ",
                    partition=str(cold.handle.topic_partition),
                    offset=scrub.damages[0].offset,
                )
            scrub = again
        if scrub is None:
            return
        self.figures.segments += 1
        if not scrub.has_findings:
            return
        if not await cold.handle.take_scrubbed(scrub):
            return
        if scrub.damages:
            self._report_damage(cold.handle, scrub)
        else:
            self.figures.indexes_mended += 1

    async def _read(self, cold: _Cold) -> SegmentScrub | None:
        """Read and check the segment on the disk.

        Return None if it was removed or its replica is being moved.
        """
        handle = cold.handle
        file = await handle.open_beside(cold.segment)
        if file is None:
            return None
        scrub = SegmentScrub(
            vfs=self.log_dir.vfs,
            file=file,
            segment=cold.segment,
            end_offset=cold.end_offset,
        )
        try:
            while not scrub.is_done:
                read_bytes = await self._do(handle, scrub.step)
                self.figures.bytes += read_bytes
                self._bucket.spend(read_bytes, self._clock.now_ms())
                if wait_ms := self._bucket.wait_ms(self._clock.now_ms()):
                    await self._rest(wait_ms)
                await self._until_free()
                if self._is_moving(handle.topic_partition):
                    break
        except Exception:
            await self._do(handle, scrub.close)
            raise
        await self._do(handle, scrub.close)
        return scrub if scrub.is_done else None

    async def _do(self, handle: LogHandle, step: Callable[[], T]) -> T:
        replica = handle.topic_partition
        return await run_beside(self.log_dir, self._executor, step, replica=replica)

    def _report_damage(self, handle: LogHandle, scrub: SegmentScrub) -> None:
        for damage in scrub.damages:
            self._log.error(
                "log_damage_found_by_scrub",
                partition=str(handle.topic_partition),
                offset=damage.offset,
                next_offset=damage.next_offset,
            )
        self.figures.damages_found += len(scrub.damages)
        self.state = replace(self.state, damages=self.state.damages + len(scrub.damages))
        self._damaged[handle.topic_partition] = handle
        self._on_damage(handle)

    # -- waiting ----------------------------------------------------------------------------

    async def _until_free(self) -> None:
        """Wait while the directory is impaired or busy.

        :raises KafkaStorageError: the directory is offline.
        """
        while self.log_dir.state is not LogDirState.ONLINE or self._is_busy():
            await self._rest(_POLL_MS)

    async def _rest(self, wait_ms: int) -> None:
        if not self.log_dir.is_online:
            raise self.log_dir.offline_error()
        self.count_repairs()
        await asyncio.sleep(wait_ms / 1000)

    # -- the file ---------------------------------------------------------------------------

    async def load(self) -> None:
        """Wait until the directory is ONLINE and not busy, and read the stored state of the last
        pass.

        The places of damage are not stored, so an unfinished pass that found damage starts over.

        :raises KafkaStorageError: the directory is or goes offline.
        :raises OverloadedError: its queue is full, or no descriptor is free.
        """
        await self._until_free()
        path, vfs = self._path, self.log_dir.vfs
        data = await self.log_dir.run_operation(OpKind.LOAD, lambda: vfs.read_if_exists(path))
        self.state = parse_scrub_state(data)
        if self.state.damages:
            self.state = replace(self.state, began_ms=-1, position=None)

    async def _save(self) -> None:
        """Store the position. If that fails, segments are only read again after a restart."""
        path, data, vfs = self._path, format_scrub_state(self.state), self.log_dir.vfs
        self._saved_at_ms = self._clock.now_ms()
        try:
            await self.log_dir.run_operation(
                OpKind.CHECKPOINT, lambda: write_atomically(vfs, path, data, sync=False)
            )
        except OverloadedError as e:
            self._log.info("log_scrub_position_not_saved", reason=e.message)

    @property
    def _path(self) -> str:
        return f"{self.log_dir.path}/{SCRUB_FILE}"


def _first_cold(handle: LogHandle, from_offset: int) -> _Cold | None:
    """Return the first segment from ``from_offset`` on to check; None without one.

    Such a segment is closed, flushed and not known to be damaged.
    """
    view = handle.view
    for segment, successor in zip(view.segments, view.segments[1:], strict=False):
        end_offset = successor.base_offset
        if segment.base_offset < from_offset or end_offset <= view.log_start_offset:
            continue
        if end_offset > handle.recovery_point:
            return None
        damage = view.damage_from(segment.base_offset)
        if damage is None or damage.offset >= end_offset:
            return _Cold(handle, segment, end_offset)
    return None
