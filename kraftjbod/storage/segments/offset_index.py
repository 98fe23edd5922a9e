"""DISK. Sparse indexes of one segment: offset to file position, and timestamp to offset.

* Entries live in memory; the files are written as a whole when a segment is rolled or closed,
  in Kafka's formats (8 and 12 bytes an entry, big-endian, offsets relative to the base).
* Parsing runs in C: a segment of 1 GiB has 262,144 entries at the default interval.
* They can be rebuilt from the segment, so a file is never trusted: what does not fit is dropped.
* The dir's thread appends while the loop searches. Each lookup takes the arrays once, positions
  are appended before offsets, and shortening makes new arrays, so a reader sees a whole past.
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
    """Last offset of some batches, and where those batches begin in the file."""

    __slots__ = ("_base_offset", "_entries")

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        #: Relative offsets and positions, both strictly rising.
        self._entries: tuple[array[int], array[int]] = (array("I"), array("I"))

    def __len__(self) -> int:
        return len(self._entries[0])

    def append(self, last_offset: int, position: int) -> None:
        """The batch that ends with ``last_offset`` begins at ``position``."""
        offsets, positions = self._entries
        positions.append(position)
        offsets.append(last_offset - self._base_offset)

    def position_before(self, offset: int) -> int:
        """Where a walk that searches for ``offset`` begins: at or before its batch."""
        offsets, positions = self._entries
        at = bisect_right(offsets, offset - self._base_offset)
        return positions[at - 1] if at > 0 else 0

    def position_at_most(self, limit: int) -> int:
        """The last known beginning of a batch that is not after the position ``limit``."""
        _, positions = self._entries
        at = bisect_right(positions, limit)
        return positions[at - 1] if at > 0 else 0

    def offset_at(self, position: int) -> int | None:
        """The offset in the entry for ``position``; None without such an entry.

        It is the last offset of the batch there or, after damage, the offset before that batch.
        """
        offsets, positions = self._entries
        at = bisect_left(positions, position)
        is_known = at < len(positions) and positions[at] == position and at < len(offsets)
        return self._base_offset + offsets[at] if is_known else None

    def offset_below(self, position: int) -> int:
        """An offset such that all batches below it end before the file position ``position``."""
        offsets, positions = self._entries
        # The last batch known to begin there; where it begins shows that those before it end.
        at = bisect_right(positions, position) - 2
        return self._base_offset + (offsets[at] + 1 if at >= 0 else 0)

    def positions_after(self, position: int) -> Sequence[int]:
        """Known beginnings of batches after ``position``, rising."""
        _, positions = self._entries
        return positions[bisect_right(positions, position) :]

    def entries(self) -> Iterator[tuple[int, int]]:
        """Last offset and position of each known batch, rising."""
        for offset, position in zip(*self._entries, strict=True):
            yield self._base_offset + offset, position

    def last_position(self) -> int:
        """The last known beginning of a batch; 0 without entries."""
        _, positions = self._entries
        return positions[-1] if positions else 0

    def below(self, size_bytes: int) -> OffsetIndex:
        """Return the index of the batches that begin before the position ``size_bytes``."""
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
        """The index in ``data``, or None if it cannot belong to a segment of that size."""
        if len(data) % OFFSET_ENTRY_BYTES:
            return None
        flat = array("I", bytes(data))
        if not _NATIVE_IS_BIG:
            flat.byteswap()
        offsets, positions = flat[0::2], flat[1::2]
        if not _rises(offsets) or not _rises(positions):
            return None
        if positions and positions[-1] >= segment_bytes:
            return None
        index = cls(base_offset)
        index._entries = (offsets, positions)
        return index


class TimeEntry(NamedTuple):
    timestamp: int
    offset: int


class TimeIndex:
    """The largest timestamp up to some points of a segment, and the offset that had it."""

    __slots__ = ("_base_offset", "_entries")

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self._entries: tuple[array[int], array[int]] = (array("q"), array("I"))

    def __len__(self) -> int:
        return len(self._entries[0])

    def append(self, timestamp: int, offset: int) -> None:
        """Kept only if it says more than the last entry."""
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
        """Where a walk begins that searches for the first record not older than ``timestamp``."""
        timestamps, offsets = self._entries
        at = bisect_left(timestamps, timestamp)
        return self._base_offset + (offsets[at - 1] if at > 0 else 0)

    def entries(self) -> Iterator[TimeEntry]:
        """Every one, rising."""
        for timestamp, offset in zip(*self._entries, strict=True):
            yield TimeEntry(timestamp, self._base_offset + offset)

    def below(self, end_offset: int) -> TimeIndex:
        """Return the index without the entries for offsets from ``end_offset`` on."""
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
        """The index in ``data``, or None if it cannot be one."""
        if len(data) % TIME_ENTRY_BYTES:
            return None
        words = array("I", bytes(data))
        if not _NATIVE_IS_BIG:
            words.byteswap()
        halves = array("I", bytes(8 * (len(words) // 3)))
        halves[not _NATIVE_IS_BIG :: 2], halves[_NATIVE_IS_BIG::2] = words[0::3], words[1::3]
        timestamps, offsets = array("q", halves.tobytes()), words[2::3]
        if not _rises(timestamps) or not _rises(offsets):
            return None
        index = cls(base_offset)
        index._entries = (timestamps, offsets)
        return index


def _rises(values: array[int]) -> bool:
    found = values.tolist()
    return all(map(lt, found, islice(found, 1, None)))


def _big_endian(values: array[int]) -> bytes:
    if not _NATIVE_IS_BIG:
        values.byteswap()
    return values.tobytes()
