"""``ReplicationControlManager``: who leads, who is in sync, and which directory holds what.

Four things move a leadership or an in-sync set, and all of them end in ``change_partition``:

* a broker changed: registered, fenced, unfenced, shutting down, or a directory of it failed, is
  saturated or stalled, is well again, or is forgotten;
* a broker said which directory a replica is in (AssignReplicasToDirs, KIP-858);
* a leader asked for another in-sync set (AlterPartition, KIP-497, KIP-841);
* a periodic pass: preferred leaders, unclean elections.

A decision about a changed broker is made against that broker *as it will be*, so that one entry
holds the registration change and everything that follows from it.
Work is found through ``ReplicaIndex``: a change of one directory costs its own partitions, no
others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from kraftjbod.controller.acceptance import (
    Acceptance,
    AcceptanceOf,
    acceptance_of,
    changed_directories,
)
from kraftjbod.controller.cluster_control import ClusterControlManager
from kraftjbod.controller.heartbeat_manager import BrokerControlState
from kraftjbod.controller.partition_assignment import Assignment
from kraftjbod.controller.partition_change import Election, change_partition
from kraftjbod.controller.replica_index import ReplicaIndex
from kraftjbod.controller.result import ControllerResult
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import (
    LOST_DIR,
    UNASSIGNED_DIR,
    UNKNOWN_BROKER_EPOCH,
    BrokerEpoch,
    BrokerId,
    DirectoryId,
    TopicId,
    TopicIdPartition,
)
from kraftjbod.metadata.records import PartitionChangeRecord, Record
from kraftjbod.metadata.registrations import BrokerRegistration, PartitionRegistration
from kraftjbod.metadata.state import MetadataState
from kraftjbod.protocol.rpc_messages import (
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    PartitionIsr,
    RefusedAssignment,
)

MAX_ELECTIONS_PER_PASS: Final = 1000
MAX_NAMED: Final = 10
_REFUSED: Final = Acceptance.REFUSED


class ReplicationControlManager:
    """Decides about partitions; reads the shared state and changes nothing."""

    def __init__(
        self,
        *,
        state: MetadataState,
        index: ReplicaIndex,
        cluster: ClusterControlManager,
        may_elect_unclean: Callable[[str], bool],
    ) -> None:
        self._state = state
        self._index = index
        self._cluster = cluster
        self._may_elect_unclean = may_elect_unclean

    # --- brokers ---------------------------------------------------------------------------------

    def register_broker(
        self, request: BrokerRegistrationRequest, *, now_ms: int, next_offset: int
    ) -> ControllerResult[BrokerRegistrationResponse]:
        """A broker introduces itself; what its former incarnation held is taken away first."""
        record = self._cluster.register(request, now_ms=now_ms, next_offset=next_offset)
        former = self._state.brokers.get(request.broker_id)
        changes: list[PartitionChangeRecord] = []
        if former is not None:
            after = BrokerRegistration.from_record(record)
            changes += self._forget(after, request.forgotten_log_dirs)
            forgotten = {TopicIdPartition(c.topic_id, c.partition_id) for c in changes}
            changes += self._follow_broker(former, after, but_for=forgotten)
        return ControllerResult(
            records=(*changes, record),
            response=BrokerRegistrationResponse(
                broker_epoch=record.broker_epoch, metadata_offset=next_offset
            ),
        )

    def heartbeat(
        self, request: BrokerHeartbeatRequest
    ) -> ControllerResult[BrokerHeartbeatResponse]:
        """A broker is alive; its wishes and its failed directories have consequences."""
        broker = self._cluster.require_epoch(request.broker_id, request.broker_epoch)
        state, change = self._cluster.heartbeat(broker, request)
        records: tuple[Record, ...] = ()
        if change is not None:
            records = (*self._follow_broker(broker, broker.merge(change)), change)
        response = BrokerHeartbeatResponse(
            is_caught_up=request.current_metadata_offset >= broker.epoch,
            is_fenced=state.is_fenced,
            should_shut_down=state is BrokerControlState.SHUTDOWN_NOW,
        )
        return ControllerResult(records=records, response=response, is_atomic=False)

    def fence_broker(self, broker_id: BrokerId) -> ControllerResult[None]:
        """The broker's session ended."""
        broker = self._state.brokers[broker_id]
        change = self._cluster.fence(broker)
        changes = self._follow_broker(broker, broker.merge(change))
        return ControllerResult(records=(*changes, change), response=None, is_atomic=False)

    def _acceptance_with(self, after: BrokerRegistration) -> AcceptanceOf:
        """As it will be once the broker is as ``after`` says."""

        def acceptance(broker_id: BrokerId, directory_id: DirectoryId) -> Acceptance:
            if broker_id != after.broker_id:
                return self._cluster.acceptance(broker_id, directory_id)
            return acceptance_of(after, directory_id)

        return acceptance

    def _follow_broker(
        self,
        before: BrokerRegistration,
        after: BrokerRegistration,
        *,
        but_for: Collection[TopicIdPartition] = (),
    ) -> list[PartitionChangeRecord]:
        """What happens to partitions when a broker changes from ``before`` to ``after``."""
        affected: dict[TopicIdPartition, None] = {}
        for directory_id in changed_directories(before, after):
            in_directory = self._index.partitions_in_directory(before.broker_id, directory_id)
            affected.update(dict.fromkeys(in_directory))
        if before.is_active and not after.is_active:
            in_isr = self._index.partitions_in_isr(before.broker_id)
            affected.update(dict.fromkeys(in_isr))
        if after.is_active and not before.is_active:
            affected.update(dict.fromkeys(self._index.leaderless))
        keys = [key for key in affected if key not in but_for]
        return self._without_refused(before.broker_id, keys, self._acceptance_with(after))

    def _without_refused(
        self, broker_id: BrokerId, keys: Iterable[TopicIdPartition], acceptance: AcceptanceOf
    ) -> list[PartitionChangeRecord]:
        """The broker leaves each in-sync set in which it is refused; leaders follow."""
        election_of = self._election_by_topic()
        records = []
        for key in keys:
            partition = self._partition(key)
            isr = partition.isr
            directory_id = partition.directory_of(broker_id)
            if directory_id is None or acceptance(broker_id, directory_id) is Acceptance.REFUSED:
                isr = tuple(member for member in isr if member != broker_id)
            record = change_partition(
                key,
                partition,
                election=election_of(key.topic_id),
                acceptance=acceptance,
                isr=isr,
            )
            if record is not None:
                records.append(record)
        return records

    def _forget(
        self, after: BrokerRegistration, forgotten: Iterable[DirectoryId]
    ) -> list[PartitionChangeRecord]:
        """What was in these directories of the broker is lost, and may be made anew anywhere.

        Its replicas leave the in-sync sets. Where nobody else is in one, records would be lost:
        only a topic that allows unclean elections lets them go.

        :raises OperatingError: INVALID_REQUEST, naming the partitions that would lose records.
        """
        broker_id, election_of = after.broker_id, self._election_by_topic()
        as_it_will_be = self._acceptance_with(after)

        def without_it(other_id: BrokerId, directory_id: DirectoryId) -> Acceptance:
            return as_it_will_be(other_id, directory_id) if other_id != broker_id else _REFUSED

        records: list[PartitionChangeRecord] = []
        last_copies: list[str] = []
        for key in self._in_directories(broker_id, forgotten):
            partition, election = self._partition(key), election_of(key.topic_id)
            wanted = Assignment.of(partition).with_directory(broker_id, UNASSIGNED_DIR)
            isr = tuple(member for member in partition.isr if member != broker_id)
            if not isr and election is not Election.UNCLEAN:
                last_copies.append(f"{self._state.topics[key.topic_id].name}-{key.partition}")
                continue
            record = change_partition(
                key,
                partition,
                election=election,
                acceptance=without_it,
                isr=isr,
                assignment=wanted,
            )
            if not isr and not partition.merge(_required(record)).has_leader:
                # It begins anew, empty and in another epoch, as soon as its broker may lead.
                record = change_partition(
                    key,
                    partition,
                    election=election,
                    acceptance=as_it_will_be,
                    isr=(broker_id,),
                    assignment=wanted,
                    leader_recovering=True,
                )
                leader = partition.merge(_required(record)).leader
                record = dataclasses.replace(_required(record), leader=leader)
            records.append(_required(record))
        if last_copies:
            raise _last_copies_error(broker_id, last_copies)
        return records

    def _in_directories(
        self, broker_id: BrokerId, directories: Iterable[DirectoryId]
    ) -> list[TopicIdPartition]:
        return [
            key
            for directory_id in sorted(set(directories))
            for key in self._index.partitions_in_directory(broker_id, directory_id)
        ]

    # --- AssignReplicasToDirs --------------------------------------------------------------------

    def assign_replicas_to_dirs(
        self, request: AssignReplicasToDirsRequest
    ) -> ControllerResult[AssignReplicasToDirsResponse]:
        """A broker says which directory holds which replica; the last word about one counts.

        A replica in a directory that is lost or offline leaves the in-sync set and leadership.
        """
        broker = self._cluster.require_epoch(request.broker_id, request.broker_epoch)
        if not self._state.metadata_version.has_directories:
            raise OperatingError(
                "Directory assignment is not supported yet.", code=ErrorCode.UNSUPPORTED_VERSION
            )
        wanted: dict[TopicIdPartition, DirectoryId] = {}
        for directory in request.directories:
            for topic in directory.topics:
                for partition_id in topic.partitions:
                    key = TopicIdPartition(topic.topic_id, partition_id)
                    wanted[key] = directory.directory_id
        election_of = self._election_by_topic()
        records: list[PartitionChangeRecord] = []
        refused: list[RefusedAssignment] = []
        for key, directory_id in wanted.items():
            error = self._why_not_assign(broker.broker_id, key, directory_id)
            if error is not None:
                refused.append(
                    RefusedAssignment(
                        topic_id=key.topic_id, partition=key.partition, error_code=error
                    )
                )
                continue
            record = self._assign(broker, key, directory_id, election_of(key.topic_id))
            if record is not None:
                records.append(record)
        return ControllerResult(
            records=tuple(records),
            response=AssignReplicasToDirsResponse(refused=tuple(refused)),
            is_atomic=False,
        )

    def _why_not_assign(
        self, broker_id: BrokerId, key: TopicIdPartition, directory_id: DirectoryId
    ) -> ErrorCode | None:
        if key.topic_id not in self._state.topics:
            return ErrorCode.UNKNOWN_TOPIC_ID
        partition = self._state.partition(key)
        if partition is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if broker_id not in partition.replicas:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if directory_id.is_reserved and directory_id != LOST_DIR:
            return ErrorCode.INVALID_REQUEST
        return None

    def _assign(
        self,
        broker: BrokerRegistration,
        key: TopicIdPartition,
        directory_id: DirectoryId,
        election: Election,
    ) -> PartitionChangeRecord | None:
        partition = self._partition(key)
        if partition.directory_of(broker.broker_id) == directory_id:
            return None
        isr = partition.isr
        if not broker.has_online_dir(directory_id):
            isr = tuple(member for member in isr if member != broker.broker_id)
        return change_partition(
            key,
            partition,
            election=election,
            acceptance=self._cluster.acceptance,
            isr=isr,
            assignment=Assignment.of(partition).with_directory(broker.broker_id, directory_id),
        )

    # --- AlterPartition --------------------------------------------------------------------------

    def alter_partition(
        self, request: AlterPartitionRequest
    ) -> ControllerResult[AlterPartitionResponse]:
        """A leader asks for other in-sync sets; each partition is answered by itself."""
        self._cluster.require_epoch(request.broker_id, request.broker_epoch)
        records: list[PartitionChangeRecord] = []
        altered: list[AlteredPartition] = []
        seen: set[TopicIdPartition] = set()
        for wish in request.partitions:
            key = TopicIdPartition(wish.topic_id, wish.partition)
            error = self._why_not_alter(request.broker_id, wish)
            if key in seen:
                # Its first wish in this request has changed the partition already.
                error = ErrorCode.INVALID_UPDATE_VERSION
            seen.add(key)
            if error is not None:
                altered.append(
                    AlteredPartition(
                        topic_id=key.topic_id, partition=key.partition, error_code=error
                    )
                )
                continue
            partition = self._partition(key)
            # A leader that asks for an in-sync set has become whole again.
            record = change_partition(
                key,
                partition,
                election=Election.ONLINE,
                acceptance=self._cluster.acceptance,
                isr=wish.isr,
                leader_recovering=False,
            )
            if record is not None:
                records.append(record)
                partition = partition.merge(record)
            altered.append(_altered(key, partition, request.broker_id))
        return ControllerResult(
            records=tuple(records),
            response=AlterPartitionResponse(partitions=tuple(altered)),
            is_atomic=False,
        )

    def _why_not_alter(self, sender: BrokerId, wish: PartitionIsr) -> ErrorCode | None:
        """Kafka's checks in Kafka's order, and one more: the member's directory is online."""
        if wish.topic_id not in self._state.topics:
            return ErrorCode.UNKNOWN_TOPIC_ID
        partition = self._state.partition(TopicIdPartition(wish.topic_id, wish.partition))
        if partition is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        stale = _why_stale(sender, wish, partition)
        if stale is not None:
            return stale
        if not _is_well_formed(wish, partition):
            return ErrorCode.INVALID_REQUEST
        for member, epoch in zip(wish.isr, wish.isr_broker_epochs, strict=True):
            if not self._is_eligible(member, epoch, partition):
                return ErrorCode.INELIGIBLE_REPLICA
            if member not in partition.isr and not self._was_heard(member, epoch, wish):
                return ErrorCode.INELIGIBLE_REPLICA
        return None

    def _is_eligible(
        self, member: BrokerId, epoch: BrokerEpoch, partition: PartitionRegistration
    ) -> bool:
        """Acceptable; a leader of last resort may name itself."""
        broker = self._state.brokers.get(member)
        directory_id = partition.directory_of(member)
        wanted = {Acceptance.ACCEPTABLE}
        if member == partition.leader:
            wanted.add(Acceptance.LAST_RESORT)
        return (
            broker is not None
            and directory_id is not None
            and epoch in (UNKNOWN_BROKER_EPOCH, broker.epoch)
            and self._cluster.acceptance(member, directory_id) in wanted
        )

    def _was_heard(self, member: BrokerId, epoch: BrokerEpoch, wish: PartitionIsr) -> bool:
        """Whether what the leader knows of one that shall join is true of the copy of now.

        It must know the epoch of its broker, and the last registration in that: a directory may
        have come back with less than it had, or with none of its replicas.
        """
        if epoch == UNKNOWN_BROKER_EPOCH:
            return False
        offset = wish.metadata_offset
        return offset < 0 or offset >= self._state.brokers[member].registered_at

    # --- periodic passes -------------------------------------------------------------------------

    def elect_preferred(self) -> ControllerResult[None]:
        """Leaderships go back to preferred leaders that can take them."""
        return self._pass(self._index.imbalanced, Election.PREFERRED)

    def elect_unclean(self) -> ControllerResult[None]:
        """Leaderless partitions get any online replica where their topic allows it."""
        election_of = self._election_by_topic()
        allowed = [
            key for key in self._index.leaderless if election_of(key.topic_id) is Election.UNCLEAN
        ]
        return self._pass(allowed, Election.UNCLEAN)

    def _pass(self, keys: Iterable[TopicIdPartition], election: Election) -> ControllerResult[None]:
        records: list[PartitionChangeRecord] = []
        for key in keys:
            record = change_partition(
                key,
                self._partition(key),
                election=election,
                acceptance=self._cluster.acceptance,
            )
            if record is not None:
                records.append(record)
            if len(records) == MAX_ELECTIONS_PER_PASS:
                break
        return ControllerResult(records=tuple(records), response=None, is_atomic=False)

    # --- shared ----------------------------------------------------------------------------------

    def _partition(self, key: TopicIdPartition) -> PartitionRegistration:
        return self._state.topics[key.topic_id].partitions[key.partition]

    def _election_by_topic(self) -> Callable[[TopicId], Election]:
        """How far elections may go, looked up once per topic and decision."""
        known: dict[TopicId, Election] = {}

        def election_of(topic_id: TopicId) -> Election:
            if topic_id not in known:
                allowed = self._may_elect_unclean(self._state.topics[topic_id].name)
                known[topic_id] = Election.UNCLEAN if allowed else Election.ONLINE
            return known[topic_id]

        return election_of


