"""What is known of a log's damage: found, believed from a scrub, forgotten with what it was in."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import CorruptRecordError
from kraftjbod.storage.log.log_damage import LogDamage
from kraftjbod.storage.segments.batch_walk import Damage
from kraftjbod.storage.segments.segment import LogSegment
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

    def rot(self, number: int, nth: int) -> None:
        """A bit of the ``nth`` batch of a segment flips."""
        file = self.vfs.open(self.segments[number].path, OpenMode.READ)
        file.data[nth * len(batch(2)) + 70] ^= 1


def test_damage_reaches_to_the_next_sound_batch_or_to_the_end():
    log = Log()
    log.rot(0, 1)
    log.rot(1, 2)
    log.damage.survey(1)
    log.damage.survey(0)
    size = len(batch(2))
    assert log.damage.damages == (Damage(2, 4, size), Damage(10, 12, 2 * size))
    assert log.damage.indexes_mended == 0


def test_a_survey_that_finds_nothing_has_mended_an_index():
    log = Log()
    log.damage.survey(0)
    assert (log.damage.damages, log.damage.indexes_mended) == ((), 1)


def test_damage_is_forgotten_with_what_it_was_in():
    log = Log()
    log.rot(0, 1)
    log.rot(1, 0)
    log.damage.survey(0)
    log.damage.survey(1)
    assert [damage.offset for damage in log.damage.damages] == [2, 6]
    log.damage.forget_from(6)
    assert [damage.offset for damage in log.damage.damages] == [2]
    log.damage.forget_before(3)
    assert [damage.offset for damage in log.damage.damages] == [2]
    log.damage.forget_before(4)
    assert log.damage.damages == ()


def test_what_led_nowhere_is_checked_again_and_then_no_more():
    log, looks = Log(), list[int]()

    def once_wrong() -> str:
        looks.append(1)
        if len(looks) == 1:
            raise CorruptRecordError("nothing here")
        return "found"

    assert log.damage.by_index(0, once_wrong) == "found"
    assert log.damage.indexes_mended == 1

    def always_wrong() -> str:
        raise CorruptRecordError("nothing here")

    with pytest.raises(CorruptRecordError):
        log.damage.by_index(0, always_wrong)
