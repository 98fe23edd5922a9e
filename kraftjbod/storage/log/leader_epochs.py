"""PURE. Start offset of each leader epoch in one log (KIP-101).

The entries are an immutable tuple, so the event loop can read them while the directory's thread
works. Changes copy slices of it and run no loop over entries: a log of many short leader terms
changes its epochs at each batch, and at each segment that is removed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import Final, NamedTuple

UNDEFINED_EPOCH: Final = -1
UNDEFINED_OFFSET: Final = -1


class EpochEntry(NamedTuple):
    """A leader epoch and the offset of its first batch in the log. Both increase strictly from
    entry to entry.
    """

    epoch: int
    start_offset: int


EpochEntries = tuple[EpochEntry, ...]
_epoch = attrgetter("epoch")
_start_offset = attrgetter("start_offset")


def assign_epoch(entries: EpochEntries, epoch: int, start_offset: int) -> EpochEntries:
    """Return ``entries`` with ``epoch`` starting at ``start_offset``.

    Entries with the same or a later epoch or offset contradict the new one and are removed. If
    ``epoch`` is the latest one already and starts earlier, nothing changes.
    """
    if entries and entries[-1].epoch == epoch and entries[-1].start_offset <= start_offset:
        return entries
    kept = truncate_epochs_from(entries, start_offset)
    kept = kept[: bisect_left(kept, epoch, key=_epoch)]
    return (*kept, EpochEntry(epoch, start_offset))


def truncate_epochs_from(entries: EpochEntries, end_offset: int) -> EpochEntries:
    """Return ``entries`` after a truncation of the log to ``end_offset``, its new end."""
    return entries[: bisect_left(entries, end_offset, key=_start_offset)]


def truncate_epochs_before(entries: EpochEntries, start_offset: int) -> EpochEntries:
    """Return ``entries`` after the log start was raised to ``start_offset``.

    The epoch of ``start_offset`` then starts there. No entry is added below the first one.
    """
    at = bisect_right(entries, start_offset, key=_start_offset)
    if at == 0:
        return entries
    return (EpochEntry(entries[at - 1].epoch, start_offset), *entries[at:])


def end_offset_for(entries: EpochEntries, epoch: int, log_end_offset: int) -> tuple[int, int]:
    """Return the answer of OffsetForLeaderEpoch: an epoch of the log, and its end offset, which is
    exclusive.

    The epoch is the largest one not above ``epoch``. The end of the newest epoch is
    ``log_end_offset``. If all are above, the answer is ``epoch`` with the start of the first one.
    It is ``(-1, -1)`` if ``epoch`` is negative or above all, or the log has no epochs.
    """
    if epoch < 0 or not entries or epoch > entries[-1].epoch:
        return UNDEFINED_EPOCH, UNDEFINED_OFFSET
    if epoch == entries[-1].epoch:
        return epoch, log_end_offset
    at = bisect_right(entries, epoch, key=_epoch)
    if at == 0:
        # The log has only later epochs: the follower must truncate to the start of the first.
        return epoch, entries[0].start_offset
    return entries[at - 1].epoch, entries[at].start_offset
