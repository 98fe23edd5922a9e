"""``UnsettledChanges``: waiting for pending changes, and the offsets that are certain meanwhile."""

from __future__ import annotations

import asyncio

from kraftjbod.storage.log.unsettled_changes import UnsettledChanges


async def test_unsettled_changes_delay_a_role_change_until_they_are_settled() -> None:
    changes = UnsettledChanges()
    waiting = asyncio.ensure_future(changes.settled())
    await waiting
    changes.begin_append()
    truncation = changes.begin_truncation(4, 6)
    waiting = asyncio.ensure_future(changes.settled())
    assert changes.has_role_wait(will_lead=False)
    changes.end_truncation(truncation)
    # A follower may continue to follow; a leader has to know its log.
    assert not changes.has_role_wait(will_lead=False)
    assert changes.has_role_wait(will_lead=True)
    assert not waiting.done()
    changes.end_append()
    await waiting
    assert not changes.has_role_wait(will_lead=True)


def test_unsettled_truncations_limit_the_certain_offsets_until_each_of_them_ends() -> None:
    changes = UnsettledChanges()
    assert (changes.certain_end(9), changes.certain_start(5)) == (9, 5)
    first, second = changes.begin_truncation(4, 6), changes.begin_truncation(4, 6)
    lower = changes.begin_truncation(2, 3)
    assert (changes.certain_end(9), changes.certain_start(5)) == (2, 3)
    changes.end_truncation(second)
    changes.end_truncation(lower)
    assert (changes.certain_end(9), changes.certain_start(5)) == (4, 5)
    changes.end_truncation(first)
    assert not changes.has_truncations
