"""PURE. ``TransactionIndex``: the aborted transactions whose markers stand in one segment.

* Readers of committed records (KIP-98) are told by it which batches to pass over.
* Entries live in memory; the file is written as a whole when a segment is rolled or closed, in
  Kafka's format: 34 bytes an entry, big-endian, in the order of the markers.
* The dir's thread appends while the loop collects; shortening makes another index.
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
    """One that had records here; offsets are inclusive."""

    producer_id: int
    first_offset: int
    #: Of the marker.
    last_offset: int
    #: Where the oldest transaction begins that was open beside it, or what follows the marker.
    last_stable_offset: int


_last_offset = attrgetter("last_offset")


class TransactionIndex:
    """Entries in the order of their markers."""

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

    def append(self, aborted: AbortedTransaction) -> None:
        self._entries.append(aborted)

    def below(self, end_offset: int) -> TransactionIndex:
        """What is left of it for a segment that ends there."""
        return TransactionIndex(self._entries[: self._at(end_offset)])

    def collect(self, first_offset: int, end_offset: int, found: list[AbortedTransaction]) -> bool:
        """Add what reaches into ``[first_offset, end_offset)`` to ``found``.

        False: no transaction that ended later does.
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
        """The index in ``data``, or None if it cannot belong to the segment with that base."""
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
