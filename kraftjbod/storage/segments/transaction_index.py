"""PURE. ``TransactionIndex``: the aborted transactions whose markers are in one segment.

* Consumers with ``read_committed`` (KIP-98) use the index to skip batches of aborted transactions.
* Entries are kept in memory. The file is written as a whole when a segment is rolled or closed, in
  Kafka's format: 34 bytes per entry, big-endian, in the order of the markers. Kafka writes an entry
  with each marker, but a write to a second file could fail after the first one.
* The directory's thread appends while the event loop collects. Truncation creates a new index.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from kraftjbod.protocol.framing import Buffer

_VERSION: Final = 0
_ENTRY: Final = struct.Struct(">hqqqq")
ENTRY_BYTES: Final = _ENTRY.size


class AbortedTransaction(NamedTuple):
    """An aborted transaction with records in this log. Both offsets are inclusive."""

    producer_id: int
    first_offset: int
    #: Offset of the abort marker.
    last_offset: int
    #: First offset of the oldest transaction that was open beside it, or the offset after the
    #: marker.
    last_stable_offset: int


_last_offset = attrgetter("last_offset")


class TransactionIndex:
    """Aborted transactions whose markers are in one segment, in the order of the markers.
    ``read_committed`` consumers skip their batches.
    """

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[AbortedTransaction] = ()) -> None:
        self._entries = list(entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<TransactionIndex {self._entries}>"

    @property
    def entries(self) -> Sequence[AbortedTransaction]:
        return self._entries

    def append_aborted(self, aborted: AbortedTransaction) -> None:
        self._entries.append(aborted)

    def below(self, end_offset: int) -> TransactionIndex:
        """Return the index without the transactions whose markers are at or above
        ``end_offset``.
        """
        return TransactionIndex(self._entries[: self._at(end_offset)])

    def collect(self, first_offset: int, end_offset: int, found: list[AbortedTransaction]) -> bool:
        """Add the transactions that overlap ``[first_offset, end_offset)`` to ``found``.

        Returns False if no transaction in a later segment can overlap, so the search may stop.
        """
        for aborted in self._entries[self._at(first_offset) :]:
            if aborted.first_offset < end_offset:
                found.append(aborted)
            if aborted.last_stable_offset >= end_offset:
                return False
        return True

    def _at(self, offset: int) -> int:
        return bisect_left(self._entries, offset, key=_last_offset)

    def to_bytes(self) -> bytes:
        return b"".join(_ENTRY.pack(_VERSION, *entry) for entry in self._entries)

    @classmethod
    def from_bytes(cls, base_offset: int, data: Buffer) -> TransactionIndex | None:
        """Parse ``data``; None if it cannot be the index of the segment with ``base_offset``."""
        if len(data) % ENTRY_BYTES:
            return None
        entries, least = [], base_offset
        for version, *fields in _ENTRY.iter_unpack(data):
            entry = AbortedTransaction(*fields)
            is_in_order = 0 <= entry.first_offset < entry.last_offset >= least
            if version < _VERSION or not is_in_order or entry.producer_id < 0:
                return None
            entries.append(entry)
            least = entry.last_offset + 1
        return cls(entries)
