"""WIRE. The parts of a broker, built and connected; nothing runs yet when they are built.

Each part gets the few values of the configuration that it needs, here and nowhere else.
The order is that of the house: what stands above knows nothing of what stands below.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kraftjbod.broker.apis.config_apis import ConfigApis
from kraftjbod.broker.apis.feature_apis import FeatureApis
from kraftjbod.broker.apis.follower_fetches import FollowerFetches
from kraftjbod.broker.apis.kafka_apis import KafkaApis
from kraftjbod.broker.apis.log_dir_admin_apis import LogDirAdminApis
from kraftjbod.broker.apis.log_dir_apis import LogDirApis
from kraftjbod.broker.apis.metadata_apis import MetadataApis
from kraftjbod.broker.apis.offset_apis import OffsetApis
from kraftjbod.broker.apis.produce_fetch_apis import ProduceFetchApis
from kraftjbod.broker.apis.reassignment_apis import ReassignmentApis
from kraftjbod.broker.apis.record_deletion_apis import RecordDeletionApis
from kraftjbod.broker.apis.topic_apis import TopicApis
from kraftjbod.broker.apis.topic_partitions_apis import TopicPartitionsApis
from kraftjbod.broker.background import BackgroundTasks
from kraftjbod.broker.cluster.assignments_manager import AssignmentsManager
from kraftjbod.broker.cluster.controller_channel import ControllerChannel
from kraftjbod.broker.cluster.dynamic_configs import DynamicConfigs
from kraftjbod.broker.cluster.lifecycle_manager import BrokerLifecycleManager
from kraftjbod.broker.cluster.lifecycle_state import BrokerIdentity, LifecycleTimes
from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.cluster.metadata_memory import MetadataMemory
from kraftjbod.broker.cluster.producer_ids import ProducerIdManager
from kraftjbod.broker.cluster.topic_configs import TopicConfigs
from kraftjbod.broker.directories.cordon_lift import CordonLift
from kraftjbod.broker.directories.log_dir_admin import LogDirAdmin
from kraftjbod.broker.directories.log_dir_cordons import LogDirCordons
from kraftjbod.broker.directories.log_dir_metrics import LogDirMetrics
from kraftjbod.broker.directories.log_dir_monitor import LogDirMonitor
from kraftjbod.broker.directories.log_dir_state_handler import LogDirStateHandler
from kraftjbod.broker.directories.scrubs import Scrubs
from kraftjbod.broker.directories.stray_retention import StrayRetention
from kraftjbod.broker.following.follower_session import FetchLimits
from kraftjbod.broker.following.replica_fetcher import ReplicaFetcher
from kraftjbod.broker.following.replica_fetcher_manager import ReplicaFetcherManager
from kraftjbod.broker.following.replication_quotas import ReplicationQuotas
from kraftjbod.broker.following.saturated_followers import SaturatedFollowers
from kraftjbod.broker.metadata.metadata_loader import MetadataLoader
from kraftjbod.broker.metadata.metadata_publisher import BrokerMetadataPublisher
from kraftjbod.broker.moves.alter_log_dirs_manager import ReplicaAlterLogDirsManager
from kraftjbod.broker.partitions.delayed_operations import FetchPurgatory, OffsetPurgatory
from kraftjbod.broker.partitions.fetch_sessions import FetchSessions, SessionLimits
from kraftjbod.broker.replicas.damaged_replicas import DamagedReplicas
from kraftjbod.broker.replicas.hosted_replicas import HostedReplicas
from kraftjbod.broker.replicas.isr_manager import IsrManager
from kraftjbod.broker.replicas.leftover_copies import LeftoverCopies
from kraftjbod.broker.replicas.replica_appends import ReplicaAppends
from kraftjbod.broker.replicas.replica_manager import ReplicaManager
from kraftjbod.broker.replicas.replica_reads import ReplicaReads
from kraftjbod.broker.replicas.replica_removals import ReplicaRemovals
from kraftjbod.broker.telemetry.log_cleaner_metrics import register_cleaner_figures
from kraftjbod.broker.telemetry.storage_telemetry_emitter import StorageTelemetryEmitter
from kraftjbod.broker.telemetry.storage_telemetry_gatherer import StorageTelemetryGatherer
from kraftjbod.broker.telemetry.storage_telemetry_sender import StorageTelemetrySender
from kraftjbod.broker.telemetry.storage_telemetry_topic import TelemetryTopicSettings
from kraftjbod.core.config import BrokerConfig
from kraftjbod.core.ids import BrokerId, DirectoryId, TopicIdPartition, Uuid
from kraftjbod.core.loop.job_guard import JobGuard
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.core.metadata_version import SUPPORTED_FEATURES
from kraftjbod.core.node_config import Endpoint
from kraftjbod.daemon.broker_disks import BrokerDisks
from kraftjbod.daemon.runner import Environment
from kraftjbod.metadata.records import Listener
from kraftjbod.net.memory_budget import Ledger, MemoryBudget, MemoryLimits
from kraftjbod.protocol.rpc_messages import ListenerInfo
from kraftjbod.storage.dirs.slow_dirs import SlowDirs
from kraftjbod.storage.identity.dir_attacher import DirAttacher
from kraftjbod.storage.moves.mover_pool import MoverPool
from kraftjbod.storage.replicas.asked_moves import AskedMove, AskedMoves

#: First pause after a failure; it doubles from there.
_FIRST_BACKOFF_MS: Final = 20
_CONTROLLER_BACKOFF_MAX_MS: Final = 500
_TELEMETRY_BACKOFF_MAX_MS: Final = 2_000


class BrokerParts:
    """Everything between the disks and the doors; the server starts and stops it.

    ``tasks`` is where the fetch loops run; ``advertised`` is what clients are told.
    """

    def __init__(
        self,
        config: BrokerConfig,
        around: Environment,
        disks: BrokerDisks,
        advertised: Sequence[Endpoint],
        tasks: BackgroundTasks,
        *,
        answers: Ledger | None = None,
    ) -> None:
        """:param answers: what the doors may hold of them together."""
        self._config = config
        self._around = around
        self._answers = answers or MemoryBudget(MemoryLimits()).answers
        self._disks = disks
        self.cache = MetadataCache(cluster_id=disks.cluster_id)
        self.topic_configs = TopicConfigs(defaults=config.topic_defaults(), cache=self.cache)
        self.dynamic_configs = DynamicConfigs(config=config, cache=self.cache)
        self.quotas = ReplicationQuotas(
            broker_id=config.node_id,
            topic_config=self.topic_configs.get,
            now_ms=around.clock.now_ms(),
        )
        self.dynamic_configs.subscribe(
            lambda dynamic: self.quotas.set_rates(dynamic, around.clock.now_ms())
        )
        self._join_the_cluster(advertised)
        self.cordons = LogDirCordons(
            logs=disks.logs, lifecycle=self.lifecycle, metrics=around.metrics
        )
        self.dynamic_configs.subscribe(self.cordons.take)
        self._host_replicas()
        self._follow_leaders_and_metadata(tasks)
        self._watch_the_disks()
        self.log_dir_admin = self._build_log_dir_admin(tasks.jobs)
        around.metrics.gauge("BackgroundJobFailures", lambda: tasks.jobs.failures)
        self.appends = ReplicaAppends(
            replicas=self.hosted,
            topic_configs=self.topic_configs,
            clock=around.clock,
            metrics=around.metrics,
            max_unpacked_bytes=config.message_max_unpacked_bytes,
            max_records=config.message_max_records,
            max_checking_bytes=config.message_checking_max_bytes,
        )
        self.apis = self._build_apis()
        self.telemetry = self._build_telemetry()

    def _backoff(self, max_ms: int) -> ExponentialBackoff:
        return ExponentialBackoff(
            initial_ms=_FIRST_BACKOFF_MS, max_ms=max_ms, random_unit=self._around.rng.random
        )

    def _join_the_cluster(self, advertised: Sequence[Endpoint]) -> None:
        config, around = self._config, self._around
        self.channel = ControllerChannel(
            voters=config.controller_quorum_voters,
            clock=around.clock,
            random_unit=around.rng.random,
            level=lambda: self.cache.state.metadata_version,
            request_timeout_ms=config.controller_request_timeout_ms,
        )
        self.memory = MetadataMemory(metadata_dir=self._disks.metadata_dir)
        online_dirs = self._disks.logs.online_dirs()
        self.identity = _identity(config, around, self._disks, advertised)
        self.lifecycle = BrokerLifecycleManager(
            identity=self.identity,
            online_dirs=[log_dir.directory_id for log_dir in online_dirs],
            channel=self.channel,
            clock=around.clock,
            random_unit=around.rng.random,
            times=LifecycleTimes(
                heartbeat_interval_ms=config.broker_heartbeat_interval_ms,
                registration_timeout_ms=config.initial_broker_registration_timeout_ms,
                dir_failure_timeout_ms=config.log_dir_failure_timeout_ms,
            ),
            request_timeout_ms=config.controller_request_timeout_ms,
            cordoned_dirs=[d.directory_id for d in online_dirs if d.is_cordoned],
            impaired_dirs={d.directory_id: d.state for d in online_dirs if d.is_impaired},
            clean_shutdowns={d.directory_id: d.clean_shutdown for d in online_dirs},
            memory=self.memory,
        )
        self.assignments = AssignmentsManager(
            broker_id=config.node_id,
            broker_epoch=lambda: self.lifecycle.broker_epoch,
            is_replica=self._is_replica,
            channel=self.channel,
            clock=around.clock,
            random_unit=around.rng.random,
            metrics=around.metrics,
            request_timeout_ms=config.controller_request_timeout_ms,
        )

    def _host_replicas(self) -> None:
        config, around = self._config, self._around
        self.hosted = HostedReplicas(
            cache=self.cache,
            produces=OffsetPurgatory(kind="produces", clock=around.clock),
            deletions=OffsetPurgatory(kind="deletions", clock=around.clock, max_waiting=10_000),
            consumer_fetches=FetchPurgatory(),
            metrics=around.metrics,
        )
        self.leftovers = LeftoverCopies(
            broker_id=config.node_id, logs=self._disks.logs, cache=self.cache
        )
        self.removals = ReplicaRemovals(
            logs=self._disks.logs,
            cache=self.cache,
            backoff=self._backoff(config.replica_fetch_backoff_ms),
        )
        self.asked_moves = AskedMoves(self._disks.metadata_dir)
        self.replicas = ReplicaManager(
            broker_id=config.node_id,
            replicas=self.hosted,
            removals=self.removals,
            logs=self._disks.logs,
            cache=self.cache,
            topic_configs=self.topic_configs,
            assignments=self.assignments,
            clock=around.clock,
            backoff=self._backoff(config.replica_fetch_backoff_ms),
            metrics=around.metrics,
            asked_moves=self.asked_moves,
            replica_lag_time_max_ms=config.replica_lag_time_max_ms,
        )
        self.damaged = DamagedReplicas(
            broker_id=config.node_id, cache=self.cache, assignments=self.assignments
        )
        self.isr = IsrManager(
            broker_id=config.node_id,
            replicas=self.hosted,
            cache=self.cache,
            channel=self.channel,
            lifecycle=self.lifecycle,
            clock=around.clock,
            backoff=self._backoff(_CONTROLLER_BACKOFF_MAX_MS),
            metrics=around.metrics,
            replica_lag_time_max_ms=config.replica_lag_time_max_ms,
            request_timeout_ms=config.controller_request_timeout_ms,
        )

    def _follow_leaders_and_metadata(self, tasks: BackgroundTasks) -> None:
        config = self._config
        self.fetchers = ReplicaFetcherManager(
            make_fetcher=self._build_fetcher, tasks=tasks, metrics=self._around.metrics
        )
        self.saturated_followers = SaturatedFollowers(
            broker_id=config.node_id,
            replicas=self.hosted,
            endpoint_of=self._endpoint_of,
            timeout_ms=config.replica_socket_timeout_ms,
        )
        self.moves = self._build_moves(tasks.jobs)
        self.publisher = BrokerMetadataPublisher(
            cache=self.cache,
            replicas=self.replicas,
            removals=self.removals,
            fetchers=self.fetchers,
            moves=self.moves,
            lifecycle=self.lifecycle,
            dynamic_configs=self.dynamic_configs,
            jobs=tasks.jobs,
            memory=self.memory,
        )
        self.loader = MetadataLoader(
            broker_id=config.node_id,
            channel=self.channel,
            cache=self.cache,
            publisher=self.publisher,
            memory=self.memory,
            backoff=self._backoff(_CONTROLLER_BACKOFF_MAX_MS),
            max_bytes=config.metadata_max_fetch_bytes,
        )
        self.state_handler = LogDirStateHandler(
            channel=self._disks.failures,
            fetchers=self.fetchers,
            moves=self.moves,
            replicas=self.replicas,
            assignments=self.assignments,
            publisher=self.publisher,
            logs=self._disks.logs,
            lifecycle=self.lifecycle,
            metadata_dir=config.metadata_dir,
        )

    def _watch_the_disks(self) -> None:
        config, around, logs = self._config, self._around, self._disks.logs
        self.stray_retention = StrayRetention(
            broker_id=config.node_id,
            logs=logs,
            cache=self.cache,
            clock=around.clock,
            retention_ms=config.log_stray_retention_ms,
            check_interval_ms=config.log_retention_check_interval_ms,
        )
        self.scrubs = Scrubs(
            logs=logs,
            replicas=self.hosted,
            damaged=self.damaged,
            fetchers=self.fetchers,
            clock=around.clock,
            is_enabled=config.log_dir_scrub_enable,
            interval_ms=config.log_dir_scrub_interval_ms,
            max_bytes_per_second=config.log_dir_scrub_max_bytes_per_second,
            busy_ms=config.log_dir_slow_min_ms,
        )
        self.monitor = LogDirMonitor(
            logs=logs,
            clock=around.clock,
            slow_dirs=SlowDirs(
                factor=config.log_dir_slow_factor,
                min_ms=config.log_dir_slow_min_ms,
                may_demote=config.log_dir_slow_action == "demote",
            ),
            warn_free_percent=config.log_dir_warn_free_percent,
        )
        LogDirMetrics(
            logs=logs,
            monitor=self.monitor,
            scrubs=self.scrubs,
            unacknowledged=lambda: self.lifecycle.unacknowledged_dirs,
            clock=around.clock,
            metrics=around.metrics,
        )
        register_cleaner_figures(logs, around.metrics)

    def _build_moves(self, jobs: JobGuard) -> ReplicaAlterLogDirsManager:
        config, around = self._config, self._around
        moves = ReplicaAlterLogDirsManager(
            replicas=self.hosted,
            replica_manager=self.replicas,
            removals=self.removals,
            logs=self._disks.logs,
            assignments=self.assignments,
            asked_moves=self.asked_moves,
            fetchers=self.fetchers,
            pool=MoverPool(
                threads=config.num_replica_alter_log_dirs_threads or len(config.data_dirs),
                clock=around.clock,
            ),
            clock=around.clock,
            random_bytes=around.random_bytes,
            backoff=self._backoff(config.replica_fetch_backoff_ms),
            metrics=around.metrics,
            bytes_per_second=config.replica_alter_log_dirs_io_max_bytes_per_second,
            jobs=jobs,
        )
        self.dynamic_configs.subscribe(
            lambda dynamic: moves.set_rate(dynamic.replica_alter_log_dirs_io_max_bytes_per_second)
        )
        return moves

    def _endpoint_of(self, broker_id: BrokerId) -> Listener | None:
        """Brokers talk to each other where clients do: under the first listener."""
        return self.cache.endpoint(broker_id, self._config.listeners[0].name)

    def _build_fetcher(self, leader: BrokerId, log_dir_path: str) -> ReplicaFetcher:
        config = self._config
        return ReplicaFetcher(
            broker_id=config.node_id,
            leader=leader,
            log_dir_path=log_dir_path,
            endpoint_of=self._endpoint_of,
            broker_epoch=lambda: self.lifecycle.broker_epoch,
            clock=self._around.clock,
            backoff=self._backoff(config.replica_fetch_backoff_ms),
            limits=FetchLimits(
                max_wait_ms=config.replica_fetch_wait_max_ms,
                min_bytes=config.replica_fetch_min_bytes,
                max_bytes=config.replica_fetch_response_max_bytes,
                max_partition_bytes=config.replica_fetch_max_bytes,
                timeout_ms=config.replica_socket_timeout_ms,
            ),
            quota=self.quotas.follower,
            damage_met=self.damaged.met,
        )

    def _build_log_dir_admin(self, jobs: JobGuard) -> LogDirAdmin:
        config, disks = self._config, self._disks
        return LogDirAdmin(
            broker_id=config.node_id,
            logs=disks.logs,
            attacher=DirAttacher(
                metadata_dir=disks.metadata_dir,
                cluster_id=disks.cluster_id,
                node_id=config.node_id,
                make_log_dir=disks.make_log_dir,
                random_bytes=self._around.random_bytes,
                timeout_ms=config.log_dir_io_timeout_ms,
                allowed_roots=config.allowed_roots,
            ),
            metadata_dir=disks.metadata_dir,
            replicas=self.hosted,
            moves=self.moves,
            leftovers=self.leftovers,
            publisher=self.publisher,
            lifecycle=self.lifecycle,
            cordons=self.cordons,
            cordon_lift=CordonLift(
                config=config, dynamic_configs=self.dynamic_configs, channel=self.channel
            ),
            cache=self.cache,
            topic_configs=self.topic_configs,
            reattach_interval_ms=config.log_dir_reattach_interval_ms,
            jobs=jobs,
            registration_timeout_ms=config.log_dir_registration_timeout_ms,
        )

    def _build_apis(self) -> KafkaApis:
        config, around = self._config, self._around
        reads = ReplicaReads(
            replicas=self.hosted,
            clock=around.clock,
            follower_caught_up=self.isr.follower_caught_up,
            damage_met=self.damaged.met,
        )
        topics = TopicApis(
            channel=self.channel,
            producer_ids=ProducerIdManager(
                broker_id=config.node_id,
                channel=self.channel,
                broker_epoch=lambda: self.lifecycle.broker_epoch,
                timeout_ms=config.controller_request_timeout_ms,
            ),
            auto_create_timeout_ms=config.controller_request_timeout_ms,
            default_partitions=config.num_partitions,
            default_replication_factor=config.default_replication_factor,
        )
        return KafkaApis(
            produce_fetch=self._build_produce_fetch(reads),
            offsets=OffsetApis(reads=reads, suspect_after_ms=config.log_dir_io_suspect_ms),
            record_deletion=RecordDeletionApis(replicas=self.hosted),
            metadata=MetadataApis(
                broker_id=config.node_id,
                cache=self.cache,
                topic_apis=topics,
                auto_create_topics=config.auto_create_topics_enable,
            ),
            topic_partitions=TopicPartitionsApis(cache=self.cache),
            topics=topics,
            configs=ConfigApis(
                config=config,
                cache=self.cache,
                topic_configs=self.topic_configs,
                dynamic_configs=self.dynamic_configs,
                channel=self.channel,
                own_dirs=lambda: [log_dir.path for log_dir in self._disks.logs.dirs()],
            ),
            log_dir_admin=LogDirAdminApis(
                admin=self.log_dir_admin, allowed_roots=config.allowed_roots
            ),
            reassignments=ReassignmentApis(channel=self.channel),
            features=FeatureApis(channel=self.channel),
            log_dirs=LogDirApis(
                broker_id=config.node_id,
                logs=self._disks.logs,
                replicas=self.hosted,
                replica_manager=self.replicas,
                moves=self.moves,
                assignments=self.assignments,
                monitor=self.monitor,
                scrubs=self.scrubs,
            ),
        )

    def _build_produce_fetch(self, reads: ReplicaReads) -> ProduceFetchApis:
        config, around = self._config, self._around
        return ProduceFetchApis(
            broker_id=config.node_id,
            cache=self.cache,
            replicas=self.hosted,
            appends=self.appends,
            reads=reads,
            followers=FollowerFetches(
                sessions=FetchSessions(
                    clock=around.clock,
                    random_bytes=around.random_bytes,
                    limits=SessionLimits(
                        max_sessions=config.max_incremental_fetch_session_cache_slots,
                        max_per_follower=config.max_fetch_sessions_per_follower,
                    ),
                ),
                replicas=self.hosted,
                reads=reads,
                cache=self.cache,
                clock=around.clock,
                max_fetch_bytes=config.fetch_max_bytes,
                suspect_after_ms=config.log_dir_io_suspect_ms,
                quota=self.quotas.leader,
            ),
            clock=around.clock,
            metrics=around.metrics,
            max_fetch_bytes=config.fetch_max_bytes,
            suspect_after_ms=config.log_dir_io_suspect_ms,
            answers=self._answers,
        )

    def _build_telemetry(self) -> StorageTelemetryEmitter:
        config, around = self._config, self._around
        return StorageTelemetryEmitter(
            broker_id=config.node_id,
            rack=config.broker_rack,
            incarnation=self.identity.incarnation_id,
            cache=self.cache,
            gatherer=StorageTelemetryGatherer(
                logs=self._disks.logs,
                replicas=self.hosted,
                moves=self.moves,
                assignments=self.assignments,
                monitor=self.monitor,
            ),
            sender=StorageTelemetrySender(
                broker_id=config.node_id,
                cache=self.cache,
                appends=self.appends,
                endpoint_of=self._endpoint_of,
                clock=around.clock,
                backoff=self._backoff(_TELEMETRY_BACKOFF_MAX_MS),
                suspect_after_ms=config.log_dir_io_suspect_ms,
            ),
            channel=self.channel,
            clock=around.clock,
            metrics=around.metrics,
            topic=TelemetryTopicSettings(
                partitions=config.storage_telemetry_topic_partitions,
                replication_factor=config.storage_telemetry_topic_replication_factor,
                retention_ms=config.storage_telemetry_topic_retention_ms,
                retention_bytes=config.storage_telemetry_topic_retention_bytes,
            ),
            log_dir_interval_ms=config.storage_telemetry_log_dir_interval_ms,
            replica_interval_ms=config.storage_telemetry_replica_interval_ms,
            request_timeout_ms=config.controller_request_timeout_ms,
        )

    def is_agreed_to(self, key: TopicIdPartition, move: AskedMove) -> bool:
        """Whether metadata names the target of a move that was asked for."""
        return self._directory_of(key) == move.target

    def _is_replica(self, key: TopicIdPartition) -> bool:
        """Whether metadata still has a replica of the partition here."""
        return self._directory_of(key) is not None

    def _directory_of(self, key: TopicIdPartition) -> DirectoryId | None:
        partition = self.cache.state.partition(key)
        return None if partition is None else partition.directory_of(self._config.node_id)


def _identity(
    config: BrokerConfig, around: Environment, disks: BrokerDisks, advertised: Sequence[Endpoint]
) -> BrokerIdentity:
    return BrokerIdentity(
        broker_id=config.node_id,
        cluster_id=disks.cluster_id,
        incarnation_id=Uuid.random(around.random_bytes),
        listeners=tuple(
            ListenerInfo(name=endpoint.name, host=endpoint.host, port=endpoint.port)
            for endpoint in advertised
        ),
        rack=config.broker_rack,
        features=SUPPORTED_FEATURES,
        log_dir_paths={log_dir.directory_id: log_dir.path for log_dir in disks.logs.online_dirs()},
        has_several_dirs=len(disks.logs.dirs()) > 1,
    )
