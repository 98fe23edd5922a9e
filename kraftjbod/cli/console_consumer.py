"""WIRE. ``kraftjbod-console-consumer``: prints the records of a topic, one per line.

Without a group it reads all partitions, or one, from the given start. With a group, a regular
expression for topics, or read_committed it uses a consumer of librdkafka, with the settings and
rules of Kafka's tool.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, BinaryIO, Final

import click

from kraftjbod.cli.clients.cluster_admin import EARLIEST, LATEST, list_offsets
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.consumer import Consumer
from kraftjbod.cli.console.formatters import FORMATTERS, LogPrinter, Printer, named_printer
from kraftjbod.cli.console.record_printer import (
    PRINTER_KEYS,
    JsonPrinter,
    RecordPrinter,
    UnreadableRecordError,
)
from kraftjbod.cli.terminal.command import (
    PATIENCE_MS,
    ClusterAddress,
    connection_options,
    parse_pairs,
    progress,
    read_file,
    read_properties,
    replace_references,
    report,
    tool,
)
from kraftjbod.core.errors import ConfigError, ErrorCode, KraftJbodError
from kraftjbod.core.properties import parse_properties
from kraftjbod.protocol.record_batch import TimestampType
from kraftjbod.protocol.records import Record

_POLL_MS: Final = 500
_GROUPS: Final = 100_000
_ISOLATION: Final = "isolation.level"
_RESET: Final = "auto.offset.reset"


class NothingToReadError(KraftJbodError):
    """The named topic or partition does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The records to read, and the conditions to stop."""

    topic: str | None
    include: str | None
    partition: int | None
    #: A number, ``earliest`` or ``latest``.
    start: str
    max_messages: int | None
    timeout_ms: int | None
    skips_unreadable: bool


@tool()
@partial(connection_options, old_config="--consumer.config")
@click.option("--topic", help="Topic to read.")
@click.option("--include", metavar="REGEX", help="Topics to read, by a regular expression.")
@click.option("--group", help="Consumer group to join. Offsets of printed records are committed.")
@click.option("--partition", type=click.IntRange(min=0), help="Only this partition.")
@click.option(
    "--offset", metavar="N|earliest|latest", help="Offset to start at; needs --partition."
)
@click.option(
    "--from-beginning",
    is_flag=True,
    help="Start at the oldest records. A group with committed offsets continues at them.",
)
@click.option(
    "--max-messages", type=click.IntRange(min=1), help="End after this number of records."
)
@click.option(
    "--timeout-ms", type=click.IntRange(min=0), help="End when no record arrives for this time."
)
@click.option(
    "--isolation-level",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    help="read_committed omits records of aborted and open transactions.",
)
@click.option(
    "--command-property",
    "--consumer-property",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Settings of the consumer, such as group.id or session.timeout.ms.",
)
@click.option(
    "--property",
    "--formatter-property",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    help=f"{', '.join(PRINTER_KEYS)}.",
)
@click.option(
    "--formatter",
    metavar="CLASS",
    help=f"Kafka's class that writes records, with or without package: {', '.join(FORMATTERS)}.",
)
@click.option(
    "--formatter-config",
    type=click.Path(dir_okay=False),
    help="Properties file with such settings.",
)
@click.option(
    "--key-deserializer", help="Kafka's deserializer class of keys, such as StringDeserializer."
)
@click.option("--value-deserializer", help="Kafka's deserializer class of values.")
@click.option(
    "--skip-message-on-error", is_flag=True, help="Continue after a record that cannot be read."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print a JSON document per record. Bytes that are no UTF-8 are "
    "base64 in keyBase64 and valueBase64.",
)
def main(cluster: ClusterAddress, **flags: Any) -> None:
    """Print the records of a topic."""
    asked = _asked(flags)
    settings = _settings(cluster, flags)
    printing = _Printing(asked, _printer(flags))
    if settings is None:
        asyncio.run(_Reading(asked, printing).run(cluster))
    else:
        asyncio.run(_reach(cluster, asked, settings))
        # The library's threads do the work from here on, so no event loop is needed.
        _read_as_member(asked, settings, printing)


def _asked(flags: Mapping[str, Any]) -> _Asked:
    """Check the flags, and return the request that they express.

    :raises click.UsageError: flags contradict each other; with the text of Kafka's tool if it has
        one.
    """
    topic, partition, offset = flags["topic"], flags["partition"], flags["offset"]
    if (topic is None) == (flags["include"] is None):
        if partition is not None and topic is None:
            raise click.UsageError("The topic is required when partition is specified.")
        raise click.UsageError(
            "Exactly one of the following arguments is required: --topic, --include"
        )
    if topic is None and partition is not None:
        raise click.UsageError("The topic is required when partition is specified.")
    if offset is not None and partition is None:
        raise click.UsageError("The partition is required when offset is specified.")
    if offset is not None and flags["from_beginning"]:
        raise click.UsageError("From-beginning and offset cannot be specified together.")
    start = (offset or ("earliest" if flags["from_beginning"] else "latest")).lower()
    if start not in ("earliest", "latest") and not start.isdigit():
        raise click.BadParameter(f"{start!r}: a number, earliest or latest", param_hint="--offset")
    return _Asked(
        topic=topic,
        include=flags["include"],
        partition=partition,
        start=start,
        max_messages=flags["max_messages"],
        timeout_ms=flags["timeout_ms"],
        skips_unreadable=flags["skip_message_on_error"],
    )


def _settings(cluster: ClusterAddress, flags: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the settings of a librdkafka consumer, as Kafka's tool builds them.

    None means that this project's own consumer suffices.

    :raises click.UsageError: flags contradict each other; with the text of Kafka's tool.
    """
    path = cluster.command_config
    of_file = {} if path is None else read_properties(path)
    option = "--command-property"
    given = replace_references(parse_pairs(flags["settings"], option), option)
    groups = {flags["group"], of_file.get("group.id"), given.get("group.id")} - {None}
    if len(groups) > 1:
        detected = ", ".join(f"'{group}'" for group in sorted(groups))
        raise click.UsageError(
            "The group ids provided in different places (directly using '--group', via "
            "'--command-property', or via '--command-config') do not match. Detected group ids: "
            + detected
        )
    if groups and flags["partition"] is not None:
        raise click.UsageError("Options group and partition cannot be specified together.")
    is_committed = flags["isolation_level"] == "read_committed"
    if not (groups or given or flags["include"] or is_committed or _ISOLATION in of_file):
        return None
    settings = {"client.id": "console-consumer", **of_file, **given}
    reset = settings.setdefault(_RESET, "earliest" if flags["from_beginning"] else "latest")
    if flags["from_beginning"] and reset != "earliest":
        raise click.UsageError(
            f"Can't simultaneously specify --from-beginning and 'auto.offset.reset={reset}', "
            "please remove one option"
        )
    if flags["isolation_level"] is not None:
        settings[_ISOLATION] = flags["isolation_level"]
    # The default of librdkafka is read_committed.
    settings.setdefault(_ISOLATION, "read_uncommitted")
    if groups:
        settings["group.id"] = groups.pop()
    else:
        settings["group.id"] = f"console-consumer-{secrets.randbelow(_GROUPS)}"
        settings.setdefault("enable.auto.commit", "false")
    return {**settings, "bootstrap.servers": cluster.bootstrap_server}


