"""PURE. ``ReassignmentControlManager``: moves replicas between brokers on request (KIP-455).

* Each partition of a request succeeds or fails separately. If one is named twice, the second fails.
* Only *added* replicas have to meet conditions. Present replicas may stay in any state of their
  broker.
* Target directories apply to added replicas. A replica is created directly in that directory,
  because brokers obey the directory in the metadata if it is online (KIP-858).
* A request that would leave no replica in sync is refused.

partition_assignment.py defines when a reassignment is complete. Every change of the partition
checks that (partition_change.py). Moves within a broker are not handled here.
"""

from __future__ import annotations

from collections import Counter

from kraftjbod.controller.cluster_control import ClusterControlManager
from kraftjbod.controller.partitions.acceptance import Acceptance
from kraftjbod.controller.partitions.partition_assignment import Assignment, why_malformed
from kraftjbod.controller.partitions.partition_change import Election, change_partition
from kraftjbod.controller.partitions.replica_index import ReplicaIndex
from kraftjbod.controller.partitions.target_directories import (
    placement_refusal,
    resolve_directory,
)
from kraftjbod.controller.partitions.topic_rules import RulesOf
from kraftjbod.controller.result import ControllerResult
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import ANY_DIRECTORY, BrokerId, DirectoryId, TopicIdPartition
from kraftjbod.metadata.records import PartitionChangeRecord
from kraftjbod.metadata.registrations import BrokerRegistration, PartitionRegistration
from kraftjbod.metadata.state import MetadataState
from kraftjbod.protocol.rpc_config_messages import (
    AlterPartitionReassignmentsRequestRpc,
    AlterPartitionReassignmentsResponseRpc,
    ListPartitionReassignmentsRequestRpc,
    ListPartitionReassignmentsResponseRpc,
    OngoingReassignment,
    ReassignedPartition,
    ReassignmentOutcome,
)


