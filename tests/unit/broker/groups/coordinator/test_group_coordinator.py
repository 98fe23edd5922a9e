"""``GroupCoordinator``: groups are loaded, served, written and unloaded with the leadership."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from kraftjbod.broker.groups.coordinator import group_coordinator
from kraftjbod.broker.groups.coordinator.pending_offsets import PendingOffset
from kraftjbod.broker.groups.records.group_records import CommittedOffset, OffsetFact
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import TopicId, TopicPartition
from kraftjbod.metadata.records import RemoveTopicRecord
from kraftjbod.protocol.messages import DeleteGroupsRequest, LeaveGroupRequest
from kraftjbod.protocol.records import Record, build_batch
from tests.unit.broker.broker_rig import TOPIC_ID, TP, only, partition, produce, topic
from tests.unit.broker.gates import until
from tests.unit.broker.groups.group_rig import (
    OFFSETS,
    beat,
    committing,
    coordinator,
    enter,
    fetched,
    is_loaded,
    join,
    lead,
    loaded,
    sync,
)
from tests.unit.broker.impaired_dirs import answer, stall

E = ErrorCode


async def test_classic_members_and_offsets_continue_at_the_next_coordinator() -> None:
    async with coordinator() as rig:
        member_id, generation = await enter(rig)
        assert await committing(rig, 42, member_id, generation) == 0
        waiting = asyncio.ensure_future(rig.ask(join(member_id), 8))
        # The leader's rejoin starts a rebalance, which ends immediately with one member.
        joined = await waiting
        generation = joined.generation_id
        await lead(rig, 1, leader=2)
        assert (await rig.ask(beat(member_id, generation))).error_code == E.NOT_COORDINATOR
        assert await fetched(rig) == E.NOT_COORDINATOR
        await lead(rig, 2)
        await loaded(rig)
        assert await fetched(rig) == {("t", 0): 42}
        # The incomplete rebalance is forgotten; the last written state applies.
        assert (await rig.ask(beat(member_id, generation - 1))).error_code == 0


async def test_member_waiting_in_a_group_that_is_unloaded_receives_not_coordinator() -> None:
    async with coordinator(group_initial_rebalance_delay_ms="60000") as rig:
        pending_join = await rig.ask(join(), 8)
        waiting = asyncio.ensure_future(rig.ask(join(pending_join.member_id), 8))
        await until(lambda: rig.parts.coordinator.find("g").groups["g"].members)
        await lead(rig, 1, leader=2)
        assert (await waiting).error_code == E.NOT_COORDINATOR


async def test_newer_leader_epoch_of_the_same_leader_keeps_members() -> None:
    async with coordinator() as rig:
        member_id, generation = await enter(rig)
        await lead(rig, 5)
        assert await committing(rig, 1, member_id, generation) == 0


async def test_commit_without_replication_fails() -> None:
    async with coordinator(offsets_commit_timeout_ms="40") as rig:
        assert await committing(rig, 1) == 0
        await lead(rig, 1, isr=(1, 2))
        assert await committing(rig, 2) == E.COORDINATOR_NOT_AVAILABLE
        assert await fetched(rig) == {("t", 0): 1}
        stall(rig.dirs[0])
        assert await committing(rig, 3) == E.NOT_COORDINATOR
        await answer(rig.dirs[0])


async def test_group_partition_loading_waits_for_a_hanging_disk_and_disk_failure_unloads_it() -> (
    None
):
    async with coordinator() as rig:
        assert await committing(rig, 7) == 0
        rig.tasks.start(rig.parts.state_handler.run_handler(), "handler")
        await lead(rig, 1, leader=2)
        stall(rig.dirs[0])
        await lead(rig, 2)
        assert await fetched(rig) == E.COORDINATOR_LOAD_IN_PROGRESS
        assert (await rig.ask(beat("m", 1))).error_code == 0, "loading removes no member"
        # Java clients fail on COORDINATOR_LOAD_IN_PROGRESS in this response.
        assert (await rig.ask(sync("m", 1))).error_code == E.REBALANCE_IN_PROGRESS
        await answer(rig.dirs[0])
        await loaded(rig)
        assert await fetched(rig) == {("t", 0): 7}
        rig.dirs[0].go_offline("test")
        await until(lambda: not is_loaded(rig))
        assert await fetched(rig) == E.NOT_COORDINATOR


async def test_unreadable_group_partition_is_logged_and_returns_not_coordinator() -> None:
    async with coordinator() as rig:
        strange = build_batch([Record(key=b"\0", value=b"no record of ours")])
        refused = only(await rig.ask(produce(strange, tp=OFFSETS, acks=1), 9))
        assert refused.error_code == E.INVALID_TOPIC_EXCEPTION
        await rig.parts.appends.append_records(OFFSETS, strange, acks=1, timeout_ms=1_000)
        await lead(rig, 1, leader=2)
        with capture_logs() as lines:
            await lead(rig, 2)
            await until(lambda: lines)
        assert "group_partition_unreadable" in [line["event"] for line in lines]
        assert await fetched(rig) == E.NOT_COORDINATOR


async def test_silent_classic_members_are_removed_by_the_group_timer() -> None:
    async with coordinator() as rig:
        # The write of the empty group keeps the group.
        pending_join = await rig.ask(join(session_timeout_ms=30), 8)
        await rig.ask(
            join(pending_join.member_id, session_timeout_ms=30, rebalance_timeout_ms=30), 8
        )
        group = rig.parts.coordinator.find("g").groups["g"]
        await until(lambda: not group.members)
        assert rig.around.metrics.snapshot()["NumGroups"] == 1


async def test_offsets_expire_after_the_retention() -> None:
    async with coordinator(
        offsets_retention_minutes="1", offsets_retention_check_interval_ms="20"
    ) as rig:
        assert await committing(rig, 1) == 0
        groups = rig.parts.coordinator.find("g")
        old = groups.offsets("g")[TP]
        older = CommittedOffset(offset=1, commit_ms=old.commit_ms - 60_001)
        groups.take(OffsetFact("g", TP, older))
        rig.tasks.start(rig.parts.coordinator.run_expirations(), "expiry")
        await until(lambda: not groups.offsets("g"))
        assert rig.around.metrics.snapshot()["NumOffsets"] == 0


async def test_offsets_of_a_deleted_topic_are_removed_immediately(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kafka's groups show no deleted topics.

    The removal may need several batches and includes pending offsets of transactions.
    """
    monkeypatch.setattr(group_coordinator, "MAX_FACTS_PER_WRITE", 1)
    async with coordinator() as rig:
        other = TopicId(b"u" * 16)
        await rig.follow(partition(1), topic("u", other), partition(topic_id=other))
        for index in range(2):
            assert await committing(rig, 1, index=index) == 0
        assert await committing(rig, 5, name="u") == 0
        rig.tasks.start(rig.parts.coordinator.run_expirations(), "expiry")
        groups = rig.parts.coordinator.find("g")
        pending = PendingOffset("g", TopicPartition("t", 7), CommittedOffset(offset=1))
        groups.pending.add(1, pending)
        await rig.follow(RemoveTopicRecord(topic_id=TOPIC_ID))
        await until(lambda: len(groups.offsets("g")) == 1 and not groups.pending.of_group("g"))
        assert await fetched(rig) == {("u", 0): 5}
        # The next coordinator, which reads the log, does not find the offset either.
        rig.parts.coordinator.reload(rig.parts.coordinator.led_of("g"))
        await loaded(rig)
        assert await fetched(rig) == {("u", 0): 5}


