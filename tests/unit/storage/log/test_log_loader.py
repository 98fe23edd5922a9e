"""``LogLoader`` and ``list_log_dir``: recovery of replicas after clean and unclean stops."""

from __future__ import annotations

import random

import pytest

from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.storage.checkpoints import CorruptCheckpointError
from kraftjbod.storage.dir_names import DELETED_SUFFIX, EXPIRED_SUFFIX
from kraftjbod.storage.log.log_loader import LoadedLog, LogLoader, create_log, list_log_dir
from kraftjbod.storage.log.unified_log import UnifiedLog
from kraftjbod.storage.segments.batch_walk import Damage
from kraftjbod.storage.vfs import OpenMode, Vfs
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.each_case import each_case
from tests.faults.rig import (
    TOPIC_ID,
    TP,
    batch,
    close_log,
    headers_of,
    read_by_index,
    truncate_by_index,
)
from tests.faults.vfs_fault import Fault, FaultVfs

CONFIG = TopicConfig(segment_bytes=1024, index_interval_bytes=100)


def make(batches: int = 12) -> tuple[MemVfs, UnifiedLog]:
    vfs = MemVfs()
    vfs.make_dirs("/d1")
    log = create_log(vfs, "/d1", TP, TOPIC_ID, CONFIG)
    for i in range(batches):
        data = batch(body=bytes(200))
        log.append_as_leader(data, headers_of(data), i // 4, 0)
    return vfs, log


def load(vfs: MemVfs, **given: int) -> LoadedLog:
    return LogLoader(
        vfs=vfs,
        directory="/d1/t-0",
        topic_partition=TP,
        config=CONFIG,
        was_clean=False,
        **given,  # type: ignore[arg-type]
    ).load()


def test_list_log_dir_separates_replicas_from_unknown_entries() -> None:
    vfs, _ = make(0)
    vfs.make_dirs("/d1/lost+found")
    vfs.make_dirs("/d1/__cluster_metadata-0")
    vfs.open("/d1/meta.properties", OpenMode.CREATE)
    vfs.open("/d1/t-9", OpenMode.CREATE)
    listing = list_log_dir(vfs, "/d1")
    assert [replica.name for replica in listing.replicas] == ["t-0"]
    assert list(listing.unknown) == ["lost+found", "t-9"]


def test_log_loader_unclean_log_recovers_epochs_and_end_offset() -> None:
    vfs, log = make()
    loaded = load(vfs)
    assert loaded.log.view().log_end_offset == 12
    assert loaded.log.view().epochs == log.view().epochs
    assert loaded.scanned_bytes == log.view().size_bytes


def test_log_loader_scans_only_the_segment_of_the_recovery_point() -> None:
    vfs, log = make()
    log.flush()
    loaded = load(vfs, recovery_point=12)
    assert loaded.scanned_bytes == log.view().segments[-1].size_bytes
    assert loaded.log.view().epochs == log.view().epochs


def test_log_loader_keeps_no_file_of_an_unclean_log_open() -> None:
    """One start may recover thousands of replicas with several segments each."""
    vfs, _ = make()
    assert all(segment.file is None for segment in load(vfs).log.segments.all)


@each_case("seed", range(5))
def test_log_loader_recovery_reads_the_disk_instead_of_the_page_cache(seed: int) -> None:
    """After a failed fsync the pages are marked clean, and later fsyncs do not write them."""
    vfs, log = make()
    log.view().segments[-1].open().sync()
    for _ in range(2):
        data = batch(body=bytes(200))
        log.append_as_leader(data, headers_of(data), 3, 0)
    newest = log.view().segments[-1].path
    vfs.open(newest, OpenMode.READ).fail_writeback(random.Random(seed))
    recovered = load(vfs).log
    recovered.flush()
    vfs.sync_dir("/d1/t-0")
    end = recovered.view().log_end_offset
    assert load(vfs.crash_clone(seed)).log.view().log_end_offset == end


def test_log_loader_damage_in_the_middle_truncates_the_later_segments() -> None:
    vfs, log = make()
    middle = log.view().segments[1]
    middle.open().write_at(middle.size_bytes - 1, [b"\xff"])
    loaded = load(vfs)
    assert [s.base_offset for s in loaded.log.view().segments] == [0, middle.base_offset]
    assert loaded.log.view().log_end_offset == log.view().segments[2].base_offset - 1
    assert loaded.truncated_bytes > 0


def test_log_loader_removes_segments_after_a_missing_one() -> None:
    vfs, log = make()
    middle = log.view().segments[1]
    vfs.unlink_if_exists(middle.path)
    loaded = load(vfs)
    assert loaded.log.view().log_end_offset == middle.base_offset


def test_log_loader_removes_leftover_files() -> None:
    vfs, _ = make()
    for name in (
        "00000000000000000000.log.deleted",
        "1.log.expired",
        "x.swap",
        "00000000000000009999.index",
    ):
        vfs.open(f"/d1/t-0/{name}", OpenMode.CREATE)
    load(vfs)
    names = {entry.name for entry in vfs.list_dir("/d1/t-0")}
    assert not names & {
        "00000000000000000000.log.deleted",
        "1.log.expired",
        "x.swap",
        "00000000000000009999.index",
    }


def test_log_loader_recovers_lost_epochs_by_a_full_scan() -> None:
    vfs, log = make()
    log.flush()
    vfs.unlink_if_exists("/d1/t-0/leader-epoch-checkpoint")
    loaded = load(vfs, recovery_point=12)
    assert loaded.log.view().epochs == log.view().epochs


def test_log_loader_log_that_ends_before_its_start_is_recreated_at_its_start() -> None:
    vfs, _ = make(2)
    view = load(vfs, log_start_offset=50).log.view()
    assert (view.log_start_offset, view.log_end_offset, view.size_bytes) == (50, 50, 0)


def test_log_loader_missing_partition_metadata_names_the_file() -> None:
    vfs, _ = make(1)
    vfs.unlink_if_exists("/d1/t-0/partition.metadata")
    with pytest.raises(CorruptCheckpointError, match=r"/d1/t-0/partition\.metadata is missing"):
        load(vfs)


def test_log_loader_epochs_of_a_recovery_survive_the_next_clean_stop() -> None:
    vfs, log = make(4)
    log.flush()
    data = batch(body=bytes(200))
    log.append_as_leader(data, headers_of(data), 7, 0)
    recovered = load(vfs).log
    epochs = recovered.view().epochs
    assert epochs[-1].epoch == 7
    close_log(recovered, vfs)
    clean = LogLoader(
        vfs=vfs,
        directory="/d1/t-0",
        topic_partition=TP,
        config=CONFIG,
        was_clean=True,
        recovery_point=recovered.view().recovery_point,
    ).load()
    assert clean.scanned_bytes == 0
    assert clean.log.view().epochs == epochs


def closed() -> tuple[MemVfs, list[int]]:
    """Return a log of four segments after a clean stop, and the base offsets of the segments."""
    vfs, log = make()
    bases = [segment.base_offset for segment in log.view().segments]
    close_log(log, vfs)
    return vfs, bases


def load_cleanly(vfs: Vfs, recovery_point: int = 12, log_start: int | None = 0) -> LoadedLog:
    return LogLoader(
        vfs=vfs,
        directory="/d1/t-0",
        topic_partition=TP,
        config=CONFIG,
        was_clean=True,
        recovery_point=recovery_point,
        log_start_offset=log_start,
    ).load()


def path_of(base: int) -> str:
    return f"/d1/t-0/{base:020}.log"


def truncate_segment_file(vfs: MemVfs, base: int, batches: int) -> None:
    """Truncate the file of a segment after its first ``batches`` batches."""
    vfs.open(path_of(base), OpenMode.READ_WRITE).truncate(batches * len(batch(body=bytes(200))))


def test_log_loader_clean_start_finds_the_log_end_without_a_scan() -> None:
    vfs, _ = closed()
    loaded = load_cleanly(vfs)
    assert (loaded.log.view().log_end_offset, loaded.scanned_bytes) == (12, 0)
    assert loaded.log.view().damages == ()


def test_log_loader_clean_start_detects_a_tail_lost_at_a_batch_boundary() -> None:
    vfs, bases = closed()
    truncate_segment_file(vfs, bases[-1], 1)
    assert load_cleanly(vfs).log.view().log_end_offset == bases[-1] + 1


def test_log_loader_clean_start_detects_a_damaged_last_batch() -> None:
    vfs, bases = closed()
    file = vfs.open(path_of(bases[-1]), OpenMode.READ_WRITE)
    file.write_at(file.size() - 1, [b"\xff"])
    assert load_cleanly(vfs).log.view().log_end_offset == 11


def test_log_loader_clean_start_detects_a_lost_newest_segment() -> None:
    vfs, bases = closed()
    vfs.unlink_if_exists(path_of(bases[-1]))
    assert load_cleanly(vfs).log.view().log_end_offset == bases[-1]


@pytest.mark.parametrize("recovery_point", [11, 13])
def test_log_loader_clean_start_with_a_wrong_checkpoint_trusts_the_log(recovery_point: int) -> None:
    vfs, _ = closed()
    assert load_cleanly(vfs, recovery_point).log.view().log_end_offset == 12


@pytest.mark.parametrize("index", [None, b"", b"\x5a" * 16])
def test_log_loader_clean_start_rebuilds_a_lost_or_wrong_newest_index(index: bytes | None) -> None:
    vfs, bases = closed()
    path = path_of(bases[-1]).replace(".log", ".index")
    vfs.unlink_if_exists(path)
    if index is not None:
        vfs.open(path, OpenMode.CREATE).write_at(0, [index])
    loaded = load_cleanly(vfs)
    assert (loaded.log.view().log_end_offset, loaded.scanned_bytes) == (12, 0)
    assert len(headers_of(read_by_index(loaded.log, 11, 1 << 20, 100))) == 1


def test_log_loader_clean_start_reports_a_lost_oldest_segment_as_damage() -> None:
    vfs, bases = closed()
    vfs.unlink_if_exists(path_of(0))
    log = load_cleanly(vfs).log
    assert (log.view().log_start_offset, log.view().damages) == (0, (Damage(0, bases[1], 0),))
    assert len(headers_of(log.read(bases[1], 1 << 20, 100, True))) == bases[2] - bases[1]
    log.truncate_to(0)
    assert (log.view().log_end_offset, log.view().damages) == (0, ())


def test_log_loader_unclean_start_reports_a_lost_oldest_segment_as_damage() -> None:
    """The first leader epoch determines the log start, even if the checkpoint is old."""
    vfs, log = make()
    log.flush()
    bases = [segment.base_offset for segment in log.view().segments]
    vfs.unlink_if_exists(path_of(0))
    vfs.open("/d1/t-0/00000000000000000000.log.expired", OpenMode.CREATE)  # From an older log.
    loaded = load(vfs, recovery_point=log.view().recovery_point).log
    damages = loaded.view().damages
    assert (loaded.view().log_start_offset, damages) == (0, (Damage(0, bases[1], 0),))
    assert [segment.base_offset for segment in loaded.view().segments] == bases[1:]


@pytest.mark.parametrize("lost", [1, 2])
def test_log_loader_killed_start_leaves_no_hole_before_old_retired_segments(lost: int) -> None:
    """A segment of an interrupted retirement is restored only if it ends at the next segment.

    The oldest segment was retired long ago, and its files are left. The leader epochs let the log
    start there again, and segment ``lost`` is missing. Starts are killed at each operation.
    """
    vfs, log = make()
    log.flush()
    bases = [segment.base_offset for segment in log.view().segments]
    for base in bases[: lost + 1]:
        for suffix in (".index", ".timeindex", ".log"):
            path = path_of(base).replace(".log", suffix)
            vfs.rename(path, path + ".expired")
    vfs.unlink_if_exists(path_of(bases[lost]) + ".expired")
    vfs.sync_dir("/d1/t-0")
    point, clones = log.view().recovery_point, list[MemVfs]()
    killed = FaultVfs(vfs)
    killed.on_operation = lambda kind, path: clones.append(vfs.clone())
    load(killed, recovery_point=point)
    for clone in (*clones, vfs):
        log = load(clone, recovery_point=point).log
        assert [segment.base_offset for segment in log.view().segments] == bases[lost + 1 :]
        assert log.view().damages == (Damage(0, bases[lost + 1], 0),)
    assert len(clones) > 10


def test_log_loader_interrupted_retention_restores_no_truncated_segment() -> None:
    """A truncated segment is still on the disk, and ends where the log's newest segment begins.

    Its batches were replaced by those of a newer leader, in the segment before it.
    """
    mem, log = make()
    stale = log.view().segments[2]
    end = log.view().segments[3].base_offset
    truncate_by_index(log, stale.base_offset - 1)
    for _ in range(log.view().log_end_offset, end):
        data = batch(body=bytes(10))
        log.append_as_leader(data, headers_of(data), 9, 0)
    log.roll()
    data = batch(body=bytes(200))
    log.append_as_leader(data, headers_of(data), 9, 0)
    log.flush()
    bases = [segment.base_offset for segment in log.view().segments]
    assert stale.base_offset not in bases
    assert bases[-1] == end
    assert mem.exists(stale.path + DELETED_SUFFIX)
    for _ in range(len(bases) - 1):
        log.segments.retire(0, suffix=EXPIRED_SUFFIX)
    loaded = load(mem.clone(), recovery_point=log.view().recovery_point).log
    assert [segment.base_offset for segment in loaded.view().segments] == bases
    assert loaded.view().damages == ()


@pytest.mark.parametrize("change", ["truncation", "retention", "retention on a full disk"])
def test_log_loader_crash_while_the_log_start_moves_reports_no_damage(change: str) -> None:
    mem, log = make()
    log.flush()
    vfs, point, clones = FaultVfs(mem), log.view().recovery_point, list[MemVfs]()
    log = load_cleanly(vfs, point).log
    vfs.on_operation = lambda kind, path: clones.append(mem.crash_clone(len(clones)))
    if change == "truncation":
        log.truncate_fully_and_start_at(100)
    else:
        log.config = TopicConfig(segment_bytes=1024, index_interval_bytes=100, retention_bytes=0)
        log.delete_old_segments(0, 8, without_free_space=change.endswith("full disk"))
    clones.append(mem.crash_clone(len(clones)))
    assert log.view().log_start_offset > 0
    for clone in clones:
        loaded = load(clone, recovery_point=point, log_start_offset=0).log
        assert loaded.view().damages == (), [entry.name for entry in clone.list_dir("/d1/t-0")]
        assert loaded.view().log_start_offset == loaded.view().segments[0].base_offset


@pytest.mark.parametrize("is_whole_lost", [True, False])
def test_read_of_lost_batches_reports_damage_and_reads_the_segment_once(
    is_whole_lost: bool,
) -> None:
    """A file in the middle of the log shrank or vanished: only a read or the scrub detects that."""
    mem, bases = closed()
    if is_whole_lost:
        mem.unlink_if_exists(path_of(bases[1]))
    else:
        truncate_segment_file(mem, bases[1], 1)
    vfs, lost = FaultVfs(mem), bases[2] - 1
    log = load_cleanly(vfs).log
    assert bytes(read_by_index(log, lost, 1 << 20, 100)) == b""
    begin = bases[1] if is_whole_lost else bases[1] + 1
    (damage,) = log.view().damages
    assert (damage.offset, damage.next_offset) == (begin, bases[2])
    reads = Fault(kinds=frozenset({"read_at", "read_cached_at"}), nth=1_000_000)
    vfs.inject(reads)
    assert bytes(read_by_index(log, lost, 1 << 20, 100)) == b""
    assert reads.seen == 0
    log.truncate_to(lost)
    assert log.view().log_end_offset == begin


def test_truncate_into_lost_batches_ends_the_log_after_its_last_remaining_batch() -> None:
    vfs, bases = closed()
    truncate_segment_file(vfs, bases[1], 1)
    log = load_cleanly(vfs).log
    truncate_by_index(log, bases[2] - 1)
    assert log.view().log_end_offset == bases[1] + 1
