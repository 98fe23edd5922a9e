"""PURE. Failures of directories on their way to the controller, and how long that may take
(KIP-858).

Part of ``lifecycle_state.py``, which knows what was reported.

* Each failure has a deadline of its own until the controller is known to know of it.
* The deadline stays while a replica's assignment into the failed directory has not come through:
  the controller takes such a replica for a healthy one somewhere else.
* For as long the directory does not come back: with it online the controller would never elect
  another leader for such a replica, which may have lost records, and must not lead on.
* Past its deadline the broker stops if it still leads a replica there: that is the only other way
  to make the controller elect somebody else.
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
    """``timeout_ms`` is ``log.dir.failure.timeout.ms``."""

    def __init__(self, *, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        #: Failures that the controller may not know of yet.
        self._unreported: dict[DirectoryId, DirectoryFailed] = {}
        #: Those that it knows of, while it may not know of every replica in them.
        self._half_reported: dict[DirectoryId, DirectoryFailed] = {}

    @property
    def unreported(self) -> Set[DirectoryId]:
        """Directories whose failure the controller may not know of yet."""
        return self._unreported.keys()

    def is_known(self, directory_id: DirectoryId) -> bool:
        """Whether the controller knows of the failure, and of every replica that it struck."""
        half_reported = self._half_reported.get(directory_id)
        return directory_id not in self._unreported and (
            half_reported is None or not half_reported.has_unreported_replicas()
        )

    def began(self, failure: DirectoryFailed, now_ms: int) -> list[Action]:
        self._unreported[failure.directory_id] = failure
        return [ArmReportDeadline(failure.directory_id, now_ms + self._timeout_ms)]

    def reported(self, directory_ids: Collection[DirectoryId]) -> list[Action]:
        """The controller knows of these, all of which were ``unreported``."""
        actions: list[Action] = []
        for directory_id in sorted(directory_ids):
            failure = self._unreported.pop(directory_id)
            if failure.has_unreported_replicas():
                self._half_reported[directory_id] = failure
            else:
                actions.append(DisarmReportDeadline(directory_id))
        return actions

    def over(self, directory_id: DirectoryId) -> list[Action]:
        """The directory is back or forgotten: nobody waits for its failure to be known."""
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
            # It may be made leader there by a controller that does not know yet.
            return [ArmReportDeadline(directory_id, now_ms + self._timeout_ms)]
        why = (
            f"log directory {directory_id} is offline, this broker leads replicas there, and no "
            f"controller heard all of that within "
            f"log.dir.failure.timeout.ms={self._timeout_ms}"
        )
        return [ShutDown(UnreportedLogDirError(why, directory_id=directory_id))]
