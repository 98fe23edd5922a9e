"""PURE. ``ElectionControlManager``: elections that an operator requests, and unregistered brokers.

* ElectLeaders (KIP-460) is answered for each partition separately, with Kafka's codes.
* A preferred leader is elected only if it is acceptable. A partition without a leader gets any
  in-sync replica as leader, and the answer says that it is not the preferred one.
* A requested unclean election does not depend on the topic's configuration. It never elects a
  replica in a stalled directory, because that leader would answer no request.
* A broker that is unregistered (KIP-631) leaves every in-sync set. It is no eligible leader either,
  because the state of its logs cannot be checked later. Its replicas stay assigned to it. A live
  broker would register again at once, so unregistering it is refused.
"""

from __future__ import annotations

from typing import Final

from kraftjbod.controller.cluster_control import ClusterControlManager
from kraftjbod.controller.partitions.acceptance import Acceptance
from kraftjbod.controller.partitions.partition_change import Election, change_partition
from kraftjbod.controller.partitions.replica_index import ReplicaIndex
from kraftjbod.controller.partitions.topic_rules import RulesOf, rules_by_topic
from kraftjbod.controller.result import ControllerResult
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerId, DirectoryId, TopicIdPartition
from kraftjbod.metadata.records import PartitionChangeRecord, UnregisterBrokerRecord
from kraftjbod.metadata.registrations import PartitionRegistration
from kraftjbod.metadata.state import MetadataState
from kraftjbod.protocol.rpc_config_messages import (
    ElectedPartition,
    ElectionOutcome,
    ElectionType,
    ElectLeadersRequestRpc,
    ElectLeadersResponseRpc,
    UnregisterBrokerRequestRpc,
    UnregisterBrokerResponseRpc,
)

#: Kafka's texts.
_NOT_NEEDED: Final = OperatingError(
    "Leader election not needed for topic partition.", code=ErrorCode.ELECTION_NOT_NEEDED
)
_NOT_PREFERRED: Final = OperatingError(
    "The preferred leader was not available.", code=ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
)
_NOBODY: Final = OperatingError(
    "Eligible topic partition leaders are not available.",
    code=ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
)


