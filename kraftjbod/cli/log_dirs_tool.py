"""WIRE. ``kraftjbod-log-dirs``: describes or changes the log directories of brokers.

As with Kafka's tool, the output is two lines of text and one JSON document. kraftjbod's additional
keys follow Kafka's, and are null if a cluster does not report them. ``--format json`` prints only
the document, ``--format table`` a table (log_dirs_table.py).

The tool also shows the directories of brokers that are down, as known from metadata. The table has
them among the others. The document has them under a separate key, so that scripts for Kafka's
output still work.

Unlike Kafka's, the tool also changes directories: ``--reattach``, ``--add`` and ``--forget``, one
at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import click

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.log_dir_changes import LogDirChange, change_log_dir, parse_change
from kraftjbod.cli.clients.replica_admin import (
    LogDirDescription,
    RegisteredBroker,
    describe_log_dirs,
    lost_replicas,
    registered_brokers,
)
from kraftjbod.cli.log_dirs_table import LogDirs, lost_lines, move_lines, print_table
from kraftjbod.cli.terminal.command import (
    ClusterAddress,
    connection_options,
    echo_json,
    fail,
    format_option,
    json_option,
    parse_list,
    report,
    tool,
)
from kraftjbod.core.errors import ConnectionLostError, ErrorCode, RequestTimedOutError
from kraftjbod.core.text.size_text import size_text

_ERROR_CLASSES: Final = {
    ErrorCode.KAFKA_STORAGE_ERROR: "org.apache.kafka.common.errors.KafkaStorageException",
    ErrorCode.LOG_DIR_NOT_FOUND: "org.apache.kafka.common.errors.LogDirNotFoundException",
}
_OTHER_ERROR_CLASS: Final = "org.apache.kafka.common.errors.UnknownServerException"


@tool()
@connection_options
@click.option("--describe", is_flag=True, help="Describe log directories.")
@click.option(
    "--strays",
    is_flag=True,
    help="List the stray replicas that brokers keep and do not serve, with place, time and reason.",
)
@click.option(
    "--reattach",
    metavar="BROKER:PATH",
    help="Use an offline directory again after its disk was repaired and "
    "mounted. dirid:ID may replace the path.",
)
@click.option("--add", metavar="BROKER:PATH", help="Add a new disk while the broker runs.")
@click.option(
    "--forget",
    metavar="BROKER:PATH",
    help="Remove an offline or empty directory permanently; its replicas are recreated from their "
    "leaders. dirid:ID may replace the path.",
)
@click.option(
    "--force",
    is_flag=True,
    help="With --forget: also if it holds the last in-sync replica of partitions whose topics "
    "allow unclean elections.",
)
@click.option(
    "--change-timeout",
    "change_timeout_s",
    type=click.IntRange(1, 3600),
    default=600,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the end of --reattach, --add or --forget.",
)
@click.option("--topic-list", metavar="A,B,...", help="Only these topics.")
@click.option("--broker-list", metavar="1,2,...", help="Only these brokers.")
@format_option(
    "kafka",
    "json",
    "table",
    help="The format of Kafka's tool, only its JSON document, or a readable table.",
)
@json_option
def main(
    cluster: ClusterAddress,
    describe: bool,
    strays: bool,
    reattach: str | None,
    add: str | None,
    forget: str | None,
    force: bool,
    change_timeout_s: int,
    topic_list: str | None,
    broker_list: str | None,
    style: str,
    as_json: bool,
) -> None:
    """Show the log directories of brokers, or change one."""
    orders = {"reattach": reattach, "add": add, "forget": forget}
    asked = [parse_change(name, text, force=force) for name, text in orders.items() if text]
    if len(asked) + describe + strays != 1:
        raise click.UsageError("Give one of --describe, --strays, --reattach, --add and --forget.")
    if asked:
        work = _change(cluster, asked[0], change_timeout_s * 1000, as_json=as_json)
        asyncio.run(work)
        return
    if force:
        raise click.UsageError("--force belongs to --forget")
    brokers = parse_list(broker_list)
    if not all(broker.isdigit() for broker in brokers):
        raise click.BadParameter(
            f"{broker_list!r} is not a list of ids", param_hint="--broker-list"
        )
    asyncio.run(
        _perform(
            cluster,
            parse_list(topic_list),
            sorted(map(int, brokers)),
            "json" if as_json else style,
            strays=strays,
        )
    )


async def _change(
    cluster: ClusterAddress, change: LogDirChange, timeout_ms: int, *, as_json: bool
) -> None:
    async with cluster.connect() as client:
        done = await change_log_dir(client, change, timeout_ms=timeout_ms)
    if as_json:
        document = {
            "broker": change.broker,
            "directoryId": None if done.directory_id is None else str(done.directory_id),
            "state": done.state or None,
            "message": done.message,
        }
        echo_json(document)
    else:
        click.echo(f"Broker {change.broker}: {done.message}")


async def _perform(
    cluster: ClusterAddress,
    topics: list[str],
    wanted: list[int],
    style: str,
    *,
    strays: bool,
) -> None:
    async with cluster.connect() as client:
        registered = await client.retry(lambda: registered_brokers(client))
        fenced = {broker for broker, known in registered.items() if known.is_fenced}
        existing = sorted(client.metadata.brokers.keys() | registered.keys())
        missing = [broker for broker in wanted if broker not in existing]
        if missing:
            fail(
                "The given brokers do not exist from --broker-list: "
                f"{_ids(missing)}. Current existent brokers: {_ids(existing)}"
            )
        asked = [broker for broker in wanted or existing if broker not in fenced]
        if style == "kafka" and not strays:
            click.echo("Querying brokers for log directories information")
        found = await _ask(client, asked, registered, include_strays=strays)
        asked = list(found)
        down = {b: registered[b].log_dirs for b in wanted or existing if b not in found}
        if strays:
            print_strays(strays_document(found, topics), style, asked)
            for broker in down:
                report(f"broker {broker} is down: what it has set aside is not known")
            return
        missed = await asyncio.gather(*(lost_replicas(client, broker) for broker in asked))
    lost = {broker: _of_topics(names, topics) for broker, names in zip(asked, missed, strict=True)}
    if style == "table":
        print_table(found | down, topics)
        for line in [*move_lines(found, topics), *lost_lines(lost)]:
            click.echo(line)
        return
    if style == "kafka":
        click.echo(f"Received log directory information from brokers {_ids(asked)}")
    echo_json(document(found, topics, lost, down))


async def _ask(
    client: ClusterClient,
    brokers: list[int],
    registered: Mapping[int, RegisteredBroker],
    *,
    include_strays: bool,
) -> dict[int, list[LogDirDescription]]:
    """Return the log directories of each broker. A registered broker that does not respond is left
    out."""

    async def ask(broker: int) -> list[LogDirDescription] | None:
        try:
            return await describe_log_dirs(client, broker, include_strays=include_strays)
        except (ConnectionLostError, RequestTimedOutError) as e:
            if broker not in registered:
                raise
            report(f"broker {broker} does not answer: {e.message}")
            return None

    answers = await asyncio.gather(*map(ask, brokers))
    return {b: answer for b, answer in zip(brokers, answers, strict=True) if answer is not None}


def document(
    found: LogDirs, topics: list[str], lost: dict[int, list[str]], down: LogDirs
) -> dict[str, Any]:
    """Return Kafka's document, with the brokers that are down.

    :param topics: only partitions of these topics; empty for all.
    :param lost: ``topic-partition`` of lost replicas, by broker.
    :param down: the registered directories of brokers that are down.
    """
    return {
        "version": 1,
        "brokers": [
            {
                "broker": broker,
                "logDirs": [_log_dir(log_dir, topics) for log_dir in log_dirs],
                "lostReplicas": lost[broker],
            }
            for broker, log_dirs in found.items()
        ],
        "downBrokers": [
            {
                "broker": broker,
                "logDirs": [
                    {
                        "logDir": log_dir.path,
                        "directoryId": str(log_dir.directory_id),
                        "state": log_dir.state,
                        "isCordoned": log_dir.is_cordoned,
                        "assignedReplicas": log_dir.assigned_replicas,
                    }
                    for log_dir in log_dirs
                ],
            }
            for broker, log_dirs in down.items()
        ],
    }


def strays_document(found: LogDirs, topics: list[str]) -> dict[str, Any]:
    """Return a document with one entry per stray replica; unknown values are null.

    :param topics: only replicas of these topics; empty for all.
    """
    return {
        "version": 1,
        "strays": [
            {
                "broker": broker,
                "logDir": log_dir.path,
                "directory": stray.directory,
                "topic": stray.topic,
                "partition": stray.partition,
                "topicId": None if stray.topic_id is None else str(stray.topic_id),
                "size": stray.size_bytes,
                "setAsideMs": stray.set_aside_ms,
                "reason": stray.reason,
            }
            for broker, log_dirs in found.items()
            for log_dir in log_dirs
            for stray in log_dir.strays
            if not topics or stray.topic in topics
        ],
    }


def print_strays(document: dict[str, Any], style: str, asked: list[int]) -> None:
    """Print the document if ``style`` is ``json``, else a line per stray replica.

    :param asked: ids of the asked brokers, for the line that there is no stray replica.
    """
    if style == "json":
        echo_json(document)
        return
    if not document["strays"]:
        click.echo(f"No replica is set aside on brokers {_ids(asked)}.")
    for stray in document["strays"]:
        name = "?" if stray["topic"] is None else f"{stray['topic']}-{stray['partition']}"
        since = "at a time unknown"
        if stray["setAsideMs"] is not None:
            since = f"{datetime.fromtimestamp(stray['setAsideMs'] / 1000, UTC):%Y-%m-%d %H:%M} UTC"
        click.echo(
            f"{name} (topic id {stray['topicId'] or 'unknown'}) on broker {stray['broker']}: "
            f"{stray['logDir']}/{stray['directory']}, {size_text(stray['size'])}, set aside "
            f"{since}: {stray['reason'] or 'reason unknown'}"
        )


def _log_dir(log_dir: LogDirDescription, topics: list[str]) -> dict[str, Any]:
    error = None
    if log_dir.error_code != ErrorCode.NONE:
        error = _ERROR_CLASSES.get(ErrorCode(log_dir.error_code), _OTHER_ERROR_CLASS)
    return {
        "logDir": log_dir.path,
        "error": error,
        "partitions": [
            {
                "partition": f"{replica.topic}-{replica.partition}",
                "size": replica.size_bytes,
                "offsetLag": replica.offset_lag,
                "isFuture": replica.is_future,
            }
            for replica in log_dir.replicas
            if not topics or replica.topic in topics
        ],
        "directoryId": None if log_dir.directory_id is None else str(log_dir.directory_id),
        "state": log_dir.state,
        "isCordoned": log_dir.is_cordoned,
        "totalBytes": _if_known(log_dir.total_bytes),
        "usableBytes": _if_known(log_dir.usable_bytes),
        "queuedAssignments": log_dir.queued_assignments,
        "reserveBytes": log_dir.reserve_bytes,
        "growthBytesPerSecond": log_dir.growth_bytes_per_second,
        "diskGrowthBytesPerSecond": log_dir.disk_growth_bytes_per_second,
        "secondsUntilFull": log_dir.seconds_until_full,
        "latencyMs": None if log_dir.latency_ms is None else round(log_dir.latency_ms, 3),
        "isSlow": None if log_dir.latency_ms is None else log_dir.is_slow,
        "lastScrubMs": log_dir.last_scrub_ms,
        "scrubErrors": log_dir.scrub_errors,
        "reason": log_dir.reason,
        "assignedReplicas": log_dir.assigned_replicas,
    }


def _if_known(size_bytes: int) -> int | None:
    return size_bytes if size_bytes >= 0 else None


def _of_topics(replicas: list[str], topics: list[str]) -> list[str]:
    return [name for name in replicas if not topics or name.rpartition("-")[0] in topics]


def _ids(broker_ids: list[int]) -> str:
    return ",".join(map(str, broker_ids))


if __name__ == "__main__":
    main(prog_name="kraftjbod-log-dirs")
