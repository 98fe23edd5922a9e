"""DISK. ``TrustedBytes``: which bytes of a segment file may be sent from memory without a check.

* This process trusts bytes that it wrote, and bytes that it verified, CRC included, since it opened
  the file.
* A reader that may wait for the disk calls :meth:`~TrustedBytes.doubt` before it reads. The doubt
  covers the bytes of the read and those that the kernel may read ahead, because pages that left
  memory must not be trusted when they return. After a check the reader calls
  :meth:`~TrustedBytes.trust`.
* A reader from memory calls :meth:`~TrustedBytes.end_from` again after its read, because another
  thread may have read ahead meanwhile.
* There are at most :data:`MAX_RANGES` ranges. A forgotten range only costs another check.

ADR 100 has the alternatives.
"""

from __future__ import annotations

import threading
from typing import Final

#: Largest readahead of the kernel that is expected (``read_ahead_kb``; the default is 128 KiB).
READ_AHEAD_BYTES: Final = 16 * 1024 * 1024
MAX_RANGES: Final = 8
#: End of the last range: bytes that are appended next are trusted.
_OPEN: Final = 2**63


class TrustedBytes:
    """Ranges of a segment file that this process wrote or verified, and that may be sent from
    memory without a check. Positions are in bytes. Any thread may call any method.
    """

    __slots__ = ("_mutex", "_ranges")

    def __init__(self, written_from: int) -> None:
        """Trust the bytes that this process writes from the position ``written_from`` on."""
        #: Rising, disjoint, and replaced as a whole; the last one is open at its end.
        self._ranges: tuple[tuple[int, int], ...] = ((written_from, _OPEN),)
        self._mutex = threading.Lock()

    def __repr__(self) -> str:
        return f"<TrustedBytes {self._ranges}>"

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Begin and end of each trusted range, ascending and disjoint."""
        return self._ranges

    def end_from(self, position: int) -> int:
        """Return the end of the trusted range that holds ``position``; ``position`` itself if none
        does.
        """
        for low, high in reversed(self._ranges):
            if low <= position:
                return max(high, position)
        return position

    def trust(self, begin: int, end: int) -> None:
        """Add a range that was verified. It must end at or before the present end of the file."""
        with self._mutex:
            apart = []
            for low, high in self._ranges:
                if high < begin or end < low:
                    apart.append((low, high))
                else:
                    begin, end = min(begin, low), max(end, high)
            self._ranges = _longest_ranges([*apart, (begin, end)])

    def doubt(self, begin: int, size: int, file_size: int) -> None:
        """Remove ``size`` bytes from ``begin`` on, and the bytes that may be read ahead, from the
        ranges.

        Bytes that are appended after ``file_size``, the present size of the file, stay trusted.
        """
        end = min(begin + size + READ_AHEAD_BYTES, file_size)
        if begin >= end:
            return
        with self._mutex:
            kept = []
            for low, high in self._ranges:
                if low < begin:
                    kept.append((low, min(high, begin)))
                if high > end:
                    kept.append((max(low, end), high))
            self._ranges = _longest_ranges(kept)

    def truncate(self, file_size: int) -> None:
        """Remove the ranges after ``file_size``. Bytes that are appended there are trusted."""
        with self._mutex:
            kept = [(low, min(high, file_size)) for low, high in self._ranges if low < file_size]
            self._ranges = (*kept, (file_size, _OPEN))
            if kept and kept[-1][1] == file_size:
                self._ranges = (*kept[:-1], (kept[-1][0], _OPEN))


def _longest_ranges(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the open range and the longest others, at most :data:`MAX_RANGES` in all, in ascending
    order.
    """
    rising = sorted(ranges)
    while len(rising) > MAX_RANGES:
        rising.remove(min(rising[:-1], key=lambda found: found[1] - found[0]))
    return tuple(rising)
