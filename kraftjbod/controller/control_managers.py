"""PURE. ``ControlManagers``: all decisions of a controller, without queue, log or network.

* ``decide(request)`` returns records and a response. It changes only soft state (contact times).
* ``replay(records)`` alone changes the replicated metadata.
* The periodic passes (sessions, preferred leaders, unclean elections) decide without a request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from kraftjbod.authorizer.standard_authorizer import StandardAuthorizer
from kraftjbod.controller.acl_control import AclControlManager
from kraftjbod.controller.brokers.foreign_metadata import require_same_log
from kraftjbod.controller.brokers.heartbeat_manager import BrokerHeartbeatManager
from kraftjbod.controller.cluster_control import ClusterControlManager
from kraftjbod.controller.configuration_control import ConfigurationControlManager
from kraftjbod.controller.election_control import ElectionControlManager
from kraftjbod.controller.feature_control import FeatureControlManager
from kraftjbod.controller.forwarded_rights import require_rights
from kraftjbod.controller.mutation_quotas import MutationQuotas
from kraftjbod.controller.partitions.replica_index import ReplicaIndex
from kraftjbod.controller.partitions.replica_placer import StripedReplicaPlacer
from kraftjbod.controller.producer_id_control import ProducerIdControlManager
from kraftjbod.controller.quorum.controller_settings import SettingsInForce
from kraftjbod.controller.quorum.registrations import registered, unregistered
from kraftjbod.controller.quota_control import QuotaControlManager
from kraftjbod.controller.reassignment_control import ReassignmentControlManager
from kraftjbod.controller.replication_control import ReplicationControlManager
from kraftjbod.controller.result import ControllerResult
from kraftjbod.controller.scram_control import ScramControlManager, first_credential
from kraftjbod.controller.topic_control import TopicControlManager
from kraftjbod.core.config import DynamicControllerConfig
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import (
    MIGRATING_DIR,
    UNASSIGNED_DIR,
    BrokerId,
    ConnectionId,
    TopicIdPartition,
    Uuid,
)
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.metadata_version import METADATA_VERSION
from kraftjbod.core.node_principals import NO_NODES, NodePrincipals
from kraftjbod.core.scram import ScramUser
from kraftjbod.core.topic_config import MIN_INSYNC_REPLICAS
from kraftjbod.metadata.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    Record,
    ResourceType,
    UnregisterBrokerRecord,
)
from kraftjbod.metadata.registrations import BrokerRegistration
from kraftjbod.metadata.state import MetadataDelta, MetadataState
from kraftjbod.protocol.rpc_acl_messages import CreateAclsRequestRpc, DeleteAclsRequestRpc
from kraftjbod.protocol.rpc_config_messages import (
    AlterPartitionReassignmentsRequestRpc,
    DescribeDynamicConfigsRequest,
    ElectLeadersRequestRpc,
    IncrementalAlterConfigsRequestRpc,
    IncrementalAlterConfigsResponseRpc,
    ListPartitionReassignmentsRequestRpc,
    UnregisterBrokerRequestRpc,
)
from kraftjbod.protocol.rpc_controller_messages import (
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
    UnregisterControllerRequestRpc,
    UnregisterControllerResponseRpc,
)
from kraftjbod.protocol.rpc_messages import (
    AllocateProducerIdsRequest,
    AlterPartitionRequest,
    AssignReplicasToDirsRequest,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    CreatePartitionsRequestRpc,
    CreateTopicsRequestRpc,
    DeleteTopicsRequestRpc,
    FindTopicsRequest,
    PartitionIsr,
    RpcRequest,
    RpcResponse,
    UpdateFeaturesRequestRpc,
)
from kraftjbod.protocol.rpc_quota_messages import AlterClientQuotasRequestRpc
from kraftjbod.protocol.rpc_scram_messages import AlterUserScramCredentialsRequestRpc


def is_from_broker(request: RpcRequest) -> bool:
    """Return whether a broker or controller sends such a request for itself, not for a client."""
    return isinstance(
        request,
        BrokerRegistrationRequest
        | BrokerHeartbeatRequest
        | AssignReplicasToDirsRequest
        | AlterPartitionRequest
        | AllocateProducerIdsRequest
        | ControllerRegistrationRequest,
    )


class ControlManagers:
    """All decisions of the controller over one metadata state: :meth:`decide` returns the records
    and the response of a request, and :meth:`replay` applies records.

    ``now_ms`` is monotonic in all methods.
    """

    def __init__(
        self,
        *,
        cluster_id: str,
        in_file: DynamicControllerConfig,
        node_id: BrokerId | None = None,
        election_timeout_ms: int = 1000,
        random_bytes: Callable[[int], bytes],
        draw_below: Callable[[int], int],
        controllers: Callable[[], Mapping[BrokerId, Mapping[str, tuple[int, int]]]] = dict,
        may_delete_topics: bool = True,
        make_authorizer: Callable[[], StandardAuthorizer | None] = lambda: None,
        node_principals: NodePrincipals = NO_NODES,
        node_mechanism: str = "",
    ) -> None:
        """:param in_file: the controller's file, which applies if the metadata has no value.
        :param node_id: the node whose own values in the metadata apply; None for none.
        :param election_timeout_ms: how long this controller may still answer after another
            election.
        :param controllers: returns the voters, each with the feature levels it supports, if known.
        :param make_authorizer: creates the authorizer without bindings, or None for none.
        :param node_principals: principals of nodes, which no SCRAM user may have.
        :param node_mechanism: mechanism by which brokers log in to each other, whose users may.
        """
        self.cluster_id = cluster_id
        self.state, self.index = MetadataState(), ReplicaIndex()
        self._settings = SettingsInForce(in_file, node_id)
        self._random_bytes = random_bytes
        self._election_timeout_ms = election_timeout_ms
        self._heartbeats = BrokerHeartbeatManager(
            session_timeout_ms=self.settings.broker_session_timeout_ms,
            reconnect_grace_ms=self.settings.broker_reconnect_grace_ms,
        )
        self._cluster = ClusterControlManager(
            cluster_id=cluster_id,
            state=self.state,
            index=self.index,
            heartbeats=self._heartbeats,
            election_timeout_ms=election_timeout_ms,
        )
        self._configuration = ConfigurationControlManager(state=self.state, settings=self._settings)
        self.rules_of = self._configuration.rules_of
        self._replication = ReplicationControlManager(
            state=self.state, index=self.index, cluster=self._cluster, rules_of=self.rules_of
        )
        self._reassignments = ReassignmentControlManager(
            state=self.state, index=self.index, cluster=self._cluster, rules_of=self.rules_of
        )
        self._elections = ElectionControlManager(
            state=self.state, index=self.index, cluster=self._cluster, rules_of=self.rules_of
        )
        self._topics = TopicControlManager(
            state=self.state,
            cluster=self._cluster,
            configuration=self._configuration,
            placer=StripedReplicaPlacer(draw_below=draw_below),
            random_bytes=random_bytes,
            settings=self._settings,
            may_delete=may_delete_topics,
        )
        self._producer_ids = ProducerIdControlManager(state=self.state, cluster=self._cluster)
        self._features = FeatureControlManager(state=self.state, controllers=controllers)
        self._controllers = controllers
        self._authorizer = make_authorizer()
        self._acls = AclControlManager(self.state, random_bytes)
        self._scram = ScramControlManager(self.state, node_principals, node_mechanism)
        self._quotas = QuotaControlManager(state=self.state)
        self._mutations = MutationQuotas(self.state)

    # --- decisions -------------------------------------------------------------------------------

    def require_rights(self, request: RpcRequest) -> None:
        """Require that the client for which a broker forwards ``request`` may make it.

        Every request is permitted without an authorizer, or if it names no client.

        :raises OperatingError: TOPIC_, GROUP_ or CLUSTER_AUTHORIZATION_FAILED.
        """
        if self._authorizer is not None:
            require_rights(self._authorizer, request, self.state)

    def ineligible_members(self, requested: PartitionIsr) -> Iterator[tuple[BrokerId, str]]:
        """Yield the members that make the request INELIGIBLE_REPLICA, each with the reason."""
        return self._replication.ineligible_members(requested)

    def decide(
        self,
        request: RpcRequest,
        *,
        now_ms: int,
        connection: ConnectionId | None = None,
        most: int | None = None,
    ) -> ControllerResult[RpcResponse]:
        """Return the records and the response of a request. Only soft state, such as contact times,
        changes before the records are replayed.

        :param connection: the request's connection. If it is closed later, the broker may have
            died.
        :param most: limit of the partitions that a registration may change at once, as in
            :meth:`ReplicationControlManager.register_broker`.
        :raises OperatingError: the request as a whole is refused.
        """
        match request:
            case BrokerRegistrationRequest():
                return self._register(request, now_ms, connection, most)
            case BrokerHeartbeatRequest():
                return self._heartbeat(request, now_ms, connection)
            case AssignReplicasToDirsRequest():
                return self._replication.assign_replicas_to_dirs(request)
            case AlterPartitionRequest():
                return self._replication.alter_partition(request)
            case AllocateProducerIdsRequest():
                return self._producer_ids.allocate(request)
            case ControllerRegistrationRequest():
                made = registered(self.state, self.cluster_id, request)
                return ControllerResult(records=made, response=ControllerRegistrationResponse())
            case UnregisterControllerRequestRpc():
                gone = unregistered(self.state, self._controllers(), request)
                return ControllerResult(records=gone, response=UnregisterControllerResponseRpc())
            case _:
                return self._decide_for_admin(request, now_ms)

    def _decide_for_admin(self, request: RpcRequest, now_ms: int) -> ControllerResult[RpcResponse]:
        """Return the result of a request that a broker forwards for a client, or that a tool
        sends."""
        match request:
            case CreateTopicsRequestRpc():
                charge = self._mutations.charge_of(request.charged, now_ms)
                return self._topics.create_topics(request, charge)
            case CreatePartitionsRequestRpc():
                charge = self._mutations.charge_of(request.charged, now_ms)
                return self._topics.create_partitions(request, charge)
            case FindTopicsRequest():
                return self._topics.find_topics(request)
            case DeleteTopicsRequestRpc():
                charge = self._mutations.charge_of(request.charged, now_ms)
                return self._topics.delete_topics(request, charge)
            case AlterPartitionReassignmentsRequestRpc():
                return self._reassignments.alter(request)
            case ListPartitionReassignmentsRequestRpc():
                return self._reassignments.list_ongoing(request)
            case IncrementalAlterConfigsRequestRpc():
                return self._alter_configs(request)
            case DescribeDynamicConfigsRequest():
                return self._configuration.describe(request)
            case UpdateFeaturesRequestRpc():
                return self._features.update(request)
            case ElectLeadersRequestRpc():
                return self._elections.elect(request)
            case UnregisterBrokerRequestRpc():
                return self._elections.unregister(request)
            case _:
                return self._decide_about_security(request)

    def _decide_about_security(self, request: RpcRequest) -> ControllerResult[RpcResponse]:
        match request:
            case CreateAclsRequestRpc():
                return self._acls.create(request)
            case DeleteAclsRequestRpc():
                return self._acls.delete(request)
            case AlterUserScramCredentialsRequestRpc():
                return self._scram.alter(request)
            case AlterClientQuotasRequestRpc():
                return self._quotas.alter(request)
            case _:
                raise OperatingError(
                    f"The controller does not serve {request.api}.",
                    code=ErrorCode.UNSUPPORTED_VERSION,
                )

    def _alter_configs(
        self, request: IncrementalAlterConfigsRequestRpc
    ) -> ControllerResult[IncrementalAlterConfigsResponseRpc]:
        result = self._configuration.incremental_alter(request)
        if not any(_is_min_isr(record) for record in result.records):
            return result
        # Replicas eligible by the former value may be ineligible by the new one. Record that first,
        # so that no leader commits by the new value while they are still eligible.
        rules_of = self._configuration.rules_after(result.records)
        followed = self._replication.follow_min_isr(rules_of)
        return ControllerResult(
            records=(*followed, *result.records), response=result.response, is_atomic=False
        )

    def _register(
        self,
        request: BrokerRegistrationRequest,
        now_ms: int,
        connection: ConnectionId | None,
        most: int | None,
    ) -> ControllerResult[BrokerRegistrationResponse]:
        require_same_log(
            self.state, request.broker_id, request.metadata_log_id, request.applied_metadata_offset
        )
        result = self._replication.register_broker(
            request, now_ms=now_ms, next_offset=self.state.offset + 1, most=most
        )
        if result.is_part:
            return result
        self._heartbeats.touch(
            request.broker_id, result.response.broker_epoch, now_ms, connection=connection
        )
        said = {
            "metadata_log_id": self.state.metadata_log_id,
            "session_timeout_ms": self._cluster.announced_session_ms,
        }
        return replace(result, response=result.response.model_copy(update=said))

    def _heartbeat(
        self, request: BrokerHeartbeatRequest, now_ms: int, connection: ConnectionId | None
    ) -> ControllerResult[BrokerHeartbeatResponse]:
        require_same_log(
            self.state, request.broker_id, request.metadata_log_id, request.current_metadata_offset
        )
        broker = self._cluster.require_epoch(request.broker_id, request.broker_epoch)
        self._heartbeats.touch(
            broker.broker_id, broker.epoch, now_ms, request.current_metadata_offset, connection
        )
        result = self._replication.heartbeat(request)
        if result.response.should_shut_down:
            # So its next incarnation need not wait for this session to end.
            self._heartbeats.end_session(broker.broker_id)
        return result

    def take_back(self, request: RpcRequest) -> None:
        """Undo a change of the soft state by :meth:`decide`, because the request's records were not
        written.

        Concerns only BrokerRegistration: the session of the new incarnation ends. Contact times of
        other requests remain.
        """
        if isinstance(request, BrokerRegistrationRequest):
            broker = self.state.brokers.get(request.broker_id)
            if broker is None or broker.incarnation_id != request.incarnation_id:
                self._heartbeats.end_session(request.broker_id)

    def bootstrap(
        self,
        features: Mapping[str, int],
        min_insync_replicas: int | None = None,
        *,
        fork: bool = False,
        users: Iterable[ScramUser] = (),
    ) -> ControllerResult[None]:
        """Return the first records of an empty log, or those that an existing log lacks.

        :param features: levels by feature, including ``metadata.version``.
        :param min_insync_replicas: the value in the controller's file for the cluster, recorded if
            the cluster has none yet.
        :param fork: whether the log lost its end, so that it gets another log id.
        :param users: the first users of SCRAM, recorded only if the log has no feature levels.
        """
        records: list[Record] = []
        if self.state.metadata_log_id is None or fork:
            present = self.state.features
            level = present.get(METADATA_VERSION, features[METADATA_VERSION])
            records += [
                FeatureLevelRecord(
                    name=METADATA_VERSION,
                    feature_level=level,
                    metadata_log_id=Uuid.random(self._random_bytes),
                    session_limit_ms=self._unrecorded_session_limit(),
                ),
                *(
                    FeatureLevelRecord(name=name, feature_level=level)
                    for name, level in sorted(features.items())
                    if METADATA_VERSION not in present and name != METADATA_VERSION
                ),
            ]
            if METADATA_VERSION not in present:
                records += map(first_credential, users)
        elif limit_ms := self._unrecorded_session_limit():
            records.append(self._session_limit(limit_ms))
        of_all = self.state.configs.get((ResourceType.BROKER, ""), {})
        if min_insync_replicas is not None and MIN_INSYNC_REPLICAS not in of_all:
            config = ConfigRecord(
                resource_type=ResourceType.BROKER,
                resource_name="",
                name=MIN_INSYNC_REPLICAS,
                value=str(min_insync_replicas),
            )
            rules_of = self._configuration.rules_after([config])
            records += [*self._replication.follow_min_isr(rules_of), config]
        return ControllerResult(records=tuple(records), response=None)

    def adjust_session_limit(self, now_ms: int) -> ControllerResult[None]:
        """Return a record of the longest session that any broker may rely on, if that changed.

        The limit is raised before a longer session is announced, and lowered once all longer
        sessions are over.
        """
        limit_ms, longest_ms = self.state.session_limit_ms, self._longest_session_ms
        is_settled = limit_ms == longest_ms or (
            limit_ms > longest_ms and self._heartbeats.has_longer_sessions(now_ms)
        )
        records = () if is_settled else (self._session_limit(longest_ms),)
        return ControllerResult(records=records, response=None)

    @property
    def _longest_session_ms(self) -> int:
        return self.settings.broker_session_timeout_ms + self._election_timeout_ms

    def _unrecorded_session_limit(self) -> int:
        """Return the limit that must be recorded before sessions are announced; 0 if none must."""
        longest_ms, limit_ms = self._longest_session_ms, self.state.session_limit_ms
        is_new_log = METADATA_VERSION not in self.state.features
        return longest_ms if longest_ms > limit_ms or (is_new_log and longest_ms < limit_ms) else 0

    def _session_limit(self, limit_ms: int) -> FeatureLevelRecord:
        return FeatureLevelRecord(
            name=METADATA_VERSION,
            feature_level=self.state.features[METADATA_VERSION],
            session_limit_ms=limit_ms,
        )

    def find_stale_broker(self, now_ms: int) -> BrokerId | None:
        """Return the unfenced broker without a valid session that has been silent the longest; None
        if each has one.
        """
        return self._heartbeats.find_stale(self._cluster.unfenced_brokers(), now_ms)

    def is_gone(self, broker_id: BrokerId, now_ms: int) -> bool:
        """Return whether a sign of death has ended the broker's session; see
        :class:`BrokerHeartbeatManager`.
        """
        return self._heartbeats.is_gone(broker_id, now_ms)

    def until_gone_ms(self, now_ms: int) -> int | None:
        """Return the milliseconds until the next reconnect grace ends: then a broker that closed
        its connection and sent nothing on another one counts as gone (:meth:`is_gone`). None if no
        grace runs.
        """
        return self._heartbeats.until_gone_ms(now_ms)

    def connection_closed(self, connection: ConnectionId, now_ms: int, *, is_reset: bool) -> None:
        """Note that the other side closed ``connection``: a broker that used it last may have died.

        :param is_reset: whether it was reset; then the broker's session continues.
        """
        self._heartbeats.connection_closed(connection, now_ms, is_reset=is_reset)

    def take_suspects(self) -> list[BrokerRegistration]:
        """Return the unfenced brokers that may be dead, each once. The caller probes their
        addresses."""
        brokers = self.state.brokers
        return [
            brokers[broker_id]
            for broker_id, epoch in self._heartbeats.take_suspects()
            if broker_id in brokers
            and brokers[broker_id].epoch == epoch
            and not brokers[broker_id].fenced
        ]

    def refused(self, broker: BrokerRegistration) -> None:
        """Note that a suspect's addresses refuse connections.

        Ignored if the broker sent a request since :meth:`take_suspects`, or registered again.
        """
        self._heartbeats.refused(broker.broker_id, broker.epoch)

    def discount_pause(self, pause_ms: int, now_ms: int) -> bool:
        """Extend sessions and reconnect graces after a pause of this process, which ends now.
        Return whether the pause was long: only a long pause extends sessions.
        """
        self._heartbeats.discount_pause(pause_ms, now_ms)
        return self._heartbeats.is_long_pause(pause_ms)

    def fence_broker(self, broker_id: BrokerId) -> ControllerResult[None]:
        return self._replication.fence_broker(broker_id)

    @property
    def has_follow_ups(self) -> bool:
        """Whether :meth:`follow_up` may return records."""
        return self._replication.has_follow_ups

    def limit_followed_at_once(self, count: int) -> None:
        """Limit the partitions that one decision about a broker changes to ``count``."""
        self._replication.followed_at_once = count

    def follow_up(self) -> ControllerResult[None]:
        """Decide about some of the partitions that a decision about a broker left for later."""
        return self._replication.follow_up()

    def elect_preferred(self) -> ControllerResult[None]:
        return self._replication.elect_preferred()

    def elect_unclean(self) -> ControllerResult[None]:
        return self._replication.elect_unclean()

    # --- replay ----------------------------------------------------------------------------------

    def replay(self, records: Sequence[Record], *, offset: int, epoch: int) -> MetadataDelta:
        """Apply an entry to the metadata, the indexes and the soft state; return the change. The
        active controller calls this when it proposes the entry, before the commit.

        :param epoch: term of the entry.
        :raises RemoteProtocolError: as :meth:`MetadataState.replay`.
        """
        delta = MetadataDelta()
        self.state.replay(records, offset=offset, epoch=epoch, delta=delta)
        self.index.apply(delta, self.state)
        self._follow_security(delta)
        self._follow_settings(delta)
        for record in records:
            if isinstance(record, BrokerRegistrationChangeRecord) and record.in_controlled_shutdown:
                self._heartbeats.note_shutdown_offset(record.broker_id, offset)
            elif isinstance(record, UnregisterBrokerRecord):
                self._heartbeats.end_session(record.broker_id)
        self._note_moved_leaderships(delta, offset)
        return delta

    def _note_moved_leaderships(self, delta: MetadataDelta, offset: int) -> None:
        """Note ``offset`` for brokers in shutdown whose leaderships the entry moved away.

        Moving all of them may need several entries.
        """
        leaving = {b for b, one in self.state.brokers.items() if one.in_controlled_shutdown}
        if leaving:
            led = {before.leader for before in delta.partitions.values() if before is not None}
            for broker_id in sorted(leaving & led):
                self._heartbeats.note_shutdown_offset(broker_id, offset)

    def replay_part(self, records: Sequence[Record], *, offset: int) -> None:
        """Apply a part of a snapshot. The last part is applied by :meth:`replay`."""
        delta = MetadataDelta()
        self.state.replay_part(records, offset=offset, delta=delta)
        self.index.apply(delta, self.state)
        self._follow_security(delta)
        self._follow_settings(delta)

    @property
    def settings(self) -> DynamicControllerConfig:
        """The settings that apply now. Every change makes another object."""
        return self._settings.now

    def set_by_metadata(self) -> dict[str, object]:
        """Return the settings that differ from the controller's file: the value that applies now,
        by key.
        """
        return self._settings.different_from_file()

    def _follow_security(self, delta: MetadataDelta) -> None:
        if delta.client_quotas:
            self._mutations.refresh(delta.client_quotas)
        if self._authorizer is not None and (delta.added_acls or delta.removed_acls):
            self._authorizer.change_bindings(
                added=delta.added_acls.values(), removed=delta.removed_acls.values()
            )

    def _follow_settings(self, delta: MetadataDelta) -> None:
        if not any(kind is ResourceType.BROKER for kind, _ in delta.configs):
            return
        self._settings.follow(self.state.configs)
        self._heartbeats.set_limits(
            self.settings.broker_session_timeout_ms, self.settings.broker_reconnect_grace_ms
        )

    def rehearse(self, records: Sequence[Record], *, offset: int, epoch: int) -> None:
        """Run :meth:`replay` on a copy of the affected metadata. Raises what the replay would
        raise."""
        delta, excerpt = MetadataDelta(), self.state.excerpt(records)
        excerpt.replay(records, offset=offset, epoch=epoch, delta=delta)
        ReplicaIndex().apply(delta, excerpt)

    def take_leadership(self, now_ms: int) -> None:
        """Start a session for every unfenced broker: this controller became the active one.

        A session lasts as long as this controller or a former one may have announced. Work that a
        former controller left for later is collected again. A broker in controlled shutdown waits
        until the other brokers have applied the present end of the log.
        """
        self._replication.take_over()
        limit_ms = max(self.state.session_limit_ms, self._longest_session_ms)
        self._heartbeats.restart(self.state.brokers.values(), now_ms, limit_ms)
        for broker in self.state.brokers.values():
            if broker.in_controlled_shutdown:
                self._heartbeats.note_shutdown_offset(broker.broker_id, self.state.offset)

    # --- figures ---------------------------------------------------------------------------------

    def broker_counts(self) -> tuple[int, int, int]:
        """Return the numbers of active brokers, of fenced ones, and of others that shut down."""
        brokers = self.state.brokers.values()
        fenced = sum(broker.fenced for broker in brokers)
        leaving = sum(broker.in_controlled_shutdown and not broker.fenced for broker in brokers)
        return len(brokers) - fenced - leaving, fenced, leaving

    def elected_from_elr(self, records: Iterable[Record]) -> int:
        """Return how many of ``records``, which are not replayed yet, elect an eligible leader
        replica."""
        return sum(
            isinstance(record, PartitionChangeRecord)
            and record.leader is not None
            and record.leader in self._elr(record)
            for record in records
        )

    def _elr(self, change: PartitionChangeRecord) -> tuple[BrokerId, ...]:
        partition = self.state.partition(TopicIdPartition(change.topic_id, change.partition_id))
        return () if partition is None else partition.elr

    def impaired_dir_count(self, state: LogDirState) -> int:
        """Return the number of directories of all brokers that are in ``state``.

        :param state: SATURATED or STALLED.
        """
        brokers = self.state.brokers.values()
        return sum(one.state is state for broker in brokers for one in broker.impaired_log_dirs)

    def last_resort_leader_count(self) -> int:
        """Return the number of leaders in impaired directories.

        Such a leader stays because no other replica could be elected.
        """
        return sum(
            self._leads(broker.broker_id, key)
            for broker in self.state.brokers.values()
            if broker.impaired_log_dirs
            for directory_id in (*broker.log_dirs, UNASSIGNED_DIR, MIGRATING_DIR)
            if broker.is_impaired(directory_id)
            for key in self.index.partitions_in_directory(broker.broker_id, directory_id)
        )

    def _leads(self, broker_id: BrokerId, key: TopicIdPartition) -> bool:
        partition = self.state.partition(key)
        return partition is not None and partition.leader == broker_id


def _is_min_isr(record: Record) -> bool:
    return isinstance(record, ConfigRecord) and record.name == MIN_INSYNC_REPLICAS
