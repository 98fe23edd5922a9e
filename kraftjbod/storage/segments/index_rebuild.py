"""DISK. ``IndexRebuild``: rebuilds the indexes of one closed segment from its batches, in steps.

A step reads about :data:`_STEP_BYTES`, so that other operations of the directory run between two
steps. The walk keeps its position, so that any caller can run the next step.
"""

from __future__ import annotations

from typing import Final

from kraftjbod.storage.segments.segment import NO_LIMIT, LogSegment

#: Some milliseconds of a disk, and some tens of the interpreter if batches are small.
_STEP_BYTES: Final = 1024 * 1024


class IndexRebuild:
    """In the dir's thread, as long as the segment is in its log."""

    def __init__(self, segment: LogSegment, *, did_not_fit: bool) -> None:
        """``did_not_fit``: index files were there, and were not the segment's."""
        self.segment = segment
        self.did_not_fit = did_not_fit
        #: As it was when the rebuild began; a segment of another size was truncated meanwhile.
        self.size_bytes = segment.size_bytes
        self.fresh = segment.fresh_indexes()
        self._read_bytes = 0
        self._walk = segment.walk(
            segment.read_at,
            known=lambda _position: (),
            check_crc_of_each=False,
            end_offset=NO_LIMIT,
            on_progress=self._count,
            chunk_bytes=_STEP_BYTES,
        )

    def _count(self, size_bytes: int) -> None:
        self._read_bytes += size_bytes

    def step(self) -> bool:
        """Read a little further; whether that was all."""
        before = self._read_bytes
        for found in self._walk:
            self.fresh.take(found)
            if self._read_bytes - before >= _STEP_BYTES:
                return False
        return True
