"""LOOP. Delayed requests: produces with ``acks=all``, deletions of records, fetches with
``min.bytes``.

All waits are keyed by partition and end at their deadline at the latest. The number of waits is
limited in total and per partition, so that one hung partition cannot use up the total.
A wait ends with a value, never with an exception, so an abandoned wait leaves no unretrieved
exception. A produce completes in the event loop iteration that satisfied it, so its response is
sent at once. Call all methods from the event loop's thread. Do not ``await`` between a check of
the partition and the following ``wait``.

* A watermark that moves visits only the waits that it satisfies. Thousands may wait for a partition
  with a slow follower, and each fetch of that follower moves the watermark.
* One timer serves all waits for offsets of a purgatory. Waits with nearby deadlines share a
  bucket, so a timer that fires visits only the partitions with overdue waits.
* A purgatory never polls a partition. The code that moves a watermark, or loses a leadership or a
  directory, notifies the purgatory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple, TypeVar

from kraftjbod.core import buggify
from kraftjbod.core.errors import ErrorCode, OverloadedError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.loop.completion import Completion
from kraftjbod.core.loop.timing import Clock

T = TypeVar("T")
#: Deadlines of offset waits are rounded up to a multiple of this.
_BUCKET_MS: Final = 10
#: A heap is rebuilt when it has this many more than twice its current entries.
_STALE_ENTRIES: Final = 64


class _OffsetWait(NamedTuple):
    required_offset: int
    deadline_ms: int
    done: Completion[ErrorCode]


class _PartitionWaits:
    """The waits of one partition, by offset and in order of arrival."""

    __slots__ = ("_arrivals", "_by_offset", "open")

    def __init__(self) -> None:
        #: In order of arrival.
        self.open: dict[Completion[ErrorCode], _OffsetWait] = {}
        #: A heap of required offset, order of arrival and wait. Some of the waits have ended.
        self._by_offset: list[tuple[int, int, _OffsetWait]] = []
        self._arrivals = 0

    def add(self, wait: _OffsetWait) -> None:
        self.open[wait.done] = wait
        self._arrivals += 1
        heappush(self._by_offset, (wait.required_offset, self._arrivals, wait))

    def take_reached(self, watermark: int) -> list[_OffsetWait]:
        """Remove and return the waits that ``watermark`` satisfies."""
        heap, reached = self._by_offset, list[_OffsetWait]()
        while heap and heap[0][0] <= watermark:
            wait = heappop(heap)[2]
            if self.open.pop(wait.done, None) is not None:
                reached.append(wait)
        return reached

    def remove(self, done: Completion[ErrorCode]) -> None:
        del self.open[done]
        heap = self._by_offset
        if len(heap) > 2 * len(self.open) + _STALE_ENTRIES:
            self._by_offset = [entry for entry in heap if entry[2].done in self.open]
            heapify(self._by_offset)


class OffsetPurgatory:
    """Requests of one kind that wait until a partition's watermark reaches an offset.

    One instance serves produces and receives high watermarks. Another serves deletions of records
    (KIP-107) and receives low watermarks.

    ``wait(tp, required_offset, timeout_ms)`` completes with NONE (reached), REQUEST_TIMED_OUT, or
    the code passed to ``fail``. ``reached(tp, watermark)`` completes the waits that the watermark
    satisfies. ``fail(tp, code)`` completes all waits of a partition: its directory failed, the
    leadership is lost, or the ISR became too small. ``close()`` completes the waits of all
    partitions, by default with NOT_LEADER_OR_FOLLOWER.
    """

    def __init__(
        self,
        *,
        kind: str,
        clock: Clock,
        max_waiting: int = 100_000,
        max_per_partition: int = 10_000,
    ) -> None:
        """Create a purgatory; ``kind`` names the waiting requests in error messages."""
        self._kind = kind
        self._clock = clock
        self._max_waiting = max_waiting
        self._max_per_partition = max_per_partition
        #: Only partitions with waits.
        self._waits: dict[TopicPartition, _PartitionWaits] = {}
        self._count = 0
        #: The waits by deadline, with their partitions. Completed waits are removed, because the
        #: deadline is chosen by the client and may be weeks away.
        self._buckets: dict[int, dict[Completion[ErrorCode], TopicPartition]] = {}
        #: A heap of the deadlines of all buckets, and of some that were removed.
        self._deadlines: list[int] = []
        #: One timer for all waits; it fires at or before the earliest deadline.
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_ms = 0

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"<OffsetPurgatory {self._kind} waiting={self._count} partitions={len(self._waits)}>"

    def wait(
        self, partition: TopicPartition, required_offset: int, timeout_ms: int
    ) -> Completion[ErrorCode]:
        """Return a completion: NONE once :meth:`reached` gets a watermark of at least
        ``required_offset``, REQUEST_TIMED_OUT after ``timeout_ms``, or the code of :meth:`fail`.
        The caller has checked the present watermark.

        :raises OverloadedError: ``max_waiting`` requests wait in total, or ``max_per_partition``
            for this partition.
        """
        if self._count >= self._max_waiting:
            raise OverloadedError(f"{self._count} {self._kind} wait for replication already")
        if buggify.is_on and buggify.fires("broker.early_produce_timeout"):
            timeout_ms = 0
        done: Completion[ErrorCode] = Completion()
        deadline_ms = -(-(self._clock.now_ms() + timeout_ms) // _BUCKET_MS) * _BUCKET_MS
        wait = _OffsetWait(required_offset, deadline_ms, done)
        waits = self._waits.get(partition)
        if waits is None:
            waits = self._waits[partition] = _PartitionWaits()
        elif len(waits.open) >= self._max_per_partition:
            raise OverloadedError(f"{len(waits.open)} {self._kind} wait for {partition} already")
        waits.add(wait)
        self._count += 1
        bucket = self._buckets.get(deadline_ms)
        if bucket is None:
            bucket = self._add_bucket(deadline_ms)
        bucket[done] = partition
        if self._timer is None or deadline_ms < self._timer_at_ms:
            self._arm(deadline_ms)
        return done

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions that requests wait for."""
        return list(self._waits)

    def is_waited_for(self, partition: TopicPartition) -> bool:
        return partition in self._waits

    def reached(self, partition: TopicPartition, watermark: int) -> None:
        waits = self._waits.get(partition)
        if waits is None:
            return
        reached = waits.take_reached(watermark)
        self._leave(partition, waits, len(reached))
        self._leave_buckets(reached)
        for wait in reached:
            wait.done.set_result(ErrorCode.NONE)

    def fail(self, partition: TopicPartition, code: ErrorCode) -> None:
        """Complete every wait of the partition with ``code``."""
        waits = self._waits.pop(partition, None)
        if waits is None:
            return
        self._count -= len(waits.open)
        self._leave_buckets(waits.open.values())
        for done in waits.open:
            done.set_result(code)

    def close(self, code: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> None:
        """Complete every wait. The default code makes a client look for another leader."""
        for partition in self.partitions:
            self.fail(partition, code)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _leave(self, partition: TopicPartition, waits: _PartitionWaits, ended: int) -> None:
        """Forget ``ended`` waits of the partition. Call it before a wait is completed."""
        self._count -= ended
        if not waits.open:
            del self._waits[partition]

    def _add_bucket(self, deadline_ms: int) -> dict[Completion[ErrorCode], TopicPartition]:
        bucket: dict[Completion[ErrorCode], TopicPartition] = {}
        self._buckets[deadline_ms] = bucket
        heappush(self._deadlines, deadline_ms)
        if len(self._deadlines) > 2 * len(self._buckets) + _STALE_ENTRIES:
            self._deadlines = list(self._buckets)
            heapify(self._deadlines)
        return bucket

    def _leave_buckets(self, waits: Iterable[_OffsetWait]) -> None:
        for wait in waits:
            bucket = self._buckets[wait.deadline_ms]
            del bucket[wait.done]
            if not bucket:
                del self._buckets[wait.deadline_ms]

    def _arm(self, at_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0, at_ms - self._clock.now_ms()) / 1000
        self._timer_at_ms = at_ms
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._sweep)

    def _sweep(self) -> None:
        """Complete the overdue waits and set the timer to the next deadline."""
        self._timer = None
        overdue = self._take_overdue(self._clock.now_ms())
        for done, partition in overdue.items():
            waits = self._waits[partition]
            waits.remove(done)
            self._leave(partition, waits, 1)
        if self._deadlines:
            self._arm(self._deadlines[0])
        for done in overdue:
            done.set_result(ErrorCode.REQUEST_TIMED_OUT)

    def _take_overdue(self, now_ms: int) -> dict[Completion[ErrorCode], TopicPartition]:
        """Remove and return the waits of overdue buckets, and remove stale first deadlines."""
        overdue: dict[Completion[ErrorCode], TopicPartition] = {}
        while self._deadlines:
            deadline_ms = self._deadlines[0]
            if deadline_ms > now_ms and deadline_ms in self._buckets:
                break
            overdue.update(self._buckets.pop(heappop(self._deadlines), {}))
        return overdue


