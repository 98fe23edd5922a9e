"""Files of producer snapshots: which ones are kept, loaded and written."""

from __future__ import annotations

from collections.abc import Iterable

from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.storage.log.log_loader import create_log
from kraftjbod.storage.log.producer_snapshots import ProducerSnapshots
from kraftjbod.storage.log.producer_state import ProducerLimits, ProducerState
from kraftjbod.storage.log.unified_log import UnifiedLog
from kraftjbod.storage.segments.segment import LogSegment
from kraftjbod.storage.segments.steps import run_all
from kraftjbod.storage.vfs import OpenMode, Vfs
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import TOPIC_ID, TP, batch, headers_of


def segments_at(vfs: Vfs, bases: Iterable[int]) -> list[LogSegment]:
    config = TopicConfig()
    return [LogSegment.on_disk(vfs, "/t", base, 0, config) for base in bases]


def snapshots_in(vfs: Vfs, directory: str) -> ProducerSnapshots:
    return ProducerSnapshots(vfs, lambda: directory)


def test_producer_snapshots_keep_those_of_segments_and_the_two_newest() -> None:
    vfs = MemVfs()
    vfs.make_dirs("/t")
    snapshots, segments = snapshots_in(vfs, "/t"), segments_at(vfs, [0, 10])
    for offset in (5, 10, 15, 18, 19):
        snapshots.write(ProducerState(), offset, segments, sync=True)
    assert snapshots_in(vfs, "/t").offsets == snapshots.offsets == [10, 18, 19]
    snapshots.drop_outside(0, 18)
    assert snapshots_in(vfs, "/t").offsets == snapshots.offsets == [10, 18]


def test_producer_snapshots_keep_one_before_the_recovery_point() -> None:
    vfs = MemVfs()
    vfs.make_dirs("/t")
    snapshots, segments = snapshots_in(vfs, "/t"), segments_at(vfs, [0])
    for offset in (5, 10, 15, 20):
        snapshots.write(ProducerState(), offset, segments, sync=True, recovery_base=7)
    assert snapshots_in(vfs, "/t").offsets == snapshots.offsets == [5, 15, 20]


def log_with(vfs: MemVfs, batches: int, config: TopicConfig, interval_bytes: int) -> UnifiedLog:
    vfs.make_dirs("/d1")
    limits = ProducerLimits(snapshot_interval_bytes=interval_bytes)
    log = create_log(vfs, "/d1", TP, TOPIC_ID, config, producer_limits=limits)
    for i in range(batches):
        data = batch(body=bytes(300), producer=(7, 0, i))
        log.append_as_leader(data, headers_of(data), 0, 0)
    return log


def test_producer_snapshots_load_ignores_a_damaged_file() -> None:
    vfs = MemVfs()
    log = log_with(vfs, 20, TopicConfig(segment_bytes=1024), 1 << 30)
    snapshots = snapshots_in(vfs, "/d1/t-0")
    path = f"/d1/t-0/{snapshots.offsets[-1]:020d}.snapshot"
    vfs.open(path, OpenMode.READ_WRITE).write_at(8, [b"\xff\xff"])
    state = run_all(snapshots.load(log.view().segments, 20)).state
    (header,) = headers_of(batch(producer=(7, 0, 19)))
    twin = state.check(header, 0, ProducerLimits())
    assert twin is not None
    assert twin.base_offset == 19


def test_append_writes_a_producer_snapshot_after_each_interval() -> None:
    """A truncation replays the batches after the newest remaining snapshot."""
    vfs = MemVfs()
    log = log_with(vfs, 100, TopicConfig(), 8_000)
    offsets = snapshots_in(vfs, "/d1/t-0").offsets
    assert len(offsets) == 2
    assert 100 - offsets[-1] <= 8_000 // 361 + 1
    log.truncate_to(99)
    (header,) = headers_of(batch(producer=(7, 0, 98)))
    replayed = run_all(snapshots_in(vfs, "/d1/t-0").load(log.view().segments, 99))
    assert replayed.replayed_bytes <= 8_000
    twin = log.append_as_leader(batch(producer=(7, 0, 98)), [header], 0, 0)
    assert (twin.duplicate, twin.base_offset) == (True, 98)


def test_snapshot_interval_grows_with_the_size_of_the_producer_state() -> None:
    state, limits = ProducerState(), ProducerLimits(snapshot_interval_bytes=1_000)
    assert not state.is_snapshot_due(1 << 30, limits)
    for producer_id in range(1_000):
        for sequence in range(5):
            (header,) = headers_of(batch(producer=(producer_id, 0, sequence)))
            state.record(header, 5 * producer_id + sequence)
    written = len(state.to_snapshot())
    assert not state.is_snapshot_due(20 * written, limits)
    assert state.is_snapshot_due(40 * written, limits)
