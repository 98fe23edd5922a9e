"""PURE. Transactions of one partition that determine its last stable offset.

A transaction starts with its producer's first transactional batch and ends with a marker. While it
is open it is *unstable*, and also afterwards until its marker is below the high watermark. A marker
that is not replicated may be lost, and then the transaction is open again.

The last stable offset (LSO) is the first offset of the oldest unstable transaction, or the high
watermark if that is lower. Replicas with the same batches and high watermark compute the same LSO,
unless more than :data:`ENDED_KEPT` transactions ended above the high watermark.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final, NamedTuple

_OPEN: Final = 2**63 - 1
#: Start times of so many ended transactions may be kept beside those of the open ones.
_STALE_STARTS: Final = 64
#: Ended transactions that are kept one by one until they are replicated. A load that does not know
#: the high watermark finds all transactions of a log, possibly millions. Older ones are merged,
#: which makes the LSO too low while the high watermark is among them, but never too high.
ENDED_KEPT: Final = 1_000


class UnstableTransaction(NamedTuple):
    """A transaction in one log, from its first batch to its marker, both inclusive.

    ``last_offset`` of an open transaction is 2**63 - 1. ``began_ms`` is the wall-clock time of its
    first batch, -1 if unknown.
    """

    first_offset: int
    producer_id: int
    last_offset: int = _OPEN
    #: Wall time of its first append here. After a load: the largest record timestamp of the first
    #: batch, or the time of the producer's last append from a snapshot.
    began_ms: int = -1

    @property
    def is_open(self) -> bool:
        return self.last_offset == _OPEN


def last_stable_offset(
    unstable: tuple[UnstableTransaction, ...], *, log_start_offset: int, high_watermark: int
) -> int:
    """Return the LSO. ``unstable`` must be in the order of first offsets."""
    for transaction in unstable:
        if transaction.last_offset >= high_watermark:
            return min(max(transaction.first_offset, log_start_offset), high_watermark)
    return high_watermark


class OpenTransactions:
    """Tracks the transactions of one log that lower its last stable offset: open ones, and ended
    ones whose marker is not below the high watermark yet.

    Cost: O(log n) per batch and marker, amortized, so that a load or a fetched chunk of many small
    transactions takes time in proportion to its batches.
    """

    __slots__ = ("_ended", "_is_in_order", "_open", "_starts", "_unstable")

    def __init__(self) -> None:
        #: Open transactions by producer, in the order of first offsets if ``_is_in_order``.
        #: A plain dict would visit all removed entries to find its first one.
        self._open: OrderedDict[int, UnstableTransaction] = OrderedDict()
        self._is_in_order = True
        #: Heap of the known start times (wall-clock ms), with first offset and producer, of all
        #: open transactions and some ended ones.
        self._starts: list[tuple[int, int, int]] = []
        #: Ended transactions. First and last offsets both ascend: a transaction that lies within
        #: a later one never determines the LSO, and is removed.
        self._ended: deque[UnstableTransaction] = deque()
        #: Value of :attr:`unstable`; None after a change.
        self._unstable: tuple[UnstableTransaction, ...] | None = ()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def unstable(self) -> tuple[UnstableTransaction, ...]:
        """The transactions that determine the LSO, in the order of first offsets: ended ones, and
        the oldest open one as the last.

        No transaction after the oldest open one can determine the LSO. Cost: at most
        ``2 * ENDED_KEPT`` copies after a change, for any number of open transactions.
        """
        if self._unstable is None:
            oldest, ended = self._oldest_open(), self._ended
            if oldest is None:
                self._unstable = tuple(ended)
            else:
                self._unstable = (*islice(ended, bisect_left(ended, oldest)), oldest)
        return self._unstable

    @property
    def oldest_start_ms(self) -> int:
        """The earliest known start of an open transaction in wall-clock ms; -1 if there is none.

        Cost: O(log n), amortized.
        """
        starts = self._starts
        while starts and self.first_offset(starts[0][2]) != starts[0][1]:
            heappop(starts)
        return starts[0][0] if starts else -1

    def _oldest_open(self) -> UnstableTransaction | None:
        """Return the open transaction with the lowest first offset; None if none is open.

        Cost: O(1), except for the first call after a load, which sorts the open transactions.
        """
        if not self._is_in_order:
            in_order = sorted(self._open.items(), key=lambda item: item[1])
            self._open, self._is_in_order = OrderedDict(in_order), True
        return next(iter(self._open.values()), None)

    def first_offset(self, producer_id: int) -> int | None:
        """Return the first offset of the producer's open transaction; None if it has none."""
        found = self._open.get(producer_id)
        return None if found is None else found.first_offset

    def add_batch(self, producer_id: int, first_offset: int, now_ms: int = -1) -> None:
        """Record a transactional batch. It starts a transaction if its producer has none open.

        :param now_ms: wall-clock time; -1 if unknown.
        """
        if producer_id not in self._open:
            begun = UnstableTransaction(first_offset, producer_id, began_ms=now_ms)
            if self._open and next(reversed(self._open.values())) > begun:
                self._is_in_order = False  # A snapshot has the order of producers.
            self._open[producer_id] = begun
            self._unstable = None
            if now_ms >= 0:
                self._add_start(now_ms, first_offset, producer_id)

    def _add_start(self, now_ms: int, first_offset: int, producer_id: int) -> None:
        heappush(self._starts, (now_ms, first_offset, producer_id))
        if len(self._starts) > 2 * len(self._open) + _STALE_STARTS:
            self._starts = [
                (one.began_ms, one.first_offset, one.producer_id)
                for one in self._open.values()
                if one.began_ms >= 0
            ]
            heapify(self._starts)

    def end(self, producer_id: int, last_offset: int) -> int | None:
        """Record a marker at ``last_offset``, which is above all recorded before.

        Returns the first offset of the transaction that it ends; None if none was open.
        """
        begun = self._open.pop(producer_id, None)
        if begun is None:
            return None
        ended = self._ended
        while ended and ended[-1].first_offset >= begun.first_offset:
            ended.pop()
        ended.append(begun._replace(last_offset=last_offset))
        if len(ended) > 2 * ENDED_KEPT:
            self._merge_oldest()
        self._unstable = None
        return begun.first_offset

    def _merge_oldest(self) -> None:
        """Replace the older half by one transaction that contains it."""
        merged = self._ended.popleft()
        while len(self._ended) >= ENDED_KEPT:
            merged = merged._replace(last_offset=self._ended.popleft().last_offset)
        self._ended.appendleft(merged)

    def stable_after(self, marker_offset: int) -> int:
        """Return the first offset of the oldest open transaction, else the offset after the
        marker.
        """
        oldest = self._oldest_open()
        return marker_offset + 1 if oldest is None else oldest.first_offset

    def replicated(self, high_watermark: int) -> None:
        """Forget ended transactions whose markers are below ``high_watermark``, because they are
        replicated.
        """
        ended = self._ended
        while ended and ended[0].last_offset < high_watermark:
            ended.popleft()
            self._unstable = None
