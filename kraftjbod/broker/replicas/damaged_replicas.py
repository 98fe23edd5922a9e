"""LOOP. ``DamagedReplicas``: reaction to a replica whose log is damaged (KIP-18).

* A leader with another in-sync replica resigns. It reports its copy as LOST, which ends its
  leadership and its membership in the ISR (KIP-858), and then its real directory. As a follower it
  truncates its log before the damage and fetches the rest again (replica_fetcher.py).
* A leader without another in-sync replica stays leader, because no replica has more records. It
  serves the intact records and returns CORRUPT_MESSAGE for the damaged offsets. The same holds if
  the cluster's metadata version has no directories, because LOST cannot be reported then.
* A follower in the ISR leaves the ISR first, in the same way, because records that the ISR counts
  on must not be truncated. It does not fetch meanwhile, so that it does not rejoin too early.

A read, a starting fetch loop or the scrub reports the damage. Each report checks again for another
in-sync replica.
"""

from __future__ import annotations

from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.partitions.partition import Partition
from kraftjbod.broker.replicas.doubtful_copies import DoubtfulCopies
from kraftjbod.broker.replicas.hosted_replicas import HostedReplica
from kraftjbod.core.ids import (
    BrokerId,
    LeaderEpoch,
    PartitionEpoch,
    TopicIdPartition,
)
from kraftjbod.core.telemetry import get_logger
from kraftjbod.storage.log.log_handle import LogHandle


class DamagedReplicas:
    def __init__(
        self, *, broker_id: BrokerId, cache: MetadataCache, doubtful: DoubtfulCopies
    ) -> None:
        self._broker_id = broker_id
        self._cache = cache
        self._doubtful = doubtful
        #: The leader epoch of the last decision and whether it resigned, so that each decision is
        #: made and logged once. Has only replicas that were damaged since this broker started.
        self._decided: dict[TopicIdPartition, tuple[LeaderEpoch, bool]] = {}
        #: The partition epoch in which a follower left the ISR. Same lifetime as above.
        self._taken_out: dict[TopicIdPartition, PartitionEpoch] = {}
        self._log = get_logger(component="damaged_replicas")

    def met(self, replica: HostedReplica) -> bool:
        """Make a replica with a damaged log leave the ISR, so that another in-sync replica leads.
        Damage without such a replica is only logged.

        Does nothing if the log is not damaged any more, or while a move is about to replace the
        copy.

        :return: whether the log is damaged, this broker leads, and another in-sync replica can
            become leader, which has the damaged records.
        """
        partition, handle = replica.partition, replica.handle
        if partition is None or handle is None or handle.damaged_from is None:
            return False
        heirs = self._heirs(partition) if partition.is_leader else []
        if replica.is_assigned_by_move:
            return bool(heirs)
        if partition.is_leader:
            self._met_by_leader(replica, partition, handle, heirs)
        elif partition.is_counted:
            self._met_in_sync(replica, partition, handle)
        return bool(heirs)

    def _heirs(self, partition: Partition) -> list[BrokerId]:
        if not self._cache.state.knows_dirs_of(self._broker_id):
            return []
        return [member for member in partition.isr if member != self._broker_id]

    def _met_by_leader(
        self,
        replica: HostedReplica,
        partition: Partition,
        handle: LogHandle,
        heirs: list[BrokerId],
    ) -> None:
        decision = (partition.leader_epoch, bool(heirs))
        if self._decided.get(replica.key) == decision:
            return
        self._decided[replica.key] = decision
        where = {"partition": str(replica.topic_partition), "offset": handle.damaged_from}
        if not heirs:
            self._log.error("damaged_leader_has_no_heir", **where)
            return
        self._log.error("damaged_leader_steps_down", **where, in_sync=heirs)
        self._doubtful.leave_in_sync_set(replica, handle)

    def _met_in_sync(self, replica: HostedReplica, partition: Partition, handle: LogHandle) -> None:
        if not self._cache.state.knows_dirs_of(self._broker_id):
            return  # It does not fetch, so its leader will remove it from the ISR soon.
        if self._taken_out.get(replica.key) == partition.partition_epoch:
            return
        self._taken_out[replica.key] = partition.partition_epoch
        self._log.warning(
            "damaged_follower_leaves_in_sync_set",
            partition=str(replica.topic_partition),
            offset=handle.damaged_from,
        )
        self._doubtful.leave_in_sync_set(replica, handle)
