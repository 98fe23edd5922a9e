"""PURE. ``DirectoryReturns``: directories that a registration brings back or gives up for good.

* A directory comes back *clean* only if it says so: its clean-shutdown epoch is that of the former
  registration. KIP-966 asks this of whole brokers; here each directory answers for itself.
* A return that is not clean is a failure and a return in one entry, heard or not: logs may have
  lost their ends. Each replica in it leaves the in-sync set and the eligible leaders, and one that
  led never leads on in that leader epoch. Replicas whose directory is not known go with them.
* A directory that is forgotten takes its replicas along; they are made anew elsewhere.

What follows for one partition is decided in partition_change.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from kraftjbod.controller.cluster_control import ClusterControlManager
from kraftjbod.controller.partitions.acceptance import Acceptance
from kraftjbod.controller.partitions.partition_assignment import Assignment
from kraftjbod.controller.partitions.partition_change import Election, change_partition
from kraftjbod.controller.partitions.replica_index import ReplicaIndex
from kraftjbod.controller.partitions.topic_rules import RulesOf, TopicRules, rules_by_topic
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import (
    MIGRATING_DIR,
    NO_INCARNATION,
    UNASSIGNED_DIR,
    UNKNOWN_BROKER_EPOCH,
    BrokerId,
    DirectoryId,
    TopicIdPartition,
)
from kraftjbod.metadata.records import PartitionChangeRecord
from kraftjbod.metadata.registrations import BrokerRegistration, PartitionRegistration
from kraftjbod.metadata.state import MetadataState
from kraftjbod.protocol.rpc_messages import BrokerRegistrationRequest

MAX_NAMED: Final = 10
_REFUSED: Final = Acceptance.REFUSED


class DirectoryReturns:
    """Decides about partitions; reads the shared state and changes nothing."""

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

    # --- back ------------------------------------------------------------------------------------

    def come_back(
        self,
        former: BrokerRegistration,
        after: BrokerRegistration,
        request: BrokerRegistrationRequest,
        *,
        but_for: Collection[TopicIdPartition] = (),
        most: int | None = None,
    ) -> list[PartitionChangeRecord]:
        """The replicas in unclean directories of ``request`` leave whoever holds their records.

        ``former`` is what the broker was registered as, ``after`` what the request makes of it.

        :param most: so many changes and no more; None for all.
        """
        broker_id, records = after.broker_id, list[PartitionChangeRecord]()
        acceptance = self._cluster.acceptance_with(after)
        rules_of = rules_by_topic(self._state, self._rules_of)
        for key in self._in_directories(broker_id, unclean_directories(former, request)):
            partition = self._partition(key)
            if key in but_for or not _is_concerned(broker_id, partition):
                continue
            rules = rules_of(key.topic_id)
            record = change_partition(
                key,
                partition,
                rules=rules,
                election=Election.allowed_by(rules),
                acceptance=acceptance,
                unclean=broker_id,
            )
            if record is not None:
                records.append(record)
            if len(records) == most:
                break
        return records

    # --- gone ------------------------------------------------------------------------------------

    def forget(
        self, after: BrokerRegistration, forgotten: Iterable[DirectoryId]
    ) -> list[PartitionChangeRecord]:
        """What was in these directories of the broker is lost, and may be made anew anywhere.

        Its replicas are neither in sync nor eligible. Where nobody else is, records would be lost:
        only a topic that allows unclean elections lets them go.

        :raises OperatingError: INVALID_REQUEST, naming the partitions that would lose records.
        """
        broker_id, records = after.broker_id, list[PartitionChangeRecord]()
        rules_of = rules_by_topic(self._state, self._rules_of)
        last_copies: list[str] = []
        for key in self._in_directories(broker_id, forgotten):
            partition, rules = self._partition(key), rules_of(key.topic_id)
            if set(partition.holders) <= {broker_id} and not rules.may_elect_unclean:
                last_copies.append(f"{self._state.topics[key.topic_id].name}-{key.partition}")
            else:
                records.append(self._without_copy(key, partition, after, rules))
        if last_copies:
            raise _last_copies_error(broker_id, last_copies)
        return records

    def _without_copy(
        self,
        key: TopicIdPartition,
        partition: PartitionRegistration,
        after: BrokerRegistration,
        rules: TopicRules,
    ) -> PartitionChangeRecord:
        broker_id, as_it_will_be = after.broker_id, self._cluster.acceptance_with(after)

        def without_it(other_id: BrokerId, directory_id: DirectoryId) -> Acceptance:
            return as_it_will_be(other_id, directory_id) if other_id != broker_id else _REFUSED

        wanted = Assignment.of(partition).with_directory(broker_id, UNASSIGNED_DIR)
        record = _required(
            change_partition(
                key,
                partition,
                rules=rules,
                election=Election.allowed_by(rules),
                acceptance=without_it,
                assignment=wanted,
                unclean=broker_id,
            )
        )
        others = [holder for holder in partition.holders if holder != broker_id]
        if others or partition.merge(record).has_leader:
            return record
        # It begins anew, empty and in another epoch, as soon as its broker may lead.
        record = _required(
            change_partition(
                key,
                partition,
                rules=rules,
                election=Election.allowed_by(rules),
                acceptance=as_it_will_be,
                isr=(broker_id,),
                assignment=wanted,
                leader_recovering=True,
            )
        )
        return dataclasses.replace(record, leader=partition.merge(record).leader)

    # --- shared ----------------------------------------------------------------------------------

    def _partition(self, key: TopicIdPartition) -> PartitionRegistration:
        return self._state.topics[key.topic_id].partitions[key.partition]

    def _in_directories(
        self, broker_id: BrokerId, directories: Iterable[DirectoryId]
    ) -> list[TopicIdPartition]:
        return [
            key
            for directory_id in sorted(set(directories))
            for key in self._index.partitions_in_directory(broker_id, directory_id)
        ]


def _is_concerned(broker_id: BrokerId, partition: PartitionRegistration) -> bool:
    """Whether a return of the broker may change it; after a while of absence hardly any is."""
    return partition.counts_on(broker_id) or not partition.has_leader or partition.is_reassigning


def unclean_directories(
    former: BrokerRegistration, request: BrokerRegistrationRequest
) -> frozenset[DirectoryId]:
    """Directories that ``request`` brings back without knowing that they are whole.

    UNASSIGNED and MIGRATING are among them as soon as one is that may hold such a replica: one that
    ``former`` had, or any if it had none.
    """
    is_same = former.incarnation_id == request.incarnation_id
    # Epochs are offsets; a log that was followed for a while instead of this one gave the same.
    whole = {(former.epoch, former.incarnation_id), (former.epoch, NO_INCARNATION)}
    # Its answer was lost: the incarnation says once more what was judged already.
    judged = former.previous_epoch if is_same else UNKNOWN_BROKER_EPOCH
    epochs = request.clean_shutdown_epochs or (UNKNOWN_BROKER_EPOCH,) * len(request.log_dirs)
    writers = request.clean_shutdown_incarnations or (NO_INCARNATION,) * len(request.log_dirs)
    unclean = {
        directory_id
        for directory_id, epoch, writer in zip(request.log_dirs, epochs, writers, strict=True)
        if epoch == UNKNOWN_BROKER_EPOCH or (epoch != judged and (epoch, writer) not in whole)
    }
    known = former.known_log_dirs
    is_nameless = not request.log_dirs and not is_same
    if is_nameless or (unclean & known if known else unclean):
        unclean |= {UNASSIGNED_DIR, MIGRATING_DIR}
    return frozenset(unclean)


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