def _printer(flags: Mapping[str, Any]) -> Printer:
    """Return the printer for ``--formatter``.

    As in Kafka, printers of coordinators' topics ignore properties.

    :raises click.UsageError: the formatter is unknown, or flags contradict each other.
    """
    name = flags["formatter"]
    if name is not None and flags["as_json"]:
        raise click.UsageError("--formatter and --json exclude each other")
    try:
        named = None if name is None else named_printer(name)
    except ConfigError as e:
        raise click.BadParameter(str(e), param_hint="--formatter") from e
    if named is not None:
        return named
    plain = _plain_printer(flags)
    return LogPrinter(plain, report) if LogPrinter.is_named(name) else plain


def _plain_printer(flags: Mapping[str, Any]) -> RecordPrinter | JsonPrinter:
    path = flags["formatter_config"]
    properties = {} if path is None else parse_properties(read_file(path), path)
    properties |= parse_pairs(flags["properties"], "--property")
    for part in ("key", "value"):
        if (name := flags[f"{part}_deserializer"]) is not None:
            properties[f"{part}.deserializer"] = name
    if not flags["as_json"]:
        try:
            return RecordPrinter.from_properties(properties)
        except ConfigError as e:
            raise click.BadParameter(str(e), param_hint="--property") from e
    if properties:
        raise click.UsageError("--property says how lines are written, and --json has none")
    return JsonPrinter()


