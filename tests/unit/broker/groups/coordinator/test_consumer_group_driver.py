"""Consumer groups of a led partition: writes, timers, lost writes, and protocol conversion."""

from __future__ import annotations

import asyncio
from typing import Any

from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import BrokerId
from kraftjbod.metadata.records import ConfigRecord, PartitionChangeRecord, ResourceType
from kraftjbod.protocol.messages import SyncGroupRequest
from tests.unit.broker.gates import until
from tests.unit.broker.groups.group_rig import (
    OFFSETS,
    OFFSETS_ID,
    PROTOCOL,
    beat,
    committing,
    consumer,
    consumer_coordinator,
    enter,
    fetched,
    given,
    join,
    lead,
    loaded,
    sync,
)
from tests.unit.broker.impaired_dirs import answer, stall

E = ErrorCode
#: An encoded assignment of both partitions of t.
BOTH = b"\0\1" + b"\0\0\0\1\0\1t\0\0\0\2\0\0\0\0\0\0\0\1" + b"\xff\xff\xff\xff"
#: An encoded subscription to t.
SUBSCRIPTION = b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff\0\0\0\0"


def group_of(rig: Any) -> Any:
    return rig.parts.coordinator.find("g").consumer_groups["g"]


def facts(rig: Any) -> list[Any]:
    group = rig.parts.coordinator.find("g").consumer_groups.get("g")
    return [] if group is None else list(group.state.facts())


async def reloaded(rig: Any, epoch: int) -> list[Any]:
    """Return the facts that another coordinator loads."""
    await lead(rig, epoch, leader=2)
    await lead(rig, epoch + 1)
    await loaded(rig)
    return facts(rig)


def min_isr(value: str) -> ConfigRecord:
    return ConfigRecord(
        resource_type=ResourceType.BROKER, resource_name="", name="min.insync.replicas", value=value
    )


def batch_limit(size_bytes: int) -> ConfigRecord:
    return ConfigRecord(
        resource_type=ResourceType.TOPIC,
        resource_name=OFFSETS.topic,
        name="max.message.bytes",
        value=str(size_bytes),
    )


async def test_consumer_group_members_continue_at_the_next_coordinator() -> None:
    async with consumer_coordinator() as rig:
        await rig.ask(consumer("a"), 1)
        assert await committing(rig, 5, "a", 2) == 0
        await lead(rig, 1, leader=2)
        assert (await rig.ask(consumer("a", 2), 1)).error_code == E.NOT_COORDINATOR
        await lead(rig, 2)
        await loaded(rig)
        again = await rig.ask(consumer("a", 2), 1)
        assert (again.error_code, again.member_epoch, again.assignment) == (0, 2, None)
        assert await fetched(rig) == {("t", 0): 5}


async def test_join_waiting_for_replication_is_in_the_group_reloaded_in_a_new_leader_epoch() -> (
    None
):
    async with consumer_coordinator() as rig:
        await lead(rig, 1, isr=(1, 2))
        joining = asyncio.ensure_future(rig.ask(consumer("a"), 1))
        partition = rig.parts.hosted.require(OFFSETS).partition
        await until(lambda: partition.log_end_offset > 0)  # Broker 2 does not fetch.
        await lead(rig, 2, isr=(1,))
        assert (await joining).error_code == E.NOT_COORDINATOR
        await loaded(rig)
        in_memory = facts(rig)
        assert in_memory and await reloaded(rig, 3) == in_memory
        assert given(await rig.ask(consumer("a"), 1)) == [0, 1]


async def test_uncommitted_assignments_are_not_sent_to_members() -> None:
    """Otherwise a leader could assign partitions in records that it loses with its power.

    The next leader would assign the same partitions to another member.
    """
    async with consumer_coordinator(offsets_commit_timeout_ms="40") as rig:
        await lead(rig, 1, isr=(1, 2))
        assert (await rig.ask(consumer("a"), 1)).error_code == E.NOT_COORDINATOR
        for _ in range(3):
            again = await rig.ask(consumer("a"), 1)
            assert again.error_code == E.COORDINATOR_LOAD_IN_PROGRESS
        await lead(rig, 2, isr=(1,))
        await loaded(rig)
        assert given(await rig.ask(consumer("a"), 1)) == [0, 1]


