"""PURE. Formats keys and values of records: as text, or as JSON for internal topics.

The format is that of Kafka's ``kafka-dump-log.sh``. Metadata records have Kafka's names, if Kafka
has the record, and kraftjbod's fields.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

from kraftjbod.core.errors import KraftJbodError, RemoteProtocolError
from kraftjbod.core.ids import Uuid
from kraftjbod.metadata.record_codec import decode_entry
from kraftjbod.protocol.kafka_codec import Message, decode_body
from kraftjbod.protocol.records import Record
from kraftjbod.protocol.schemas.kafka_schema import FieldSchema, StructSchema, load_message
from kraftjbod.protocol.schemas.record_schemas import RECORD_SCHEMAS

_TYPE: Final = struct.Struct(">h")
_MAX_ELEMENTS: Final = 1_000_000
_TRANSACTIONS: Final = "TransactionLog"
#: Type of old offsets, which Kafka reads but does not write any more.
_LEGACY_OFFSET: Final = 0
DELETED: Final = "<DELETE>"
#: Fields of a classic group's members that have the format of Kafka's consumers.
_EMBEDDED: Final = {
    "subscription": "ConsumerProtocolSubscription",
    "assignment": "ConsumerProtocolAssignment",
}
#: The key of a metadata entry: first offset of its append, then the kind if it is not data.
_METADATA_KEY_BYTES: Final = 8


class FormattedRecord(NamedTuple):
    """The output after ``key:`` and ``payload:``; None omits a part."""

    key: str | None
    payload: str | None


Decoder = Callable[[Record], FormattedRecord]


def plain(record: Record) -> FormattedRecord:
    """Return key and value as text; bytes that are not UTF-8 become U+FFFD."""
    return FormattedRecord(_text(record.key), _text(record.value))


def _text(data: bytes | None) -> str | None:
    return None if data is None else bytes(data).decode(errors="replace")


# --- topics of coordinators ----------------------------------------------------------------------


def _kinds(*, transactions: bool) -> Mapping[int, str]:
    """Return the names of record kinds by the type in their keys.

    :param transactions: whether the topic is ``__transaction_state`` or else
        ``__consumer_offsets``.
    """
    found = {
        load_message(name).api_key: name.removesuffix("Key")
        for name in RECORD_SCHEMAS
        if name.endswith("Key") and name.startswith(_TRANSACTIONS) == transactions
    }
    if not transactions:
        found[_LEGACY_OFFSET] = "OffsetCommit"
    return found


class Decoded(NamedTuple):
    """A record of a coordinator, as JSON values. ``version`` and ``value`` of a tombstone are
    None."""

    type: int
    key: dict[str, Any]
    version: int | None
    value: dict[str, Any] | None


def decode_group_record(record: Record) -> Decoded | None:
    """Decode a record of ``__consumer_offsets``; None if its type is unknown.

    :raises RemoteProtocolError: it is malformed.
    """
    return _decode_record(record, _kinds(transactions=False))


def decode_transaction_record(record: Record) -> Decoded | None:
    """Decode a record of ``__transaction_state``; None if its type is unknown.

    :raises RemoteProtocolError: it is malformed.
    """
    return _decode_record(record, _kinds(transactions=True))


def format_group_record(record: Record) -> FormattedRecord:
    """Format a record of ``__consumer_offsets``; an error or an unknown type becomes the text."""
    return _format_coordinator_record(record, decode_group_record)


def format_transaction_record(record: Record) -> FormattedRecord:
    """Format a record of ``__transaction_state``; an error or an unknown type becomes the text."""
    return _format_coordinator_record(record, decode_transaction_record)


def _format_coordinator_record(
    record: Record, decode: Callable[[Record], Decoded | None]
) -> FormattedRecord:
    try:
        decoded = decode(record)
    except KraftJbodError as e:
        return FormattedRecord(f"Error at offset {record.offset}, skipping. {e}", None)
    if decoded is None:
        number, _ = _split(record.key or b"")
        return FormattedRecord(
            f"Unknown record type {number} at offset {record.offset}, skipping.", None
        )
    named = _document("type", decoded.type, decoded.key)
    if decoded.version is None or decoded.value is None:
        return FormattedRecord(named, DELETED)
    _open_members(decoded.value)
    return FormattedRecord(named, _document("version", decoded.version, decoded.value))


def _decode_record(record: Record, kinds: Mapping[int, str]) -> Decoded | None:
    if record.key is None:
        raise RemoteProtocolError("it has no key")
    number, key = _split(record.key)
    kind = kinds.get(number)
    if kind is None:
        return None
    named = _decoded(f"{kind}Key", 0, key)
    if record.value is None:
        return Decoded(number, named, None, None)
    version, value = _split(record.value)
    return Decoded(number, named, version, _decoded(f"{kind}Value", version, value))


def _split(data: bytes) -> tuple[int, memoryview]:
    """Split data into its first 16 bits (type or version) and the rest.

    :raises RemoteProtocolError: the data has fewer than 16 bits.
    """
    view = memoryview(data)
    if len(view) < _TYPE.size:
        raise RemoteProtocolError(f"{len(view)} bytes are too few for a type or a version")
    return _TYPE.unpack_from(view)[0], view[_TYPE.size :]


def _decoded(name: str, version: int, data: memoryview) -> dict[str, Any]:
    """Decode ``data`` as the message ``name`` to JSON values.

    :raises RemoteProtocolError: the data is malformed, or its version is unknown.
    """
    schema = load_message(name)
    if version not in schema.versions:
        raise RemoteProtocolError(f"{name} has no version {version} here")
    body = decode_body(name, version, data, 0, max_elements=_MAX_ELEMENTS)
    return _plain_struct(body, schema.struct, version)


def _plain_struct(message: Message, schema: StructSchema, version: int) -> dict[str, Any]:
    """Return a message as JSON values, as Kafka's JSON converters do.

    The result omits fields that ``version`` lacks, and tagged fields with their default.
    """
    document = {}
    for one in schema.fields:
        value = getattr(message, one.name)
        is_unset = version in one.tagged and value == getattr(type(message)(), one.name)
        if version in one.versions and not is_unset:
            document[camel_case(one.name)] = _plain_value(value, one, version)
    return document


def _plain_value(value: Any, field: FieldSchema, version: int) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        is_uuid = field.type == "uuid"
        return str(Uuid(bytes(value))) if is_uuid else base64.b64encode(value).decode()
    if isinstance(value, list | tuple):
        return [_plain_value(one, field, version) for one in value]
    if field.struct is not None and value is not None:
        return _plain_struct(value, field.struct, version)
    return value


def _open_members(group: dict[str, Any]) -> None:
    """Decode subscription and assignment of each member, if they have the format of Kafka's
    consumers."""
    if group.get("protocolType") != "consumer":
        return
    for member in group["members"]:
        for name, kind in _EMBEDDED.items():
            try:
                version, data = _split(base64.b64decode(member[name]))
                member[name] = _decoded(kind, min(version, load_message(kind).versions.last), data)
            except KraftJbodError:
                continue


def _document(number_name: str, number: int, data: object) -> str:
    return _json({number_name: str(number), "data": data})


# --- metadata ------------------------------------------------------------------------------------


def format_metadata_entry(record: Record) -> FormattedRecord:
    """Format an entry of the metadata log: its records in order. An error becomes the text."""
    kind = bytes(record.key or b"")[_METADATA_KEY_BYTES:]
    if kind:
        return FormattedRecord(None, f"controlType: {kind.hex()}")
    try:
        return FormattedRecord(None, metadata_text(bytes(record.value or b"")))
    except KraftJbodError as e:
        return FormattedRecord(None, f"Error at {record.offset}, skipping. {e}")


def metadata_text(payload: bytes) -> str:
    """Return the records of a metadata entry as JSON documents, separated by spaces.

    :raises RemoteProtocolError: the payload is not one of kraftjbod's.
    """
    return " ".join(metadata_record_text(one) for one in decode_entry(payload))


#: Stands for the keys of SCRAM credentials.
REDACTED: Final = "(redacted)"


def metadata_record_text(record: Any) -> str:
    kind = type(record)
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).upper()
    return _json({"type": name, "version": kind.VERSION, "data": _jsonable(record)})


def _jsonable(value: Any) -> Any:
    if is_dataclass(value):
        return {
            camel_case(one.name): _jsonable(getattr(value, one.name)) if one.repr else REDACTED
            for one in fields(value)
        }
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Uuid):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {str(name): _jsonable(one) for name, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {camel_case(name): _jsonable(one) for name, one in value._asdict().items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_jsonable(one) for one in value]
    return value


def camel_case(name: str) -> str:
    """Return ``topicId`` for ``topic_id``."""
    first, *more = name.split("_")
    return first + "".join(part.capitalize() for part in more)


def _json(document: object) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)