class _FetchWait:
    __slots__ = ("done", "missing_bytes", "partitions", "timer")

    def __init__(
        self,
        partitions: Sequence[TopicPartition],
        missing_bytes: int,
        done: asyncio.Future[bool],
        timer: asyncio.TimerHandle,
    ) -> None:
        self.partitions = partitions
        self.missing_bytes = missing_bytes
        self.done = done
        self.timer = timer


class FetchPurgatory:
    """Fetches of consumers that wait for bytes.

    One instance is notified when a high watermark moves. Another serves ``read_committed`` and is
    notified when a last stable offset moves. So no fetch is woken for bytes that it may not read.
    Fetches of followers wait in their sessions instead (fetch_sessions.py).

    ``wait(partitions, missing_bytes, timeout_ms)`` returns a future. True: enough bytes may have
    arrived, or a partition changed, so the caller reads again. False: the deadline passed, so the
    caller responds with the available records. ``arrived(tp, size_bytes)`` counts new bytes.
    ``wake(tp)`` ends the waits on a partition at once, because it failed, was deleted or changed
    its leader, or its last stable offset moved.
    """

    def __init__(self, *, max_waiting: int = 10_000, max_partitions: int = 1_000_000) -> None:
        """Create a purgatory.

        :param max_waiting: limit of the waiting fetches.
        :param max_partitions: limit of the partitions that all waiting fetches name together.
        """
        self._max_waiting = max_waiting
        self._max_partitions = max_partitions
        self._named = 0
        #: Only partitions with waits. Inner dicts are ordered sets.
        self._waits: dict[TopicPartition, dict[_FetchWait, None]] = {}
        self._all: dict[asyncio.Future[bool], _FetchWait] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __repr__(self) -> str:
        return f"<FetchPurgatory waiting={len(self._all)} partitions={len(self._waits)}>"

    def wait(
        self, partitions: Sequence[TopicPartition], missing_bytes: int, timeout_ms: int
    ) -> asyncio.Future[bool]:
        """Wait until ``missing_bytes`` have arrived in ``partitions`` together.

        :return: future of whether the wait ended before ``timeout_ms`` had passed.
        :raises OverloadedError: ``max_waiting`` fetches wait, or they name ``max_partitions``.
        """
        if (
            len(self._all) >= self._max_waiting
            or self._named + len(partitions) > self._max_partitions
        ):
            raise OverloadedError(f"{len(self._all)} fetches wait for bytes already")
        if buggify.is_on and buggify.fires("broker.early_fetch_timeout"):
            timeout_ms = 0
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bool] = loop.create_future()
        timer = loop.call_later(timeout_ms / 1000, _end, done, False)
        wait = _FetchWait(partitions, missing_bytes, done, timer)
        self._all[done] = wait
        self._named += len(partitions)
        for partition in partitions:
            self._waits.setdefault(partition, {})[wait] = None
        # The only place of removal, for a wait that ends by bytes, by its deadline or by
        # cancellation.
        done.add_done_callback(self._forget)
        return done

    def arrived(self, partition: TopicPartition, size_bytes: int) -> None:
        """Count ``size_bytes`` more readable bytes in the partition."""
        if buggify.is_on and buggify.fires("broker.lost_fetch_wakeup"):
            return  # Each wait still ends at its deadline.
        for wait in self._waits.get(partition, ()):
            wait.missing_bytes -= size_bytes
            if wait.missing_bytes <= 0:
                _end(wait.done, True)

    def wake(self, partition: TopicPartition) -> None:
        for wait in self._waits.get(partition, ()):
            _end(wait.done, True)

    def close(self) -> None:
        """Complete every wait with True."""
        for done in self._all:
            _end(done, True)

    def _forget(self, done: asyncio.Future[bool]) -> None:
        wait = self._all.pop(done)
        wait.timer.cancel()
        self._named -= len(wait.partitions)
        for partition in wait.partitions:
            waits = self._waits.get(partition)
            if waits is None:
                continue  # The request named the partition twice.
            waits.pop(wait, None)
            if not waits:
                del self._waits[partition]


def _end(done: asyncio.Future[T], value: T) -> None:
    if not done.done():
        done.set_result(value)
