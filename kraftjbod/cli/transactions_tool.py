"""WIRE. ``kraftjbod-transactions``: lists, describes and aborts transactions, and finds hanging
ones.

Commands, flags and columns are those of Kafka's ``kafka-transactions.sh``, and the tool works with
Kafka too. ``--json`` has the same values.

A transaction hangs if it is open in a partition and no coordinator will ever end it. Consumers with
read_committed then wait at that transaction, until ``abort`` writes a marker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import click

from kraftjbod.cli.clients import transaction_admin
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.transaction_admin import ActiveProducer, ListedTransaction
from kraftjbod.cli.terminal.command import (
    Answer,
    ClusterAddress,
    answering,
    connection_options,
    tool_group,
)
from kraftjbod.cli.terminal.tables import tabbed_table
from kraftjbod.core.errors import OperatingError
from kraftjbod.core.ids import TopicPartition

F = TypeVar("F", bound=Callable[..., Any])

_NONE: Final = "None"
_MINUTE_MS: Final = 60_000
#: Number of partitions per request.
_PARTITIONS_AT_A_TIME: Final = 500
_LISTED: Final = ("TransactionalId", "Coordinator", "ProducerId", "TransactionState")
_DESCRIBED: Final = (
    *("CoordinatorId", "TransactionalId", "ProducerId", "ProducerEpoch", "TransactionState"),
    *("TransactionTimeoutMs", "CurrentTransactionStartTimeMs", "TransactionDurationMs"),
    "TopicPartitions",
)
_PRODUCERS: Final = (
    *("ProducerId", "ProducerEpoch", "LatestCoordinatorEpoch", "LastSequence", "LastTimestamp"),
    "CurrentTransactionStartOffset",
)
_HANGING: Final = (
    *("Topic", "Partition", "ProducerId", "ProducerEpoch", "CoordinatorEpoch", "StartOffset"),
    *("LastTimestamp", "Duration(min)"),
)


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """An open transaction in one partition."""

    partition: TopicPartition
    producer: ActiveProducer


@tool_group()
@partial(connection_options, required=False)
@click.pass_context
def main(context: click.Context, /, cluster: ClusterAddress) -> None:
    """Show transactions, find those that hang, and end them."""
    context.obj = cluster


def _partition_options(*, required: bool) -> Callable[[F], F]:
    def decorate(command: F) -> F:
        topic = click.option("--topic", required=required, help="Name of the topic.")
        number = click.option(
            "--partition", type=click.IntRange(min=0), required=required, help="Its partition."
        )
        return topic(number(command))

    return decorate


# --- list, describe ------------------------------------------------------------------------------


@main.command("list")
@click.option(
    "--duration-filter",
    "longer_than_ms",
    type=int,
    default=-1,
    metavar="MS",
    help="Only transactions open for longer than this; all if negative.",
)
@click.option(
    "--transactional-id-pattern",
    "pattern",
    metavar="REGEX",
    help="Only transactional ids that match this expression as a whole.",
)
@answering
@click.pass_obj
def list_command(
    cluster: ClusterAddress, answer: Answer, longer_than_ms: int, pattern: str | None
) -> None:
    """List the transactional ids of all coordinators."""

    async def perform(client: ClusterClient) -> None:
        ask = partial(
            transaction_admin.list_transactions,
            client,
            longer_than_ms=longer_than_ms,
            pattern=pattern,
        )
        found = await client.retry(ask)
        documents = [
            {
                "transactionalId": one.transactional_id,
                "coordinator": one.coordinator,
                "producerId": one.producer_id,
                "state": one.state,
            }
            for one in found
        ]
        answer.say(_table(_LISTED, documents), transactions=documents)

    _ask(cluster, perform)


@main.command("describe")
@click.option("--transactional-id", required=True, help="Transactional id.")
@answering
@click.pass_obj
def describe_command(cluster: ClusterAddress, answer: Answer, transactional_id: str) -> None:
    """Describe the transaction of a transactional id."""

    async def perform(client: ClusterClient) -> None:
        ask = partial(transaction_admin.describe_transaction, client, transactional_id)
        one = await client.retry(ask)
        if one is None:
            raise OperatingError(f"transactional id {transactional_id} is not known")
        is_begun = one.started_ms >= 0
        document = {
            "coordinator": one.coordinator,
            "transactionalId": one.transactional_id,
            "producerId": one.producer_id,
            "producerEpoch": one.producer_epoch,
            "state": one.state,
            "timeoutMs": one.timeout_ms,
            "startedMs": one.started_ms if is_begun else None,
            "durationMs": _now_ms() - one.started_ms if is_begun else None,
        }
        partitions = ",".join(map(str, one.partitions))
        line = _table(_DESCRIBED, [{**document, "partitions": partitions}])
        named = [_named(partition) for partition in one.partitions]
        answer.say(line, **document, partitions=named)

    _ask(cluster, perform)


@main.command("describe-producers")
@_partition_options(required=True)
@click.option("--broker-id", type=int, help="Ask this replica instead of the leader.")
@answering
@click.pass_obj
def describe_producers_command(
    cluster: ClusterAddress, answer: Answer, topic: str, partition: int, broker_id: int | None
) -> None:
    """Show the producers that a partition knows, and their open transactions there."""
    name = TopicPartition(topic, partition)

    async def perform(client: ClusterClient) -> None:
        found = (await _producers(client, [name], broker_id))[name]
        documents = [
            {
                "producerId": one.producer_id,
                "producerEpoch": one.producer_epoch,
                "coordinatorEpoch": one.coordinator_epoch,
                "lastSequence": one.last_sequence,
                "lastTimestampMs": one.last_timestamp_ms,
                "startOffset": one.start_offset if one.start_offset >= 0 else None,
            }
            for one in found
        ]
        answer.say(_table(_PRODUCERS, documents), **_named(name), producers=documents)

    _ask(cluster, perform)


# --- hanging -------------------------------------------------------------------------------------


@main.command("find-hanging")
@_partition_options(required=False)
@click.option("--broker-id", type=int, help="Only partitions with a replica on this broker.")
@click.option(
    "--max-transaction-timeout",
    "max_timeout_min",
    type=click.IntRange(min=0),
    default=15,
    show_default=True,
    metavar="MINUTES",
    help="Only transactions older than this can hang; use the longest "
    "transaction timeout of your producers.",
)
@answering
@click.pass_obj
def find_hanging_command(
    cluster: ClusterAddress,
    answer: Answer,
    topic: str | None,
    partition: int | None,
    broker_id: int | None,
    max_timeout_min: int,
) -> None:
    """Find transactions that are open in partitions but that no coordinator will end."""
    if topic is None and broker_id is None:
        raise click.UsageError("find-hanging needs --topic or --broker-id, which limit the search")
    if topic is None and partition is not None:
        raise click.UsageError("--partition needs --topic")

    async def perform(client: ClusterClient) -> None:
        search = partial(_partitions_to_search, client, topic, partition, broker_id)
        wanted = await client.retry(search)
        oldest_ms = _now_ms() - max_timeout_min * _MINUTE_MS
        candidates = [
            OpenTransaction(name, one)
            for first in range(0, len(wanted), _PARTITIONS_AT_A_TIME)
            for name, found in (
                await _producers(client, wanted[first : first + _PARTITIONS_AT_A_TIME], broker_id)
            ).items()
            for one in found
            if one.start_offset >= 0 and one.last_timestamp_ms < oldest_ms
        ]
        _print_hanging(answer, await _hanging(client, candidates))

    _ask(cluster, perform)


def _print_hanging(answer: Answer, found: Sequence[OpenTransaction]) -> None:
    now_ms = _now_ms()
    documents = [
        {
            **_named(one.partition),
            "producerId": one.producer.producer_id,
            "producerEpoch": one.producer.producer_epoch,
            "coordinatorEpoch": one.producer.coordinator_epoch,
            "startOffset": one.producer.start_offset,
            "lastTimestampMs": one.producer.last_timestamp_ms,
            "durationMinutes": (now_ms - one.producer.last_timestamp_ms) // _MINUTE_MS,
        }
        for one in found
    ]
    answer.say(_table(_HANGING, documents), hanging=documents)


async def _partitions_to_search(
    client: ClusterClient, topic: str | None, partition: int | None, broker_id: int | None
) -> list[TopicPartition]:
    metadata = await client.refresh_metadata(None if topic is None else [topic])
    topics = metadata.topics.values() if topic is None else [metadata.topic(topic)]
    return [
        TopicPartition(found.name, number)
        for found in topics
        for number, state in found.partitions.items()
        if number == partition
        or (partition is None and (broker_id is None or broker_id in state.replicas))
    ]


async def _hanging(
    client: ClusterClient, candidates: Sequence[OpenTransaction]
) -> list[OpenTransaction]:
    if not candidates:
        return []
    producers = {one.producer.producer_id for one in candidates}
    listed: list[ListedTransaction] = await client.retry(
        lambda: transaction_admin.list_transactions(client, producer_ids=sorted(producers))
    )
    ongoing: dict[int, Collection[TopicPartition]] = {}
    for one in listed:
        ask = partial(transaction_admin.describe_transaction, client, one.transactional_id)
        described = await client.retry(ask)
        if described is not None:
            ongoing[one.producer_id] = frozenset(described.partitions)
    # The coordinator will send markers to the partitions in its transaction.
    return [
        one for one in candidates if one.partition not in ongoing.get(one.producer.producer_id, ())
    ]


# --- the end -------------------------------------------------------------------------------------


@main.command("abort")
@_partition_options(required=True)
@click.option("--start-offset", type=int, help="First offset of the transaction in the partition.")
@click.option("--producer-id", type=int, help="Instead of --start-offset, with both epochs.")
@click.option("--producer-epoch", type=int, help="With --producer-id.")
@click.option("--coordinator-epoch", type=int, help="With --producer-id.")
@answering
@click.pass_obj
def abort_command(
    cluster: ClusterAddress,
    answer: Answer,
    topic: str,
    partition: int,
    start_offset: int | None,
    producer_id: int | None,
    producer_epoch: int | None,
    coordinator_epoch: int | None,
) -> None:
    """End a hanging transaction in one partition, aborted."""
    if (start_offset is None) == (producer_id is None):
        raise click.UsageError(
            "name the transaction by --start-offset, or by --producer-id, --producer-epoch and "
            "--coordinator-epoch"
        )
    if producer_id is not None and (producer_epoch is None or coordinator_epoch is None):
        raise click.UsageError("--producer-id needs --producer-epoch and --coordinator-epoch")
    name = TopicPartition(topic, partition)
    given = (producer_id or 0, producer_epoch or 0, coordinator_epoch or 0)

    async def perform(client: ClusterClient) -> None:
        ids = given if start_offset is None else await _open_at(client, name, start_offset)
        order = partial(
            transaction_admin.abort_at,
            client,
            name,
            producer_id=ids[0],
            producer_epoch=ids[1],
            # The epoch is unknown if the coordinator has ended no transaction yet; 0 is then
            # enough.
            coordinator_epoch=max(0, ids[2]),
        )
        await _with_leaders(client, [name])
        await client.retry(order, topics=[topic])
        # Kafka's tool prints nothing.
        answer.say(None, **_named(name), producerId=ids[0], producerEpoch=ids[1])

    _ask(cluster, perform)


@main.command("forceTerminateTransaction")
@click.option("--transactionalId", "transactional_id", required=True, help="Transactional id.")
@answering
@click.pass_obj
def force_terminate_command(cluster: ClusterAddress, answer: Answer, transactional_id: str) -> None:
    """Abort the open transaction of a transactional id, and fence its producer."""

    async def perform(client: ClusterClient) -> None:
        order = partial(
            transaction_admin.fence,
            client,
            transactional_id,
            timeout_ms=client.request_timeout_ms,
        )
        await client.retry(order)
        answer.say(None, transactionalId=transactional_id)

    _ask(cluster, perform)


async def _open_at(
    client: ClusterClient, partition: TopicPartition, start_offset: int
) -> tuple[int, int, int]:
    """Return producer id, producer epoch and coordinator epoch of an open transaction.

    :raises OperatingError: no transaction begins at this offset.
    """
    for one in (await _producers(client, [partition], None))[partition]:
        if one.start_offset == start_offset:
            return one.producer_id, one.producer_epoch, one.coordinator_epoch
    raise OperatingError(
        f"Could not find any open transactions starting at offset {start_offset} on partition "
        f"{partition}"
    )


# --- shared --------------------------------------------------------------------------------------


def _ask(cluster: ClusterAddress, perform: Callable[[ClusterClient], Any]) -> None:
    async def connected() -> None:
        async with cluster.connect() as client:
            await perform(client)

    asyncio.run(connected())


async def _with_leaders(client: ClusterClient, partitions: Sequence[TopicPartition]) -> None:
    topics = sorted({one.topic for one in partitions})
    await client.retry(lambda: client.refresh_metadata(topics))


async def _producers(
    client: ClusterClient, partitions: Sequence[TopicPartition], broker_id: int | None
) -> dict[TopicPartition, list[ActiveProducer]]:
    await _with_leaders(client, partitions)
    ask = partial(transaction_admin.describe_producers, client, partitions, broker_id=broker_id)
    return await client.retry(ask, topics=sorted({one.topic for one in partitions}))


def _table(heads: Sequence[str], documents: Sequence[dict[str, Any]]) -> str:
    rows = [
        [_NONE if cell is None else str(cell) for cell in document.values()]
        for document in documents
    ]
    return tabbed_table(heads, rows)


def _named(partition: TopicPartition) -> dict[str, Any]:
    return {"topic": partition.topic, "partition": partition.partition}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    main(prog_name="kraftjbod-transactions")
