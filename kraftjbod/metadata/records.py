"""PURE. Metadata records: the only way to change the state of the cluster.

One entry of the metadata log is a tuple of records that are applied together. A snapshot has the
same form: one entry with all records that rebuild the state. ``record_codec.py`` encodes and
decodes them.

Rules:

* Records are frozen and contain resulting values, never instructions to compute them.
* In a change record ``None`` means "no change".
* A record is written with its version, and a reader rejects versions that it does not know.
* A record is written in the lowest version that can represent it.
* A field of a later version has a default, and names the version and the level of
  ``metadata.version`` that allows it. A record type that was added later names its ``LEAST_LEVEL``.
* A value that the level cannot represent is rejected, never dropped. The code that creates records
  checks the level first.

Fields follow Kafka's records of the same names, with the LogDirs and Directories of KIP-858.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar, Final, NamedTuple

from kraftjbod.core.acl import AclBinding
from kraftjbod.core.client_quota import QuotaEntity
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
from kraftjbod.core.scram import ScramMechanism

SINCE: Final = "since"
"""Key of :class:`Since` in the metadata of a dataclass field."""


class Since(NamedTuple):
    """Record version that added a field, and the ``metadata.version`` that allows this record
    version.
    """

    version: int
    level: MetadataVersion


def _since(version: int, level: MetadataVersion) -> dict[str, Since]:
    return {SINCE: Since(version, level)}


class ResourceType(IntEnum):
    """Type of the resource that a configuration belongs to. The numbers are Kafka's."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32
    """Used since group.version 1, so software without it never reads this type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Address of a broker for clients, or of a controller for other nodes."""

    name: str
    host: str
    port: int


class ImpairedLogDir(NamedTuple):
    """A log directory that is online but saturated or stalled (KIP-928)."""

    directory_id: DirectoryId
    state: LogDirState


