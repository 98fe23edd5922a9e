"""DISK. ``LogView``: what may be known of a log outside its dir's thread, and how to read by it.

A view is immutable and true for one moment. Reading by one touches no more of a segment than what
was written then, so the loop may read while the thread appends.
Known damage is never read: what stands before and after it is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Final, NamedTuple

from kraftjbod.core.errors import CorruptRecordError, OffsetOutOfRangeError
from kraftjbod.storage.log.leader_epochs import EpochEntries
from kraftjbod.storage.log.open_transactions import UnstableTransaction, last_stable_offset
from kraftjbod.storage.segments.batch_walk import Damage, ReadAt
from kraftjbod.storage.segments.segment import NO_LIMIT, LogSegment
from kraftjbod.storage.segments.transaction_index import AbortedTransaction

_NOTHING: Final = memoryview(b"")


class Truncation(NamedTuple):
    """Where a log was truncated: of the segment at ``base_offset``, ``position`` bytes are left.

    Segments with higher bases are gone. Truncations compare: the lower one takes more away.
    """

    base_offset: int
    position: int


def lower_truncation(a: Truncation | None, b: Truncation | None) -> Truncation | None:
    """What is left of two truncations, either of which may not have been made."""
    if a is None or b is None:
        return b if a is None else a
    return min(a, b)


class LogView(NamedTuple):
    """What the loop may know of a log: numbers and segments as of one moment."""

    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    size_bytes: int
    #: The last one is appended to while this view is held: of it, only the first
    #: ``active_size_bytes`` belong to the view.
    segments: tuple[LogSegment, ...]
    active_size_bytes: int
    epochs: EpochEntries
    #: Known ones, rising.
    damages: tuple[Damage, ...] = ()
    #: How many index files did not fit their segments and were made anew.
    indexes_mended: int = 0
    #: Compaction may have taken offsets away.
    may_have_gaps: bool = False
    #: In the order of their beginnings.
    unstable: tuple[UnstableTransaction, ...] = ()

    def last_stable_offset(self, high_watermark: int) -> int:
        """Below it every transaction is decided, if so much is replicated."""
        return last_stable_offset(
            self.unstable,
            log_start_offset=self.log_start_offset,
            high_watermark=min(high_watermark, self.log_end_offset),
        )

    def has_transaction_since(self, wall_ms: int) -> bool:
        """Whether one is open that began before ``wall_ms``."""
        return any(one.is_open and 0 <= one.began_ms < wall_ms for one in self.unstable)

    def may_hold_aborted(self, first_offset: int) -> bool:
        """False: no transaction that reaches beyond ``first_offset`` was aborted."""
        rest = self.segments[self.segment_index(first_offset) :]
        return any(one.transactions is None or one.transactions for one in rest)

    def aborted_between(
        self, first_offset: int, end_offset: int
    ) -> list[AbortedTransaction] | None:
        """Aborted transactions that reach into ``[first_offset, end_offset)``.

        For whoever reads no more than what is stable. None if the disk has to be asked.
        """
        found: list[AbortedTransaction] = []
        for segment in self.segments[self.segment_index(first_offset) :]:
            transactions = segment.transactions
            if transactions is None:
                return None
            if transactions and not transactions.collect(first_offset, end_offset, found):
                break
        return found

    def segment_index(self, offset: int) -> int:
        """Which segment holds ``offset``."""
        return max(0, bisect_right(self.segments, offset, key=lambda s: s.base_offset) - 1)

    def damage_from(self, offset: int) -> Damage | None:
        """The first known damage at or after ``offset``."""
        at = bisect_right(self.damages, offset, key=lambda d: d.next_offset)
        return self.damages[at] if at < len(self.damages) else None


def damage_error(damage: Damage) -> CorruptRecordError:
    """For whoever asks for what is damaged."""
    return CorruptRecordError(
        f"the log is damaged from offset {damage.offset} to {damage.next_offset - 1}",
        offset=damage.offset,
    )


def read_view(
    view: LogView,
    read_at_of: Callable[[LogSegment], ReadAt | None],
    *,
    start_offset: int,
    max_bytes: int,
    max_offset: int,
    min_one: bool,
    is_checked: bool = False,
) -> memoryview | None:
    """Whole batches from the one that holds ``start_offset`` on, from one segment.

    Below ``max_offset``, at most ``max_bytes`` but for a first batch if ``min_one``; empty if
    there is none. None if some ``read_at`` would have to wait, or was None. ``is_checked`` as in
    :meth:`LogSegment.read`.

    :raises OffsetOutOfRangeError: if the log does not hold ``start_offset`` and does not end there.
    :raises CorruptRecordError: with an ``offset``, if ``start_offset`` is in known damage; without,
        if the batch was not found: the index or the segment is damaged.
    """
    if not view.log_start_offset <= start_offset <= view.log_end_offset:
        raise OffsetOutOfRangeError(
            f"offset {start_offset} is not in [{view.log_start_offset}, {view.log_end_offset}]"
        )
    max_offset = min(max_offset, view.log_end_offset)
    if start_offset >= max_offset:
        return _NOTHING
    at = view.segment_index(start_offset)
    segment, is_active = view.segments[at], at == len(view.segments) - 1
    next_base = view.log_end_offset if is_active else view.segments[at + 1].base_offset
    limit = view.active_size_bytes if is_active else segment.size_bytes
    damage = view.damage_from(start_offset)
    if damage is not None and damage.offset < next_base:
        if damage.offset <= start_offset:
            raise damage_error(damage)
        limit, max_offset = damage.position, min(max_offset, damage.offset)
    read_at = read_at_of(segment)
    if read_at is None:
        return None
    return segment.read(
        read_at,
        start_offset=start_offset,
        max_offset=NO_LIMIT if max_offset >= next_base else max_offset,
        limit=limit,
        max_bytes=max_bytes,
        min_one=min_one,
        is_checked=is_checked,
    )
