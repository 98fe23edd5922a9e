"""Consumer groups where their partition is led: written, woken, and what becomes of lost writes."""

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
#: An assignment of t's two partitions, as clients encode it.
BOTH = b"\0\1" + b"\0\0\0\1\0\1t\0\0\0\2\0\0\0\0\0\0\0\1" + b"\xff\xff\xff\xff"
#: A subscription to t.
SUBSCRIPTION = b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff\0\0\0\0"


def group_of(rig: Any) -> Any:
    return rig.parts.coordinator.find("g").consumer_groups["g"]


def facts(rig: Any) -> list[Any]:
    group = rig.parts.coordinator.find("g").consumer_groups.get("g")
    return [] if group is None else list(group.state.facts())


async def reloaded(rig: Any, epoch: int) -> list[Any]:
    """As another coordinator finds them."""
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


async def test_members_go_on_at_the_next_coordinator() -> None:
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


async def test_what_waits_for_replicas_when_the_epoch_grows_is_in_the_log_and_holds() -> None:
    async with consumer_coordinator() as rig:
        await lead(rig, 1, isr=(1, 2))
        joining = asyncio.ensure_future(rig.ask(consumer("a"), 1))
        partition = rig.parts.hosted.require(OFFSETS).partition
        await until(lambda: partition.log_end_offset > 0)  # Broker 2 does not fetch it.
        await lead(rig, 2, isr=(1,))
        assert (await joining).error_code == E.NOT_COORDINATOR
        await loaded(rig)
        in_memory = facts(rig)
        assert in_memory and await reloaded(rig, 3) == in_memory
        assert given(await rig.ask(consumer("a"), 1)) == [0, 1]


async def test_what_is_not_committed_is_told_to_nobody() -> None:
    """Else a leader that is alone by then gives what it loses with its power, and another one gives
    the same to somebody else."""
    async with consumer_coordinator(offsets_commit_timeout_ms="40") as rig:
        await lead(rig, 1, isr=(1, 2))
        assert (await rig.ask(consumer("a"), 1)).error_code == E.NOT_COORDINATOR
        for _ in range(3):
            again = await rig.ask(consumer("a"), 1)
            assert again.error_code == E.COORDINATOR_LOAD_IN_PROGRESS
        await lead(rig, 2, isr=(1,))
        await loaded(rig)
        assert given(await rig.ask(consumer("a"), 1)) == [0, 1]


async def test_a_write_that_may_be_in_the_log_has_it_read_again() -> None:
    """Also when it is the first one of all, and gets into the log when the disk answers."""
    async with consumer_coordinator(offsets_commit_timeout_ms="40") as rig:
        stall(rig.dirs[0])
        refused = await rig.ask(consumer("a"), 1)
        assert refused.error_code in (E.NOT_COORDINATOR, E.COORDINATOR_LOAD_IN_PROGRESS)
        await answer(rig.dirs[0])
        await loaded(rig)
        in_memory = facts(rig)
        assert await reloaded(rig, 1) == in_memory
        assert given(await rig.ask(consumer("a"), 1)) == [0, 1]


async def test_what_the_log_does_not_take_did_not_happen() -> None:
    async with consumer_coordinator(min_insync_replicas="2") as rig:
        refused = await rig.ask(consumer("a"), 1)
        assert refused.error_code == E.COORDINATOR_NOT_AVAILABLE
        assert "g" not in rig.parts.coordinator.find("g").consumer_groups
        assert not rig.parts.coordinator._led[0].timers


async def test_members_that_join_at_once_are_written_in_limited_batches() -> None:
    """Only the request that is too large alone is refused, and only that of a name too long."""
    async with consumer_coordinator() as rig:
        await rig.follow(batch_limit(4_000))
        large = {"subscribed_topic_names": [f"{n:0100}" for n in range(60)]}
        # Broker 2 does not fetch: requests after the first batch wait for it, and are the next.
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


async def test_silent_members_are_out_by_the_group_s_own_timer() -> None:
    async with consumer_coordinator(
        group_consumer_session_timeout_ms="60", group_consumer_heartbeat_interval_ms="20"
    ) as rig:
        await rig.ask(consumer("a"), 1)
        await until(lambda: not group_of(rig).state.members)
        assert (await rig.ask(consumer("a", 2), 1)).error_code == E.UNKNOWN_MEMBER_ID


