"""``kraftjbod-log-dirs``: what lies in each broker's log directories, as Kafka's tool prints it.

Three lines: two of talk and one JSON document, in which ``totalBytes`` and ``usableBytes`` are
ours to add. ``--json`` prints the document alone, ``--table`` a table for people.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import click

from kraftjbod.cli.command import connection_options, fail, make_client, run
from kraftjbod.cli.replica_admin import LogDirDescription, describe_log_dirs
from kraftjbod.core.errors import ErrorCode

_ERROR_CLASSES: Final = {
    ErrorCode.KAFKA_STORAGE_ERROR: "org.apache.kafka.common.errors.KafkaStorageException",
    ErrorCode.LOG_DIR_NOT_FOUND: "org.apache.kafka.common.errors.LogDirNotFoundException",
}
_OTHER_ERROR_CLASS: Final = "org.apache.kafka.common.errors.UnknownServerException"
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@connection_options
@click.option(
    "--describe", is_flag=True, required=True, expose_value=False, help="Describe log directories."
)
@click.option("--topic-list", metavar="A,B,...", help="Only these topics.")
@click.option("--broker-list", metavar="1,2,...", help="Only these brokers.")
@click.option("--json", "style", flag_value="json", help="The JSON document alone.")
@click.option("--table", "style", flag_value="table", help="A table for people.")
def main(
    bootstrap_server: str,
    command_config: str | None,
    topic_list: str | None,
    broker_list: str | None,
    style: str | None,
) -> None:
    """Show the log directories of brokers."""
    brokers = _parts(broker_list)
    if not all(broker.isdigit() for broker in brokers):
        raise click.BadParameter(
            f"{broker_list!r} is not a list of ids", param_hint="--broker-list"
        )
    run(
        _perform(
            bootstrap_server, command_config, _parts(topic_list), sorted(map(int, brokers)), style
        )
    )


async def _perform(
    bootstrap_server: str,
    command_config: str | None,
    topics: list[str],
    wanted: list[int],
    style: str | None,
) -> None:
    async with make_client(bootstrap_server, command_config) as client:
        metadata = await client.retry(client.refresh_metadata)
        existing = sorted(metadata.brokers)
        missing = [broker for broker in wanted if broker not in existing]
        if missing:
            fail(
                "ERROR: The given brokers do not exist from --broker-list: "
                f"{_ids(missing)}. Current existent brokers: {_ids(existing)}"
            )
        asked = wanted or existing
        if style is None:
            click.echo("Querying brokers for log directories information")
        answers = await asyncio.gather(*(describe_log_dirs(client, broker) for broker in asked))
    found = dict(zip(asked, answers, strict=True))
    if style == "table":
        _print_table(found, topics)
        return
    if style is None:
        click.echo(f"Received log directory information from brokers {_ids(asked)}")
    click.echo(json.dumps(document(found, topics), separators=(",", ":")))


def document(found: dict[int, list[LogDirDescription]], topics: list[str]) -> dict[str, Any]:
    """Kafka's document; with ``topics``, only their partitions."""
    return {
        "version": 1,
        "brokers": [
            {"broker": broker, "logDirs": [_log_dir(log_dir, topics) for log_dir in log_dirs]}
            for broker, log_dirs in found.items()
        ],
    }


def _log_dir(log_dir: LogDirDescription, topics: list[str]) -> dict[str, Any]:
    error = None
    if log_dir.error_code != ErrorCode.NONE:
        error = _ERROR_CLASSES.get(ErrorCode(log_dir.error_code), _OTHER_ERROR_CLASS)
    return {
        "logDir": log_dir.path,
        "error": error,
        "totalBytes": log_dir.total_bytes,
        "usableBytes": log_dir.usable_bytes,
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
    }


def _print_table(found: dict[int, list[LogDirDescription]], topics: list[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table("broker", box=box.SIMPLE)
    table.add_column("log directory", overflow="fold", min_width=24)
    table.add_column("state", no_wrap=True)
    for heading in ("replicas", "size", "lag", "free", "of"):
        table.add_column(heading, justify="right", no_wrap=True)
    for broker, log_dirs in found.items():
        for log_dir in log_dirs:
            replicas = [r for r in log_dir.replicas if not topics or r.topic in topics]
            table.add_row(
                str(broker),
                log_dir.path,
                "online" if log_dir.error_code == ErrorCode.NONE else "[red]offline[/red]",
                str(len(replicas)),
                size_text(sum(replica.size_bytes for replica in replicas)),
                str(max((replica.offset_lag for replica in replicas), default=0)),
                _size_or_blank(log_dir.usable_bytes),
                _size_or_blank(log_dir.total_bytes),
            )
    Console().print(table)


def _size_or_blank(size_bytes: int) -> str:
    return "" if size_bytes < 0 else size_text(size_bytes)


def size_text(size_bytes: float) -> str:
    """``1536`` as ``1.5 KiB``."""
    for unit in _UNITS:
        if size_bytes < 1024 or unit == _UNITS[-1]:
            break
        size_bytes /= 1024
    return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"


def _parts(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _ids(broker_ids: list[int]) -> str:
    return ",".join(map(str, broker_ids))


if __name__ == "__main__":
    main(prog_name="kraftjbod-log-dirs")
