"""PURE. Formats records of ``kraftjbod-console-consumer`` in Kafka's default format or as JSON."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from kraftjbod.cli.console.line_reader import is_true, unescape
from kraftjbod.core.errors import ConfigError, KraftJbodError
from kraftjbod.protocol.record_batch import TimestampType
from kraftjbod.protocol.records import Record

#: The fields in the order of the output.
_FIELDS: Final = (
    "timestamp",
    "partition",
    "offset",
    "delivery",
    "epoch",
    "headers",
    "key",
    "value",
)
_TEXTS: Final = ("key.separator", "line.separator", "headers.separator", "null.literal")
_PARTS: Final = ("key", "value", "headers")
PRINTER_KEYS: Final = (
    *(f"print.{name}" for name in _FIELDS),
    *_TEXTS,
    *(f"{part}.deserializer" for part in _PARTS),
)
_NO_TIMESTAMP: Final = -1
TIMESTAMP_TYPES: Final = {
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}
Deserializer = Callable[[bytes], bytes]


class UnreadableRecordError(KraftJbodError):
    """A key, value or header cannot be deserialized, or a coordinator's record is malformed."""


def _number(form: str) -> Deserializer:
    def read(data: bytes) -> bytes:
        (value,) = struct.unpack(form, data)
        return str(value).lower().encode()

    return read


#: Deserializers by the name of Kafka's class.
_DESERIALIZERS: Final[Mapping[str, Deserializer]] = {
    "StringDeserializer": lambda data: data.decode(errors="replace").encode(),
    "ByteArrayDeserializer": bytes,
    "BytesDeserializer": bytes,
    "ShortDeserializer": _number(">h"),
    "IntegerDeserializer": _number(">i"),
    "LongDeserializer": _number(">q"),
    "FloatDeserializer": _number(">f"),
    "DoubleDeserializer": _number(">d"),
    "BooleanDeserializer": _number(">?"),
    "UUIDDeserializer": lambda data: data.decode().lower().encode(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPrinter:
    """Formats a record as a line, with the fields of Kafka's formatter in its order."""

    fields: frozenset[str]
    key_separator: bytes
    line_separator: bytes
    headers_separator: bytes
    null_literal: bytes
    deserializers: Mapping[str, Deserializer] = field(default_factory=dict)

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> RecordPrinter:
        """Create a printer.

        :raises ConfigError: an unknown property or deserializer.
        """
        if unknown := sorted(set(properties) - set(PRINTER_KEYS)):
            raise ConfigError(f"unknown: {', '.join(unknown)}")
        shown = {"print.value": "true", **properties}
        return cls(
            fields=frozenset(name for name in _FIELDS if is_true(shown.get(f"print.{name}"))),
            key_separator=unescape(properties.get("key.separator", "\t")).encode(),
            line_separator=unescape(properties.get("line.separator", "\n")).encode(),
            headers_separator=unescape(properties.get("headers.separator", ",")).encode(),
            null_literal=properties.get("null.literal", "null").encode(),
            deserializers={
                part: _deserializer(properties[f"{part}.deserializer"])
                for part in _PARTS
                if f"{part}.deserializer" in properties
            },
        )

    def line(
        self, topic: str, partition: int, record: Record, timestamp_type: TimestampType
    ) -> bytes:
        """Return the line of a record, with the line separator; empty if no field is printed.

        :raises UnreadableRecordError: a deserializer cannot decode its part.
        """
        try:
            parts = list(self._parts(partition, record, timestamp_type))
        except (struct.error, ValueError) as e:
            where = f"{topic}-{partition} at offset {record.offset}"
            raise UnreadableRecordError(f"{where} does not have the given format: {e}") from e
        return self.key_separator.join(parts) + self.line_separator if parts else b""

    def _parts(
        self, partition: int, record: Record, timestamp_type: TimestampType
    ) -> Iterator[bytes]:
        if "timestamp" in self.fields:
            yield _timestamp(record.timestamp_ms, timestamp_type)
        if "partition" in self.fields:
            yield b"Partition:%d" % partition
        if "offset" in self.fields:
            yield b"Offset:%d" % record.offset
        if "delivery" in self.fields:
            yield b"Delivery:NOT_PRESENT"
        if "epoch" in self.fields:
            # Kafka's tool does not know it either.
            yield b"Epoch:NOT_PRESENT"
        if "headers" in self.fields:
            yield self._headers(record)
        if "key" in self.fields:
            yield self._read("key", record.key)
        if "value" in self.fields:
            yield self._read("value", record.value)

    def _headers(self, record: Record) -> bytes:
        if not record.headers:
            return b"NO_HEADERS"
        return self.headers_separator.join(
            name.encode() + b":" + self._read("headers", value) for name, value in record.headers
        )

    def _read(self, part: str, value: bytes | None) -> bytes:
        if value is None:
            return self.null_literal
        read = self.deserializers.get(part)
        return bytes(value) if read is None else read(bytes(value))


def _deserializer(name: str) -> Deserializer:
    read = _DESERIALIZERS.get(name.rpartition(".")[2])
    if read is None:
        known = ", ".join(_DESERIALIZERS)
        raise ConfigError(f"deserializer {name}: only Kafka's own are known here: {known}")
    return read


@dataclass(frozen=True, slots=True)
class JsonPrinter:
    """Formats a record as a JSON document with all fields."""

    def line(
        self, topic: str, partition: int, record: Record, timestamp_type: TimestampType
    ) -> bytes:
        document = {
            "topic": topic,
            "partition": partition,
            "offset": record.offset,
            "timestampMs": None if record.timestamp_ms == _NO_TIMESTAMP else record.timestamp_ms,
            "timestampType": TIMESTAMP_TYPES[timestamp_type],
            **_text("key", record.key),
            **_text("value", record.value),
            "headers": [{"name": name, **_text("value", value)} for name, value in record.headers],
        }
        return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def _text(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: bytes(value).decode()}
    except UnicodeDecodeError:
        return {f"{name}Base64": base64.b64encode(value).decode()}


def _timestamp(timestamp_ms: int, timestamp_type: TimestampType) -> bytes:
    if timestamp_ms == _NO_TIMESTAMP:
        return b"NO_TIMESTAMP"
    return f"{TIMESTAMP_TYPES[timestamp_type]}:{timestamp_ms}".encode()
