"""Leader epochs of one log, and the results of OffsetForLeaderEpoch."""

from __future__ import annotations

import pytest

from kraftjbod.storage.log.leader_epochs import (
    EpochEntries,
    EpochEntry,
    assign_epoch,
    end_offset_for,
    truncate_epochs_before,
    truncate_epochs_from,
)

ENTRIES: EpochEntries = (EpochEntry(2, 10), EpochEntry(5, 20), EpochEntry(6, 30))


@pytest.mark.parametrize(
    ("epoch", "answer"),
    [
        (-1, (-1, -1)),
        (1, (1, 10)),
        (2, (2, 20)),
        (4, (2, 20)),
        (5, (5, 30)),
        (6, (6, 40)),
        (7, (-1, -1)),
    ],
)
def test_end_offset_for_answers_epochs_below_between_at_and_above_the_known_ones(
    epoch: int, answer: tuple[int, int]
) -> None:
    assert end_offset_for(ENTRIES, epoch, 40) == answer


def test_end_offset_for_an_empty_log_is_undefined() -> None:
    assert end_offset_for((), 0, 0) == (-1, -1)


def test_assign_epoch_appends_newer_epochs_and_replaces_later_entries() -> None:
    assert assign_epoch(ENTRIES, 6, 35) is ENTRIES
    assert assign_epoch(ENTRIES, 7, 35) == (*ENTRIES, EpochEntry(7, 35))
    assert assign_epoch(ENTRIES, 7, 20) == (ENTRIES[0], EpochEntry(7, 20))
    assert assign_epoch(ENTRIES, 5, 40) == (ENTRIES[0], EpochEntry(5, 40))


def test_truncate_epochs_removes_entries_on_either_side() -> None:
    assert truncate_epochs_from(ENTRIES, 30) == ENTRIES[:2]
    assert truncate_epochs_before(ENTRIES, 25) == (EpochEntry(5, 25), EpochEntry(6, 30))
    assert truncate_epochs_before(ENTRIES, 5) == ENTRIES
