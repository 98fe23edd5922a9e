"""``IndexRebuild`` rebuilds the indexes of a segment in steps."""

from __future__ import annotations

from kraftjbod.storage.segments.index_rebuild import IndexRebuild
from kraftjbod.storage.segments.segment import LogSegment, SegmentUnreadError
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.large_log import KIB, MIB, CountingVfs, LargeLog, put_large_log


def test_index_rebuild_in_short_steps_equals_a_full_walk() -> None:
    mem = MemVfs()
    shape = LargeLog.of_size(8 * MIB, 16 * KIB)
    directory, vfs = put_large_log(mem, "/d1", shape), CountingVfs(mem)
    segment = LogSegment.on_disk(vfs, directory, 0, shape.segment_bytes, shape.config())
    rebuild, steps, is_complete = IndexRebuild(SegmentUnreadError(segment)), 0, False
    while not is_complete:
        vfs.reset()
        is_complete = rebuild.step()
        assert vfs.bytes_read <= 2 * MIB
        steps += 1
    assert steps >= 8
    segment.scan(check_crc_of_each=True)
    assert rebuild.fresh.indexes.to_files() == segment.indexes().to_files()