class _Printing:
    """Prints records to standard output; ``total`` counts them."""

    def __init__(self, asked: _Asked, printer: Printer) -> None:
        self._max = asked.max_messages
        self._skips_unreadable = asked.skips_unreadable
        self._printer = printer
        self._out: BinaryIO = sys.stdout.buffer
        self.total = 0

    @property
    def is_done(self) -> bool:
        return self.total == self._max

    def print(
        self, topic: str, partition: int, record: Record, timestamp_type: TimestampType
    ) -> None:
        self.total += 1
        try:
            self._out.write(self._printer.line(topic, partition, record, timestamp_type))
        except UnreadableRecordError as e:
            if not self._skips_unreadable:
                raise
            report(f"skipped: {e}")

    def flush(self) -> None:
        self._out.flush()

    def end(self) -> None:
        report(f"Processed a total of {self.total} messages")


async def _reach(cluster: ClusterAddress, asked: _Asked, settings: Mapping[str, str]) -> None:
    """Check that topic and partition exist, because librdkafka would wait for them without a
    message."""
    if settings.get("security.protocol", "PLAINTEXT") != "PLAINTEXT":
        return  # Only the library supports security.
    # The settings are for the library's consumer; this request needs none.
    async with replace(cluster, command_config=None).connect(patience_ms=PATIENCE_MS) as client:
        if asked.topic is not None:
            topic = asked.topic
            await client.retry(lambda: _partitions(client, topic, asked.partition))


def _read_as_member(asked: _Asked, settings: Mapping[str, str], printing: _Printing) -> None:
    # Importing the library takes a tenth of a second.
    from kraftjbod.cli.console.group_reader import GroupReader

    reader = GroupReader(settings)
    # A stop by SIGTERM, as services are stopped, should commit offsets too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if asked.topic is not None and asked.partition is not None:
            reader.assign(asked.topic, asked.partition, asked.start)
        else:
            reader.subscribe(asked.topic, asked.include)
        with progress("read", beside=sys.stdout) as advance:
            for handed in reader.records(asked.timeout_ms):
                if handed is None:
                    printing.flush()
                    continue
                printing.print(*handed)
                reader.printed()
                advance(1)
                if printing.is_done:
                    break
        printing.flush()
    finally:
        reader.close()
        printing.end()


class _Reading:
    """Reads with this project's consumer, without a group."""

    def __init__(self, asked: _Asked, printing: _Printing) -> None:
        assert asked.topic is not None
        self._topic = asked.topic
        self._partition = asked.partition
        self._start = asked.start
        self._timeout_ms = asked.timeout_ms
        self._printing = printing

    async def run(self, cluster: ClusterAddress) -> None:
        async with cluster.connect(patience_ms=PATIENCE_MS) as client:
            offsets = await client.retry(lambda: self._offsets(client))
            consumer = Consumer(client, self._topic, offsets)
            try:
                with progress("read", beside=sys.stdout) as advance:
                    await self._read(consumer, advance)
            finally:
                self._printing.end()
                await consumer.close()

    async def _offsets(self, client: ClusterClient) -> dict[int, int]:
        partitions = await _partitions(client, self._topic, self._partition)
        if self._start.isdigit():
            return dict.fromkeys(partitions, int(self._start))
        timestamp = EARLIEST if self._start == "earliest" else LATEST
        return await list_offsets(client, self._topic, partitions, timestamp)

    async def _read(self, consumer: Consumer, advance: Callable[[int], None]) -> None:
        printing = self._printing
        quiet_since = time.monotonic()
        while True:
            arrived = await consumer.poll(min(_POLL_MS, self._timeout_ms or _POLL_MS))
            for fetched in arrived:
                before = printing.total
                for header, record in fetched:
                    printing.print(self._topic, fetched.partition, record, header.timestamp_type)
                    if printing.is_done:
                        printing.flush()
                        return
                advance(printing.total - before)
            now = time.monotonic()
            if arrived:
                printing.flush()
                quiet_since = now
            elif self._timeout_ms is not None and (now - quiet_since) * 1000 >= self._timeout_ms:
                return


async def _partitions(client: ClusterClient, name: str, only: int | None) -> list[int]:
    """Return the partitions of a topic to read: only the partition ``only``, unless it is None.

    :raises NothingToReadError: the named topic or partition does not exist.
    """
    metadata = await client.refresh_metadata([name])
    topic = metadata.topics.get(name)
    if topic is None or topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        # Waiting for the topic would look like reading.
        raise NothingToReadError(f"topic {name} does not exist")
    partitions = list(metadata.topic(name).partitions)
    if only is None:
        return partitions
    if only not in partitions:
        raise NothingToReadError(f"{name} has no partition {only}")
    return [only]


if __name__ == "__main__":
    main(prog_name="kraftjbod-console-consumer")
