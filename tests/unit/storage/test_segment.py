"""LogSegment: torn writes, scans, records by time."""

from __future__ import annotations

from errno import EMFILE

import pytest

from kraftjbod.protocol.records import Record, build_batch
from kraftjbod.storage.segment import NO_LIMIT, LogSegment
from kraftjbod.storage.vfs import OpenMode, Vfs
from tests.faults.rig import batch, headers_of
from tests.faults.vfs_fault import Effect, Fault, FaultVfs
from tests.faults.vfs_mem import MemVfs


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
    segment.append([data], headers)


def test_torn_write_is_cut_before_the_next():
    mem = MemVfs()
    mem.make_dirs("/t")
    vfs = FaultVfs(mem)
    segment = make(vfs)
    add(segment, batch(base_offset=0))
    size = segment.size_bytes
    vfs.inject(
        Fault(effect=Effect.SHORT_WRITE, errno=EMFILE, kinds=frozenset({"write_at"}), sticky=False)
    )
    with pytest.raises(OSError):
        add(segment, batch(base_offset=1, body=bytes(5000)))
    assert segment.size_bytes == size
    add(segment, batch(base_offset=1))
    assert segment.open().size() == segment.size_bytes
    assert segment.next_offset(segment.size_bytes) == 2


def test_scan_stops_before_the_first_unsound_batch():
    segment = make()
    for i in range(3):
        add(segment, batch(base_offset=i))
    size = segment.size_bytes
    segment.open().write_at(size - 1, [b"\xff"])
    assert segment.scan(check_crc_of_each=False).next_offset == 3
    scanned = segment.scan(check_crc_of_each=True)
    assert (scanned.next_offset, segment.size_bytes) == (2, size * 2 // 3)


def test_batch_larger_than_a_scan_step():
    vfs = MemVfs()
    vfs.make_dirs("/t")
    segment = make(vfs)
    add(segment, batch(base_offset=0, body=bytes(9_000_000)))
    add(segment, batch(base_offset=1))
    again = make(vfs, segment.size_bytes)
    assert again.scan(check_crc_of_each=True).next_offset == 2


def test_reader_that_must_not_wait_is_told_to_ask_elsewhere():
    segment = make()
    add(segment, batch(base_offset=0))

    def read(read_at):
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


def test_record_by_time_within_a_batch():
    records = [Record(value=b"v", timestamp_ms=100 + i) for i in range(5)]
    segment = make()
    add(segment, build_batch(records))
    located = segment.batch_for_timestamp(103, 0)
    assert located is not None
    found = segment.record_for_timestamp(located, 103)
    assert found is not None
    assert (found.offset, found.timestamp_ms) == (3, 103)
    assert segment.batch_for_timestamp(105, 0) is None


def test_retired_segment_keeps_its_bytes_until_purged():
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
