"""``batches_from`` returns all batches from an offset on, except damaged ones."""

from __future__ import annotations

import pytest

from kraftjbod.storage.segments.segment import LogSegment
from kraftjbod.storage.segments.segment_batches import batches_from
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import batch, headers_of


def segment_of(batches: int) -> LogSegment:
    vfs = MemVfs()
    vfs.make_dirs("/t")
    made = LogSegment(vfs=vfs, directory="/t", base_offset=0, size_bytes=0, index_interval_bytes=50)
    made.create()
    for number in range(batches):
        data = batch(2, base_offset=2 * number)
        made.append_batches([data], headers_of(data))
    return made


def offsets_from(segment: LogSegment, offset: int) -> list[int]:
    found = (located for located in batches_from(segment, offset) if located is not None)
    return [located.header.base_offset for located in found]


@pytest.mark.parametrize("offset", [0, 1, 2, 7, 19, 20])
def test_batches_from_returns_batches_that_end_at_or_after_the_offset(offset: int) -> None:
    segment = segment_of(10)
    assert offsets_from(segment, offset) == list(range(offset - offset % 2, 20, 2))


@pytest.mark.parametrize("damaged", [0, 3, 9])
def test_batches_from_skips_a_batch_with_a_damaged_header(damaged: int) -> None:
    segment = segment_of(10)
    size = segment.size_bytes // 10
    segment.open().write_at(damaged * size + 16, [b"\x07"])
    found = offsets_from(segment, 0)
    assert found == [offset for offset in range(0, 20, 2) if offset != 2 * damaged]
