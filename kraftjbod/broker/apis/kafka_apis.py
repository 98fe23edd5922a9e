"""LOOP. ``KafkaApis``: one handler per API, found by its key.

Handlers answer every expected error themselves, in the response's own fields.
What flies on from here is a bug: the door tells, and closes that connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from kraftjbod.broker.apis.config_apis import ConfigApis
from kraftjbod.broker.apis.feature_apis import FeatureApis
from kraftjbod.broker.apis.log_dir_admin_apis import LogDirAdminApis
from kraftjbod.broker.apis.log_dir_apis import LogDirApis
from kraftjbod.broker.apis.metadata_apis import MetadataApis
from kraftjbod.broker.apis.offset_apis import OffsetApis
from kraftjbod.broker.apis.produce_fetch_apis import ProduceFetchApis
from kraftjbod.broker.apis.reassignment_apis import ReassignmentApis
from kraftjbod.broker.apis.record_deletion_apis import RecordDeletionApis
from kraftjbod.broker.apis.topic_apis import TopicApis
from kraftjbod.broker.apis.topic_partitions_apis import TopicPartitionsApis
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.protocol.kafka_codec import ApiKey, Message, RequestHeader

_ApiHandler = Callable[[Any, RequestContext], Awaitable[Message | None]]


class KafkaApis:
    def __init__(
        self,
        *,
        produce_fetch: ProduceFetchApis,
        offsets: OffsetApis,
        record_deletion: RecordDeletionApis,
        metadata: MetadataApis,
        topic_partitions: TopicPartitionsApis,
        topics: TopicApis,
        configs: ConfigApis,
        log_dirs: LogDirApis,
        log_dir_admin: LogDirAdminApis,
        reassignments: ReassignmentApis,
        features: FeatureApis,
    ) -> None:
        self._produce_fetch = produce_fetch
        self._handlers: Mapping[int, _ApiHandler] = {
            ApiKey.PRODUCE: produce_fetch.produce,
            ApiKey.FETCH: produce_fetch.fetch,
            ApiKey.LIST_OFFSETS: offsets.list_offsets,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: offsets.offset_for_leader_epoch,
            ApiKey.DELETE_RECORDS: record_deletion.delete_records,
            ApiKey.METADATA: metadata.metadata,
            ApiKey.DESCRIBE_CLUSTER: metadata.describe_cluster,
            ApiKey.DESCRIBE_TOPIC_PARTITIONS: topic_partitions.describe_topic_partitions,
            ApiKey.CREATE_TOPICS: topics.create_topics,
            ApiKey.DELETE_TOPICS: topics.delete_topics,
            ApiKey.CREATE_PARTITIONS: topics.create_partitions,
            ApiKey.INIT_PRODUCER_ID: topics.init_producer_id,
            ApiKey.DESCRIBE_CONFIGS: configs.describe_configs,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.incremental_alter_configs,
            ApiKey.DESCRIBE_LOG_DIRS: log_dirs.describe_log_dirs,
            ApiKey.ALTER_REPLICA_LOG_DIRS: log_dirs.alter_replica_log_dirs,
            ApiKey.ALTER_LOG_DIRS: log_dir_admin.alter_log_dirs,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS: reassignments.alter_partition_reassignments,
            ApiKey.LIST_PARTITION_REASSIGNMENTS: reassignments.list_partition_reassignments,
            ApiKey.UPDATE_FEATURES: features.update_features,
        }

    def is_of_broker(self, header: RequestHeader, body: Message) -> bool:
        """Whether the request is the fetch of a follower that metadata knows."""
        return header.api_key == ApiKey.FETCH and self._produce_fetch.is_of_follower(
            body, header.api_version
        )

    def handle(
        self, listener_name: str, header: RequestHeader, body: Message
    ) -> Awaitable[Message | None]:
        """Answer one request; None if no response is due."""
        context = RequestContext(
            listener_name=listener_name,
            api_version=header.api_version,
            client_id=header.client_id,
        )
        return self._handlers[header.api_key](body, context)
