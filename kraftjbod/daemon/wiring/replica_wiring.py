"""WIRE. Build the parts of ``broker/replicas``, ``following``, ``moves`` and ``metadata``."""

from __future__ import annotations

from kraftjbod.broker.background import BackgroundTasks
from kraftjbod.broker.following.follower_session import FetchLimits
from kraftjbod.broker.following.replica_fetcher import ReplicaFetcher
from kraftjbod.broker.following.replica_fetcher_manager import ReplicaFetcherManager
from kraftjbod.broker.following.replication_quotas import ReplicationQuotas
from kraftjbod.broker.following.saturated_followers import SaturatedFollowers
from kraftjbod.broker.internal.transaction_verifier import TransactionVerifier
from kraftjbod.broker.metadata.metadata_loader import MetadataLoader
from kraftjbod.broker.metadata.metadata_publisher import BrokerMetadataPublisher
from kraftjbod.broker.moves.alter_log_dirs_manager import ReplicaAlterLogDirsManager
from kraftjbod.broker.partitions.delayed_operations import FetchPurgatory, OffsetPurgatory
from kraftjbod.broker.replicas.damaged_replicas import DamagedReplicas
from kraftjbod.broker.replicas.doubtful_copies import DoubtfulCopies
from kraftjbod.broker.replicas.hosted_replicas import HostedReplicas
from kraftjbod.broker.replicas.isr_manager import IsrManager
from kraftjbod.broker.replicas.leaderships import Leaderships
from kraftjbod.broker.replicas.leftover_copies import LeftoverCopies
from kraftjbod.broker.replicas.replica_appends import ReplicaAppends
from kraftjbod.broker.replicas.replica_manager import ReplicaManager
from kraftjbod.broker.replicas.replica_removals import ReplicaRemovals
from kraftjbod.core.config import BrokerConfig
from kraftjbod.core.ids import BrokerId
from kraftjbod.daemon.process.environment import Environment
from kraftjbod.daemon.wiring.broker_disks import BrokerDisks
from kraftjbod.daemon.wiring.cluster_wiring import CONTROLLER_BACKOFF_MAX_MS, ClusterWiring, backoff
from kraftjbod.storage.moves.mover_pool import MoverPool
from kraftjbod.storage.replicas.requested_moves import RequestedMoves


