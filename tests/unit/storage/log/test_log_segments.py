"""``LogSegments``: the list of segments matches the directory, also after failed operations."""

from __future__ import annotations

from errno import ENOSPC

import pytest

from kraftjbod.core.errors import OverloadedError
from kraftjbod.storage.dir_names import GAPS_MARK, offset_file_name
from kraftjbod.storage.log.log_segments import LogSegments
from kraftjbod.storage.segments.segment import LogSegment
from kraftjbod.storage.segments.segment_swap import CleaningFiles
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import batch, headers_of
from tests.faults.vfs_fault import Fault, FaultVfs

DIR = "/d/t-0"
BATCH_BYTES = len(batch(2))


def append(segments: LogSegments, offset: int) -> None:
    data = batch(2, base_offset=offset)
    segments.append_batches([data], headers_of(data), len(data))


def four_segments(vfs: MemVfs | FaultVfs) -> LogSegments:
    """Create four segments of two batches with two records each."""
    vfs.make_dirs(DIR)
    oldest = LogSegment(vfs=vfs, directory=DIR, base_offset=0, size_bytes=0, index_interval_bytes=0)
    oldest.create()
    segments = LogSegments(vfs=vfs, directory=DIR, segments=[oldest], may_have_gaps=False)
    for base in (0, 4, 8, 12):
        if base:
            segments.begin_segment(base, 0)
        append(segments, base)
        append(segments, base + 2)
    return segments


def logs(vfs: MemVfs, directory: str = DIR) -> list[str]:
    return [entry.name for entry in vfs.list_dir(directory) if ".log" in entry.name]


def names(*bases: int) -> list[str]:
    return [offset_file_name(base, ".log") for base in bases]


def require_consistent(segments: LogSegments, vfs: MemVfs, *bases: int) -> None:
    """Check that the list, its published copy, its size and the files agree."""
    assert [segment.base_offset for segment in segments.all] == list(bases)
    assert segments.shown == tuple(segments.all)
    sizes = {entry.name: entry.size_bytes for entry in vfs.list_dir(DIR, sized="")}
    assert segments.size_bytes == sum(sizes[name] for name in names(*bases))
    assert [name for name in logs(vfs) if name.endswith(".log")] == names(*bases)


def compacted(segments: LogSegments, sources: list[LogSegment]) -> CleaningFiles:
    """Write a compacted segment with the last batch of ``sources``."""
    files = segments.open_group(sources, 0)
    data = batch(2, base_offset=sources[-1].base_offset + 2)
    files.target.append_batches([data], headers_of(data))
    files.target.open().sync()
    return files


def test_retire_removes_segments_from_the_list_and_returns_them_once() -> None:
    vfs = MemVfs()
    segments = four_segments(vfs)
    oldest, newest, picture = segments.oldest, segments.active, segments.shown
    segments.retire(0)
    segments.retire(-1)
    require_consistent(segments, vfs, 4, 8)
    assert segments.take_retired() == [oldest, newest]
    assert segments.take_retired() == []
    # An older view still reads the retired segment.
    assert len(oldest.open().read_at(0, 1000)) == oldest.size_bytes
    assert len(picture) == 4


def test_retire_that_fails_keeps_the_segment() -> None:
    mem = MemVfs()
    vfs = FaultVfs(mem)
    segments = four_segments(vfs)
    vfs.inject(Fault(errno=ENOSPC, kinds=frozenset({"rename"})))
    with pytest.raises(OSError, match="No space"):
        segments.retire(0)
    require_consistent(segments, mem, 0, 4, 8, 12)
    assert segments.take_retired() == []


def test_begin_segment_that_fails_adds_no_segment() -> None:
    mem = MemVfs()
    vfs = FaultVfs(mem)
    segments = four_segments(vfs)
    vfs.inject(Fault(errno=ENOSPC, kinds=frozenset({"truncate"})))
    with pytest.raises(OSError, match="No space"):
        segments.begin_segment(16, 0)
    require_consistent(segments, mem, 0, 4, 8, 12)


def test_append_without_space_changes_nothing() -> None:
    mem = MemVfs()
    vfs = FaultVfs(mem)
    segments = four_segments(vfs)
    kinds = frozenset({"write_at"})
    vfs.inject(Fault(effect=DiskFault.SHORT_WRITE, errno=ENOSPC, kinds=kinds))
    with pytest.raises(OSError, match="No space"):
        append(segments, 16)
    require_consistent(segments, mem, 0, 4, 8, 12)


