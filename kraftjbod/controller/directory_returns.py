"""PURE. ``DirectoryReturns``: directories that a registration brings back or releases permanently.

* A directory returns *clean* only if its clean-shutdown epoch is that of the former registration.
  KIP-966 requires this of whole brokers, this controller of each directory (ADR 57).
* An unclean return counts as a failure and a return in one entry, because logs may have lost their
  ends. Each replica in it leaves the in-sync set and the eligible leaders. A leader there gets at
  least a new leader epoch. The same applies to replicas whose directory is unknown.
* If very many replicas return unclean, the entries before the registration contain failures only.
  No replica of the broker may lead there, because the metadata does not have its return yet.
* The replicas of a forgotten directory are lost. They are recreated elsewhere. If they are very
  many, the entries before the registration contain their losses only: no such replica may lead.

partition_change.py decides what follows for one partition.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from kraftjbod.controller.cluster_control import ClusterControlManager
from kraftjbod.controller.partitions.acceptance import Acceptance, AcceptanceOf
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
    """Decides the changes of partitions whose directories return after a failure or are forgotten.

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

    # --- returning directories -------------------------------------------------------------------

    def fail(
        self,
        after: BrokerRegistration,
        directories: Iterable[DirectoryId],
        *,
        but_for: Collection[TopicIdPartition] = (),
        most: int,
    ) -> list[PartitionChangeRecord]:
        """Return the changes that remove replicas in unclean directories from ISR and eligible
        leaders, before the broker's registration is recorded.

        No replica of the broker is elected. If its replicas may lead after the registration, no
        unclean election occurs either, because the last leader has more records than others. A
        second call returns no change of the same partition.

        :param after: the registration that will be recorded.
        :param directories: the unclean directories.
        :param but_for: partitions to be left out.
        :param most: maximum number of changes.
        """
        broker_id, records = after.broker_id, list[PartitionChangeRecord]()
        rules_of = rules_by_topic(self._state, self._rules_of)
        acceptance = _refusing(broker_id, self._cluster.acceptance)
        for key in self._in_directories(broker_id, directories):
            partition = self._partition(key)
            if key in but_for or not _may_fail(broker_id, partition):
                continue
            rules = rules_of(key.topic_id)
            record = change_partition(
                key,
                partition,
                rules=rules,
                election=Election.ONLINE if after.is_active else Election.allowed_by(rules),
                acceptance=acceptance,
                unclean=broker_id,
            )
            if record is not None:
                records.append(record)
            if len(records) == most:
                break
        return records

    def come_back(
        self, after: BrokerRegistration, keys: Iterable[TopicIdPartition]
    ) -> list[PartitionChangeRecord]:
        """Return the changes by which the broker's replicas of some partitions fail and return in
        the entry that registers the broker.

        :param after: the registration in that entry.
        :param keys: the partitions that :meth:`fail` would change.
        """
        acceptance = self._cluster.acceptance_with(after)
        rules_of = rules_by_topic(self._state, self._rules_of)
        changes = (
            change_partition(
                key,
                self._partition(key),
                rules=rules_of(key.topic_id),
                election=Election.allowed_by(rules_of(key.topic_id)),
                acceptance=acceptance,
                unclean=after.broker_id,
            )
            for key in keys
        )
        return [change for change in changes if change is not None]

    def undecided(
        self, broker_id: BrokerId, directories: Iterable[DirectoryId]
    ) -> list[TopicIdPartition]:
        """Return the partitions with a replica in these directories that may gain a leader, or
        complete a reassignment, when the broker returns."""
        return [
            key
            for key in self._in_directories(broker_id, directories)
            if not (partition := self._partition(key)).has_leader or partition.is_reassigning
        ]

    # --- forgotten directories -------------------------------------------------------------------

    def require_no_last_copies(self, broker_id: BrokerId, forgotten: Iterable[DirectoryId]) -> None:
        """Require that a partition keeps a replica with its records if the broker releases these
        directories, or allows unclean elections.

        :raises OperatingError: INVALID_REQUEST, naming the partitions that would lose records.
        """
        rules_of = rules_by_topic(self._state, self._rules_of)
        last_copies = [
            f"{self._state.topics[key.topic_id].name}-{key.partition}"
            for key in self._in_directories(broker_id, forgotten)
            if set(self._partition(key).holders) <= {broker_id}
            and not rules_of(key.topic_id).may_elect_unclean
        ]
        if last_copies:
            raise _last_copies_error(broker_id, last_copies)

    def lose(
        self, after: BrokerRegistration, forgotten: Iterable[DirectoryId], *, most: int
    ) -> list[PartitionChangeRecord]:
        """Return the changes by which replicas in directories that the broker released are lost.

        These replicas are neither in sync nor eligible, and have no directory any more. No replica
        of the broker is elected. A second call returns no change of the same partition.

        :param after: the registration that will be recorded.
        :param most: maximum number of changes.
        """
        broker_id = after.broker_id
        rules_of = rules_by_topic(self._state, self._rules_of)
        acceptance = _refusing(broker_id, self._cluster.acceptance)
        return [
            _required(
                change_partition(
                    key,
                    self._partition(key),
                    rules=rules_of(key.topic_id),
                    election=Election.allowed_by(rules_of(key.topic_id)),
                    acceptance=acceptance,
                    assignment=self._without_directory(broker_id, key),
                    unclean=broker_id,
                )
            )
            for key in self._in_directories(broker_id, forgotten)[:most]
        ]

    def recreate(
        self, after: BrokerRegistration, lost: Iterable[PartitionChangeRecord]
    ) -> list[PartitionChangeRecord]:
        """Return the changes of :meth:`lose` for the entry that registers the broker.

        A replica restarts empty, in a new leader epoch, if no other replica has the records or can
        lead. Only partitions that allow unclean elections have such replicas.

        :param after: the registration in that entry.
        """
        rules_of = rules_by_topic(self._state, self._rules_of)
        return [self._restarted(after, record, rules_of(record.topic_id)) for record in lost]

    def _restarted(
        self, after: BrokerRegistration, lost: PartitionChangeRecord, rules: TopicRules
    ) -> PartitionChangeRecord:
        key, broker_id = TopicIdPartition(lost.topic_id, lost.partition_id), after.broker_id
        partition = self._partition(key)
        others = [holder for holder in partition.holders if holder != broker_id]
        if others or partition.merge(lost).has_leader:
            return lost
        record = _required(
            change_partition(
                key,
                partition,
                rules=rules,
                election=Election.allowed_by(rules),
                acceptance=self._cluster.acceptance_with(after),
                isr=(broker_id,),
                assignment=self._without_directory(broker_id, key),
                leader_recovering=True,
            )
        )
        return dataclasses.replace(record, leader=partition.merge(record).leader)

    def _without_directory(self, broker_id: BrokerId, key: TopicIdPartition) -> Assignment:
        present = Assignment.of_partition(self._partition(key))
        return present.with_directory(broker_id, UNASSIGNED_DIR)

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


