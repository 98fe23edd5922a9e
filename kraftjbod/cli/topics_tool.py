"""WIRE. ``kraftjbod-topics``: creates, lists, describes, extends and deletes topics, as Kafka's
tool.

``--topic`` names one topic for ``--create``. For other actions it is a regular expression, in which
commas separate alternatives. Additions to Kafka's tool are ``Offline`` in a partition's line, and
``--json``. Eligible leader replicas (KIP-966) are ``N/A`` if the cluster does not report them, as
in Kafka's tool.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import click

from kraftjbod.cli.clients.cluster_admin import (
    CreatedTopic,
    EligibleLeaders,
    create_partitions,
    create_topic,
    delete_topic,
    describe_eligible,
)
from kraftjbod.cli.clients.cluster_client import ClusterClient, PartitionMetadata, TopicMetadata
from kraftjbod.cli.clients.config_admin import (
    ConfigEntry,
    ConfigResource,
    ResourceType,
    describe_configs,
    own_configs,
)
from kraftjbod.cli.clients.short_partitions import min_insync_replicas
from kraftjbod.cli.terminal.command import (
    ClusterAddress,
    connection_options,
    json_option,
    parse_pairs,
    tool,
)
from kraftjbod.core.errors import ErrorCode, KraftJbodError, OperatingError
from kraftjbod.core.ids import TopicId

_ACTIONS: Final = ("create", "delete", "list", "describe", "alter")
_COLLISION: Final = (
    "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_')"
    " could collide. To avoid issues it is best to use either, but not both."
)


class TopicCommandError(KraftJbodError):
    """A command is malformed, or does not fit the existing topics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The flags of one ``kraftjbod-topics`` command, by their names; None: not given."""

    topic: str | None
    partitions: int | None
    replication_factor: int | None
    replica_assignment: str | None
    configs: Mapping[str, str]
    if_exists: bool
    if_not_exists: bool
    under_replicated_partitions: bool
    under_min_isr_partitions: bool
    at_min_isr_partitions: bool
    unavailable_partitions: bool
    topics_with_overrides: bool
    topic_id: str | None
    exclude_internal: bool
    as_json: bool


@tool()
@connection_options
@click.option("--create", "action", flag_value="create", help="Create a topic.")
@click.option("--delete", "action", flag_value="delete", help="Delete topics.")
@click.option("--list", "action", flag_value="list", help="List topic names.")
@click.option("--describe", "action", flag_value="describe", help="Show topics in detail.")
@click.option(
    "--alter", "action", flag_value="alter", help="Increase the number of partitions of topics."
)
@click.option("--topic", help="Name for --create, else a regular expression.")
@click.option("--partitions", type=click.IntRange(min=1), help="Number of partitions.")
@click.option("--replication-factor", type=click.IntRange(min=1), help="Replicas per partition.")
@click.option("--replica-assignment", metavar="1:2,2:3,...", help="Brokers of each partition.")
@click.option("--config", "configs", multiple=True, metavar="KEY=VALUE", help="May be repeated.")
@click.option("--if-exists", is_flag=True, help="A missing topic is no error.")
@click.option("--if-not-exists", is_flag=True, help="An existing topic is no error.")
@click.option(
    "--under-replicated-partitions",
    is_flag=True,
    help="Only partitions with fewer in-sync replicas than replicas.",
)
@click.option(
    "--under-min-isr-partitions",
    is_flag=True,
    help="Only partitions without a leader, or with fewer in-sync replicas than "
    "min.insync.replicas.",
)
@click.option(
    "--at-min-isr-partitions",
    is_flag=True,
    help="Only partitions with exactly min.insync.replicas in-sync replicas.",
)
@click.option("--unavailable-partitions", is_flag=True, help="Only partitions without a leader.")
@click.option(
    "--topics-with-overrides", is_flag=True, help="Only topics with changed configuration values."
)
@click.option("--topic-id", help="--describe: id of the topic instead of its name.")
@click.option("--exclude-internal", is_flag=True, help="Leave out internal topics.")
@json_option
def main(
    cluster: ClusterAddress,
    action: str | None,
    configs: tuple[str, ...],
    **flags: Any,
) -> None:
    """Manage topics of a Kafka cluster."""
    if action is None:
        raise click.UsageError("give exactly one of " + ", ".join(f"--{a}" for a in _ACTIONS))
    options = Options(configs=parse_pairs(configs, "--config"), **flags)
    _require_sense(action, options)
    asyncio.run(_perform(cluster, action, options))


def _require_sense(action: str, options: Options) -> None:
    if action in ("create", "delete", "alter") and options.topic is None:
        raise click.UsageError(f"--{action} needs --topic")
    if action == "alter" and options.partitions is None:
        raise click.UsageError("--alter needs --partitions")
    if options.topic_id is not None and (action != "describe" or options.topic is not None):
        raise click.UsageError("--topic-id is for --describe, without --topic")
    if options.replica_assignment and (options.partitions or options.replication_factor):
        raise click.UsageError(
            "--replica-assignment decides --partitions and --replication-factor itself"
        )


async def _perform(cluster: ClusterAddress, action: str, options: Options) -> None:
    async with cluster.connect() as client:
        match action:
            case "create":
                await _create(client, options)
            case "delete":
                for topic in await _matching(client, options):
                    await client.retry(partial(delete_topic, client, topic.name))
            case "alter":
                for topic in await _matching(client, options):
                    await create_partitions(client, topic.name, options.partitions or 0)
            case "list":
                _list(await _matching(client, options, may_be_none=True), options)
            case "describe":
                await _describe(client, await _matching(client, options), options)


async def _create(client: ClusterClient, options: Options) -> None:
    assert options.topic is not None
    if not options.as_json and ("." in options.topic or "_" in options.topic):
        click.echo(_COLLISION)
    assignment = parse_assignment(options.replica_assignment) if options.replica_assignment else {}
    await client.retry(client.refresh_metadata)
    try:
        created = await create_topic(
            client,
            options.topic,
            partitions=options.partitions or -1,
            replication_factor=options.replication_factor or -1,
            assignment=assignment,
            configs=options.configs,
        )
    except OperatingError as e:
        if e.code == ErrorCode.TOPIC_ALREADY_EXISTS and options.if_not_exists:
            return
        raise
    if options.as_json:
        click.echo(json.dumps({"created": options.topic}))
        return
    click.echo(f"Created topic {options.topic}.")
    if created.needs_all_replicas:
        click.echo(_needs_all(created))


def _needs_all(created: CreatedTopic) -> str:
    return (
        f"It takes writes with acks=all only while all {created.replication_factor} replicas are "
        f"in sync (min.insync.replicas is {created.min_insync_replicas}): with one broker down "
        "producers get NOT_ENOUGH_REPLICAS. Use 3 replicas, or a lower min.insync.replicas, which "
        "keeps some acknowledged records on fewer disks."
    )


def parse_assignment(text: str) -> dict[int, tuple[int, ...]]:
    """Parse ``1:2,2:3``: partition 0 on brokers 1 and 2, partition 1 on brokers 2 and 3.

    :raises TopicCommandError: the text is no such assignment; the message has the reason.
    """
    assignment = {}
    for partition, part in enumerate(text.split(",")):
        brokers = part.strip().split(":")
        if not all(broker.strip().isdigit() for broker in brokers):
            raise TopicCommandError(f"replica assignment {part!r} is not brokers as 1:2:3")
        assignment[partition] = tuple(map(int, brokers))
        if len(set(assignment[partition])) != len(brokers):
            raise TopicCommandError(f"Partition replica lists may not contain duplicates: {part}")
    if len({len(brokers) for brokers in assignment.values()}) != 1:
        raise TopicCommandError("every partition needs the same number of replicas")
    return assignment


async def _matching(
    client: ClusterClient, options: Options, *, may_be_none: bool = False
) -> list[TopicMetadata]:
    """Return the topics that the flags select, by name.

    :param may_be_none: whether the result may be empty.
    :raises TopicCommandError: no topic matches.
    """
    metadata = await client.retry(client.refresh_metadata)
    pattern = re.compile((options.topic or ".*").replace(",", "|"))
    found = [
        topic
        for name, topic in sorted(metadata.topics.items())
        if pattern.fullmatch(name)
        and not (options.exclude_internal and topic.is_internal)
        and options.topic_id in (None, str(TopicId(topic.topic_id)))
    ]
    if not found and options.topic_id and not options.if_exists:
        raise TopicCommandError(f"TopicId '{options.topic_id}' does not exist as expected")
    if not found and options.topic and not (options.if_exists or may_be_none):
        raise TopicCommandError(f"Topic '{options.topic}' does not exist as expected")
    return found


def _list(topics: Iterable[TopicMetadata], options: Options) -> None:
    names = [topic.name for topic in topics]
    if options.as_json:
        click.echo(json.dumps({"topics": names}))
        return
    for name in names:
        click.echo(name)


async def _describe(client: ClusterClient, topics: list[TopicMetadata], options: Options) -> None:
    in_force: Mapping[ConfigResource, Mapping[str, ConfigEntry]] = {}
    if topics:
        resources = [ConfigResource(ResourceType.TOPIC, topic.name) for topic in topics]
        in_force = await client.retry(lambda: describe_configs(client, resources))
    configs = own_configs(in_force)
    if options.topics_with_overrides:
        topics = [topic for topic in topics if configs[topic.name]]
    needed = {one.name: min_insync_replicas(entries) for one, entries in in_force.items()}
    eligible = await client.retry(
        lambda: describe_eligible(client, [topic.name for topic in topics])
    )
    shown = [(topic, _shown_partitions(topic, options, needed[topic.name])) for topic in topics]
    if options.as_json:
        document = [_as_json(topic, configs[topic.name], parts, eligible) for topic, parts in shown]
        click.echo(json.dumps({"topics": document}))
        return
    only_some = (
        options.under_replicated_partitions
        or options.under_min_isr_partitions
        or options.at_min_isr_partitions
        or options.unavailable_partitions
    )
    for topic, partitions in shown:
        if not only_some:
            click.echo(topic_line(topic, configs[topic.name]))
        # With --topics-with-overrides Kafka's tool prints topics only.
        for partition in () if options.topics_with_overrides else partitions:
            elr = eligible.get((topic.name, partition.partition))
            click.echo(partition_line(topic.name, partition, elr))


def _shown_partitions(
    topic: TopicMetadata, options: Options, needed: int
) -> list[PartitionMetadata]:
    """Return the partitions of a topic that the flags select.

    :param needed: the topic's ``min.insync.replicas``. As in Kafka's tool, the replication factor
        does not limit it, although it limits it on the brokers.
    """

    def is_shown(partition: PartitionMetadata) -> bool:
        in_sync, has_leader = len(partition.isr), partition.leader >= 0
        return (
            (not options.under_replicated_partitions or in_sync < len(partition.replicas))
            and (not options.under_min_isr_partitions or not has_leader or in_sync < needed)
            and (not options.at_min_isr_partitions or in_sync == needed)
            and (not options.unavailable_partitions or not has_leader)
        )

    return [partition for partition in topic.partitions.values() if is_shown(partition)]


def topic_line(topic: TopicMetadata, configs: Mapping[str, str | None]) -> str:
    """Return the line of a topic, as in Kafka's tool."""
    replicas = max((len(p.replicas) for p in topic.partitions.values()), default=0)
    settings = ",".join(f"{key}={value}" for key, value in sorted(configs.items()))
    return (
        f"Topic: {topic.name}\tTopicId: {TopicId(topic.topic_id)}\t"
        f"PartitionCount: {len(topic.partitions)}\tReplicationFactor: {replicas}\t"
        f"Configs: {settings}"
    )


