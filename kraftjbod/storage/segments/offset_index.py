"""DISK. Sparse indexes of one segment: offset to file position, and timestamp to offset.

* Entries are kept in memory. The files are written as a whole when a segment is rolled or closed,
  in Kafka's formats (8 and 12 bytes per entry, big-endian, offsets relative to the base).
* Parsing runs in C: a segment of 1 GiB has 262,144 entries at the default interval.
* The indexes can be rebuilt from the segment, so a file that does not match is dropped.
* The directory's thread appends while the event loop searches. Each lookup takes the arrays once,
  positions are appended before offsets, and truncation creates new arrays. So a reader sees a
  consistent earlier state.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import lt
from typing import Final, NamedTuple

from kraftjbod.protocol.framing import Buffer

_NATIVE_IS_BIG: Final = sys.byteorder == "big"
OFFSET_ENTRY_BYTES: Final = 8
TIME_ENTRY_BYTES: Final = 12


class OffsetIndex:
    """Last offsets of some batches, and the positions of those batches in the file (``.index``)."""

    __slots__ = ("_base_offset", "_entries")

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        #: Relative offsets and positions, both strictly increasing.
        self._entries: tuple[array[int], array[int]] = (array("I"), array("I"))

    def __len__(self) -> int:
        return len(self._entries[0])

    def append_entry(self, last_offset: int, position: int) -> None:
        """Add an entry for the batch that ends with ``last_offset`` and starts at ``position``."""
        offsets, positions = self._entries
        positions.append(position)
        offsets.append(last_offset - self._base_offset)

    def position_before(self, offset: int) -> int:
        """Return the position of an indexed batch at or before the batch with ``offset``; 0 without
        one.
        """
        offsets, positions = self._entries
        at = bisect_right(offsets, offset - self._base_offset)
        return positions[at - 1] if at > 0 else 0

    def position_at_most(self, limit: int) -> int:
        """Return the last indexed batch position that is not after ``limit``; 0 without one."""
        _, positions = self._entries
        at = bisect_right(positions, limit)
        return positions[at - 1] if at > 0 else 0

    def offset_at(self, position: int) -> int | None:
        """Return the offset of the entry for ``position``; None without such an entry.

        The result is the last offset of the batch at ``position`` or, after damage, the offset
        before that batch.
        """
        offsets, positions = self._entries
        at = bisect_left(positions, position)
        is_known = at < len(positions) and positions[at] == position and at < len(offsets)
        return self._base_offset + offsets[at] if is_known else None

    def offset_below(self, position: int) -> int:
        """Return an offset such that all batches below it end before ``position``."""
        offsets, positions = self._entries
        # The second last batch is used: the position of the last one is the end of those before it.
        at = bisect_right(positions, position) - 2
        return self._base_offset + (offsets[at] + 1 if at >= 0 else 0)

    def positions_after(self, position: int) -> Sequence[int]:
        """Return the indexed batch positions after ``position``, in ascending order."""
        _, positions = self._entries
        return positions[bisect_right(positions, position) :]

    def has_position_in(self, begin: int, end: int) -> bool:
        """Return whether an indexed batch starts after ``begin`` and before ``end``.

        Cost: O(log n).
        """
        _, positions = self._entries
        at = bisect_right(positions, begin)
        return at < len(positions) and positions[at] < end

    def entries(self) -> Iterator[tuple[int, int]]:
        """Yield the offset (see :meth:`offset_at`) and the position of each entry, in ascending
        order.
        """
        for offset, position in zip(*self._entries, strict=True):
            yield self._base_offset + offset, position

    def last_position(self) -> int:
        """Return the last indexed batch position; 0 without entries."""
        _, positions = self._entries
        return positions[-1] if positions else 0

    def below(self, size_bytes: int) -> OffsetIndex:
        """Return a copy with the batches that begin before the position ``size_bytes``."""
        offsets, positions = self._entries
        keep = bisect_left(positions, size_bytes)
        index = OffsetIndex(self._base_offset)
        index._entries = (offsets[:keep], positions[:keep])
        return index

    def to_bytes(self) -> bytes:
        offsets, positions = self._entries
        count = len(offsets)
        words = array("I", bytes(OFFSET_ENTRY_BYTES * count))
        words[0::2], words[1::2] = offsets, positions[:count]
        return _big_endian(words)

    @classmethod
    def from_bytes(
        cls, base_offset: int, data: Buffer, *, segment_bytes: int
    ) -> OffsetIndex | None:
        """Parse ``data``; None if it cannot be the index of a segment of that size."""
        if len(data) % OFFSET_ENTRY_BYTES:
            return None
        flat = array("I", bytes(data))
        if not _NATIVE_IS_BIG:
            flat.byteswap()
        offsets, positions = flat[0::2], flat[1::2]
        if not _is_ascending(offsets) or not _is_ascending(positions):
            return None
        if positions and positions[-1] >= segment_bytes:
            return None
        index = cls(base_offset)
        index._entries = (offsets, positions)
        return index


class TimeEntry(NamedTuple):
    """Entry of a time index: the largest timestamp of the batches so far, and the last offset of
    the batch that has it.
    """

    timestamp: int
    offset: int


class TimeIndex:
    """Largest timestamps up to some points of a segment, each with its offset (``.timeindex``)."""

    __slots__ = ("_base_offset", "_entries")

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self._entries: tuple[array[int], array[int]] = (array("q"), array("I"))

    def __len__(self) -> int:
        return len(self._entries[0])

    def append_entry(self, timestamp: int, offset: int) -> None:
        """Add an entry if ``timestamp`` is larger than that of the last entry, or if there is no
        entry.
        """
        timestamps, offsets = self._entries
        if timestamps and timestamp <= timestamps[-1]:
            return
        offsets.append(offset - self._base_offset)
        timestamps.append(timestamp)

    def last(self) -> TimeEntry | None:
        timestamps, offsets = self._entries
        if not timestamps:
            return None
        return TimeEntry(timestamps[-1], self._base_offset + offsets[-1])

    def offset_before(self, timestamp: int) -> int:
        """Return the offset of the last entry older than ``timestamp``; the base offset without
        one.

        A walk from there finds the first record with ``timestamp`` or later.
        """
        timestamps, offsets = self._entries
        at = bisect_left(timestamps, timestamp)
        return self._base_offset + (offsets[at - 1] if at > 0 else 0)

    def entries(self) -> Iterator[TimeEntry]:
        """Yield all entries, in ascending order."""
        for timestamp, offset in zip(*self._entries, strict=True):
            yield TimeEntry(timestamp, self._base_offset + offset)

    def below(self, end_offset: int) -> TimeIndex:
        """Return a copy without the entries for offsets from ``end_offset`` on."""
        timestamps, offsets = self._entries
        keep = bisect_left(offsets, end_offset - self._base_offset)
        index = TimeIndex(self._base_offset)
        index._entries = (timestamps[:keep], offsets[:keep])
        return index

    def to_bytes(self) -> bytes:
        timestamps, offsets = self._entries
        halves = array("I", timestamps.tobytes())
        words = array("I", bytes(TIME_ENTRY_BYTES * len(timestamps)))
        words[0::3], words[1::3] = halves[not _NATIVE_IS_BIG :: 2], halves[_NATIVE_IS_BIG::2]
        words[2::3] = offsets[: len(timestamps)]
        return _big_endian(words)

    @classmethod
    def from_bytes(cls, base_offset: int, data: Buffer) -> TimeIndex | None:
        """Parse ``data``; None if it cannot be a time index."""
        if len(data) % TIME_ENTRY_BYTES:
            return None
        words = array("I", bytes(data))
        if not _NATIVE_IS_BIG:
            words.byteswap()
        halves = array("I", bytes(8 * (len(words) // 3)))
        halves[not _NATIVE_IS_BIG :: 2], halves[_NATIVE_IS_BIG::2] = words[0::3], words[1::3]
        timestamps, offsets = array("q", halves.tobytes()), words[2::3]
        if not _is_ascending(timestamps) or not _is_ascending(offsets):
            return None
        index = cls(base_offset)
        index._entries = (timestamps, offsets)
        return index


def _is_ascending(values: array[int]) -> bool:
    found = values.tolist()
    return all(map(lt, found, islice(found, 1, None)))


def _big_endian(values: array[int]) -> bytes:
    if not _NATIVE_IS_BIG:
        values.byteswap()
    return values.tobytes()
