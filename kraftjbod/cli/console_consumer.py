"""WIRE. ``kraftjbod-console-consumer``: prints the records of a topic, one per line.

Reads all partitions, or one, without a consumer group: nothing is committed, and each run starts
where its flags say.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Final

import click

from kraftjbod.cli.clients.cluster_admin import EARLIEST, LATEST, list_offsets
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.consumer import Consumer
from kraftjbod.cli.console_producer import unescape
from kraftjbod.cli.terminal.command import (
    PATIENCE_MS,
    ClusterAddress,
    connection_options,
    parse_pairs,
    progress,
    report,
    tool,
)
from kraftjbod.core.errors import ErrorCode, KraftJbodError
from kraftjbod.protocol.record_batch import TimestampType
from kraftjbod.protocol.records import Record

_POLL_MS: Final = 500
_PRINT_KEYS: Final = frozenset(
    {
        "print.timestamp",
        "print.partition",
        "print.offset",
        "print.headers",
        "print.key",
        "print.value",
        "key.separator",
        "line.separator",
        "headers.separator",
        "null.literal",
    }
)
_NO_TIMESTAMP: Final = -1
_TIMESTAMP_TYPES: Final = {
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}


class NothingToReadError(KraftJbodError):
    """The topic or partition that was named does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPrinter:
    """How a record becomes a line: the fields of Kafka's own formatter, in its order."""

    fields: frozenset[str]
    key_separator: bytes
    line_separator: bytes
    headers_separator: bytes
    null_literal: bytes

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> RecordPrinter:
        unknown = sorted(set(properties) - _PRINT_KEYS)
        if unknown:
            raise click.BadParameter(f"unknown: {', '.join(unknown)}", param_hint="--property")
        shown = {"print.value": "true", **properties}
        return cls(
            fields=frozenset(
                key.removeprefix("print.")
                for key, value in shown.items()
                if key.startswith("print.") and value.strip().lower() == "true"
            ),
            key_separator=unescape(properties.get("key.separator", "\t")).encode(),
            line_separator=unescape(properties.get("line.separator", "\n")).encode(),
            headers_separator=unescape(properties.get("headers.separator", ",")).encode(),
            null_literal=properties.get("null.literal", "null").encode(),
        )

    def line(self, partition: int, record: Record, timestamp_type: TimestampType) -> bytes:
        parts = self._parts(partition, record, timestamp_type)
        return self.key_separator.join(parts) + self.line_separator

    def _parts(
        self, partition: int, record: Record, timestamp_type: TimestampType
    ) -> Iterator[bytes]:
        if "timestamp" in self.fields:
            yield _timestamp(record.timestamp_ms, timestamp_type)
        if "partition" in self.fields:
            yield b"Partition:%d" % partition
        if "offset" in self.fields:
            yield b"Offset:%d" % record.offset
        if "headers" in self.fields:
            yield self._headers(record)
        if "key" in self.fields:
            yield self._or_null(record.key)
        if "value" in self.fields:
            yield self._or_null(record.value)

    def _headers(self, record: Record) -> bytes:
        if not record.headers:
            return b"NO_HEADERS"
        return self.headers_separator.join(
            name.encode() + b":" + self._or_null(value) for name, value in record.headers
        )

    def _or_null(self, value: bytes | None) -> bytes:
        return self.null_literal if value is None else value


