"""WIRE. ``kraftjbod-console-producer``: sends each line of standard input as a record.

Records with a key go to the partition that Kafka's clients choose, others round robin by batch. The
tool reads more lines only after the previous ones were acknowledged. So a slow cluster slows down
the input, and little memory is used.
"""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from functools import partial
from itertools import count
from typing import Any, Final, cast

import click

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.partitioner import partition_of
from kraftjbod.cli.clients.producer import ACKS_ALL, Producer, now_ms
from kraftjbod.cli.console.line_reader import READER_KEYS, LineReader, MalformedLineError
from kraftjbod.cli.terminal.command import (
    PATIENCE_MS,
    ClusterAddress,
    connection_options,
    echo_json,
    json_option,
    parse_pairs,
    progress,
    read_file,
    tool,
)
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.properties import parse_properties
from kraftjbod.protocol.record_batch import Compression
from kraftjbod.protocol.records import Record

_CODECS: Final = {codec.name.lower(): codec for codec in Compression}
_ACKS: Final = {"all": ACKS_ALL, "-1": ACKS_ALL, "0": 0, "1": 1}
_READ_BYTES: Final = 1024 * 1024


@tool()
@partial(connection_options, old_config="--producer.config")
@click.option("--topic", required=True, help="Topic to send to.")
@click.option(
    "--property",
    "--reader-property",
    "reader",
    multiple=True,
    metavar="KEY=VALUE",
    help=f"{', '.join(READER_KEYS)}.",
)
@click.option(
    "--reader-config", type=click.Path(dir_okay=False), help="Properties file with such settings."
)
@click.option(
    "--producer-property",
    "--command-property",
    "producer",
    multiple=True,
    metavar="KEY=VALUE",
    help="acks, compression.type, batch.size, request.timeout.ms.",
)
@click.option("--request-required-acks", type=click.Choice(sorted(_ACKS)), help="all, 1 or 0.")
@click.option(
    "--compression-codec",
    type=click.Choice(list(_CODECS)),
    is_flag=False,
    flag_value="gzip",
    help="Compression codec: none by default, gzip if the option has no value.",
)
@click.option("--batch-size", type=click.IntRange(min=1), help="Bytes of values per batch.")
@click.option("--request-timeout-ms", type=click.IntRange(min=1), help="Timeout of a request.")
@click.option("--max-block-ms", type=click.IntRange(min=1), help="Time after which a batch fails.")
@click.option(
    "--sync",
    is_flag=True,
    expose_value=False,
    help="Accepted without effect: sending is always synchronous.",
)
@json_option
def main(cluster: ClusterAddress, topic: str, as_json: bool, **flags: Any) -> None:
    """Send lines of standard input to a topic."""
    settings = {
        "acks": "all",
        "compression.type": "none",
        "batch.size": "65536",
        "request.timeout.ms": "30000",
        "delivery.timeout.ms": "120000",
        **parse_pairs(flags["producer"], "--producer-property"),
    }
    for key, given in (
        ("acks", flags["request_required_acks"]),
        ("compression.type", flags["compression_codec"]),
        ("batch.size", flags["batch_size"]),
        ("request.timeout.ms", flags["request_timeout_ms"]),
        ("delivery.timeout.ms", flags["max_block_ms"]),
    ):
        if given is not None:
            settings[key] = str(given)
    _require_known(settings)
    of_file = flags["reader_config"]
    try:
        reader = LineReader.from_properties(
            {
                **({} if of_file is None else parse_properties(read_file(of_file), of_file)),
                **parse_pairs(flags["reader"], "--property"),
            }
        )
    except ConfigError as e:
        raise click.BadParameter(str(e), param_hint="--property") from e
    asyncio.run(_perform(cluster, topic, settings, reader, as_json=as_json))


def _require_known(settings: Mapping[str, str]) -> None:
    hint = "--producer-property"
    if settings["acks"] not in _ACKS:
        raise click.BadParameter(f"acks={settings['acks']}: all, 1 or 0", param_hint=hint)
    if settings["compression.type"] not in _CODECS:
        codecs = ", ".join(_CODECS)
        raise click.BadParameter(f"compression.type: one of {codecs}", param_hint=hint)
    for key in ("batch.size", "request.timeout.ms", "delivery.timeout.ms"):
        if not settings[key].isdigit():
            raise click.BadParameter(f"{key}={settings[key]}: a number", param_hint=hint)


