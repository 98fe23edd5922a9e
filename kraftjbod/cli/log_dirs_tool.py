"""``kraftjbod-log-dirs``: what lies in each broker's log directories, as Kafka's tool prints it.

Three lines: two of talk and one JSON document. Behind Kafka's keys it has some of ours, null where
a cluster does not tell them. ``--format json`` prints the document alone, ``--format table`` a
table for people, and below it the moves between directories and the replicas that are lost.

Beyond Kafka's it changes them: ``--reattach``, ``--add`` and ``--forget``, one at a time.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from typing import Any, Final

import click

from kraftjbod.cli.command import (
    ClusterAddress,
    connection_options,
    echo_json,
    fail,
    json_option,
    parse_list,
    size_text,
    tool,
)
from kraftjbod.cli.log_dir_changes import LogDirChange, change_log_dir, parse_change
from kraftjbod.cli.replica_admin import LogDirDescription, describe_log_dirs, lost_replicas
from kraftjbod.core.errors import ErrorCode

_ERROR_CLASSES: Final = {
    ErrorCode.KAFKA_STORAGE_ERROR: "org.apache.kafka.common.errors.KafkaStorageException",
    ErrorCode.LOG_DIR_NOT_FOUND: "org.apache.kafka.common.errors.LogDirNotFoundException",
}
#: Where a line may be as long as it needs to be.
_WIDTH_OF_FILES: Final = 200
_OTHER_ERROR_CLASS: Final = "org.apache.kafka.common.errors.UnknownServerException"


@tool()
@connection_options
@click.option("--describe", is_flag=True, help="Describe log directories.")
@click.option(
    "--strays",
    is_flag=True,
    help="List the replicas that brokers keep and do not serve: which, where, since when and why.",
)
@click.option(
    "--reattach",
    metavar="BROKER:PATH",
    help="Bring a directory back that is offline, once its disk is repaired and mounted. Instead "
    "of a path, dirid:ID.",
)
@click.option("--add", metavar="BROKER:PATH", help="Take a new disk in while the broker runs.")
@click.option(
    "--forget",
    metavar="BROKER:PATH",
    help="Give a directory up for good, which is offline or empty; its replicas are made anew "
    "from their peers. Instead of a path, dirid:ID.",
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
@click.option(
    "--format",
    "style",
    type=click.Choice(["kafka", "json", "table"]),
    default="kafka",
    show_default=True,
    help="As Kafka's tool prints it, the JSON document alone, or a table for people.",
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
        told = {
            "broker": change.broker,
            "directoryId": None if done.directory_id is None else str(done.directory_id),
            "state": done.state or None,
            "message": done.message,
        }
        echo_json(told)
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
        metadata = await client.retry(client.refresh_metadata)
        existing = sorted(metadata.brokers)
        missing = [broker for broker in wanted if broker not in existing]
        if missing:
            fail(
                "The given brokers do not exist from --broker-list: "
                f"{_ids(missing)}. Current existent brokers: {_ids(existing)}"
            )
        asked = wanted or existing
        if style == "kafka" and not strays:
            click.echo("Querying brokers for log directories information")
        answers = await asyncio.gather(
            *(describe_log_dirs(client, broker, include_strays=strays) for broker in asked)
        )
        found = dict(zip(asked, answers, strict=True))
        if strays:
            _print_strays(strays_document(found, topics), style)
            return
        missed = await asyncio.gather(*(lost_replicas(client, broker) for broker in asked))
    lost = {broker: _of_topics(names, topics) for broker, names in zip(asked, missed, strict=True)}
    if style == "table":
        _print_table(found, topics)
        for line in lost_lines(lost):
            click.echo(line)
        return
    if style == "kafka":
        click.echo(f"Received log directory information from brokers {_ids(asked)}")
    echo_json(document(found, topics, lost))


def document(
    found: dict[int, list[LogDirDescription]], topics: list[str], lost: dict[int, list[str]]
) -> dict[str, Any]:
    """Kafka's document; with ``topics``, only their partitions."""
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
    }


def strays_document(found: dict[int, list[LogDirDescription]], topics: list[str]) -> dict[str, Any]:
    """One entry for each stray; null where it does not say."""
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


def _print_strays(told: dict[str, Any], style: str) -> None:
    """``json`` as one document; for people a line each, and none if there is none."""
    if style == "json":
        echo_json(told)
        return
    for stray in told["strays"]:
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
        "totalBytes": _told(log_dir.total_bytes),
        "usableBytes": _told(log_dir.usable_bytes),
        "queuedAssignments": log_dir.queued_assignments,
        "reserveBytes": log_dir.reserve_bytes,
        "growthBytesPerSecond": log_dir.growth_bytes_per_second,
        "latencyMs": None if log_dir.latency_ms is None else round(log_dir.latency_ms, 3),
        "isSlow": None if log_dir.latency_ms is None else log_dir.is_slow,
        "lastScrubMs": log_dir.last_scrub_ms,
        "scrubErrors": log_dir.scrub_errors,
    }


