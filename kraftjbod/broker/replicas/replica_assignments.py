"""LOOP. ``ReplicaAssignments``: what the controller is told of where replicas are.

Of one that moves the metadata is ahead of the disk, or about to be, and on purpose: the move asks
before its copies change places. What was asked for may have been taken back, by a move that ended
or by a request that nobody answered in time and that came after a later one; then it is asked for
again.
"""

from __future__ import annotations

from kraftjbod.broker.cluster.assignments_manager import AssignmentsManager
from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.replicas.directory_reconcile import ResumeMove
from kraftjbod.broker.replicas.hosted_replicas import HostedReplica
from kraftjbod.broker.replicas.replica_changes import MoveToResume
from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.storage.manager.log_manager import LogManager


class ReplicaAssignments:
    def __init__(
        self,
        *,
        broker_id: BrokerId,
        cache: MetadataCache,
        logs: LogManager,
        assignments: AssignmentsManager,
    ) -> None:
        self._broker_id = broker_id
        self._cache = cache
        self._logs = logs
        self._assignments = assignments

    def assign(self, replica: HostedReplica, directory_id: DirectoryId) -> None:
        """A cluster from before directories would not hear of them; they are reported once it
        does."""
        if self._cache.state.knows_dirs_of(self._broker_id):
            self._assignments.assign(replica.key, directory_id)

    def assign_without_log(self, replica: HostedReplica, directory_id: DirectoryId) -> None:
        """That it is lost waits until the cluster hears of it."""
        self._assignments.assign(replica.key, directory_id)

    def assign_moving(self, replica: HostedReplica) -> None:
        """Ask for the target once more, if the metadata has gone back from it."""
        future = self._logs.future(replica.topic_partition)
        if future is None or self._assignments.is_queued(replica.key):
            return
        target = future.log_dir.directory_id
        if replica.registration.directory_of(self._broker_id) != target:
            self.assign(replica, target)

    def to_resume(self, replica: HostedReplica, action: ResumeMove) -> MoveToResume:
        """What was taken back may be on its way, while the metadata names the target still."""
        is_taken_back = self._assignments.is_queued(replica.key)
        return MoveToResume(replica, action.is_accepted and not is_taken_back)
