"""LOOP. ``DoubtfulCopies``: copies that may lack acknowledged records leave the ISR first.

* Such a copy is reported as LOST and then with its directory (KIP-858): it catches up as a
  follower (ADR 61).
* A copy that is already known to be damaged also leaves, if another replica is in sync.
* Metadata can be behind or ahead of the disks. A controller checks an uncleanly closed directory
  by the replicas that the metadata has in it (KIP-966 per directory). A copy found in another
  directory is checked here: it is complete only if the previous incarnation closed that directory
  cleanly.
* Until the controller knows about it, the copy does not become leader, and its directory is not
  marked as cleanly closed, so that the next start checks it again.
"""

from __future__ import annotations

from kraftjbod.broker.cluster.assignments_manager import AssignmentsManager
from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.replicas.hosted_replicas import HostedReplica, HostedReplicas
from kraftjbod.core.ids import (
    LOST_DIR,
    UNKNOWN_BROKER_EPOCH,
    BrokerId,
    DirectoryId,
    TopicPartition,
)
from kraftjbod.core.telemetry import get_logger
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.manager.log_manager import LogManager


class DoubtfulCopies:
    def __init__(
        self,
        *,
        broker_id: BrokerId,
        replicas: HostedReplicas,
        logs: LogManager,
        cache: MetadataCache,
        assignments: AssignmentsManager,
    ) -> None:
        self._broker_id = broker_id
        self._replicas = replicas
        self._logs = logs
        self._cache = cache
        self._assignments = assignments
        self._log = get_logger(component="doubtful_copies")

    def met(self, replica: HostedReplica, handle: LogHandle) -> None:
        """Check a copy that is about to be served. If it may lack acknowledged records, or is
        damaged while other replicas are in sync, it leaves the ISR (:meth:`leave_in_sync_set`).
        """
        named = replica.registration.directory_of(self._broker_id) or LOST_DIR
        found = handle.log_dir.directory_id
        if handle.log_end_offset < handle.checkpointed_recovery_point:
            # Independent of the clean shutdown mark of its directory.
            self._log.error(
                "replica_lost_flushed_records",
                partition=str(replica.topic_partition),
                end=handle.log_end_offset,
                flushed_to=handle.checkpointed_recovery_point,
            )
            self.leave_in_sync_set(replica, handle)
            return
        others = [one for one in replica.registration.isr if one != self._broker_id]
        if handle.damaged_from is not None and others:
            if replica.registration.counts_on(self._broker_id):
                self._log.error(
                    "damaged_replica_leaves_in_sync_set",
                    partition=str(replica.topic_partition),
                    offset=handle.damaged_from,
                )
                self.leave_in_sync_set(replica, handle)
            return
        if named == found or named.is_reserved:
            return
        is_whole = self._was_closed_cleanly(handle.log_dir)
        self._log.info(
            "replica_found_elsewhere",
            partition=str(replica.topic_partition),
            named=str(named),
            found=handle.log_dir.path,
            is_whole=is_whole,
        )
        if not is_whole and replica.registration.counts_on(self._broker_id):
            self.leave_in_sync_set(replica, handle)

    def leave_in_sync_set(self, replica: HostedReplica, handle: LogHandle) -> None:
        """Report the replica as LOST and then with its directory.

        Does nothing while the cluster does not know this broker's directories.
        """
        if self._cache.state.knows_dirs_of(self._broker_id):
            self._assignments.assign(replica.key, LOST_DIR)
            self._assignments.assign(replica.key, self._present_dir(replica, handle))

    def is_leaving(self, replica: HostedReplica) -> bool:
        """Return whether the report that the copy is LOST is still pending."""
        return self._assignments.is_losing(replica.key)

    def unreported(self) -> frozenset[TopicPartition]:
        """Return the partitions whose copy here may lack acknowledged records, while the controller
        has not accepted a report of that yet.
        """
        unjudged = (
            handle.topic_partition
            for handle in self._logs.handles()
            if self._is_unjudged(handle) and self._may_lack_records(handle)
        )
        leaving = (r.topic_partition for r in self._replicas if self.is_leaving(r))
        return frozenset((*unjudged, *leaving))

    def _is_unjudged(self, handle: LogHandle) -> bool:
        """Return whether :meth:`met` has not checked the copy, and will not before the broker
        stops.

        If a move finishes during the stop, an unchecked copy may have replaced a checked one.
        """
        replica = self._replicas.get(handle.topic_partition)
        return replica is None or replica.handle is None or not replica.handle.log_dir.is_online

    def _may_lack_records(self, handle: LogHandle) -> bool:
        is_shorter = handle.log_end_offset < handle.checkpointed_recovery_point
        return is_shorter or not self._was_closed_cleanly(handle.log_dir)

    def _present_dir(self, replica: HostedReplica, handle: LogHandle) -> DirectoryId:
        """Return the directory to report: the copy's, or the target of a move that the controller
        accepted."""
        named = replica.registration.directory_of(self._broker_id)
        future = self._logs.future(replica.topic_partition)
        is_moving = future is not None and future.log_dir.directory_id == named
        return named if named is not None and is_moving else handle.log_dir.directory_id

    def _was_closed_cleanly(self, log_dir: LogDir) -> bool:
        me = self._cache.state.brokers.get(self._broker_id)
        epoch = log_dir.clean_shutdown.broker_epoch
        # The present epoch belongs to directories that this incarnation detached and attached
        # again.
        return (
            me is not None
            and epoch != UNKNOWN_BROKER_EPOCH
            and epoch in (me.previous_epoch, me.epoch)
        )
