"""``LogDamage``: damage found by reads and surveys, and its removal with the damaged records."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import CorruptRecordError
from kraftjbod.storage.log.log_damage import LogDamage
from kraftjbod.storage.segments.batch_walk import Damage
from kraftjbod.storage.segments.index_rebuild import IndexRebuild
from kraftjbod.storage.segments.segment import LogSegment, SegmentUnreadError
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import batch, headers_of


class Log:
    """Two segments of three batches of two records each."""

    def __init__(self) -> None:
        self.vfs = MemVfs()
        self.vfs.make_dirs("/d")
        self.segments = [self._segment(0), self._segment(6)]
        self.damage = LogDamage(self.segments, lambda: 12)

    def _segment(self, base: int) -> LogSegment:
        made = LogSegment(
            vfs=self.vfs, directory="/d", base_offset=base, size_bytes=0, index_interval_bytes=0
        )
        made.create()
        for offset in range(base, base + 6, 2):
            data = batch(2, base_offset=offset)
            made.append_batches([data], headers_of(data))
        return made

    def survey(self, number: int) -> bool:
        """Survey a segment as the handler of ``SegmentUnreadError`` does."""
        with pytest.raises(SegmentUnreadError) as unread:
            self.damage.require_survey(number, None)
        rebuild = IndexRebuild(unread.value)
        while not self.damage.rebuild_step(rebuild):
            pass
        return self.damage.take_rebuilt(rebuild)

    def rot(self, number: int, nth: int) -> None:
        """Flip a bit in the ``nth`` batch of a segment."""
        file = self.vfs.open(self.segments[number].path, OpenMode.READ)
        file.data[nth * len(batch(2)) + 70] ^= 1


def test_log_damage_extends_to_the_next_valid_batch_or_the_segment_end() -> None:
    log = Log()
    log.rot(0, 1)
    log.rot(1, 2)
    log.survey(1)
    log.survey(0)
    size = len(batch(2))
    assert log.damage.damages == (Damage(2, 4, size), Damage(10, 12, 2 * size))
    assert log.damage.indexes_mended == 0


def test_log_damage_survey_without_findings_counts_a_repaired_index() -> None:
    log = Log()
    log.survey(0)
    assert (log.damage.damages, log.damage.indexes_mended) == ((), 1)


def test_log_damage_is_forgotten_with_its_removed_offsets() -> None:
    log = Log()
    log.rot(0, 1)
    log.rot(1, 0)
    log.survey(0)
    log.survey(1)
    assert [damage.offset for damage in log.damage.damages] == [2, 6]
    log.damage.forget_from(6)
    assert [damage.offset for damage in log.damage.damages] == [2]
    log.damage.forget_before(3)
    assert [damage.offset for damage in log.damage.damages] == [2]
    log.damage.forget_before(4)
    assert log.damage.damages == ()


def test_log_damage_failed_index_lookup_requests_a_survey_once_per_segment() -> None:
    log, looks = Log(), list[int]()

    def once_wrong() -> str:
        looks.append(1)
        if len(looks) == 1:
            raise CorruptRecordError("nothing here")
        return "found"

    with pytest.raises(SegmentUnreadError):
        log.damage.by_index(0, once_wrong)
    assert log.survey(0)
    assert log.damage.by_index(0, once_wrong, log.segments[0]) == "found"
    assert log.damage.indexes_mended == 1

    def always_wrong() -> str:
        raise CorruptRecordError("nothing here")

    with pytest.raises(CorruptRecordError):
        log.damage.by_index(0, always_wrong, log.segments[0])
    with pytest.raises(SegmentUnreadError):
        log.damage.by_index(0, always_wrong, log.segments[1])


def test_log_damage_survey_includes_batches_appended_meanwhile() -> None:
    log = Log()
    log.rot(1, 1)
    active = log.segments[1]
    rebuild = IndexRebuild(SegmentUnreadError(active, survey_end=12))
    assert log.damage.rebuild_step(rebuild)
    data = batch(2, base_offset=12)
    active.append_batches([data], headers_of(data))
    assert log.damage.take_rebuilt(rebuild)
    size = len(batch(2))
    assert log.damage.damages == (Damage(8, 10, size),)
    assert list(active.indexes().offsets.entries())[-1] == (13, 3 * size)


def test_log_damage_survey_of_a_damaged_tail_includes_batches_appended_meanwhile() -> None:
    log = Log()
    log.rot(1, 2)
    active = log.segments[1]
    rebuild = IndexRebuild(SegmentUnreadError(active, survey_end=12))
    data = batch(2, base_offset=12)
    active.append_batches([data], headers_of(data))
    while not log.damage.rebuild_step(rebuild):
        pass
    assert log.damage.take_rebuilt(rebuild)
    assert log.damage.damages == (Damage(10, 12, 2 * len(data)),)
    found = active.position_of(13)
    assert found is not None
    assert found.position == 3 * len(data)


def test_log_damage_survey_of_a_segment_truncated_meanwhile_is_discarded() -> None:
    """The segment was appended to after the truncation, so its size shows no truncation."""
    log = Log()
    active = log.segments[1]
    rebuild = IndexRebuild(SegmentUnreadError(active, survey_end=12))
    active.truncate(2 * len(batch(2)), 10)
    data = batch(2, base_offset=10)
    active.append_batches([data], headers_of(data))
    assert log.damage.rebuild_step(rebuild)
    assert not log.damage.take_rebuilt(rebuild)


def test_log_damage_does_not_end_at_a_batch_with_a_wrong_base_offset() -> None:
    """No CRC covers base offsets: damage extends over both batches with wrong ones."""
    log = Log()
    file = log.vfs.open(log.segments[0].path, OpenMode.READ)
    size = len(batch(2))
    file.data[1] ^= 1
    file.data[size] ^= 1
    assert log.survey(0)
    assert log.damage.damages == (Damage(0, 4, 0),)


@pytest.mark.parametrize("may_have_gaps", [False, True])
def test_require_end_demands_a_survey_of_a_segment_that_lost_its_end(may_have_gaps: bool) -> None:
    log = Log()
    short = log.segments[0]
    short.may_have_gaps = may_have_gaps
    log.damage.require_end(0)
    short.truncate(2 * len(batch(2)), 4)
    with pytest.raises(SegmentUnreadError):
        log.damage.require_end(0)
