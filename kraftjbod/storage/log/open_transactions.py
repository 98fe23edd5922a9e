"""PURE. Transactions of one partition that determine its last stable offset.

A transaction starts with its producer's first transactional batch and ends with a marker. While it
is open it is *unstable*, and also afterwards until its marker is below the high watermark. A marker
that is not replicated may be lost, and then the transaction is open again.

The last stable offset (LSO) is the first offset of the oldest unstable transaction, or the high
watermark if that is lower. Replicas with the same batches and high watermark compute the same LSO,
unless more than :data:`ENDED_KEPT` transactions ended above the high watermark.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

_OPEN: Final = 2**63 - 1
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

    Cost: O(1) per batch and marker, amortized, so that a load or a fetched chunk of many small
    transactions takes time in proportion to its batches.
    """

    __slots__ = ("_ended", "_is_in_order", "_open", "_unstable")

    def __init__(self) -> None:
        #: Open transactions by producer, in the order of first offsets if ``_is_in_order``.
        self._open: dict[int, UnstableTransaction] = {}
        self._is_in_order = True
        #: Ended transactions. First and last offsets both ascend: a transaction that lies within
        #: a later one never determines the LSO, and is removed.
        self._ended: deque[UnstableTransaction] = deque()
        #: Value of :attr:`unstable`; None after a change.
        self._unstable: tuple[UnstableTransaction, ...] | None = ()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def unstable(self) -> tuple[UnstableTransaction, ...]:
        """All transactions that may determine the LSO, in the order of first offsets.

        Cost: O(n) after a change. There are at most ``2 * ENDED_KEPT`` besides the open ones.
        """
        if self._unstable is None:
            self._unstable = tuple(sorted((*self._ended, *self._open.values())))
        return self._unstable

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
        if not self._is_in_order:
            in_order = sorted(self._open.items(), key=lambda item: item[1])
            self._open, self._is_in_order = dict(in_order), True
        for one in self._open.values():
            return one.first_offset
        return marker_offset + 1

    def replicated(self, high_watermark: int) -> None:
        """Forget ended transactions whose markers are below ``high_watermark``, because they are
        replicated.
        """
        ended = self._ended
        while ended and ended[0].last_offset < high_watermark:
            ended.popleft()
            self._unstable = None
