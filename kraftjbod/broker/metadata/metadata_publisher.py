"""LOOP. ``BrokerMetadataPublisher``: applies a metadata change on this broker, in a fixed order.

1. Close connections to dead brokers, and apply access control lists and configurations, which
later steps use.
2. Change roles: leaders and followers start and stop, at once and without waiting.
3. Start and stop fetchers, end moves between directories, and notify subscribers of leaderships
(``leaderships.py``) and of deleted topics.
4. Remove and create logs, each in its own task, so that directories do not wait for each other, and
only after the metadata offset is persisted.
5. Report this broker's metadata offset to the controller.

:meth:`open` resumes the moves that a restart interrupted.
Before :meth:`open` (the logs are not loaded yet) a change only updates the metadata and the
broker's own configuration, and runs step 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from kraftjbod.authorizer.acl_index import AclIndex
from kraftjbod.authorizer.standard_authorizer import StandardAuthorizer
from kraftjbod.broker.background import BackgroundTasks
from kraftjbod.broker.cluster.broker_connector import BrokerConnector
from kraftjbod.broker.cluster.dynamic_configs import DynamicConfigs
from kraftjbod.broker.cluster.lifecycle.lifecycle_manager import BrokerLifecycleManager
from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.cluster.metadata_memory import MetadataMemory
from kraftjbod.broker.following.replica_fetcher_manager import ReplicaFetcherManager
from kraftjbod.broker.moves.alter_log_dirs_manager import ReplicaAlterLogDirsManager
from kraftjbod.broker.partitions.replica_states import ReplicaState
from kraftjbod.broker.replicas.hosted_replicas import HostedReplica
from kraftjbod.broker.replicas.leaderships import Leaderships
from kraftjbod.broker.replicas.replica_changes import ReplicaChanges
from kraftjbod.broker.replicas.replica_manager import ReplicaManager
from kraftjbod.broker.replicas.replica_removals import ReplicaRemovals
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.loop.client_rates import ClientRates, Limited, empty_limited
from kraftjbod.core.loop.job_guard import JobGuard
from kraftjbod.core.loop.work_slices import in_slices
from kraftjbod.core.topic_config import MIN_INSYNC_REPLICAS, TopicDefaults
from kraftjbod.metadata.records import ResourceType
from kraftjbod.metadata.state import MetadataDelta, MetadataState

#: Replicas that are reconciled without a pause. This takes about 3 ms.
RECONCILED_AT_ONCE: Final = 64


class PreparedSecurity(NamedTuple):
    """Indexes of the access control lists and quotas of a state from a snapshot.

    ``acls`` is None without an authorizer.
    """

    limited: Limited
    acls: AclIndex | None


class BrokerMetadataPublisher:
    def __init__(
        self,
        *,
        cache: MetadataCache,
        connector: BrokerConnector,
        replicas: ReplicaManager,
        removals: ReplicaRemovals,
        fetchers: ReplicaFetcherManager,
        moves: ReplicaAlterLogDirsManager,
        lifecycle: BrokerLifecycleManager,
        dynamic_configs: DynamicConfigs,
        jobs: JobGuard,
        memory: MetadataMemory,
        leaderships: Leaderships,
        client_rates: ClientRates,
        authorizer: StandardAuthorizer | None = None,
    ) -> None:
        self._cache = cache
        self._connector = connector
        self._replicas = replicas
        self._removals = removals
        self._fetchers = fetchers
        self._moves = moves
        self._lifecycle = lifecycle
        self._dynamic_configs = dynamic_configs
        self._disk_work = BackgroundTasks(jobs)
        self._later_roles = BackgroundTasks(jobs)
        self._memory = memory
        self._leaderships = leaderships
        self._authorizer = authorizer
        self._client_rates = client_rates
        self._deletion_listeners: list[Callable[[], None]] = []
        self._is_open = False
        #: The cluster-wide ``min.insync.replicas`` for topics without a value.
        self._min_isr_of_all: str | None = None

    def subscribe_deletions(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever topics are deleted."""
        self._deletion_listeners.append(listener)

    async def prepare_security(self, state: MetadataState) -> PreparedSecurity:
        """Index the access control lists and quotas of ``state``, which is not in use yet, in
        slices of event loop iterations.
        """
        limited = empty_limited()
        async for entity, values in in_slices(state.client_quotas.items()):
            for key in values.keys() & limited.keys():
                limited[key].add(entity)
        if self._authorizer is None:
            return PreparedSecurity(limited, None)
        acls = AclIndex()
        async for binding in in_slices(state.acls.values()):
            acls.add(binding)
        return PreparedSecurity(limited, acls)

    def publish(self, delta: MetadataDelta, security: PreparedSecurity | None = None) -> None:
        """Apply a metadata change on this broker. The cache has the change already.

        :param security: the indexes of the present state after a snapshot; None if ``delta`` has
            few changes of access control lists and quotas.

        Roles change before this returns, unless an operation on the replica's log is pending. Logs
        are created and removed afterwards, in tasks.
        """
        changes_all = False
        if delta.brokers:
            self._connector.hang_up()
        self._follow_security(delta, security)
        if any(resource_type is ResourceType.BROKER for resource_type, _ in delta.configs):
            changes_all = self._take_broker_configs()
        if self._is_open:
            for name in self._topics_configured(delta, changes_all=changes_all):
                self._carry_out(self._replicas.config_changed(name))
            self._carry_out(self._replicas.apply_delta(delta))
        for listener in self._deletion_listeners if delta.deleted_topics else ():
            listener()
        self._lifecycle.note_metadata(self._cache.state)

    def _follow_security(self, delta: MetadataDelta, security: PreparedSecurity | None) -> None:
        if self._authorizer is not None and (delta.added_acls or delta.removed_acls):
            if security is not None and security.acls is not None:
                self._authorizer.use_index(security.acls)
            else:
                self._authorizer.change_bindings(
                    added=delta.added_acls.values(), removed=delta.removed_acls.values()
                )
        if delta.client_quotas and security is not None:
            self._client_rates.use_limited(security.limited)
        elif delta.client_quotas:
            self._client_rates.refresh(delta.client_quotas)

    def _take_broker_configs(self) -> bool:
        """Apply the broker's configuration; return whether defaults of all topics changed."""
        changed = self._dynamic_configs.refresh()
        of_all = self._cache.state.configs.get((ResourceType.BROKER, ""), {})
        before, self._min_isr_of_all = self._min_isr_of_all, of_all.get(MIN_INSYNC_REPLICAS)
        return before != self._min_isr_of_all or bool(changed & TopicDefaults.keys())

    def _topics_configured(self, delta: MetadataDelta, *, changes_all: bool) -> Iterable[str]:
        """Return the topics whose configuration changed: all topics if ``changes_all``."""
        if changes_all:
            return self._cache.state.topic_ids
        return sorted(name for kind, name in delta.configs if kind is ResourceType.TOPIC)

    def open(self) -> None:
        """Apply the present metadata to the replicas, and all later changes too. Call it once all
        logs are loaded.
        """
        self._is_open = True
        self._carry_out(self._replicas.apply_all())

    def reconcile_again(self, *, offline_too: bool = False) -> None:
        """Reconcile the replicas that wait for a directory, after one accepts new logs again.

        A directory can return with thousands of replicas: the first ones are reconciled at once,
        the others in slices. Each slice skips replicas that changed since this call. Does nothing
        before :meth:`open` and after the publisher was closed.

        :param offline_too: also reconcile replicas of OFFLINE directories and, at the end, the
            copies on disk. Necessary if a directory returned from OFFLINE or was forgotten.
        """
        if not self._is_open:
            return
        waiting = self._replicas.waiting_replicas(offline_too=offline_too)
        first, rest = waiting[:RECONCILED_AT_ONCE], waiting[RECONCILED_AT_ONCE:]
        self._carry_out(self._replicas.reconcile_waiting(first))
        if rest:
            work = partial(self._reconcile_in_slices, rest, offline_too=offline_too)
            self._disk_work.attempt(work, "reconcile")
        elif offline_too:
            self._carry_out(self._replicas.reconcile_copies())

    async def _reconcile_in_slices(
        self, waiting: Sequence[tuple[HostedReplica, ReplicaState]], *, offline_too: bool
    ) -> None:
        async for begin in in_slices(range(0, len(waiting), RECONCILED_AT_ONCE)):
            part = waiting[begin : begin + RECONCILED_AT_ONCE]
            self._carry_out(self._replicas.reconcile_waiting(part))
        if offline_too:
            # After the last replica has its log: a move is resumed by the place of both copies.
            self._carry_out(self._replicas.reconcile_copies())

    async def disk_work_done(self) -> None:
        """Wait until no log is being created or removed."""
        while self._disk_work:
            await self._disk_work.idle()

    async def close(self) -> None:
        self._is_open = False
        await self._later_roles.close()
        await self._disk_work.close()

    def _carry_out(self, changes: ReplicaChanges) -> None:
        self._fetchers.unfollow(changes.unfollow)
        self._fetchers.follow(changes.follow)
        for replica in changes.unsettled:
            self._later_roles.attempt(
                partial(self._role_once_settled, replica), f"role-{replica.topic_partition}"
            )
        for topic_partition in changes.left:
            self._moves.end(topic_partition)
        for replica, is_accepted in changes.resume:
            self._moves.resume(replica, is_accepted=is_accepted)
        self._leaderships.publish()
        for topic_partition in changes.set_aside:
            self._disk_work.attempt(
                partial(self._set_aside, topic_partition), f"set-aside-{topic_partition}"
            )
        for topic_partition in changes.drop_future:
            self._disk_work.attempt(
                partial(self._removals.drop_future, topic_partition),
                f"drop-future-{topic_partition}",
            )
        for topic_partition in changes.delete:
            self._disk_work.attempt(
                partial(self._delete, topic_partition), f"delete-{topic_partition}"
            )
        for replica in changes.create:
            self._disk_work.attempt(
                partial(self._create, replica), f"create-{replica.topic_partition}"
            )

    async def _role_once_settled(self, replica: HostedReplica) -> None:
        if replica.handle is not None:
            await replica.handle.unsettled.settled()
        self._carry_out(self._replicas.apply_role(replica))

    async def _set_aside(self, topic_partition: TopicPartition) -> None:
        await self._memory.write()
        await self._removals.set_aside(topic_partition)

    async def _delete(self, topic_partition: TopicPartition) -> None:
        await self._memory.write()
        # A move may be swapping the copies.
        await self._moves.ended(topic_partition)
        await self._removals.delete(topic_partition)

    async def _create(self, replica: HostedReplica) -> None:
        await self._memory.write()
        self._carry_out(await self._replicas.create_log(replica))
