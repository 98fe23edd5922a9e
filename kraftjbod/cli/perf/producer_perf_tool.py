"""WIRE. ``kraftjbod-producer-perf-test``: measures records per second and latency of a producer.

Flags, rules, output and the producer's defaults are those of Kafka's tool. The tool sends with
librdkafka. Its results can be compared between clusters, but not with those of Kafka's tool.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from kraftjbod.cli.perf.client_statistics import ClientStatistics
from kraftjbod.cli.perf.producer_figures import ProducerFigures
from kraftjbod.cli.terminal.command import ClusterAddress, Tool, report, tool
from kraftjbod.core.errors import ConfigError

_TRANSACTION_MS: Final = 3_000
_TRANSACTION_PREFIX: Final = "performance-producer-"
_LETTERS: Final = bytes(65 + each % 26 for each in range(256))
#: Bytes that would make some letters more likely, above the largest multiple of 26, are dropped.
_FAIR: Final = bytes(range(26 * 9, 256))
_MANY: Final = ("--command-property", "--producer-props")
_PATIENCE_S: Final = 0.1
#: Kafka's tool has the same minimum wait.
_LEAST_WAIT_MS: Final = 2
_TRANSACTION_S: Final = 60.0


class _PropertyLists(Tool):
    """A command whose property flags accept several words, as in Kafka's tool.

    Each of these words gets a separate flag before click parses them.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        spread: list[str] = []
        flag: str | None = None
        for word in args:
            if word.startswith("-"):
                flag = word if word in _MANY else None
                if flag is None:
                    spread.append(word)
            elif flag is not None:
                spread += [flag, word]
            else:
                spread.append(word)
        return super().parse_args(ctx, spread)


@dataclass(frozen=True, slots=True, kw_only=True)
class Payloads:
    """Makes the payloads of records.

    A payload is a random item of ``of_file``, unless that is empty. Then it is ``record_bytes``
    random letters, or if that is None the record's number in decimal.
    """

    record_bytes: int | None = None
    of_file: Sequence[bytes] = ()

    def make(self, chance: random.Random) -> Callable[[int], bytes]:
        """Return a function that returns the payload of a record by its number."""
        if self.of_file:
            return lambda _: chance.choice(self.of_file)
        if self.record_bytes is None:
            return lambda number: b"%d" % number
        size = self.record_bytes
        return lambda _: _letters(chance, size)


