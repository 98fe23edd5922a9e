"""PURE. Directory failures that the controller may not know yet, with their deadlines (KIP-858).

This is a part of ``lifecycle_state.py``, which knows the reports.

* Each failure has its own deadline until the controller has acknowledged it.
* The deadline stays while an assignment of a replica into the failed directory is pending: the
  controller treats such a replica as healthy in another directory.
* Until then the directory does not return (ADR 59). With an online directory the controller would
  not elect another leader for the replica, which may have lost records and must not stay leader.
* At its deadline the broker stops if it still leads a replica there: this is the only other way to
  make the controller elect another leader.
"""

from __future__ import annotations

from collections.abc import Collection, Set

from kraftjbod.broker.cluster.lifecycle.lifecycle_events import (
    Action,
    ArmReportDeadline,
    DirectoryFailed,
    DisarmReportDeadline,
    ShutDown,
)
from kraftjbod.core.errors import UnreportedLogDirError
from kraftjbod.core.ids import DirectoryId


class FailureReports:
    """The failed directories that the controller does not know completely yet, each with the
    deadline at which the broker must stop if it still leads a replica there.

    :param timeout_ms: time from a failure to its deadline (``log.dir.failure.timeout.ms``).
    """

    def __init__(self, *, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        #: Failures that the controller has not acknowledged.
        self._unreported: dict[DirectoryId, DirectoryFailed] = {}
        #: Acknowledged failures with a replica whose assignment is still pending.
        self._half_reported: dict[DirectoryId, DirectoryFailed] = {}

    @property
    def unreported(self) -> Set[DirectoryId]:
        """Directories whose failure the controller has not acknowledged."""
        return self._unreported.keys()

    def is_known(self, directory_id: DirectoryId) -> bool:
        """Return whether no report about this directory is pending.

        True if the directory has not failed. Otherwise True once the controller has acknowledged
        the failure, and knows of each affected replica that it was in this directory.
        """
        half_reported = self._half_reported.get(directory_id)
        return directory_id not in self._unreported and (
            half_reported is None or not half_reported.has_unreported_replicas()
        )

    def began(self, failure: DirectoryFailed, now_ms: int) -> list[Action]:
        self._unreported[failure.directory_id] = failure
        return [ArmReportDeadline(failure.directory_id, now_ms + self._timeout_ms)]

    def reported(self, directory_ids: Collection[DirectoryId]) -> list[Action]:
        """Record that the controller acknowledged these failures, all of which must be in
        ``unreported``. Return the actions that follow."""
        actions: list[Action] = []
        for directory_id in sorted(directory_ids):
            failure = self._unreported.pop(directory_id)
            if failure.has_unreported_replicas():
                self._half_reported[directory_id] = failure
            else:
                actions.append(DisarmReportDeadline(directory_id))
        return actions

    def over(self, directory_id: DirectoryId) -> list[Action]:
        """Forget the failure of a directory that returned or that the cluster released. Return the
        actions that follow."""
        failures = (
            self._unreported.pop(directory_id, None),
            self._half_reported.pop(directory_id, None),
        )
        return [DisarmReportDeadline(directory_id)] if any(failures) else []

    def deadline_passed(self, directory_id: DirectoryId, now_ms: int) -> list[Action]:
        half_reported = self._half_reported.get(directory_id)
        if half_reported is not None and not half_reported.has_unreported_replicas():
            del self._half_reported[directory_id]
            return []
        failure = self._unreported.get(directory_id, half_reported)
        if failure is None:
            return []
        if not failure.leads():
            # A controller without knowledge of the failure may still make it leader there.
            return [ArmReportDeadline(directory_id, now_ms + self._timeout_ms)]
        why = (
            f"log directory {directory_id} is offline, this broker leads replicas there, and no "
            f"controller acknowledged this within "
            f"log.dir.failure.timeout.ms={self._timeout_ms}"
        )
        return [ShutDown(UnreportedLogDirError(why, directory_id=directory_id))]