@dataclass(frozen=True, slots=True)
class JsonPrinter:
    """A record as a JSON document, with all that it has."""

    topic: str

    def line(self, partition: int, record: Record, timestamp_type: TimestampType) -> bytes:
        document = {
            "topic": self.topic,
            "partition": partition,
            "offset": record.offset,
            "timestampMs": None if record.timestamp_ms == _NO_TIMESTAMP else record.timestamp_ms,
            "timestampType": _TIMESTAMP_TYPES[timestamp_type],
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
    return f"{_TIMESTAMP_TYPES[timestamp_type]}:{timestamp_ms}".encode()


@tool()
@connection_options
@click.option("--topic", required=True, help="Topic to read.")
@click.option("--partition", type=click.IntRange(min=0), help="Only this partition.")
@click.option("--offset", metavar="N|earliest|latest", help="Where to start; needs --partition.")
@click.option("--from-beginning", is_flag=True, help="Start at the oldest records.")
@click.option("--max-messages", type=click.IntRange(min=1), help="End after so many records.")
@click.option("--timeout-ms", type=click.IntRange(min=0), help="End when none comes for so long.")
@click.option(
    "--property",
    "--formatter-property",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    help="print.key, print.value, print.timestamp, print.partition, print.offset, print.headers, "
    "key.separator, line.separator, headers.separator, null.literal.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="A JSON document for each record. What is no UTF-8 is in base64, under keyBase64 and "
    "valueBase64.",
)
def main(
    cluster: ClusterAddress,
    topic: str,
    partition: int | None,
    offset: str | None,
    from_beginning: bool,
    max_messages: int | None,
    timeout_ms: int | None,
    properties: tuple[str, ...],
    as_json: bool,
) -> None:
    """Print the records of a topic."""
    if offset is not None and partition is None:
        raise click.UsageError("The partition is required when offset is specified.")
    if offset is not None and from_beginning:
        raise click.UsageError("From-beginning and offset cannot be specified together.")
    start = offset or ("earliest" if from_beginning else "latest")
    if start not in ("earliest", "latest") and not start.isdigit():
        raise click.BadParameter(f"{start!r}: a number, earliest or latest", param_hint="--offset")
    if as_json and properties:
        raise click.UsageError("--property says how lines are written, and --json has none")
    printer: RecordPrinter | JsonPrinter = JsonPrinter(topic)
    if not as_json:
        printer = RecordPrinter.from_properties(parse_pairs(properties, "--property"))
    reading = _Reading(topic, partition, start, max_messages, timeout_ms, printer)
    asyncio.run(reading.run(cluster))


class _Reading:
    """One run of the tool; ``total`` counts the records printed."""

    def __init__(
        self,
        topic: str,
        partition: int | None,
        start: str,
        max_messages: int | None,
        timeout_ms: int | None,
        printer: RecordPrinter | JsonPrinter,
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._start = start
        self._max_messages = max_messages
        self._timeout_ms = timeout_ms
        self._printer = printer
        self._out: BinaryIO = sys.stdout.buffer
        self.total = 0

    async def run(self, cluster: ClusterAddress) -> None:
        async with cluster.connect(patience_ms=PATIENCE_MS) as client:
            offsets = await client.retry(lambda: self._offsets(client))
            consumer = Consumer(client, self._topic, offsets)
            try:
                with progress("read", beside=sys.stdout) as advance:
                    await self._read(consumer, advance)
            finally:
                report(f"Processed a total of {self.total} messages")
                await consumer.close()

    async def _offsets(self, client: ClusterClient) -> dict[int, int]:
        metadata = await client.refresh_metadata([self._topic])
        topic = metadata.topics.get(self._topic)
        if topic is None or topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            # Waiting for it to be created would seem to be reading.
            raise NothingToReadError(f"topic {self._topic} does not exist")
        partitions = list(metadata.topic(self._topic).partitions)
        if self._partition is not None:
            if self._partition not in partitions:
                raise NothingToReadError(f"{self._topic} has no partition {self._partition}")
            partitions = [self._partition]
        if self._start.isdigit():
            return dict.fromkeys(partitions, int(self._start))
        timestamp = EARLIEST if self._start == "earliest" else LATEST
        return await list_offsets(client, self._topic, partitions, timestamp)

    async def _read(self, consumer: Consumer, advance: Callable[[int], None]) -> None:
        quiet_since = time.monotonic()
        while True:
            arrived = await consumer.poll(min(_POLL_MS, self._timeout_ms or _POLL_MS))
            for fetched in arrived:
                before = self.total
                for header, record in fetched:
                    line = self._printer.line(fetched.partition, record, header.timestamp_type)
                    self._out.write(line)
                    self.total += 1
                    if self.total == self._max_messages:
                        self._out.flush()
                        return
                advance(self.total - before)
            now = time.monotonic()
            if arrived:
                self._out.flush()
                quiet_since = now
            elif self._timeout_ms is not None and (now - quiet_since) * 1000 >= self._timeout_ms:
                return


if __name__ == "__main__":
    main(prog_name="kraftjbod-console-consumer")
