"""WIRE. Requests about a cluster: topics, features, offsets, elections.

Each function sends one kind of request, and turns error codes into :class:`OperatingError`. Callers
repeat failed requests by :meth:`ClusterClient.retry`. config_admin.py handles configuration,
replica_admin.py the locations of replicas.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, Protocol, TypeVar

from kraftjbod.cli.clients.cluster_client import (
    ClusterClient,
    ClusterMetadata,
    kafka_error,
    may_pass,
)
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.protocol.messages import (
    ApiVersionsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    ElectLeadersRequest,
    ListOffsetsRequest,
    UnregisterBrokerRequest,
    UnregisterControllerRequest,
    UpdateFeaturesRequest,
)

R = TypeVar("R")

#: Time for the response to arrive after a broker has waited as long as it may.
_ANSWER_MS: Final = 5_000
#: DescribeCluster: the first version that reports fenced brokers.
WITH_FENCED_BROKERS: Final = 2
EARLIEST: Final = -2
LATEST: Final = -1


class CreatedTopic(NamedTuple):
    """A created topic as the cluster reports it.

    If the cluster does not report them, ``replication_factor`` is -1 and ``min_insync_replicas``
    None.
    """

    replication_factor: int
    min_insync_replicas: int | None

    @property
    def needs_all_replicas(self) -> bool:
        """Whether a single replica that is out of sync stops all writes with ``acks=all``."""
        needed = self.min_insync_replicas
        return needed is not None and needed >= self.replication_factor > 1


async def create_topic(
    client: ClusterClient,
    name: str,
    *,
    partitions: int = -1,
    replication_factor: int = -1,
    assignment: Mapping[int, Sequence[int]] | None = None,
    configs: Mapping[str, str] | None = None,
) -> CreatedTopic:
    """Create one topic. A number of -1 stands for the cluster's default.

    :param assignment: broker ids by partition, instead of the two numbers.
    :raises OperatingError: TOPIC_ALREADY_EXISTS and others.
    """
    topic = CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=-1 if assignment else partitions,
        replication_factor=-1 if assignment else replication_factor,
        assignments=[
            CreateTopicsRequest.CreatableReplicaAssignment(
                partition_index=index, broker_ids=list(brokers)
            )
            for index, brokers in (assignment or {}).items()
        ],
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(name=key, value=value)
            for key, value in (configs or {}).items()
        ],
    )
    response = await client.request_controller(
        CreateTopicsRequest(topics=[topic], timeout_ms=client.request_timeout_ms)
    )
    # Imported late: pydantic would double the time of a health check.
    from kraftjbod.core.topic_config import MIN_INSYNC_REPLICAS

    (result,) = response.topics
    require_ok(result, f"topic {result.name}")
    needed = next((c.value for c in result.configs or () if c.name == MIN_INSYNC_REPLICAS), None)
    return CreatedTopic(result.replication_factor, None if needed is None else int(needed))


async def delete_topic(client: ClusterClient, name: str) -> None:
    """Delete the topic ``name``.

    :raises OperatingError: UNKNOWN_TOPIC_OR_PARTITION and others.
    """
    # The field moved in version 6; the codec sends the one of the version in use.
    body = DeleteTopicsRequest(topic_names=[name], timeout_ms=client.request_timeout_ms)
    body.topics = [DeleteTopicsRequest.DeleteTopicState(name=name)]
    response = await client.request_controller(body)
    for result in response.responses:
        require_ok(result, f"topic {result.name}")


async def create_partitions(client: ClusterClient, topic: str, count: int) -> None:
    """Increase the number of partitions of ``topic`` to ``count``.

    :raises OperatingError: INVALID_PARTITIONS and others.
    """
    response = await client.request_controller(
        CreatePartitionsRequest(
            topics=[
                CreatePartitionsRequest.CreatePartitionsTopic(
                    name=topic, count=count, assignments=None
                )
            ],
            timeout_ms=client.request_timeout_ms,
        )
    )
    for result in response.results:
        require_ok(result, f"topic {result.name}")


# --- who may lead --------------------------------------------------------------------------------


class EligibleLeaders(NamedTuple):
    """Eligible leader replicas and last known leaders of one partition (KIP-966)."""

    eligible_leader_replicas: Sequence[int]
    last_known_elr: Sequence[int]


async def describe_eligible(
    client: ClusterClient, topics: Sequence[str]
) -> dict[tuple[str, int], EligibleLeaders]:
    """Return the eligible leaders by topic and partition, of the partitions that report them.

    The result is empty if the cluster does not support the request.

    :raises OperatingError: no broker responds.
    """
    wanted = [DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in topics]
    found: dict[tuple[str, int], EligibleLeaders] = {}
    cursor, seen = None, ("", -1)
    while wanted:
        try:
            response = await client.request_from_any_broker(
                DescribeTopicPartitionsRequest(topics=wanted, cursor=cursor)
            )
        except OperatingError as e:
            if e.code is ErrorCode.UNSUPPORTED_VERSION:
                return {}
            raise
        for topic in response.topics:
            for part in topic.partitions:
                if part.eligible_leader_replicas is not None:
                    found[topic.name or "", part.partition_index] = EligibleLeaders(
                        part.eligible_leader_replicas, part.last_known_elr or ()
                    )
        goes_on = response.next_cursor
        if goes_on is None or (goes_on.topic_name, goes_on.partition_index) <= seen:
            break
        seen = (goes_on.topic_name, goes_on.partition_index)
        cursor = DescribeTopicPartitionsRequest.Cursor(topic_name=seen[0], partition_index=seen[1])
        wanted = [topic for topic in wanted if topic.name >= cursor.topic_name]
    return found


# --- features ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureDescription:
    """A feature. ``min_version`` to ``max_version`` is the range that the responding broker or
    controller supports.

    Both are -1 if not reported. ``finalized_level`` is the level of the cluster; 0 if none is set.
    """

    name: str
    min_version: int
    max_version: int
    finalized_level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFeatures:
    """The features of a cluster, by name.

    ``epoch`` grows with each change of a finalized level; -1 if not reported.
    """

    epoch: int
    features: tuple[FeatureDescription, ...]


class UpgradeType(IntEnum):
    """Kind of a change of a feature level, with Kafka's numbers (KIP-584): raise it, lower it
    without loss of metadata, or lower it even if metadata is lost."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


