"""WIRE. Requests about consumer groups, each to the group's coordinator.

Each function sends one kind of request, and turns error codes into :class:`OperatingError`. If the
coordinator has moved, the error is retriable by :meth:`ClusterClient.retry`.
"""

from __future__ import annotations

import asyncio
import struct
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kraftjbod.cli.clients.cluster_admin import require_ok
from kraftjbod.cli.clients.cluster_client import ClusterClient, kafka_error
from kraftjbod.cli.clients.group_facts import GroupDescription, GroupMember, ListedGroup
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.protocol.framing import Buffer
from kraftjbod.protocol.messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)

#: First version with several keys in one request.
_KEYS_SINCE: Final = 4
#: First version with several groups in one request; from 10 on topics have ids only.
_GROUPS_SINCE: Final = 8
_LAST_WITH_NAMES: Final = 9
_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
DEAD: Final = "Dead"
_WHY_NOT_DELETED: Final = {
    ErrorCode.GROUP_ID_NOT_FOUND: "there is no such group",
    ErrorCode.NON_EMPTY_GROUP: "it has members",
}
#: By member type: whether it uses the consumer protocol (KIP-848); 0 is a classic member.
_UPGRADED: Final[Mapping[int, bool]] = {0: False, 1: True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    offset: int
    leader_epoch: int = -1


async def list_groups(
    client: ClusterClient, states: Sequence[str] = (), types: Sequence[str] = ()
) -> list[ListedGroup]:
    """Return the groups of all coordinators, sorted by name.

    Every broker in the client's metadata is asked.

    :param states: Kafka's names of states; empty for all.
    :param types: Kafka's names of group types; empty for all.
    :raises OperatingError: the first error of a broker; UNSUPPORTED_VERSION: a broker is too old
        for ``states`` or ``types``.
    """
    request = ListGroupsRequest()
    if states:
        request.states_filter = list(states)
    if types:
        request.types_filter = list(types)

    async def listed_by(node_id: int) -> list[ListedGroup]:
        response = await client.request(
            node_id, request, min_version=5 if types else 4 if states else 0
        )
        require_ok(response, f"the groups of broker {node_id}")
        return [
            ListedGroup(
                group_id=one.group_id, state=one.group_state or "", group_type=one.group_type or ""
            )
            for one in response.groups
        ]

    answers = await asyncio.gather(*map(listed_by, client.metadata.brokers))
    return sorted((one for answer in answers for one in answer), key=lambda one: one.group_id)


async def find_coordinators(client: ClusterClient, groups: Collection[str]) -> dict[str, int]:
    """Return the broker id of the coordinator of each group.

    :raises OperatingError: COORDINATOR_NOT_AVAILABLE, which is retriable.
    """
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=list(groups))
    response = await client.request_from_any_broker(request, min_version=_KEYS_SINCE)
    for one in response.coordinators:
        require_ok(one, f"coordinator of group {one.key}")
    return {one.key: one.node_id for one in response.coordinators}


async def describe_groups(
    client: ClusterClient, groups: Collection[str]
) -> dict[str, GroupDescription]:
    """Return the description of each group, in the order of ``groups``.

    A group that does not exist has the state ``Dead``.

    :raises OperatingError: the first error of a coordinator or a group.
    """
    coordinators = await find_coordinators(client, groups)
    by_node: dict[int, list[str]] = defaultdict(list)
    for group in groups:
        by_node[coordinators[group]].append(group)

    async def described_by(node_id: int, names: list[str]) -> list[GroupDescription]:
        response = await client.request(node_id, DescribeGroupsRequest(groups=names))
        described = [_description(one, node_id) for one in response.groups]
        unknown = [one.group_id for one in described if one.state == DEAD]
        newer = await _newer_groups(client, node_id, unknown) if unknown else {}
        return [newer.get(one.group_id, one) for one in described]

    answers = await asyncio.gather(*(described_by(*one) for one in by_node.items()))
    found = {one.group_id: one for answer in answers for one in answer}
    return {group: found[group] for group in groups}


async def _newer_groups(
    client: ClusterClient, node_id: int, groups: Sequence[str]
) -> dict[str, GroupDescription]:
    """Return the descriptions of those ``groups`` that use the consumer protocol (KIP-848).

    The result is empty if the coordinator does not support the request.
    """
    request = ConsumerGroupDescribeRequest(group_ids=list(groups))
    try:
        response = await client.request(node_id, request)
    except OperatingError as e:
        if e.code is ErrorCode.UNSUPPORTED_VERSION:
            return {}
        raise
    found = {}
    for one in response.groups:
        if one.error_code not in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
            require_ok(one, f"group {one.group_id}")
            found[one.group_id] = _newer_description(one, node_id)
    return found


async def committed_offsets(client: ClusterClient, group: str) -> dict[TopicPartition, Committed]:
    """Return the committed offset of each partition for which the group has one.

    :raises OperatingError: the coordinator refuses the group or one of its partitions.
    """
    node_id = (await find_coordinators(client, [group]))[group]
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)]
    )
    response = await client.request(
        node_id, request, min_version=_GROUPS_SINCE, max_version=_LAST_WITH_NAMES
    )
    (answer,) = response.groups
    require_ok(answer, f"offsets of group {group}")
    committed = {}
    for topic in answer.topics:
        for part in topic.partitions:
            require_ok(part, f"offset of {topic.name}-{part.partition_index}")
            if part.committed_offset >= 0:
                committed[TopicPartition(topic.name, part.partition_index)] = Committed(
                    offset=part.committed_offset, leader_epoch=part.committed_leader_epoch
                )
    return committed


