"""Metadata records: the only way in which the cluster's state ever changes.

One entry of the metadata log is a tuple of records that take effect together; its payload is
``encode_entry(records)``.
A snapshot has the same form: one entry with all the records that rebuild the state.

Rules of this file:

* records are frozen and say *what is so now*, never how to compute it;
* in a change record ``None`` means "no change";
* a record's version is written with it, and a reader refuses versions it does not know;
* fields that a later version adds get defaults, so older entries stay readable.

Fields follow Kafka's records of the same names, with LogDirs and Directories as KIP-858 adds them.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, Final

import msgpack

from kraftjbod.core.errors import LocalProtocolError, RemoteProtocolError
from kraftjbod.core.ids import (
    BrokerEpoch,
    BrokerId,
    DirectoryId,
    LeaderEpoch,
    PartitionEpoch,
    TopicId,
    Uuid,
)

METADATA_VERSION: Final = "metadata.version"
"""Name of the feature whose level says which records may be written."""
METADATA_VERSION_JBOD: Final = 17
"""First level with directories (3.7-IV2)."""
METADATA_VERSION_LATEST: Final = 17

_MAX_ENTRY_BYTES: Final = 64 * 1024 * 1024


class ResourceType(IntEnum):
    """What a configuration belongs to; Kafka's numbers."""

    TOPIC = 2
    BROKER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One address under which clients reach a broker."""

    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerRecord:
    """A new incarnation of a broker; its epoch is the offset of this record's entry."""

    TYPE: ClassVar[int] = 0
    VERSION: ClassVar[int] = 4

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    incarnation_id: Uuid
    listeners: tuple[Listener, ...]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    log_dirs: tuple[DirectoryId, ...]
    """Available directories, sorted."""
    offline_log_dirs: tuple[DirectoryId, ...] = ()
    """Directories that failed since this incarnation registered them, sorted.

    Never filled by a registration, only by a snapshot, so that a repeated report of a failed
    directory is still known after the log before the snapshot is gone.
    """
    log_dir_paths: tuple[str, ...] = ()
    """Where each of ``log_dirs`` is mounted, in the same order; empty if the broker did not say.

    By these an operator names the directory that a new replica shall go to.
    """
    cordoned_log_dirs: tuple[DirectoryId, ...] = ()
    """Directories that take no new replicas (KIP-1066), sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationChangeRecord:
    TYPE: ClassVar[int] = 17
    VERSION: ClassVar[int] = 2

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    fenced: bool | None = None
    in_controlled_shutdown: bool | None = None
    log_dirs: tuple[DirectoryId, ...] | None = None
    """The directories that are still available; those left out went offline."""
    cordoned_log_dirs: tuple[DirectoryId, ...] | None = None


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

    ``directories`` runs parallel to ``replicas``.
    """

    TYPE: ClassVar[int] = 3
    VERSION: ClassVar[int] = 1

    topic_id: TopicId
    partition_id: int
    replicas: tuple[BrokerId, ...]
    directories: tuple[DirectoryId, ...]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChangeRecord:
    """Part of a partition's state changed.

    The partition epoch grows by one with each such record; the leader epoch grows by one if
    ``leader`` is given, even if it names the same broker.
    """

    TYPE: ClassVar[int] = 5
    VERSION: ClassVar[int] = 1

    topic_id: TopicId
    partition_id: int
    isr: tuple[BrokerId, ...] | None = None
    leader: BrokerId | None = None
    replicas: tuple[BrokerId, ...] | None = None
    directories: tuple[DirectoryId, ...] | None = None
    leader_recovering: bool | None = None
    adding_replicas: tuple[BrokerId, ...] | None = None
    removing_replicas: tuple[BrokerId, ...] | None = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsRecord:
    """All producer ids below ``next_producer_id`` have been handed out."""

    TYPE: ClassVar[int] = 15
    VERSION: ClassVar[int] = 0

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    next_producer_id: int


