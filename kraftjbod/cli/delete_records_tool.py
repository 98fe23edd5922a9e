"""WIRE. ``kraftjbod-delete-records``: deletes the records of partitions before an offset (KIP-107).

Flags, the file and the output are those of Kafka's ``kafka-delete-records.sh``, and the tool works
with Kafka too. ``--format json`` prints one document instead. Unlike Kafka's, the tool exits with
code 1 if any partition was refused.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import click

from kraftjbod.cli.clients.cluster_admin import delete_records
from kraftjbod.cli.terminal.command import (
    ClusterAddress,
    connection_options,
    format_option,
    json_option,
    read_file,
    tool,
)
from kraftjbod.core.errors import KraftJbodError, OperatingError
from kraftjbod.core.ids import TopicPartition

_VERSION: Final = 1
_HIGH_WATERMARK: Final = -1

Answers = Mapping[TopicPartition, int | OperatingError]


class OffsetFileError(KraftJbodError):
    """The content of the input file is malformed."""


@tool()
@connection_options
@click.option(
    "--offset-json-file",
    required=True,
    type=click.Path(dir_okay=False),
    help='{"partitions": [{"topic": "foo", "partition": 1, "offset": 1}], "version": 1}; the '
    "records below the offset go, and with -1 all that are committed.",
)
@format_option("kafka", "json", help="The lines of Kafka's tool, or one JSON document.")
@json_option
def main(
    cluster: ClusterAddress,
    offset_json_file: str,
    style: str,
    as_json: bool,
) -> None:
    """Delete the oldest records of partitions."""
    is_json = as_json or style == "json"
    asyncio.run(_perform(cluster, offset_json_file, as_json=is_json))


def parse_offsets(text: str) -> dict[TopicPartition, int]:
    """Return the offsets in the content of ``--offset-json-file``, by partition.

    :raises OffsetFileError: it is malformed; with the text of Kafka's tool if it has one.
    """
    try:
        document = json.loads(text)
    except ValueError as e:
        raise OffsetFileError(f"The input string is not a valid JSON: {e}") from e
    if not isinstance(document, dict):
        raise OffsetFileError("expected an object with 'partitions'")
    version = document.get("version", _VERSION)
    if version != _VERSION:
        raise OffsetFileError(f"Not supported version field value {version}")
    if "partitions" not in document:
        raise OffsetFileError("Missing partitions field")
    entries = document["partitions"]
    if not isinstance(entries, list) or not entries:
        raise OffsetFileError("partitions: expected a list of at least one")
    named = [_entry(entry, f"partitions[{index}]") for index, entry in enumerate(entries)]
    counts = Counter(partition for partition, _ in named)
    doubled = [str(partition) for partition, count in counts.items() if count > 1]
    if doubled:
        raise OffsetFileError(
            f"Offset json file contains duplicate topic partitions: {','.join(doubled)}"
        )
    return dict(named)


def _entry(entry: Any, place: str) -> tuple[TopicPartition, int]:
    if not isinstance(entry, dict):
        raise OffsetFileError(f"{place}: expected an object")
    topic = entry.get("topic")
    if not isinstance(topic, str) or not topic:
        raise OffsetFileError(f"{place}.topic: expected a name")
    numbers = []
    for name, least in (("partition", 0), ("offset", _HIGH_WATERMARK)):
        value = entry.get(name)
        # In Python, JSON's true is an int.
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise OffsetFileError(f"{place}.{name}: expected a number >= {least}")
        numbers.append(value)
    partition, offset = numbers
    return TopicPartition(topic, partition), offset


async def _perform(cluster: ClusterAddress, path: str, *, as_json: bool) -> None:
    offsets = parse_offsets(read_file(path))
    async with cluster.connect() as client:
        if not as_json:
            click.echo("Executing records delete operation")
        answers = await delete_records(client, offsets)
    click.echo(_as_json(answers) if as_json else _as_lines(answers))
    if any(isinstance(answer, OperatingError) for answer in answers.values()):
        # Each error was printed with its partition, so none is printed again.
        sys.stdout.flush()
        sys.exit(1)


def _as_lines(answers: Answers) -> str:
    lines = ["Records delete operation completed:"]
    for partition, answer in answers.items():
        if isinstance(answer, OperatingError):
            lines.append(f"partition: {partition}\terror: {answer}")
        else:
            lines.append(f"partition: {partition}\tlow_watermark: {answer}")
    return "\n".join(lines)


def _as_json(answers: Answers) -> str:
    partitions = [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "lowWatermark": None if isinstance(answer, OperatingError) else answer,
            "error": str(answer) if isinstance(answer, OperatingError) else None,
        }
        for partition, answer in answers.items()
    ]
    return json.dumps({"version": _VERSION, "partitions": partitions}, separators=(",", ":"))


if __name__ == "__main__":
    main(prog_name="kraftjbod-delete-records")
