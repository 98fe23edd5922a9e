"""WIRE. Build the parts of ``broker/internal``: the internal topics."""

from __future__ import annotations

from typing import Final

from kraftjbod.broker.groups.records.group_records import consumer_offsets_topic
from kraftjbod.broker.internal.internal_producer import InternalProducer
from kraftjbod.broker.internal.internal_reader import InternalReader
from kraftjbod.broker.internal.internal_topic_creator import InternalTopicCreator
from kraftjbod.broker.internal.internal_topics import InternalTopics
from kraftjbod.broker.telemetry.telemetry_topics import (
    TelemetryBounds,
    group_telemetry_topic,
    storage_telemetry_topic,
)
from kraftjbod.broker.transactions.transaction_records import transaction_state_topic
from kraftjbod.core.config import BrokerConfig
from kraftjbod.daemon.process.environment import Environment
from kraftjbod.daemon.wiring.cluster_wiring import ClusterWiring, backoff
from kraftjbod.daemon.wiring.replica_wiring import ReplicaWiring

_BACKOFF_MAX_MS: Final = 2_000


class InternalWiring:
    """The internal topics, their creator, and this broker's producers and readers of them."""

    def __init__(
        self,
        config: BrokerConfig,
        environment: Environment,
        cluster: ClusterWiring,
        replicas: ReplicaWiring,
    ) -> None:
        self._config = config
        self._environment = environment
        self._cluster = cluster
        self._replicas = replicas
        self.storage_telemetry = storage_telemetry_topic(
            TelemetryBounds(
                partitions=config.storage_telemetry_topic_partitions,
                replication_factor=config.storage_telemetry_topic_replication_factor,
                retention_ms=config.storage_telemetry_topic_retention_ms,
                retention_bytes=config.storage_telemetry_topic_retention_bytes,
            )
        )
        self.group_telemetry = group_telemetry_topic(
            TelemetryBounds(
                partitions=config.group_telemetry_topic_partitions,
                replication_factor=config.group_telemetry_topic_replication_factor,
                retention_ms=config.group_telemetry_topic_retention_ms,
                retention_bytes=config.group_telemetry_topic_retention_bytes,
            )
        )
        self.consumer_offsets = consumer_offsets_topic(
            partitions=config.offsets_topic_num_partitions,
            replication_factor=config.offsets_topic_replication_factor,
            segment_bytes=config.offsets_topic_segment_bytes,
        )
        self.transaction_state = transaction_state_topic(
            partitions=config.transaction_state_log_num_partitions,
            replication_factor=config.transaction_state_log_replication_factor,
            min_isr=config.transaction_state_log_min_isr,
            segment_bytes=config.transaction_state_log_segment_bytes,
        )
        self.internal_topics = InternalTopics(
            [
                self.storage_telemetry,
                self.group_telemetry,
                self.consumer_offsets,
                self.transaction_state,
            ]
        )
        self.topic_creator = InternalTopicCreator(
            cache=cluster.cache,
            channel=cluster.channel,
            request_timeout_ms=config.controller_request_timeout_ms,
        )

    def reader(self, slice_bytes: int) -> InternalReader:
        """Create a reader for a coordinator, which loads partitions that this broker leads.

        :param slice_bytes: size of one read, unless a batch is larger.
        """
        return InternalReader(
            replicas=self._replicas.hosted,
            damage_met=self._replicas.damaged.met,
            backoff=backoff(self._environment, _BACKOFF_MAX_MS),
            slice_bytes=slice_bytes,
        )

    def producer(self, purpose: str) -> InternalProducer:
        """Create a producer to internal topics. Writers must not share a producer.

        :param purpose: part of the client id of its connections.
        """
        return InternalProducer(
            broker_id=self._config.node_id,
            cache=self._cluster.cache,
            appends=self._replicas.appends,
            connector=self._cluster.connector,
            clock=self._environment.clock,
            backoff=backoff(self._environment, _BACKOFF_MAX_MS),
            suspect_after_ms=self._config.log_dir_io_suspect_ms,
            purpose=purpose,
        )
