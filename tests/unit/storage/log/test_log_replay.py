"""``LogReplay``: other operations of the log run between its steps."""

from __future__ import annotations

import pytest

from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.protocol.control_records import TransactionMarker
from kraftjbod.protocol.record_batch import read_header
from kraftjbod.protocol.records import Record, build_batch
from kraftjbod.storage.log.log_loader import LogLoader, create_log
from kraftjbod.storage.log.log_replay import LogReplay, ReplayNeededError
from kraftjbod.storage.log.unified_log import UnifiedLog
from kraftjbod.storage.log.verification_guards import ProducerTerms
from kraftjbod.storage.segments.transaction_index import AbortedTransaction
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import TOPIC_ID, TP, close_log, read_segment

CONFIG = TopicConfig(segment_bytes=4 * 1024 * 1024, retention_bytes=2 * 1024 * 1024)
UNGUARDED = ProducerTerms(is_guarded=False, checks_sequence=False)
NOW_MS = 1_000_000
COUNT = 600
"""Batches of 5 KB in a segment, so that the rebuild takes three steps."""


def _append(log: UnifiedLog) -> None:
    data = build_batch(
        [Record(value=bytes(5_000), timestamp_ms=NOW_MS)],
        producer_id=1,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    log.append_as_leader(data, [read_header(data)], 0, NOW_MS, UNGUARDED)


def _abort(log: UnifiedLog) -> None:
    log.append_marker(
        1, 0, TransactionMarker(False, 0), transaction_version=0, leader_epoch=0, now_ms=NOW_MS
    )


def _log_with_damaged_indexes(vfs: MemVfs) -> UnifiedLog:
    """Return a log of two closed segments with an aborted transaction each, whose transaction
    indexes are damaged, and an empty active segment.
    """
    vfs.make_dirs("/d1")
    log = create_log(vfs, "/d1", TP, TOPIC_ID, CONFIG)
    for _ in range(2):
        for _ in range(COUNT):
            _append(log)
        _abort(log)
        log.roll()
    close_log(log, vfs)
    for segment in log.segments.all[:-1]:
        vfs.open(segment.transactions_path, OpenMode.READ_WRITE).truncate(33)
    return _loaded(vfs, log)


def _loaded(vfs: MemVfs, log: UnifiedLog) -> UnifiedLog:
    return (
        LogLoader(
            vfs=vfs,
            directory=log.directory,
            topic_partition=TP,
            config=CONFIG,
            was_clean=True,
            recovery_point=log.view().log_end_offset,
        )
        .load()
        .log
    )


def _begun(log: UnifiedLog, first: int) -> ReplayNeededError:
    """Return the error of a question about the transactions from ``first`` on, after one step of
    its rebuild.
    """
    with pytest.raises(ReplayNeededError) as unread:
        log.aborted_between(first, log.view().log_end_offset)
    assert not log.rebuild_step(unread.value.replay), "it is not done in one disk operation"
    return unread.value


def _finish(log: UnifiedLog, replay: LogReplay) -> bool:
    while not log.rebuild_step(replay):
        pass
    return log.take_rebuilt(replay, is_written=True)


def test_rebuilt_transaction_index_is_used_and_written_although_the_log_grew_meanwhile() -> None:
    vfs = MemVfs()
    log = _log_with_damaged_indexes(vfs)
    unread = _begun(log, COUNT + 1)
    _append(log)
    log.roll()
    assert _finish(log, unread.replay)
    assert unread.is_settled, "a second caller needs no rebuild"
    end = 2 * (COUNT + 1)
    expected = [AbortedTransaction(1, COUNT + 1, end - 1, last_stable_offset=end)]
    assert log.aborted_between(COUNT + 1, end) == expected
    assert _loaded(vfs, log).aborted_between(COUNT + 1, end) == expected, "read from the file"


def test_rebuild_is_dropped_if_retention_removed_a_segment_meanwhile() -> None:
    log = _log_with_damaged_indexes(MemVfs())
    unread = _begun(log, COUNT + 1)
    log.high_watermark = log.view().log_end_offset
    assert log.delete_old_segments(NOW_MS, log.high_watermark) == 1
    for segment in log.segments.take_retired():
        segment.purge()
    assert not _finish(log, unread.replay), "its replay may begin in the removed segment"
    again = _begun(log, COUNT + 1)
    assert _finish(log, again.replay)


def test_truncation_with_a_damaged_transaction_index_requires_a_rebuild_first() -> None:
    log = _log_with_damaged_indexes(MemVfs())
    with pytest.raises(ReplayNeededError) as unread:
        log.truncate_to(COUNT)
    assert log.view().log_end_offset == 2 * (COUNT + 1), "nothing has changed"
    read_segment(log, unread.value)
    log.truncate_to(COUNT)
    assert log.view().log_end_offset == COUNT
    assert log.aborted_between(0, COUNT) == []


def test_failed_step_makes_the_rebuild_invalid() -> None:
    vfs = MemVfs()
    log = _log_with_damaged_indexes(vfs)
    unread = _begun(log, 0)
    unread.segment.close()
    vfs.unlink_if_exists(unread.segment.path)
    with pytest.raises(OSError):
        while not log.rebuild_step(unread.replay):
            pass
    assert not log.take_rebuilt(unread.replay, is_written=True)


def test_truncation_without_a_snapshot_requires_a_replay_and_succeeds_after_its_steps() -> None:
    vfs = MemVfs()
    vfs.make_dirs("/d1")
    log = create_log(vfs, "/d1", TP, TOPIC_ID, TopicConfig(segment_bytes=2**30))
    for _ in range(2 * COUNT):
        _append(log)
    end = 2 * COUNT - 1
    with pytest.raises(ReplayNeededError) as unread:
        log.truncate_to(end)
    assert not log.rebuild_step(unread.value.replay), "it is not done in one disk operation"
    assert log.view().log_end_offset == end + 1, "nothing has changed"
    assert _finish(log, unread.value.replay)
    log.truncate_to(end)
    assert log.view().log_end_offset == end
    (producer,) = log.known_producers()
    assert producer.last_sequence == 0
    assert producer.transaction_first_offset == 0


def test_replay_for_one_truncation_is_not_used_after_another_one() -> None:
    vfs = MemVfs()
    vfs.make_dirs("/d1")
    log = create_log(vfs, "/d1", TP, TOPIC_ID, TopicConfig(segment_bytes=2**30))
    for _ in range(2 * COUNT):
        _append(log)
    with pytest.raises(ReplayNeededError) as unread:
        log.truncate_to(2 * COUNT - 1)
    assert _finish(log, unread.value.replay)
    log.truncate_fully_and_start_at(0)
    for _ in range(2 * COUNT):
        _append(log)
    with pytest.raises(ReplayNeededError):
        log.truncate_to(2 * COUNT - 1)
