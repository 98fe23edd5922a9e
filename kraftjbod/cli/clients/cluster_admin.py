"""WIRE. Questions and orders about a cluster: topics, configuration, features, offsets.

One function per request; each turns error codes into :class:`OperatingError` and leaves trying
again to :meth:`ClusterClient.retry`.
Where replicas are, and where they shall be, is the business of replica_admin.py.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, Protocol, TypeVar

from kraftjbod.cli.clients.cluster_client import ClusterClient, kafka_error, may_pass
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.protocol.kafka_codec import Request
from kraftjbod.protocol.messages import (
    ApiVersionsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeTopicPartitionsRequest,
    IncrementalAlterConfigsRequest,
    ListOffsetsRequest,
    UpdateFeaturesRequest,
)

R = TypeVar("R")

#: For an answer to come, after a broker has waited as long as it may.
_ANSWER_MS: Final = 5_000
#: DescribeCluster: the first version that reports fenced brokers.
WITH_FENCED_BROKERS: Final = 2
EARLIEST: Final = -2
LATEST: Final = -1


async def create_topic(
    client: ClusterClient,
    name: str,
    *,
    partitions: int = -1,
    replication_factor: int = -1,
    assignment: Mapping[int, Sequence[int]] | None = None,
    configs: Mapping[str, str] | None = None,
) -> None:
    """Create one topic; -1 leaves a number to the cluster.

    :param assignment: broker ids by partition, instead of the two numbers.
    :raises OperatingError: TOPIC_ALREADY_EXISTS and what else the cluster has against it.
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
    for result in response.topics:
        require_ok(result, f"topic {result.name}")


async def delete_topic(client: ClusterClient, name: str) -> None:
    """:raises OperatingError: UNKNOWN_TOPIC_OR_PARTITION and others."""
    # The name's place moved in version 6; the codec sends the one that the version has.
    body = DeleteTopicsRequest(topic_names=[name], timeout_ms=client.request_timeout_ms)
    body.topics = [DeleteTopicsRequest.DeleteTopicState(name=name)]
    response = await client.request_controller(body)
    for result in response.responses:
        require_ok(result, f"topic {result.name}")


async def create_partitions(client: ClusterClient, topic: str, count: int) -> None:
    """Let ``topic`` have ``count`` partitions, more than it has now."""
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


# --- configuration -------------------------------------------------------------------------------


class ResourceType(IntEnum):
    """What can be configured; Kafka's numbers."""

    TOPIC = 2
    BROKER = 4


class ConfigResource(NamedTuple):
    """One topic by its name, one broker by its id, or all brokers by the empty name."""

    type: ResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.type.name.lower()} {self.name or '(all)'}"


class ConfigSource(IntEnum):
    """Where a value comes from; Kafka's numbers."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5

    @classmethod
    def _missing_(cls, value: object) -> ConfigSource:
        return cls.UNKNOWN


class ConfigSynonym(NamedTuple):
    """A place that could set a value, and what it says."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One value in force; ``value`` is None where it is not set, or secret.

    ``synonyms`` holds every place that sets it, the winning one first.
    """

    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool
    synonyms: tuple[ConfigSynonym, ...]
    is_sensitive: bool = False


class ConfigOperation(IntEnum):
    """How one value changes (KIP-339); the last two are for lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    """One key of one resource."""

    name: str
    value: str | None
    operation: ConfigOperation = ConfigOperation.SET


async def describe_configs(
    client: ClusterClient, resources: Iterable[ConfigResource]
) -> dict[ConfigResource, dict[str, ConfigEntry]]:
    """Every value in force of each resource, by key.

    A broker is asked itself, so the client's metadata must know it.

    :raises OperatingError: UNKNOWN_TOPIC_OR_PARTITION and others, naming the resource.
    """

    def body(own: Sequence[ConfigResource]) -> DescribeConfigsRequest:
        wanted = [
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=resource.type, resource_name=resource.name, configuration_keys=None
            )
            for resource in own
        ]
        return DescribeConfigsRequest(resources=wanted, include_synonyms=True)

    described = {}
    for response in await _ask_each(client, _by_broker(resources), body):
        for result in response.results:
            resource = ConfigResource(ResourceType(result.resource_type), result.resource_name)
            require_ok(result, str(resource))
            described[resource] = {entry.name: _config_entry(entry) for entry in result.configs}
    return described