class ReassignmentControlManager:
    """Decides requests that start, cancel and list reassignments of partitions. Returns records;
    the replay of the records changes the metadata.
    """

    def __init__(
        self,
        *,
        state: MetadataState,
        index: ReplicaIndex,
        cluster: ClusterControlManager,
        rules_of: RulesOf,
    ) -> None:
        self._state = state
        self._index = index
        self._cluster = cluster
        self._rules_of = rules_of
        #: Replicas that the present request has added so far, and those of its present partition.
        self._added: Counter[BrokerId] = Counter()
        self._adds: list[BrokerId] = []

    # --- AlterPartitionReassignments -------------------------------------------------------------

    def alter(
        self, request: AlterPartitionReassignmentsRequestRpc
    ) -> ControllerResult[AlterPartitionReassignmentsResponseRpc]:
        """Return the records that start, replace or cancel reassignments, and an outcome per
        partition."""
        records: list[PartitionChangeRecord] = []
        outcomes: list[ReassignmentOutcome] = []
        seen: set[tuple[str, int]] = set()
        self._added.clear()
        for requested in request.partitions:
            code, message = ErrorCode.NONE, None
            self._adds.clear()
            try:
                if (requested.topic, requested.partition) in seen:
                    raise _error(ErrorCode.INVALID_REQUEST, f"{_name(requested)} is named twice.")
                seen.add((requested.topic, requested.partition))
                record = None
                if not (
                    request.is_repeated and requested.was_under_way and self._is_over(requested)
                ):
                    record = self._alter_one(
                        requested, may_change_factor=request.allow_replication_factor_change
                    )
                if record is not None:
                    records.append(record)
                    self._added.update(self._adds)
            except OperatingError as e:
                code, message = e.code, e.message
            outcomes.append(
                ReassignmentOutcome(
                    topic=requested.topic,
                    partition=requested.partition,
                    error_code=code,
                    error_message=message,
                )
            )
        return ControllerResult(
            records=tuple(records),
            response=AlterPartitionReassignmentsResponseRpc(partitions=tuple(outcomes)),
            is_atomic=False,
        )

    def _alter_one(
        self, requested: ReassignedPartition, *, may_change_factor: bool
    ) -> PartitionChangeRecord | None:
        key, partition = self._find(requested)
        if requested.target_dirs and len(requested.target_dirs) != len(requested.replicas or ()):
            raise _error(
                ErrorCode.INVALID_REQUEST,
                f"{_name(requested)} has {len(requested.replicas or ())} replica(s) but "
                f"{len(requested.target_dirs)} target directories; give one for each replica, "
                "or none.",
            )
        if requested.replicas is None:
            return self._cancel(requested, key, partition)
        assignment = self._reassigned(requested, requested.replicas, partition, may_change_factor)
        if not set(partition.isr or partition.holders) & set(assignment.replicas):
            raise _error(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Of {_name(requested)} only {list(partition.holders)} are in sync, all of them "
                "added by the reassignment under way; keep one of them in the target.",
            )
        return change_partition(
            key,
            partition,
            rules=self._rules_of(requested.topic),
            election=Election.ONLINE,
            acceptance=self._cluster.acceptance,
            assignment=assignment,
        )

    def _find(
        self, requested: ReassignedPartition
    ) -> tuple[TopicIdPartition, PartitionRegistration]:
        topic = self._state.topic(requested.topic)
        partition = None if topic is None else topic.partitions.get(requested.partition)
        if topic is None or partition is None:
            raise _error(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {_name(requested)}."
            )
        return TopicIdPartition(topic.topic_id, requested.partition), partition

    # --- a new target ----------------------------------------------------------------------------

    def _reassigned(
        self,
        requested: ReassignedPartition,
        target: tuple[BrokerId, ...],
        partition: PartitionRegistration,
        may_change_factor: bool,
    ) -> Assignment:
        malformed = why_malformed(target)
        if malformed is not None:
            raise _error(ErrorCode.INVALID_REPLICA_ASSIGNMENT, malformed)
        present = Assignment.of_partition(partition)
        if not may_change_factor and len(target) != len(present.original):
            raise _error(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"The replication factor of {_name(requested)} would change "
                f"from {len(present.original)} to {len(target)}.",
            )
        texts = (
            dict(zip(target, requested.target_dirs, strict=True)) if requested.target_dirs else {}
        )
        homes = {
            replica: self._target_directory(replica, texts.get(replica, ANY_DIRECTORY), partition)
            for replica in target
        }
        return present.reassigned_to(target, homes.__getitem__)

    def _target_directory(
        self, replica: BrokerId, text: str, partition: PartitionRegistration
    ) -> DirectoryId:
        """Return the directory in which a replica of the target is, or is to be created.

        :param text: the directory in the request: ``any``, a path, or ``dirid:`` and an id.
        :raises OperatingError: the broker cannot have the replica there.
        """
        broker = self._state.brokers.get(replica)
        present = partition.directory_of(replica)
        if broker is None:
            if present is not None and text == ANY_DIRECTORY:
                return present
            raise _error(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The manual partition assignment includes broker {replica}, "
                "but no such broker is registered.",
            )
        wanted = resolve_directory(text, broker)
        if present is None:
            return self._directory_of_added(broker, text, wanted)
        if wanted in (None, present):
            return present
        if replica in partition.adding_replicas and not broker.has_online_dir(present):
            # Its disk failed before the replica was in sync, so another directory loses nothing.
            return self._directory_of_added(broker, text, wanted)
        raise _error(
            ErrorCode.INVALID_REQUEST,
            f"Broker {replica} has a replica already, in another directory than {text}; "
            "use AlterReplicaLogDirs to move it there.",
        )

    def _directory_of_added(
        self, broker: BrokerRegistration, text: str, wanted: DirectoryId | None
    ) -> DirectoryId:
        # The index does not include replicas that earlier partitions of the request add.
        too_many = self._cluster.why_too_many(broker.broker_id, self._added[broker.broker_id] + 1)
        if too_many is not None:
            raise _error(ErrorCode.INELIGIBLE_REPLICA, too_many)
        self._adds.append(broker.broker_id)
        if wanted is None:
            why = placement_refusal(broker)
            if why is None:
                return self._cluster.default_dir(broker.broker_id)
            raise _error(
                ErrorCode.INELIGIBLE_REPLICA,
                f"The manual partition assignment includes broker {broker.broker_id}, but {why}.",
            )
        if wanted not in broker.log_dirs:
            raise _error(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"The log directory {text} of broker {broker.broker_id} is offline.",
            )
        if broker.is_impaired(wanted):
            raise _error(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"The log directory {text} of broker {broker.broker_id} is full or does not "
                "answer; try again when it is well.",
            )
        if wanted in broker.cordoned_log_dirs:
            raise _error(
                ErrorCode.INELIGIBLE_REPLICA,
                f"The log directory {text} of broker {broker.broker_id} is cordoned.",
            )
        return wanted

    # --- cancel ----------------------------------------------------------------------------------

    def _is_over(self, requested: ReassignedPartition) -> bool:
        """Return whether the request is a cancel and the partition has no reassignment."""
        _, partition = self._find(requested)
        return requested.replicas is None and not Assignment.of_partition(partition).is_reassigning

    def _cancel(
        self,
        requested: ReassignedPartition,
        key: TopicIdPartition,
        partition: PartitionRegistration,
    ) -> PartitionChangeRecord | None:
        """Return the record that restores the original replicas; None if nothing changes.

        :raises OperatingError: there is no reassignment, or no original replica is in sync and
            unclean election is not allowed or finds no leader.
        """
        present = Assignment.of_partition(partition)
        if not present.is_reassigning:
            raise _error(
                ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
                f"No reassignment of {_name(requested)} is under way.",
            )
        rules = self._rules_of(requested.topic)
        election = Election.allowed_by(rules)
        if not set(partition.holders) & set(present.original):
            self._require_unclean_leader(requested, present, election)
        return change_partition(
            key,
            partition,
            rules=rules,
            election=election,
            acceptance=self._cluster.acceptance,
            assignment=present.cancelled(),
        )

    def _require_unclean_leader(
        self, requested: ReassignedPartition, present: Assignment, election: Election
    ) -> None:
        why = None
        if election is not Election.UNCLEAN:
            why = "it would require an unclean leader election"
        elif not any(
            self._cluster.acceptance(replica, present.directory_of(replica))
            is not Acceptance.REFUSED
            for replica in present.original
        ):
            why = "none of the replicas that would stay can lead"
        if why is not None:
            raise _error(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The reassignment of {_name(requested)} cannot be cancelled, because {why}: none "
                f"of {list(present.original)} is in sync.",
            )

    # --- ListPartitionReassignments --------------------------------------------------------------

    def list_ongoing(
        self, request: ListPartitionReassignmentsRequestRpc
    ) -> ControllerResult[ListPartitionReassignmentsResponseRpc]:
        """Return the ongoing reassignments, sorted, of all or of the requested partitions."""
        ongoing: list[OngoingReassignment] = []
        wanted: dict[str, frozenset[int]] | None = None
        if request.partitions is not None:
            wanted = {name: frozenset(asked) for name, asked in request.partitions.items()}
        for key in self._index.reassigning:
            topic = self._state.topics[key.topic_id]
            if wanted is not None and key.partition not in wanted.get(topic.name, ()):
                continue
            partition = topic.partitions[key.partition]
            ongoing.append(
                OngoingReassignment(
                    topic=topic.name,
                    partition=key.partition,
                    replicas=partition.replicas,
                    adding_replicas=partition.adding_replicas,
                    removing_replicas=partition.removing_replicas,
                )
            )
        ongoing.sort(key=lambda item: (item.topic, item.partition))
        return ControllerResult(
            response=ListPartitionReassignmentsResponseRpc(partitions=tuple(ongoing))
        )


def _name(requested: ReassignedPartition) -> str:
    return f"{requested.topic}-{requested.partition}"


def _error(code: ErrorCode, message: str) -> OperatingError:
    return OperatingError(message, code=code)