class FeatureRange(NamedTuple):
    """Lowest and highest level of a feature that a broker or controller supports."""

    name: str
    lowest: int
    highest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerRecord:
    """Registers an incarnation of a broker.

    Its broker epoch is the offset of the entry that first registered the incarnation.
    """

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

    Empty in the first registration of an incarnation. Set when the incarnation registers again, and
    in snapshots, so that a repeated report of a failed directory is recognized after a snapshot.
    """
    log_dir_paths: tuple[str, ...] = field(
        default=(), metadata=_since(3, MetadataVersion.IV_3_7_IV2)
    )
    """Mount points of ``log_dirs`` and then of ``offline_log_dirs``, in that order.

    Empty if the broker reported no path; ``""`` for a directory whose path is not known.
    Operators use these paths to choose the directory of a new replica.
    """
    cordoned_log_dirs: tuple[DirectoryId, ...] = field(
        default=(), metadata=_since(4, MetadataVersion.IV_4_3_IV0)
    )
    """Directories that take no new replicas (KIP-1066), sorted."""
    features: tuple[FeatureRange, ...] = ()
    """Supported features. A feature level never exceeds the range of any broker."""
    impaired_log_dirs: tuple[ImpairedLogDir, ...] = field(
        default=(), metadata=_since(4, MetadataVersion.IV_4_3_IV0)
    )
    """The members of ``log_dirs`` that are saturated or stalled (KIP-928), sorted.

    Empty in the first registration of an incarnation, which reports them by its first heartbeat.
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
    """The directories that are still available; missing ones went offline."""
    cordoned_log_dirs: tuple[DirectoryId, ...] | None = field(
        default=None, metadata=_since(3, MetadataVersion.IV_4_3_IV0)
    )
    """All cordoned directories: they take no new replicas from now on."""
    impaired_log_dirs: tuple[ImpairedLogDir, ...] | None = field(
        default=None, metadata=_since(3, MetadataVersion.IV_4_3_IV0)
    )
    """All directories that are saturated or stalled from now on (KIP-928)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBrokerRecord:
    """Removes the registration of a broker. The broker may register again."""

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
    """Removes a topic with its partitions and configuration."""

    TYPE: ClassVar[int] = 9
    VERSION: ClassVar[int] = 0

    topic_id: TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecord:
    """Complete state of one partition. ``leader`` is -1 if there is none.

    ``directories`` has one item per item of ``replicas``. An empty tuple means MIGRATING for all,
    as for partitions from before directories had ids.
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
    """True after an unclean election, until the leader reports that it has recovered."""
    adding_replicas: tuple[BrokerId, ...] = ()
    """Members of ``replicas`` that a reassignment adds; not necessarily in sync yet."""
    removing_replicas: tuple[BrokerId, ...] = ()
    """Members of ``replicas`` that are removed once the added ones are in sync."""
    elr: tuple[BrokerId, ...] = field(default=(), metadata=_since(2, MetadataVersion.IV_4_3_IV0))
    """Eligible leader replicas (KIP-966): not in the ISR, but they have all committed records.

    In the order of ``replicas``. Empty while the ISR has ``min.insync.replicas`` members.
    """
    last_known_elr: tuple[BrokerId, ...] = field(
        default=(), metadata=_since(2, MetadataVersion.IV_4_3_IV0)
    )
    """The last leader, while there is no leader and the ISR is empty (KIP-966)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChangeRecord:
    """Changes part of a partition's state. Fields that are None do not change.

    Each such record increments the partition epoch. A record with ``leader`` also increments the
    leader epoch, even if the leader stays the same broker.

    If ``replicas`` is given without ``directories``, the partition's directories must all be
    MIGRATING, and do not change.
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
    """Sets one configuration value of a resource. ``value`` None removes it."""

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
    """Id of this metadata log, in the record of ``metadata.version`` at the start of a log or
    snapshot. The id is random, so a newly formatted log differs from a lost one. Older software
    ignores the field, so it needs no record version.
    """
    session_limit_ms: int = 0
    """In the record of ``metadata.version``: the longest session that a controller announces to a
    broker, plus its election time-out, in ms. A new controller fences no broker before this time.
    0 means not set. Older software ignores the field.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsRecord:
    """Allocates all producer ids below ``next_producer_id`` that were not allocated yet."""

    TYPE: ClassVar[int] = 15
    VERSION: ClassVar[int] = 0

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    next_producer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterControllerRecord:
    """Registers an incarnation of a controller and replaces the previous one (KIP-919).

    The registration does not expire. Another registration or UnregisterControllerRecord ends it.
    """

    TYPE: ClassVar[int] = 27
    VERSION: ClassVar[int] = 0
    LEAST_LEVEL: ClassVar[MetadataVersion] = MetadataVersion.IV_4_4_IV2

    controller_id: BrokerId
    incarnation_id: Uuid
    directory_id: DirectoryId
    """Id of the controller's metadata directory, by which it votes (KIP-853)."""
    listeners: tuple[Listener, ...]
    features: tuple[FeatureRange, ...]
    """Supported features. A feature level never exceeds these ranges."""
    software_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterControllerRecord:
    """Removes the registration of a controller that is not a voter. The controller may register
    again."""

    TYPE: ClassVar[int] = 29
    VERSION: ClassVar[int] = 0
    LEAST_LEVEL: ClassVar[MetadataVersion] = MetadataVersion.IV_4_4_IV2

    controller_id: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessControlEntryRecord:
    """Adds a binding of the access control lists. The id is random."""

    TYPE: ClassVar[int] = 18
    VERSION: ClassVar[int] = 0
    LEAST_LEVEL: ClassVar[MetadataVersion] = MetadataVersion.IV_4_4_IV2_J1

    acl_id: Uuid
    binding: AclBinding


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveAccessControlEntryRecord:
    TYPE: ClassVar[int] = 19
    VERSION: ClassVar[int] = 0
    LEAST_LEVEL: ClassVar[MetadataVersion] = MetadataVersion.IV_4_4_IV2_J1

    acl_id: Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class UserScramCredentialRecord:
    """Adds or replaces the SCRAM credential of a user. Its representation shows no key."""

    TYPE: ClassVar[int] = 11
    VERSION: ClassVar[int] = 0
    LEAST_LEVEL: ClassVar[MetadataVersion] = MetadataVersion.IV_4_4_IV2_J1

    name: str
    mechanism: ScramMechanism
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveUserScramCredentialRecord:
    TYPE: ClassVar[int] = 22
    VERSION: ClassVar[int] = 0
    LEAST_LEVEL: ClassVar[MetadataVersion] = MetadataVersion.IV_4_4_IV2_J1

    name: str
    mechanism: ScramMechanism


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuotaRecord:
    """Sets one quota of an entity, or removes the quota if ``value`` is None."""

    TYPE: ClassVar[int] = 14
    VERSION: ClassVar[int] = 0
    LEAST_LEVEL: ClassVar[MetadataVersion] = MetadataVersion.IV_4_4_IV2_J1

    entity: QuotaEntity
    key: str
    value: float | None


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
    | AccessControlEntryRecord
    | RemoveAccessControlEntryRecord
    | UserScramCredentialRecord
    | RemoveUserScramCredentialRecord
    | ClientQuotaRecord
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
    AccessControlEntryRecord,
    RemoveAccessControlEntryRecord,
    UserScramCredentialRecord,
    RemoveUserScramCredentialRecord,
    ClientQuotaRecord,
)
