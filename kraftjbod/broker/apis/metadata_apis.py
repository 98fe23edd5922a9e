"""LOOP. Metadata and DescribeCluster.

* Responses come from the metadata cache alone; they may be older than the controller's metadata.
* A topic's encoded metadata is cached per version and listener until the metadata changes, so that
  many clients that refresh after a failure cost one encoding.
* A missing topic is created through the controller if the configuration allows it, and the client
  retries. Internal topics are not: brokers create them with their own settings.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from kraftjbod.broker.access import Access
from kraftjbod.broker.apis.topic_apis import TopicApis
from kraftjbod.broker.cluster.metadata_cache import MetadataCache, listener_of
from kraftjbod.broker.internal.internal_topics import InternalTopics
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.broker.security.authorized_operations import (
    ALL_OF_CLUSTER,
    ALL_OF_TOPIC,
    NOT_ASKED,
)
from kraftjbod.core.acl import CLUSTER_NAME, AclOperation, AclResourceType
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import NO_LEADER, ZERO_UUID, BrokerId, DirectoryId, TopicId
from kraftjbod.core.loop.work_slices import in_slices
from kraftjbod.core.text.topic_name import code_of_absence
from kraftjbod.metadata.registrations import PartitionRegistration, TopicRegistration
from kraftjbod.protocol.kafka_codec import encode_part, parts_of
from kraftjbod.protocol.messages import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
)

#: Before version 4 a client could not disable the creation of topics, so it is enabled.
_AUTO_CREATION_FLAG_SINCE: Final = 4
Topic = MetadataResponse.MetadataResponseTopic
_NULL_MEANS_ALL_SINCE: Final = 1
_FENCED_BROKERS_SINCE: Final = 2
_TOPIC_IDS_SINCE: Final = 12
#: Endpoint types of DescribeCluster (KIP-919).
_BROKERS: Final = 1
_CONTROLLERS: Final = 2

_FORBIDDEN: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class MetadataApis:
    def __init__(
        self,
        *,
        broker_id: BrokerId,
        cache: MetadataCache,
        topic_apis: TopicApis,
        internal_topics: InternalTopics,
        auto_create_topics: bool,
    ) -> None:
        self._broker_id = broker_id
        self._cache = cache
        self._topic_apis = topic_apis
        self._internal_topics = internal_topics
        self._auto_create_topics = auto_create_topics
        #: Encoded topics of metadata version ``_encoded_at``, by (version, listener, authorized
        #: operations, topic id).
        self._encoded: dict[tuple[int, str, int, TopicId], bytes] = {}
        self._encoded_at = -1

    # --- Metadata --------------------------------------------------------------------------------

    async def metadata(self, request: MetadataRequest, context: RequestContext) -> MetadataResponse:
        wanted = request.topics
        topics: list[Topic | bytes]
        wait_ms = 0
        operations = ALL_OF_TOPIC if request.include_topic_authorized_operations else NOT_ASKED
        if wanted is None or (not wanted and context.api_version < _NULL_MEANS_ALL_SINCE):
            everything = list(self._cache.state.topics.values())
            topics = [
                self._topic(topic, operations, context)
                async for topic in in_slices(everything)
                if _may_see(context.access, topic.name)
            ]
        else:
            may_create = self._auto_create_topics and (
                context.api_version < _AUTO_CREATION_FLAG_SINCE or request.allow_auto_topic_creation
            )
            if may_create:
                allowed = [t.name for t in wanted if _may_create(context.access, t.name)]
                wait_ms = await self._create_missing(allowed, context)
            # A topic that is named twice is answered once, which limits the response.
            named = {(topic.name, TopicId(topic.topic_id)): None for topic in wanted}
            topics = [
                self._requested_topic(name, topic_id, may_create, operations, context)
                async for name, topic_id in in_slices(named)
            ]
        return MetadataResponse(
            throttle_time_ms=wait_ms,
            brokers=self._brokers(context.listener_name),
            cluster_id=self._cache.cluster_id,
            controller_id=self._controller_id(),
            topics=parts_of(Topic, topics),
            cluster_authorized_operations=_of_cluster(request)
            if context.access is None or not request.include_cluster_authorized_operations
            else context.access.operations_on_cluster(),
        )

    async def _create_missing(self, names: list[str | None], context: RequestContext) -> int:
        """Create missing topics; return the ms that the client has to wait for its quota."""
        missing = [
            name
            for name in names
            if name
            and name not in self._cache.state.topic_ids
            and name not in self._internal_topics
        ]
        return await self._topic_apis.auto_create(missing, context) if missing else 0

    def _requested_topic(
        self,
        name: str | None,
        topic_id: TopicId,
        may_create: bool,
        operations: int,
        context: RequestContext,
    ) -> Topic | bytes:
        is_by_id = name is None or (not name and topic_id != ZERO_UUID)
        if is_by_id and context.api_version < _TOPIC_IDS_SINCE:
            # Two versions have the field but no response for it: Kafka refuses it as well.
            return self._absent(ErrorCode.INVALID_REQUEST, name or "", topic_id)
        if name is None or is_by_id:
            topic = self._cache.state.topics.get(topic_id)
            code = ErrorCode.UNKNOWN_TOPIC_ID
            name = None
            if topic is not None and not _may_describe(context.access, topic.name):
                return self._absent(_FORBIDDEN, None, topic_id)
        elif not _may_describe(context.access, name):
            return self._absent(_FORBIDDEN, name, ZERO_UUID)
        else:
            topic = self._cache.state.topic(name)
            topic_id = TopicId(ZERO_UUID)
            code = code_of_absence(name)
            if may_create and name and name not in self._internal_topics:
                code = self._topic_apis.creation_outcome(name)
                if topic is None and not _may_create(context.access, name):
                    code = _FORBIDDEN
        if topic is None:
            return self._absent(code, name, topic_id)
        return self._topic(topic, operations, context)

    def _absent(self, code: ErrorCode, name: str | None, topic_id: bytes) -> Topic:
        return Topic(error_code=code, name=name, topic_id=topic_id)

    def _topic(self, topic: TopicRegistration, operations: int, context: RequestContext) -> bytes:
        """Return the encoded metadata of a topic, from the cache if the metadata is unchanged."""
        if context.access is not None and operations != NOT_ASKED:
            operations = context.access.operations_on(AclResourceType.TOPIC, topic.name)
        if self._encoded_at != self._cache.version:
            self._encoded.clear()
            self._encoded_at = self._cache.version
        key = (context.api_version, context.listener_name, operations, topic.topic_id)
        encoded = self._encoded.get(key)
        if encoded is None:
            encoded = encode_part(
                context.api_version, self._describe_topic(topic, operations, context.listener_name)
            )
            self._encoded[key] = encoded
        return encoded

    def _describe_topic(
        self, topic: TopicRegistration, operations: int, listener_name: str
    ) -> Topic:
        return Topic(
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.name in self._internal_topics,
            partitions=[
                self._describe_partition(index, partition, listener_name)
                for index, partition in sorted(topic.partitions.items())
            ],
            topic_authorized_operations=operations,
        )

    def _describe_partition(
        self, index: int, partition: PartitionRegistration, listener_name: str
    ) -> MetadataResponse.MetadataResponsePartition:
        leader = self._cache.leader_for(partition, listener_name)
        return MetadataResponse.MetadataResponsePartition(
            error_code=ErrorCode.LEADER_NOT_AVAILABLE if leader == NO_LEADER else ErrorCode.NONE,
            partition_index=index,
            leader_id=leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=partition.replicas,
            isr_nodes=partition.isr,
            offline_replicas=self._cache.offline_replicas(partition, listener_name),
        )

    def _brokers(self, listener_name: str) -> list[MetadataResponse.MetadataResponseBroker]:
        """Return the live brokers that have the listener.

        If no broker is alive, return all registered ones: a client drops brokers that are missing,
        and could not recover from an empty list.
        """
        brokers = self._cache.alive_brokers() or self._cache.state.brokers.values()
        return [
            MetadataResponse.MetadataResponseBroker(
                node_id=broker.broker_id, host=listener.host, port=listener.port, rack=broker.rack
            )
            for broker in brokers
            if (listener := listener_of(broker, listener_name)) is not None
        ]

    def _controller_id(self) -> BrokerId:
        """Return the id of the broker that clients send admin requests to; -1 if none is alive.

        Any live broker works, so this broker names itself if it is alive.
        """
        alive = [broker.broker_id for broker in self._cache.alive_brokers()]
        if self._broker_id in alive:
            return self._broker_id
        return alive[0] if alive else NO_LEADER

    # --- DescribeCluster -------------------------------------------------------------------------

    async def describe_cluster(
        self, request: DescribeClusterRequest, context: RequestContext
    ) -> DescribeClusterResponse:
        if request.endpoint_type != _BROKERS:
            return _unsupported_endpoint_response(request.endpoint_type)
        log_dirs: dict[BrokerId, list[DescribeClusterResponse.DescribeClusterLogDir]] = {}
        if request.include_log_dirs:
            log_dirs = await self._log_dirs()
        fenced_too = context.api_version >= _FENCED_BROKERS_SINCE and request.include_fenced_brokers
        brokers = sorted(self._cache.state.brokers.items())
        return DescribeClusterResponse(
            endpoint_type=_BROKERS,
            cluster_id=self._cache.cluster_id,
            controller_id=self._controller_id(),
            cluster_authorized_operations=_of_cluster(request),
            brokers=[
                DescribeClusterResponse.DescribeClusterBroker(
                    broker_id=broker_id,
                    host=listener.host,
                    port=listener.port,
                    rack=broker.rack,
                    is_fenced=broker.fenced,
                    log_dirs=log_dirs.get(broker_id, []),
                )
                for broker_id, broker in brokers
                if (fenced_too or not broker.fenced)
                and (listener := listener_of(broker, context.listener_name)) is not None
            ],
        )

    async def _log_dirs(
        self,
    ) -> dict[BrokerId, list[DescribeClusterResponse.DescribeClusterLogDir]]:
        """Return the log directories of each registered broker, with their numbers of replicas."""
        held: Counter[tuple[BrokerId, DirectoryId]] = Counter()
        async for _, partition in in_slices(list(self._cache.state.partitions())):
            held.update(zip(partition.replicas, partition.directories, strict=True))
        return {
            broker_id: [
                DescribeClusterResponse.DescribeClusterLogDir(
                    directory_id=directory_id,
                    path=broker.log_dir_paths.get(directory_id, ""),
                    is_offline=directory_id in broker.offline_log_dirs,
                    is_cordoned=directory_id in broker.cordoned_log_dirs,
                    replicas=held[broker_id, directory_id],
                )
                for directory_id in broker.log_dirs + broker.offline_log_dirs
            ]
            for broker_id, broker in self._cache.state.brokers.items()
        }


def _may_see(access: Access | None, name: str) -> bool:
    """Return whether a list of all topics has the topic."""
    return access is None or access.may_see(AclOperation.DESCRIBE, AclResourceType.TOPIC, name)


def _may_describe(access: Access | None, name: str) -> bool:
    return access is None or access.may(AclOperation.DESCRIBE, AclResourceType.TOPIC, name)


def _may_create(access: Access | None, name: str | None) -> bool:
    """Return whether the client may see the topic, and create it automatically."""
    if access is None or not name:
        return True
    kind = AclResourceType.TOPIC
    return access.may_see(AclOperation.DESCRIBE, kind, name) and (
        access.may_see(AclOperation.CREATE, AclResourceType.CLUSTER, CLUSTER_NAME)
        or access.may_see(AclOperation.CREATE, kind, name)
    )


def _unsupported_endpoint_response(endpoint_type: int) -> DescribeClusterResponse:
    """Return the response to a DescribeCluster request for other endpoints than brokers, as in
    Kafka."""
    if endpoint_type == _CONTROLLERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="The request was sent to an endpoint of type BROKER, but we wanted an "
            "endpoint of type CONTROLLER",
        )
    return DescribeClusterResponse(
        error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
        error_message=f"Unsupported endpoint type {endpoint_type}",
    )


def _of_cluster(request: MetadataRequest | DescribeClusterRequest) -> int:
    return ALL_OF_CLUSTER if request.include_cluster_authorized_operations else NOT_ASKED
