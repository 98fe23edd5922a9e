"""Metrics of groups: counts by state, rebalances and offsets."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pytest

from kraftjbod.broker.groups.classic.group_events import GroupState
from kraftjbod.broker.groups.coordinator.group_partition import GroupPartition
from kraftjbod.broker.groups.records.group_records import CommittedOffset, OffsetFact
from kraftjbod.core.ids import TopicPartition
from kraftjbod.metadata.records import RemoveTopicRecord
from kraftjbod.protocol.messages import DeleteGroupsRequest, LeaveGroupRequest
from tests.unit.broker.broker_rig import TOPIC_ID, BrokerRig, partition
from tests.unit.broker.gates import until
from tests.unit.broker.groups.consumer.test_consumer_group_state import recounted_phase
from tests.unit.broker.groups.group_rig import (
    commit,
    committing,
    consumer,
    consumer_coordinator,
    coordinator,
    enter,
    join,
    lead,
    loaded,
    sync,
)
from tests.work_count import count_bytecodes

IDS: Final = ("g", "h", "i")


def recounted(groups: GroupPartition) -> dict[str, int]:
    """Return the metrics of groups, counted group by group."""
    known = [
        one
        for one in IDS
        if one in groups.groups
        or one in groups.consumer_groups
        or groups.offsets(one)
        or one in groups.pending.groups
    ]
    classic = [one for one in known if one not in groups.consumer_groups]
    found = {
        "NumGroups": len(known),
        "NumConsumerGroups": len(groups.consumer_groups),
        "NumOffsets": sum(len(groups.offsets(one)) for one in known),
        "NumGroupMembers": sum(len(one.members) for one in groups.groups.values())
        + sum(len(one.state.members) for one in groups.consumer_groups.values()),
    }
    by_state = Counter(
        groups.groups[one].state if one in groups.groups else GroupState.EMPTY for one in classic
    )
    phases = Counter(recounted_phase(one.state) for one in groups.consumer_groups.values())
    for state in ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable"):
        found[f"NumGroups{state}"] = by_state[GroupState(state)]
    for state in ("Empty", "Assigning", "Reconciling", "Stable"):
        found[f"NumConsumerGroups{state}"] = phases[GroupState(state)]
    return found


class History:
    """Random requests of the members of three groups, one after the other."""

    def __init__(self, rig: BrokerRig, seed: int) -> None:
        self._rig = rig
        self._dice = random.Random(seed)
        self._epoch = 0
        self._record_offset = 1_000
        #: Group and id of each classic member.
        self._members: list[tuple[str, str]] = []
        #: Epochs of consumer members.
        self._epochs: dict[tuple[str, str], int] = {}
        self._pending: list[asyncio.Future[Any]] = []

    async def step(self) -> None:
        dice = self._dice
        steps: tuple[Callable[[str], Any], ...] = (
            self._commit,
            self._pending_commit,
            self._marker,
            self._tombstone,
            self._join,
            self._join,
            self._sync,
            self._leave,
            self._heartbeat,
            self._heartbeat,
            self._heartbeat,
            self._delete,
        )
        if dice.random() < 0.05:
            await self._move()
        else:
            await dice.choice(steps)(dice.choice(IDS))
        for _ in range(3):
            await asyncio.sleep(0)

    async def end(self) -> None:
        for one in self._pending:
            one.cancel()
        await asyncio.gather(*self._pending, return_exceptions=True)

    async def _ask_later(self, request: Any, version: int) -> None:
        """Send a request whose response may wait for other members."""
        self._pending.append(asyncio.ensure_future(self._rig.ask(request, version)))

    async def _commit(self, group_id: str) -> None:
        request = commit(1, index=self._dice.randrange(2))
        request.group_id = group_id
        await self._rig.ask(request, 9)

    async def _pending_commit(self, group_id: str) -> None:
        self._record_offset += 1
        self._take(group_id, CommittedOffset(offset=1), producer_id=self._dice.randrange(2))

    async def _tombstone(self, group_id: str) -> None:
        self._take(group_id, None)

    def _take(self, group_id: str, committed: CommittedOffset | None, **more: int) -> None:
        where = TopicPartition("t", self._dice.randrange(2))
        fact = OffsetFact(group_id, where, committed)
        self._rig.parts.coordinator.find(group_id).take(fact, self._record_offset, **more)

    async def _marker(self, group_id: str) -> None:
        self._record_offset += 1
        self._rig.parts.coordinator.find(group_id).transaction_ended(
            self._dice.randrange(2), self._record_offset, commits=self._dice.random() < 0.5
        )

    async def _join(self, group_id: str) -> None:
        known = [member_id for group, member_id in self._members if group == group_id]
        if known and self._dice.random() < 0.5:
            await self._ask_later(join(self._dice.choice(known), group_id=group_id), 8)
            return
        answer = await self._rig.ask(join(group_id=group_id), 8)
        self._members.append((group_id, answer.member_id))
        await self._ask_later(join(answer.member_id, group_id=group_id), 8)

    async def _sync(self, group_id: str) -> None:
        group = self._rig.parts.coordinator.find(group_id).groups.get(group_id)
        for member_id in () if group is None else list(group.members):
            request = sync(member_id, group.generation, **{member_id: b"all"})
            request.group_id = group_id
            await self._ask_later(request, 5)

    async def _leave(self, group_id: str) -> None:
        known = [one for one in self._members if one[0] == group_id]
        if known:
            one = self._dice.choice(known)
            self._members.remove(one)
            kind = LeaveGroupRequest.MemberIdentity
            await self._rig.ask(
                LeaveGroupRequest(group_id=group_id, members=[kind(member_id=one[1])]), 5
            )

    async def _heartbeat(self, group_id: str) -> None:
        key = group_id, self._dice.choice("abc")
        epoch = self._epochs.pop(key, 0)
        if epoch and self._dice.random() < 0.3:
            epoch = -1
        answer = await self._rig.ask(consumer(key[1], epoch, group_id=group_id), 1)
        if answer.error_code == 0 and answer.member_epoch > 0:
            self._epochs[key] = answer.member_epoch

    async def _delete(self, group_id: str) -> None:
        await self._rig.ask(DeleteGroupsRequest(groups_names=[group_id]))

    async def _move(self) -> None:
        """Another broker leads the partition for a while."""
        self._epoch += 2
        await lead(self._rig, self._epoch - 1, leader=2)
        assert figures(self._rig, "NumGroups", "NumOffsets", "NumGroupMembers") == (0, 0, 0)
        await lead(self._rig, self._epoch)
        await loaded(self._rig)


def figures(rig: BrokerRig, *names: str) -> tuple[float, ...]:
    snapshot = rig.around.metrics.snapshot()
    return tuple(snapshot[name] for name in names)


async def test_group_metrics_count_classic_groups_by_state() -> None:
    states = ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable")
    names = [f"NumGroups{state}" for state in states]
    async with coordinator() as rig:
        assert figures(rig, *names, "CompletedRebalancesPerSec") == (0, 0, 0, 0, 0)
        # A group with commits only is empty.
        request = commit(1)
        request.group_id = "h"
        await rig.ask(request, 9)
        member_id, _ = await enter(rig)
        assert figures(rig, *names, "CompletedRebalancesPerSec") == (1, 0, 0, 1, 1)
        pending_join = await rig.ask(join(), 8)
        waiting = asyncio.ensure_future(rig.ask(join(pending_join.member_id), 8))
        await until(lambda: figures(rig, *names) == (1, 1, 0, 0))
        again = asyncio.ensure_future(rig.ask(join(member_id), 8))
        await asyncio.gather(waiting, again)
        assert figures(rig, *names, "CompletedRebalancesPerSec") == (1, 0, 1, 0, 1)
        assert figures(rig, "NumGroups", "NumGroupMembers", "NumConsumerGroups") == (2, 2, 0)


async def test_group_metrics_count_consumer_groups_by_state() -> None:
    states = ("Empty", "Assigning", "Reconciling", "Stable")
    names = [f"NumConsumerGroups{state}" for state in states]
    async with consumer_coordinator() as rig:
        await rig.ask(consumer("a"), 1)
        assert figures(rig, *names, "ConsumerGroupRebalancesPerSec") == (0, 0, 0, 1, 1)
        # The next member waits for a revoked partition or for the assignment interval.
        await rig.ask(consumer("b"), 1)
        assert figures(rig, "ConsumerGroupRebalancesPerSec") == (2,)
        assert sum(figures(rig, *names[1:3])) == 1
        for member_id in ("a", "b"):
            assert (await rig.ask(consumer(member_id, -1), 1)).error_code == 0
        assert figures(rig, *names) == (1, 0, 0, 0)
        assert figures(rig, "NumGroupsEmpty") == (0,)


async def test_group_metrics_count_commits_deletions_and_expirations() -> None:
    names = ("OffsetCommitsPerSec", "OffsetDeletionsPerSec", "OffsetExpirationsPerSec")
    async with coordinator(
        offsets_retention_minutes="1", offsets_retention_check_interval_ms="20"
    ) as rig:
        assert figures(rig, *names) == (0, 0, 0)
        await rig.follow(partition(1))
        assert await committing(rig, 1) == await committing(rig, 2) == 0
        assert await committing(rig, 1, index=9) != 0, "refused commits do not count"
        assert figures(rig, "NumOffsets", *names) == (1, 2, 0, 0)
        await rig.ask(DeleteGroupsRequest(groups_names=["g"]))
        assert figures(rig, "NumOffsets", *names) == (0, 2, 1, 0)
        assert await committing(rig, 1) == await committing(rig, 1, index=1) == 0
        groups = rig.parts.coordinator.find("g")
        where = TopicPartition("t", 0)
        old = groups.offsets("g")[where]
        older = CommittedOffset(offset=1, commit_ms=old.commit_ms - 60_001)
        groups.take(OffsetFact("g", where, older))
        rig.tasks.start(rig.parts.coordinator.run_expirations(), "expiry")
        await until(lambda: len(groups.offsets("g")) == 1)
        assert figures(rig, *names) == (4, 1, 1)
        await rig.follow(RemoveTopicRecord(topic_id=TOPIC_ID))
        await until(lambda: not groups.offsets("g"))
        assert figures(rig, *names) == (4, 2, 1)


@pytest.mark.parametrize("seed", range(4))
async def test_group_metrics_equal_a_recount_after_each_step_of_a_random_history(
    seed: int,
) -> None:
    async with consumer_coordinator() as rig:
        history = History(rig, seed)
        for _ in range(150):
            await history.step()
            expected = recounted(rig.parts.coordinator.find("g"))
            assert dict(zip(expected, figures(rig, *expected), strict=True)) == expected
        await history.end()


async def test_group_metrics_cost_the_same_for_any_number_of_groups() -> None:
    """A snapshot of the metrics is one step of the event loop."""
    async with coordinator() as rig:
        groups, counts = rig.parts.coordinator.find("g"), []
        for size in (20, 200, 2_000):
            for number in range(len(groups), size):
                where = TopicPartition("t", number)
                groups.take(OffsetFact(f"g{number}", where, CommittedOffset(offset=1)))
                groups.group(f"h{number}")
            counts.append(count_bytecodes(rig.around.metrics.snapshot))
            assert figures(rig, "NumGroups")[0] >= size
        assert max(counts) <= counts[0] + 100, counts
