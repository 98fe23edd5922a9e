"""DISK. When a segment must be rolled, and when retention may remove it, by the topic's
configuration.

Ages are computed from record timestamps. This module only judges. The log rolls and removes
segments.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.protocol.record_batch import BatchHeader
from kraftjbod.storage.segments.batch_walk import LARGEST_RELATIVE_OFFSET
from kraftjbod.storage.segments.offset_index import OFFSET_ENTRY_BYTES
from kraftjbod.storage.segments.segment import LogSegment

#: Most segments that retention removes per operation; each costs several file operations.
EXPENDABLE_PER_STEP: Final = 16
_MAX_TIMESTAMP: Final = attrgetter("max_timestamp")


def must_roll(
    active: LogSegment, config: TopicConfig, headers: Sequence[BatchHeader], size_bytes: int
) -> bool:
    """Return whether the batches of ``headers`` need a new segment instead of ``active``.

    They do if ``active`` would exceed its limit of bytes, offset span, index size, or time between
    its first and its newest record.
    An empty segment is never rolled: it starts at the log end, and ``sent_batches`` limits the
    offset span.

    :param size_bytes: size of all the batches.
    :raises SegmentUnreadError: as :meth:`LogSegment.load_indexes`.
    """
    if active.size_bytes == 0:
        return False
    if active.size_bytes + size_bytes > config.segment_bytes:
        return True
    if headers[-1].next_offset - active.base_offset > LARGEST_RELATIVE_OFFSET:
        return True
    interval_bytes = config.index_interval_bytes
    # Upper bound of the entries, so that the exact number is seldom needed.
    most_bytes = OFFSET_ENTRY_BYTES * (active.size_bytes + 2 * interval_bytes)
    if (
        most_bytes > config.segment_index_bytes * interval_bytes
        and OFFSET_ENTRY_BYTES * (len(active.indexes().offsets) + 1) > config.segment_index_bytes
    ):
        return True
    first = active.first_timestamp()
    newest: int = max(map(_MAX_TIMESTAMP, headers))
    if first is None:
        return False
    age_ms, limit_ms = newest - first, config.max_segment_ms
    if config.segment_jitter_ms:
        limit_ms -= _jitter_ms(active, min(config.segment_jitter_ms, limit_ms))
    return age_ms > limit_ms


def _jitter_ms(active: LogSegment, most_ms: int) -> int:
    """Return a jitter in ms that is constant for a segment and differs between segments."""
    name = f"{active.directory}/{active.base_offset}"
    return zlib.crc32(name.encode()) % (most_ms + 1)


def count_expendable(
    segments: Sequence[LogSegment],
    config: TopicConfig,
    *,
    size_bytes: int,
    log_start_offset: int,
    log_end_offset: int,
    high_watermark: int,
    now_ms: int,
) -> int:
    """Return how many of the oldest segments retention may remove (KIP-32, KIP-107).

    The number is at most :data:`EXPENDABLE_PER_STEP`. Segments that end above ``high_watermark``
    stay. In a topic that is only compacted, segments below the log start are removed, and age and
    size do not matter.

    Cost: the largest timestamp of each removed segment, and of one more.

    :param size_bytes: size of all segments.
    :param now_ms: wall clock time.
    :raises SegmentUnreadError: as :meth:`LogSegment.load_indexes`.
    """
    doomed = 0
    for at, segment in enumerate(segments[:EXPENDABLE_PER_STEP]):
        end = segments[at + 1].base_offset if at + 1 < len(segments) else log_end_offset
        if end > high_watermark or segment.size_bytes == 0:
            break
        rest_bytes = size_bytes - segment.size_bytes
        if end > log_start_offset and not _is_old(segment, config, rest_bytes, now_ms):
            break
        size_bytes = rest_bytes
        doomed += 1
    return doomed


def _is_old(
    segment: LogSegment,
    config: TopicConfig,
    rest_bytes: int,
    now_ms: int,
) -> bool:
    if not config.cleanup_policy.is_delete:
        return False
    if 0 <= config.retention_bytes <= rest_bytes:
        return True
    if config.retention_ms < 0:
        return False
    largest = segment.largest_timestamp()
    return largest is not None and now_ms - largest.timestamp > config.retention_ms
