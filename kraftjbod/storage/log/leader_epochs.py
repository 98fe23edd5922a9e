"""PURE. Which leader epoch began at which offset in one log (KIP-101).

Entries are an immutable tuple, so that the loop can read them while the dir's thread goes on.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, NamedTuple

UNDEFINED_EPOCH: Final = -1
UNDEFINED_OFFSET: Final = -1


class EpochEntry(NamedTuple):
    """``epoch`` began with ``start_offset``; both rise strictly from entry to entry."""

    epoch: int
    start_offset: int


EpochEntries = tuple[EpochEntry, ...]


def assign_epoch(entries: EpochEntries, epoch: int, start_offset: int) -> EpochEntries:
    """``entries`` once ``epoch`` was seen at ``start_offset``.

    What contradicts it, because it claims later epochs or offsets, gives way.
    """
    if entries and entries[-1].epoch == epoch and entries[-1].start_offset <= start_offset:
        return entries
    kept = tuple(e for e in entries if e.epoch < epoch and e.start_offset < start_offset)
    return (*kept, EpochEntry(epoch, start_offset))


def truncate_epochs_from(entries: EpochEntries, end_offset: int) -> EpochEntries:
    """``entries`` after the log lost everything from ``end_offset`` on."""
    return tuple(e for e in entries if e.start_offset < end_offset)


def truncate_epochs_before(entries: EpochEntries, start_offset: int) -> EpochEntries:
    """``entries`` after the log lost everything before ``start_offset``."""
    at = bisect_right(entries, start_offset, key=lambda e: e.start_offset)
    if at == 0:
        return entries
    return (EpochEntry(entries[at - 1].epoch, start_offset), *entries[at:])


def end_offset_for(entries: EpochEntries, epoch: int, log_end_offset: int) -> tuple[int, int]:
    """The largest epoch not above ``epoch`` that the log has, and where it ended.

    As OffsetForLeaderEpoch answers: ``(-1, -1)`` if the log does not know.
    """
    if epoch < 0 or not entries or epoch > entries[-1].epoch:
        return UNDEFINED_EPOCH, UNDEFINED_OFFSET
    if epoch == entries[-1].epoch:
        return epoch, log_end_offset
    at = bisect_right(entries, epoch, key=lambda e: e.epoch)
    if at == 0:
        # The log knows later epochs only: whoever asks must go back to where they began.
        return epoch, entries[0].start_offset
    return entries[at - 1].epoch, entries[at].start_offset