async def test_offsets_of_a_topic_deleted_before_an_election_are_removed_by_the_new_leader() -> (
    None
):
    async with coordinator() as rig:
        assert await committing(rig, 1) == 0
        await lead(rig, 1, leader=2)
        await rig.follow(RemoveTopicRecord(topic_id=TOPIC_ID))
        rig.tasks.start(rig.parts.coordinator.run_expirations(), "expiry")
        await lead(rig, 2)
        await loaded(rig)
        groups = rig.parts.coordinator.find("g")
        await until(lambda: not groups.offsets("g"))


async def test_deleted_group_is_removed_from_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The removal may need several batches."""
    monkeypatch.setattr(group_coordinator, "MAX_FACTS_PER_WRITE", 1)
    async with coordinator() as rig:
        await rig.follow(partition(1))
        await enter(rig)
        (member_id,) = rig.parts.coordinator.find("g").groups["g"].members
        for index in range(2):
            assert await committing(rig, 1, member_id, 1, index=index) == 0
        leaving = LeaveGroupRequest.MemberIdentity(member_id=member_id)
        await rig.ask(LeaveGroupRequest(group_id="g", members=[leaving]))
        deleted = await rig.ask(DeleteGroupsRequest(groups_names=["g", "h"]))
        codes = [result.error_code for result in deleted.results]
        assert codes == [E.NONE, E.GROUP_ID_NOT_FOUND]
        await lead(rig, 1, leader=2)
        await lead(rig, 2)
        await loaded(rig)
        assert rig.parts.coordinator.find("g").group_ids() == []


async def test_delete_groups_reports_member_that_joins_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_coordinator, "MAX_FACTS_PER_WRITE", 1)
    async with coordinator(group_initial_rebalance_delay_ms="60000") as rig:
        await rig.follow(partition(1))
        for index in range(2):
            assert await committing(rig, 1, index=index) == 0
        member_id = (await rig.ask(join(), 8)).member_id
        deleting = asyncio.ensure_future(rig.ask(DeleteGroupsRequest(groups_names=["g"])))
        joining = asyncio.ensure_future(rig.ask(join(member_id), 8))
        assert (await deleting).results[0].error_code == E.NON_EMPTY_GROUP
        assert list(rig.parts.coordinator.find("g").groups["g"].members) == [member_id]
        await lead(rig, 1, leader=2)
        await joining


async def test_groups_per_partition_are_limited() -> None:
    async with coordinator(group_max_per_partition="1") as rig:
        await rig.follow(topic(topic_id=TOPIC_ID), partition())
        assert (await rig.ask(join(group_id="a"), 8)).error_code == E.MEMBER_ID_REQUIRED
        assert (await rig.ask(join(group_id="b"), 8)).error_code == E.GROUP_MAX_SIZE_REACHED
        assert await committing(rig, 1) == E.GROUP_MAX_SIZE_REACHED
