"""``FutureLog``: the bytes of a future replica, and the claims of its checkpoint."""

from __future__ import annotations

import pytest

from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.storage.checkpoints import CorruptCheckpointError
from kraftjbod.storage.log.log_loader import create_log
from kraftjbod.storage.log.unified_log import UnifiedLog
from kraftjbod.storage.moves.future_checkpoint import parse_future
from kraftjbod.storage.moves.future_log import FutureLog
from kraftjbod.storage.segments.steps import take_step
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import TOPIC_ID, TP, batch, directory_id, headers_of
from tests.faults.vfs_fault import Fault, FaultVfs
from tests.unit.storage.replicas.test_replica_swap import MOVE

CONFIG = TopicConfig(segment_bytes=1024, index_interval_bytes=100)
PLENTY_BYTES = 1 << 20


def make(batches: int = 12) -> tuple[UnifiedLog, MemVfs, FutureLog, MemVfs]:
    source, target = MemVfs(), MemVfs()
    source.make_dirs("/d1")
    target.make_dirs("/d2")
    log = create_log(source, "/d1", TP, TOPIC_ID, CONFIG)
    for _ in range(batches):
        append(log)
    future = FutureLog.create(
        target, "/d2", TP, TOPIC_ID, move_id=MOVE, source_directory_id=directory_id(1)
    )
    return log, source, future, target


def append(log: UnifiedLog, epoch: int = 0) -> None:
    data = batch(2, body=bytes([epoch]) * 200)
    log.append_as_leader(data, headers_of(data), epoch, 1)


def step(log: UnifiedLog, source: MemVfs, future: FutureLog, max_bytes: int = PLENTY_BYTES) -> bool:
    done = future.step(
        log.view(), log.take_truncation(), source, max_bytes=max_bytes, by_kernel=True
    )
    return done.is_mirror


def claimed(target: MemVfs, future: FutureLog) -> dict[int, int]:
    data = target.read_if_exists(f"{future.directory}/future-copy-checkpoint")
    assert data is not None
    return parse_future(data.decode(), "").synced


def same_files(log: UnifiedLog, source: MemVfs, future: FutureLog, target: MemVfs) -> bool:
    names = [e.name for e in source.list_dir(log.directory) if e.name.endswith(".log")]
    copies = [e.name for e in target.list_dir(future.directory) if e.name.endswith(".log")]
    return names == copies and all(
        source.read_if_exists(f"{log.directory}/{name}")
        == target.read_if_exists(f"{future.directory}/{name}")
        for name in names
    )


def test_future_log_copies_segments_and_indexes_byte_for_byte() -> None:
    log, source, future, target = make()
    while not step(log, source, future, 333):
        pass
    assert same_files(log, source, future, target)
    sealed = [e.name for e in source.list_dir(log.directory) if e.name.endswith("index")]
    assert sealed
    for name in sealed:
        assert target.read_if_exists(f"{future.directory}/{name}") == source.read_if_exists(
            f"{log.directory}/{name}"
        )


def test_future_log_checkpoint_claims_synced_bytes_only() -> None:
    log, source, future, target = make()
    step(log, source, future)
    assert claimed(target, future) == {}
    future.sync()
    assert claimed(target, future) == {s.base_offset: s.size_bytes for s in log.view().segments}
    log.truncate_to(5)
    append(log, 1)
    step(log, source, future)
    (base, size), *_ = claimed(target, future).items()
    assert base == 0
    assert size < log.view().active_size_bytes
    assert same_files(log, source, future, target)


def test_future_log_after_a_restart_trusts_claimed_bytes_only() -> None:
    log, source, future, target = make()
    step(log, source, future, 1500)
    future.sync()
    step(log, source, future)
    again = FutureLog.load(target, future.directory, TP)
    assert sum(size for _, size in again.extents) == 1500
    again.resume(log.view())
    assert step(log, source, again)
    assert same_files(log, source, again, target)


def test_future_log_resume_finds_its_truncation_in_steps_of_a_segment() -> None:
    """A scan of 1 GiB in one operation would make a healthy disk STALLED."""
    source, target = MemVfs(), MemVfs()
    source.make_dirs("/d1")
    target.make_dirs("/d2")
    log = create_log(source, "/d1", TP, TOPIC_ID, TopicConfig(segment_bytes=1 << 30))
    for _ in range(20):
        data = batch(1, body=b"x" * (1 << 20))
        log.append_as_leader(data, headers_of(data), 0, 1)
    future = FutureLog.create(
        target, "/d2", TP, TOPIC_ID, move_id=MOVE, source_directory_id=directory_id(1)
    )
    while not step(log, source, future, 32 << 20):
        pass
    future.sync()
    log.truncate_to(18)
    append(log, 1)
    log.take_truncation()  # A restart forgets it.
    again = FutureLog.load(target, future.directory, TP)
    work, steps = again.resume_steps(log.view()), 1
    while not take_step(work):
        steps += 1
    assert steps >= 5, "20 MiB in steps of 4 MiB"
    assert step(log, source, again)
    assert same_files(log, source, again, target)


def test_future_log_after_a_restart_does_not_keep_batches_below_a_lowered_log_start() -> None:
    """The log started at 4 when it was copied. An unclean leader truncated it to 2 afterwards."""
    log, source, future, target = make(3)
    log.start_at(4)
    step(log, source, future)
    future.sync()
    log.truncate_to(2)
    append(log, 1)
    append(log, 1)
    log.take_truncation()  # A restart forgets it.
    assert log.view().log_start_offset == 2
    again = FutureLog.load(target, future.directory, TP)
    again.resume(log.view())
    assert step(log, source, again)
    assert same_files(log, source, again, target)


def test_future_log_step_with_a_retired_segment_reports_a_stale_view() -> None:
    """KAFKA-19571: retention renamed a file that was about to be opened."""
    log, source, future, _ = make()
    view = log.view()
    log.config = CONFIG.model_copy(update={"retention_bytes": 0})
    log.delete_old_segments(10**13, log.view().log_end_offset)
    done = future.step(view, None, source, max_bytes=PLENTY_BYTES, by_kernel=True)
    assert (done.is_view_stale, done.is_mirror) == (True, False)
    assert step(log, source, future)


def test_future_log_copies_without_the_kernel() -> None:
    log, source, future, target = make()
    done = future.step(log.view(), None, source, max_bytes=PLENTY_BYTES, by_kernel=False)
    assert done.is_mirror
    assert same_files(log, source, future, target)


@pytest.mark.parametrize("name", ["partition.metadata", "future-copy-checkpoint"])
def test_future_log_load_without_metadata_or_checkpoint_fails(name: str) -> None:
    _, _, future, target = make(0)
    target.unlink_if_exists(f"{future.directory}/{name}")
    with pytest.raises(CorruptCheckpointError, match="missing"):
        FutureLog.load(target, future.directory, TP)


def test_future_log_read_again_repeats_the_last_read_of_the_source() -> None:
    log, mem, future, _ = make()
    source = FaultVfs(mem)
    read = source.inject(Fault(kinds=frozenset({"read_at"}), path="*.log"))
    future.read_again(source)
    assert read.hits == 0, "nothing was read before"
    with pytest.raises(OSError):
        future.step(log.view(), None, source, max_bytes=PLENTY_BYTES, by_kernel=False)
    with pytest.raises(OSError):
        future.read_again(source)
    source.clear()
    source.unlink_if_exists(log.view().segments[0].path)
    future.read_again(source)
