"""DISK. ``plan_copy``: plans the next step of a move by comparing the future copy with its log.

A future copy has the segments of the current replica, byte for byte, some of them incomplete. So
two lists of segments and the last truncation of the log determine the step. The step removes
segments, shortens one, and copies ranges, in this order.

* Every segment of the copy but the last is as long as the log's. The last one may be shorter.
* Ranges can end anywhere, even inside a batch.

After a restart, leader epochs show how far a copy agrees with the log. Bytes are not compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kraftjbod.storage.log.leader_epochs import EpochEntries, truncate_epochs_before
from kraftjbod.storage.log.log_view import LogView, Truncation


class SegmentExtent(NamedTuple):
    """Base offset of a segment, and its size in bytes."""

    base_offset: int
    size_bytes: int


class CopyRange(NamedTuple):
    """Range of a segment to copy: ``size_bytes`` from ``position`` of the segment with
    ``base_offset``. With ``size_bytes`` 0, only the empty file is created.
    """

    base_offset: int
    position: int
    size_bytes: int


class CopyPlan(NamedTuple):
    """File operations of one step of a move, in this order: segments to remove, a segment to
    shorten (None: no segment), and ranges to copy.

    With ``is_last`` the copy equals the log after the step.
    """

    #: Base offsets in an order that leaves no gap: oldest first, or newest first.
    drop: tuple[int, ...]
    shorten: SegmentExtent | None
    copy: tuple[CopyRange, ...]
    is_last: bool


def extents_of(view: LogView) -> tuple[SegmentExtent, ...]:
    """Return the base offsets and sizes of the segments in ``view``."""
    *sealed, active = view.segments
    return (
        *(SegmentExtent(segment.base_offset, segment.size_bytes) for segment in sealed),
        SegmentExtent(active.base_offset, view.active_size_bytes),
    )


def plan_copy(
    log: Sequence[SegmentExtent],
    copied: Mapping[int, int],
    truncation: Truncation | None,
    max_bytes: int,
) -> CopyPlan:
    """Plan the next step that turns ``copied`` into a mirror of ``log``.

    :param log: the segments of the log.
    :param copied: copied bytes of each segment by base offset, in ascending order.
    :param truncation: the lowest truncation of the log that the copy has not followed yet; None if
        none.
    :param max_bytes: most bytes to copy.
    """
    kept = _common_segments(log, copied, truncation)
    shorten = None
    if kept and kept[-1].size_bytes < copied[kept[-1].base_offset]:
        shorten = kept[-1]
    bases = {extent.base_offset for extent in kept}
    expired = [base for base in copied if base < log[0].base_offset]
    lost = [base for base in reversed(copied) if base >= log[0].base_offset and base not in bases]
    ranges, is_last = _ranges(log, kept, max_bytes)
    return CopyPlan(
        drop=(*expired, *lost),
        shorten=shorten,
        copy=tuple(ranges),
        is_last=is_last,
    )


def agreed_before(ours: EpochEntries, theirs: EpochEntries, log_start_offset: int) -> int | None:
    """Return the first offset at which two logs have different leader epochs; None if there is
    none. An epoch that only one of them has counts as different from its start offset on.

    Offsets below ``log_start_offset`` are not compared, because either log may have removed them.
    """
    a = truncate_epochs_before(ours, log_start_offset)
    b = truncate_epochs_before(theirs, log_start_offset)
    for x, y in zip(a, b, strict=False):
        if x != y:
            return min(x.start_offset, y.start_offset)
    longer = a if len(a) > len(b) else b
    shared = min(len(a), len(b))
    return longer[shared].start_offset if len(longer) > shared else None


def agree_at(ours: EpochEntries, theirs: EpochEntries, offset: int) -> bool:
    """Return whether both logs have the same, known leader epoch at ``offset``. Such logs are equal
    up to and including ``offset``, because only the leader of that epoch wrote the offset.
    """
    first = truncate_epochs_before(ours, offset)[:1]
    return first == truncate_epochs_before(theirs, offset)[:1] != ()


def _common_segments(
    log: Sequence[SegmentExtent], copied: Mapping[int, int], truncation: Truncation | None
) -> list[SegmentExtent]:
    """Return the segments of the copy, shortened if necessary, that equal the start of the present
    log.
    """
    rising = [SegmentExtent(*item) for item in copied.items() if item[0] >= log[0].base_offset]
    kept: list[SegmentExtent] = []
    for (base_offset, size_bytes), (expected, log_bytes) in zip(rising, log, strict=False):
        if base_offset != expected or (
            truncation is not None and base_offset > truncation.base_offset
        ):
            break
        if truncation is not None and base_offset == truncation.base_offset:
            size_bytes = min(size_bytes, truncation.position)
        kept.append(SegmentExtent(base_offset, min(size_bytes, log_bytes)))
        if size_bytes != log_bytes:
            break  # Later segments would follow a gap, or were truncated in the log.
    return kept


def _ranges(
    log: Sequence[SegmentExtent], kept: Sequence[SegmentExtent], max_bytes: int
) -> tuple[list[CopyRange], bool]:
    have, left = dict(kept), max_bytes
    ranges: list[CopyRange] = []
    for base_offset, whole in log:
        position = have.get(base_offset, 0)
        if position == whole and base_offset in have:
            continue
        if left <= 0:
            return ranges, False
        size_bytes = min(left, whole - position)
        ranges.append(CopyRange(base_offset, position, size_bytes))
        left -= size_bytes
        if position + size_bytes < whole:
            return ranges, False
    return ranges, True
