"""WIRE. ``kraftjbod-leader-election``: elect leaders on request of an operator (KIP-460).

Flags, the file, output and exit codes are those of Kafka's ``kafka-leader-election.sh``, and the
tool works with Kafka too.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from functools import partial
from typing import Any, Final

import click

from kraftjbod.cli.clients.cluster_admin import ElectionType, elect_leaders
from kraftjbod.cli.terminal.command import (
    Answer,
    ClusterAddress,
    answering,
    connection_options,
    read_file,
    tool,
)
from kraftjbod.core.errors import ErrorCode, KraftJbodError
from kraftjbod.core.ids import TopicPartition

_TYPES: Final = [kind.name.lower() for kind in ElectionType]


class LeaderElectionError(KraftJbodError):
    """The input file is malformed, or some elections failed."""


@tool()
@partial(connection_options, old_config="--admin.config")
@click.option(
    "--election-type",
    required=True,
    type=click.Choice(_TYPES, case_sensitive=False),
    help="preferred: make the first replica the leader. unclean: make any "
    "replica the leader of a partition without one, although it may "
    "lack records.",
)
@click.option("--topic", metavar="NAME", help="Topic of the partition, see --partition.")
@click.option("--partition", type=click.IntRange(min=0), help="Required with --topic.")
@click.option(
    "--all-topic-partitions", is_flag=True, help="Elect leaders of all partitions that need one."
)
@click.option(
    "--path-to-json-file",
    type=click.Path(dir_okay=False),
    help='{"partitions": [{"topic": "foo", "partition": 1}]}',
)
@answering
def main(
    answer: Answer,
    cluster: ClusterAddress,
    election_type: str,
    topic: str | None,
    partition: int | None,
    all_topic_partitions: bool,
    path_to_json_file: str | None,
) -> None:
    """Elect leaders of partitions."""
    ways = (topic is not None, all_topic_partitions, path_to_json_file is not None)
    if sum(ways) != 1:
        raise click.UsageError(
            "One and only one of the following options is required: topic, all-topic-partitions, "
            "path-to-json-file"
        )
    if topic is not None and partition is None:
        raise click.UsageError("Missing required option(s): partition")
    if topic is None and partition is not None:
        raise click.UsageError("Option partition is only allowed if topic is used")
    wanted: list[TopicPartition] | None = None
    if topic is not None and partition is not None:
        wanted = [TopicPartition(topic, partition)]
    elif path_to_json_file is not None:
        wanted = parse_partitions(read_file(path_to_json_file))
    kind = ElectionType[election_type.upper()]
    asyncio.run(_elect(cluster, answer, kind, wanted))


def parse_partitions(text: str) -> list[TopicPartition]:
    """Return the partitions in the content of ``--path-to-json-file``.

    :raises LeaderElectionError: it is malformed; with the text of Kafka's tool if it has one.
    """
    try:
        document = json.loads(text)
    except ValueError as e:
        raise LeaderElectionError("Replica election data is empty") from e
    if not isinstance(document, dict) or "partitions" not in document:
        raise LeaderElectionError('Replica election data is missing "partitions" field')
    entries = document["partitions"]
    if not isinstance(entries, list) or not entries:
        raise LeaderElectionError("partitions: expected a list of at least one")
    named = [_entry(entry, f"partitions[{index}]") for index, entry in enumerate(entries)]
    twice = [str(partition) for partition, count in Counter(named).items() if count > 1]
    if twice:
        raise LeaderElectionError(
            f"Replica election data contains duplicate partitions: [{', '.join(twice)}]"
        )
    return named


def _entry(entry: Any, place: str) -> TopicPartition:
    if not isinstance(entry, dict):
        raise LeaderElectionError(f"{place}: expected an object")
    topic, partition = entry.get("topic"), entry.get("partition")
    if not isinstance(topic, str) or not topic:
        raise LeaderElectionError(f"{place}.topic: expected a name")
    # In Python, JSON's true is an int.
    if not isinstance(partition, int) or isinstance(partition, bool) or partition < 0:
        raise LeaderElectionError(f"{place}.partition: expected a number >= 0")
    return TopicPartition(topic, partition)


async def _elect(
    cluster: ClusterAddress,
    answer: Answer,
    kind: ElectionType,
    wanted: list[TopicPartition] | None,
) -> None:
    async with cluster.connect() as client:
        found = await client.retry(lambda: elect_leaders(client, kind, wanted))
    elected = [tp for tp, error in found.items() if error is None]
    failed = {tp: error for tp, error in found.items() if error is not None}
    led = [tp for tp, error in failed.items() if error.code is ErrorCode.ELECTION_NOT_NEEDED]
    for tp in led:
        del failed[tp]
    answer.say(None, electionType=kind.name.lower(), elected=[], notNeeded=[], failed=[])
    if elected:
        answer.say(
            f"Successfully completed leader election ({kind.name}) for partitions "
            f"{', '.join(map(str, elected))}",
            elected=[_named(tp) for tp in elected],
        )
    if led:
        answer.say(
            f"Valid replica already elected for partitions {', '.join(map(str, led))}",
            notNeeded=[_named(tp) for tp in led],
        )
    for tp, error in failed.items():
        answer.say(
            f"Error completing leader election ({kind.name}) for partition: {tp}: {error.message}",
            failed=[{**_named(tp), "error": error.message}],
        )
    if failed:
        raise LeaderElectionError(f"{len(failed)} replica(s) could not be elected")


def _named(tp: TopicPartition) -> dict[str, Any]:
    return {"topic": tp.topic, "partition": tp.partition}


if __name__ == "__main__":
    main(prog_name="kraftjbod-leader-election")
