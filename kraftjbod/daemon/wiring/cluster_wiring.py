"""WIRE. Build the parts of ``broker/cluster``: metadata, configurations, controller channel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kraftjbod.broker.cluster.assignments_manager import AssignmentsManager
from kraftjbod.broker.cluster.broker_connector import BrokerConnector
from kraftjbod.broker.cluster.controller_channel import ControllerChannel
from kraftjbod.broker.cluster.dynamic_configs import DynamicConfigs
from kraftjbod.broker.cluster.group_configs import GroupConfigs
from kraftjbod.broker.cluster.lifecycle.lifecycle_manager import BrokerLifecycleManager
from kraftjbod.broker.cluster.lifecycle.lifecycle_state import BrokerIdentity, LifecycleTimes
from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.cluster.metadata_memory import MetadataMemory
from kraftjbod.broker.cluster.topic_configs import TopicConfigs
from kraftjbod.core.config import BrokerConfig
from kraftjbod.core.descriptor_budget import DescriptorBudget
from kraftjbod.core.ids import DirectoryId, TopicIdPartition, Uuid
from kraftjbod.core.loop.client_rates import ClientRates
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.core.node_config import Endpoint
from kraftjbod.core.telemetry import LevelSwitch
from kraftjbod.daemon.process.environment import Environment
from kraftjbod.daemon.wiring.authorizer_wiring import build_authorizer
from kraftjbod.daemon.wiring.broker_disks import BrokerDisks
from kraftjbod.net.dialer import PLAIN, Dialer
from kraftjbod.net.kafka_client import Login
from kraftjbod.protocol.rpc_messages import ListenerInfo
from kraftjbod.storage.replicas.requested_moves import RequestedMove

#: First pause after a failure; later pauses double.
_FIRST_BACKOFF_MS: Final = 20
#: Longest pause between requests to a controller.
CONTROLLER_BACKOFF_MAX_MS: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDialers:
    """The dialers of a broker's connections to other nodes."""

    brokers: Dialer = PLAIN
    controllers: Dialer = PLAIN
    login: Login | None = None
    """Authenticates the broker on each new connection to another broker."""


class ClusterWiring:
    """The broker's view of its cluster, and its reports to the controller.

    ``advertised`` are the broker's addresses for clients.
    """

    def __init__(
        self,
        config: BrokerConfig,
        environment: Environment,
        disks: BrokerDisks,
        advertised: Sequence[Endpoint],
        dialers: NodeDialers,
    ) -> None:
        self._broker_id = config.node_id
        self.cache = MetadataCache(cluster_id=disks.cluster_id)
        self.connector = BrokerConnector(
            broker_id=config.node_id,
            cache=self.cache,
            listener_name=config.inter_broker_listener,
            dialer=dialers.brokers,
            login=dialers.login,
        )
        self.authorizer = build_authorizer(config)
        self.client_rates = ClientRates(
            lambda: self.cache.state.client_quotas, environment.clock.now_ms
        )
        self.group_configs = GroupConfigs(cache=self.cache, config=config)
        self.topic_configs = TopicConfigs(defaults=config.topic_defaults(), cache=self.cache)
        self.dynamic_configs = DynamicConfigs(config=config, cache=self.cache)
        self.dynamic_configs.subscribe(
            lambda dynamic: self.topic_configs.take(config.topic_defaults(dynamic))
        )
        level = LevelSwitch(config.telemetry_level, environment.set_telemetry_level)
        self.dynamic_configs.subscribe(lambda dynamic: level.take(dynamic.telemetry_level))
        self.memory = MetadataMemory(metadata_dir=disks.metadata_dir)
        self.channel = ControllerChannel(
            addresses=config.controller_addresses,
            voters=config.controller_quorum_voters,
            clock=environment.clock,
            random_unit=environment.rng.random,
            level=lambda: self.cache.state.metadata_version,
            log_id=lambda: self.memory.followed.metadata_log_id,
            request_timeout_ms=config.controller_request_timeout_ms,
            dialer=dialers.controllers,
        )
        online_dirs = disks.logs.online_dirs()
        self.identity = _identity(config, environment, disks, advertised)
        self.lifecycle = BrokerLifecycleManager(
            identity=self.identity,
            online_dirs=[log_dir.directory_id for log_dir in online_dirs],
            channel=self.channel,
            clock=environment.clock,
            random_unit=environment.rng.random,
            times=LifecycleTimes(
                heartbeat_interval_ms=config.broker_heartbeat_interval_ms,
                registration_timeout_ms=config.initial_broker_registration_timeout_ms,
                dir_failure_timeout_ms=config.log_dir_failure_timeout_ms,
                session_timeout_ms=config.broker_session_timeout_ms,
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
            clock=environment.clock,
            random_unit=environment.rng.random,
            metrics=environment.metrics,
            request_timeout_ms=config.controller_request_timeout_ms,
        )

    def is_agreed_to(self, key: TopicIdPartition, move: RequestedMove) -> bool:
        """Return whether the metadata has this broker's replica of ``key`` in the target directory
        of ``move``.
        """
        return self._directory_of(key) == move.target

    def _is_replica(self, key: TopicIdPartition) -> bool:
        """Return whether this broker has a replica of the partition according to the metadata."""
        return self._directory_of(key) is not None

    def _directory_of(self, key: TopicIdPartition) -> DirectoryId | None:
        partition = self.cache.state.partition(key)
        return None if partition is None else partition.directory_of(self._broker_id)


def backoff(environment: Environment, max_ms: int) -> ExponentialBackoff:
    """Return a backoff whose pauses double from 20 ms up to ``max_ms``."""
    return ExponentialBackoff(
        initial_ms=_FIRST_BACKOFF_MS, max_ms=max_ms, random_unit=environment.rng.random
    )


def _identity(
    config: BrokerConfig,
    environment: Environment,
    disks: BrokerDisks,
    advertised: Sequence[Endpoint],
) -> BrokerIdentity:
    return BrokerIdentity(
        broker_id=config.node_id,
        cluster_id=disks.cluster_id,
        incarnation_id=Uuid.random(environment.random_bytes),
        listeners=tuple(
            ListenerInfo(name=endpoint.name, host=endpoint.host, port=endpoint.port)
            for endpoint in advertised
        ),
        rack=config.broker_rack,
        features=environment.features,
        log_dir_paths={log_dir.directory_id: log_dir.path for log_dir in disks.logs.online_dirs()},
        has_several_dirs=len(disks.logs.dirs()) > 1,
        max_replicas=DescriptorBudget(environment.max_open_files).max_replicas,
    )
