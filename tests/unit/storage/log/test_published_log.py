"""``PublishedLog``: publication of changes, and operations on a moved or removed log."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import NotLeaderOrFollowerError, UnknownTopicOrPartitionError
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.storage.log.log_loader import create_log
from kraftjbod.storage.log.log_values import AppendResult
from kraftjbod.storage.log.published_log import PublishedLog
from kraftjbod.storage.log.unified_log import UnifiedLog
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.segments.segment import LogSegment
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import TOPIC_ID, TP, batch, format_dir, headers_of, open_dir, read_by_index

NO_LIMIT = 2**62
BATCH = batch(body=bytes(300))
#: Three batches per segment.
CONFIG = TopicConfig(segment_bytes=3 * len(BATCH), retention_bytes=0)


class LogFixture:
    def __init__(self) -> None:
        self.vfs = MemVfs()
        format_dir(self.vfs, "/d1", 1)
        #: Each reported event, with the number of segments in the view at that time.
        self.reported: list[tuple[object, int]] = []
        self.published = PublishedLog(
            log=create_log(self.vfs, "/d1", TP, TOPIC_ID, CONFIG),
            log_dir=open_dir(self.vfs),
            on_retired=self._retired,
            on_rolled=lambda: self.reported.append(("rolled", self._shown())),
        )

    def _retired(self, segments: Sequence[LogSegment]) -> None:
        self.reported.append(([segment.base_offset for segment in segments], self._shown()))

    def _shown(self) -> int:
        return len(self.published.view.segments)

    def append(self) -> asyncio.Future[AppendResult]:
        return self.published.submit(
            OpKind.APPEND, lambda log: log.append_as_leader(BATCH, headers_of(BATCH), 0, 1)
        )


def end_of(log: UnifiedLog) -> int:
    return log.view().log_end_offset


async def test_published_log_publishes_a_change_whose_caller_was_cancelled() -> None:
    fixture = LogFixture()
    fixture.append().cancel()
    waiting = asyncio.create_task(fixture.published.run_operation(OpKind.READ, end_of))
    await asyncio.sleep(0)
    waiting.cancel()
    assert await fixture.published.run_operation(OpKind.READ, end_of) == 1
    assert fixture.published.view.log_end_offset == 1


async def test_published_log_does_not_publish_an_unfinished_change() -> None:
    fixture = LogFixture()
    before = fixture.published.view
    done = fixture.append()
    assert fixture.published.view is before
    await done
    assert fixture.published.view.log_end_offset == before.log_end_offset + 1


async def test_published_log_reports_a_new_segment_after_publishing_it() -> None:
    fixture = LogFixture()
    for _ in range(3):
        await fixture.append()
    assert fixture.reported == []
    await fixture.append()
    assert fixture.reported == [("rolled", 2)]


async def test_published_log_reports_retired_segments_after_their_removal_from_the_view() -> None:
    fixture = LogFixture()
    for _ in range(7):
        await fixture.append()
    fixture.reported.clear()
    gone = await fixture.published.run_operation(
        OpKind.RETENTION, lambda log: log.delete_old_segments(1, 6)
    )
    assert gone == 2
    assert fixture.reported == [([0, 3], 1)]


async def test_published_log_keeps_the_lowest_truncation_until_it_is_taken() -> None:
    fixture = LogFixture()
    for _ in range(7):
        await fixture.append()
    assert not fixture.published.has_truncation
    for offset in (5, 4):
        await fixture.published.run_operation(
            OpKind.TRUNCATE, lambda log, to=offset: log.truncate_to(to)
        )
    await fixture.append()
    assert fixture.published.has_truncation
    assert fixture.published.take_truncation() == (3, len(BATCH))
    assert fixture.published.take_truncation() is None


async def test_published_log_replaced_by_a_move_is_readable_until_closed() -> None:
    fixture = LogFixture()
    await fixture.append()
    fixture.published.is_replaced = True
    with pytest.raises(NotLeaderOrFollowerError, match="moved to another log directory"):
        fixture.append()
    assert await fixture.published.ask(OpKind.READ, end_of) == 1
    fixture.published.is_closed = True
    with pytest.raises(NotLeaderOrFollowerError):
        fixture.published.ask(OpKind.READ, end_of)


async def test_published_log_of_a_removed_replica_refuses_operations() -> None:
    fixture = LogFixture()
    fixture.published.is_closed = True
    for ask in (fixture.published.submit, fixture.published.ask):
        with pytest.raises(UnknownTopicOrPartitionError, match="was removed"):
            ask(OpKind.READ, end_of)


async def test_published_log_logs_damage_once() -> None:
    fixture = LogFixture()
    for _ in range(4):
        await fixture.append()
    fixture.published.log.segments.oldest.open().write_at(len(BATCH) + 70, [b"\xff"])

    def read(log: UnifiedLog) -> memoryview:
        return read_by_index(log, 1, 1000, NO_LIMIT)

    with capture_logs() as logged:
        for _ in range(2):
            assert not await fixture.published.run_operation(OpKind.READ, read)
        await fixture.append()
    (line,) = logged
    assert (line["event"], line["partition"], line["log_dir"]) == ("log_damaged", str(TP), "/d1")
    assert (line["offset"], line["next_offset"]) == (1, 2)


async def test_published_log_logs_a_rebuilt_index() -> None:
    fixture = LogFixture()
    for _ in range(4):
        await fixture.append()
    fixture.published.log.segments.oldest.indexes().offsets.append_entry(2, 1)
    with capture_logs() as logged:
        records = await fixture.published.run_operation(
            OpKind.READ, lambda log: read_by_index(log, 2, 1000, NO_LIMIT)
        )
    assert [header.base_offset for header in headers_of(records)] == [2]
    assert [line["event"] for line in logged] == ["log_index_mended"]
