"""``DamagedReplicas``: what becomes of a leader whose own log turns out to be damaged (KIP-18).

* With another in-sync replica it steps down: it reports its copy as LOST, which takes it out of
  leadership and in-sync set (KIP-858), and then where the copy really is. As a follower it cuts
  its log before the damage and fetches the rest anew (replica_fetcher.py).
* Alone it stays, because nobody has more: what is sound is served, the damaged offsets are
  answered with CORRUPT_MESSAGE. So it does in a cluster from before directories, which could not
  be told.

Whether there is anybody to hand over to is asked anew each time that the damage is met.
"""

from __future__ import annotations

from kraftjbod.broker.assignments_manager import AssignmentsManager
from kraftjbod.broker.hosted_replicas import HostedReplica
from kraftjbod.broker.metadata_cache import MetadataCache
from kraftjbod.core.ids import LOST_DIR, BrokerId, LeaderEpoch, TopicIdPartition
from kraftjbod.core.telemetry import get_logger


class DamagedReplicas:
    def __init__(
        self, *, broker_id: BrokerId, cache: MetadataCache, assignments: AssignmentsManager
    ) -> None:
        self._broker_id = broker_id
        self._cache = cache
        self._assignments = assignments
        #: In which leader epoch what was decided, so that it is done and told once. Holds only
        #: replicas that were damaged in this life of the broker.
        self._decided: dict[TopicIdPartition, tuple[LeaderEpoch, bool]] = {}
        self._log = get_logger(component="damaged_replicas")

    def met(self, replica: HostedReplica) -> None:
        """A read as the leader met damage; nothing happens if that is not so any more."""
        partition, handle = replica.partition, replica.handle
        if partition is None or handle is None or handle.damaged_from is None:
            return
        if not partition.is_leader or replica.is_assigned_by_move:
            return
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
        directory_id = handle.log_dir.directory_id
        self._assignments.assign(
            replica.key, LOST_DIR, lambda: self._assignments.assign(replica.key, directory_id)
        )