def test_shorten_removes_a_batch_from_segment_and_size() -> None:
    vfs = MemVfs()
    segments = four_segments(vfs)
    segments.shorten(segments.active, BATCH_BYTES, 1)
    require_consistent(segments, vfs, 0, 4, 8, 12)
    assert segments.size_bytes == 7 * BATCH_BYTES


def test_restart_in_place_needs_no_free_space() -> None:
    vfs = MemVfs()
    segments = four_segments(vfs)
    for _ in range(3):
        segments.retire(0, at_once=True)
    vfs.capacity_bytes, vfs.capacity_inodes = 0, 0
    segments.restart_in_place(16).truncate_torn_tail()
    require_consistent(segments, vfs, 16)
    assert segments.size_bytes == 0


def test_put_in_place_shows_compacted_segments_before_they_are_renamed() -> None:
    mem = MemVfs()
    vfs = FaultVfs(mem)
    segments = four_segments(vfs)
    sources = segments.all[:3]
    files = compacted(segments, sources)
    segments.put_in_place(sources, files)
    assert [segment.base_offset for segment in segments.all] == [0, 12]
    assert segments.size_bytes == 3 * BATCH_BYTES
    assert segments.take_retired() == []
    vfs.inject(Fault(errno=ENOSPC, kinds=frozenset({"rename"}), nth=2, sticky=False))
    with pytest.raises(OSError, match="No space"):
        segments.name_compacted()
    assert segments.take_retired() == []
    segments.name_compacted()
    require_consistent(segments, mem, 0, 12)
    assert segments.take_retired() == sources


def test_open_beside_of_compacted_segment_opens_the_compacted_file() -> None:
    """A scrub that read the source reported it as a damaged copy of the compacted segment."""
    vfs = MemVfs()
    segments = four_segments(vfs)
    sources = segments.all[:2]
    segments.put_in_place(sources, compacted(segments, sources))
    target = segments.all[0]
    file = segments.open_beside(target)
    assert file is not None
    assert file.read_at(0, 10 * BATCH_BYTES) == target.read_at(0, 10 * BATCH_BYTES)
    assert sources[0].size_bytes > target.size_bytes
    assert segments.open_beside(sources[0]) is None


def test_move_to_renames_compacted_segments_to_their_final_names() -> None:
    vfs = MemVfs()
    segments = four_segments(vfs)
    sources = segments.all[:2]
    segments.put_in_place(sources, compacted(segments, sources))
    segments.move_to("/d/t-0.away-delete")
    assert names(0, 8, 12) == [
        name for name in logs(vfs, "/d/t-0.away-delete") if name.endswith(".log")
    ]
    assert {segment.directory for segment in segments.all} == {"/d/t-0.away-delete"}


def test_open_group_marks_the_replica_before_the_first_gap() -> None:
    mem = MemVfs()
    vfs = FaultVfs(mem)
    segments = four_segments(vfs)
    vfs.inject(Fault(errno=ENOSPC, path=f"*{GAPS_MARK}*"))
    with pytest.raises(OSError, match="No space"):
        segments.open_group(segments.all[:2], 0)
    assert not segments.may_have_gaps
    assert not [name for name in logs(mem) if name.endswith(".cleaned")]
    vfs.clear()
    files = segments.open_group(segments.all[:2], 0)
    assert segments.may_have_gaps
    assert all(segment.may_have_gaps for segment in [*segments.all, files.target])
    assert mem.exists(f"{DIR}/{GAPS_MARK}")


def test_put_in_place_refuses_sources_that_changed_meanwhile() -> None:
    segments = four_segments(MemVfs())
    sources = segments.all[:2]
    files = compacted(segments, sources)
    segments.truncations += 1
    with pytest.raises(OverloadedError, match="changed while it was compacted"):
        segments.put_in_place(sources, files)
    files = compacted(segments, sources)
    segments.retire(0)
    with pytest.raises(OverloadedError):
        segments.put_in_place(sources, files)
    with pytest.raises(OverloadedError):
        segments.open_sealed([segments.active])
    assert [segment.base_offset for segment in segments.all] == [4, 8, 12]
