"""PURE. Transactions of one partition that determine its last stable offset.

A transaction starts with its producer's first transactional batch and ends with a marker. While it
is open it is *unstable*, and also afterwards until its marker is below the high watermark. A marker
that is not replicated may be lost, and then the transaction is open again.

The last stable offset (LSO) is the first offset of the oldest unstable transaction, or the high
watermark if that is lower. Replicas with the same batches and high watermark compute the same LSO.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_OPEN: Final = 2**63 - 1


class UnstableTransaction(NamedTuple):
    """A transaction from its first batch to its marker, both inclusive.

    ``last_offset`` of an open transaction is 2**63 - 1.
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
    """Unstable transactions of one log. Other threads may read :attr:`unstable`."""

    __slots__ = ("_first_offsets", "unstable")

    def __init__(self) -> None:
        #: First offset of the open transaction of each producer.
        self._first_offsets: dict[int, int] = {}
        #: In the order of first offsets. Replaced as a whole on each change.
        self.unstable: tuple[UnstableTransaction, ...] = ()

    def __len__(self) -> int:
        return len(self._first_offsets)

    def first_offset(self, producer_id: int) -> int | None:
        """Return the first offset of the producer's open transaction; None if it has none."""
        return self._first_offsets.get(producer_id)

    def add_batch(self, producer_id: int, first_offset: int, now_ms: int = -1) -> None:
        """Record a transactional batch. It starts a transaction if none of the producer is open."""
        if producer_id not in self._first_offsets:
            self._first_offsets[producer_id] = first_offset
            begun = UnstableTransaction(first_offset, producer_id, began_ms=now_ms)
            in_order = not self.unstable or self.unstable[-1] < begun
            unstable = (*self.unstable, begun)
            self.unstable = unstable if in_order else tuple(sorted(unstable))

    def end(self, producer_id: int, last_offset: int) -> int | None:
        """Record a marker at ``last_offset``.

        Returns the first offset of the transaction that it ends; None if none was open.
        """
        first_offset = self._first_offsets.pop(producer_id, None)
        if first_offset is not None:
            self.unstable = tuple(
                one._replace(last_offset=last_offset)
                if one.is_open and one.producer_id == producer_id
                else one
                for one in self.unstable
            )
        return first_offset

    def stable_after(self, marker_offset: int) -> int:
        """Return the first offset of the oldest open transaction, else the offset after the
        marker.
        """
        for one in self.unstable:
            if one.is_open:
                return one.first_offset
        return marker_offset + 1

    def replicated(self, high_watermark: int) -> None:
        """Forget transactions whose markers are below ``high_watermark``."""
        if any(one.last_offset < high_watermark for one in self.unstable):
            still = tuple(one for one in self.unstable if one.last_offset >= high_watermark)
            self.unstable = still
