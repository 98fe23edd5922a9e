"""Commits are validated against the members of the group, for each kind of group."""

from __future__ import annotations

import asyncio
from typing import Any

from kraftjbod.broker.groups.coordinator.group_commits import Committer, GroupCommits
from kraftjbod.broker.groups.records.group_records import CommittedOffset
from kraftjbod.core.errors import ErrorCode
from kraftjbod.daemon.wiring.group_wiring import group_settings
from tests.unit.broker.broker_rig import TP
from tests.unit.broker.groups.group_rig import (
    consumer,
    consumer_coordinator,
    coordinator,
    enter,
    group_log,
)

E = ErrorCode
OFFSETS = {TP: CommittedOffset(offset=7, commit_ms=1)}
ABSENT = E.GROUP_ID_NOT_FOUND


async def commit_code(rig: Any, member_id: str, generation: int, group_id: str = "g") -> ErrorCode:
    committer = Committer(member_id, None, generation)
    commits = GroupCommits(
        coordinator=rig.parts.coordinator,
        cache=rig.parts.cache,
        log=group_log(rig),
        clock=rig.around.clock,
        settings=group_settings(rig.config),
    )
    return await commits.commit(group_id, OFFSETS, committer, absent_code=ABSENT)


async def test_commit_by_a_classic_member_needs_the_current_generation() -> None:
    async with coordinator() as rig:
        member_id, generation = await enter(rig)
        assert await commit_code(rig, member_id, generation) is E.NONE
        assert await commit_code(rig, member_id, generation + 1) is E.ILLEGAL_GENERATION
        assert await commit_code(rig, "z", generation) is E.UNKNOWN_MEMBER_ID


async def test_commit_by_a_consumer_member_needs_the_current_epoch() -> None:
    async with consumer_coordinator() as rig:
        await rig.ask(consumer("a"), 1)
        assert await commit_code(rig, "a", 2) is E.NONE
        assert await commit_code(rig, "a", 1) is E.STALE_MEMBER_EPOCH
        assert await commit_code(rig, "", -1) is E.UNKNOWN_MEMBER_ID, (
            "only members may commit to a group with members"
        )


async def test_commit_without_a_group_needs_a_committer_without_member_id() -> None:
    async with coordinator(group_max_per_partition="1") as rig:
        assert await commit_code(rig, "m", 1) is ABSENT
        assert await commit_code(rig, "", -1) is E.NONE
        assert await commit_code(rig, "", -1, group_id="h") is E.GROUP_MAX_SIZE_REACHED
        assert await commit_code(rig, "", -1, group_id="g" * 40_000) is E.INVALID_REQUEST


async def test_commit_of_known_group_at_group_limit_succeeds() -> None:
    """A group with committed offsets only exists already, so the limit does not concern it."""
    async with coordinator(group_max_per_partition="1") as rig:
        assert await commit_code(rig, "", -1) is E.NONE
        assert await commit_code(rig, "", -1) is E.NONE


async def test_commits_in_flight_count_towards_group_limit() -> None:
    async with coordinator(group_max_per_partition="2") as rig:
        codes = await asyncio.gather(*(commit_code(rig, "", -1, group_id=name) for name in "abcd"))
        full = E.GROUP_MAX_SIZE_REACHED
        assert codes == [E.NONE, E.NONE, full, full]