class ElectionControlManager:
    """Decides requests that elect leaders (ElectLeaders) and that unregister brokers.

    Returns records; the replay of the records changes the metadata.
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

    # --- ElectLeaders ----------------------------------------------------------------------------

    def elect(self, request: ElectLeadersRequestRpc) -> ControllerResult[ElectLeadersResponseRpc]:
        """Return the records of the requested elections, and one outcome per requested
        partition."""
        records: list[PartitionChangeRecord] = []
        outcomes: dict[ElectedPartition, ElectionOutcome] = {}
        for wanted in request.partitions:
            if wanted in outcomes:
                continue
            outcome = {"topic": wanted.topic, "partition": wanted.partition}
            try:
                key, partition = self._find(wanted)
                record = self._elected(key, partition, request.election_type)
                if record is not None:
                    records.append(record)
                    partition = partition.merge(record)
                _require_elected(partition, request.election_type)
            except OperatingError as e:
                outcomes[wanted] = ElectionOutcome.model_validate(
                    {**outcome, "error_code": e.code, "error_message": e.message}
                )
            else:
                outcomes[wanted] = ElectionOutcome.model_validate(outcome)
        return ControllerResult(
            records=tuple(records),
            response=ElectLeadersResponseRpc(
                partitions=tuple(outcomes[wanted] for wanted in request.partitions)
            ),
            is_atomic=False,
        )

    def _find(self, wanted: ElectedPartition) -> tuple[TopicIdPartition, PartitionRegistration]:
        topic = self._state.topic(wanted.topic)
        if topic is None:
            raise OperatingError(
                f"No such topic as {wanted.topic}", code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )
        partition = topic.partitions.get(wanted.partition)
        if partition is None:
            raise OperatingError(
                f"No such partition as {wanted.topic}-{wanted.partition}",
                code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            )
        return TopicIdPartition(topic.topic_id, wanted.partition), partition

    def _elected(
        self, key: TopicIdPartition, partition: PartitionRegistration, kind: ElectionType
    ) -> PartitionChangeRecord | None:
        """Return the record that elects a leader of the requested kind; None if that changes
        nothing.

        :raises OperatingError: ELECTION_NOT_NEEDED: the partition has such a leader.
        """
        is_preferred = kind is ElectionType.PREFERRED
        if _is_led(partition, kind):
            raise _NOT_NEEDED
        return change_partition(
            key,
            partition,
            rules=self._rules_of(self._state.topics[key.topic_id].name),
            election=Election.PREFERRED if is_preferred else Election.UNCLEAN,
            acceptance=self._cluster.acceptance
            if is_preferred
            else self._acceptance_unless_stalled,
        )

    def _acceptance_unless_stalled(
        self, broker_id: BrokerId, directory_id: DirectoryId
    ) -> Acceptance:
        """Return the acceptance of a replica, but REFUSED if its directory is stalled."""
        found = self._cluster.acceptance(broker_id, directory_id)
        if found is Acceptance.LAST_RESORT and self._state.brokers[broker_id].is_stalled(
            directory_id
        ):
            return Acceptance.REFUSED
        return found

    # --- UnregisterBroker ------------------------------------------------------------------------

    def unregister(
        self, request: UnregisterBrokerRequestRpc
    ) -> ControllerResult[UnregisterBrokerResponseRpc]:
        """Return the records that unregister a fenced broker and remove it from in-sync replicas
        and ELR; none if a first attempt has done so.

        :raises OperatingError: BROKER_ID_NOT_REGISTERED; INVALID_REQUEST if the broker is not
            fenced, or registered again after the first attempt.
        """
        broker_id = request.broker_id
        broker = self._state.brokers.get(broker_id)
        was_found = request.is_repeated and request.found_epoch >= 0
        if broker is None and was_found:
            return ControllerResult(response=UnregisterBrokerResponseRpc())
        if broker is not None and was_found and broker.epoch != request.found_epoch:
            raise OperatingError(
                f"Broker {broker_id} has registered again meanwhile; ask again if it shall go too.",
                code=ErrorCode.INVALID_REQUEST,
            )
        if broker is None:
            raise OperatingError(
                f"Broker ID {broker_id} is not currently registered",
                code=ErrorCode.BROKER_ID_NOT_REGISTERED,
            )
        if not broker.fenced:
            raise OperatingError(
                f"Broker {broker_id} is alive and would register again at once; stop it first. One "
                "that died is fenced when it was silent for broker.session.timeout.ms.",
                code=ErrorCode.INVALID_REQUEST,
            )

        def acceptance(other: BrokerId, directory_id: DirectoryId) -> Acceptance:
            if other == broker_id:
                return Acceptance.REFUSED
            return self._cluster.acceptance(other, directory_id)

        rules_of = rules_by_topic(self._state, self._rules_of)
        keys = dict.fromkeys(self._index.partitions_in_isr(broker_id))
        keys |= dict.fromkeys(
            key for key in self._index.with_elr if broker_id in self._partition(key).elr
        )
        changes = (
            change_partition(
                key,
                self._partition(key),
                rules=rules_of(key.topic_id),
                election=Election.allowed_by(rules_of(key.topic_id)),
                acceptance=acceptance,
                unclean=broker_id,
            )
            for key in keys
        )
        gone = UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.epoch)
        return ControllerResult(
            records=(*(change for change in changes if change is not None), gone),
            response=UnregisterBrokerResponseRpc(),
            is_atomic=False,
        )

    def _partition(self, key: TopicIdPartition) -> PartitionRegistration:
        return self._state.topics[key.topic_id].partitions[key.partition]


def _is_led(partition: PartitionRegistration, kind: ElectionType) -> bool:
    """Return whether the partition has a leader of the requested kind."""
    if kind is ElectionType.PREFERRED:
        return partition.leader == partition.preferred_leader
    return partition.has_leader


def _require_elected(partition: PartitionRegistration, kind: ElectionType) -> None:
    """Require that the partition has a leader of the requested kind.

    :raises OperatingError: it has none.
    """
    if not _is_led(partition, kind):
        raise _NOT_PREFERRED if kind is ElectionType.PREFERRED else _NOBODY