def _refusing(broker_id: BrokerId, acceptance: AcceptanceOf) -> AcceptanceOf:
    """Return a function that answers as ``acceptance``, but REFUSED for replicas of the broker."""

    def without_it(other_id: BrokerId, directory_id: DirectoryId) -> Acceptance:
        return acceptance(other_id, directory_id) if other_id != broker_id else _REFUSED

    return without_it


def _may_fail(broker_id: BrokerId, partition: PartitionRegistration) -> bool:
    """Return whether the failure of the broker's replica may change the partition. After a long
    absence few partitions may change."""
    return (
        broker_id in partition.isr
        or broker_id in partition.elr
        # The only last known leader stays so: no other replica has more records.
        or (broker_id in partition.last_known_elr and len(partition.last_known_elr) > 1)
    )


def unclean_directories(
    former: BrokerRegistration, request: BrokerRegistrationRequest
) -> frozenset[DirectoryId]:
    """Return the directories in ``request`` whose logs may have lost records.

    A directory is complete if its clean-shutdown epoch and incarnation are those of ``former``. A
    repeated request of the same incarnation may also name the epoch that was judged before.

    UNASSIGNED and MIGRATING are included if an unclean directory may hold a replica that has no
    assigned directory: one known to ``former``, or any if ``former`` had none. They are also
    included if another incarnation registers without any directory.
    """
    is_same = former.incarnation_id == request.incarnation_id
    # Epochs are offsets, so another metadata log that was followed meanwhile may have the same.
    whole = {(former.epoch, former.incarnation_id), (former.epoch, NO_INCARNATION)}
    # The answer was lost: the same incarnation repeats an epoch that was judged already.
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
