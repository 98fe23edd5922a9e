"""DISK. ``IndexRebuild``: rebuilds the indexes of one segment from its batches, in steps.

* A step reads about :data:`_STEP_BYTES`, so that other operations of the directory run between two
  steps. The walk keeps its position, so that any caller can run the next step.
* A survey also checks the CRC of each batch. The rebuilt indexes then skip the damage.
* While a survey runs, batches may be appended to the segment: the walk continues to its new end.
  A segment without indexes is not appended to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kraftjbod.storage.segments.batch_runs import SoundRun, sound_runs
from kraftjbod.storage.segments.batch_walk import Damage, walk_sound_around_damage
from kraftjbod.storage.segments.segment import NO_LIMIT, LogSegment, SegmentUnreadError
from kraftjbod.storage.segments.steps import Steps

#: A step of this size takes some milliseconds of disk and interpreter time.
_STEP_BYTES: Final = 1024 * 1024


class IndexRebuild:
    """Rebuilds the offset and time index of one segment from its batches. With ``is_survey`` it
    also finds damage.

    Call :meth:`step` in the directory's thread until it returns True, only while the segment
    belongs to its log.
    """

    def __init__(self, unread: SegmentUnreadError) -> None:
        self.segment: LogSegment = unread.segment
        self.did_not_fit = unread.did_not_fit
        self.is_survey = unread.survey_end is not None
        #: End offset of the segment as far as it was read; only a survey knows it.
        self.end_offset = NO_LIMIT if unread.survey_end is None else unread.survey_end
        self._limit_offset = self.end_offset
        #: Number of bytes that are read when :meth:`step` returns True.
        self.size_bytes = unread.size_bytes
        self._truncations = unread.truncations
        self.fresh = self.segment.fresh_indexes()
        self._read_bytes = 0
        self._walk: Iterator[SoundRun | Damage | None] | None = None
        #: True during a step, and after a step that failed: its walk cannot be continued.
        self._is_stepping = False

    @property
    def is_valid(self) -> bool:
        """Whether no step failed and the segment was not truncated.

        Read it in the directory's thread.
        """
        return not self._is_stepping and self.segment.truncations == self._truncations

    def is_for(self, unread: SegmentUnreadError) -> bool:
        """Return whether this rebuild does what ``unread`` demands: the same segment, truncations
        and survey.
        """
        is_survey = unread.survey_end is not None
        is_its = self.segment is unread.segment and self._truncations == unread.truncations
        return is_its and self.is_survey == is_survey

    def step(self) -> bool:
        """Read about 1 MiB. Return whether the whole segment has been read."""
        self._is_stepping = True
        is_complete = self._step()
        self._is_stepping = False
        return is_complete

    def _step(self) -> bool:
        before = self._read_bytes
        if self._walk is None:
            self._walk = self._begin()
        for found in self._walk:
            self.fresh.take(found)
            if isinstance(found, SoundRun):
                self._note_end(found)
            if found is None or self._read_bytes - before >= _STEP_BYTES:
                return False
        if self.is_survey and self.segment.size_bytes > self.size_bytes:
            self._walk = self._continue()
            return False
        return True

    def _begin(self) -> Iterator[SoundRun | Damage | None]:
        return walk_sound_around_damage(
            self._runs_from,
            self.segment.read_at,
            end=self.size_bytes,
            begin_offset=self.segment.base_offset,
            end_offset=self.end_offset,
            # The old indexes show where batches begin after damage.
            known=self.segment.known_positions,
        )

    def _runs_from(self, position: int, next_offset: int) -> Iterator[SoundRun]:
        """Return the runs from ``position`` up to the first damage or to ``size_bytes``."""
        segment = self.segment
        self.fresh.lead_past_damage(next_offset, position)
        scan = self.fresh.indexes.batch_scan(
            next_offset=next_offset,
            may_have_gaps=segment.may_have_gaps,
            check_crc_of_each=self.is_survey,
            end_offset=self._limit_offset,
        )
        return sound_runs(
            segment.read_at, scan, position=position, end=self.size_bytes, on_progress=self._count
        )

    def _continue(self) -> Iterator[SoundRun]:
        """Return the runs of batches that were appended since ``size_bytes`` was last set."""
        position, self.size_bytes = self.size_bytes, self.segment.size_bytes
        self._limit_offset = NO_LIMIT
        return self._runs_from(position, self.end_offset)

    def _note_end(self, run: SoundRun) -> None:
        if self.is_survey and run.end == self.size_bytes:
            self.end_offset = run.next_offset

    def _count(self, size_bytes: int) -> None:
        self._read_bytes += size_bytes


def ensure_indexes(segment: LogSegment) -> Steps[None]:
    """Load the indexes of ``segment``, or rebuild them if their files are missing or do not fit.

    No other operation may change the segment between the steps.
    """
    try:
        segment.load_indexes()
    except SegmentUnreadError as unread:
        rebuild = IndexRebuild(unread)
        while not rebuild.step():
            yield _STEP_BYTES
        segment.adopt(rebuild.fresh)
