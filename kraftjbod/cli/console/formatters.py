"""PURE. Kafka's formatters other than the default one, by class name.

Records of coordinators are printed as one JSON document each, with Kafka's fields. Each document is
on a separate line, while Kafka's tool prints no line break.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from kraftjbod.cli.console.record_printer import (
    TIMESTAMP_TYPES,
    UnreadableRecordError,
)
from kraftjbod.cli.dump.record_formats import (
    Decoded,
    decode_group_record,
    decode_transaction_record,
)
from kraftjbod.core.errors import ConfigError, KraftJbodError
from kraftjbod.protocol.record_batch import TimestampType
from kraftjbod.protocol.records import Record

#: Kafka's packages since 4.0 and before; a bare class name is accepted too.
_PACKAGES: Final = ("org.apache.kafka.tools.consumer", "kafka.tools", "")
_DEFAULT: Final = "DefaultMessageFormatter"
_LOGGING: Final = "LoggingMessageFormatter"


class Printer(Protocol):
    def line(
        self, topic: str, partition: int, record: Record, timestamp_type: TimestampType
    ) -> bytes:
        """Return the output for a record; it may be empty.

        :raises UnreadableRecordError: the printer cannot decode the record.
        """


@dataclass(frozen=True, slots=True)
class CoordinatorPrinter:
    """Prints records of a topic that only coordinators write, as one JSON document each.

    Only records whose key has a type in ``types`` are printed; others give no output.
    """

    decode: Callable[[Record], Decoded | None]
    types: Collection[int]

    def line(
        self, topic: str, partition: int, record: Record, _timestamp_type: TimestampType
    ) -> bytes:
        if record.key is None:
            return b""
        try:
            decoded = self.decode(record)
        except KraftJbodError as e:
            where = f"{topic}-{partition} at offset {record.offset}"
            raise UnreadableRecordError(f"{where} cannot be read: {e}") from e
        if decoded is None or decoded.type not in self.types:
            return b""
        value = None
        if decoded.version is not None:
            value = {"version": decoded.version, "data": decoded.value}
        document = {"key": {"type": decoded.type, "data": decoded.key}, "value": value}
        return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


class NoOpPrinter:
    """Prints nothing."""

    def line(self, *_: object) -> bytes:
        return b""


@dataclass(frozen=True, slots=True)
class LogPrinter:
    """Prints with another printer, and logs the details that Kafka's LoggingMessageFormatter
    logs."""

    printer: Printer
    log: Callable[[str], None]

    @staticmethod
    def is_named(name: str | None) -> bool:
        return name is not None and _class(name) == _LOGGING

    def line(
        self, topic: str, partition: int, record: Record, timestamp_type: TimestampType
    ) -> bytes:
        written = self.printer.line(topic, partition, record, timestamp_type)
        key = "null " if record.key is None else f"{_text(record.key)}, "
        value = "null" if record.value is None else _text(record.value)
        time = f"{TIMESTAMP_TYPES[timestamp_type]}:{record.timestamp_ms}"
        self.log(f"{time}, key:{key}value:{value}")
        return written


_PRINTERS: Final[Mapping[str, Printer]] = {
    "OffsetsMessageFormatter": CoordinatorPrinter(decode_group_record, (0, 1)),
    "GroupMetadataMessageFormatter": CoordinatorPrinter(decode_group_record, (2,)),
    "TransactionLogMessageFormatter": CoordinatorPrinter(decode_transaction_record, (0,)),
    "NoOpMessageFormatter": NoOpPrinter(),
}
FORMATTERS: Final = (_DEFAULT, _LOGGING, *_PRINTERS)


def named_printer(name: str) -> Printer | None:
    """Return the printer of one of Kafka's formatter classes.

    None stands for the default formatter and the logging formatter, whose output depends on
    properties.

    :raises ConfigError: the class is unknown here.
    """
    package = name.rpartition(".")[0]
    if _class(name) not in FORMATTERS or package not in _PACKAGES:
        known = ", ".join(f"{_PACKAGES[0]}.{one}" for one in FORMATTERS)
        raise ConfigError(f"formatter {name}: only Kafka's own are known here: {known}")
    return _PRINTERS.get(_class(name))


def _class(name: str) -> str:
    return name.rpartition(".")[2]


def _text(data: bytes) -> str:
    return bytes(data).decode(errors="replace")