#: UpdateFeatures: the first version with types of downgrades and validate-only.
_UPDATE_FEATURES_WITH_TYPES: Final = 1


async def describe_features(client: ClusterClient) -> ClusterFeatures:
    """Return the features by name: the range of one broker, and the level of the cluster.

    :raises OperatingError: no broker responds, or the broker reports an error.
    """
    response = await client.request_from_any_broker(
        ApiVersionsRequest(client_software_name="kraftjbod", client_software_version="0")
    )
    require_ok(response, "features")
    supported = {f.name: (f.min_version, f.max_version) for f in response.supported_features}
    finalized = {f.name: f.max_version_level for f in response.finalized_features}
    return ClusterFeatures(
        epoch=response.finalized_features_epoch,
        features=tuple(
            FeatureDescription(
                name=name,
                min_version=supported.get(name, (-1, -1))[0],
                max_version=supported.get(name, (-1, -1))[1],
                finalized_level=finalized.get(name, 0),
            )
            for name in sorted({*supported, *finalized})
        ),
    )


async def update_features(
    client: ClusterClient,
    levels: Mapping[str, int],
    *,
    upgrade_type: UpgradeType,
    validate_only: bool = False,
) -> None:
    """Set the levels of features, all of them or none (KIP-584).

    :raises OperatingError: INVALID_UPDATE_VERSION, FEATURE_UPDATE_FAILED and others.
    """
    is_plain = upgrade_type is UpgradeType.UPGRADE and not validate_only
    response = await client.request_controller(
        UpdateFeaturesRequest(
            timeout_ms=client.request_timeout_ms,
            feature_updates=[
                UpdateFeaturesRequest.FeatureUpdateKey(
                    feature=name, max_version_level=level, upgrade_type=upgrade_type
                )
                for name, level in levels.items()
            ],
            validate_only=validate_only,
        ),
        min_version=0 if is_plain else _UPDATE_FEATURES_WITH_TYPES,
    )
    # Before version 2 each feature has its own error, which is more precise.
    for result in response.results:
        require_ok(result, f"feature {result.feature}")
    require_ok(response, "features")


# --- offsets -------------------------------------------------------------------------------------