async def test_write_with_unknown_outcome_reloads_the_group_from_the_log() -> None:
    """The same holds for the first write of a group, which may reach the log late."""
    async with consumer_coordinator(offsets_commit_timeout_ms="40") as rig:
        stall(rig.dirs[0])
        refused = await rig.ask(consumer("a"), 1)
        assert refused.error_code in (E.NOT_COORDINATOR, E.COORDINATOR_LOAD_IN_PROGRESS)
        await answer(rig.dirs[0])
        await loaded(rig)
        in_memory = facts(rig)
        assert await reloaded(rig, 1) == in_memory
        assert given(await rig.ask(consumer("a"), 1)) == [0, 1]


async def test_consumer_group_whose_first_write_is_rejected_by_the_log_does_not_exist() -> None:
    async with consumer_coordinator(min_insync_replicas="2") as rig:
        refused = await rig.ask(consumer("a"), 1)
        assert refused.error_code == E.COORDINATOR_NOT_AVAILABLE
        assert "g" not in rig.parts.coordinator.find("g").consumer_groups
        assert not rig.parts.coordinator.led_of("g").timers


async def test_members_that_join_at_once_are_written_in_limited_batches() -> None:
    """Only the oversized request and the request with an overlong member id are rejected."""
    async with consumer_coordinator() as rig:
        await rig.follow(batch_limit(4_000))
        large = {"subscribed_topic_names": [f"{n:0100}" for n in range(60)]}
        # Broker 2 does not fetch: requests wait for the first batch and share the next one.
        await lead(rig, 1, isr=(1, 2))
        asking = [asyncio.ensure_future(rig.ask(consumer("m0"), 1))]
        await until(lambda: "g" in rig.parts.coordinator.find("g").consumer_groups)
        asking += [asyncio.ensure_future(rig.ask(consumer(f"m{n}"), 1)) for n in range(1, 40)]
        too_large = asyncio.ensure_future(rig.ask(consumer("large", **large), 1))
        too_long = asyncio.ensure_future(rig.ask(consumer("m" * 40_000), 1))
        await until(lambda: len(group_of(rig)._waiting) == 41)
        alone = PartitionChangeRecord(topic_id=OFFSETS_ID, partition_id=0, isr=(BrokerId(1),))
        await rig.follow(alone)
        answers = [await one for one in asking]
        assert [one.error_code for one in answers] == [0] * 40
        assert (await too_large).error_code == E.UNKNOWN_SERVER_ERROR
        assert (await too_long).error_code == E.INVALID_REQUEST
        assert group_of(rig).state.members.keys() == {f"m{n}" for n in range(40)}
        in_memory = facts(rig)
        assert await reloaded(rig, 2) == in_memory


async def test_silent_consumer_group_members_are_removed_by_the_group_timer() -> None:
    async with consumer_coordinator(
        group_consumer_session_timeout_ms="60", group_consumer_heartbeat_interval_ms="20"
    ) as rig:
        await rig.ask(consumer("a"), 1)
        await until(lambda: not group_of(rig).state.members)
        assert (await rig.ask(consumer("a", 2), 1)).error_code == E.UNKNOWN_MEMBER_ID


async def test_group_config_overrides_broker_settings() -> None:
    async with consumer_coordinator(group_consumer_min_session_timeout_ms="50") as rig:
        assert (await rig.ask(consumer("a"), 1)).heartbeat_interval_ms == 5_000
        heartbeat, session = "consumer.heartbeat.interval.ms", "consumer.session.timeout.ms"
        for group_id in ("g", "another"):
            await rig.follow(configured(group_id, heartbeat, "9000"))
        assert (await rig.ask(consumer("a", 2), 1)).heartbeat_interval_ms == 9_000
        await rig.follow(configured("g", session, "60"))
        await rig.ask(consumer("b"), 1)
        # The member that has sent no heartbeat since keeps its longer session.
        await until(lambda: group_of(rig).state.members.keys() == {"a"})
        await rig.follow(*(configured("g", key, None) for key in (heartbeat, session)))
        assert (await rig.ask(consumer("a", 2), 1)).heartbeat_interval_ms == 5_000


def configured(group_id: str, key: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(
        resource_type=ResourceType.GROUP, resource_name=group_id, name=key, value=value
    )


async def test_consumer_groups_per_partition_are_limited() -> None:
    async with consumer_coordinator(group_max_per_partition="1") as rig:
        await rig.ask(consumer("a"), 1)
        refused = await rig.ask(consumer("a", group_id="h"), 1)
        assert refused.error_code == E.GROUP_MAX_SIZE_REACHED


# --- conversion between protocols ----------------------------------------------------------------


async def classic(rig: Any) -> tuple[str, int]:
    """Return a classic member that owns both partitions of t, and its generation."""
    protocol = type(PROTOCOL)(name="range", metadata=SUBSCRIPTION)
    pending_join = await rig.ask(join(protocols=[protocol]), 8)
    joined = await rig.ask(join(pending_join.member_id, protocols=[protocol]), 8)
    request = SyncGroupRequest(
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[
            SyncGroupRequest.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=BOTH)
        ],
    )
    assert (await rig.ask(request)).error_code == 0
    return joined.member_id, joined.generation_id


