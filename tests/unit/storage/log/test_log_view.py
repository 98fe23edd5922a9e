"""``LogView``: choice of the segment, and reads with limits and damage."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import CorruptRecordError, OffsetOutOfRangeError
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.storage.log.log_loader import create_log
from kraftjbod.storage.log.log_view import LogView, read_view
from kraftjbod.storage.segments.batch_walk import Damage
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import TOPIC_ID, TP, batch, headers_of


def make() -> LogView:
    vfs = MemVfs()
    vfs.make_dirs("/d1")
    log = create_log(vfs, "/d1", TP, TOPIC_ID, TopicConfig(segment_bytes=1024))
    for _ in range(8):
        data = batch(body=bytes(300))
        log.append_as_leader(data, headers_of(data), 0, 0)
    return log.view()


def offsets(view: LogView, start: int, *, max_offset: int = 99, **more: int) -> list[int]:
    found = read_view(
        view,
        lambda segment: segment.open().read_at,
        start_offset=start,
        max_bytes=more.get("max_bytes", 10_000),
        max_offset=max_offset,
        min_one=True,
    )
    assert found is not None
    return [header.base_offset for header in headers_of(found)]


def test_segment_index_finds_the_segment_of_an_offset() -> None:
    view = make()
    assert [s.base_offset for s in view.segments] == [0, 2, 4, 6]
    assert [view.segment_index(o) for o in (0, 1, 2, 7, 8)] == [0, 0, 1, 3, 3]


def test_read_view_stays_in_one_segment() -> None:
    view = make()
    assert [offsets(view, o) for o in (0, 1, 2, 7, 8)] == [[0, 1], [1], [2, 3], [7], []]


def test_read_view_respects_max_offset_and_max_bytes() -> None:
    view = make()
    assert offsets(view, 2, max_offset=3) == [2]
    assert offsets(view, 2, max_offset=2) == []
    assert offsets(view, 2, max_bytes=400) == [2]
    assert offsets(view, 2, max_bytes=1) == [2]


def test_read_view_outside_the_log_is_refused() -> None:
    with pytest.raises(OffsetOutOfRangeError):
        offsets(make(), 9)


def test_read_view_skips_known_damage_and_reads_the_batches_around_it() -> None:
    view = make()
    position = view.segments[0].size_bytes // 2
    view = view._replace(damages=(Damage(1, 2, position), Damage(4, 6, 0)))
    assert [offsets(view, o) for o in (0, 2, 3, 6)] == [[0], [2, 3], [3], [6, 7]]
    for offset, begin in ((1, 1), (4, 4), (5, 4)):
        with pytest.raises(CorruptRecordError) as caught:
            offsets(view, offset)
        assert caught.value.offset == begin
    assert [view.damage_from(o) for o in (0, 1, 2, 5, 6)] == [
        view.damages[0],
        view.damages[0],
        view.damages[1],
        view.damages[1],
        None,
    ]
