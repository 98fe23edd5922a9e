"""``SegmentScrub`` of one closed segment, step by step."""

from __future__ import annotations

import pytest

from kraftjbod.storage.segments.batch_walk import Damage
from kraftjbod.storage.segments.offset_index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from kraftjbod.storage.segments.segment import LogSegment
from kraftjbod.storage.segments.segment_scrub import STEP_BYTES, SegmentScrub
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.each_case import each_case
from tests.faults.rig import batch, headers_of

BATCHES = 40
RECORDS = 2
BODY = bytes(40_000)
BASE = 100
END = BASE + BATCHES * RECORDS
SIZE = len(batch(RECORDS, body=BODY))
LOG, INDEX, TIMES = (f"/d/{BASE:020}{suffix}" for suffix in (".log", ".index", ".timeindex"))


def written(vfs: MemVfs) -> LogSegment:
    """Write a closed segment of several scrub steps, with its index files."""
    vfs.make_dirs("/d")
    segment = LogSegment(
        vfs=vfs, directory="/d", base_offset=BASE, size_bytes=0, index_interval_bytes=3 * SIZE
    )
    segment.create()
    for i in range(BATCHES):
        # Each third batch is older than the previous one.
        timestamp = 1_000 + i - 5 * (i % 3 == 2)
        data = batch(RECORDS, base_offset=BASE + i * RECORDS, body=BODY, timestamp=timestamp)
        segment.append_batches([data], headers_of(data))
    segment.write_indexes()
    return segment


def started_scrub(vfs: MemVfs, segment: LogSegment) -> SegmentScrub:
    file = vfs.open(segment.path, OpenMode.READ)
    return SegmentScrub(vfs=vfs, file=file, segment=segment, end_offset=END)


def scrubbed(vfs: MemVfs, segment: LogSegment) -> SegmentScrub:
    scrub = started_scrub(vfs, segment)
    steps = []
    while not scrub.is_done:
        steps.append(scrub.step())
    scrub.close()
    assert sum(steps) >= segment.size_bytes
    assert max(steps) < 2 * STEP_BYTES
    assert len(steps) >= segment.size_bytes // STEP_BYTES
    return scrub


def flip(vfs: MemVfs, path: str, position: int) -> None:
    file = vfs.open(path, OpenMode.READ_WRITE)
    file.write_at(position, [bytes([file.read_at(position, 1)[0] ^ 0x10])])


def test_segment_scrub_of_a_sound_segment_reports_nothing() -> None:
    vfs = MemVfs()
    scrub = scrubbed(vfs, written(vfs))
    assert (scrub.damages, scrub.is_index_wrong) == ([], False)


@pytest.mark.parametrize("number", [0, 1, 17, BATCHES - 1])
@each_case("at", [3, 10, 16, 20, 45, 60, SIZE - 1])
def test_segment_scrub_finds_damage_at_its_position(number: int, at: int) -> None:
    """The leader epoch is the exception, because no other part of a batch confirms it."""
    vfs = MemVfs()
    segment = written(vfs)
    flip(vfs, LOG, number * SIZE + at)
    scrub = scrubbed(vfs, segment)
    (damage,) = scrub.damages
    assert (damage.offset, damage.position) == (BASE + number * RECORDS, number * SIZE)
    # The damage extends at most to the next batch with an index entry.
    assert BASE + (number + 1) * RECORDS <= damage.next_offset <= BASE + (number + 5) * RECORDS
    assert damage.next_offset <= END


def test_segment_scrub_does_not_change_the_segment() -> None:
    vfs = MemVfs()
    segment = written(vfs)
    before = (segment.size_bytes, segment.indexes().to_files(), segment.largest_timestamp())
    flip(vfs, LOG, 5 * SIZE + 100)
    assert scrubbed(vfs, segment).damages
    assert (segment.size_bytes, segment.indexes().to_files(), segment.largest_timestamp()) == before


def test_segment_scrub_of_a_short_file_reports_damage_up_to_the_end_offset() -> None:
    vfs = MemVfs()
    segment = written(vfs)
    vfs.open(LOG, OpenMode.READ_WRITE).truncate(30 * SIZE + 10)
    scrub = started_scrub(vfs, segment)
    while scrub.step():
        continue
    assert scrub.damages == [Damage(BASE + 30 * RECORDS, END, 30 * SIZE)]


def test_segment_scrub_detects_a_change_in_any_byte_of_the_index_files() -> None:
    vfs = MemVfs()
    segment = written(vfs)
    for path, entry_bytes in ((INDEX, OFFSET_ENTRY_BYTES), (TIMES, TIME_ENTRY_BYTES)):
        sound = vfs.read_if_exists(path)
        assert sound is not None
        assert len(sound) > 2 * entry_bytes
        for at in range(len(sound)):
            flip(vfs, path, at)
            assert scrubbed(vfs, segment).is_index_wrong, (path, at)
            flip(vfs, path, at)
        vfs.open(path, OpenMode.READ_WRITE).truncate(len(sound) - 1)
        assert scrubbed(vfs, segment).is_index_wrong
        vfs.open(path, OpenMode.READ_WRITE).write_at(0, [sound])
        assert not scrubbed(vfs, segment).is_index_wrong


def test_segment_scrub_ignores_missing_index_files() -> None:
    vfs = MemVfs()
    segment = written(vfs)
    for path in (INDEX, TIMES):
        vfs.unlink_if_exists(path)
        assert not scrubbed(vfs, segment).is_index_wrong


@pytest.mark.parametrize("may_have_gaps", [True, False])
def test_segment_scrub_accepts_gaps_only_in_a_compacted_segment(may_have_gaps: bool) -> None:
    vfs = MemVfs()
    vfs.make_dirs("/d")
    segment = LogSegment(
        vfs=vfs,
        directory="/d",
        base_offset=BASE,
        size_bytes=0,
        index_interval_bytes=SIZE,
        may_have_gaps=may_have_gaps,
    )
    segment.create()
    for i in range(0, BATCHES, 3):
        data = batch(RECORDS, base_offset=BASE + i * RECORDS, body=BODY, timestamp=1_000 + i)
        segment.append_batches([data], headers_of(data))
    segment.write_indexes()
    scrub = scrubbed(vfs, segment)
    assert bool(scrub.damages) is not may_have_gaps
    assert scrub.is_index_wrong is not may_have_gaps
    if may_have_gaps:
        flip(vfs, LOG, 4 * SIZE + 100)
        (damage,) = scrubbed(vfs, segment).damages
        assert damage.position == 4 * SIZE