def partition_line(
    topic: str, partition: PartitionMetadata, eligible: EligibleLeaders | None = None
) -> str:
    """Return the line of a partition, as in Kafka's tool, with its offline replicas.

    :param eligible: eligible leader replicas and last known leaders; None prints ``N/A`` for both.
    """
    leader = str(partition.leader) if partition.leader >= 0 else "none"
    elr, last_known = ("N/A", "N/A") if eligible is None else map(_ids, eligible)
    return (
        f"\tTopic: {topic}\tPartition: {partition.partition}\tLeader: {leader}\t"
        f"Replicas: {_ids(partition.replicas)}\tIsr: {_ids(partition.isr)}\t"
        f"Elr: {elr}\tLastKnownElr: {last_known}\tOffline: {_ids(partition.offline_replicas)}"
    )


def _ids(broker_ids: Iterable[int]) -> str:
    return ",".join(map(str, broker_ids))


def _as_json(
    topic: TopicMetadata,
    configs: Mapping[str, str | None],
    partitions: list[PartitionMetadata],
    eligible: Mapping[tuple[str, int], EligibleLeaders],
) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topic_id": str(TopicId(topic.topic_id)),
        "is_internal": topic.is_internal,
        "configs": dict(configs),
        "partitions": [
            {
                "partition": partition.partition,
                "leader": partition.leader,
                "leader_epoch": partition.leader_epoch,
                "replicas": partition.replicas,
                "isr": partition.isr,
                "offline_replicas": partition.offline_replicas,
                **(found._asdict() if found is not None else {}),
            }
            for partition in partitions
            for found in [eligible.get((topic.name, partition.partition))]
        ],
    }


if __name__ == "__main__":
    main(prog_name="kraftjbod-topics")