def _told(size_bytes: int) -> int | None:
    return size_bytes if size_bytes >= 0 else None


def _print_table(found: dict[int, list[LogDirDescription]], topics: list[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table("broker", box=box.SIMPLE)
    table.add_column("log directory", overflow="fold", min_width=16)
    table.add_column("directory id", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for heading in ("replicas", "size", "used", "free", "free %", "growth", "latency"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("last scrub")
    for broker, log_dirs in found.items():
        for log_dir in log_dirs:
            replicas = [r for r in log_dir.replicas if not topics or r.topic in topics]
            table.add_row(
                str(broker),
                log_dir.path,
                str(log_dir.directory_id or ""),
                _state(log_dir),
                str(len(replicas)),
                size_text(sum(replica.size_bytes for replica in replicas)),
                *_room(log_dir),
                _growth(log_dir),
                _latency(log_dir),
                _last_scrub(log_dir),
            )
    width = None if sys.stdout.isatty() else _WIDTH_OF_FILES
    Console(width=width).print(table)
    for line in move_lines(found, topics):
        click.echo(line)


def _state(log_dir: LogDirDescription) -> str:
    state = log_dir.state or ("online" if log_dir.error_code == ErrorCode.NONE else "offline")
    if log_dir.error_code != ErrorCode.NONE:
        return f"[red]{state}[/red]"
    if state != "online":
        state = f"[yellow]{state}[/yellow]"
    return f"{state}, cordoned" if log_dir.is_cordoned else state


def _room(log_dir: LogDirDescription) -> tuple[str, str, str]:
    """Used, free, and free in percent, of the disk."""
    total_bytes, free_bytes = log_dir.total_bytes, log_dir.usable_bytes
    if total_bytes <= 0 or free_bytes < 0:
        return "", "", ""
    used = size_text(total_bytes - free_bytes)
    return used, size_text(free_bytes), f"{100 * free_bytes / total_bytes:.0f}"


def _growth(log_dir: LogDirDescription) -> str:
    growth = log_dir.growth_bytes_per_second
    if growth is None:
        return ""
    return f"{'-' if growth < 0 else ''}{size_text(abs(growth))}/s"


def _latency(log_dir: LogDirDescription) -> str:
    if log_dir.latency_ms is None:
        return ""
    text = f"{log_dir.latency_ms:.1f} ms"
    return f"[yellow]{text}, slow[/yellow]" if log_dir.is_slow else text


def _last_scrub(log_dir: LogDirDescription) -> str:
    """When a pass ended, in UTC, and what the latest one found."""
    if log_dir.scrub_errors is None:
        return ""
    when = "never"
    if log_dir.last_scrub_ms is not None:
        when = f"{datetime.fromtimestamp(log_dir.last_scrub_ms / 1000, UTC):%Y-%m-%d %H:%M}"
    return f"{when}, [red]{log_dir.scrub_errors} damaged[/red]" if log_dir.scrub_errors else when


def move_lines(found: dict[int, list[LogDirDescription]], topics: list[str]) -> list[str]:
    """One line for each replica that is being moved to another directory of its broker."""
    lines = []
    for broker, log_dirs in found.items():
        held = [(log_dir, replica) for log_dir in log_dirs for replica in log_dir.replicas]
        current = {
            (replica.topic, replica.partition): (log_dir.path, replica.size_bytes)
            for log_dir, replica in held
            if not replica.is_future
        }
        for log_dir, replica in held:
            if not replica.is_future or (topics and replica.topic not in topics):
                continue
            source, size_bytes = current.get((replica.topic, replica.partition), ("?", 0))
            percent = min(100, 100 * replica.size_bytes // size_bytes) if size_bytes else 0
            lines.append(
                f"{replica.topic}-{replica.partition} on broker {broker}: {source} -> "
                f"{log_dir.path}, {percent} %, {size_text(replica.size_bytes)} of "
                f"{size_text(size_bytes)}, {replica.offset_lag} records behind"
            )
    return lines


def lost_lines(lost: dict[int, list[str]]) -> list[str]:
    """One line for each replica that is in no directory of its broker, and was the last in sync."""
    return [
        f"{replica} on broker {broker}: LOST, the last in-sync copy is on none of its disks; bring "
        f"its disk back, delete the topic, or allow it unclean elections"
        for broker, replicas in lost.items()
        for replica in replicas
    ]


def _of_topics(replicas: list[str], topics: list[str]) -> list[str]:
    return [name for name in replicas if not topics or name.rpartition("-")[0] in topics]


def _ids(broker_ids: list[int]) -> str:
    return ",".join(map(str, broker_ids))


if __name__ == "__main__":
    main(prog_name="kraftjbod-log-dirs")
