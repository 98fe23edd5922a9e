"""Listing a dir, and loading replicas that were left in some state."""

from __future__ import annotations

import pytest

from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.storage.checkpoints import CorruptCheckpointError
from kraftjbod.storage.log.log_loader import LoadedLog, LogLoader, create_log, list_log_dir
from kraftjbod.storage.log.unified_log import UnifiedLog
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import TOPIC_ID, TP, batch, headers_of

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


def test_listing():
    vfs, _ = make(0)
    vfs.make_dirs("/d1/lost+found")
    vfs.make_dirs("/d1/__cluster_metadata-0")
    vfs.open("/d1/meta.properties", OpenMode.CREATE)
    vfs.open("/d1/t-9", OpenMode.CREATE)
    listing = list_log_dir(vfs, "/d1")
    assert [replica.name for replica in listing.replicas] == ["t-0"]
    assert list(listing.unknown) == ["lost+found", "t-9"]


def test_unclean_log_finds_epochs_and_end_by_itself():
    vfs, log = make()
    loaded = load(vfs)
    assert loaded.log.view().log_end_offset == 12
    assert loaded.log.view().epochs == log.view().epochs
    assert loaded.scanned_bytes == log.view().size_bytes


def test_only_what_lies_after_the_recovery_point_is_scanned():
    vfs, log = make()
    log.flush()
    loaded = load(vfs, recovery_point=12)
    assert loaded.scanned_bytes == log.view().segments[-1].size_bytes
    assert loaded.log.view().epochs == log.view().epochs


def test_load_of_an_unclean_log_keeps_no_file_open():
    """Thousands of replicas with several segments each are recovered at one start."""
    vfs, _ = make()
    assert all(segment.file is None for segment in load(vfs).log.segments.all)


def test_damage_in_the_middle_takes_the_later_segments_along():
    vfs, log = make()
    middle = log.view().segments[1]
    middle.open().write_at(middle.size_bytes - 1, [b"\xff"])
    loaded = load(vfs)
    assert [s.base_offset for s in loaded.log.view().segments] == [0, middle.base_offset]
    assert loaded.log.view().log_end_offset == log.view().segments[2].base_offset - 1
    assert loaded.truncated_bytes > 0


def test_segment_that_is_not_reachable_goes():
    vfs, log = make()
    middle = log.view().segments[1]
    vfs.unlink_if_exists(middle.path)
    loaded = load(vfs)
    assert loaded.log.view().log_end_offset == middle.base_offset


def test_leftovers_are_removed():
    vfs, _ = make()
    for name in ("00000000000000000000.log.deleted", "x.swap", "00000000000000009999.index"):
        vfs.open(f"/d1/t-0/{name}", OpenMode.CREATE)
    load(vfs)
    names = {entry.name for entry in vfs.list_dir("/d1/t-0")}
    assert not names & {"00000000000000000000.log.deleted", "x.swap", "00000000000000009999.index"}


def test_lost_epochs_are_found_by_a_full_scan():
    vfs, log = make()
    log.flush()
    vfs.unlink_if_exists("/d1/t-0/leader-epoch-checkpoint")
    loaded = load(vfs, recovery_point=12)
    assert loaded.log.view().epochs == log.view().epochs


def test_log_that_ends_before_its_start_begins_anew_there():
    vfs, _ = make(2)
    view = load(vfs, log_start_offset=50).log.view()
    assert (view.log_start_offset, view.log_end_offset, view.size_bytes) == (50, 50, 0)


def test_unknown_topic_is_an_error_that_names_the_file():
    vfs, _ = make(1)
    vfs.unlink_if_exists("/d1/t-0/partition.metadata")
    with pytest.raises(CorruptCheckpointError, match=r"/d1/t-0/partition\.metadata is missing"):
        load(vfs)


def test_epochs_that_recovery_found_are_there_after_the_next_clean_stop():
    vfs, log = make(4)
    log.flush()
    data = batch(body=bytes(200))
    log.append_as_leader(data, headers_of(data), 7, 0)
    recovered = load(vfs).log
    epochs = recovered.view().epochs
    assert epochs[-1].epoch == 7
    recovered.close()
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
