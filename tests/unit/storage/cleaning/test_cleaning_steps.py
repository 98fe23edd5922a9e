"""Steps of a cleaning pass: selection of segments, and bounded reads and writes."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import CorruptRecordError
from kraftjbod.storage.cleaning.cleaner_map import CleanerMap
from kraftjbod.storage.cleaning.cleaning_steps import Cleanable, KeyReading, find_cleanable
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.cleaning.compaction_rig import (
    CONFIG,
    NOW_MS,
    History,
    compacting_dir,
    compacting_manager,
    flush_and_roll,
    keyed,
)
from tests.faults.rig import TOPIC_ID, TP, format_dir


async def three_segments(vfs: MemVfs | None = None):  # type: ignore[no-untyped-def]  # a handle
    """Create three closed segments at offsets 0, 2 and 4, with record times 100 ms apart."""
    vfs = vfs or MemVfs()
    format_dir(vfs, "/d1", 1)
    manager = compacting_manager([compacting_dir(vfs)])
    await manager.load()
    handle = await manager.create(TP, TOPIC_ID)
    for step in range(3):
        records = keyed(("a", str(step)), ("b", str(step)), timestamp_ms=NOW_MS + 100 * step)
        await History().append(handle, records)
        await flush_and_roll(handle)
    return handle


def bases(cleanable: Cleanable | None) -> list[int]:
    return [] if cleanable is None else [s.base_offset for s in cleanable.segments]


async def test_find_cleanable_stops_at_the_limit_offset() -> None:
    handle = await three_segments()
    for limit, expected in [(6, [0, 2, 4]), (5, [0, 2]), (2, [0]), (1, [])]:
        assert bases(find_cleanable(handle.view, 0, limit, CONFIG, NOW_MS)) == expected


async def test_find_cleanable_counts_segments_before_the_first_dirty_offset_as_clean() -> None:
    handle = await three_segments()
    found = find_cleanable(handle.view, 4, 6, CONFIG, NOW_MS)
    assert found is not None
    sizes = [segment.size_bytes for segment in handle.view.segments]
    assert (found.dirt.clean_bytes, found.dirt.dirty_bytes) == (sizes[0] + sizes[1], sizes[2])
    assert found.end_offset == 6
    assert find_cleanable(handle.view, 6, 6, CONFIG, NOW_MS) is None


async def test_find_cleanable_skips_segments_younger_than_min_compaction_lag() -> None:
    handle = await three_segments()
    config = CONFIG.model_copy(update={"min_compaction_lag_ms": 1000})
    assert bases(find_cleanable(handle.view, 0, 6, config, NOW_MS + 1000)) == [0]
    assert bases(find_cleanable(handle.view, 0, 6, config, NOW_MS + 1150)) == [0, 2]
    assert find_cleanable(handle.view, 0, 6, config, NOW_MS + 999) is None


async def test_find_cleanable_marks_segments_older_than_max_compaction_lag_overdue() -> None:
    handle = await three_segments()
    config = CONFIG.model_copy(update={"max_compaction_lag_ms": 1000})
    found = find_cleanable(handle.view, 2, 6, config, NOW_MS + 1100)
    assert found is not None
    assert not found.dirt.is_overdue
    found = find_cleanable(handle.view, 2, 6, config, NOW_MS + 1101)
    assert found is not None
    assert found.dirt.is_overdue


async def test_key_reading_step_is_bounded_and_reads_a_larger_batch_whole() -> None:
    vfs = MemVfs()
    handle = await three_segments(vfs)
    await History().append(handle, keyed(("c", "x" * 500)))
    await History().append(handle, keyed(("d", "1")))
    await flush_and_roll(handle)
    segment = handle.view.segments[3]
    latest = CleanerMap(max_bytes=10_000, expected_keys=10)
    reading = KeyReading(latest, segment, vfs.open(segment.path, segment_mode()), 8, 0, 100)
    steps = []
    while not (step := reading.step()).is_done:
        steps.append(step.read_bytes)
    steps.append(step.read_bytes)
    assert len(steps) == 2
    assert steps[0] > 500
    assert sum(steps) == segment.size_bytes
    assert (latest.latest(b"c"), latest.latest(b"d")) == (6, 7)


def segment_mode():  # type: ignore[no-untyped-def]  # an enum member
    from kraftjbod.storage.vfs import OpenMode

    return OpenMode.READ


@pytest.mark.parametrize("at", [3, 30, 70])
async def test_key_reading_reports_the_offset_of_a_damaged_batch(at: int) -> None:
    vfs = MemVfs()
    handle = await three_segments(vfs)
    segment = handle.view.segments[1]
    file = vfs.open(segment.path, segment_mode())
    file.data[at] ^= 4
    latest = CleanerMap(max_bytes=10_000, expected_keys=10)
    with pytest.raises(CorruptRecordError) as caught:
        KeyReading(latest, segment, file, 4, 0).step()
    assert caught.value.offset == 2


async def test_key_reading_fails_if_a_segment_does_not_end_at_the_next_base_offset() -> None:
    vfs = MemVfs()
    handle = await three_segments(vfs)
    segment = handle.view.segments[1]
    file = vfs.open(segment.path, segment_mode())
    latest = CleanerMap(max_bytes=10_000, expected_keys=10)
    with pytest.raises(CorruptRecordError):
        KeyReading(latest, segment, file, 3, 0).step()