async def list_offsets(
    client: ClusterClient, topic: str, partitions: Iterable[int], timestamp: int
) -> dict[int, int]:
    """Return, by partition, the first offset whose record is not older than ``timestamp``.

    An offset of -1 means that every record is older. The client's metadata must include the topic.

    :param timestamp: wall-clock milliseconds; or :data:`EARLIEST`: the log start offset; or
        :data:`LATEST`: the high watermark.
    :raises OperatingError: a partition does not exist or has no leader, or its leader reports an
        error.
    """
    by_leader: dict[int, list[int]] = defaultdict(list)
    for partition in partitions:
        by_leader[client.metadata.leader(topic, partition)].append(partition)
    answers = await asyncio.gather(
        *(_offsets_at(client, node, topic, own, timestamp) for node, own in by_leader.items())
    )
    return {partition: offset for answer in answers for partition, offset in answer.items()}


async def _offsets_at(
    client: ClusterClient, node_id: int, topic: str, partitions: list[int], timestamp: int
) -> dict[int, int]:
    wanted = [
        ListOffsetsRequest.ListOffsetsPartition(partition_index=index, timestamp=timestamp)
        for index in partitions
    ]
    response = await client.request(
        node_id,
        ListOffsetsRequest(
            replica_id=-1,
            topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=wanted)],
        ),
    )
    offsets = {}
    for entry in response.topics[0].partitions:
        require_ok(entry, f"{topic}-{entry.partition_index}")
        offsets[entry.partition_index] = entry.offset
    return offsets


async def delete_records(
    client: ClusterClient, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int | OperatingError]:
    """Delete the records of each partition before its offset (KIP-107); -1: all committed records.

    Retriable errors are retried within the client's retry timeout.

    :returns: the new start of each partition, or its error.
    """
    answers: dict[TopicPartition, int | OperatingError] = {}

    async def attempt() -> None:
        wanted = {tp: offset for tp, offset in offsets.items() if _may_change(answers.get(tp))}
        by_leader: dict[int, dict[TopicPartition, int]] = defaultdict(dict)
        for tp, offset in wanted.items():
            try:
                by_leader[client.metadata.leader(*tp)][tp] = offset
            except OperatingError as e:
                answers[tp] = e
        for reported in await asyncio.gather(
            *(_deleted_by(client, leader, own) for leader, own in by_leader.items())
        ):
            answers.update(reported)
        for tp in wanted:
            error = answers[tp]
            if isinstance(error, OperatingError) and may_pass(error):
                raise error

    topics = sorted({tp.topic for tp in offsets})
    try:
        await client.retry(lambda: client.refresh_metadata(topics))
        await client.retry(attempt, topics=topics)
    except OperatingError as e:
        return {tp: e for tp in offsets} | answers
    return answers


def _may_change(answer: int | OperatingError | None) -> bool:
    return answer is None or (isinstance(answer, OperatingError) and may_pass(answer))


async def _deleted_by(
    client: ClusterClient, leader: int, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int | OperatingError]:
    """Send DeleteRecords to one leader; return each partition's new log start offset or error.

    If the request fails as a whole, every partition gets that error.
    """
    by_topic: dict[str, list[DeleteRecordsRequest.DeleteRecordsPartition]] = defaultdict(list)
    for tp, offset in offsets.items():
        by_topic[tp.topic].append(
            DeleteRecordsRequest.DeleteRecordsPartition(partition_index=tp.partition, offset=offset)
        )
    body = DeleteRecordsRequest(
        topics=[
            DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=partitions)
            for topic, partitions in by_topic.items()
        ],
        timeout_ms=client.request_timeout_ms,
    )
    # The broker may wait for followers during the whole request timeout.
    timeout_ms = client.request_timeout_ms + _ANSWER_MS
    try:
        response = await client.request(leader, body, timeout_ms=timeout_ms)
    except OperatingError as e:
        return dict.fromkeys(offsets, e)
    answers: dict[TopicPartition, int | OperatingError] = {
        tp: OperatingError(f"broker {leader} says nothing of {tp}") for tp in offsets
    }
    for topic in response.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            if part.error_code == ErrorCode.NONE:
                answers[tp] = part.low_watermark
            else:
                answers[tp] = kafka_error(part.error_code, str(tp))
    return answers


# --- leaders -------------------------------------------------------------------------------------