async def commit_offsets(
    client: ClusterClient, group: str, offsets: Mapping[TopicPartition, Committed]
) -> None:
    """Commit offsets without being a member; the coordinator accepts this only for an empty group.

    :raises OperatingError: the first error; other offsets may have been committed.
    """
    node_id = (await find_coordinators(client, [group]))[group]
    kind = OffsetCommitRequest
    request = kind(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=[
            kind.OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    kind.OffsetCommitRequestPartition(
                        partition_index=partition.partition,
                        committed_offset=offsets[partition].offset,
                        committed_leader_epoch=offsets[partition].leader_epoch,
                        committed_metadata="",
                    )
                    for partition in partitions
                ],
            )
            for topic, partitions in by_topic(offsets).items()
        ],
    )
    response = await client.request(node_id, request, max_version=_LAST_WITH_NAMES)
    for topic in response.topics:
        for part in topic.partitions:
            require_ok(part, f"offset of {topic.name}-{part.partition_index} of group {group}")


async def delete_groups(
    client: ClusterClient, groups: Collection[str]
) -> dict[str, OperatingError | None]:
    """Delete groups; return the error of each group, or None if it was deleted.

    :raises OperatingError: a coordinator was not found or did not respond; groups of others may be
        deleted.
    """
    outcomes: dict[str, OperatingError | None] = {}
    for group, node_id in (await find_coordinators(client, groups)).items():
        response = await client.request(node_id, DeleteGroupsRequest(groups_names=[group]))
        for one in response.results:
            failed = one.error_code != ErrorCode.NONE
            why = _WHY_NOT_DELETED.get(ErrorCode(one.error_code))
            outcomes[one.group_id] = kafka_error(one.error_code, group, why) if failed else None
    return outcomes


async def delete_offsets(
    client: ClusterClient, group: str, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, OperatingError | None]:
    """Delete committed offsets; return the error of each partition, or None if it was deleted.

    :raises OperatingError: the request as a whole failed.
    """
    node_id = (await find_coordinators(client, [group]))[group]
    kind = OffsetDeleteRequest
    request = kind(
        group_id=group,
        topics=[
            kind.OffsetDeleteRequestTopic(
                name=topic,
                partitions=[
                    kind.OffsetDeleteRequestPartition(partition_index=one.partition) for one in own
                ],
            )
            for topic, own in by_topic(partitions).items()
        ],
    )
    response = await client.request(node_id, request)
    require_ok(response, f"group {group}")
    return {
        TopicPartition(topic.name, part.partition_index): (
            kafka_error(part.error_code, f"{topic.name}-{part.partition_index}")
            if part.error_code != ErrorCode.NONE
            else None
        )
        for topic in response.topics
        for part in topic.partitions
    }


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    """Group the partitions by topic. The topics, and the partitions of each, are sorted."""
    grouped: dict[str, list[TopicPartition]] = {}
    for partition in sorted(partitions):
        grouped.setdefault(partition.topic, []).append(partition)
    return grouped


def _description(one: DescribeGroupsResponse.DescribedGroup, coordinator: int) -> GroupDescription:
    if one.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
        require_ok(one, f"group {one.group_id}")
    return GroupDescription(
        group_id=one.group_id,
        coordinator=coordinator,
        state=one.group_state or DEAD,
        assignor=one.protocol_data,
        members=tuple(
            GroupMember(
                member_id=member.member_id,
                instance_id=member.group_instance_id,
                client_id=member.client_id,
                host=member.client_host,
                assignment=parse_assignment(member.member_assignment),
            )
            for member in one.members
        ),
    )


def _newer_description(
    one: ConsumerGroupDescribeResponse.DescribedGroup, coordinator: int
) -> GroupDescription:
    return GroupDescription(
        group_id=one.group_id,
        coordinator=coordinator,
        state=one.group_state,
        assignor=one.assignor_name,
        members=tuple(
            GroupMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                host=member.client_host,
                assignment=_named(member.assignment),
                epoch=member.member_epoch,
                target=_named(member.target_assignment),
                is_upgraded=_UPGRADED.get(member.member_type),
            )
            for member in one.members
        ),
        epoch=one.group_epoch,
        target_epoch=one.assignment_epoch,
    )


def _named(
    assignment: ConsumerGroupDescribeResponse.Assignment | None,
) -> tuple[TopicPartition, ...]:
    assert assignment is not None, "it is never null"
    return tuple(
        sorted(
            TopicPartition(topic.topic_name, index)
            for topic in assignment.topic_partitions
            for index in topic.partitions
        )
    )


def parse_assignment(data: Buffer) -> tuple[TopicPartition, ...]:
    """Parse Kafka's ConsumerProtocolAssignment; return () if ``data`` has another format."""
    view, partitions = memoryview(data), []
    try:
        (topics,), at = _INT.unpack_from(view, _SHORT.size), _SHORT.size + _INT.size
        for _ in range(topics):
            (length,) = _SHORT.unpack_from(view, at)
            at += _SHORT.size
            name = bytes(view[at : at + length]).decode()
            (count,) = _INT.unpack_from(view, at + length)
            at += length + _INT.size
            numbers = struct.unpack_from(f">{count}i", view, at)
            at += _INT.size * count
            partitions += [TopicPartition(name, number) for number in numbers]
    except (struct.error, UnicodeDecodeError):
        return ()
    return tuple(sorted(partitions))
