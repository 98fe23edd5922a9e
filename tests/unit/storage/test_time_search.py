"""Searches by time over the segments of a log."""

from __future__ import annotations

from collections.abc import Callable

from kraftjbod.protocol.raw_records import empty_batch
from kraftjbod.protocol.record_batch import read_header
from kraftjbod.protocol.records import Record, build_batch
from kraftjbod.storage.batch_walk import Located
from kraftjbod.storage.leader_epochs import EpochEntry
from kraftjbod.storage.log_values import FoundTimestamp
from kraftjbod.storage.segment import LogSegment
from kraftjbod.storage.time_search import first_from, youngest
from tests.faults.rig import headers_of
from tests.faults.vfs_mem import MemVfs

#: Where a batch says how its records are compressed, and one of the ways.
_ATTRIBUTES, _GZIP = 21, 1


def at(base: int, *timestamps: int) -> bytes:
    records = [Record(key=b"k", timestamp_ms=timestamp) for timestamp in timestamps]
    return build_batch(records, base_offset=base, leader_epoch=base)


def segments(*contents: list[bytes]) -> list[LogSegment]:
    vfs = MemVfs()
    vfs.make_dirs("/d")
    made = []
    for content in contents:
        one = LogSegment(
            vfs=vfs,
            directory="/d",
            base_offset=read_header(content[0]).base_offset,
            size_bytes=0,
            index_interval_bytes=0,
            may_have_gaps=True,
        )
        one.create()
        for data in content:
            one.append([data], headers_of(data))
        made.append(one)
    return made


def straight(_at: int, look: Callable[[], Located | None]) -> Located | None:
    return look()


def test_the_first_record_that_is_not_older():
    made = segments([at(0, 100, 50), at(2, 300)], [at(3, 200, 400)])
    assert first_from(made, 60, 0, straight) == FoundTimestamp(100, 0, 0)
    assert first_from(made, 101, 0, straight) == FoundTimestamp(300, 2, 2)
    assert first_from(made, 301, 0, straight) == FoundTimestamp(400, 4, 3)
    assert first_from(made, 401, 0, straight) is None
    assert first_from(made, 0, 2, straight) == FoundTimestamp(300, 2, 2)


def test_the_record_within_a_batch():
    made = segments([at(0, 100, 101, 102, 103, 104)])
    assert first_from(made, 103, 0, straight) == FoundTimestamp(103, 3, 0)
    assert first_from(made, 105, 0, straight) is None


def test_records_before_the_log_start_are_no_answer():
    """DeleteRecords may leave the log starting in the middle of a batch."""
    made = segments([at(0, 100, 900, 102, 103), at(4, 50, 950)])
    assert first_from(made, 0, 2, straight) == FoundTimestamp(102, 2, 0)
    assert first_from(made, 101, 3, straight) == FoundTimestamp(103, 3, 0)
    assert first_from(made, 500, 2, straight) == FoundTimestamp(950, 5, 4)
    assert first_from(made, 960, 2, straight) is None


def test_of_a_batch_that_does_not_open_its_beginning_is_told():
    data = bytearray(at(1, 200, 300))
    data[_ATTRIBUTES + 1] |= _GZIP  # What follows is not.
    made = segments([at(0, 100), bytes(data)])
    assert first_from(made, 250, 0, straight) == FoundTimestamp(300, 1, 1)
    assert first_from(made, 250, 2, straight) == FoundTimestamp(300, 2, 1)


def test_a_batch_whose_records_were_compacted_away_is_no_answer():
    made = segments([empty_batch(read_header(at(0, 500, 500))), at(2, 100), at(9, 450)])
    assert first_from(made, 400, 0, straight) == FoundTimestamp(450, 9, 9)


def test_an_index_that_leads_nowhere_is_made_anew_by_whoever_has_it():
    made, asked = segments([at(0, 100)], [at(1, 200)]), list[int]()

    def by_index(number: int, look: Callable[[], Located | None]) -> Located | None:
        asked.append(number)
        return look()

    assert first_from(made, 150, 0, by_index) == FoundTimestamp(200, 1, 1)
    assert asked == [1]


def test_the_largest_timestamp():
    made = segments([at(0, 100), at(1, 900)], [at(2, 300)])
    epochs = (EpochEntry(0, 0), EpochEntry(1, 1), EpochEntry(2, 2))
    assert youngest(made, epochs) == FoundTimestamp(900, 1, 1)
    assert youngest([], epochs) is None
