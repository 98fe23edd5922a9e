"""Producer state recovered from runs of batches equals the state from all batches."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.protocol.record_batch import read_header
from kraftjbod.protocol.record_scans import BatchScan
from kraftjbod.storage.log.producer_recovery import ProducerRecovery
from kraftjbod.storage.log.producer_snapshots import ProducerSnapshots
from kraftjbod.storage.log.producer_state import ProducerLimits, ProducerState
from kraftjbod.storage.segments.batch_runs import SoundRun
from kraftjbod.storage.segments.segment import LogSegment
from kraftjbod.storage.segments.steps import run_all
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import batch


def batches_of(producers: Iterable[tuple[int, int, int]]) -> list[bytes]:
    return [batch(base_offset=at, producer=one) for at, one in enumerate(producers)]


def recovered(
    made: list[bytes], *, limits: ProducerLimits, snapshots: dict[int, ProducerState] | None = None
) -> ProducerRecovery:
    """Recover the producer state of a log with these batches in one run."""
    vfs = MemVfs()
    vfs.make_dirs("/t")
    segments = [LogSegment.on_disk(vfs, "/t", 0, 0, TopicConfig())]
    files = ProducerSnapshots(vfs, lambda: "/t", [])
    for offset, state in (snapshots or {}).items():
        files.write(state, offset, segments, sync=False)
    recovery = ProducerRecovery(files, run_all(files.load(segments, 0, limits)), 0, limits)
    scan = BatchScan(
        None, next_offset=0, limit_offset=2**31, may_have_gaps=False, interval_bytes=4096
    )
    data = b"".join(made)
    assert scan.take(data) == len(data)
    recovery.take_run(SoundRun(0, data, len(data), scan))
    return recovery


def recorded(
    made: list[bytes], limits: ProducerLimits, state: ProducerState | None = None
) -> ProducerState:
    state = ProducerState() if state is None else state
    for one in made:
        header = read_header(one)
        state.record(header, header.base_offset, limits=limits)
    return state


@pytest.mark.parametrize(("max_producers", "known"), [(1, 1), (100, 10)])
def test_producer_recovery_state_equals_that_of_recording_each_batch(
    max_producers: int, known: int
) -> None:
    """If one producer is known at most, each batch evicts the other one."""
    limits = ProducerLimits(max_producers=max_producers)
    epochs = [0] * 14 + [1] * 8 + [0] * 12
    made = batches_of((7 + at % 2, epoch, at) for at, epoch in enumerate(epochs))
    state = recovered(made, limits=limits).loaded().state
    assert state.to_snapshot() == recorded(made, limits).to_snapshot()
    assert len(state.kept_batches().last_offsets) == known


def test_producer_recovery_replays_the_batches_after_the_newest_snapshot() -> None:
    """The snapshots contain producer 9, whose batches have been removed from the log."""
    limits = ProducerLimits()
    made = batches_of((7, 0, at) for at in range(10))
    known = {
        offset: recorded([batch(base_offset=offset - 1, producer=(9, 0, offset))], limits)
        for offset in (3, 6)
    }
    loaded = recovered(made, limits=limits, snapshots=known).loaded()
    newest = ProducerState.from_snapshot(known[6].to_snapshot())
    assert loaded.state.to_snapshot() == recorded(made[6:], limits, newest).to_snapshot()
    assert loaded.replayed_bytes == sum(map(len, made[6:]))


def test_producer_recovery_ignores_a_missing_snapshot() -> None:
    limits = ProducerLimits()
    made = batches_of((7, 0, at) for at in range(4))
    vfs = MemVfs()
    vfs.make_dirs("/t")
    name = f"/t/{2:020d}.snapshot"
    files = ProducerSnapshots(vfs, lambda: "/t", [])
    segments = [LogSegment.on_disk(vfs, "/t", 0, 0, TopicConfig())]
    files.write(ProducerState(), 2, segments, sync=False)
    vfs.unlink_if_exists(name)
    recovery = ProducerRecovery(files, run_all(files.load(segments, 0, limits)), 0, limits)
    data = b"".join(made)
    scan = BatchScan(
        None, next_offset=0, limit_offset=2**31, may_have_gaps=False, interval_bytes=4096
    )
    scan.take(data)
    recovery.take_run(SoundRun(0, data, len(data), scan))
    assert recovery.loaded().state.to_snapshot() == recorded(made, limits).to_snapshot()