def _letters(chance: random.Random, size: int) -> bytes:
    found = b""
    while len(found) < size:
        found += chance.randbytes((size - len(found)) * 9 // 8 + 8).translate(_LETTERS, _FAIR)
    return found[:size]


def read_payloads(path: str, delimiter: str) -> list[bytes]:
    """Return the payloads in a UTF-8 file, which ``delimiter`` separates.

    :raises ConfigError: the file cannot be read, or is empty.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"cannot read {path}: {e}") from e
    if not text:
        raise ConfigError(f"{path}: an empty file holds no payloads")
    return [part.encode() for part in text.removesuffix(delimiter).split(delimiter)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    topic: str
    records: int
    warmup: int
    rate: float
    interval_ms: int
    payloads: Payloads
    #: Duration of one transaction; None without transactions.
    transaction_ms: int | None
    print_metrics: bool


@tool(kind=_PropertyLists)
@click.option(
    "--bootstrap-server",
    metavar="HOST:PORT,...",
    help="Addresses of brokers for the first connection.",
)
@click.option("--topic", required=True, help="Topic to send to.")
@click.option(
    "--num-records", type=click.IntRange(min=1), required=True, help="Number of records to send."
)
@click.option("--record-size", type=click.IntRange(min=1), help="Bytes per record.")
@click.option(
    "--payload-file",
    type=click.Path(dir_okay=False),
    help="UTF-8 file from which payloads are drawn.",
)
@click.option("--payload-monotonic", is_flag=True, help="Send the record's number as its payload.")
@click.option(
    "--payload-delimiter",
    default="\\n",
    show_default=True,
    help="Delimiter of payloads in --payload-file.",
)
@click.option(
    "--throughput",
    type=float,
    required=True,
    help="Approximate limit of records per second; -1: no limit.",
)
@click.option(
    "--command-property",
    "properties",
    multiple=True,
    metavar="KEY=VALUE...",
    help="Settings of the producer, such as linger.ms=10 batch.size=32768.",
)
@click.option(
    "--producer-props", "old_properties", multiple=True, help="Older name of the previous option."
)
@click.option(
    "--command-config", type=click.Path(dir_okay=False), help="Properties file with such settings."
)
@click.option("--producer.config", "old_config", help="Older name of the previous option.")
@click.option("--print-metrics", is_flag=True, help="Print librdkafka's statistics at the end.")
@click.option("--transactional-id", help="Send in transactions with this transactional id.")
@click.option(
    "--transaction-duration-ms",
    type=click.IntRange(min=1),
    help=f"Send in transactions of about this duration. [default: {_TRANSACTION_MS}]",
)
@click.option(
    "--warmup-records",
    type=int,
    default=0,
    help="Number of first records that only the total includes.",
)
@click.option(
    "--reporting-interval",
    type=click.IntRange(min=1),
    default=5_000,
    show_default=True,
    metavar="MS",
    help="Interval between two lines.",
)
def main(**flags: Any) -> int:
    """Measure how fast records are taken, and how long each waits for its answer."""
    from kraftjbod.cli.terminal.library_client import reach

    run, settings = _read(flags)
    sending = _Sending(run, settings)
    cluster = ClusterAddress(bootstrap_server=settings["bootstrap.servers"])
    asyncio.run(reach(settings, cluster))
    # The library's threads do the work from here on, so no event loop is needed.
    return sending.run()


def _read(flags: dict[str, Any]) -> tuple[_Run, dict[str, str]]:
    """Check the flags; return the parameters of the run and the settings of the producer.

    :raises click.UsageError: flags are missing or contradict each other, as in Kafka's tool.
    """
    from kraftjbod.cli.terminal.library_client import read_settings

    sizes = [flags["record_size"], flags["payload_file"], flags["payload_monotonic"] or None]
    if sum(each is not None for each in sizes) != 1:
        raise click.UsageError(
            "exactly one of --record-size, --payload-file and --payload-monotonic is needed"
        )
    if max(0, flags["warmup_records"]) >= flags["num_records"]:
        raise click.UsageError(
            "The value for --warmup-records must be strictly fewer than the number of records in "
            "the test, --num-records."
        )
    if flags["throughput"] == 0:
        raise click.UsageError("--throughput 0 would send nothing: -1, or more than 0")
    properties = flags["properties"] or flags["old_properties"]
    if flags["properties"] and flags["old_properties"]:
        raise click.UsageError(
            "--command-property and --producer-props cannot be specified together."
        )
    config = flags["command_config"] or flags["old_config"]
    if flags["command_config"] and flags["old_config"]:
        raise click.UsageError(
            "--command-config and --producer.config cannot be specified together."
        )
    settings = {
        "client.id": "perf-producer-client",
        **read_settings(config, properties, "--command-property"),
    }
    if flags["bootstrap_server"] is not None:
        settings["bootstrap.servers"] = flags["bootstrap_server"]
    if "bootstrap.servers" not in settings:
        raise click.UsageError("--bootstrap-server is needed, or bootstrap.servers as a setting")
    return _run_of(flags, settings), settings


def _run_of(flags: dict[str, Any], settings: dict[str, str]) -> _Run:
    transaction_ms = flags["transaction_duration_ms"]
    named = flags["transactional_id"] or settings.get("transactional.id")
    if named is not None or transaction_ms is not None:
        settings["transactional.id"] = named or f"{_TRANSACTION_PREFIX}{uuid.uuid4()}"
        transaction_ms = transaction_ms or _TRANSACTION_MS
    of_file: Sequence[bytes] = ()
    if flags["payload_file"] is not None:
        delimiter = flags["payload_delimiter"].replace("\\n", "\n")
        click.echo(f"Reading payloads from: {Path(flags['payload_file']).absolute()}")
        of_file = read_payloads(flags["payload_file"], delimiter)
        click.echo(f"Number of records read: {len(of_file)}")
    return _Run(
        topic=flags["topic"],
        records=flags["num_records"],
        warmup=max(0, flags["warmup_records"]),
        rate=flags["throughput"],
        interval_ms=flags["reporting_interval"],
        payloads=Payloads(record_bytes=flags["record_size"], of_file=of_file),
        transaction_ms=transaction_ms,
        print_metrics=flags["print_metrics"],
    )


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class _Sending:
    """One run of the tool."""

    def __init__(self, run: _Run, settings: dict[str, str]) -> None:
        from kraftjbod.cli.terminal.library_client import make_producer

        self._run = run
        self._statistics = ClientStatistics()
        #: Number of failed records by reason.
        self._failed: dict[str, int] = {}
        library: dict[str, Any] = dict(settings)
        if run.print_metrics:
            library |= self._statistics.settings()
        self._producer = make_producer(library)
        self._all = ProducerFigures(run.records, interval_ms=run.interval_ms, now_ms=_now_ms())
        self._steady: ProducerFigures | None = None

    def run(self) -> int:
        from kraftjbod.cli.terminal.library_client import refused_as_ours

        with refused_as_ours():
            self._send_all()
            self._await_answers()
        now_ms = _now_ms()
        click.echo(self._all.total(now_ms))
        if self._steady is not None:
            click.echo(self._steady.total(now_ms))
        if self._run.print_metrics:
            self._statistics.print(self._producer.poll)
        for why, count in self._failed.items():
            report(f"error: {count} records were not taken: {why}")
        return 1 if self._failed else 0

    def _send_all(self) -> None:
        run, producer = self._run, self._producer
        # The same payloads in each run, as in Kafka's tool.
        payload_of = run.payloads.make(random.Random(0))  # noqa: S311 # no secrets
        if run.transaction_ms is not None:
            producer.init_transactions(_TRANSACTION_S)
        if run.warmup:
            click.echo(
                f"Warmup first {run.warmup} records. Steady state results will print after the "
                "complete test summary."
            )
        start_ms = _now_ms()
        self._all = ProducerFigures(run.records, interval_ms=run.interval_ms, now_ms=start_ms)
        began_ms: int | None = None
        for number in range(run.records):
            payload = payload_of(number)
            if run.transaction_ms is not None and began_ms is None:
                producer.begin_transaction()
                began_ms = _now_ms()
            sent_ms = _now_ms()
            if run.warmup and number == run.warmup:
                self._begin_steady(sent_ms)
            self._send(payload, sent_ms)
            if began_ms is not None and sent_ms - began_ms >= (run.transaction_ms or 0):
                producer.commit_transaction(_TRANSACTION_S)
                began_ms = None
            if run.rate > 0:
                self._slow_down(start_ms + (number + 1) / run.rate * 1000)
        if began_ms is not None:
            producer.commit_transaction(_TRANSACTION_S)

    def _begin_steady(self, now_ms: int) -> None:
        run = self._run
        self._all.is_quiet = True
        self._steady = ProducerFigures(
            run.records - run.warmup, interval_ms=run.interval_ms, now_ms=now_ms, is_steady=True
        )

    def _send(self, payload: bytes, sent_ms: int) -> None:
        size, steady = len(payload), self._steady

        def answered(error: Any, _message: Any) -> None:
            if error is not None:
                self._failed[error.str()] = self._failed.get(error.str(), 0) + 1
                return
            now_ms = _now_ms()
            for figures in (self._all,) if steady is None else (self._all, steady):
                for line in figures.record(now_ms - sent_ms, size, now_ms):
                    click.echo(line)

        while True:
            try:
                self._producer.produce(self._run.topic, payload, on_delivery=answered)
            except BufferError:
                # Wait until there is space, as Java's producer does.
                self._producer.poll(_PATIENCE_S)
            else:
                self._producer.poll(0)
                return

    def _slow_down(self, due_ms: float) -> None:
        """Process responses until ``due_ms``, the time of the next record.

        Waits below 2 ms are skipped, because the library cannot wait that shortly.
        """
        while (ahead_ms := due_ms - _now_ms()) >= _LEAST_WAIT_MS:
            self._producer.poll(min(ahead_ms / 1000, _PATIENCE_S))

    def _await_answers(self) -> None:
        """Wait until each record is acknowledged, or has failed after ``delivery.timeout.ms``."""
        while self._producer.flush(_PATIENCE_S):
            pass


if __name__ == "__main__":
    main(prog_name="kraftjbod-producer-perf-test")
