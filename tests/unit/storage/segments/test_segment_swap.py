"""``SegmentSwap``: a compacted segment replaces its sources, atomically also in a crash."""

from __future__ import annotations

from errno import EMFILE

import pytest

from kraftjbod.storage.dir_names import offset_file_name
from kraftjbod.storage.segments.segment import LogSegment
from kraftjbod.storage.segments.segment_swap import (
    CleaningFiles,
    SegmentSwap,
    discard_target,
    finish_swaps,
    open_sources,
    open_target,
    place_of,
)
from kraftjbod.storage.segments.steps import run_all
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.each_case import each_case
from tests.faults.rig import batch, headers_of
from tests.faults.vfs_fault import Fault, FaultVfs

DIR = "/d/t-0"


def segment(vfs: MemVfs | FaultVfs, base: int, *, filled: bool = True) -> LogSegment:
    """Create a segment of two batches with two records each."""
    made = LogSegment(
        vfs=vfs, directory=DIR, base_offset=base, size_bytes=0, index_interval_bytes=0
    )
    if filled:
        made.create()
        for offset in (base, base + 2):
            data = batch(2, base_offset=offset)
            made.append_batches([data], headers_of(data))
        made.write_indexes()
        made.open().sync()
    return made


def log(vfs: MemVfs | FaultVfs) -> list[LogSegment]:
    vfs.make_dirs(DIR)
    segments = [segment(vfs, base) for base in (0, 4, 8, 12)]
    vfs.sync_dir(DIR)
    return segments


def target_of(vfs: MemVfs | FaultVfs, base: int, end: int) -> LogSegment:
    """Create a compacted segment with the last batch before ``end``."""
    made = segment(vfs, base, filled=False)
    made.may_have_gaps = True
    open_target(vfs, made)
    data = batch(2, base_offset=end - 2)
    made.append_batches([data], headers_of(data))
    made.open().sync()
    return made


def names(vfs: MemVfs | FaultVfs) -> list[str]:
    return [entry.name for entry in vfs.list_dir(DIR)]


def logs(vfs: MemVfs) -> list[str]:
    return [name for name in names(vfs) if name.endswith(".log")]


def expected(*bases: int) -> list[str]:
    return [offset_file_name(base, ".log") for base in bases]


def test_segment_swap_renames_the_compacted_segment_and_its_indexes() -> None:
    vfs = MemVfs()
    segments = log(vfs)
    swap = SegmentSwap(vfs, segments[:3], target_of(vfs, 0, 12))
    swap.begin_swap()
    assert offset_file_name(0, ".log") + ".swap" in names(vfs)
    swap.finish()
    swap.finish()
    assert logs(vfs) == expected(0, 12)
    assert not [name for name in names(vfs) if name.endswith((".swap", ".cleaned"))]
    found = vfs.read_if_exists(f"{DIR}/{offset_file_name(0, '.log')}")
    assert found is not None
    assert [header.base_offset for header in headers_of(found)] == [10]
    fresh = LogSegment(
        vfs=vfs, directory=DIR, base_offset=0, size_bytes=len(found), index_interval_bytes=0
    )
    fresh.load_indexes()
    for source in segments[:3]:
        source.purge()
    assert not [name for name in names(vfs) if name.endswith(".deleted")]


@each_case("seed", range(6))
def test_segment_swap_crash_at_any_operation_leaves_the_old_or_the_new_log(seed: int) -> None:
    total = FaultVfs(MemVfs())
    segments = log(total.inner)
    operations: list[str] = []
    swap = SegmentSwap(total, segments[:3], target_of(total, 0, 12))
    total.on_operation = lambda kind, path: operations.append(kind)
    swap.begin_swap()
    swap.finish()
    for nth in range(len(operations) + 1):
        mem = MemVfs()
        vfs, clones, count = FaultVfs(mem), list[MemVfs](), list[str]()
        segments = log(vfs)
        swap = SegmentSwap(vfs, segments[:3], target_of(vfs, 0, 12))

        def note(
            kind: str,
            path: str,
            *,
            count: list[str] = count,
            nth: int = nth,
            mem: MemVfs = mem,
            clones: list[MemVfs] = clones,
        ) -> None:
            if len(count) == nth:
                clones.append(mem.crash_clone(seed))
            count.append(kind)

        vfs.on_operation = note
        swap.begin_swap()
        swap.finish()
        clone = clones[0] if clones else mem.crash_clone(seed)
        run_all(finish_swaps(clone, DIR, names(clone)))
        assert logs(clone) in (expected(0, 4, 8, 12), expected(0, 12)), nth
        first = clone.read_if_exists(f"{DIR}/{offset_file_name(0, '.log')}")
        assert first is not None
        is_new = logs(clone) == expected(0, 12)
        assert [h.base_offset for h in headers_of(first)] == ([10] if is_new else [0, 2])
        # A new log never has old indexes.
        if is_new and offset_file_name(0, ".index") in names(clone):
            loaded = LogSegment(
                vfs=clone,
                directory=DIR,
                base_offset=0,
                size_bytes=len(first),
                index_interval_bytes=0,
            )
            loaded.may_have_gaps = True
            located = loaded.position_of(10)
            assert located is not None
            assert located.header.base_offset == 10


def test_segment_swap_finish_can_be_repeated_after_errors() -> None:
    mem = MemVfs()
    vfs = FaultVfs(mem)
    segments = log(vfs)
    swap = SegmentSwap(vfs, segments[:2], target_of(vfs, 0, 8))
    swap.begin_swap()
    for nth in range(1, 9):
        fault = vfs.inject(Fault(kinds=frozenset({"rename"}), nth=nth, sticky=False))
        try:
            swap.finish()
        except OSError:
            assert fault.hits == 1
        vfs.faults.clear()
    swap.finish()
    assert logs(mem) == expected(0, 8, 12)


def test_segment_swap_begin_without_a_descriptor_leaves_the_log_unchanged() -> None:
    """A swap file would replace the old segments at the next load."""
    vfs = FaultVfs(MemVfs())
    segments, target = log(vfs), target_of(vfs, 4, 12)
    before = names(vfs)
    vfs.inject(Fault(kinds=frozenset({"sync_dir"}), errno=EMFILE, sticky=False))
    with pytest.raises(OSError, match="Too many open files"):
        SegmentSwap(vfs, segments[1:3], target).begin_swap()
    assert names(vfs) == before


def test_open_target_that_fails_leaves_no_file() -> None:
    mem = MemVfs()
    log(mem)
    vfs = FaultVfs(mem)
    vfs.inject(Fault(kinds=frozenset({"truncate"})))
    with pytest.raises(OSError, match="rror"):
        open_target(vfs, segment(vfs, 0, filled=False))
    assert not [name for name in names(mem) if ".cleaned" in name]


def test_discard_target_removes_its_files() -> None:
    vfs = MemVfs()
    segments = log(vfs)
    before = names(vfs)
    files = CleaningFiles(open_sources(vfs, segments[:2]), target_of(vfs, 0, 8), 0)
    assert len(names(vfs)) == len(before) + 1
    discard_target(vfs, files)
    assert names(vfs) == before


def test_place_of_accepts_adjacent_closed_segments_only() -> None:
    segments = log(MemVfs())
    assert place_of(segments[1:3], segments) == 1
    assert place_of(segments[:1], segments) == 0
    assert place_of(segments[2:], segments) is None
    assert place_of([segments[0], segments[2]], segments) is None
    assert place_of(log(MemVfs())[:1], segments) is None
