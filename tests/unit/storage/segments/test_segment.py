"""``LogSegment``: torn writes, scans, truncation, and the largest timestamp."""

from __future__ import annotations

from errno import EMFILE, ENOSPC

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.storage.segments.batch_walk import ReadAt
from kraftjbod.storage.segments.index_rebuild import IndexRebuild
from kraftjbod.storage.segments.offset_index import TIME_ENTRY_BYTES
from kraftjbod.storage.segments.segment import NO_LIMIT, LogSegment, SegmentUnreadError
from kraftjbod.storage.segments.segment_indexes import SegmentIndexes
from kraftjbod.storage.vfs import OpenMode, Vfs
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import batch, headers_of
from tests.faults.vfs_fault import Fault, FaultVfs


def make(vfs: Vfs | None = None, size_bytes: int = 0) -> LogSegment:
    if vfs is None:
        vfs = MemVfs()
        vfs.make_dirs("/t")
    segment = LogSegment(
        vfs=vfs, directory="/t", base_offset=0, size_bytes=size_bytes, index_interval_bytes=100
    )
    if not size_bytes:
        segment.create()
    return segment


def add(segment: LogSegment, data: bytes) -> None:
    headers = headers_of(data)
    segment.append_batches([data], headers)


def test_append_after_a_torn_write_leaves_no_torn_bytes() -> None:
    mem = MemVfs()
    mem.make_dirs("/t")
    vfs = FaultVfs(mem)
    segment = make(vfs)
    add(segment, batch(base_offset=0))
    size = segment.size_bytes
    vfs.inject(
        Fault(
            effect=DiskFault.SHORT_WRITE, errno=EMFILE, kinds=frozenset({"write_at"}), sticky=False
        )
    )
    with pytest.raises(OSError):
        add(segment, batch(base_offset=1, body=bytes(5000)))
    assert segment.size_bytes == size
    add(segment, batch(base_offset=1))
    assert segment.open().size() == segment.size_bytes
    assert segment.next_offset(segment.size_bytes) == 2