def _required(record: PartitionChangeRecord | None) -> PartitionChangeRecord:
    assert record is not None, "another directory is a change"
    return record


def _last_copies_error(broker_id: BrokerId, partitions: Sequence[str]) -> OperatingError:
    named = ", ".join(sorted(partitions)[:MAX_NAMED])
    more = f" and {len(partitions) - MAX_NAMED} more" if len(partitions) > MAX_NAMED else ""
    return OperatingError(
        f"Broker {broker_id} holds the last in-sync replica of {named}{more} there. Bring the "
        "directory back, or delete these topics, or allow them unclean leader elections if their "
        "records may be lost.",
        code=ErrorCode.INVALID_REQUEST,
    )


def _why_stale(
    sender: BrokerId, wish: PartitionIsr, partition: PartitionRegistration
) -> ErrorCode | None:
    if (
        wish.leader_epoch > partition.leader_epoch
        or wish.partition_epoch > partition.partition_epoch
    ):
        # The sender knows more than this controller: it is not the active one any more.
        return ErrorCode.NOT_CONTROLLER
    if wish.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if sender != partition.leader:
        return ErrorCode.INVALID_REQUEST
    if wish.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    return None


def _is_well_formed(wish: PartitionIsr, partition: PartitionRegistration) -> bool:
    return (
        len(wish.isr) == len(wish.isr_broker_epochs) == len(set(wish.isr))
        and partition.leader in wish.isr
        and set(wish.isr) <= set(partition.replicas)
    )


def _altered(
    key: TopicIdPartition, partition: PartitionRegistration, sender: BrokerId
) -> AlteredPartition:
    if partition.leader != sender:
        # The wish completed a reassignment whose end took the leadership from the sender, or it
        # brought somebody in sync who leads in place of a leader of last resort.
        return AlteredPartition(
            topic_id=key.topic_id,
            partition=key.partition,
            error_code=ErrorCode.NEW_LEADER_ELECTED,
        )
    return AlteredPartition(
        topic_id=key.topic_id,
        partition=key.partition,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        isr=partition.isr,
    )
