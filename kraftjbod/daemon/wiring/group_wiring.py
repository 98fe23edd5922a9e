"""WIRE. Build the parts of ``broker/groups``."""

from __future__ import annotations

from typing import Final

from kraftjbod.broker.background import BackgroundTasks
from kraftjbod.broker.groups.classic.classic_group import GroupLimits
from kraftjbod.broker.groups.committed_offset_apis import CommittedOffsetApis
from kraftjbod.broker.groups.consumer.consumer_group_events import (
    ConsumerGroupSettings,
    MigrationPolicy,
)
from kraftjbod.broker.groups.consumer_group_apis import ConsumerGroupApis
from kraftjbod.broker.groups.coordinator.group_commits import GroupCommits
from kraftjbod.broker.groups.coordinator.group_coordinator import GroupCoordinator
from kraftjbod.broker.groups.coordinator.group_log import GroupLog
from kraftjbod.broker.groups.coordinator.led_groups import CoordinatorSettings
from kraftjbod.broker.groups.group_admin_apis import GroupAdminApis
from kraftjbod.broker.groups.group_apis import GroupApis
from kraftjbod.broker.groups.transactional_offset_apis import TransactionalOffsetApis
from kraftjbod.core.config import BrokerConfig
from kraftjbod.core.config_model import MINUTE_MS
from kraftjbod.daemon.process.environment import Environment
from kraftjbod.daemon.wiring.cluster_wiring import ClusterWiring, backoff
from kraftjbod.daemon.wiring.internal_wiring import InternalWiring
from kraftjbod.daemon.wiring.replica_wiring import ReplicaWiring

_LOAD_BACKOFF_MAX_MS: Final = 1_000


class GroupWiring:
    """Builds the coordinator of consumer groups, and its request handlers."""

    def __init__(
        self,
        config: BrokerConfig,
        environment: Environment,
        cluster: ClusterWiring,
        replicas: ReplicaWiring,
        internal: InternalWiring,
        tasks: BackgroundTasks,
    ) -> None:
        settings = group_settings(config)
        log = GroupLog(
            producer=internal.producer("groups"),
            clock=environment.clock,
            timeout_ms=config.offsets_commit_timeout_ms,
        )
        self.coordinator = GroupCoordinator(
            cache=cluster.cache,
            topic_configs=cluster.topic_configs,
            records=log,
            reader=internal.reader(config.offsets_load_buffer_size),
            tasks=tasks,
            clock=environment.clock,
            backoff=backoff(environment, _LOAD_BACKOFF_MAX_MS),
            metrics=environment.metrics,
            settings=settings,
            configs=cluster.group_configs,
            may_be_deposed=lambda: cluster.lifecycle.may_be_deposed,
        )
        commits = GroupCommits(
            coordinator=self.coordinator,
            cache=cluster.cache,
            log=log,
            clock=environment.clock,
            settings=settings,
        )
        replicas.leaderships.subscribe(self.coordinator)
        replicas.publisher.subscribe_deletions(self.coordinator.topics_deleted)
        self.members = GroupApis(
            coordinator=self.coordinator,
            random_bytes=environment.random_bytes,
            min_session_timeout_ms=config.group_min_session_timeout_ms,
            max_session_timeout_ms=config.group_max_session_timeout_ms,
        )
        self.consumer_groups = ConsumerGroupApis(
            coordinator=self.coordinator, cache=cluster.cache, random_bytes=environment.random_bytes
        )
        self.offsets = CommittedOffsetApis(
            coordinator=self.coordinator,
            commits=commits,
            cache=cluster.cache,
            clock=environment.clock,
            max_metadata_chars=config.offset_metadata_max_bytes,
        )
        self.transactional_offsets = TransactionalOffsetApis(
            commits=commits,
            cache=cluster.cache,
            clock=environment.clock,
            max_metadata_chars=config.offset_metadata_max_bytes,
        )
        self.group_admin = GroupAdminApis(coordinator=self.coordinator)


def group_settings(config: BrokerConfig) -> CoordinatorSettings:
    """Return the settings of the coordinator of consumer groups."""
    return CoordinatorSettings(
        limits=GroupLimits(
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            max_size=config.group_max_size,
        ),
        consumer=ConsumerGroupSettings(
            session_timeout_ms=config.group_consumer_session_timeout_ms,
            heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
            assignment_interval_ms=config.group_consumer_assignment_interval_ms,
            max_size=config.group_consumer_max_size,
            assignors=tuple(config.group_consumer_assignors),
            migration_policy=MigrationPolicy(config.group_consumer_migration_policy),
            regex_refresh_ms=config.group_consumer_regex_refresh_interval_ms,
            classic_max_size=config.group_max_size,
        ),
        offsets_retention_ms=config.offsets_retention_minutes * MINUTE_MS,
        expiry_interval_ms=config.offsets_retention_check_interval_ms,
        max_groups_per_partition=config.group_max_per_partition,
    )
