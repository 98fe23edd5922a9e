"""Rolling and retention of segments by topic configuration."""

from __future__ import annotations

import pytest

from kraftjbod.core.topic_config import CleanupPolicy, TopicConfig
from kraftjbod.storage.segments.segment import LogSegment
from kraftjbod.storage.segments.segment_limits import count_expendable, must_roll
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import batch, headers_of

DAY_MS = 86_400_000


def segments(*timestamps: int) -> list[LogSegment]:
    """Create segments of one batch of two records each, with the given timestamps."""
    vfs = MemVfs()
    vfs.make_dirs("/d")
    made = []
    for number, timestamp in enumerate(timestamps):
        one = LogSegment(
            vfs=vfs, directory="/d", base_offset=2 * number, size_bytes=0, index_interval_bytes=0
        )
        one.create()
        data = batch(2, base_offset=2 * number, timestamp=timestamp)
        one.append_batches([data], headers_of(data))
        made.append(one)
    return made


def expendable(made: list[LogSegment], start: int = 0, high: int = 99, **config: object) -> int:
    return count_expendable(
        made,
        TopicConfig().with_overrides(
            {k.replace("_", "."): str(v) for k, v in config.items()}, source="t"
        ),
        size_bytes=sum(segment.size_bytes for segment in made),
        log_start_offset=start,
        log_end_offset=2 * len(made),
        high_watermark=high,
        now_ms=10 * DAY_MS,
    )


def test_retention_ms_removes_old_segments_up_to_the_first_newer_one() -> None:
    made = segments(0, DAY_MS, 9 * DAY_MS, 0)
    assert expendable(made, retention_ms=5 * DAY_MS) == 2
    assert expendable(made, retention_ms=-1) == 0


def test_retention_bytes_removes_the_oldest_segments_above_the_size() -> None:
    made = segments(0, 0, 0, 0)
    size = made[0].size_bytes
    assert expendable(made, retention_bytes=2 * size, retention_ms=-1) == 2
    assert expendable(made, retention_bytes=2 * size + 1, retention_ms=-1) == 1


def test_retention_keeps_segments_above_the_high_watermark() -> None:
    assert expendable(segments(0, 0, 0), high=3, retention_ms=0) == 1


@pytest.mark.parametrize("retention", [{"retention_ms": 0}, {"retention_bytes": 0}])
def test_retention_of_a_compacted_topic_ignores_age_and_size(
    retention: dict[str, int],
) -> None:
    made = segments(0, 0, 0)
    assert expendable(made, cleanup_policy="compact", **retention) == 0
    assert expendable(made, cleanup_policy="compact,delete", **retention) == 3
    # Segments below the log start are removed in any case.
    assert expendable(made, start=4, cleanup_policy="compact", **retention) == 2


def roll(size: int = 100, timestamp: int = 1000, base: int = 2, **config: object) -> bool:
    (active,) = segments(1000)
    data = batch(2, base_offset=base, timestamp=timestamp)
    settings = TopicConfig().with_overrides(
        {k.replace("_", "."): str(v) for k, v in config.items()}, source="t"
    )
    return must_roll(active, settings, headers_of(data), size)


def test_must_roll_by_size_age_and_offset_span() -> None:
    assert not roll()
    assert roll(size=2000, segment_bytes=2048)
    assert roll(timestamp=1000 + DAY_MS, segment_ms=DAY_MS - 1)
    assert not roll(timestamp=1000 + DAY_MS, segment_ms=DAY_MS)
    assert roll(base=2**31)


def test_must_roll_when_the_index_is_full() -> None:
    assert roll(segment_index_bytes=7, index_interval_bytes=0)
    assert not roll(segment_index_bytes=8, index_interval_bytes=0)


def test_segment_jitter_ms_spreads_rolls_of_equally_old_segments() -> None:
    """Each segment has a fixed share of ``segment.jitter.ms``."""
    made = segments(*[1000] * 40)
    config = TopicConfig(segment_ms=DAY_MS, segment_jitter_ms=DAY_MS // 2)

    def closed(age_ms: int, settings: TopicConfig = config) -> int:
        data = batch(2, base_offset=80, timestamp=1000 + age_ms)
        return sum(must_roll(one, settings, headers_of(data), 100) for one in made)

    assert closed(DAY_MS // 2 - 1) == 0
    assert closed(DAY_MS + 1) == len(made)
    assert 0 < closed(DAY_MS * 3 // 4) == closed(DAY_MS * 3 // 4) < len(made)
    # The jitter is limited to segment.ms.
    assert closed(1000, TopicConfig(segment_ms=999, segment_jitter_ms=DAY_MS)) == len(made)


def test_must_roll_a_compacted_topic_by_max_compaction_lag() -> None:
    """KIP-354 defines the limit."""
    assert roll(timestamp=3000, cleanup_policy="compact", max_compaction_lag_ms=1999)
    assert not roll(timestamp=3000, max_compaction_lag_ms=1999)
    assert CleanupPolicy.parse("compact").is_compact
