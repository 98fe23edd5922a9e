"""UnsettledChanges: who waits for what is on its way, and what is certain meanwhile."""

from __future__ import annotations

import asyncio

from kraftjbod.storage.log.unsettled_changes import UnsettledChanges


async def test_a_role_waits_for_what_a_follower_began() -> None:
    changes = UnsettledChanges()
    waiting = asyncio.ensure_future(changes.settled())
    await waiting
    changes.begin_append()
    truncation = changes.begin_truncation(4, 6)
    waiting = asyncio.ensure_future(changes.settled())
    assert changes.has_role_wait(will_lead=False)
    changes.end_truncation(truncation)
    # A follower may follow on; only who leads decides what comes next.
    assert not changes.has_role_wait(will_lead=False)
    assert changes.has_role_wait(will_lead=True)
    assert not waiting.done()
    changes.end_append()
    await waiting
    assert not changes.has_role_wait(will_lead=True)


def test_what_is_certain_is_so_whichever_truncation_ends_first() -> None:
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
