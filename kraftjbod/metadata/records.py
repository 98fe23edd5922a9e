"""PURE. Metadata records: the only way in which the cluster's state ever changes.

One entry of the metadata log is a tuple of records that take effect together; its payload is
``encode_entry(records, level)``.
A snapshot has the same form: one entry with all the records that rebuild the state.

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

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar, Final, NamedTuple

import msgpack

from kraftjbod.core.errors import LocalProtocolError, RemoteProtocolError
from kraftjbod.core.ids import (
    MIGRATING_DIR,
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

MAX_ENTRY_BYTES: Final = 1024 * 1024
"""No larger entry is proposed. Those of earlier versions may be larger, and are read."""
_ARRAY_HEADER_BYTES: Final = 5
_SINCE: Final = "since"


class Since(NamedTuple):
    """Which version of its record brought a field, and which level allows that version."""

    version: int
    level: MetadataVersion


def _since(version: int, level: MetadataVersion) -> dict[str, Since]:
    return {_SINCE: Since(version, level)}


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

_RECORD_TYPES: Final[tuple[type[Any], ...]] = (
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
_BY_TYPE: Final = {kind.TYPE: kind for kind in _RECORD_TYPES}


class _Field(NamedTuple):
    name: str
    since: Since | None
    default: Any


def _fields_of(kind: type[Any]) -> tuple[_Field, ...]:
    return tuple(
        _Field(field.name, field.metadata.get(_SINCE), field.default)
        for field in dataclasses.fields(kind)
    )


#: Fields per class, looked up once: an entry of a big topic has thousands of records.
_FIELDS: Final = {kind: _fields_of(kind) for kind in _RECORD_TYPES}


def encode_entry(records: Sequence[Record], level: MetadataVersion) -> bytes:
    """The payload of one metadata entry: msgpack of ``[[type, version, [field, ...]], ...]``.

    ``level`` is what holds before the entry.

    :raises LocalProtocolError: if a record says what the level cannot carry.
    """
    packed: bytes = msgpack.packb([_pack(record, level) for record in records])
    return packed


def encode_entries(
    records: Sequence[Record], level: MetadataVersion, max_bytes: int
) -> list[tuple[Sequence[Record], bytes]]:
    """``records`` in their order as entries of ``max_bytes`` at most, but of one record at least.

    :raises LocalProtocolError: if a record says what the level cannot carry.
    """
    entries: list[tuple[Sequence[Record], bytes]] = []
    packer, begin = msgpack.Packer(), 0
    packed: list[bytes] = []
    size_bytes = _ARRAY_HEADER_BYTES

    def close(end: int) -> None:
        header: bytes = msgpack.Packer().pack_array_header(len(packed))
        entries.append((records[begin:end], header + b"".join(packed)))

    for at, record in enumerate(records):
        one: bytes = packer.pack(_pack(record, level))
        if packed and size_bytes + len(one) > max_bytes:
            close(at)
            packed, begin, size_bytes = [], at, _ARRAY_HEADER_BYTES
        packed.append(one)
        size_bytes += len(one)
    close(len(records))
    return entries


def encode_entry_in_slices(
    records: Iterable[Record], count: int, slice_records: int, level: MetadataVersion
) -> Iterator[bytes]:
    """The bytes that :func:`encode_entry` gives, in pieces; for a state of many records.

    ``records`` is drawn from as the pieces are, and has exactly ``count`` records.
    """
    yield msgpack.Packer().pack_array_header(count)
    packer = msgpack.Packer()
    left = iter(records)
    while piece := b"".join(
        packer.pack(_pack(r, level)) for r in itertools.islice(left, slice_records)
    ):
        yield piece


def decode_entry(payload: bytes) -> tuple[Record, ...]:
    """The records of one entry.

    :raises RemoteProtocolError: if the bytes are not an entry that this version can read.
    """
    try:
        packed = msgpack.unpackb(payload)
        return tuple(_unpack(*parts) for parts in packed)
    except _UNREADABLE as e:
        raise RemoteProtocolError(f"not a metadata entry: {e}") from e


class EntryReader:
    """The records of one entry that comes in pieces, as they come; for a whole state."""

    def __init__(self) -> None:
        self._unpacker = msgpack.Unpacker()
        #: Records to come; None before the number of all was read.
        self._left: int | None = None

    def feed(self, piece: bytes) -> list[Record]:
        """The records that are whole with this piece.

        :raises RemoteProtocolError: if the bytes are not an entry that this version can read.
        """
        records: list[Record] = []
        try:
            self._unpacker.feed(piece)
            if self._left is None:
                self._left = self._unpacker.read_array_header()
            while self._left:
                records.append(_unpack(*self._unpacker.unpack()))
                self._left -= 1
        except msgpack.OutOfData:
            return records
        except _UNREADABLE as e:
            raise RemoteProtocolError(f"not a metadata entry: {e}") from e
        return records

    def end(self) -> None:
        """:raises RemoteProtocolError: if records are missing."""
        if self._left != 0:
            raise RemoteProtocolError(f"a metadata entry lacks {self._left} records")


_UNREADABLE: Final = (ValueError, TypeError, KeyError, msgpack.UnpackException)


def _pack(record: Record, level: MetadataVersion) -> list[Any]:
    """The record in the least version that can say it; fields of later versions are nil."""
    kind = type(record)
    if kind not in _FIELDS:
        raise LocalProtocolError(f"{kind.__name__} is not a metadata record")
    if getattr(kind, "LEAST_LEVEL", level) > level:
        raise LocalProtocolError(f"metadata.version {level} cannot carry {kind.__name__}")
    version: int = getattr(kind, "LEAST_VERSION", 0)
    values = []
    for name, since, default in _FIELDS[kind]:
        value = getattr(record, name)
        if since is not None and value != default:
            if since.level <= level:
                version = max(version, since.version)
            elif _goes_without_saying(name, value):
                value = None
            else:
                raise LocalProtocolError(
                    f"{kind.__name__} says {name}, which metadata.version {level} cannot carry"
                )
        values.append(_plain(value))
    return [kind.TYPE, version, values]


def _goes_without_saying(name: str, value: Any) -> bool:
    """Below the level of directories all of them are MIGRATING."""
    return name == "directories" and all(directory == MIGRATING_DIR for directory in value)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and value and isinstance(value[0], Listener):
        return [(item.name, item.host, item.port) for item in value]
    if isinstance(value, tuple) and value and isinstance(value[0], ImpairedLogDir):
        return [(item.directory_id, item.state.value) for item in value]
    return value


def _unpack(type_number: int, version: int, values: Sequence[Any]) -> Record:
    kind = _BY_TYPE[type_number]
    if version > kind.VERSION:
        raise ValueError(f"{kind.__name__} version {version} is newer than {kind.VERSION}")
    named = {}
    for (name, since, _), value in zip(_FIELDS[kind], values, strict=False):
        if since is None or since.version <= version:
            convert = _CONVERTERS.get(name)
            named[name] = value if convert is None or value is None else convert(value)
    record: Record = kind(**named)
    return record


def _directory_ids(raw: Sequence[bytes]) -> tuple[DirectoryId, ...]:
    return tuple(map(DirectoryId, raw))


#: How a field that msgpack flattened gets its type back, by field name.
_CONVERTERS: Final[dict[str, Callable[[Any], Any]]] = {
    "topic_id": TopicId,
    "incarnation_id": Uuid,
    "metadata_log_id": Uuid,
    "directory_id": DirectoryId,
    "log_dirs": _directory_ids,
    "offline_log_dirs": _directory_ids,
    "cordoned_log_dirs": _directory_ids,
    "impaired_log_dirs": lambda raw: tuple(
        ImpairedLogDir(DirectoryId(directory_id), LogDirState(state)) for directory_id, state in raw
    ),
    "log_dir_paths": tuple,
    "directories": _directory_ids,
    "replicas": tuple,
    "adding_replicas": tuple,
    "removing_replicas": tuple,
    "isr": tuple,
    "elr": tuple,
    "last_known_elr": tuple,
    "resource_type": ResourceType,
    "features": lambda raw: tuple(FeatureRange(*parts) for parts in raw),
    "listeners": lambda raw: tuple(
        Listener(name=name, host=host, port=port) for name, host, port in raw
    ),
}
