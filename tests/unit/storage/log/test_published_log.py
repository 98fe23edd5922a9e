"""PublishedLog: what the loop knows when something was done, and who may still ask."""

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
#: Three batches to a segment.
CONFIG = TopicConfig(segment_bytes=3 * len(BATCH), retention_bytes=0)


class Scene:
    def __init__(self) -> None:
        self.vfs = MemVfs()
        format_dir(self.vfs, "/d1", 1)
        #: What was reported, beside the number of segments that the view showed then.
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


async def test_what_is_done_is_published_though_whoever_waited_went_away() -> None:
    scene = Scene()
    scene.append().cancel()
    waiting = asyncio.create_task(scene.published.run(OpKind.READ, end_of))
    await asyncio.sleep(0)
    waiting.cancel()
    assert await scene.published.run(OpKind.READ, end_of) == 1
    assert scene.published.view.log_end_offset == 1


async def test_what_is_done_is_not_published_before_it_is_done() -> None:
    scene = Scene()
    before = scene.published.view
    done = scene.append()
    assert scene.published.view is before
    await done
    assert scene.published.view.log_end_offset == before.log_end_offset + 1


async def test_a_new_segment_is_reported_with_the_view_that_shows_it() -> None:
    scene = Scene()
    for _ in range(3):
        await scene.append()
    assert scene.reported == []
    await scene.append()
    assert scene.reported == [("rolled", 2)]


async def test_what_left_is_reported_with_the_view_that_shows_it_no_more() -> None:
    scene = Scene()
    for _ in range(7):
        await scene.append()
    scene.reported.clear()
    gone = await scene.published.run(OpKind.RETENTION, lambda log: log.delete_old_segments(1, 6))
    assert gone == 2
    assert scene.reported == [([0, 3], 1)]


async def test_the_lowest_truncation_is_kept_until_somebody_takes_it() -> None:
    scene = Scene()
    for _ in range(7):
        await scene.append()
    assert not scene.published.has_truncation
    for offset in (5, 4):
        await scene.published.run(OpKind.TRUNCATE, lambda log, to=offset: log.truncate_to(to))
    await scene.append()
    assert scene.published.has_truncation
    assert scene.published.take_truncation() == (3, len(BATCH))
    assert scene.published.take_truncation() is None


async def test_where_its_copy_took_its_place_it_can_be_read_until_it_goes() -> None:
    scene = Scene()
    await scene.append()
    scene.published.is_replaced = True
    with pytest.raises(NotLeaderOrFollowerError, match="moved to another log directory"):
        scene.append()
    assert await scene.published.ask(OpKind.READ, end_of) == 1
    scene.published.is_closed = True
    with pytest.raises(NotLeaderOrFollowerError):
        scene.published.ask(OpKind.READ, end_of)


async def test_where_it_was_removed_nothing_is_asked_of_it() -> None:
    scene = Scene()
    scene.published.is_closed = True
    for ask in (scene.published.submit, scene.published.ask):
        with pytest.raises(UnknownTopicOrPartitionError, match="was removed"):
            ask(OpKind.READ, end_of)


async def test_damage_is_reported_once() -> None:
    scene = Scene()
    for _ in range(4):
        await scene.append()
    scene.published.log.segments.oldest.open().write_at(len(BATCH) + 70, [b"\xff"])

    def read(log: UnifiedLog) -> memoryview:
        return read_by_index(log, 1, 1000, NO_LIMIT)

    with capture_logs() as logged:
        assert not await scene.published.run(OpKind.READ, read)
        await scene.append()
    (line,) = logged
    assert (line["event"], line["partition"], line["log_dir"]) == ("log_damaged", str(TP), "/d1")
    assert (line["offset"], line["next_offset"]) == (1, 2)


async def test_an_index_that_was_made_anew_is_reported() -> None:
    scene = Scene()
    for _ in range(4):
        await scene.append()
    scene.published.log.segments.oldest.indexes().offsets.append(2, 1)
    with capture_logs() as logged:
        records = await scene.published.run(
            OpKind.READ, lambda log: read_by_index(log, 2, 1000, NO_LIMIT)
        )
    assert [header.base_offset for header in headers_of(records)] == [2]
    assert [line["event"] for line in logged] == ["log_index_mended"]
