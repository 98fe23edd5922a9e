"""PURE. The directory states that a broker reports, and those that the controller has acknowledged.

This is a part of ``lifecycle_state.py``, which decides when a report is sent.

* A registration lists the online directories; an impaired directory is online (KIP-928).
* A heartbeat lists the directories of the registration that are offline, impaired or cordoned now
  (KIP-858, KIP-928, KIP-1066).
* If ``metadata.version`` has no impaired directories, they are reported as offline, because nothing
  else makes the controller elect other leaders. Their recovery then needs a registration.
* A directory that the controller does not have as online is added only by another registration of
  the same incarnation: an *amendment*. One amendment reports all changes.
* An amendment keeps the broker epoch, so an abandoned heartbeat that arrives after it counts as
  new. The metadata shows the effect, and another amendment corrects it.
* A registration lists for each directory the broker epoch up to which its contents are complete.
  KIP-966 has one clean-shutdown mark per broker; here each directory is a failure domain. A
  directory that failed is not complete until a registration with it was answered again
  (ADR 59).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kraftjbod.core.ids import NO_INCARNATION, BrokerEpoch, DirectoryId, Uuid
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.protocol.rpc_messages import ImpairedLogDir
from kraftjbod.storage.checkpoints import NO_CLEAN_SHUTDOWN, CleanShutdown


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryChanges:
    """Directories that a registration adds or returns (``attached``), and releases
    (``forgotten``).
    """

    attached: tuple[DirectoryId, ...] = ()
    forgotten: tuple[DirectoryId, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.attached or self.forgotten)


class ReportedDirectories:
    """The states of this broker's directories, and the part of them that registrations and
    heartbeats have reported to the controller.

    Each method with the name of an event, such as ``failed``, must be called when that event
    occurs. The ``reported_`` properties are fields of the next registration request.
    """

    def __init__(
        self,
        *,
        online: Collection[DirectoryId],
        cordoned: Collection[DirectoryId],
        impaired: Mapping[DirectoryId, LogDirState],
        paths: Mapping[DirectoryId, str],
        incarnation_id: Uuid | None = None,
        clean_shutdowns: Mapping[DirectoryId, CleanShutdown] = MappingProxyType({}),
    ) -> None:
        """Create the state at startup; ``clean_shutdowns`` are the marks on the disks."""
        self._incarnation_id = incarnation_id
        self._online = set(online)
        self._cordoned = frozenset(cordoned)
        self._impaired = dict(impaired)
        self._paths = dict(paths)
        #: Directories in the present registration; a failed registration may be valid too.
        self._registered: frozenset[DirectoryId] = frozenset()
        #: Registered directories that a heartbeat has reported as offline.
        self._reported_offline: set[DirectoryId] = set()
        self._attached: set[DirectoryId] = set()
        self._forgotten: set[DirectoryId] = set()
        #: Directories in the registration in flight, and the changes that its response completes.
        self._asked: tuple[DirectoryId, ...] = ()
        self._asked_changes = DirectoryChanges()
        #: Epochs up to which directories are complete; only for directories without a failure
        #: since.
        self._whole = {d: stop for d, stop in clean_shutdowns.items() if d in self._online}
        #: Directories of the registration in flight that have not failed since it was sent.
        self._asked_unbroken: set[DirectoryId] = set()
        #: Whether ``metadata.version`` supports impaired directories.
        self.can_report_impaired = True

    def is_online(self, directory_id: DirectoryId) -> bool:
        return directory_id in self._online

    def is_registered(self, directory_id: DirectoryId) -> bool:
        """Return whether the present registration lists the directory, so that heartbeats can
        report on it."""
        return directory_id in self._registered

    @property
    def needs_amendment(self) -> bool:
        """Whether the controller must register a directory as online, or forget one."""
        listed = self._listed()
        return bool(
            listed - self._registered
            or listed & self._reported_offline
            or listed & self._attached
            or self._forgotten
        )

    def is_misheard(self, shown: frozenset[DirectoryId]) -> bool:
        """Return whether ``shown`` contradicts the last report, because an older one arrived late.

        :param shown: this broker's online directories according to the metadata.
        """
        said = self._registered & self._listed() - self._reported_offline
        return bool(said - shown or shown - self._registered)

    # --- contents of a registration --------------------------------------------------------------

    @property
    def asked(self) -> tuple[DirectoryId, ...]:
        """The directories in the last registration request, sorted."""
        return self._asked

    @property
    def reported_paths(self) -> tuple[str, ...]:
        """The paths of the directories in ``asked``, in the same order; "" if unknown."""
        return tuple(self._paths.get(directory_id, "") for directory_id in self._asked)

    @property
    def reported_cordoned(self) -> tuple[DirectoryId, ...]:
        return tuple(d for d in self._asked if d in self._cordoned)

    @property
    def reported_forgotten(self) -> tuple[DirectoryId, ...]:
        return self._asked_changes.forgotten

    @property
    def reported_clean_epochs(self) -> tuple[BrokerEpoch, ...]:
        """The epoch up to which each directory in ``asked`` is complete, in the same order; that of
        ``NO_CLEAN_SHUTDOWN`` if it is not known to be complete.
        """
        return tuple(self._whole.get(d, NO_CLEAN_SHUTDOWN).broker_epoch for d in self._asked)

    @property
    def reported_clean_incarnations(self) -> tuple[Uuid, ...]:
        """The incarnations that belong to ``reported_clean_epochs``, in the same order."""
        found = (self._whole.get(d, NO_CLEAN_SHUTDOWN).incarnation_id for d in self._asked)
        return tuple(one or NO_INCARNATION for one in found)

    def registration_sent(self) -> None:
        self._asked = tuple(sorted(self._listed()))
        self._asked_unbroken = set(self._asked)
        self._asked_changes = DirectoryChanges(
            attached=tuple(sorted(self._attached.intersection(self._asked))),
            forgotten=tuple(sorted(self._forgotten)),
        )

    def registration_answered(self, broker_epoch: BrokerEpoch) -> DirectoryChanges:
        """Note the accepted registration, and return the changes that the controller made by it.

        A directory that failed since the request counts as failed even if it is online again.
        """
        whole = self._whole.keys() | self._asked_unbroken
        stop = CleanShutdown(broker_epoch, self._incarnation_id)
        self._whole = dict.fromkeys(whole & self._online, stop)
        changes, self._asked_changes = self._asked_changes, DirectoryChanges()
        self._registered = frozenset(self._asked) - self._forgotten
        self._reported_offline.clear()
        self._attached -= set(changes.attached)
        self._forgotten -= set(changes.forgotten)
        return changes

    def registration_refused(self) -> DirectoryChanges:
        """Withdraw the changes that a refused registration contained, and return them.

        If it contained directories to forget, only these are withdrawn: a forbidden removal does
        not affect attached directories.
        """
        changes, self._asked_changes = self._asked_changes, DirectoryChanges()
        if changes.forgotten:
            self._forgotten -= set(changes.forgotten)
            self._registered |= set(changes.forgotten)
            return DirectoryChanges(forgotten=changes.forgotten)
        self._attached -= set(changes.attached)
        self._online -= set(changes.attached)
        return changes

    # --- contents of a heartbeat -----------------------------------------------------------------

    @property
    def offline(self) -> tuple[DirectoryId, ...]:
        """The offline directories for a heartbeat, sorted; cumulative within a registration."""
        return tuple(sorted(self._registered - self._listed()))

    @property
    def impaired(self) -> tuple[ImpairedLogDir, ...]:
        """The registered directories that are saturated or stalled, sorted by id."""
        known = self._registered & self._listed()
        return tuple(
            ImpairedLogDir(directory_id=directory_id, state=state)
            for directory_id, state in sorted(self._impaired.items())
            if directory_id in known
        )

    @property
    def cordoned(self) -> tuple[DirectoryId, ...]:
        return tuple(sorted(self._registered & self._cordoned))

    def heartbeat_sent(self) -> None:
        self._reported_offline.update(self.offline)

    # --- events of directories -------------------------------------------------------------------

    def failed(self, directory_id: DirectoryId) -> None:
        self._online.discard(directory_id)
        self._whole.pop(directory_id, None)
        self._asked_unbroken.discard(directory_id)
        self._attached.discard(directory_id)
        self._impaired.pop(directory_id, None)

    def became_impaired(self, directory_id: DirectoryId, state: LogDirState) -> None:
        assert state.is_impaired, state
        if directory_id in self._online:
            self._impaired[directory_id] = state

    def recovered(self, directory_id: DirectoryId) -> None:
        self._impaired.pop(directory_id, None)

    def cordons_changed(self, cordoned: frozenset[DirectoryId]) -> None:
        self._cordoned = cordoned

    def attached(self, directory_id: DirectoryId, path: str) -> None:
        self._online.add(directory_id)
        self._paths[directory_id] = path
        self._attached.add(directory_id)
        self._forgotten.discard(directory_id)

    def forgotten(self, directory_id: DirectoryId) -> None:
        """Note that the controller should forget the directory.

        Heartbeats no longer contain it, because the controller may have forgotten it already.
        """
        self.failed(directory_id)
        self._registered -= {directory_id}
        self._forgotten.add(directory_id)

    def _listed(self) -> frozenset[DirectoryId]:
        if self.can_report_impaired:
            return frozenset(self._online)
        return frozenset(self._online - self._impaired.keys())
