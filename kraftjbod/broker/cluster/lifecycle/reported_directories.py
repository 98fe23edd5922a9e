"""PURE. What a broker reports of its directories, and what the controller knows of them.

Part of ``lifecycle_state.py``, which decides when something is reported.

* A registration lists the directories that are online; an impaired one is online (KIP-928).
* A heartbeat lists those of the registration that are offline now, those that are impaired now, and
  those that are cordoned now (KIP-858, KIP-928, KIP-1066).
* Below the level that has impaired directories they are reported offline, as nothing else makes the
  controller elect other leaders there; coming back takes a registration then.
* A directory that the controller takes for offline or does not know counts again only through a
  registration of the same incarnation: an *amendment*. One amendment reports all that is new.
* An amendment has the epoch of the registration before it, so a heartbeat that was given up, and
  comes after it, is taken for one of now. Metadata shows that, and another amendment mends it.
* Each directory of a registration says up to which broker epoch its contents are known to be whole
  (KIP-966 has one clean mark per broker; a directory is a failure domain of its own here). One that
  failed is never whole before a registration that names it anew was answered.
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
    """Directories that somebody waits for the controller to know of, or to forget."""

    attached: tuple[DirectoryId, ...] = ()
    forgotten: tuple[DirectoryId, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.attached or self.forgotten)


class ReportedDirectories:
    """Plain state; every method that changes it is named after what happened."""

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
        """``clean_shutdowns`` is what the marks say, before the first registration."""
        self._incarnation_id = incarnation_id
        self._online = set(online)
        self._cordoned = frozenset(cordoned)
        self._impaired = dict(impaired)
        self._paths = dict(paths)
        #: What the registration that holds lists; one that failed may hold as well.
        self._registered: frozenset[DirectoryId] = frozenset()
        #: Those of them that a heartbeat named as offline since.
        self._reported_offline: set[DirectoryId] = set()
        self._attached: set[DirectoryId] = set()
        self._forgotten: set[DirectoryId] = set()
        #: What the registration on its way lists, and whose waiters it answers.
        self._asked: tuple[DirectoryId, ...] = ()
        self._asked_changes = DirectoryChanges()
        #: Up to which epoch directories are whole: those that never failed since they said so.
        self._whole = {d: stop for d, stop in clean_shutdowns.items() if d in self._online}
        #: Those of the registration on its way that did not fail since it was sent.
        self._asked_unbroken: set[DirectoryId] = set()
        #: Whether the cluster's level has a word for impaired directories.
        self.can_report_impaired = True

    def is_online(self, directory_id: DirectoryId) -> bool:
        return directory_id in self._online

    def is_registered(self, directory_id: DirectoryId) -> bool:
        """Whether the registration that holds lists it: a heartbeat names it when it fails."""
        return directory_id in self._registered

    @property
    def needs_amendment(self) -> bool:
        """Whether the controller takes a directory for worse than it is, or has to forget one."""
        listed = self._listed()
        return bool(
            listed - self._registered
            or listed & self._reported_offline
            or listed & self._attached
            or self._forgotten
        )

    def is_misheard(self, shown: frozenset[DirectoryId]) -> bool:
        """Whether a registration that shows these online cannot be what was said last: something
        older came late."""
        said = self._registered & self._listed() - self._reported_offline
        return bool(said - shown or shown - self._registered)

    # --- what a registration says ----------------------------------------------------------------

    @property
    def asked(self) -> tuple[DirectoryId, ...]:
        """What the last registration that was sent lists, sorted."""
        return self._asked

    @property
    def asked_paths(self) -> tuple[str, ...]:
        """Where those are, in the same order; empty texts where that is not known."""
        return tuple(self._paths.get(directory_id, "") for directory_id in self._asked)

    @property
    def asked_cordoned(self) -> tuple[DirectoryId, ...]:
        return tuple(d for d in self._asked if d in self._cordoned)

    @property
    def asked_forgotten(self) -> tuple[DirectoryId, ...]:
        return self._asked_changes.forgotten

    @property
    def asked_clean_epochs(self) -> tuple[BrokerEpoch, ...]:
        """Up to which epoch each of those is whole, in the same order."""
        return tuple(self._whole.get(d, NO_CLEAN_SHUTDOWN).broker_epoch for d in self._asked)

    @property
    def asked_clean_incarnations(self) -> tuple[Uuid, ...]:
        """Of which incarnation that epoch is, in the same order."""
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
        """What the controller knows now and did not before.

        What failed since it was asked is as good as lost, though it may be back by now.
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
        """What is given up because of that: the forgetting, or else what was attached.

        Whoever attached a directory does not suffer from a directory that must not be forgotten.
        """
        changes, self._asked_changes = self._asked_changes, DirectoryChanges()
        if changes.forgotten:
            self._forgotten -= set(changes.forgotten)
            self._registered |= set(changes.forgotten)
            return DirectoryChanges(forgotten=changes.forgotten)
        self._attached -= set(changes.attached)
        self._online -= set(changes.attached)
        return changes

    # --- what a heartbeat says -------------------------------------------------------------------

    @property
    def offline(self) -> tuple[DirectoryId, ...]:
        """Sorted. Cumulative for as long as the registration holds."""
        return tuple(sorted(self._registered - self._listed()))

    @property
    def impaired(self) -> tuple[ImpairedLogDir, ...]:
        """Sorted by id; always all of them."""
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

    # --- what happens to directories -------------------------------------------------------------

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
        """It is not named in heartbeats any more: the controller may have forgotten it already."""
        self.failed(directory_id)
        self._registered -= {directory_id}
        self._forgotten.add(directory_id)

    def _listed(self) -> frozenset[DirectoryId]:
        if self.can_report_impaired:
            return frozenset(self._online)
        return frozenset(self._online - self._impaired.keys())
