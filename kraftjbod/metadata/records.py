"""PURE. Metadata records: the only way in which the cluster's state ever changes.

One entry of the metadata log is a tuple of records that take effect together.
A snapshot has the same form: one entry with all the records that rebuild the state.
``record_codec.py`` has their bytes.

Rules of this file:

* records are frozen and say *what is so now*, never how to compute it;
* in a change record ``None`` means "no change";
* a record's version is written with it, and a reader refuses versions it does not know;
* a record is written in the least version that can say it; a field that came with a later version
  names it and the level of ``metadata.version`` that allows it, and has a default; a record that
  came later names its ``LEAST_LEVEL``;
* what the level cannot carry is refused, never dropped: whoever decides asks for the level.

Fields follow Kafka's records of the same names, with LogDirs and Directories as KIP-858 adds them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar, Final, NamedTuple

from kraftjbod.core.ids import (
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

SINCE: Final = "since"
"""Where a field's metadata has its :class:`Since`."""


class Since(NamedTuple):
    """Which version of its record brought a field, and which level allows that version."""

    version: int
    level: MetadataVersion


def _since(version: int, level: MetadataVersion) -> dict[str, Since]:
    return {SINCE: Since(version, level)}


class ResourceType(IntEnum):
    """What a configuration belongs to; Kafka's numbers."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32
    """Since group.version 1; nobody who does not know it has to read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One address under which clients reach a broker, or others a controller."""

    name: str
    host: str
    port: int


class ImpairedLogDir(NamedTuple):
    """A directory that is online but saturated or stalled."""

    directory_id: DirectoryId
    state: LogDirState


class FeatureRange(NamedTuple):
    """Least and greatest level of a feature that a broker or a controller supports."""

    name: str
    lowest: int
    highest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerRecord:
    """A new incarnation of a broker; its epoch is the offset of this record's entry."""

    TYPE: ClassVar[int] = 0
    LEAST_VERSION: ClassVar[int] = 2
    VERSION: ClassVar[int] = 4

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    incarnation_id: Uuid
    listeners: tuple[Listener, ...]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    log_dirs: tuple[DirectoryId, ...] = field(
        default=(), metadata=_since(3, MetadataVersion.IV_3_7_IV2)
    )
    """Available directories, sorted."""
    offline_log_dirs: tuple[DirectoryId, ...] = field(
        default=(), metadata=_since(3, MetadataVersion.IV_3_7_IV2)
    )
    """Directories that failed since this incarnation registered them, sorted.

    Empty in a new incarnation. Filled where the same one registers again, and by a snapshot, so
    that a repeated report of a failed directory is still known after the log before it is gone.
    """
    log_dir_paths: tuple[str, ...] = field(
        default=(), metadata=_since(3, MetadataVersion.IV_3_7_IV2)
    )
    """Where each of ``log_dirs`` and then of ``offline_log_dirs`` is mounted, in their order.

    Empty if the broker named no path, ``""`` for a directory whose path is not known.
    By these an operator names the directory that a new replica shall go to.
    """
    cordoned_log_dirs: tuple[DirectoryId, ...] = field(
        default=(), metadata=_since(4, MetadataVersion.IV_4_3_IV0)
    )
    """Directories that take no new replicas (KIP-1066), sorted."""
    features: tuple[FeatureRange, ...] = ()
    """What the broker supports, by name; a feature is not raised above any broker's range."""
    impaired_log_dirs: tuple[ImpairedLogDir, ...] = field(
        default=(), metadata=_since(4, MetadataVersion.IV_4_3_IV0)
    )
    """Those of ``log_dirs`` that are saturated or stalled (KIP-928), sorted.

    Filled as ``offline_log_dirs``: a new incarnation says it by its first heartbeat.
    """
    previous_broker_epoch: BrokerEpoch = field(
        default=UNKNOWN_BROKER_EPOCH, metadata=_since(3, MetadataVersion.IV_3_7_IV2)
    )
    """Epoch of the registration that this incarnation replaced; -1 if it was the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationChangeRecord:
    TYPE: ClassVar[int] = 17
    VERSION: ClassVar[int] = 3

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    fenced: bool | None = None
    in_controlled_shutdown: bool | None = field(
        default=None, metadata=_since(1, MetadataVersion.IV_3_6_IV2)
    )
    log_dirs: tuple[DirectoryId, ...] | None = field(
        default=None, metadata=_since(2, MetadataVersion.IV_3_7_IV2)
    )
    """The directories that are still available; those left out went offline."""
    cordoned_log_dirs: tuple[DirectoryId, ...] | None = field(
        default=None, metadata=_since(3, MetadataVersion.IV_4_3_IV0)
    )
    """All directories that take no new replicas from now on."""
    impaired_log_dirs: tuple[ImpairedLogDir, ...] | None = field(
        default=None, metadata=_since(3, MetadataVersion.IV_4_3_IV0)
    )
    """All directories that are saturated or stalled from now on (KIP-928)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBrokerRecord:
    """The broker is not registered any more, until it registers again."""

    TYPE: ClassVar[int] = 1
    VERSION: ClassVar[int] = 0

    broker_id: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    TYPE: ClassVar[int] = 2
    VERSION: ClassVar[int] = 0

    name: str
    topic_id: TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTopicRecord:
    """The topic, its partitions and its configuration are gone."""

    TYPE: ClassVar[int] = 9
    VERSION: ClassVar[int] = 0

    topic_id: TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecord:
    """The whole state of one partition.

    ``directories`` runs parallel to ``replicas``; empty stands for MIGRATING everywhere, which is
    all that can be said of partitions from before directories.
    """

    TYPE: ClassVar[int] = 3
    VERSION: ClassVar[int] = 2

    topic_id: TopicId
    partition_id: int
    replicas: tuple[BrokerId, ...]
    directories: tuple[DirectoryId, ...] = field(
        default=(), metadata=_since(1, MetadataVersion.IV_3_7_IV2)
    )
    isr: tuple[BrokerId, ...]
    leader: BrokerId
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    leader_recovering: bool = False
    """True after an unclean election, until the leader says that it is whole again."""
    adding_replicas: tuple[BrokerId, ...] = ()
    """Members of ``replicas`` that a reassignment brings in; they are not in sync yet."""
    removing_replicas: tuple[BrokerId, ...] = ()
    """Members of ``replicas`` that leave once the added ones are in sync."""
    elr: tuple[BrokerId, ...] = field(default=(), metadata=_since(2, MetadataVersion.IV_4_3_IV0))
    """Eligible leader replicas (KIP-966): out of the ISR, and yet they hold all that is committed.

    In the order of ``replicas``. Empty while the ISR has ``min.insync.replicas`` members.
    """
    last_known_elr: tuple[BrokerId, ...] = field(
        default=(), metadata=_since(2, MetadataVersion.IV_4_3_IV0)
    )
    """Who led last, while nobody does and the ISR is empty (KIP-966)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChangeRecord:
    """Part of a partition's state changed.

    The partition epoch grows by one with each such record; the leader epoch grows by one if
    ``leader`` is given, even if it names the same broker.
    ``replicas`` without ``directories`` are MIGRATING, all of them.
    """

    TYPE: ClassVar[int] = 5
    VERSION: ClassVar[int] = 2

    topic_id: TopicId
    partition_id: int
    isr: tuple[BrokerId, ...] | None = None
    leader: BrokerId | None = None
    replicas: tuple[BrokerId, ...] | None = None
    directories: tuple[DirectoryId, ...] | None = field(
        default=None, metadata=_since(1, MetadataVersion.IV_3_7_IV2)
    )
    leader_recovering: bool | None = None
    adding_replicas: tuple[BrokerId, ...] | None = None
    removing_replicas: tuple[BrokerId, ...] | None = None
    elr: tuple[BrokerId, ...] | None = field(
        default=None, metadata=_since(2, MetadataVersion.IV_4_3_IV0)
    )
    last_known_elr: tuple[BrokerId, ...] | None = field(
        default=None, metadata=_since(2, MetadataVersion.IV_4_3_IV0)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRecord:
    """One configuration value; ``value`` None removes it."""

    TYPE: ClassVar[int] = 4
    VERSION: ClassVar[int] = 0

    resource_type: ResourceType
    resource_name: str
    name: str
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevelRecord:
    TYPE: ClassVar[int] = 12
    VERSION: ClassVar[int] = 0

    name: str
    feature_level: int
    metadata_log_id: Uuid | None = None
    """In the record of ``metadata.version`` with which a log, or a snapshot of it, begins: which
    log this is. Drawn once for each log, so that one that was formatted anew differs from the one
    that was lost. Software from before it passes over the field, so it needs no version.
    """
    session_limit_ms: int = 0
    """In the record of ``metadata.version``: the longest session that a controller announces to a
    broker, and its election time-out. A controller that takes over fences no broker sooner. 0 says
    nothing of it. Older software passes over the field as well.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsRecord:
    """All producer ids below ``next_producer_id`` have been handed out."""

    TYPE: ClassVar[int] = 15
    VERSION: ClassVar[int] = 0

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    next_producer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterControllerRecord:
    """A new incarnation of a controller, in place of the one before (KIP-919).

    It stands until another one registers, or somebody takes it out: nobody expires it.
    """

    TYPE: ClassVar[int] = 27
    VERSION: ClassVar[int] = 0
    LEAST_LEVEL: ClassVar[MetadataVersion] = MetadataVersion.IV_4_4_IV2

    controller_id: BrokerId
    incarnation_id: Uuid
    directory_id: DirectoryId
    """That of its metadata, by which it votes (KIP-853)."""
    listeners: tuple[Listener, ...]
    features: tuple[FeatureRange, ...]
    """What it supports, by name; no feature is raised above that."""
    software_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterControllerRecord:
    """A controller that does not vote is not registered any more, until it registers again."""

    TYPE: ClassVar[int] = 29
    VERSION: ClassVar[int] = 0
    LEAST_LEVEL: ClassVar[MetadataVersion] = MetadataVersion.IV_4_4_IV2

    controller_id: BrokerId


Record = (
    RegisterBrokerRecord
    | BrokerRegistrationChangeRecord
    | UnregisterBrokerRecord
    | TopicRecord
    | RemoveTopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | ConfigRecord
    | FeatureLevelRecord
    | ProducerIdsRecord
    | RegisterControllerRecord
    | UnregisterControllerRecord
)

RECORD_TYPES: Final[tuple[type[Any], ...]] = (
    RegisterBrokerRecord,
    BrokerRegistrationChangeRecord,
    UnregisterBrokerRecord,
    TopicRecord,
    RemoveTopicRecord,
    PartitionRecord,
    PartitionChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    ProducerIdsRecord,
    RegisterControllerRecord,
    UnregisterControllerRecord,
)