def test_scan_stops_before_the_first_unsound_batch() -> None:
    segment = make()
    for i in range(3):
        add(segment, batch(base_offset=i))
    size = segment.size_bytes
    segment.open().write_at(size - 1, [b"\xff"])
    assert segment.scan(check_crc_of_each=False).next_offset == 3
    scanned = segment.scan(check_crc_of_each=True)
    assert (scanned.next_offset, segment.size_bytes) == (2, size * 2 // 3)


def test_scan_reads_a_batch_larger_than_its_step() -> None:
    vfs = MemVfs()
    vfs.make_dirs("/t")
    segment = make(vfs)
    add(segment, batch(base_offset=0, body=bytes(9_000_000)))
    add(segment, batch(base_offset=1))
    again = make(vfs, segment.size_bytes)
    assert again.scan(check_crc_of_each=True).next_offset == 2


def test_read_returns_none_if_the_page_cache_has_too_few_bytes() -> None:
    segment = make()
    add(segment, batch(base_offset=0))

    def read(read_at: ReadAt) -> memoryview | None:
        return segment.read(
            read_at,
            start_offset=0,
            max_offset=NO_LIMIT,
            limit=segment.size_bytes,
            max_bytes=1000,
            min_one=True,
        )

    assert read(lambda position, size: None) is None
    whole = read(segment.open().read_at)
    assert whole is not None
    short = read(lambda position, size: bytes(whole[: size - 1]))
    assert short is None


def test_retire_keeps_the_bytes_until_purge() -> None:
    vfs = MemVfs()
    vfs.make_dirs("/t")
    segment = make(vfs)
    add(segment, batch(base_offset=0))
    segment.write_indexes()
    file = vfs.open(segment.path, OpenMode.READ)
    segment.retire()
    assert not vfs.exists(segment.path)
    assert file.size() == segment.size_bytes
    segment.purge()
    assert vfs.list_dir("/t") == []


def test_append_without_space_leaves_no_bytes() -> None:
    mem = MemVfs()
    mem.make_dirs("/t")
    vfs = FaultVfs(mem)
    segment = make(vfs)
    add(segment, batch(base_offset=0))
    size = segment.size_bytes
    kinds = frozenset({"write_at"})
    vfs.inject(Fault(effect=DiskFault.SHORT_WRITE, errno=ENOSPC, kinds=kinds, sticky=False))
    with pytest.raises(OSError, match="No space"):
        add(segment, batch(base_offset=1, body=bytes(5000)))
    assert segment.open().size() == size


def test_truncate_torn_tail_removes_bytes_that_append_could_not_remove() -> None:
    mem = MemVfs()
    mem.make_dirs("/t")
    vfs = FaultVfs(mem)
    segment = make(vfs)
    add(segment, batch(base_offset=0))
    size = segment.size_bytes
    vfs.inject(Fault(effect=DiskFault.SHORT_WRITE, errno=ENOSPC, kinds=frozenset({"write_at"})))
    vfs.inject(Fault(errno=ENOSPC, kinds=frozenset({"truncate"})))
    with pytest.raises(OSError, match="No space"):
        add(segment, batch(base_offset=1, body=bytes(5000)))
    assert segment.open().size() > size
    vfs.clear()
    segment.truncate_torn_tail()
    assert segment.open().size() == size


def test_create_without_space_leaves_no_file() -> None:
    mem = MemVfs()
    mem.make_dirs("/t")
    vfs = FaultVfs(mem)
    vfs.inject(Fault(errno=ENOSPC, kinds=frozenset({"truncate"})))
    with pytest.raises(OSError, match="No space"):
        make(vfs)
    assert mem.list_dir("/t") == []


def test_write_indexes_without_space_keeps_the_old_files() -> None:
    mem = MemVfs()
    mem.make_dirs("/t")
    vfs = FaultVfs(mem)
    segment = make(vfs)
    for i in range(5):
        add(segment, batch(base_offset=i, timestamp=i))
    segment.write_indexes()
    before = mem.read_if_exists("/t/00000000000000000000.timeindex")
    add(segment, batch(base_offset=5, timestamp=99))
    vfs.inject(Fault(effect=DiskFault.SHORT_WRITE, errno=ENOSPC, kinds=frozenset({"write_at"})))
    with pytest.raises(OSError, match="No space"):
        segment.write_indexes()
    assert mem.read_if_exists("/t/00000000000000000000.timeindex") == before
    assert not [entry.name for entry in mem.list_dir("/t") if entry.name.endswith(".tmp")]


def test_largest_timestamp_with_an_empty_time_index_raises_segment_unread_error() -> None:
    """A crash leaves an empty file if the index was not flushed yet."""
    vfs = MemVfs()
    vfs.make_dirs("/t")
    segment = make(vfs)
    add(segment, batch(base_offset=0, timestamp=77))
    segment.write_indexes()
    vfs.open("/t/00000000000000000000.timeindex", OpenMode.READ_WRITE).truncate(0)
    with pytest.raises(SegmentUnreadError):
        make(vfs, segment.size_bytes).largest_timestamp()


def test_largest_timestamp_with_a_time_index_of_zeros_raises_segment_unread_error() -> None:
    """A power cut leaves zeros in a file that was not synced; zero would mean 1970."""
    vfs = MemVfs()
    vfs.make_dirs("/t")
    segment = make(vfs)
    for i in range(5):
        add(segment, batch(base_offset=i, timestamp=1_000_000 + i, body=bytes(200)))
    segment.write_indexes()
    file = vfs.open("/t/00000000000000000000.timeindex", OpenMode.READ_WRITE)
    file.truncate(0)
    file.write_at(0, [bytes(TIME_ENTRY_BYTES)])
    with pytest.raises(SegmentUnreadError):
        make(vfs, segment.size_bytes).largest_timestamp()


@pytest.mark.parametrize("has_indexes", [True, False])
def test_end_offset_is_the_end_of_the_last_whole_batch(has_indexes: bool) -> None:
    mem = MemVfs()
    mem.make_dirs("/t")
    segment = make(mem)
    assert segment.end_offset() == segment.base_offset
    sizes = []
    for offset in (0, 2, 4):
        add(segment, batch(2, base_offset=offset))
        sizes.append(segment.size_bytes)
        assert segment.end_offset() == offset + 2
    segment.write_indexes()
    if has_indexes:
        reloaded = segment
    else:
        segment.close()
        reloaded = make(mem, size_bytes=segment.size_bytes)
        assert not reloaded.is_end_known
        assert reloaded.end_offset() == 6
        assert not reloaded.has_indexes
    reloaded.truncate(sizes[1], 4)
    assert reloaded.end_offset() == 4
    reloaded.open().truncate(sizes[1] - 1)
    assert reloaded.end_offset() == 4, "the first result is kept"
    reloaded.write_indexes()
    assert make(mem, size_bytes=sizes[1] - 1).end_offset() is None


def test_retire_at_once_removes_the_files() -> None:
    vfs = MemVfs()
    vfs.make_dirs("/t")
    segment = make(vfs)
    add(segment, batch(base_offset=0))
    segment.write_indexes()
    file = segment.open()
    segment.retire(at_once=True)
    assert vfs.list_dir("/t") == []
    assert len(file.read_at(0, 1000)) == segment.size_bytes
    segment.purge()


def test_recreate_empty_segment_on_a_full_disk_needs_no_free_space() -> None:
    vfs = MemVfs()
    vfs.make_dirs("/t")
    segment = make(vfs)
    add(segment, batch(base_offset=0))
    segment.write_indexes()
    vfs.capacity_bytes, vfs.capacity_inodes = 0, 0
    fresh = segment.recreate_empty(7)
    fresh.truncate_torn_tail()
    names = [(entry.name, entry.size_bytes) for entry in vfs.list_dir("/t", sized="")]
    assert names == [("00000000000000000007.log", 0)]
    vfs.capacity_bytes = None
    add(fresh, batch(base_offset=7))
    assert fresh.size_bytes == len(batch())
    assert segment.file is None


@given(
    timestamps=st.lists(st.integers(0, 9), min_size=1, max_size=30),
    left=st.integers(0, 30),
    loaded=st.booleans(),
)
def test_truncate_leaves_the_positions_and_largest_timestamp_of_a_rebuild(
    timestamps: list[int], left: int, loaded: bool
) -> None:
    vfs = MemVfs()
    vfs.make_dirs("/t")
    segment = make(vfs)
    for offset, timestamp in enumerate(timestamps):
        add(segment, batch(base_offset=offset, timestamp=timestamp))
    segment.write_indexes()
    if loaded:
        segment = make(vfs, segment.size_bytes)
    left = min(left, len(timestamps))
    segment.truncate(left * len(batch()), left)
    for offset, timestamp in enumerate((3, 9, 12), start=left):
        largest = segment.largest_timestamp()
        assert largest == rebuilt_indexes(vfs, segment).largest
        add(segment, batch(base_offset=offset, timestamp=timestamp))
    positions = [segment.position_of(offset) for offset in range(left + 3)]
    assert [found and found.position for found in positions] == [
        offset * len(batch()) for offset in range(left + 3)
    ]
    made = rebuilt_indexes(vfs, segment)
    assert len(segment.indexes().offsets) >= len(made.offsets)
    segment.write_indexes()
    again = make(vfs, segment.size_bytes)
    again.load_indexes()
    assert again.largest_timestamp() == made.largest


def rebuilt_indexes(vfs: Vfs, segment: LogSegment) -> SegmentIndexes:
    """Return the indexes that a walk over the whole file makes."""
    again = make(vfs, segment.size_bytes)
    again.scan(check_crc_of_each=False)
    return again.indexes()


def test_truncate_after_damage_keeps_the_largest_timestamp() -> None:
    """The search for the timestamp starts at the index entry after the damage."""
    vfs = MemVfs()
    vfs.make_dirs("/t")
    segment = make(vfs)
    for offset, timestamp in enumerate((1, 99, 2, 3, 4)):
        add(segment, batch(base_offset=offset, timestamp=timestamp))
    size = len(batch())
    segment.open().write_at(2 * size + 30, [b"\xff"])
    rebuild = IndexRebuild(SegmentUnreadError(segment, survey_end=5))
    assert rebuild.step()
    segment.adopt(rebuild.fresh)
    assert rebuild.fresh.damages
    segment.truncate(4 * size, 4)
    largest = segment.largest_timestamp()
    assert largest is not None
    assert (largest.timestamp, largest.offset) == (99, 1)