class ElectionType(IntEnum):
    """Type of a leader election, with Kafka's numbers (KIP-460).

    PREFERRED elects the first replica of the assignment. UNCLEAN allows a leader that is not in
    sync, if a partition has no leader.
    """

    PREFERRED = 0
    UNCLEAN = 1


async def elect_leaders(
    client: ClusterClient, kind: ElectionType, partitions: Sequence[TopicPartition] | None
) -> dict[TopicPartition, OperatingError | None]:
    """Elect leaders; return the error of each partition, or None if its election succeeded.

    A named partition that needs no election has the error ELECTION_NOT_NEEDED.

    :param partitions: None for all; then partitions that need no election are left out of the
        result.
    :raises OperatingError: the request as a whole failed.
    """
    named: list[ElectLeadersRequest.TopicPartitions] | None = None
    if partitions is not None:
        by_topic: dict[str, list[int]] = defaultdict(list)
        for topic, partition in partitions:
            by_topic[topic].append(partition)
        named = [
            ElectLeadersRequest.TopicPartitions(topic=topic, partitions=indexes)
            for topic, indexes in by_topic.items()
        ]
    response = await client.request_controller(
        ElectLeadersRequest(
            election_type=kind, topic_partitions=named, timeout_ms=client.request_timeout_ms
        ),
        min_version=0 if kind is ElectionType.PREFERRED else 1,
    )
    require_ok(response, "elections")
    found: dict[TopicPartition, OperatingError | None] = {}
    for result in response.replica_election_results:
        for part in result.partition_result:
            key = TopicPartition(result.topic, part.partition_id)
            is_done = part.error_code == ErrorCode.NONE
            found[key] = (
                None if is_done else kafka_error(part.error_code, str(key), part.error_message)
            )
    return found


# --- brokers -------------------------------------------------------------------------------------


def partitions_on(broker_id: int, metadata: ClusterMetadata) -> list[TopicPartition]:
    """Return the partitions with a replica on the broker, sorted.

    :param metadata: metadata of all topics.
    """
    return [
        TopicPartition(name, index)
        for name, topic in sorted(metadata.topics.items())
        for index, partition in sorted(topic.partitions.items())
        if broker_id in partition.replicas
    ]


async def unregister_broker(client: ClusterClient, broker_id: int) -> None:
    """Unregister a permanently stopped broker.

    :raises OperatingError: BROKER_ID_NOT_REGISTERED, UNSUPPORTED_VERSION and others.
    """
    response = await client.request_controller(UnregisterBrokerRequest(broker_id=broker_id))
    require_ok(response, f"broker {broker_id}")


async def unregister_controller(client: ClusterClient, controller_id: int) -> None:
    """Unregister a permanently stopped controller, which is no longer a voter.

    :raises OperatingError: BROKER_ID_NOT_REGISTERED, UNSUPPORTED_VERSION and others.
    """
    response = await client.request_from_any_broker(
        UnregisterControllerRequest(controller_id=controller_id)
    )
    require_ok(response, f"controller {controller_id}")


async def describe_cluster(
    client: ClusterClient, *, include_fenced: bool = False
) -> DescribeClusterResponse:
    """Return the id of the cluster and its brokers.

    :param include_fenced: whether to include registered brokers that are fenced.
    :raises OperatingError: UNSUPPORTED_VERSION: the cluster does not report fenced brokers.
    """
    response = await client.request_from_any_broker(
        DescribeClusterRequest(include_fenced_brokers=include_fenced),
        min_version=WITH_FENCED_BROKERS if include_fenced else 0,
    )
    require_ok(response, "cluster")
    return response


async def describe_fencing(client: ClusterClient) -> dict[int, bool]:
    """Return whether each registered broker is fenced, by broker id, as one broker knows it.

    :raises OperatingError: UNSUPPORTED_VERSION: that broker does not report it.
    """
    response = await describe_cluster(client, include_fenced=True)
    return {broker.broker_id: broker.is_fenced for broker in response.brokers}


class _Result(Protocol):
    """A part of a response that has an error code, and sometimes an error message."""

    @property
    def error_code(self) -> int: ...


def require_ok(result: _Result, what: str) -> None:
    """Check that ``result`` has no error.

    :param what: subject of the result, for the message.
    :raises OperatingError: it has an error.
    """
    if result.error_code != ErrorCode.NONE:
        raise kafka_error(result.error_code, what, getattr(result, "error_message", None))
