"""PURE. Encoding of metadata records, for entries of the log and for snapshots.

* The payload of an entry is ``encode_entry(records, level)``. A snapshot is encoded in pieces.
* A record is written in the lowest version that can represent it. A reader rejects versions that
  it does not know.
* Equal lists of replicas and directories share one object in memory.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgpack

from kraftjbod.core.acl import (
    AclBinding,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
)
from kraftjbod.core.errors import LocalProtocolError, RemoteProtocolError
from kraftjbod.core.ids import MIGRATING_DIR, BrokerId, DirectoryId, TopicId, Uuid
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.metadata_version import MetadataVersion
from kraftjbod.core.scram import ScramMechanism
from kraftjbod.metadata.records import (
    RECORD_TYPES,
    SINCE,
    FeatureRange,
    ImpairedLogDir,
    Listener,
    Record,
    ResourceType,
    Since,
)

MAX_ENTRY_BYTES: Final = 1024 * 1024
"""Limit of new entries. Entries of earlier versions may be larger, and are read."""
_ARRAY_HEADER_BYTES: Final = 5
_MAX_SHARED: Final = 10_000
_MAX_LAYOUTS: Final = 200
_BY_TYPE: Final = {kind.TYPE: kind for kind in RECORD_TYPES}


class _Field(NamedTuple):
    name: str
    since: Since | None
    default: Any


def _fields_of(kind: type[Any]) -> tuple[_Field, ...]:
    return tuple(
        _Field(field.name, field.metadata.get(SINCE), field.default)
        for field in dataclasses.fields(kind)
    )


#: Fields by class, looked up once: an entry of a big topic has thousands of records.
_FIELDS: Final = {kind: _fields_of(kind) for kind in RECORD_TYPES}


def encode_entry(records: Sequence[Record], level: MetadataVersion) -> bytes:
    """Return the payload of one metadata entry: msgpack of ``[[type, version, [field, ...]],
    ...]``.

    :param level: ``metadata.version`` before the entry.
    :raises LocalProtocolError: a record has a value that the level cannot represent.
    """
    packed: bytes = msgpack.packb([_pack(record, level) for record in records])
    return packed


def encode_entries(
    records: Sequence[Record], level: MetadataVersion, max_bytes: int
) -> list[tuple[Sequence[Record], bytes]]:
    """Split ``records`` into entries of at most ``max_bytes``, each with at least one record.

    Returns the records and the payload of each entry. An entry of one record may be larger. Without
    records the result is one empty entry.

    :param level: ``metadata.version`` before the entries.
    :raises LocalProtocolError: a record has a value that the level cannot represent.
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
    """Yield the bytes of :func:`encode_entry` in pieces, for a state with many records.

    :param records: exactly ``count`` records, consumed piece by piece.
    :param slice_records: number of records per piece.
    """
    yield msgpack.Packer().pack_array_header(count)
    packer = msgpack.Packer()
    left = iter(records)
    while piece := b"".join(
        packer.pack(_pack(r, level)) for r in itertools.islice(left, slice_records)
    ):
        yield piece


def decode_entry(payload: bytes) -> tuple[Record, ...]:
    """Return the records of one entry.

    :raises RemoteProtocolError: this version cannot decode ``payload``.
    """
    try:
        packed = msgpack.unpackb(payload, use_list=False)
        return tuple(_unpack(*parts) for parts in packed)
    except _UNREADABLE as e:
        raise RemoteProtocolError(f"not a metadata entry: {e}") from e


