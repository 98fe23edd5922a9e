"""WIRE. ``kraftjbod-get-offsets``: prints first, last or timestamp-based offsets of partitions.

Flags and output are those of Kafka's ``kafka-get-offsets.sh``, and the tool works with Kafka too. A
line is ``topic:partition:offset``. Partitions without such a record appear only with ``--json``.
"""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import Final

import click

from kraftjbod.cli.clients.cluster_admin import list_offsets
from kraftjbod.cli.clients.cluster_client import ClusterClient, ClusterMetadata
from kraftjbod.cli.terminal.command import (
    Answer,
    ClusterAddress,
    answering,
    connection_options,
    report,
    tool,
)
from kraftjbod.core.errors import OperatingError
from kraftjbod.core.ids import TopicPartition

_TIMES: Final = {
    "latest": -1,
    "earliest": -2,
    "max-timestamp": -3,
    "earliest-local": -4,
    "latest-tiered": -5,
    "earliest-pending-upload": -6,
}
_RULE: Final = re.compile(r"(?P<topic>[^:]*)(?::(?P<first>\d*)(?P<range>-)?(?P<last>\d*))?")


@tool()
@connection_options
@click.option("--topic", metavar="REGEX", help="Topics; by default all.")
@click.option("--partitions", metavar="0,1,...", help="Partitions; by default all.")
@click.option(
    "--topic-partitions",
    metavar="REGEX[:0|:0-2|:-2|:3-],...",
    help="Topics with partitions: a number, or a range that excludes its end.",
)
@click.option(
    "--time",
    default="latest",
    show_default=True,
    metavar="TIME",
    help="-1 or latest, -2 or earliest, -3 or max-timestamp, -4 or earliest-local, -5 or "
    "latest-tiered, -6 or earliest-pending-upload, or milliseconds: the first record that is not "
    "older.",
)
@click.option("--exclude-internal-topics", is_flag=True, help="Leave out internal topics.")
@answering
def main(
    answer: Answer,
    cluster: ClusterAddress,
    topic: str | None,
    partitions: str | None,
    topic_partitions: str | None,
    time: str,
    exclude_internal_topics: bool,
) -> None:
    """Print the offsets of partitions."""
    if topic_partitions is not None and (topic is not None or partitions is not None):
        raise click.UsageError("--topic-partitions cannot be used with --topic or --partitions")
    rules = [parse_rule(text) for text in (topic_partitions or "").split(",") if text]
    if topic_partitions is None:
        numbers = None if partitions is None else parse_numbers(partitions)
        rules = [Rule(topic or ".*", numbers)]
    with_internal = not exclude_internal_topics
    asyncio.run(_perform(cluster, answer, rules, parse_time(time), with_internal=with_internal))


class Rule:
    """Selects partitions by a regular expression for topics, and by partition numbers."""

    def __init__(self, topic: str, numbers: range | frozenset[int] | None) -> None:
        """:param numbers: partition numbers; None for all.
        :raises click.UsageError: the regular expression is malformed.
        """
        try:
            self._topic = re.compile(topic)
        except re.error as e:
            raise click.UsageError(f"{topic!r} is no regular expression: {e}") from e
        self._numbers = numbers

    def takes(self, partition: TopicPartition) -> bool:
        is_named = self._topic.fullmatch(partition.topic) is not None
        return is_named and (self._numbers is None or partition.partition in self._numbers)


def parse_rule(text: str) -> Rule:
    """Parse one item of ``--topic-partitions``.

    :raises click.UsageError: the text is malformed.
    """
    found = _RULE.fullmatch(text)
    if found is None or (":" in text and not (found["first"] or found["last"])):
        raise click.UsageError(f"{text!r}: write TOPIC, TOPIC:0, TOPIC:0-2, TOPIC:-2 or TOPIC:3-")
    topic = found["topic"] or ".*"
    if ":" not in text:
        return Rule(topic, None)
    first = int(found["first"] or 0)
    if not found["range"]:
        return Rule(topic, frozenset({first}))
    return Rule(topic, range(first, int(found["last"]) if found["last"] else 2**31))


def parse_numbers(text: str) -> frozenset[int]:
    """Parse the value of ``--partitions``.

    :raises click.UsageError: a part is not a number.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() for part in parts):
        raise click.UsageError(f"--partitions must be a comma separated list of numbers: {text!r}")
    return frozenset(map(int, parts))


def parse_time(text: str) -> int:
    """Return the timestamp of a ListOffsets request for the value of ``--time``.

    :raises click.UsageError: the text is neither a keyword nor a number.
    """
    if text in _TIMES:
        return _TIMES[text]
    try:
        return int(text)
    except ValueError as e:
        words = ", ".join(_TIMES)
        raise click.UsageError(f"--time: write {words}, or milliseconds, not {text!r}") from e


async def _perform(
    cluster: ClusterAddress,
    answer: Answer,
    rules: list[Rule],
    timestamp: int,
    *,
    with_internal: bool,
) -> None:
    """Print the offsets.

    :raises OperatingError: no partition matches.
    """
    answer.say(None, partitions=[])
    async with cluster.connect() as client:
        metadata = await client.retry(client.refresh_metadata)
        wanted = _wanted(metadata, rules, with_internal=with_internal)
        if not wanted:
            raise OperatingError("Could not match any topic-partitions with the specified filters")
        found = await _offsets(client, wanted, timestamp)
    for partition in sorted(found, key=str):
        offset = found[partition]
        is_there = isinstance(offset, int) and offset >= 0
        line = f"{partition.topic}:{partition.partition}:{offset}" if is_there else None
        document = {
            "topic": partition.topic,
            "partition": partition.partition,
            "offset": offset if is_there else None,
            "error": str(offset) if isinstance(offset, OperatingError) else None,
        }
        answer.say(line, partitions=[document])


def _wanted(
    metadata: ClusterMetadata, rules: list[Rule], *, with_internal: bool
) -> dict[str, list[int]]:
    """Return the numbers of the matching partitions by topic."""
    wanted: dict[str, list[int]] = {}
    for name, topic in metadata.topics.items():
        if with_internal or not topic.is_internal:
            for number in topic.partitions:
                if any(rule.takes(TopicPartition(name, number)) for rule in rules):
                    wanted.setdefault(name, []).append(number)
    return wanted


async def _offsets(
    client: ClusterClient, wanted: dict[str, list[int]], timestamp: int
) -> dict[TopicPartition, int | OperatingError]:
    """Return the offset or the error of each partition, and report each error.

    A negative offset means that no record matches ``timestamp``.
    """
    found: dict[TopicPartition, int | OperatingError] = {}
    for topic, numbers in wanted.items():
        for number in numbers:
            name = TopicPartition(topic, number)
            ask = partial(list_offsets, client, topic, [number], timestamp)
            try:
                found[name] = (await client.retry(ask))[number]
            except OperatingError as e:
                report(f"Skip getting offsets for topic-partition {name} due to error: {e}")
                found[name] = e
    return found


if __name__ == "__main__":
    main(prog_name="kraftjbod-get-offsets")
