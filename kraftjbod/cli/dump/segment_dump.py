"""WIRE. Prints the batches of a segment file, and their records, as Kafka's tool does.

The file is read from its beginning, a batch at a time, and never written. A batch with a wrong CRC
is marked. After the last complete batch, the remaining bytes are counted and skipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final, NamedTuple

from kraftjbod.cli.dump.record_formats import Decoder, plain
from kraftjbod.core.errors import CorruptRecordError, KraftJbodError, OperatingError
from kraftjbod.protocol.control_records import marker_of
from kraftjbod.protocol.record_batch import (
    HEADER_BYTES,
    HORIZON_BIT,
    MAX_SEQUENCE,
    NO_SEQUENCE,
    BatchHeader,
    Compression,
    TimestampType,
    check_crc,
    read_header,
)
from kraftjbod.protocol.records import Record, read_records

_TIMES: Final = {
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}


class DamagedFileError(KraftJbodError):
    """A file does not have the expected content; the message names it."""


@dataclass(frozen=True, slots=True)
class DumpItem:
    """One line of output, with its values for JSON. ``is_problem`` marks damage.

    ``line`` is None for values that appear in JSON only.
    """

    line: str | None
    facts: Mapping[str, Any] = field(default_factory=dict)
    is_problem: bool = False


class FoundBatch(NamedTuple):
    """A complete batch at ``position``, its byte offset in the file. Its CRC may be wrong."""

    position: int
    header: BatchHeader
    data: bytes

    @property
    def is_valid(self) -> bool:
        try:
            check_crc(self.data, 0, self.header)
        except CorruptRecordError:
            return False
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpStyle:
    """The parts of a segment to print."""

    records: bool = False
    decode: Decoder | None = plain
    """None: do not print the content of records."""
    metadata: bool = True
    """Whether to print offset, time and sizes of each record."""
    max_bytes: int | None = None


def find_batches(file: BinaryIO, position: int = 0) -> Iterator[FoundBatch]:
    """Yield complete batches from ``position`` on, until the bytes are not a complete batch.

    :raises OSError: the disk fails.
    """
    size, handle = os.fstat(file.fileno()).st_size, file.fileno()
    while position + HEADER_BYTES <= size:
        head = os.pread(handle, HEADER_BYTES, position)
        try:
            header = read_header(head)
        except CorruptRecordError:
            return
        if position + header.size_bytes > size:
            return
        yield FoundBatch(position, header, os.pread(handle, header.size_bytes, position))
        position += header.size_bytes


def dump_segment(path: str, style: DumpStyle) -> Iterator[DumpItem]:
    """Yield lines about the batches and records of a segment.

    :raises OSError: the file cannot be read.
    """
    name = os.path.basename(path)
    base = name.split(".")[0]
    if base.isdecimal():
        yield DumpItem(f"Log starting offset: {int(base)}", {"startingOffset": int(base)})
    gaps: list[tuple[int, int]] = []
    last_offset, end = -1, 0
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        for batch in find_batches(file):
            if style.max_bytes is not None and batch.position >= style.max_bytes:
                return
            end = batch.position + batch.header.size_bytes
            yield _batch_item(batch)
            if not style.records:
                continue
            for item in _record_items(batch, style):
                offset = item.facts.get("offset")
                if offset is not None:
                    if last_offset not in (-1, offset - 1):
                        gaps.append((last_offset, offset))
                    last_offset = offset
                yield item
    if end < size:
        text = f"Found {size - end} invalid bytes at the end of {name}"
        yield DumpItem(text, {"invalidBytes": size - end, "position": end}, is_problem=True)
    if gaps:
        # Compacted logs have gaps too.
        yield DumpItem(f"Non-consecutive offsets in {os.path.abspath(path)}", {"gaps": gaps})
        for first, second in gaps:
            yield DumpItem(f"  {first} is followed by {second}")


def _batch_item(batch: FoundBatch) -> DumpItem:
    header, is_valid = batch.header, batch.is_valid
    horizon = header.base_timestamp if header.attributes & HORIZON_BIT else None
    facts = {
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "count": header.record_count,
        "baseSequence": header.base_sequence,
        "lastSequence": header.last_sequence,
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "partitionLeaderEpoch": header.partition_leader_epoch,
        "isTransactional": header.is_transactional,
        "isControl": header.is_control,
        "deleteHorizonMs": horizon,
        "position": batch.position,
        _TIMES[header.timestamp_type]: header.max_timestamp,
        "size": header.size_bytes,
        "magic": header.magic,
        "compresscodec": _codec(header.compression),
        "crc": header.crc,
        "isvalid": is_valid,
    }
    words = {**facts, "deleteHorizonMs": optional_long(horizon)}
    line = " ".join(f"{name}: {_word(value)}" for name, value in words.items())
    return DumpItem(line, facts, is_problem=not is_valid)


def _record_items(batch: FoundBatch, style: DumpStyle) -> Iterator[DumpItem]:
    try:
        for at, record in enumerate(read_records(batch.data)):
            yield _record_item(batch.header, record, at, style)
    except (CorruptRecordError, OperatingError) as e:
        text = f"The records of the batch at position {batch.position} cannot be read: {e}"
        yield DumpItem(text, {"unreadable": str(e), "position": batch.position}, is_problem=True)


def _record_item(header: BatchHeader, record: Record, at: int, style: DumpStyle) -> DumpItem:
    sequence = NO_SEQUENCE
    if header.base_sequence != NO_SEQUENCE:
        sequence = (header.base_sequence + at) & MAX_SEQUENCE
    facts = {
        "offset": record.offset,
        _TIMES[header.timestamp_type]: record.timestamp_ms,
        "keySize": -1 if record.key is None else len(record.key),
        "valueSize": -1 if record.value is None else len(record.value),
        "sequence": sequence,
        "headerKeys": [name for name, _ in record.headers],
    }
    words = [f"{name}: {_word(value)}" for name, value in facts.items()] if style.metadata else []
    more: dict[str, object] = {}
    if header.is_control:
        more = _control_facts(record)
    elif style.decode is not None:
        key, payload = style.decode(record)
        more = {"key": key, "payload": payload}
    words += [f"{name}: {_word(value)}" for name, value in more.items() if value is not None]
    return DumpItem("| " + " ".join(words), {**facts, **more})


def _control_facts(record: Record) -> dict[str, object]:
    marker = marker_of(record)
    if marker is None:
        return {"controlType": bytes(record.key or b"").hex()}
    ending = "COMMIT" if marker.is_commit else "ABORT"
    return {"endTxnMarker": ending, "coordinatorEpoch": marker.coordinator_epoch}


def _codec(number: int) -> str:
    try:
        return Compression(number).name.lower()
    except ValueError:
        return str(number)


def _word(value: object) -> str:
    """Return a value as text, as Java and Scala do."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    return str(value)


def optional_long(value: int | None) -> str:
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"
