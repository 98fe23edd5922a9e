"""DISK. What a move between directories does next: the future copy against the log that it mirrors.

A future copy has the segments of the current replica, byte for byte, some of them not yet whole.
So what is to be done follows from two lists of segments and from how far the log was truncated:
segments go, one is shortened, ranges are copied, in this order.

* Every segment of the copy but the last is as long as the log's; the last may be shorter.
* Ranges end anywhere, also in the middle of a batch.

Epochs say how far a copy may be trusted that was found after a restart; bytes are not compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kraftjbod.storage.log.leader_epochs import EpochEntries, truncate_epochs_before
from kraftjbod.storage.log.log_view import LogView, Truncation


class SegmentExtent(NamedTuple):
    """A segment's base offset, and how many bytes of it there are."""

    base_offset: int
    size_bytes: int


class CopyRange(NamedTuple):
    """Copy ``size_bytes`` from ``position`` on; of an empty segment, nothing into a new file."""

    base_offset: int
    position: int
    size_bytes: int


class CopyPlan(NamedTuple):
    """One step. ``is_last`` if the copy mirrors all of the log once the step is done."""

    #: Base offsets in an order that leaves no hole: from the beginning, or from the end.
    drop: tuple[int, ...]
    shorten: SegmentExtent | None
    copy: tuple[CopyRange, ...]
    is_last: bool


def extents_of(view: LogView) -> tuple[SegmentExtent, ...]:
    """The segments that a view shows, and how much of each."""
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
    """What to do so that ``copied`` (base offset to bytes, rising) becomes a mirror of ``log``.

    ``truncation`` is the lowest truncation of the log since the copy last heard of one. At most
    ``max_bytes`` are copied.
    """
    kept = _kept(log, copied, truncation)
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
    """The first offset for which two logs name different leader epochs; None if there is none.

    What lies below ``log_start_offset`` is not compared: either may have lost it.
    """
    a = truncate_epochs_before(ours, log_start_offset)
    b = truncate_epochs_before(theirs, log_start_offset)
    for x, y in zip(a, b, strict=False):
        if x != y:
            return min(x.start_offset, y.start_offset)
    longer = a if len(a) > len(b) else b
    shared = min(len(a), len(b))
    return longer[shared].start_offset if len(longer) > shared else None


def _kept(
    log: Sequence[SegmentExtent], copied: Mapping[int, int], truncation: Truncation | None
) -> list[SegmentExtent]:
    """What of the copy is the beginning of the log as it is now."""
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
            break  # What comes later would follow a hole, or what the log lost.
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
