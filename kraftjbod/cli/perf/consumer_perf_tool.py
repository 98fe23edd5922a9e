"""WIRE. ``kraftjbod-consumer-perf-test``: measures the records per second of a group member.

Flags, rules and output are those of Kafka's tool. The tool reads with librdkafka. Its results can
be compared between clusters, but not with those of Kafka's tool.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import click

from kraftjbod.cli.perf.client_statistics import ClientStatistics
from kraftjbod.cli.perf.consumer_figures import (
    DATE_FORMAT,
    Read,
    header,
    interval_line,
    simple_date_format,
    total_line,
)
from kraftjbod.cli.terminal.command import ClusterAddress, tool

_POLL_S: Final = 0.1
_AT_ONCE: Final = 500
_GROUPS: Final = 100_000


@tool()
@click.option(
    "--bootstrap-server",
    required=True,
    metavar="HOST:PORT,...",
    help="Addresses of brokers for the first connection.",
)
@click.option("--topic", help="Topic to read.")
@click.option("--include", metavar="REGEX", help="Topics to read, by a regular expression.")
@click.option("--num-records", type=click.IntRange(min=1), help="Number of records to read.")
@click.option("--messages", type=click.IntRange(min=1), help="Older name of the previous option.")
@click.option("--group", help="Consumer group. [default: perf-consumer- and a number]")
@click.option(
    "--from-latest", is_flag=True, help="Start at the end of partitions without committed offsets."
)
@click.option(
    "--fetch-size", type=int, default=1024 * 1024, show_default=True, help="Bytes per partition."
)
@click.option(
    "--socket-buffer-size", type=int, default=2 * 1024 * 1024, show_default=True, help="Bytes."
)
@click.option(
    "--command-property",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    help="Settings of the consumer.",
)
@click.option(
    "--command-config", type=click.Path(dir_okay=False), help="Properties file with such settings."
)
@click.option("--consumer.config", "old_config", help="Older name of the previous option.")
@click.option(
    "--timeout",
    "timeout_ms",
    type=click.IntRange(min=0),
    default=10_000,
    show_default=True,
    metavar="MS",
    help="End when no record arrives for this time.",
)
@click.option("--show-detailed-stats", is_flag=True, help="Print a line per interval.")
@click.option(
    "--reporting-interval",
    type=click.IntRange(min=1),
    default=5_000,
    show_default=True,
    metavar="MS",
    help="Interval between two lines.",
)
@click.option(
    "--date-format", default=DATE_FORMAT, show_default=True, help="Format of times, as in Java."
)
@click.option("--hide-header", is_flag=True, help="Omit the line with column names.")
@click.option("--print-metrics", is_flag=True, help="Print librdkafka's statistics at the end.")
def main(**flags: Any) -> None:
    """Measure how fast a member of a group reads."""
    from kraftjbod.cli.terminal.library_client import reach

    topic, include = flags["topic"], flags["include"]
    if (topic is None) == (include is None):
        raise click.UsageError(
            "Exactly one of the following arguments is required: --topic, --include"
        )
    if (flags["num_records"] is None) == (flags["messages"] is None):
        raise click.UsageError(
            "Exactly one of the following arguments is required: --num-records, --messages"
        )
    if flags["command_config"] and flags["old_config"]:
        raise click.UsageError("--command-config and --consumer.config cannot be given together")
    run = _Run(
        # librdkafka treats a topic that begins with ^ as a regular expression; Java's matches the
        # whole.
        topic=topic if include is None else f"^({include})$",
        records=flags["num_records"] or flags["messages"],
        timeout_ms=flags["timeout_ms"],
        interval_ms=flags["reporting_interval"],
        is_detailed=flags["show_detailed_stats"],
        date_format=flags["date_format"],
        print_metrics=flags["print_metrics"],
    )
    settings = _settings(flags)
    measuring = _Measuring(run, settings)
    asyncio.run(reach(settings, ClusterAddress(bootstrap_server=settings["bootstrap.servers"])))
    # The library's threads do the work from here on, so no event loop is needed.
    if not flags["hide_header"]:
        click.echo(header(is_detailed=run.is_detailed))
    measuring.run()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    topic: str
    records: int
    timeout_ms: int
    interval_ms: int
    is_detailed: bool
    date_format: str
    print_metrics: bool


def _settings(flags: dict[str, Any]) -> dict[str, str]:
    from kraftjbod.cli.terminal.library_client import read_settings

    config = flags["command_config"] or flags["old_config"]
    group = flags["group"] or f"perf-consumer-{secrets.randbelow(_GROUPS)}"
    return {
        "client.id": "perf-consumer-client",
        **read_settings(config, flags["properties"], "--command-property"),
        "bootstrap.servers": flags["bootstrap_server"],
        "group.id": group,
        "receive.buffer.bytes": str(flags["socket_buffer_size"]),
        "max.partition.fetch.bytes": str(flags["fetch_size"]),
        "auto.offset.reset": "latest" if flags["from_latest"] else "earliest",
        "check.crcs": "false",
    }


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class _Joining:
    """Measures the time in which the member had no partitions."""

    def __init__(self, now_ms: int) -> None:
        self._since_ms = now_ms
        self._owned = 0
        self.total_ms = 0
        #: The part of that time since the last line.
        self.recent_ms = 0

    def assigned(self, partitions: int) -> None:
        if not self._owned:
            elapsed_ms = _now_ms() - self._since_ms
            self.total_ms += elapsed_ms
            self.recent_ms += elapsed_ms
        self._owned += partitions

    def revoked(self, partitions: int) -> None:
        self._owned = max(0, self._owned - partitions)
        if not self._owned:
            self._since_ms = _now_ms()


class _Measuring:
    """One run of the tool."""

    def __init__(self, run: _Run, settings: dict[str, str]) -> None:
        from kraftjbod.cli.terminal.library_client import make_consumer

        self._run = run
        self._written = simple_date_format(run.date_format)
        self._statistics = ClientStatistics()
        counted = self._statistics.settings() if run.print_metrics else {}
        self._consumer = make_consumer(settings, **counted)

    def run(self) -> None:
        try:
            self._measure()
            if self._run.print_metrics:
                self._statistics.print(self._consumer.poll)
        finally:
            self._consumer.close()

    def _measure(self) -> None:
        start, start_ms = datetime.now().astimezone(), _now_ms()
        joining = _Joining(start_ms)
        self._consumer.subscribe(
            [self._run.topic],
            on_assign=lambda _, partitions: joining.assigned(len(partitions)),
            on_revoke=lambda _, partitions: joining.revoked(len(partitions)),
        )
        read = self._read(joining)
        if read.records < self._run.records:
            click.echo(
                "WARNING: Exiting before consuming the expected number of records: timeout "
                f"({self._run.timeout_ms} ms) exceeded. You can use the --timeout option to "
                "increase the timeout."
            )
        end, end_ms = datetime.now().astimezone(), _now_ms()
        if not self._run.is_detailed:
            line = total_line(
                read,
                times=(self._written(start), self._written(end)),
                elapsed_ms=end_ms - start_ms,
                join_ms=joining.total_ms,
            )
            click.echo(line)

    def _read(self, joining: _Joining) -> Read:
        run = self._run
        now_ms = reported_ms = arrived_ms = _now_ms()
        read = reported = Read()
        while read.records < run.records and now_ms - arrived_ms <= run.timeout_ms:
            messages = self._take()
            now_ms = _now_ms()
            if messages:
                arrived_ms = now_ms
                size = sum(len(each.key() or b"") + len(each.value() or b"") for each in messages)
                read = Read(read.size_bytes + size, read.records + len(messages))
            if messages and now_ms - reported_ms >= run.interval_ms:
                if run.is_detailed:
                    line = interval_line(
                        read,
                        reported,
                        at=self._written(datetime.now().astimezone()),
                        elapsed_ms=now_ms - reported_ms,
                        join_ms=joining.recent_ms,
                    )
                    click.echo(line)
                joining.recent_ms = 0
                reported_ms, reported = now_ms, read
        return read

    def _take(self) -> list[Any]:
        """Return the records that have arrived; wait up to 0.1 s for the first one.

        :raises OperatingError: an error that is not retriable.
        """
        from kraftjbod.cli.terminal.library_client import client_error

        messages = self._consumer.consume(_AT_ONCE, _POLL_S)
        for each in messages:
            if (error := each.error()) is not None and not error.retriable():
                raise client_error(error)
        return [each for each in messages if each.error() is None]


if __name__ == "__main__":
    main(prog_name="kraftjbod-consumer-perf-test")
