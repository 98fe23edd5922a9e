"""Snapshot files: newest sound one wins, and the log has the rest."""

from __future__ import annotations

from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.storage.log.log_loader import create_log
from kraftjbod.storage.log.producer_snapshots import (
    drop_snapshots_outside,
    load_producers,
    snapshot_offsets,
    write_snapshot,
)
from kraftjbod.storage.log.producer_state import ProducerLimits, ProducerState
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import TOPIC_ID, TP, batch, headers_of


def test_only_the_newest_are_kept_and_those_outside_go():
    vfs = MemVfs()
    vfs.make_dirs("/t")
    for offset in (5, 10, 15):
        write_snapshot(vfs, "/t", ProducerState(), offset, sync=True)
    assert snapshot_offsets(vfs, "/t") == [10, 15]
    drop_snapshots_outside(vfs, "/t", 0, 12)
    assert snapshot_offsets(vfs, "/t") == [10]


def test_damaged_snapshot_is_passed_over():
    vfs = MemVfs()
    vfs.make_dirs("/d1")
    log = create_log(vfs, "/d1", TP, TOPIC_ID, TopicConfig(segment_bytes=1024))
    for i in range(20):
        data = batch(body=bytes(300), producer=(7, 0, i))
        log.append_as_leader(data, headers_of(data), 0, 0)
    newest = snapshot_offsets(vfs, "/d1/t-0")[-1]
    path = f"/d1/t-0/{newest:020d}.snapshot"
    vfs.open(path, OpenMode.READ_WRITE).write_at(8, [b"\xff\xff"])
    state = load_producers(vfs, "/d1/t-0", log.view().segments, 20)
    (header,) = headers_of(batch(producer=(7, 0, 19)))
    twin = state.check(header, 0, ProducerLimits())
    assert twin is not None
    assert twin.base_offset == 19