Record = (
    RegisterBrokerRecord
    | BrokerRegistrationChangeRecord
    | TopicRecord
    | RemoveTopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | ConfigRecord
    | FeatureLevelRecord
    | ProducerIdsRecord
)

_RECORD_TYPES: Final[tuple[type[Any], ...]] = (
    RegisterBrokerRecord,
    BrokerRegistrationChangeRecord,
    TopicRecord,
    RemoveTopicRecord,
    PartitionRecord,
    PartitionChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    ProducerIdsRecord,
)
_BY_TYPE: Final = {kind.TYPE: kind for kind in _RECORD_TYPES}
#: Field names per class, looked up once: an entry of a big topic has thousands of records.
_FIELDS: Final = {
    kind: tuple(field.name for field in dataclasses.fields(kind)) for kind in _RECORD_TYPES
}


def encode_entry(records: Sequence[Record]) -> bytes:
    """The payload of one metadata entry: msgpack of ``[[type, version, [field, ...]], ...]``."""
    packed: bytes = msgpack.packb([_pack(record) for record in records])
    return packed


def encode_entry_in_slices(
    records: Iterable[Record], count: int, slice_records: int
) -> Iterator[bytes]:
    """The bytes that :func:`encode_entry` gives, in pieces; for a state of many records.

    ``records`` is drawn from as the pieces are, and has exactly ``count`` records.
    """
    yield msgpack.Packer().pack_array_header(count)
    packer = msgpack.Packer()
    left = iter(records)
    while piece := b"".join(packer.pack(_pack(r)) for r in itertools.islice(left, slice_records)):
        yield piece


def decode_entry(payload: bytes) -> tuple[Record, ...]:
    """The records of one entry.

    :raises RemoteProtocolError: if the bytes are not an entry that this version can read.
    """
    if len(payload) > _MAX_ENTRY_BYTES:
        raise RemoteProtocolError(f"a metadata entry of {len(payload)} bytes is too long")
    try:
        packed = msgpack.unpackb(payload)
        return tuple(_unpack(*parts) for parts in packed)
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as e:
        raise RemoteProtocolError(f"not a metadata entry: {e}") from e


def _pack(record: Record) -> list[Any]:
    kind = type(record)
    if kind not in _FIELDS:
        raise LocalProtocolError(f"{kind.__name__} is not a metadata record")
    values = [_plain(getattr(record, name)) for name in _FIELDS[kind]]
    return [kind.TYPE, kind.VERSION, values]


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and value and isinstance(value[0], Listener):
        return [(item.name, item.host, item.port) for item in value]
    return value


def _unpack(type_number: int, version: int, values: Sequence[Any]) -> Record:
    kind = _BY_TYPE[type_number]
    if version > kind.VERSION:
        raise ValueError(f"{kind.__name__} version {version} is newer than {kind.VERSION}")
    named = dict(zip(_FIELDS[kind], values, strict=False))
    for name, value in named.items():
        convert = _CONVERTERS.get(name)
        if convert is not None and value is not None:
            named[name] = convert(value)
    record: Record = kind(**named)
    return record


def _directory_ids(raw: Sequence[bytes]) -> tuple[DirectoryId, ...]:
    return tuple(map(DirectoryId, raw))


#: How a field that msgpack flattened gets its type back, by field name.
_CONVERTERS: Final[dict[str, Callable[[Any], Any]]] = {
    "topic_id": TopicId,
    "incarnation_id": Uuid,
    "log_dirs": _directory_ids,
    "offline_log_dirs": _directory_ids,
    "cordoned_log_dirs": _directory_ids,
    "log_dir_paths": tuple,
    "directories": _directory_ids,
    "replicas": tuple,
    "adding_replicas": tuple,
    "removing_replicas": tuple,
    "isr": tuple,
    "resource_type": ResourceType,
    "listeners": lambda raw: tuple(
        Listener(name=name, host=host, port=port) for name, host, port in raw
    ),
}
