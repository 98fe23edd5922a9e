"""``RecordPrinter`` and ``JsonPrinter``: records as lines and as JSON."""

from __future__ import annotations

import json
import struct

import pytest

from kraftjbod.cli.console.record_printer import (
    JsonPrinter,
    RecordPrinter,
    UnreadableRecordError,
)
from kraftjbod.protocol.record_batch import TimestampType
from kraftjbod.protocol.records import Record


def test_json_printer_encodes_non_utf8_value_as_base64() -> None:
    record = Record(key=None, value=b"\xff", timestamp_ms=-1, headers=(("h", "\u00e9".encode()),))
    reported = json.loads(JsonPrinter().line("t", 3, record, TimestampType.LOG_APPEND_TIME))
    assert (reported["key"], reported["valueBase64"], reported["timestampMs"]) == (
        None,
        "/w==",
        None,
    )
    assert (reported["timestampType"], "value" in reported) == ("LogAppendTime", False)
    assert reported["headers"] == [{"name": "h", "value": "\u00e9"}]


def line(record: Record, kind: TimestampType = TimestampType.CREATE_TIME, **more: str) -> bytes:
    shown = {f"print.{name}": "true" for name in ("timestamp", "partition", "offset", "headers")}
    printer = RecordPrinter.from_properties({**shown, "print.key": "true", **more})
    return printer.line("t", 3, record, kind)


def test_record_printer_writes_fields_in_kafkas_order() -> None:
    record = Record(
        key=b"k", value=b"v", timestamp_ms=9, offset=4, headers=(("h", b"1"), ("i", None))
    )
    assert line(record) == b"CreateTime:9\tPartition:3\tOffset:4\th:1,i:null\tk\tv\n"
    bare = Record(timestamp_ms=-1, offset=4)
    assert line(bare) == b"NO_TIMESTAMP\tPartition:3\tOffset:4\tNO_HEADERS\tnull\tnull\n"


def test_record_printer_applies_separators_and_null_literal() -> None:
    record = Record(key=None, value=b"v", timestamp_ms=9, offset=4)
    more = {"key.separator": "\\t|", "line.separator": ";", "null.literal": "~"}
    reported = line(record, TimestampType.LOG_APPEND_TIME, **more)
    assert reported == b"LogAppendTime:9\t|Partition:3\t|Offset:4\t|NO_HEADERS\t|~\t|v;"


def test_record_printer_decodes_with_kafkas_deserializer_classes() -> None:
    record = Record(key=b"word", value=struct.pack(">q", -7), timestamp_ms=9, offset=4)
    package = "org.apache.kafka.common.serialization"
    read = {
        "key.deserializer": f"{package}.StringDeserializer",
        "value.deserializer": f"{package}.LongDeserializer",
    }
    assert line(record, **read).endswith(b"\tword\t-7\n")
    with pytest.raises(UnreadableRecordError, match="t-3 at offset 4"):
        line(Record(key=b"word", value=b"7", offset=4), **read)
    assert line(Record(key=None, value=None), **read).endswith(b"\tnull\tnull\n")


def test_record_printer_prints_not_present_for_delivery_and_epoch() -> None:
    shown = {"print.delivery": "true", "print.epoch": "true", "print.value": "false"}
    printer = RecordPrinter.from_properties(shown)
    record = Record(value=b"v")
    printed = printer.line("t", 0, record, TimestampType.CREATE_TIME)
    assert printed == b"Delivery:NOT_PRESENT\tEpoch:NOT_PRESENT\n"
    nothing = RecordPrinter.from_properties({"print.value": "false"})
    assert nothing.line("t", 0, record, TimestampType.CREATE_TIME) == b""
