"""When segments are closed and when they go, by a topic's configuration."""

from __future__ import annotations

import pytest

from kraftjbod.core.topic_config import CleanupPolicy, TopicConfig
from kraftjbod.storage.segments.segment import LogSegment
from kraftjbod.storage.segments.segment_limits import count_expendable, must_roll
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import batch, headers_of

DAY_MS = 86_400_000


def segments(*ages: int) -> list[LogSegment]:
    """One batch of two records each, with its timestamp."""
    vfs = MemVfs()
    vfs.make_dirs("/d")
    made = []
    for number, timestamp in enumerate(ages):
        one = LogSegment(
            vfs=vfs, directory="/d", base_offset=2 * number, size_bytes=0, index_interval_bytes=0
        )
        one.create()
        data = batch(2, base_offset=2 * number, timestamp=timestamp)
        one.append([data], headers_of(data))
        made.append(one)
    return made


def doomed(made: list[LogSegment], start: int = 0, high: int = 99, **config: object) -> int:
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


def test_what_is_old_goes_up_to_the_first_that_is_not() -> None:
    made = segments(0, DAY_MS, 9 * DAY_MS, 0)
    assert doomed(made, retention_ms=5 * DAY_MS) == 2
    assert doomed(made, retention_ms=-1) == 0


def test_what_is_too_much_goes() -> None:
    made = segments(0, 0, 0, 0)
    size = made[0].size_bytes
    assert doomed(made, retention_bytes=2 * size, retention_ms=-1) == 2
    assert doomed(made, retention_bytes=2 * size + 1, retention_ms=-1) == 1


def test_what_is_not_committed_stays() -> None:
    assert doomed(segments(0, 0, 0), high=3, retention_ms=0) == 1


@pytest.mark.parametrize("retention", [{"retention_ms": 0}, {"retention_bytes": 0}])
def test_a_topic_that_is_only_compacted_loses_nothing_to_age_or_size(
    retention: dict[str, int],
) -> None:
    made = segments(0, 0, 0)
    assert doomed(made, cleanup_policy="compact", **retention) == 0
    assert doomed(made, cleanup_policy="compact,delete", **retention) == 3
    # What is below its start goes all the same.
    assert doomed(made, start=4, cleanup_policy="compact", **retention) == 2


def roll(size: int = 100, timestamp: int = 1000, base: int = 2, **config: object) -> bool:
    (active,) = segments(1000)
    data = batch(2, base_offset=base, timestamp=timestamp)
    settings = TopicConfig().with_overrides(
        {k.replace("_", "."): str(v) for k, v in config.items()}, source="t"
    )
    return must_roll(active, settings, headers_of(data), size)


def test_a_segment_is_closed_when_it_is_full_old_or_wide() -> None:
    assert not roll()
    assert roll(size=2000, segment_bytes=2048)
    assert roll(timestamp=1000 + DAY_MS, segment_ms=DAY_MS - 1)
    assert not roll(timestamp=1000 + DAY_MS, segment_ms=DAY_MS)
    assert roll(base=2**31)


def test_a_segment_is_closed_when_its_index_is_full() -> None:
    assert roll(segment_index_bytes=7, index_interval_bytes=0)
    assert not roll(segment_index_bytes=8, index_interval_bytes=0)


def test_segments_of_one_age_are_not_all_closed_at_once() -> None:
    """Each by a share of its own of ``segment.jitter.ms``, and always by the same one."""
    made = segments(*[1000] * 40)
    config = TopicConfig(segment_ms=DAY_MS, segment_jitter_ms=DAY_MS // 2)

    def closed(age_ms: int, settings: TopicConfig = config) -> int:
        data = batch(2, base_offset=80, timestamp=1000 + age_ms)
        return sum(must_roll(one, settings, headers_of(data), 100) for one in made)

    assert closed(DAY_MS // 2 - 1) == 0
    assert closed(DAY_MS + 1) == len(made)
    assert 0 < closed(DAY_MS * 3 // 4) == closed(DAY_MS * 3 // 4) < len(made)
    # No more of it than there is of the time itself.
    assert closed(1000, TopicConfig(segment_ms=999, segment_jitter_ms=DAY_MS)) == len(made)


def test_a_compacted_topic_closes_segments_in_time_for_its_largest_lag() -> None:
    """KIP-354."""
    assert roll(timestamp=3000, cleanup_policy="compact", max_compaction_lag_ms=1999)
    assert not roll(timestamp=3000, max_compaction_lag_ms=1999)
    assert CleanupPolicy.parse("compact").is_compact
