"""LOOP. FindCoordinator: the coordinator of a group or of a transactional id.

The coordinator is the leader of the key's partition of an internal topic. The topic is created when
it is first needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.internal.coordinators import partition_of
from kraftjbod.broker.internal.internal_topic_creator import InternalTopicCreator
from kraftjbod.broker.internal.internal_topics import InternalTopic
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import NO_LEADER, TopicPartition
from kraftjbod.core.loop.work_slices import in_slices
from kraftjbod.core.telemetry import get_logger
from kraftjbod.metadata.records import Listener
from kraftjbod.protocol.messages import FindCoordinatorRequest, FindCoordinatorResponse

_KEYS_SINCE: Final = 4
_OF_GROUPS: Final = 0
_OF_TRANSACTIONS: Final = 1
Coordinator = FindCoordinatorResponse.Coordinator


class CoordinatorApis:
    def __init__(
        self,
        *,
        cache: MetadataCache,
        creator: InternalTopicCreator,
        of_groups: InternalTopic,
        of_transactions: InternalTopic,
    ) -> None:
        self._cache = cache
        self._creator = creator
        self._topics: Mapping[int, InternalTopic] = {
            _OF_GROUPS: of_groups,
            _OF_TRANSACTIONS: of_transactions,
        }
        #: The last logged error of the creation, by topic.
        self._trouble: dict[str, str] = {}
        self._log = get_logger(component="coordinator_apis")

    async def find_coordinator(
        self, request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse:
        has_keys = context.api_version >= _KEYS_SINCE
        keys = list(request.coordinator_keys) if has_keys else [request.key]
        topic = self._topics.get(request.key_type)
        if topic is None:
            # Share groups are not supported.
            why = "only groups and transactions have coordinators here"
            found = [_not_found(key, ErrorCode.INVALID_REQUEST, why) for key in keys]
        else:
            if self._cache.state.topic(topic.name) is None:
                await self._make(topic)
            found = [self._find(topic.name, key, context) async for key in in_slices(keys)]
        if has_keys:
            for one in found:
                one.error_message = None if not one.error_code else one.error_message
            return FindCoordinatorResponse(coordinators=found)
        (one,) = found
        return FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )

    def _find(self, topic_name: str, key: str, context: RequestContext) -> Coordinator:
        index = partition_of(self._cache.state, topic_name, key)
        why = f"{topic_name} is not there yet"
        if index is not None:
            topic_partition = TopicPartition(topic_name, index)
            endpoint, node_id = self._leader(topic_partition, context.listener_name)
            if endpoint is not None:
                return Coordinator(key=key, node_id=node_id, host=endpoint.host, port=endpoint.port)
            why = f"{topic_partition} has no leader that can be reached"
        return _not_found(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, why)

    def _leader(
        self, topic_partition: TopicPartition, listener_name: str
    ) -> tuple[Listener | None, int]:
        partition = self._cache.state.partition_named(topic_partition)
        leader = NO_LEADER if partition is None else partition.leader
        return self._cache.endpoint(leader, listener_name), leader

    async def _make(self, topic: InternalTopic) -> None:
        """Request the creation of the topic. A failure is logged once and not raised: the client
        retries."""
        try:
            await self._creator.ensure(topic)
        except OperatingError as e:
            if e.message != self._trouble.get(topic.name):
                self._trouble[topic.name] = e.message
                self._log_creation_failure(topic, e.message)
        else:
            self._trouble.pop(topic.name, None)

    def _log_creation_failure(self, topic: InternalTopic, reason: str) -> None:
        if topic is self._topics[_OF_GROUPS]:
            self._log.warning(
                "offsets_topic_not_created",
                reason=reason,
                replication_factor=topic.replication_factor,
                do="start more brokers, or set offsets.topic.replication.factor lower",
            )
        else:
            self._log.warning(
                "transactions_topic_not_created",
                reason=reason,
                replication_factor=topic.replication_factor,
                do="start more brokers, or set transaction.state.log.replication.factor lower",
            )


def _not_found(key: str, code: ErrorCode, why: str) -> Coordinator:
    return Coordinator(
        key=key, node_id=NO_LEADER, host="", port=-1, error_code=code, error_message=why
    )