async def test_classic_group_becomes_a_consumer_group_and_classic_again() -> None:
    async with consumer_coordinator(group_consumer_assignment_interval_ms="0") as rig:
        old, generation = await classic(rig)
        assert await committing(rig, 5, old, generation) == 0
        assert given(await rig.ask(consumer("new"), 1)) == [], (
            "member old still owns both partitions"
        )
        assert (await rig.ask(beat(old, generation))).error_code == E.REBALANCE_IN_PROGRESS
        assert await fetched(rig) == {("t", 0): 5}
        # The only member of the newer protocol leaves, so that the group is classic again.
        assert (await rig.ask(consumer("new", -1), 1)).error_code == 0
        groups = rig.parts.coordinator.find("g")
        assert list(groups.groups["g"].members) == [old] and not groups.consumer_groups
        await lead(rig, 1, leader=2)
        await lead(rig, 2)
        await loaded(rig)
        groups = rig.parts.coordinator.find("g")
        assert list(groups.groups["g"].members) == [old] and not groups.consumer_groups
        assert await fetched(rig) == {("t", 0): 5}


async def test_remaining_classic_member_sees_a_rebalance_and_can_commit() -> None:
    """With a newer generation the member would treat its partitions as lost and commit nothing."""
    async with consumer_coordinator(group_consumer_assignment_interval_ms="0") as rig:
        old, generation = await classic(rig)
        assert (await rig.ask(consumer("new"), 1)).error_code == 0
        assert (await rig.ask(beat(old, generation))).error_code == E.REBALANCE_IN_PROGRESS
        protocol = type(PROTOCOL)(name="range", metadata=SUBSCRIPTION)
        joined = await rig.ask(join(old, protocols=[protocol]), 8)
        generation = joined.generation_id
        assert (await rig.ask(sync(old, generation))).error_code == 0
        assert (await rig.ask(beat(old, generation))).error_code == 0
        assert (await rig.ask(consumer("new", -1), 1)).error_code == 0
        assert (await rig.ask(beat(old, generation))).error_code == E.REBALANCE_IN_PROGRESS
        assert await committing(rig, 5, old, generation) == 0
        joined = await rig.ask(join(old, protocols=[protocol]), 8)
        assert (joined.error_code, joined.generation_id) == (0, generation + 1)


async def test_rebalance_in_progress_ends_when_the_group_is_converted() -> None:
    async with consumer_coordinator() as rig:
        old, _ = await classic(rig)
        protocol = type(PROTOCOL)(name="range", metadata=SUBSCRIPTION)
        pending_join = await rig.ask(join(protocols=[protocol]), 8)
        waiting = asyncio.ensure_future(
            rig.ask(join(pending_join.member_id, protocols=[protocol]), 8)
        )
        await until(lambda: len(rig.parts.coordinator.find("g").groups["g"].members) == 2)
        assert (await rig.ask(consumer("new"), 1)).error_code == 0
        assert (await waiting).error_code == E.REBALANCE_IN_PROGRESS, "the member joins again"
        joined = await rig.ask(join(pending_join.member_id, protocols=[protocol]), 8)
        assert joined.error_code == 0
        assert set(group_of(rig).state.members) == {old, pending_join.member_id, "new"}


async def test_failed_conversion_keeps_the_classic_group() -> None:
    async with consumer_coordinator() as rig:
        old, generation = await classic(rig)
        await rig.follow(min_isr("2"))
        refused = await rig.ask(consumer("new"), 1)
        await rig.follow(min_isr("1"))
        assert refused.error_code == E.COORDINATOR_NOT_AVAILABLE
        # The member was asked to rejoin and learns from its next heartbeat whether it must.
        assert list(rig.parts.coordinator.find("g").groups["g"].members) == [old]
        assert (await rig.ask(beat(old, generation))).error_code == E.REBALANCE_IN_PROGRESS


async def test_group_without_consumer_assignments_is_not_converted() -> None:
    async with consumer_coordinator() as rig:
        old, generation = await enter(rig)  # The assignment is no list of partitions.
        refused = await rig.ask(consumer("new"), 1)
        assert refused.error_code == E.GROUP_ID_NOT_FOUND
        assert "cannot change over" in refused.error_message
        assert (await rig.ask(beat(old, generation))).error_code == 0