class ReplicaWiring:
    """Builds the parts that host, lead, follow, move and remove replicas.

    ``tasks`` runs the fetchers and other background tasks.
    """

    def __init__(
        self,
        config: BrokerConfig,
        environment: Environment,
        disks: BrokerDisks,
        cluster: ClusterWiring,
        tasks: BackgroundTasks,
    ) -> None:
        self._config = config
        self._environment = environment
        self._disks = disks
        self._cluster = cluster
        self._host()
        self._lead(tasks)
        self._follow(tasks)
        self._move(tasks)
        self._obey_metadata(tasks)

    def _host(self) -> None:
        config, environment, disks, cluster = (
            self._config,
            self._environment,
            self._disks,
            self._cluster,
        )
        self.hosted = HostedReplicas(
            cache=cluster.cache,
            produces=OffsetPurgatory(kind="produces", clock=environment.clock),
            deletions=OffsetPurgatory(
                kind="deletions", clock=environment.clock, max_waiting=10_000
            ),
            consumer_fetches=FetchPurgatory(),
            stable_fetches=FetchPurgatory(),
            lets_followers_serve=config.replica_selector_class is not None,
            metrics=environment.metrics,
        )
        cluster.dynamic_configs.subscribe(
            lambda dynamic: disks.logs.set_default_config(config.topic_defaults(dynamic))
        )
        self.leftovers = LeftoverCopies(
            broker_id=config.node_id, logs=disks.logs, cache=cluster.cache
        )
        self.removals = ReplicaRemovals(
            logs=disks.logs,
            cache=cluster.cache,
            backoff=backoff(environment, config.replica_fetch_backoff_ms),
        )
        self.requested_moves = RequestedMoves(disks.metadata_dir)
        self.leaderships = Leaderships()
        self.doubtful = DoubtfulCopies(
            broker_id=config.node_id,
            replicas=self.hosted,
            logs=disks.logs,
            cache=cluster.cache,
            assignments=cluster.assignments,
        )
        self.manager = ReplicaManager(
            broker_id=config.node_id,
            replicas=self.hosted,
            removals=self.removals,
            leftovers=self.leftovers,
            logs=disks.logs,
            cache=cluster.cache,
            topic_configs=cluster.topic_configs,
            assignments=cluster.assignments,
            doubtful=self.doubtful,
            clock=environment.clock,
            backoff=backoff(environment, config.replica_fetch_backoff_ms),
            metrics=environment.metrics,
            requested_moves=self.requested_moves,
            leaderships=self.leaderships,
            replica_lag_time_max_ms=config.replica_lag_time_max_ms,
        )

    def _lead(self, tasks: BackgroundTasks) -> None:
        config, environment, cluster = self._config, self._environment, self._cluster
        self.damaged = DamagedReplicas(
            broker_id=config.node_id, cache=cluster.cache, doubtful=self.doubtful
        )
        self.isr = IsrManager(
            broker_id=config.node_id,
            replicas=self.hosted,
            cache=cluster.cache,
            channel=cluster.channel,
            lifecycle=cluster.lifecycle,
            clock=environment.clock,
            backoff=backoff(environment, CONTROLLER_BACKOFF_MAX_MS),
            metrics=environment.metrics,
            replica_lag_time_max_ms=config.replica_lag_time_max_ms,
            request_timeout_ms=config.controller_request_timeout_ms,
        )
        self.leaderships.subscribe(self.isr)
        self.verifier = TransactionVerifier(
            cache=cluster.cache,
            connector=cluster.connector,
            clock=environment.clock,
            tasks=tasks,
            timeout_ms=config.log_dir_io_suspect_ms,
            retry_backoff_ms=config.add_partitions_to_txn_retry_backoff_ms,
            retry_max_ms=config.add_partitions_to_txn_retry_backoff_max_ms,
        )
        self.appends = ReplicaAppends(
            replicas=self.hosted,
            topic_configs=cluster.topic_configs,
            clock=environment.clock,
            metrics=environment.metrics,
            max_unpacked_bytes=config.message_max_unpacked_bytes,
            max_records=config.message_max_records,
            max_checking_bytes=config.message_checking_max_bytes,
            make_executor=environment.make_executor,
            verify=self.verifier.verify,
        )

    def _follow(self, tasks: BackgroundTasks) -> None:
        config, environment, cluster = self._config, self._environment, self._cluster
        self.quotas = ReplicationQuotas(
            broker_id=config.node_id,
            topic_config=cluster.topic_configs.get,
            now_ms=environment.clock.now_ms(),
        )
        cluster.dynamic_configs.subscribe(
            lambda dynamic: self.quotas.set_rates(dynamic, environment.clock.now_ms())
        )
        self.fetchers = ReplicaFetcherManager(
            make_fetcher=self._build_fetcher, tasks=tasks, metrics=environment.metrics
        )
        self.saturated_followers = SaturatedFollowers(
            broker_id=config.node_id,
            replicas=self.hosted,
            connector=cluster.connector,
            timeout_ms=config.replica_socket_timeout_ms,
        )

    def _move(self, tasks: BackgroundTasks) -> None:
        config, environment, disks, cluster = (
            self._config,
            self._environment,
            self._disks,
            self._cluster,
        )
        self.moves = ReplicaAlterLogDirsManager(
            replicas=self.hosted,
            replica_manager=self.manager,
            removals=self.removals,
            logs=disks.logs,
            assignments=cluster.assignments,
            requested_moves=self.requested_moves,
            fetchers=self.fetchers,
            pool=MoverPool(
                threads=config.num_replica_alter_log_dirs_threads or len(config.data_dirs),
                clock=environment.clock,
                make_executor=environment.make_executor,
            ),
            clock=environment.clock,
            random_bytes=environment.random_bytes,
            backoff=backoff(environment, config.replica_fetch_backoff_ms),
            metrics=environment.metrics,
            bytes_per_second=config.replica_alter_log_dirs_io_max_bytes_per_second,
            jobs=tasks.jobs,
        )
        cluster.dynamic_configs.subscribe(
            lambda dynamic: self.moves.set_rate(
                dynamic.replica_alter_log_dirs_io_max_bytes_per_second
            )
        )

    def _obey_metadata(self, tasks: BackgroundTasks) -> None:
        config, environment, cluster = self._config, self._environment, self._cluster
        self.publisher = BrokerMetadataPublisher(
            cache=cluster.cache,
            connector=cluster.connector,
            replicas=self.manager,
            removals=self.removals,
            fetchers=self.fetchers,
            moves=self.moves,
            lifecycle=cluster.lifecycle,
            dynamic_configs=cluster.dynamic_configs,
            jobs=tasks.jobs,
            memory=cluster.memory,
            leaderships=self.leaderships,
            client_rates=cluster.client_rates,
            authorizer=cluster.authorizer,
        )
        self.loader = MetadataLoader(
            broker_id=config.node_id,
            lifecycle=cluster.lifecycle,
            channel=cluster.channel,
            cache=cluster.cache,
            publisher=self.publisher,
            memory=cluster.memory,
            clock=environment.clock,
            backoff=backoff(environment, CONTROLLER_BACKOFF_MAX_MS),
            max_bytes=config.metadata_max_fetch_bytes,
        )

    def _build_fetcher(self, leader: BrokerId, log_dir_path: str) -> ReplicaFetcher:
        config, environment, cluster = self._config, self._environment, self._cluster
        return ReplicaFetcher(
            broker_id=config.node_id,
            leader=leader,
            log_dir_path=log_dir_path,
            connector=cluster.connector,
            broker_epoch=lambda: cluster.lifecycle.broker_epoch,
            clock=environment.clock,
            backoff=backoff(environment, config.replica_fetch_backoff_ms),
            limits=FetchLimits(
                max_wait_ms=config.replica_fetch_wait_max_ms,
                min_bytes=config.replica_fetch_min_bytes,
                max_bytes=config.replica_fetch_response_max_bytes,
                max_partition_bytes=config.replica_fetch_max_bytes,
                timeout_ms=config.replica_socket_timeout_ms,
            ),
            quota=self.quotas.follower,
            damage_met=self.damaged.met,
            committed=self.hosted.follower_committed,
        )
