"""DISK. ``LogDamage``: the known damage of one log, and the repair of wrong indexes.

* An index that leads to no batch is rebuilt from its segment. This rebuild also checks all batches
  and is called a survey.
* Damage of the log itself is recorded until it is truncated. published_log.py logs it.

Methods run in the directory's thread. Other components decide what to do about damage.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import TypeVar

from kraftjbod.core.errors import CorruptRecordError
from kraftjbod.storage.segments.batch_walk import Damage, WouldWait
from kraftjbod.storage.segments.index_rebuild import IndexRebuild
from kraftjbod.storage.segments.segment import LogSegment, SegmentUnreadError
from kraftjbod.storage.segments.segment_scrub import SegmentScrub

T = TypeVar("T")


class LogDamage:
    """Damaged ranges of one log that were found so far, and the rebuild of wrong indexes. Runs in
    the directory's thread.

    :param segments: the list of the log's segments, which the log changes.
    :param log_end: returns the log end offset.
    """

    def __init__(
        self,
        segments: list[LogSegment],
        log_end: Callable[[], int],
        damages: tuple[Damage, ...] = (),
    ) -> None:
        self._segments = segments
        self._log_end = log_end
        #: In ascending order.
        self.damages = damages
        self.indexes_mended = 0

    def open(self, segment: LogSegment) -> None:
        """Open the file of ``segment`` and load its indexes.

        :raises SegmentUnreadError: index files are missing or do not match.
        """
        segment.open()
        segment.load_indexes()

    def require_survey(self, at: int, surveyed: LogSegment | None) -> None:
        """Raise an error unless segment number ``at`` was surveyed for this request.

        Called when the segment's index or content is wrong.

        :param surveyed: the segment that was surveyed for this request; None if none was.
        :raises SegmentUnreadError: the survey has to be done first.
        """
        segment = self._segments[at]
        if segment is not surveyed:
            raise SegmentUnreadError(segment, survey_end=self._end_of(at))

    def _end_of(self, at: int) -> int:
        is_active = at == len(self._segments) - 1
        return self._log_end() if is_active else self._segments[at + 1].base_offset

    def by_index(self, at: int, search: Callable[[], T], surveyed: LogSegment | None = None) -> T:
        """Return the result of ``search``, which uses the indexes of segment number ``at``.

        :param surveyed: as in :meth:`require_survey`.
        :raises SegmentUnreadError: the index is missing, or leads to no batch and was not surveyed.
        :raises CorruptRecordError: the index leads to no batch after a survey.
        """
        segment = self._segments[at]
        self.open(segment)
        try:
            return search()
        except CorruptRecordError:
            self.require_survey(at, surveyed)
            raise
        except WouldWait as e:
            self.require_survey(at, surveyed)
            raise CorruptRecordError(f"{segment.path} ends inside a batch") from e

    def require_end(self, at: int, surveyed: LogSegment | None = None) -> None:
        """Require that segment number ``at`` ends where the next one begins, or that its damage is
        known. Compaction keeps the last batch of a segment, so a compacted one has the same end.

        A search that continues in the next segment calls this method, because the next segment does
        not show that records before it are lost. The last segment needs no check: loading compares
        its end with the recovery point.

        Cost: as :meth:`LogSegment.end_offset`, once per segment.

        :param surveyed: as in :meth:`require_survey`.
        :raises SegmentUnreadError: the index is missing, or the segment has another end and was not
            surveyed.
        """
        segment = self._segments[at]
        if at + 1 == len(self._segments):
            return
        end = self._end_of(at)
        if segment.end_offset() == end:
            return
        if not any(segment.base_offset <= damage.offset < end for damage in self.damages):
            self.require_survey(at, surveyed)

    def rebuild_step(self, rebuild: IndexRebuild) -> bool:
        """Run a step of ``rebuild``. Return True if it is complete, or not needed any more."""
        return not self._is_useful(rebuild) or rebuild.step()

    def take_rebuilt(self, rebuild: IndexRebuild) -> bool:
        """Finish the rebuild, use its indexes, and record the damage that a survey found.

        Return False if they are no longer valid or needed: the segment was replaced or truncated, a
        step failed, or the segment has indexes already.
        """
        segment = rebuild.segment
        if not self._is_useful(rebuild):
            return False
        while not rebuild.step():
            pass  # Include batches that were appended since the last step.
        segment.adopt(rebuild.fresh)
        if rebuild.is_survey:
            self._note(segment.base_offset, rebuild.end_offset, rebuild.fresh.damages)
            self.indexes_mended += not rebuild.fresh.damages
        else:
            self.indexes_mended += rebuild.did_not_fit
        return True

    def _is_useful(self, rebuild: IndexRebuild) -> bool:
        segment = rebuild.segment
        at = bisect_left(self._segments, segment.base_offset, key=lambda s: s.base_offset)
        is_there = self._segments[at : at + 1] == [segment]
        return is_there and rebuild.is_valid and (rebuild.is_survey or not segment.has_indexes)

    def take_scrubbed(self, scrub: SegmentScrub) -> bool:
        """Record the findings of a scrub and use its indexes. If index files were wrong and the
        segment has no damage, write them.

        Return False, without an effect, if the segment was replaced or truncated meanwhile.
        """
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
        """Forget damage that starts at or after ``offset``, where the log was truncated."""
        self.damages = tuple(d for d in self.damages if d.offset < offset)

    def forget_before(self, offset: int) -> None:
        """Forget damage that ends at or below ``offset``, the new log start."""
        self.damages = tuple(d for d in self.damages if d.next_offset > offset)

    def _note(self, base_offset: int, end_offset: int, found: Sequence[Damage]) -> None:
        """Replace the recorded damage of one segment by ``found``."""
        elsewhere = [d for d in self.damages if not base_offset <= d.offset < end_offset]
        self.damages = tuple(sorted([*elsewhere, *found]))
