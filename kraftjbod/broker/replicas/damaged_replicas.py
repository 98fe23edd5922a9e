"""LOOP. ``DamagedReplicas``: what becomes of a replica whose log turns out to be damaged (KIP-18).

* A leader with another in-sync replica steps down: it reports its copy as LOST, which takes it out
  of leadership and in-sync set (KIP-858), and then where the copy really is. As a follower it
  truncates its log before the damage and fetches the rest anew (replica_fetcher.py).
* Alone it stays, because nobody has more: what is sound is served, the damaged offsets are
  answered with CORRUPT_MESSAGE. So it does in a cluster from before directories, which could not
  be told.
* A follower in the in-sync set leaves that first, in the same way: what others count on must not
  be cut. It fetches nothing meanwhile, so that nobody takes it back before that.

Whether there is anybody to hand over to is asked anew each time that the damage is met, by a read,
by a fetch loop that begins, or by the scrub.
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
        #: In which leader epoch what was decided, so that it is done and logged once. Holds only
        #: replicas that were damaged in this life of the broker.
        self._decided: dict[TopicIdPartition, tuple[LeaderEpoch, bool]] = {}
        #: In which partition epoch a follower was taken out of the in-sync set; as above.
        self._taken_out: dict[TopicIdPartition, PartitionEpoch] = {}
        self._log = get_logger(component="damaged_replicas")

    def met(self, replica: HostedReplica) -> None:
        """The damage was met; nothing happens if there is none any more."""
        partition, handle = replica.partition, replica.handle
        if partition is None or handle is None or handle.damaged_from is None:
            return
        if replica.is_assigned_by_move:
            return
        if partition.is_leader:
            self._met_by_leader(replica, partition, handle)
        elif partition.is_counted:
            self._met_in_sync(replica, partition, handle)

    def _met_by_leader(
        self, replica: HostedReplica, partition: Partition, handle: LogHandle
    ) -> None:
        heirs = []
        if self._cache.state.knows_dirs_of(self._broker_id):
            heirs = [member for member in partition.isr if member != self._broker_id]
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
            return  # It fetches nothing, so its leader will miss it before long.
        if self._taken_out.get(replica.key) == partition.partition_epoch:
            return
        self._taken_out[replica.key] = partition.partition_epoch
        self._log.warning(
            "damaged_follower_leaves_in_sync_set",
            partition=str(replica.topic_partition),
            offset=handle.damaged_from,
        )
        self._doubtful.leave_in_sync_set(replica, handle)