async def _perform(
    cluster: ClusterAddress,
    topic: str,
    settings: Mapping[str, str],
    reader: LineReader,
    *,
    as_json: bool,
) -> None:
    sent = _Sent()
    async with cluster.connect(patience_ms=PATIENCE_MS) as client:
        partitions = await client.retry(lambda: _partition_count(client, topic))
        producer = Producer(
            client,
            topic,
            acks=_ACKS[settings["acks"]],
            request_timeout_ms=int(settings["request.timeout.ms"]),
            delivery_timeout_ms=int(settings["delivery.timeout.ms"]),
            compression=_CODECS[settings["compression.type"]],
        )
        batch_bytes = int(settings["batch.size"])
        turn = count()
        number = 1
        with progress("sent", beside=sys.stdin) as advance:
            async for lines in _chunks_of_lines():
                records, bad_line = _read_lines(reader, lines, number)
                number += len(records)
                batches = list(_batches(records, partitions, turn, batch_bytes))
                offsets = await asyncio.gather(*(producer.send(p, batch) for p, batch in batches))
                for (partition, batch), offset in zip(batches, offsets, strict=True):
                    sent.note(partition, len(batch), offset)
                advance(len(records))
                if bad_line is not None:
                    raise bad_line
    if as_json:
        echo_json(sent.document(topic))


def _read_lines(
    reader: LineReader, lines: Iterable[bytes], number: int
) -> tuple[list[Record], MalformedLineError | None]:
    """Return the records of ``lines`` before the first malformed line, and the error of that line.

    :param number: number of the first line, for the error.
    """
    now, records = now_ms(), []
    for at, line in enumerate(lines, number):
        try:
            records.append(reader.record(line, at, now))
        except MalformedLineError as e:
            return records, e
    return records, None


class _Sent:
    """Numbers of acknowledged records by partition, with their first and last offsets."""

    def __init__(self) -> None:
        self._partitions: dict[int, tuple[int, int, int]] = {}

    def note(self, partition: int, records: int, offset: int) -> None:
        """Count an acknowledged batch.

        :param records: number of records in the batch.
        :param offset: offset of the first record; -1 with ``acks=0``.
        """
        count, first, _ = self._partitions.get(partition, (0, offset, offset))
        last = offset + records - 1 if offset >= 0 else offset
        self._partitions[partition] = (count + records, first, last)

    def document(self, topic: str) -> dict[str, Any]:
        return {
            "version": 1,
            "topic": topic,
            "records": sum(count for count, _, _ in self._partitions.values()),
            "partitions": [
                {
                    "partition": partition,
                    "records": count,
                    "firstOffset": first if first >= 0 else None,
                    "lastOffset": last if last >= 0 else None,
                }
                for partition, (count, first, last) in sorted(self._partitions.items())
            ],
        }


async def _partition_count(client: ClusterClient, topic: str) -> int:
    """Return the number of partitions of ``topic``; the cluster may create it automatically."""
    metadata = await client.refresh_metadata([topic], create_missing=True)
    return len(metadata.topic(topic).partitions)


def _batches(
    records: Iterable[Record], partitions: int, turn: Iterator[int], batch_bytes: int
) -> Iterator[tuple[int, list[Record]]]:
    """Yield batches with their partitions, in the order of records within a partition.

    :param turn: counter for the partitions of records without a key.
    :param batch_bytes: size of keys and values from which on a batch is complete.
    """
    open_batches: dict[int | None, tuple[list[Record], int]] = {}
    for record in records:
        slot = None if record.key is None else partition_of(record.key, partitions)
        batch, size = open_batches.get(slot, ([], 0))
        batch.append(record)
        size += len(record.value or b"") + len(record.key or b"")
        open_batches[slot] = (batch, size)
        if size >= batch_bytes:
            del open_batches[slot]
            yield next(turn) % partitions if slot is None else slot, batch
    for slot, (batch, _) in open_batches.items():
        yield next(turn) % partitions if slot is None else slot, batch


async def _chunks_of_lines() -> AsyncIterator[list[bytes]]:
    """Yield complete lines of standard input without line ends, as many as are available at a
    time."""
    loop = asyncio.get_running_loop()
    source = cast(io.BufferedReader, sys.stdin.buffer)
    prompt = sys.stdin.isatty()
    rest = b""
    while True:
        if prompt:
            click.echo(">", nl=False)
        # A thread reads the terminal or the pipe, so that the event loop is not blocked.
        chunk = await loop.run_in_executor(None, source.read1, _READ_BYTES)
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
        if not chunk:
            break
    if rest:
        yield [rest]


if __name__ == "__main__":
    main(prog_name="kraftjbod-console-producer")
