"""The parts of a broker, built and connected; nothing runs yet when they are built.

Each part gets the few values of the configuration that it needs, here and nowhere else.
The order is that of the house: what stands above knows nothing of what stands below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from kraftjbod.broker.assignments_manager import AssignmentsManager
from kraftjbod.broker.background import BackgroundTasks
from kraftjbod.broker.config_apis import ConfigApis
from kraftjbod.broker.controller_channel import ControllerChannel
from kraftjbod.broker.delayed_operations import FetchPurgatory, ProducePurgatory
from kraftjbod.broker.fetch_sessions import FetchSessions
from kraftjbod.broker.follower_fetches import FollowerFetches
from kraftjbod.broker.hosted_replicas import HostedReplicas
from kraftjbod.broker.isr_manager import IsrManager
from kraftjbod.broker.kafka_apis import KafkaApis
from kraftjbod.broker.lifecycle_manager import BrokerLifecycleManager
from kraftjbod.broker.lifecycle_state import BrokerIdentity, LifecycleTimes
from kraftjbod.broker.log_dir_apis import LogDirApis
from kraftjbod.broker.log_dir_failure_handler import LogDirFailureHandler
from kraftjbod.broker.metadata_apis import MetadataApis
from kraftjbod.broker.metadata_cache import MetadataCache
from kraftjbod.broker.metadata_loader import MetadataLoader
from kraftjbod.broker.metadata_publisher import BrokerMetadataPublisher
from kraftjbod.broker.offset_apis import OffsetApis
from kraftjbod.broker.produce_fetch_apis import ProduceFetchApis
from kraftjbod.broker.producer_ids import ProducerIdManager
from kraftjbod.broker.replica_appends import ReplicaAppends
from kraftjbod.broker.replica_fetcher import FetchLimits, ReplicaFetcher
from kraftjbod.broker.replica_fetcher_manager import ReplicaFetcherManager
from kraftjbod.broker.replica_manager import ReplicaManager
from kraftjbod.broker.replica_reads import ReplicaReads
from kraftjbod.broker.topic_apis import TopicApis
from kraftjbod.broker.topic_configs import TopicConfigs
from kraftjbod.core.config import BrokerConfig, Endpoint
from kraftjbod.core.ids import BrokerId, TopicIdPartition, Uuid
from kraftjbod.core.timing import ExponentialBackoff
from kraftjbod.daemon.runner import Surroundings
from kraftjbod.protocol.rpc_messages import ListenerInfo
from kraftjbod.storage.dir_opener import DirOpener
from kraftjbod.storage.log_dir import LogDir, LogDirFailureChannel
from kraftjbod.storage.log_manager import LogManager
from kraftjbod.storage.vfs import RealVfs

#: First pause after a failure; it doubles from there.
_FIRST_BACKOFF_MS: Final = 20
_CONTROLLER_BACKOFF_MAX_MS: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDisks:
    """The log directories, opened, and what they agree on."""

    cluster_id: str
    failures: LogDirFailureChannel
    metadata_dir: LogDir
    logs: LogManager


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerParts:
    """What the server starts and stops; the rest is reached through these."""

    channel: ControllerChannel
    cache: MetadataCache
    lifecycle: BrokerLifecycleManager
    assignments: AssignmentsManager
    hosted: HostedReplicas
    replicas: ReplicaManager
    isr: IsrManager
    fetchers: ReplicaFetcherManager
    failure_handler: LogDirFailureHandler
    publisher: BrokerMetadataPublisher
    loader: MetadataLoader
    apis: KafkaApis


async def open_disks(config: BrokerConfig, around: Surroundings) -> BrokerDisks:
    """Open every directory.

    :raises StartupError: what the operator has to mend.
    """
    paths = dict.fromkeys((*config.data_dirs, config.metadata_dir))
    failures = LogDirFailureChannel(max_dirs=len(paths))
    dirs = {
        path: LogDir(
            path=path,
            vfs=RealVfs(),
            clock=around.clock,
            failure_channel=failures,
            io_timeout_ms=config.log_dir_io_timeout_ms,
            check_interval_ms=config.log_dir_check_interval_ms,
            max_queued_ops=config.log_dir_queue_max_ops,
            max_queued_bytes=config.log_dir_queue_max_bytes,
        )
        for path in paths
    }
    opener = DirOpener(
        log_dirs=list(dirs.values()),
        metadata_dir=config.metadata_dir,
        node_id=config.node_id,
        random_bytes=around.random_bytes,
        timeout_ms=config.log_dir_io_timeout_ms,
    )
    cluster_id = await opener.open()
    logs = LogManager(
        dirs=[dirs[path] for path in config.data_dirs],
        clock=around.clock,
        default_config=config.topic_defaults(),
        random_bytes=around.random_bytes,
        retention_check_interval_ms=config.log_retention_check_interval_ms,
        checkpoint_interval_ms=config.log_flush_offset_checkpoint_interval_ms,
        flush_check_interval_ms=config.log_flush_scheduler_interval_ms,
        producer_expiration_ms=config.producer_id_expiration_ms,
    )
    return BrokerDisks(
        cluster_id=cluster_id,
        failures=failures,
        metadata_dir=dirs[config.metadata_dir],
        logs=logs,
    )


def build_parts(
    config: BrokerConfig,
    around: Surroundings,
    disks: BrokerDisks,
    advertised: Sequence[Endpoint],
    tasks: BackgroundTasks,
) -> BrokerParts:
    """Everything between the disks and the doors."""
    broker_id, clock, metrics, logs = config.node_id, around.clock, around.metrics, disks.logs
    random_unit = around.rng.random
    backoff = partial(
        ExponentialBackoff, initial_ms=_FIRST_BACKOFF_MS, random_unit=around.rng.random
    )
    channel = ControllerChannel(
        voters=config.controller_quorum_voters,
        clock=clock,
        random_unit=random_unit,
        request_timeout_ms=config.controller_request_timeout_ms,
    )
    lifecycle = _build_lifecycle(config, around, disks, advertised, channel)
    cache = MetadataCache(cluster_id=disks.cluster_id)
    topic_configs = TopicConfigs(defaults=config.topic_defaults(), cache=cache)
    assignments = AssignmentsManager(
        broker_id=broker_id,
        broker_epoch=lambda: lifecycle.broker_epoch,
        is_replica=partial(_is_replica, cache, broker_id),
        channel=channel,
        clock=clock,
        random_unit=random_unit,
        metrics=metrics,
        request_timeout_ms=config.controller_request_timeout_ms,
    )
    hosted = HostedReplicas(
        cache=cache,
        produces=ProducePurgatory(clock=clock),
        consumer_fetches=FetchPurgatory(),
        metrics=metrics,
    )
    replicas = ReplicaManager(
        broker_id=broker_id,
        replicas=hosted,
        logs=logs,
        cache=cache,
        topic_configs=topic_configs,
        assignments=assignments,
        clock=clock,
        backoff=backoff(max_ms=config.replica_fetch_backoff_ms),
        metrics=metrics,
        replica_lag_time_max_ms=config.replica_lag_time_max_ms,
    )
    isr = IsrManager(
        broker_id=broker_id,
        replicas=hosted,
        cache=cache,
        channel=channel,
        lifecycle=lifecycle,
        clock=clock,
        backoff=backoff(max_ms=_CONTROLLER_BACKOFF_MAX_MS),
        metrics=metrics,
        replica_lag_time_max_ms=config.replica_lag_time_max_ms,
        request_timeout_ms=config.controller_request_timeout_ms,
    )
    fetchers = ReplicaFetcherManager(
        make_fetcher=partial(_build_fetcher, config, around, cache, lifecycle),
        tasks=tasks,
        metrics=metrics,
    )
    publisher = BrokerMetadataPublisher(
        cache=cache, replicas=replicas, fetchers=fetchers, lifecycle=lifecycle
    )
    return BrokerParts(
        channel=channel,
        cache=cache,
        lifecycle=lifecycle,
        assignments=assignments,
        hosted=hosted,
        replicas=replicas,
        isr=isr,
        fetchers=fetchers,
        failure_handler=LogDirFailureHandler(
            channel=disks.failures,
            fetchers=fetchers,
            replicas=replicas,
            logs=logs,
            lifecycle=lifecycle,
            metadata_dir=config.metadata_dir,
        ),
        publisher=publisher,
        loader=MetadataLoader(
            broker_id=broker_id,
            channel=channel,
            cache=cache,
            publisher=publisher,
            backoff=backoff(max_ms=_CONTROLLER_BACKOFF_MAX_MS),
            max_bytes=config.metadata_max_fetch_bytes,
        ),
        apis=_build_apis(
            config, around, disks, cache, topic_configs, hosted, isr, channel, lifecycle
        ),
    )


def _build_lifecycle(
    config: BrokerConfig,
    around: Surroundings,
    disks: BrokerDisks,
    advertised: Sequence[Endpoint],
    channel: ControllerChannel,
) -> BrokerLifecycleManager:
    return BrokerLifecycleManager(
        identity=BrokerIdentity(
            broker_id=config.node_id,
            cluster_id=disks.cluster_id,
            incarnation_id=Uuid.random(around.random_bytes),
            listeners=tuple(
                ListenerInfo(name=endpoint.name, host=endpoint.host, port=endpoint.port)
                for endpoint in advertised
            ),
            rack=config.broker_rack,
        ),
        online_dirs=[log_dir.directory_id for log_dir in disks.logs.online_dirs()],
        channel=channel,
        clock=around.clock,
        random_unit=around.rng.random,
        times=LifecycleTimes(
            heartbeat_interval_ms=config.broker_heartbeat_interval_ms,
            registration_timeout_ms=config.initial_broker_registration_timeout_ms,
            dir_failure_timeout_ms=config.log_dir_failure_timeout_ms,
        ),
        request_timeout_ms=config.controller_request_timeout_ms,
    )


def _build_fetcher(
    config: BrokerConfig,
    around: Surroundings,
    cache: MetadataCache,
    lifecycle: BrokerLifecycleManager,
    leader: BrokerId,
    log_dir_path: str,
) -> ReplicaFetcher:
    return ReplicaFetcher(
        broker_id=config.node_id,
        leader=leader,
        log_dir_path=log_dir_path,
        # Brokers talk to each other where clients do: under the first listener.
        endpoint_of=lambda broker_id: cache.endpoint(broker_id, config.listeners[0].name),
        broker_epoch=lambda: lifecycle.broker_epoch,
        clock=around.clock,
        backoff=ExponentialBackoff(
            initial_ms=_FIRST_BACKOFF_MS,
            max_ms=config.replica_fetch_backoff_ms,
            random_unit=around.rng.random,
        ),
        limits=FetchLimits(
            max_wait_ms=config.replica_fetch_wait_max_ms,
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            max_partition_bytes=config.replica_fetch_max_bytes,
            timeout_ms=config.replica_socket_timeout_ms,
        ),
    )


def _build_apis(
    config: BrokerConfig,
    around: Surroundings,
    disks: BrokerDisks,
    cache: MetadataCache,
    topic_configs: TopicConfigs,
    hosted: HostedReplicas,
    isr: IsrManager,
    channel: ControllerChannel,
    lifecycle: BrokerLifecycleManager,
) -> KafkaApis:
    reads = ReplicaReads(
        replicas=hosted, clock=around.clock, follower_caught_up=isr.follower_caught_up
    )
    topics = TopicApis(
        channel=channel,
        producer_ids=ProducerIdManager(
            broker_id=config.node_id,
            channel=channel,
            broker_epoch=lambda: lifecycle.broker_epoch,
            timeout_ms=config.controller_request_timeout_ms,
        ),
        auto_create_timeout_ms=config.controller_request_timeout_ms,
    )
    followers = FollowerFetches(
        sessions=FetchSessions(clock=around.clock),
        replicas=hosted,
        reads=reads,
        cache=cache,
        clock=around.clock,
        max_fetch_bytes=config.fetch_max_bytes,
        suspect_after_ms=config.log_dir_io_suspect_ms,
    )
    return KafkaApis(
        produce_fetch=ProduceFetchApis(
            replicas=hosted,
            appends=ReplicaAppends(
                replicas=hosted,
                topic_configs=topic_configs,
                clock=around.clock,
                metrics=around.metrics,
            ),
            reads=reads,
            followers=followers,
            clock=around.clock,
            metrics=around.metrics,
            max_fetch_bytes=config.fetch_max_bytes,
            suspect_after_ms=config.log_dir_io_suspect_ms,
        ),
        offsets=OffsetApis(reads=reads, suspect_after_ms=config.log_dir_io_suspect_ms),
        metadata=MetadataApis(
            broker_id=config.node_id,
            cache=cache,
            topic_apis=topics,
            auto_create_topics=config.auto_create_topics_enable,
        ),
        topics=topics,
        configs=ConfigApis(config=config, cache=cache, topic_configs=topic_configs),
        log_dirs=LogDirApis(logs=disks.logs, replicas=hosted),
    )


def _is_replica(cache: MetadataCache, broker_id: BrokerId, key: TopicIdPartition) -> bool:
    """Whether metadata still has a replica of the partition here."""
    partition = cache.state.partition(key)
    return partition is not None and partition.directory_of(broker_id) is not None
