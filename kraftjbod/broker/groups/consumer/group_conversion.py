"""PURE. Conversions between classic and consumer groups with members.

Members keep their partitions: they start in the new type of group with their last assignment.
"""

from __future__ import annotations

from collections.abc import Iterable

from kraftjbod.broker.groups.classic.group_roster import Member
from kraftjbod.broker.groups.consumer.classic_members import CONSUMER
from kraftjbod.broker.groups.consumer.consumer_group_events import ConsumerGroupSettings, Moment
from kraftjbod.broker.groups.consumer.consumer_group_state import ConsumerGroupState
from kraftjbod.broker.groups.consumer.consumer_protocol import (
    assignment_bytes,
    read_assignment,
    read_subscription,
)
from kraftjbod.broker.groups.consumer.group_topics import GroupTopics
from kraftjbod.broker.groups.records.consumer_group_records import (
    ClassicProtocols,
    ConsumerMember,
    CurrentAssignment,
    CurrentFact,
    EpochFact,
    GroupEpoch,
    MemberFact,
    TargetEpoch,
    TargetEpochFact,
    TargetFact,
)
from kraftjbod.broker.groups.records.group_records import (
    Fact,
    GroupFact,
    GroupMember,
    GroupMetadata,
)
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import TopicIdPartition, TopicPartition


def check_upgrade(protocol_type: str | None, members: int, settings: ConsumerGroupSettings) -> None:
    """Require that a classic group may become a consumer group.

    :param members: the number of members of the group.
    :raises OperatingError: GROUP_ID_NOT_FOUND, with the reason.
    """
    if not settings.migration_policy.may_upgrade:
        raise _refused(f"the migration policy is {settings.migration_policy.value}")
    if protocol_type != CONSUMER:
        raise _refused(f"its protocol type is {protocol_type}")
    if members > settings.max_size:
        raise _refused(f"it has more than {settings.max_size} members")


def consumer_facts_of(
    group_id: str, generation: int, members: Iterable[Member], topics: GroupTopics
) -> list[Fact]:
    """Return the facts that replace a classic group by a consumer group with the same members.

    :raises OperatingError: GROUP_ID_NOT_FOUND: a member's metadata cannot be decoded.
    """
    facts: list[Fact] = [GroupFact(group_id, None)]
    targets: list[Fact] = []
    currents: list[Fact] = []
    for one in members:
        try:
            member = _consumer_member(one)
            assigned = read_assignment(one.assignment)
        except OperatingError as e:
            raise _refused(e.message) from e
        facts.append(MemberFact(group_id, one.member_id, member))
        partitions = _with_ids(assigned, topics)
        targets.append(TargetFact(group_id, one.member_id, partitions))
        current = CurrentAssignment(
            epoch=generation,
            previous_epoch=generation,
            assigned=dict.fromkeys(partitions, generation),
            revoking={},
        )
        currents.append(CurrentFact(group_id, one.member_id, current))
    facts.append(EpochFact(group_id, GroupEpoch(epoch=generation)))
    facts += targets
    facts.append(TargetEpochFact(group_id, TargetEpoch(epoch=generation)))
    return facts + currents


def classic_group_of(state: ConsumerGroupState, generation: int, moment: Moment) -> GroupMetadata:
    """Return the classic group of the members in ``state``, all of which use the classic protocol.

    Its assignment is their target assignment; the following rebalance assigns missing partitions.

    :raises OperatingError: a member's metadata of the common protocol cannot be decoded.
    """
    kept, first = [], next(iter(state.members.values()))
    name = _common_protocol(state)
    for member in state.members.values():
        assert member.classic is not None, member
        metadata = dict(member.classic.protocols)[name]
        target = (
            (moment.topics.name(one.topic_id), one.partition)
            for one in state.target(member.member_id)
        )
        assigned = [TopicPartition(topic, index) for topic, index in target if topic is not None]
        version = read_subscription(metadata).version
        kept.append(
            GroupMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                session_timeout_ms=member.classic.session_timeout_ms,
                subscription=metadata,
                assignment=assignment_bytes(version, assigned),
            )
        )
    return GroupMetadata(
        protocol_type=CONSUMER,
        generation=generation,
        protocol_name=name,
        leader=first.member_id,
        since_ms=moment.wall_ms,
        members=tuple(kept),
    )


def _common_protocol(state: ConsumerGroupState) -> str:
    """Return the first protocol of the first member that all members have.

    JoinGroup ensures that there is one.
    """
    protocols = [
        [name for name, _ in member.classic.protocols]
        for member in state.members.values()
        if member.classic is not None
    ]
    common = set(protocols[0]).intersection(*protocols)
    return next(name for name in protocols[0] if name in common)


def _consumer_member(member: Member) -> ConsumerMember:
    subscription = read_subscription(member.protocols[0][1])
    return ConsumerMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topic_names=subscription.topics,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicProtocols(
            session_timeout_ms=member.session_timeout_ms, protocols=member.protocols
        ),
    )


def _with_ids(
    assigned: Iterable[TopicPartition], topics: GroupTopics
) -> frozenset[TopicIdPartition]:
    found = ((topics.topic(one.topic), one.partition) for one in assigned)
    return frozenset(
        TopicIdPartition(topic.topic_id, index) for topic, index in found if topic is not None
    )


def _refused(reason: str) -> OperatingError:
    return OperatingError(
        f"the group speaks the classic protocol and cannot change over: {reason}",
        code=ErrorCode.GROUP_ID_NOT_FOUND,
    )