async def topic_configs(
    client: ClusterClient, topics: Iterable[str]
) -> dict[str, dict[str, str | None]]:
    """Each topic's own configuration, without what it inherits."""
    described = await describe_configs(
        client, [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    )
    return {
        resource.name: {
            entry.name: entry.value
            for entry in entries.values()
            if entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG
        }
        for resource, entries in described.items()
    }


class EligibleLeaders(NamedTuple):
    """Who may lead one partition though it is not in sync, and who led it last (KIP-966)."""

    eligible_leader_replicas: Sequence[int]
    last_known_elr: Sequence[int]


async def describe_eligible(
    client: ClusterClient, topics: Sequence[str]
) -> dict[tuple[str, int], EligibleLeaders]:
    """By topic and partition; nothing of a cluster that cannot be asked for it."""
    wanted = [DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in topics]
    found: dict[tuple[str, int], EligibleLeaders] = {}
    cursor, seen = None, ("", -1)
    while wanted:
        try:
            response = await client.request_any(
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


async def incremental_alter_configs(
    client: ClusterClient,
    changes: Mapping[ConfigResource, Sequence[ConfigChange]],
    *,
    validate_only: bool = False,
) -> None:
    """Change single values and leave all others as they are (KIP-339).

    Each resource changes as a whole or not at all; others may have changed when this raises.

    :raises OperatingError: INVALID_CONFIG and others, for the first resource refused.
    """

    def body(own: Sequence[ConfigResource]) -> IncrementalAlterConfigsRequest:
        wanted = [
            IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=resource.type,
                resource_name=resource.name,
                configs=[
                    IncrementalAlterConfigsRequest.AlterableConfig(
                        name=name, config_operation=operation, value=value
                    )
                    for name, value, operation in changes[resource]
                ],
            )
            for resource in own
        ]
        return IncrementalAlterConfigsRequest(resources=wanted, validate_only=validate_only)

    # A broker that is down can be configured through any other.
    grouped = _by_broker(changes, among=client.metadata.brokers)
    for response in await _ask_each(client, grouped, body):
        for result in response.responses:
            resource = ConfigResource(ResourceType(result.resource_type), result.resource_name)
            require_ok(result, str(resource))


def _by_broker(
    resources: Iterable[ConfigResource], among: Collection[int] | None = None
) -> dict[int | None, list[ConfigResource]]:
    """The resources by whom to ask about them; None stands for any broker.

    Kafka's brokers answer about themselves only.
    """
    grouped: dict[int | None, list[ConfigResource]] = defaultdict(list)
    for resource in resources:
        node_id = None
        if resource.type is ResourceType.BROKER and resource.name:
            node_id = int(resource.name)
            if among is not None and node_id not in among:
                node_id = None
        grouped[node_id].append(resource)
    return grouped


async def _ask_each(
    client: ClusterClient,
    grouped: Mapping[int | None, Sequence[ConfigResource]],
    body: Callable[[Sequence[ConfigResource]], Request[R]],
) -> list[R]:
    return await asyncio.gather(
        *(
            client.request_any(body(own)) if node_id is None else client.request(node_id, body(own))
            for node_id, own in grouped.items()
        )
    )


def _config_entry(entry: DescribeConfigsResponse.DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        name=entry.name,
        value=entry.value,
        source=ConfigSource(entry.config_source),
        is_read_only=entry.read_only,
        is_sensitive=entry.is_sensitive,
        synonyms=tuple(
            ConfigSynonym(s.name, s.value, ConfigSource(s.source)) for s in entry.synonyms
        ),
    )


# --- features ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureDescription:
    """``min_version`` to ``max_version`` is what the broker supports, -1 where it does not say.

    ``finalized_level`` is what the cluster agreed on, 0 if it did not.
    """

    name: str
    min_version: int
    max_version: int
    finalized_level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFeatures:
    """``epoch`` grows with every change of a finalized level; -1 if the broker does not say."""

    epoch: int
    features: tuple[FeatureDescription, ...]


class UpgradeType(IntEnum):
    """KIP-584's numbers."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


#: UpdateFeatures: the first version with kinds of downgrades and with validate-only.
_UPDATE_FEATURES_WITH_TYPES: Final = 1


async def describe_features(client: ClusterClient) -> ClusterFeatures:
    """What one broker supports and what the cluster agreed on, by name."""
    response = await client.request_any(
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
    """Bring features to these levels, all of them or none (KIP-584).

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
    # Before version 2 each feature has an outcome of its own, which says more than the whole.
    for result in response.results:
        require_ok(result, f"feature {result.feature}")
    require_ok(response, "features")


# --- offsets -------------------------------------------------------------------------------------


async def list_offsets(
    client: ClusterClient, topic: str, partitions: Iterable[int], timestamp: int
) -> dict[int, int]:
    """Offset by partition for ``timestamp``: milliseconds, :data:`EARLIEST` or :data:`LATEST`.

    -1 where no record is as young as that.
    The client's metadata must know the topic.
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
    """Let each partition start at its offset (KIP-107): -1 for all that is committed.

    Where it starts then, or why it does not; what may pass is tried again for as long as the
    client tries anything.
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
    """What one leader answers."""
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
    # The broker may take all of its time to wait for followers.
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


async def describe_fencing(client: ClusterClient) -> dict[int, bool]:
    """Whether it is fenced, by broker: all that are registered, as the one that answers knows.

    :raises OperatingError: UNSUPPORTED_VERSION, if that one does not know.
    """
    response = await client.request_any(
        DescribeClusterRequest(include_fenced_brokers=True),
        min_version=WITH_FENCED_BROKERS,
    )
    require_ok(response, "cluster")
    return {broker.broker_id: broker.is_fenced for broker in response.brokers}


class _Result(Protocol):
    """Whatever says in an answer how it went; many of them say it in words, too."""

    @property
    def error_code(self) -> int: ...


def require_ok(result: _Result, what: str) -> None:
    """:raises OperatingError: what ``result`` says about ``what``, if that is an error."""
    if result.error_code != ErrorCode.NONE:
        raise kafka_error(result.error_code, what, getattr(result, "error_message", None))
