"""PURE. Transactions of one partition that hold back what readers of committed records may see.

A transaction begins with its producer's first transactional batch and ends with a marker.
It is *unstable* while it is open, and from then on until its marker is below the high watermark:
a marker that is not replicated may be lost, and the transaction be open again.

The last stable offset (LSO) is where the oldest unstable transaction begins, or the high watermark
if none does below it. Everybody who has the log's batches and the high watermark comes to the same.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_OPEN: Final = 2**63 - 1


class UnstableTransaction(NamedTuple):
    """From its first batch to its marker, both inclusive; one that is open has no end."""

    first_offset: int
    producer_id: int
    last_offset: int = _OPEN
    #: Wall time at which it was appended here, or when a snapshot says its producer last wrote.
    began_ms: int = -1

    @property
    def is_open(self) -> bool:
        return self.last_offset == _OPEN


def last_stable_offset(
    unstable: tuple[UnstableTransaction, ...], *, log_start_offset: int, high_watermark: int
) -> int:
    """Below it everything is decided; ``unstable`` are in the order of their beginnings."""
    for transaction in unstable:
        if transaction.last_offset >= high_watermark:
            return min(max(transaction.first_offset, log_start_offset), high_watermark)
    return high_watermark


class OpenTransactions:
    """Owned by whoever owns the log; :attr:`unstable` may be held by anybody."""

    __slots__ = ("_first_offsets", "unstable")

    def __init__(self) -> None:
        #: Of each producer with an open transaction.
        self._first_offsets: dict[int, int] = {}
        #: In the order of their beginnings; another tuple whenever there are others.
        self.unstable: tuple[UnstableTransaction, ...] = ()

    def __len__(self) -> int:
        return len(self._first_offsets)

    def first_offset(self, producer_id: int) -> int | None:
        """Where the producer's open transaction begins; None if it has none."""
        return self._first_offsets.get(producer_id)

    def begin(self, producer_id: int, first_offset: int, now_ms: int = -1) -> None:
        """A transactional batch: it belongs to the open transaction, or begins one."""
        if producer_id not in self._first_offsets:
            self._first_offsets[producer_id] = first_offset
            begun = UnstableTransaction(first_offset, producer_id, began_ms=now_ms)
            in_order = not self.unstable or self.unstable[-1] < begun
            unstable = (*self.unstable, begun)
            self.unstable = unstable if in_order else tuple(sorted(unstable))

    def end(self, producer_id: int, last_offset: int) -> int | None:
        """A marker at ``last_offset``: where what it ends began; None if nothing was open."""
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
        """Where the oldest open transaction begins, or what follows the marker."""
        for one in self.unstable:
            if one.is_open:
                return one.first_offset
        return marker_offset + 1

    def replicated(self, high_watermark: int) -> None:
        """Forget what ended below ``high_watermark``."""
        if any(one.last_offset < high_watermark for one in self.unstable):
            still = tuple(one for one in self.unstable if one.last_offset >= high_watermark)
            self.unstable = still
