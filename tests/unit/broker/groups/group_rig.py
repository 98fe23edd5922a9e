"""A broker that leads ``__consumer_offsets``, and requests of group members over the wire."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from kraftjbod.broker.groups.coordinator.group_log import GroupLog
from kraftjbod.broker.groups.records.group_records import OFFSETS_TOPIC
from kraftjbod.core.errors import OperatingError
from kraftjbod.core.ids import TopicId, TopicPartition
from kraftjbod.metadata.records import FeatureLevelRecord
from kraftjbod.protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from tests.unit.broker.broker_rig import TOPIC_ID, BrokerRig, brokers, partition, topic
from tests.unit.broker.gates import until

OFFSETS_ID = TopicId(b"o" * 16)
OFFSETS = TopicPartition(OFFSETS_TOPIC, 0)
QUICK = {"group_initial_rebalance_delay_ms": "0", "group_min_session_timeout_ms": "10"}
PROTOCOL = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\0")


@contextlib.asynccontextmanager
async def coordinator(**overrides: Any) -> AsyncIterator[BrokerRig]:
    """A broker that leads the only partition, and a topic ``t`` to commit for."""
    async with brokers(1, **{**QUICK, **overrides}) as (rig,):
        await lead(rig, 0)
        await rig.follow(topic(), partition())
        await loaded(rig)
        yield rig


async def lead(rig: BrokerRig, epoch: int, leader: int = 1, isr: tuple[int, ...] = (1,)) -> None:
    both: dict[str, Any] = {"replicas": (1, 2), "isr": isr, "topic_id": OFFSETS_ID}
    records = [partition(leader=leader, epoch=epoch, **both)]
    if epoch == 0:
        records.insert(0, topic(OFFSETS_TOPIC, OFFSETS_ID))  # type: ignore[arg-type]  # any record
    await rig.follow(*records)


def is_loaded(rig: BrokerRig) -> bool:
    """Return whether the broker coordinates the group ``g``."""
    try:
        rig.parts.coordinator.led_of("g")
    except OperatingError:
        return False
    return True


async def loaded(rig: BrokerRig) -> None:
    await until(lambda: is_loaded(rig))


def join(member_id: str = "", **more: Any) -> JoinGroupRequest:
    asked = {
        "group_id": "g",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 10_000,
        "protocol_type": "consumer",
        "protocols": [PROTOCOL],
        **more,
    }
    return JoinGroupRequest(member_id=member_id, **asked)


def sync(member_id: str, generation: int, **assignments: bytes) -> SyncGroupRequest:
    kind = SyncGroupRequest.SyncGroupRequestAssignment
    return SyncGroupRequest(
        group_id="g",
        generation_id=generation,
        member_id=member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[kind(member_id=m, assignment=given) for m, given in assignments.items()],
    )


def beat(member_id: str, generation: int) -> HeartbeatRequest:
    return HeartbeatRequest(group_id="g", member_id=member_id, generation_id=generation)


async def enter(rig: BrokerRig) -> tuple[str, int]:
    """Join group ``g`` as its only member with assignment ``all``; return member id and
    generation."""
    first = await rig.ask(join(), 8)
    joined = await rig.ask(join(first.member_id), 8)
    assert joined.error_code == 0 and joined.leader == first.member_id
    request = sync(first.member_id, joined.generation_id)
    assignment = SyncGroupRequest.SyncGroupRequestAssignment
    request.assignments = [assignment(member_id=first.member_id, assignment=b"all")]
    synced = await rig.ask(request)
    assert (synced.error_code, bytes(synced.assignment)) == (0, b"all")
    return joined.member_id, joined.generation_id


def commit(
    offset: int,
    member_id: str = "",
    generation: int = -1,
    *,
    index: int = 0,
    name: str = "t",
    **more: Any,
) -> OffsetCommitRequest:
    kind = OffsetCommitRequest
    part = kind.OffsetCommitRequestPartition(
        partition_index=index, committed_offset=offset, committed_leader_epoch=3, **more
    )
    return kind(
        group_id="g",
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=[kind.OffsetCommitRequestTopic(name=name, partitions=[part])],
    )


async def committing(rig: BrokerRig, *about: Any, version: int = 9, **more: Any) -> int:
    """Commit an offset and return the error code of the partition."""
    answer = await rig.ask(commit(*about, **more), version)
    code: int = answer.topics[0].partitions[0].error_code
    return code


async def fetched(rig: BrokerRig, group_id: str = "g") -> Any:
    """Return all committed offsets of the group, or the error code."""
    asked = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id, topics=None)
    (group,) = (await rig.ask(OffsetFetchRequest(groups=[asked]), 9)).groups
    if group.error_code:
        return group.error_code
    return {
        (topic.name, part.partition_index): part.committed_offset
        for topic in group.topics
        for part in topic.partitions
    }


# --- members of the consumer protocol ------------------------------------------------------------


@contextlib.asynccontextmanager
async def consumer_coordinator(**overrides: Any) -> AsyncIterator[BrokerRig]:
    """As :func:`coordinator`, with ``group.version`` 1; ``t`` has two partitions."""
    async with coordinator(**overrides) as rig:
        await rig.follow(partition(1), FeatureLevelRecord(name="group.version", feature_level=1))
        yield rig


def consumer(member_id: str, epoch: int = 0, **more: Any) -> ConsumerGroupHeartbeatRequest:
    """A heartbeat request, with all fields if it is the first one."""
    said: dict[str, Any] = {"group_id": "g", **more}
    if epoch == 0:
        joining = {"subscribed_topic_names": ["t"], "rebalance_timeout_ms": 60_000}
        said = {**joining, "topic_partitions": [], **said}
    return ConsumerGroupHeartbeatRequest(member_id=member_id, member_epoch=epoch, **said)


def has(*indexes: int) -> dict[str, Any]:
    """The field with the owned partitions of ``t``."""
    kind = ConsumerGroupHeartbeatRequest.TopicPartitions
    return {"topic_partitions": [kind(topic_id=TOPIC_ID, partitions=list(indexes))]}


def given(answer: ConsumerGroupHeartbeatResponse) -> list[int]:
    """Return the partitions of ``t`` in the assignment of the response."""
    assert answer.error_code == 0 and answer.assignment is not None, answer
    (own,) = answer.assignment.topic_partitions or [None]
    return [] if own is None else sorted(own.partitions)


def group_log(rig: BrokerRig) -> GroupLog:
    """Return a log of group records that appends as the coordinator's does."""
    return GroupLog(
        producer=rig.wiring.internal.producer("groups"),
        clock=rig.around.clock,
        timeout_ms=rig.config.offsets_commit_timeout_ms,
    )
