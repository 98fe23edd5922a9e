"""DISK. ``LogView``: an immutable state of a log for use outside of its directory's thread.

A reader with a view uses only the part of a segment that was written when the view was created. So
the event loop may read while the thread appends. Reads return the batches before and after known
damage, never the damage.
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
    """A truncation of the segment at ``base_offset`` to ``position`` bytes. Later segments were
    removed.

    Truncations are comparable: the lower one removes more.
    """

    base_offset: int
    position: int


def lower_truncation(a: Truncation | None, b: Truncation | None) -> Truncation | None:
    """Return the truncation that removes more.

    Either may be None; the result is None if both are.
    """
    if a is None or b is None:
        return b if a is None else a
    return min(a, b)


class LogView(NamedTuple):
    """Immutable snapshot of a log's offsets, segments and leader epochs, from which other threads
    read while the log changes.
    """

    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    size_bytes: int
    #: The last segment may be appended to while the view exists. Only its first
    #: ``active_size_bytes`` belong to the view.
    segments: tuple[LogSegment, ...]
    active_size_bytes: int
    epochs: EpochEntries
    #: Known damage, in ascending order.
    damages: tuple[Damage, ...] = ()
    #: Number of index files that did not fit their segments and were rebuilt.
    indexes_mended: int = 0
    #: Compaction may have removed offsets.
    may_have_gaps: bool = False
    #: The transactions that determine the LSO, in the order of their first offsets.
    unstable: tuple[UnstableTransaction, ...] = ()
    #: The earliest known start of an open transaction in wall-clock ms; -1 if there is none.
    oldest_start_ms: int = -1

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the LSO: below it, every transaction has ended and its marker is replicated."""
        return last_stable_offset(
            self.unstable,
            log_start_offset=self.log_start_offset,
            high_watermark=min(high_watermark, self.log_end_offset),
        )

    def has_transaction_since(self, wall_ms: int) -> bool:
        """Return whether a transaction is open that started before ``wall_ms``. Transactions with
        an unknown start are ignored.
        """
        return 0 <= self.oldest_start_ms < wall_ms

    def may_hold_aborted(self, first_offset: int) -> bool:
        """Return False if certainly no transaction with a marker at or after ``first_offset`` was
        aborted. No index is read, so True may be wrong.
        """
        rest = self.segments[self.segment_index(first_offset) :]
        return any(one.transactions is None or one.transactions for one in rest)

    def aborted_between(
        self, first_offset: int, end_offset: int
    ) -> list[AbortedTransaction] | None:
        """Return the aborted transactions that overlap ``[first_offset, end_offset)``.

        Returns None if a transaction index must be read from the disk. ``end_offset`` must not
        exceed the LSO.
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
        """Return the index in ``segments`` of the segment that holds ``offset``.

        It is 0 for an offset below all segments, and the last index for one above the log end.
        """
        return max(0, bisect_right(self.segments, offset, key=lambda s: s.base_offset) - 1)

    def damage_from(self, offset: int) -> Damage | None:
        """Return the first known damage that contains ``offset`` or is after it; None if there is
        none.
        """
        at = bisect_right(self.damages, offset, key=lambda d: d.next_offset)
        return self.damages[at] if at < len(self.damages) else None


def damage_error(damage: Damage) -> CorruptRecordError:
    """Return the error for a read inside damage."""
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
    """Read complete batches from one segment, starting with the one of ``start_offset``.

    The batches are below ``max_offset`` and have at most ``max_bytes``, except for the first batch
    if ``min_one``. The result is empty if there is none.

    Returns None if ``read_at_of`` returns no reader, or if that reader or the indexes would have to
    wait for the disk.

    :param is_checked: as in :meth:`LogSegment.read`.
    :raises OffsetOutOfRangeError: ``start_offset`` is below the log start or above the log end.
    :raises CorruptRecordError: ``start_offset`` is in known damage (the error has an ``offset``),
        or the batch was not found because the index or the segment is damaged (no ``offset``).
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
