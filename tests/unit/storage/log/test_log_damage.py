"""What is known of a log's damage: found, believed from a scrub, forgotten with what it was in."""

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
            made.append([data], headers_of(data))
        return made

    def survey(self, number: int) -> bool:
        """Check a segment as a request for it does."""
        with pytest.raises(SegmentUnreadError) as unread:
            self.damage.require_survey(number, None)
        rebuild = IndexRebuild(unread.value)
        while not self.damage.rebuild_step(rebuild):
            pass
        return self.damage.take_rebuilt(rebuild)

    def rot(self, number: int, nth: int) -> None:
        """A bit of the ``nth`` batch of a segment flips."""
        file = self.vfs.open(self.segments[number].path, OpenMode.READ)
        file.data[nth * len(batch(2)) + 70] ^= 1


def test_damage_reaches_to_the_next_sound_batch_or_to_the_end() -> None:
    log = Log()
    log.rot(0, 1)
    log.rot(1, 2)
    log.survey(1)
    log.survey(0)
    size = len(batch(2))
    assert log.damage.damages == (Damage(2, 4, size), Damage(10, 12, 2 * size))
    assert log.damage.indexes_mended == 0


def test_a_survey_that_finds_nothing_has_mended_an_index() -> None:
    log = Log()
    log.survey(0)
    assert (log.damage.damages, log.damage.indexes_mended) == ((), 1)


def test_damage_is_forgotten_with_what_it_was_in() -> None:
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


def test_what_led_nowhere_is_checked_again_and_then_no_more() -> None:
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


def test_survey_goes_on_to_what_is_appended_meanwhile() -> None:
    log = Log()
    log.rot(1, 1)
    active = log.segments[1]
    rebuild = IndexRebuild(SegmentUnreadError(active, survey_end=12))
    assert log.damage.rebuild_step(rebuild)
    data = batch(2, base_offset=12)
    active.append([data], headers_of(data))
    assert log.damage.take_rebuilt(rebuild)
    size = len(batch(2))
    assert log.damage.damages == (Damage(8, 10, size),)
    assert list(active.indexes().offsets.entries())[-1] == (13, 3 * size)


def test_survey_of_a_damaged_tail_leads_past_it_to_what_is_appended_meanwhile() -> None:
    log = Log()
    log.rot(1, 2)
    active = log.segments[1]
    rebuild = IndexRebuild(SegmentUnreadError(active, survey_end=12))
    data = batch(2, base_offset=12)
    active.append([data], headers_of(data))
    while not log.damage.rebuild_step(rebuild):
        pass
    assert log.damage.take_rebuilt(rebuild)
    assert log.damage.damages == (Damage(10, 12, 2 * len(data)),)
    found = active.position_of(13)
    assert found is not None
    assert found.position == 3 * len(data)


def test_survey_of_a_segment_that_was_truncated_meanwhile_is_of_no_use() -> None:
    """It was appended to again, so its size tells nothing."""
    log = Log()
    active = log.segments[1]
    rebuild = IndexRebuild(SegmentUnreadError(active, survey_end=12))
    active.truncate(2 * len(batch(2)), 10)
    data = batch(2, base_offset=10)
    active.append([data], headers_of(data))
    assert log.damage.rebuild_step(rebuild)
    assert not log.damage.take_rebuilt(rebuild)


def test_offset_that_rotted_is_no_end_of_damage() -> None:
    """No CRC covers offsets: two neighbours with wrong ones are damage, up to a right one."""
    log = Log()
    file = log.vfs.open(log.segments[0].path, OpenMode.READ)
    size = len(batch(2))
    file.data[1] ^= 1
    file.data[size] ^= 1
    assert log.survey(0)
    assert log.damage.damages == (Damage(0, 4, 0),)