class EntryReader:
    """Decodes the records of one large entry, such as a snapshot, that arrives in pieces. Call
    :meth:`feed` for each piece, then :meth:`end`.
    """

    def __init__(self) -> None:
        self._unpacker = msgpack.Unpacker(use_list=False)
        #: Number of records not decoded yet; None before the count was read.
        self._left: int | None = None

    def feed(self, piece: bytes) -> list[Record]:
        """Return the records that are complete with this piece.

        :raises RemoteProtocolError: this version cannot decode the bytes.
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
        """Raise an error if the entry is incomplete. Called after the last piece.

        :raises RemoteProtocolError: records are missing.
        """
        if self._left is None:
            raise RemoteProtocolError("a metadata entry ends before its number of records")
        if self._left:
            raise RemoteProtocolError(f"a metadata entry lacks {self._left} records")


_UNREADABLE: Final = (ValueError, TypeError, KeyError, msgpack.UnpackException)


def _pack(record: Record, level: MetadataVersion) -> list[Any]:
    """Return the record as ``[type, version, fields]``, in the lowest version that can represent
    it.

    Fields of later versions are None if ``level`` cannot represent them.

    :raises LocalProtocolError: such a field has a value that must not be dropped.
    """
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
            elif _is_default_value(name, value):
                value = None
            else:
                raise LocalProtocolError(
                    f"{kind.__name__} says {name}, which metadata.version {level} cannot carry"
                )
        values.append(_plain(value))
    return [kind.TYPE, version, values]


def _is_default_value(name: str, value: Any) -> bool:
    """Return whether a value can be left out: MIGRATING directories, which mean "not known"."""
    return name == "directories" and all(directory == MIGRATING_DIR for directory in value)


def _plain(value: Any) -> Any:
    if isinstance(value, AclBinding):
        return (
            int(value.resource_type),
            value.resource_name,
            int(value.pattern_type),
            value.principal,
            value.host,
            int(value.operation),
            int(value.permission),
        )
    if isinstance(value, tuple) and value and isinstance(value[0], Listener):
        return [(item.name, item.host, item.port) for item in value]
    if isinstance(value, tuple) and value and isinstance(value[0], ImpairedLogDir):
        return [(item.directory_id, item.state.value) for item in value]
    return value


def _unpack(type_number: int, version: int, values: Sequence[Any]) -> Record:
    kind, fields = _layout(type_number, version)
    record: Record = kind(
        **{
            name: value if convert is None or value is None else convert(value)
            for (name, is_said, convert), value in zip(fields, values, strict=False)
            if is_said
        }
    )
    return record


@functools.lru_cache(maxsize=_MAX_LAYOUTS)
def _layout(
    type_number: int, version: int
) -> tuple[type[Any], tuple[tuple[str, bool, Callable[[Any], Any] | None], ...]]:
    """Return the class of a record, and per field: its name, whether ``version`` has it, its
    converter.

    :raises ValueError: ``version`` is newer than this software.
    """
    kind = _BY_TYPE[type_number]
    if version > kind.VERSION:
        raise ValueError(f"{kind.__name__} version {version} is newer than {kind.VERSION}")
    return kind, tuple(
        (name, since is None or since.version <= version, _CONVERTERS.get(name))
        for name, since, _ in _FIELDS[kind]
    )


#: Most of a million partitions have equal values. Recent equal values share one object.
_shared: Final = functools.lru_cache(maxsize=_MAX_SHARED)


@_shared
def _topic_id(raw: bytes) -> TopicId:
    return TopicId(raw)


@_shared
def _directory_ids(raw: tuple[bytes, ...]) -> tuple[DirectoryId, ...]:
    return tuple(map(DirectoryId, raw))


@_shared
def _broker_ids(raw: tuple[BrokerId, ...]) -> tuple[BrokerId, ...]:
    return raw


def _acl_binding(raw: tuple[int, str, int, str, str, int, int]) -> AclBinding:
    resource_type, name, pattern_type, principal, host, operation, permission = raw
    return AclBinding(
        AclResourceType(resource_type),
        name,
        AclPatternType(pattern_type),
        principal,
        host,
        AclOperation(operation),
        AclPermission(permission),
    )


#: Converters that restore the types of fields that msgpack flattened, by field name.
_CONVERTERS: Final[dict[str, Callable[[Any], Any]]] = {
    "topic_id": _topic_id,
    "acl_id": Uuid,
    "binding": _acl_binding,
    "mechanism": ScramMechanism,
    "entity": lambda raw: tuple((kind, name) for kind, name in raw),
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
    "replicas": _broker_ids,
    "adding_replicas": _broker_ids,
    "removing_replicas": _broker_ids,
    "isr": _broker_ids,
    "elr": _broker_ids,
    "last_known_elr": _broker_ids,
    "resource_type": ResourceType,
    "features": lambda raw: tuple(FeatureRange(*parts) for parts in raw),
    "listeners": lambda raw: tuple(
        Listener(name=name, host=host, port=port) for name, host, port in raw
    ),
}
