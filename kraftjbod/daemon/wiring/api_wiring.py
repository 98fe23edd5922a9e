"""WIRE. Build the parts of ``broker/apis`` and ``broker/telemetry``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kraftjbod.broker.apis.admin.acl_apis import AclApis
from kraftjbod.broker.apis.admin.config_resource_apis import ConfigResourceApis
from kraftjbod.broker.apis.admin.election_apis import ElectionApis
from kraftjbod.broker.apis.admin.quota_apis import QuotaApis
from kraftjbod.broker.apis.admin.scram_apis import ScramApis
from kraftjbod.broker.apis.config_apis import CheckListeners, ConfigApis
from kraftjbod.broker.apis.feature_apis import FeatureApis
from kraftjbod.broker.apis.follower_fetches import FollowerFetches
from kraftjbod.broker.apis.kafka_apis import KafkaApis
from kraftjbod.broker.apis.log_dir_admin_apis import LogDirAdminApis
from kraftjbod.broker.apis.log_dir_apis import LogDirApis
from kraftjbod.broker.apis.metadata_apis import MetadataApis
from kraftjbod.broker.apis.offset_apis import OffsetApis
from kraftjbod.broker.apis.produce_fetch_apis import ProduceFetchApis
from kraftjbod.broker.apis.quorum_apis import QuorumApis
from kraftjbod.broker.apis.reassignment_apis import ReassignmentApis
from kraftjbod.broker.apis.record_deletion_apis import RecordDeletionApis
from kraftjbod.broker.apis.topic_apis import TopicApis
from kraftjbod.broker.apis.topic_partitions_apis import TopicPartitionsApis
from kraftjbod.broker.groups.records.group_records import OFFSETS_TOPIC
from kraftjbod.broker.internal.coordinator_apis import CoordinatorApis
from kraftjbod.broker.internal.internal_topics import InternalTopic
from kraftjbod.broker.partitions.consumer_sessions import (
    ConsumerSessionLimits,
    ConsumerSessions,
)
from kraftjbod.broker.partitions.fetch_sessions import FetchSessions, SessionLimits
from kraftjbod.broker.replicas.replica_reads import ReplicaReads
from kraftjbod.broker.security.request_guard import RequestGuard
from kraftjbod.broker.security.sasl_apis import SaslApis
from kraftjbod.broker.telemetry.group_telemetry_gatherer import GroupOffset, GroupTelemetryGatherer
from kraftjbod.broker.telemetry.log_ends import LogEnds
from kraftjbod.broker.telemetry.sample_emitter import Gatherer, SampleEmitter
from kraftjbod.broker.telemetry.storage_telemetry_gatherer import StorageTelemetryGatherer, Subject
from kraftjbod.broker.transactions.transaction_log_apis import TransactionLogApis
from kraftjbod.core.config import BrokerConfig
from kraftjbod.daemon.process.audit_trail import AuditTrail
from kraftjbod.daemon.process.environment import Environment
from kraftjbod.daemon.wiring.authorizer_wiring import access_maker
from kraftjbod.daemon.wiring.broker_disks import BrokerDisks
from kraftjbod.daemon.wiring.cluster_wiring import ClusterWiring
from kraftjbod.daemon.wiring.directory_wiring import DirectoryWiring
from kraftjbod.daemon.wiring.group_wiring import GroupWiring
from kraftjbod.daemon.wiring.internal_wiring import InternalWiring
from kraftjbod.daemon.wiring.replica_wiring import ReplicaWiring
from kraftjbod.daemon.wiring.transaction_wiring import TransactionWiring
from kraftjbod.net.cluster_peers import ClusterPeers
from kraftjbod.net.connection_context import ConnectionContext
from kraftjbod.net.memory_budget import Ledger

T = TypeVar("T")


class ApiWiring:
    """Builds the request handlers and the emitters of telemetry.

    ``answers`` limits the bytes of the responses that all listeners hold together.
    """

    def __init__(
        self,
        config: BrokerConfig,
        environment: Environment,
        disks: BrokerDisks,
        cluster: ClusterWiring,
        replicas: ReplicaWiring,
        directories: DirectoryWiring,
        internal: InternalWiring,
        groups: GroupWiring,
        transactions: TransactionWiring,
        answers: Ledger,
        peers: ClusterPeers,
        check_listeners: CheckListeners,
    ) -> None:
        self._config = config
        self._environment = environment
        self._disks = disks
        self._cluster = cluster
        self._replicas = replicas
        self._directories = directories
        self._internal = internal
        self._groups = groups
        self._transactions = transactions
        self._answers = answers
        self._peers = peers
        self._check_listeners = check_listeners
        self.audit = self._build_audit()
        self.kafka = self._build_apis()
        self.telemetry = self._build_telemetry()
        self.group_telemetry = self._build_group_telemetry()

    def _build_apis(self) -> KafkaApis:
        config, environment, disks = self._config, self._environment, self._disks
        cluster, replicas, directories = self._cluster, self._replicas, self._directories
        reads = ReplicaReads(
            replicas=replicas.hosted,
            clock=environment.clock,
            follower_caught_up=replicas.isr.follower_caught_up,
            damage_met=replicas.damaged.met,
            may_be_deposed=lambda: cluster.lifecycle.may_be_deposed,
            lets_followers_serve=config.replica_selector_class is not None,
        )
        configs = self._build_configs()
        topics = self._build_topics(configs)
        return KafkaApis(
            produce_fetch=self._build_produce_fetch(reads),
            offsets=OffsetApis(reads=reads, suspect_after_ms=config.log_dir_io_suspect_ms),
            record_deletion=RecordDeletionApis(
                replicas=replicas.hosted, closed_topics=self._internal.internal_topics.closed
            ),
            metadata=MetadataApis(
                broker_id=config.node_id,
                cache=cluster.cache,
                topic_apis=topics,
                internal_topics=self._internal.internal_topics,
                auto_create_topics=config.auto_create_topics_enable,
            ),
            topic_partitions=TopicPartitionsApis(
                cache=cluster.cache,
                internal_topics=self._internal.internal_topics,
                max_partitions=config.max_request_partition_size_limit,
            ),
            topics=topics,
            configs=configs,
            config_resources=ConfigResourceApis(cache=cluster.cache),
            elections=self._build_elections(),
            log_dir_admin=LogDirAdminApis(
                admin=directories.admin, allowed_roots=config.allowed_roots
            ),
            reassignments=ReassignmentApis(channel=cluster.channel),
            features=FeatureApis(channel=cluster.channel),
            quorum=self._build_quorum(),
            sasl=SaslApis(),
            acls=self._build_acls(),
            scram=self._build_scram(),
            quotas=self._build_quotas(),
            groups=self._groups.members,
            committed_offsets=self._groups.offsets,
            group_admin=self._groups.group_admin,
            consumer_groups=self._groups.consumer_groups,
            transactional_offsets=self._groups.transactional_offsets,
            coordinators=self._build_coordinators(),
            transactions=self._transactions.transactions,
            transaction_admin=self._transactions.transaction_admin,
            transaction_log=self._build_transaction_log(),
            guard=self._build_guard(),
            client_rates=self._cluster.client_rates,
            log_dirs=LogDirApis(
                broker_id=config.node_id,
                logs=disks.logs,
                replicas=replicas.hosted,
                replica_manager=replicas.manager,
                moves=replicas.moves,
                assignments=cluster.assignments,
                monitor=directories.monitor,
                scrubs=directories.scrubs,
            ),
        )

    def _build_configs(self) -> ConfigApis:
        logs = self._disks.logs
        return ConfigApis(
            config=self._config,
            cache=self._cluster.cache,
            topic_configs=self._cluster.topic_configs,
            group_configs=self._cluster.group_configs,
            dynamic_configs=self._cluster.dynamic_configs,
            channel=self._cluster.channel,
            own_dirs=lambda: [log_dir.path for log_dir in logs.dirs()],
            check_listeners=self._check_listeners,
        )

    def _build_elections(self) -> ElectionApis:
        return ElectionApis(
            channel=self._cluster.channel,
            cache=self._cluster.cache,
            unregister_timeout_ms=self._config.controller_request_timeout_ms,
        )

    def _build_quorum(self) -> QuorumApis:
        return QuorumApis(
            cluster_id=self._disks.cluster_id,
            channel=self._cluster.channel,
            cache=self._cluster.cache,
            timeout_ms=self._config.controller_request_timeout_ms,
        )

    def _build_transaction_log(self) -> TransactionLogApis:
        return TransactionLogApis(
            replicas=self._replicas.hosted,
            appends=self._replicas.appends,
            suspect_after_ms=self._config.log_dir_io_suspect_ms,
            timeout_ms=self._config.request_timeout_ms,
            listeners={OFFSETS_TOPIC: self._groups.coordinator.transaction_ended},
        )

    def _build_topics(self, configs: ConfigApis) -> TopicApis:
        config = self._config
        return TopicApis(
            channel=self._cluster.channel,
            auto_create_timeout_ms=config.controller_request_timeout_ms,
            random_bytes=self._environment.random_bytes,
            describe_configs=configs.configs_of_new_topic,
            default_partitions=config.num_partitions,
            default_replication_factor=config.default_replication_factor,
            may_delete_topics=config.delete_topic_enable,
        )

    def _build_produce_fetch(self, reads: ReplicaReads) -> ProduceFetchApis:
        config, environment, cluster, replicas = (
            self._config,
            self._environment,
            self._cluster,
            self._replicas,
        )
        followers = FetchSessions(
            clock=environment.clock,
            random_bytes=environment.random_bytes,
            limits=SessionLimits(
                max_sessions=config.max_incremental_fetch_session_cache_slots,
                max_per_follower=config.max_fetch_sessions_per_follower,
            ),
        )
        return ProduceFetchApis(
            broker_id=config.node_id,
            cache=cluster.cache,
            replicas=replicas.hosted,
            appends=replicas.appends,
            reads=reads,
            followers=FollowerFetches(
                sessions=followers,
                replicas=replicas.hosted,
                reads=reads,
                cache=cluster.cache,
                clock=environment.clock,
                max_fetch_bytes=config.fetch_max_bytes,
                suspect_after_ms=config.log_dir_io_suspect_ms,
                quota=replicas.quotas.leader,
            ),
            random_bytes=environment.random_bytes,
            sessions=ConsumerSessions(
                clock=environment.clock,
                random_bytes=environment.random_bytes,
                followers=followers,
                metrics=environment.metrics,
                limits=ConsumerSessionLimits(
                    max_sessions=config.max_incremental_fetch_session_cache_slots,
                    max_partitions=config.max_fetch_session_partitions,
                ),
            ),
            clock=environment.clock,
            metrics=environment.metrics,
            max_fetch_bytes=config.fetch_max_bytes,
            suspect_after_ms=config.log_dir_io_suspect_ms,
            answers=self._answers,
            closed_topics=self._internal.internal_topics.closed,
            member_topics=self._internal.internal_topics.written_by_members,
            is_member=self._is_member,
            selects_nearest=config.replica_selector_class is not None,
        )

    def _is_member(self, connection: ConnectionContext) -> bool:
        """Return whether the connection is a broker's or controller's."""
        principals = self._config.node_principals_of(connection.listener_name)
        is_node = principals is None or principals.node_of(connection.principal) is not None
        return is_node and self._peers.allows(connection.peer_host)

    def _build_scram(self) -> ScramApis:
        return ScramApis(
            cache=self._cluster.cache,
            channel=self._cluster.channel,
            timeout_ms=self._config.request_timeout_ms,
        )

    def _build_coordinators(self) -> CoordinatorApis:
        return CoordinatorApis(
            cache=self._cluster.cache,
            creator=self._internal.topic_creator,
            of_groups=self._internal.consumer_offsets,
            of_transactions=self._internal.transaction_state,
        )

    def _build_quotas(self) -> QuotaApis:
        return QuotaApis(
            cache=self._cluster.cache,
            channel=self._cluster.channel,
            timeout_ms=self._config.request_timeout_ms,
        )

    def _build_acls(self) -> AclApis:
        return AclApis(
            cache=self._cluster.cache,
            channel=self._cluster.channel,
            is_enabled=self._cluster.authorizer is not None,
            timeout_ms=self._config.request_timeout_ms,
        )

    def _build_audit(self) -> AuditTrail:
        config, metrics = self._config, self._environment.metrics
        audit = AuditTrail(
            config.audit_log_path,
            max_bytes=config.audit_log_max_bytes,
            max_files=config.audit_log_max_files,
            wall_ms=self._environment.clock.wall_ms,
        )
        metrics.gauge("AuditDroppedTotal", lambda: audit.dropped_total)
        return audit

    def _build_guard(self) -> RequestGuard | None:
        authorizer = self._cluster.authorizer
        if authorizer is None:
            return None
        make_access = access_maker(
            self._config, authorizer, is_member=self._is_member, record=self.audit.record
        )
        return RequestGuard(cache=self._cluster.cache, make_access=make_access)

    def _build_telemetry(self) -> SampleEmitter[Subject]:
        config, metrics = self._config, self._environment.metrics
        metrics.count("StorageTelemetrySentTotal", 0)
        metrics.count("StorageTelemetryDroppedTotal", 0)
        return self._emitter(
            StorageTelemetryGatherer(
                logs=self._disks.logs,
                replicas=self._replicas.hosted,
                moves=self._replicas.moves,
                assignments=self._cluster.assignments,
                monitor=self._directories.monitor,
            ),
            self._internal.storage_telemetry,
            count_sent=lambda by: metrics.count("StorageTelemetrySentTotal", by),
            count_dropped=lambda by: metrics.count("StorageTelemetryDroppedTotal", by),
            interval_ms=config.storage_telemetry_log_dir_interval_ms,
            whole_interval_ms=config.storage_telemetry_replica_interval_ms,
        )

    def _build_group_telemetry(self) -> SampleEmitter[GroupOffset]:
        config, metrics, cluster = self._config, self._environment.metrics, self._cluster
        metrics.count("GroupTelemetrySentTotal", 0)
        metrics.count("GroupTelemetryDroppedTotal", 0)
        return self._emitter(
            GroupTelemetryGatherer(
                coordinator=self._groups.coordinator,
                cache=cluster.cache,
                ends=LogEnds(
                    broker_id=config.node_id,
                    cache=cluster.cache,
                    replicas=self._replicas.hosted,
                    connector=cluster.connector,
                ),
                max_samples=config.group_telemetry_max_samples,
            ),
            self._internal.group_telemetry,
            count_sent=lambda by: metrics.count("GroupTelemetrySentTotal", by),
            count_dropped=lambda by: metrics.count("GroupTelemetryDroppedTotal", by),
            interval_ms=config.group_telemetry_interval_ms,
            whole_interval_ms=config.group_telemetry_interval_ms,
        )

    def _emitter(
        self,
        gatherer: Gatherer[T],
        topic: InternalTopic,
        *,
        count_sent: Callable[[int], None],
        count_dropped: Callable[[int], None],
        interval_ms: int,
        whole_interval_ms: int,
    ) -> SampleEmitter[T]:
        cluster = self._cluster
        return SampleEmitter(
            broker_id=self._config.node_id,
            rack=self._config.broker_rack,
            incarnation=cluster.identity.incarnation_id,
            cache=cluster.cache,
            gatherer=gatherer,
            topic=topic,
            creator=self._internal.topic_creator,
            producer=self._internal.producer(topic.name.strip("_").replace("_", "-")),
            clock=self._environment.clock,
            count_sent=count_sent,
            count_dropped=count_dropped,
            interval_ms=interval_ms,
            whole_interval_ms=whole_interval_ms,
        )
