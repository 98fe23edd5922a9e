"""DISK. ``LogDamage``: what is known of one log's damage, and indexes that were wrong.

* An index that leads nowhere is made anew from its segment.
* Damage of the log itself is noted and logged by whoever asks; and forgotten once truncated.

In the dir's thread. What becomes of damage is decided elsewhere.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TypeVar

from kraftjbod.core.errors import CorruptRecordError
from kraftjbod.storage.segments.batch_walk import Damage, OnProgress, no_progress
from kraftjbod.storage.segments.index_rebuild import IndexRebuild
from kraftjbod.storage.segments.segment import LogSegment
from kraftjbod.storage.segments.segment_scrub import SegmentScrub

T = TypeVar("T")


class LogDamage:
    """Of the log that ``segments`` belong to: the list itself, as it changes."""

    def __init__(
        self,
        segments: list[LogSegment],
        log_end: Callable[[], int],
        damages: tuple[Damage, ...] = (),
        *,
        on_progress: OnProgress = no_progress,
    ) -> None:
        self._segments = segments
        self._log_end = log_end
        #: Rising.
        self.damages = damages
        self.indexes_mended = 0
        #: Gets how many bytes were read since the last time, when a whole segment is read.
        self._on_progress = on_progress

    def open(self, segment: LogSegment, *, may_rebuild: bool = True) -> None:
        """Open the file and load the indexes.

        :raises IndexLostError: unless ``may_rebuild``, for a closed segment that has to be read as
            a whole. That of the active one is rebuilt: it grows meanwhile.
        """
        segment.open()
        may_rebuild = may_rebuild or segment is self._segments[-1]
        if not segment.load_indexes(self._on_progress, may_rebuild=may_rebuild):
            self.indexes_mended += 1

    def survey(self, at: int) -> None:
        """Something in a segment is wrong: its index, or what stands in it."""
        segment, is_active = self._segments[at], at == len(self._segments) - 1
        end_offset = self._log_end() if is_active else self._segments[at + 1].base_offset
        found = segment.survey(end_offset, self._on_progress)
        if not found:
            self.indexes_mended += 1
        self._note(segment.base_offset, end_offset, found)

    def by_index(self, at: int, search: Callable[[], T], *, may_rebuild: bool = True) -> T:
        """``search`` a segment by its index; if that leads nowhere, once more by a new one.

        Raises as :meth:`open`.
        """
        self.open(self._segments[at], may_rebuild=may_rebuild)
        try:
            return search()
        except CorruptRecordError:
            self.survey(at)
        return search()

    def rebuild_step(self, rebuild: IndexRebuild) -> bool:
        """Continue ``rebuild``; return True if it is complete, or not needed any more."""
        return not self._is_closed_segment(rebuild) or rebuild.step()

    def take_rebuilt(self, rebuild: IndexRebuild) -> bool:
        """Use the indexes that were made; False if the segment is another one by now."""
        segment = rebuild.segment
        if segment.has_indexes or not self._is_closed_segment(rebuild):
            return False
        segment.adopt(rebuild.fresh)
        self.indexes_mended += rebuild.did_not_fit
        return True

    def _is_closed_segment(self, rebuild: IndexRebuild) -> bool:
        segment = rebuild.segment
        at = bisect_left(self._segments, segment.base_offset, key=lambda s: s.base_offset)
        is_there = self._segments[at : at + 1] == [segment] and at + 1 < len(self._segments)
        return is_there and segment.size_bytes == rebuild.size_bytes

    def take_scrubbed(self, scrub: SegmentScrub) -> bool:
        """Believe a scrub of a closed segment; False if that is another one by now."""
        segment, end_offset = scrub.segment, scrub.end_offset
        at = bisect_left(self._segments, segment.base_offset, key=lambda s: s.base_offset)
        if not (
            self._segments[at : at + 1] == [segment]
            and segment.size_bytes == scrub.size_bytes
            and [s.base_offset for s in self._segments[at + 1 : at + 2]] == [end_offset]
        ):
            return False
        segment.adopt(scrub.fresh)
        self._note(segment.base_offset, end_offset, scrub.damages)
        if scrub.is_index_wrong and not scrub.damages:
            segment.write_indexes(sync=True)
            self.indexes_mended += 1
        return True

    def forget_from(self, offset: int) -> None:
        """The log ends there now."""
        self.damages = tuple(d for d in self.damages if d.offset < offset)

    def forget_before(self, offset: int) -> None:
        """The log begins there now."""
        self.damages = tuple(d for d in self.damages if d.next_offset > offset)

    def _note(self, base_offset: int, end_offset: int, found: Sequence[Damage]) -> None:
        """All that is damaged in one segment."""
        elsewhere = [d for d in self.damages if not base_offset <= d.offset < end_offset]
        self.damages = tuple(sorted([*elsewhere, *found]))
