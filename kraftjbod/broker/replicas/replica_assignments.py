"""LOOP. ``ReplicaAssignments``: reports of replica directories to the controller.

For a replica that moves, the metadata deliberately names the target before the copies are swapped.
A later report may have withdrawn that target: a move that ended, or an old request that arrived
late. Then the target is reported again.
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
        """Report the replica's directory to the controller.

        Nothing is reported while the cluster does not know directories. All are reported when it
        does.
        """
        if self._cache.state.knows_dirs_of(self._broker_id):
            self._assignments.assign(replica.key, directory_id)

    def assign_without_log(self, replica: HostedReplica, directory_id: DirectoryId) -> None:
        """Report the directory of a replica without a log, even if the cluster knows no directories
        yet."""
        self._assignments.assign(replica.key, directory_id)

    def assign_moving(self, replica: HostedReplica) -> None:
        """Report the target of the replica's move again, if the metadata does not name it any
        more."""
        future = self._logs.future(replica.topic_partition)
        if future is None or self._assignments.is_queued(replica.key):
            return
        target = future.log_dir.directory_id
        if replica.registration.directory_of(self._broker_id) != target:
            self.assign(replica, target)

    def to_resume(self, replica: HostedReplica, action: ResumeMove) -> MoveToResume:
        """Return the move to resume.

        The move is not accepted if a pending report withdraws a target that the metadata still
        names.
        """
        is_taken_back = self._assignments.is_queued(replica.key)
        return MoveToResume(replica, action.is_accepted and not is_taken_back)