async def test_a_group_goes_by_a_configuration_of_its_own() -> None:
    async with consumer_coordinator() as rig:
        assert (await rig.ask(consumer("a"), 1)).heartbeat_interval_ms == 5_000
        told = {"consumer.heartbeat.interval.ms": "9000", "consumer.session.timeout.ms": "50000"}
        for group_id in ("g", "another"):
            await rig.follow(*(configured(group_id, *one) for one in told.items()))
        group = group_of(rig)
        assert (await rig.ask(consumer("a", 2), 1)).heartbeat_interval_ms == 9_000
        assert group._deadlines._sessions["a"] - rig.around.clock.now_ms() > 45_000
        await rig.follow(*(configured("g", key, None) for key in told))
        assert (await rig.ask(consumer("a", 2), 1)).heartbeat_interval_ms == 5_000


def configured(group_id: str, key: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(
        resource_type=ResourceType.GROUP, resource_name=group_id, name=key, value=value
    )


async def test_a_partition_has_so_many_groups() -> None:
    async with consumer_coordinator(group_max_per_partition="1") as rig:
        await rig.ask(consumer("a"), 1)
        refused = await rig.ask(consumer("a", group_id="h"), 1)
        assert refused.error_code == E.GROUP_MAX_SIZE_REACHED


# --- from one protocol to the other ---------------------------------------------------------------


async def classic(rig: Any) -> tuple[str, int]:
    """A classic member that has both partitions of t."""
    protocol = type(PROTOCOL)(name="range", metadata=SUBSCRIPTION)
    told = await rig.ask(join(protocols=[protocol]), 8)
    joined = await rig.ask(join(told.member_id, protocols=[protocol]), 8)
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


async def test_a_classic_group_takes_a_member_of_the_newer_protocol_and_gives_it_back() -> None:
    async with consumer_coordinator(group_consumer_assignment_interval_ms="0") as rig:
        old, generation = await classic(rig)
        assert await committing(rig, 5, old, generation) == 0
        assert given(await rig.ask(consumer("new"), 1)) == [], "old has both still"
        assert (await rig.ask(beat(old, generation))).error_code == E.REBALANCE_IN_PROGRESS
        assert await fetched(rig) == {("t", 0): 5}
        # The only member of the newer protocol leaves: what is left is a classic group again.
        assert (await rig.ask(consumer("new", -1), 1)).error_code == 0
        groups = rig.parts.coordinator.find("g")
        assert list(groups.groups["g"].members) == [old] and not groups.consumer_groups
        await lead(rig, 1, leader=2)
        await lead(rig, 2)
        await loaded(rig)
        groups = rig.parts.coordinator.find("g")
        assert list(groups.groups["g"].members) == [old] and not groups.consumer_groups
        assert await fetched(rig) == {("t", 0): 5}


async def test_who_is_left_with_the_classic_protocol_hears_of_a_rebalance_and_loses_nothing() -> (
    None
):
    """With another generation it would give its partitions up as lost, and commit nothing."""
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


async def test_a_rebalance_under_way_ends_with_the_change_of_the_protocol() -> None:
    async with consumer_coordinator() as rig:
        old, _ = await classic(rig)
        protocol = type(PROTOCOL)(name="range", metadata=SUBSCRIPTION)
        told = await rig.ask(join(protocols=[protocol]), 8)
        waiting = asyncio.ensure_future(rig.ask(join(told.member_id, protocols=[protocol]), 8))
        await until(lambda: len(rig.parts.coordinator.find("g").groups["g"].members) == 2)
        assert (await rig.ask(consumer("new"), 1)).error_code == 0
        assert (await waiting).error_code == E.REBALANCE_IN_PROGRESS, "it asks again"
        joined = await rig.ask(join(told.member_id, protocols=[protocol]), 8)
        assert joined.error_code == 0
        assert set(group_of(rig).state.members) == {old, told.member_id, "new"}


async def test_an_upgrade_that_cannot_be_written_leaves_the_classic_group() -> None:
    async with consumer_coordinator() as rig:
        old, generation = await classic(rig)
        await rig.follow(min_isr("2"))
        refused = await rig.ask(consumer("new"), 1)
        await rig.follow(min_isr("1"))
        assert refused.error_code == E.COORDINATOR_NOT_AVAILABLE
        # It was told to join: whether it has to, it finds out by its next heartbeat.
        assert list(rig.parts.coordinator.find("g").groups["g"].members) == [old]
        assert (await rig.ask(beat(old, generation))).error_code == E.REBALANCE_IN_PROGRESS


async def test_a_group_that_does_not_speak_of_partitions_stays_what_it_is() -> None:
    async with consumer_coordinator() as rig:
        old, generation = await enter(rig)  # Its assignment is no list of partitions.
        refused = await rig.ask(consumer("new"), 1)
        assert refused.error_code == E.GROUP_ID_NOT_FOUND
        assert "cannot change over" in refused.error_message
        assert (await rig.ask(beat(old, generation))).error_code == 0
