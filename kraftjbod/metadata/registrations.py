"""PURE. Brokers, topics and partitions as immutable values built from metadata records.

``merge(change)`` returns the changed value. Lists of directories are sorted, except a partition's,
which follows the order of its replicas.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kraftjbod.core.ids import (
    LOST_DIR,
    MIGRATING_DIR,
    NO_LEADER,
    UNASSIGNED_DIR,
    UNKNOWN_BROKER_EPOCH,
    BrokerEpoch,
    BrokerId,
    DirectoryId,
    LeaderEpoch,
    PartitionEpoch,
    TopicId,
    Uuid,
)
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.metadata_version import MetadataVersion
from kraftjbod.metadata.records import (
    BrokerRegistrationChangeRecord,
    FeatureRange,
    ImpairedLogDir,
    Listener,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
    """The last registered incarnation of a broker, with its directories, as of the metadata.

    ``epoch`` is the broker epoch. The controller treats a ``fenced`` broker as not available.
    """

    broker_id: BrokerId
    epoch: BrokerEpoch
    incarnation_id: Uuid
    listeners: tuple[Listener, ...]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    log_dirs: tuple[DirectoryId, ...]
    """Online directories, sorted."""
    offline_log_dirs: tuple[DirectoryId, ...] = ()
    """Directories that this incarnation registered and that failed since, sorted."""
    log_dir_paths: Mapping[DirectoryId, str] = field(default_factory=dict)
    """Mount points of online and offline directories, if the broker reported them."""
    cordoned_log_dirs: tuple[DirectoryId, ...] = ()
    """Directories that take no new replicas (KIP-1066), sorted."""
    impaired_log_dirs: tuple[ImpairedLogDir, ...] = ()
    """Directories that are online, but saturated or stalled (KIP-928), sorted."""
    features: tuple[FeatureRange, ...] = ()
    registered_at: int = field(default=-1, compare=False)
    """Offset of the entry with this registration: of the first one in this epoch, of the last
    repeated one, or of the snapshot from which it was read."""
    previous_epoch: BrokerEpoch = UNKNOWN_BROKER_EPOCH
    """Epoch of the previous incarnation; -1 if this is the first."""

    @classmethod
    def from_record(
        cls, record: RegisterBrokerRecord, *, registered_at: int = -1
    ) -> BrokerRegistration:
        return cls(
            broker_id=record.broker_id,
            epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            listeners=record.listeners,
            rack=record.rack,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            log_dirs=tuple(sorted(record.log_dirs)),
            offline_log_dirs=tuple(sorted(record.offline_log_dirs)),
            log_dir_paths=_paths_by_dir(record),
            cordoned_log_dirs=tuple(sorted(record.cordoned_log_dirs)),
            impaired_log_dirs=_sorted(record.impaired_log_dirs),
            features=record.features,
            registered_at=registered_at,
            previous_epoch=record.previous_broker_epoch,
        )

    def to_record(self) -> RegisterBrokerRecord:
        paths = self.log_dir_paths
        return RegisterBrokerRecord(
            broker_id=self.broker_id,
            broker_epoch=self.epoch,
            incarnation_id=self.incarnation_id,
            listeners=self.listeners,
            rack=self.rack,
            fenced=self.fenced,
            in_controlled_shutdown=self.in_controlled_shutdown,
            log_dirs=self.log_dirs,
            offline_log_dirs=self.offline_log_dirs,
            log_dir_paths=tuple(
                paths.get(directory_id, "")
                for directory_id in self.log_dirs + self.offline_log_dirs
            )
            if paths
            else (),
            cordoned_log_dirs=self.cordoned_log_dirs,
            impaired_log_dirs=self.impaired_log_dirs,
            features=self.features,
            previous_broker_epoch=self.previous_epoch,
        )

    def merge(self, change: BrokerRegistrationChangeRecord) -> BrokerRegistration:
        assert change.broker_epoch == self.epoch, (change, self)
        log_dirs = self.log_dirs if change.log_dirs is None else tuple(sorted(change.log_dirs))
        return dataclasses.replace(
            self,
            fenced=self.fenced if change.fenced is None else change.fenced,
            in_controlled_shutdown=self.in_controlled_shutdown
            if change.in_controlled_shutdown is None
            else change.in_controlled_shutdown,
            log_dirs=log_dirs,
            offline_log_dirs=tuple(sorted(self.known_log_dirs - set(log_dirs))),
            cordoned_log_dirs=self.cordoned_log_dirs
            if change.cordoned_log_dirs is None
            else tuple(sorted(change.cordoned_log_dirs)),
            impaired_log_dirs=_sorted(
                one
                for one in (
                    self.impaired_log_dirs
                    if change.impaired_log_dirs is None
                    else change.impaired_log_dirs
                )
                if one.directory_id in log_dirs
            ),
        )

    def at_level(self, level: MetadataVersion) -> BrokerRegistration:
        """Return a copy without the directories, cordons and impairments that the metadata level
        ``level`` cannot represent.
        """
        if level.has_directories:
            if level.has_cordoning:
                return self
            return dataclasses.replace(self, cordoned_log_dirs=(), impaired_log_dirs=())
        return dataclasses.replace(
            self,
            log_dirs=(),
            offline_log_dirs=(),
            log_dir_paths={},
            cordoned_log_dirs=(),
            impaired_log_dirs=(),
            previous_epoch=UNKNOWN_BROKER_EPOCH,
        )

    @property
    def is_active(self) -> bool:
        """Whether the broker's replicas may lead and be in sync: unfenced and not in controlled
        shutdown.
        """
        return not self.fenced and not self.in_controlled_shutdown

    @property
    def known_log_dirs(self) -> frozenset[DirectoryId]:
        """All directories that this incarnation registered, online or not."""
        return frozenset(self.log_dirs + self.offline_log_dirs)

    @property
    def takes_new_replicas(self) -> bool:
        """Whether some online directory takes new replicas.

        Cordoned (KIP-1066) and impaired (KIP-928) directories take none. True for a broker without
        registered directories.
        """
        return not self.known_log_dirs or bool(self.dirs_for_new_replicas)

    @property
    def dirs_for_new_replicas(self) -> tuple[DirectoryId, ...]:
        """Directories that are online, not cordoned and not impaired, sorted."""
        closed = {*self.cordoned_log_dirs, *self.dirs_closed_by_impairment}
        return tuple(directory_id for directory_id in self.log_dirs if directory_id not in closed)

    @property
    def dirs_closed_by_impairment(self) -> tuple[DirectoryId, ...]:
        """Directories that are impaired, but would take new replicas otherwise, sorted."""
        cordoned = self.cordoned_log_dirs
        return tuple(
            d.directory_id for d in self.impaired_log_dirs if d.directory_id not in cordoned
        )

    def is_impaired(self, directory_id: DirectoryId) -> bool:
        """Return whether the directory of a replica, ``directory_id``, is saturated or stalled.

        A replica whose directory is not known counts as impaired if all online directories are.
        """
        if not self.impaired_log_dirs:
            return False
        return self._is_in({one.directory_id for one in self.impaired_log_dirs}, directory_id)

    def is_stalled(self, directory_id: DirectoryId) -> bool:
        """Return whether the directory of a replica is stalled, with the rule of
        :meth:`is_impaired`.
        """
        stalled = (d.directory_id for d in self.impaired_log_dirs if d.state is LogDirState.STALLED)
        return self._is_in(set(stalled), directory_id)

    def _is_in(self, directories: set[DirectoryId], directory_id: DirectoryId) -> bool:
        if directory_id in (UNASSIGNED_DIR, MIGRATING_DIR):
            return bool(directories) and directories.issuperset(self.log_dirs)
        return directory_id in directories

    def has_online_dir(self, directory_id: DirectoryId) -> bool:
        """Return whether a replica in ``directory_id`` of this broker counts as online.

        KIP-858, "Metadata caching": unassigned and migrating replicas count as online, and replicas
        in a lost directory do not. A broker without registered directories is a single-disk broker
        from before directories had ids. If all directories of a broker are offline, no replica is
        online.
        """
        if directory_id in self.log_dirs:
            return True
        if not self.log_dirs:
            return not self.offline_log_dirs and directory_id != LOST_DIR
        return directory_id in (UNASSIGNED_DIR, MIGRATING_DIR)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRegistration:
    """Assignment and leadership of one partition, as of the metadata: its replicas, their
    directories, leader, ISR and epochs.

    ``directories`` has one item per item of ``replicas``. ``leader`` is -1 if there is none.
    """

    replicas: tuple[BrokerId, ...]
    directories: tuple[DirectoryId, ...]
    isr: tuple[BrokerId, ...]
    leader: BrokerId
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    leader_recovering: bool
    adding_replicas: tuple[BrokerId, ...] = ()
    removing_replicas: tuple[BrokerId, ...] = ()
    elr: tuple[BrokerId, ...] = ()
    """Not in the ISR, but these replicas have all committed records (KIP-966)."""
    last_known_elr: tuple[BrokerId, ...] = ()
    """The last leader, while there is no leader and the ISR is empty (KIP-966)."""

    @classmethod
    def from_record(cls, record: PartitionRecord) -> PartitionRegistration:
        directories = record.directories or (MIGRATING_DIR,) * len(record.replicas)
        assert len(directories) == len(record.replicas), record
        return cls(
            replicas=record.replicas,
            directories=directories,
            isr=record.isr,
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            leader_recovering=record.leader_recovering,
            adding_replicas=record.adding_replicas,
            removing_replicas=record.removing_replicas,
            elr=record.elr,
            last_known_elr=record.last_known_elr,
        )

    def to_record(self, topic_id: TopicId, partition_id: int) -> PartitionRecord:
        return PartitionRecord(
            topic_id=topic_id,
            partition_id=partition_id,
            replicas=self.replicas,
            directories=self.directories,
            isr=self.isr,
            leader=self.leader,
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            leader_recovering=self.leader_recovering,
            adding_replicas=self.adding_replicas,
            removing_replicas=self.removing_replicas,
            elr=self.elr,
            last_known_elr=self.last_known_elr,
        )

    def merge(self, change: PartitionChangeRecord) -> PartitionRegistration:
        replicas = self.replicas if change.replicas is None else change.replicas
        directories = self.directories if change.directories is None else change.directories
        if change.directories is None and set(directories) == {MIGRATING_DIR}:
            directories = (MIGRATING_DIR,) * len(replicas)
        assert len(replicas) == len(directories), change
        leader_changed = change.leader is not None
        return PartitionRegistration(
            replicas=replicas,
            directories=directories,
            isr=self.isr if change.isr is None else change.isr,
            leader=self.leader if change.leader is None else change.leader,
            leader_epoch=LeaderEpoch(self.leader_epoch + 1)
            if leader_changed
            else self.leader_epoch,
            partition_epoch=PartitionEpoch(self.partition_epoch + 1),
            leader_recovering=self.leader_recovering
            if change.leader_recovering is None
            else change.leader_recovering,
            adding_replicas=self.adding_replicas
            if change.adding_replicas is None
            else change.adding_replicas,
            removing_replicas=self.removing_replicas
            if change.removing_replicas is None
            else change.removing_replicas,
            elr=self.elr if change.elr is None else change.elr,
            last_known_elr=self.last_known_elr
            if change.last_known_elr is None
            else change.last_known_elr,
        )

    def without_directories(self) -> PartitionRegistration:
        """Return a copy in which all directories are MIGRATING, as before directories had ids."""
        return dataclasses.replace(self, directories=(MIGRATING_DIR,) * len(self.replicas))

    def without_elr(self) -> PartitionRegistration:
        """Return a copy without eligible leader replicas, as before KIP-966.

        An empty ISR is replaced by :attr:`holders`, so that all possible leaders are in the ISR.
        """
        return dataclasses.replace(
            self,
            isr=self.isr or self.holders,
            elr=(),
            last_known_elr=(),
            leader_recovering=self.leader_recovering or not (self.isr or self.elr),
        )

    @property
    def holders(self) -> tuple[BrokerId, ...]:
        """Replicas that have all committed records: the ISR and the eligible leader replicas.

        Without such replicas: the last leader; no other replica is known to have more records.
        """
        return self.isr + self.elr or self.last_known_elr

    def counts_on(self, broker_id: BrokerId) -> bool:
        """Return whether ``broker_id`` is in the ISR, the ELR or the last known ELR: its replica
        may be needed to keep committed records.
        """
        return broker_id in (*self.isr, *self.elr, *self.last_known_elr)

    @property
    def replication_factor(self) -> int:
        """Number of replicas. During a reassignment, the smaller of the old and the new number."""
        return len(self.replicas) - max(len(self.adding_replicas), len(self.removing_replicas))

    def min_isr(self, configured: int) -> int:
        """Return the number of in-sync replicas that are needed to commit: ``configured``, or the
        replication factor if that is smaller.

        :param configured: value of ``min.insync.replicas``.
        """
        return min(configured, self.replication_factor)

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding_replicas or self.removing_replicas)

    @property
    def has_leader(self) -> bool:
        return self.leader != NO_LEADER

    @property
    def preferred_leader(self) -> BrokerId:
        return self.replicas[0]

    def directory_of(self, broker_id: BrokerId) -> DirectoryId | None:
        """Return the directory assigned to this broker's replica; None if the broker has no
        replica.
        """
        try:
            return self.directories[self.replicas.index(broker_id)]
        except ValueError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRegistration:
    """A topic in the metadata, with its partitions by number.

    ``MetadataState`` owns ``partitions``; other code must not change it.
    """

    name: str
    topic_id: TopicId
    partitions: dict[int, PartitionRegistration] = field(default_factory=dict)
    layout_offset: int = field(default=-1, compare=False)
    """Offset of the last entry that added a partition or changed the replicas of one."""


def _sorted(impaired: Iterable[ImpairedLogDir]) -> tuple[ImpairedLogDir, ...]:
    return tuple(sorted(impaired, key=lambda one: one.directory_id))


def _paths_by_dir(record: RegisterBrokerRecord) -> dict[DirectoryId, str]:
    if not record.log_dir_paths:
        return {}
    directories = record.log_dirs + record.offline_log_dirs
    paths = zip(directories, record.log_dir_paths, strict=True)
    return {directory_id: path for directory_id, path in paths if path}
