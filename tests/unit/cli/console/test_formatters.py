"""Kafka's message formatters, named by their classes.

test_record_formats.py tests the decoding. The same output as Kafka's was verified by hand."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from kraftjbod.cli.console.formatters import FORMATTERS, LogPrinter, named_printer
from kraftjbod.cli.console.record_printer import RecordPrinter, UnreadableRecordError
from kraftjbod.core.errors import ConfigError
from kraftjbod.protocol.kafka_codec import encode_body
from kraftjbod.protocol.messages import (
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
    TransactionLogKey,
)
from kraftjbod.protocol.record_batch import TimestampType
from kraftjbod.protocol.records import Record

PACKAGE = "org.apache.kafka.tools.consumer."


def short(number: int, body: Any, version: int = 0) -> bytes:
    return struct.pack(">h", number) + encode_body(version, body)


OFFSET = Record(
    key=short(1, OffsetCommitKey(group="g", topic="t", partition=0)),
    value=short(4, OffsetCommitValue(offset=13, metadata="", commit_timestamp=7), 4),
)
GROUP = Record(key=short(2, GroupMetadataKey(group="g")))
TRANSACTION = Record(key=short(0, TransactionLogKey(transactional_id="tx")))


def written(name: str, record: Record) -> bytes:
    printer = named_printer(name)
    assert printer is not None
    return printer.line("topic", 0, record, TimestampType.CREATE_TIME)


def test_formatters_write_one_line_per_record_of_their_kind() -> None:
    line = written(f"{PACKAGE}OffsetsMessageFormatter", OFFSET)
    assert line.endswith(b"}\n")
    assert json.loads(line) == {
        "key": {"type": 1, "data": {"group": "g", "topic": "t", "partition": 0}},
        "value": {
            "version": 4,
            "data": {"offset": 13, "leaderEpoch": -1, "metadata": "", "commitTimestamp": 7},
        },
    }
    assert written("OffsetsMessageFormatter", GROUP) == b""
    assert written("OffsetsMessageFormatter", Record(value=b"x")) == b""
    assert json.loads(written("GroupMetadataMessageFormatter", GROUP)) == {
        "key": {"type": 2, "data": {"group": "g"}},
        "value": None,
    }
    assert written("GroupMetadataMessageFormatter", OFFSET) == b""
    transaction = json.loads(written("kafka.tools.TransactionLogMessageFormatter", TRANSACTION))
    assert transaction["key"] == {"type": 0, "data": {"transactionalId": "tx"}}
    assert written("NoOpMessageFormatter", OFFSET) == b""


def test_formatter_names_offset_of_unreadable_record() -> None:
    with pytest.raises(UnreadableRecordError, match="topic-0 at offset 5"):
        written("OffsetsMessageFormatter", Record(key=b"x", offset=5))


def test_logging_formatter_writes_and_logs_each_record() -> None:
    logged: list[str] = []
    plain = RecordPrinter.from_properties({})
    printer = LogPrinter(plain, logged.append)
    record = Record(key=None, value=b"v", timestamp_ms=3)
    assert printer.line("t", 0, record, TimestampType.CREATE_TIME) == b"v\n"
    assert logged == ["CreateTime:3, key:null value:v"]


@pytest.mark.parametrize("name", ["no.such.Formatter", "com.acme.OffsetsMessageFormatter", ""])
def test_named_printer_rejects_unknown_class_and_lists_known_ones(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        named_printer(name)
    assert all(f"{PACKAGE}{one}" in str(refused.value) for one in FORMATTERS)


def test_named_printer_of_default_formatter_is_none() -> None:
    assert named_printer(f"{PACKAGE}DefaultMessageFormatter") is None
    assert not LogPrinter.is_named(f"{PACKAGE}DefaultMessageFormatter")
    assert LogPrinter.is_named("LoggingMessageFormatter")
