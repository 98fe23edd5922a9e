"""``kraftjbod-pipeline audit``: what producers were acknowledged, beside what the cluster holds.

Everything is compared up to where logs ended when the job began. Differences go to the table
``audit_differences``; what could not be checked is said as loudly as what was found.

Exit code 1 if anything is missing, changed, damaged or different between replicas; for records that
came twice or out of order as well, unless ``--allow-duplicates`` says that producers are not
idempotent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import click
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from kraftjbod.cli.cluster_client import ClusterClient
from kraftjbod.core.errors import ConfigError
from kraftjbod.spark import audit_frames as audit
from kraftjbod.spark import replica_frames
from kraftjbod.spark.audited_topics import damaged_leaders, read_records, sound_pieces
from kraftjbod.spark.job import Job, JobOutcome, job_command
from kraftjbod.spark.log_ranges import ClusterLogs, LogRange, log_starts, look_at_logs
from kraftjbod.spark.replica_batches import (
    ranges_frame,
    read_replica_batches,
    replica_ranges,
    tasks_for,
)
from kraftjbod.spark.stored_tables import publish, read_folder
from kraftjbod.spark.tables import (
    ACKNOWLEDGED_LINES,
    AUDIT_DIFFERENCES,
    INGESTED,
    LOG_RANGES,
    REPLICA_BATCHES,
)

TABLE: Final = "audit_differences"
#: Differences that at-least-once producers may have.
FORGIVABLE: Final = ("duplicate", "out_of_order")
_SHOWN: Final = 20
_JSON_ENDINGS: Final = (".json", ".jsonl", ".ndjson")
_REQUIRED: Final = ("topic", "partition", "offset")
#: Reasons for what was not read that are told one by one.
_TOLD_REASONS: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What is to be compared, beside presence, contents and offsets."""

    compares_replicas: bool
    records_are_unique: bool
    allows_duplicates: bool
    #: Of the table that ``ingest`` wrote, not of the topics.
    is_of_table: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """The frames of one audit; all but the ranges are kept on disk while it lasts."""

    acknowledged: DataFrame
    records: DataFrame
    ranges: DataFrame
    #: Of all in-sync replicas; empty if they are not compared.
    batches: DataFrame
    replica_ranges: DataFrame


@job_command("audit", finding="differences that count")
@click.option("--bootstrap-server", required=True, metavar="HOST:PORT,...")
@click.option("--topics", metavar="TOPIC,...", help="[default: those that were acknowledged]")
@click.option(
    "--acknowledged",
    metavar="PATH",
    help="What producers were acknowledged: JSON lines if the name ends in .json, .jsonl or "
    ".ndjson, else Parquet.",
)
@click.option(
    "--ingested", is_flag=True, help="Audit the table that `ingest` wrote, not the topic."
)
@click.option("--name", default="ingested", show_default=True, help="Name of that table.")
@click.option(
    "--replicas/--no-replicas",
    default=True,
    show_default=True,
    help="Read every in-sync replica and compare them batch by batch.",
)
@click.option("--allow-duplicates", is_flag=True, help="Repetitions and disorder do not count.")
@click.option(
    "--records-are-unique",
    is_flag=True,
    help="No producer sends the same key and value twice: the same content again is a duplicate.",
)
def command(
    job: Job,
    *,
    bootstrap_server: str,
    topics: str | None,
    acknowledged: str | None,
    ingested: bool,
    name: str,
    replicas: bool,
    allow_duplicates: bool,
    records_are_unique: bool,
) -> JobOutcome:
    """Compare what producers were acknowledged with what topics hold."""
    wishes = Wishes(
        compares_replicas=replicas,
        records_are_unique=records_are_unique,
        allows_duplicates=allow_duplicates,
        is_of_table=ingested,
    )
    claims = _claims(job, acknowledged)
    names = _topics(topics, claims)
    job.step(f"asking {bootstrap_server} about {', '.join(names)}")
    logs = _look(bootstrap_server, names)
    with _kept() as keep:
        acked = keep(audit.acknowledgements(claims.where(F.col("topic").isin(names))))
        batches, of_replicas = _batches(job, logs, bootstrap_server, wishes)
        batches = keep(batches)
        if wishes.compares_replicas:
            job.step(f"read {batches.count():,} batches of {len(logs.replicas):,} replicas")
        if ingested:
            read = job.spark.read.schema(INGESTED).parquet(job.table(name))
            read = read.where(F.col("topic").isin(names))
        else:
            pieces = sound_pieces(logs, damaged_leaders(batches))
            read = read_records(job.spark, pieces, bootstrap_server)
        records = keep(audit.audited_records(read))
        job.step(f"read {records.count():,} records of {len(logs.ranges):,} partitions")
        material = Material(
            acknowledged=acked,
            records=records,
            ranges=_ranges(job, logs, bootstrap_server, records, from_table=ingested),
            batches=batches,
            replica_ranges=of_replicas,
        )
        has_compacted = bool(_compacted(logs))
        standings = keep(
            audit.standings(acked, records, material.ranges, has_compacted=has_compacted)
        )
        found = _differences(material, standings, logs, wishes)
        publish(found, job.table(TABLE))
        findings = _findings(job, material, standings, logs, wishes)
    others = claims.where(~F.col("topic").isin(names)).count()
    if others:
        findings = replace(findings, unchecked=(*findings.unchecked, _of_other_topics(others)))
    lines = tuple(findings.lines())
    return JobOutcome(summary=findings.summary(), lines=lines, exit_code=int(findings.counting > 0))


# --- reading -------------------------------------------------------------------------------------


def _claims(job: Job, path: str | None) -> DataFrame:
    """What producers say, as ``ACKNOWLEDGED_LINES``.

    :raises ConfigError: if columns or values are missing that must be there.
    """
    if path is None:
        return job.spark.createDataFrame([], ACKNOWLEDGED_LINES)
    if path.rstrip("/").endswith(_JSON_ENDINGS):
        lines = job.spark.read.schema(ACKNOWLEDGED_LINES).option("mode", "FAILFAST").json(path)
    else:
        lines = job.spark.read.parquet(path)
        lacking = [column for column in _REQUIRED if column not in lines.columns]
        if lacking:
            raise ConfigError(f"{path} has no column {', '.join(lacking)}")
        lines = audit.cast_to(lines, ACKNOWLEDGED_LINES)
    nameless = lines.where(" or ".join(f"`{column}` is null" for column in _REQUIRED)).count()
    if nameless:
        raise ConfigError(f"{path}: {nameless} lines lack one of {', '.join(_REQUIRED)}")
    return lines


def _topics(text: str | None, claims: DataFrame) -> list[str]:
    if text is not None:
        names = list(filter(None, (part.strip() for part in text.split(","))))
    else:
        names = [row.topic for row in claims.select("topic").distinct().collect()]
    if not names:
        raise ConfigError("no topic to audit: name some with --topics or --acknowledged")
    return sorted(set(names))


def _look(bootstrap_servers: str, topics: Sequence[str]) -> ClusterLogs:
    async def look() -> ClusterLogs:
        async with ClusterClient(bootstrap_servers, client_id="kraftjbod-audit") as client:
            return await look_at_logs(client, topics)

    return asyncio.run(look())


def _batches(
    job: Job, logs: ClusterLogs, bootstrap_servers: str, wishes: Wishes
) -> tuple[DataFrame, DataFrame]:
    """Batches of replicas, and the ranges that they are read by."""
    rows = replica_ranges(logs) if wishes.compares_replicas else []
    ranges = ranges_frame(job.spark, rows)
    if not rows:
        return job.spark.createDataFrame([], REPLICA_BATCHES), ranges
    tasks = tasks_for(job.spark, len(rows))
    return read_replica_batches(ranges, bootstrap_servers, tasks=tasks), ranges


def _ranges(
    job: Job, logs: ClusterLogs, bootstrap_servers: str, records: DataFrame, *, from_table: bool
) -> DataFrame:
    """Which offsets must be there: retention may have taken some while they were read."""
    if from_table:
        ranges = job.spark.createDataFrame(list(logs.ranges), LOG_RANGES)
        return audit.from_first_of(ranges, records)

    async def ask() -> dict[tuple[str, int], int]:
        async with ClusterClient(bootstrap_servers, client_id="kraftjbod-audit") as client:
            await client.retry(client.refresh_metadata)
            return await log_starts(client, logs.ranges)

    starts = asyncio.run(ask())

    def since(one: LogRange) -> LogRange:
        if one.log_start is None or one.log_end is None:
            return one
        start = starts.get((one.topic, one.partition), one.log_start)
        return one._replace(log_start=min(max(one.log_start, start), one.log_end))

    return job.spark.createDataFrame([since(one) for one in logs.ranges], LOG_RANGES)


@contextmanager
def _kept() -> Iterator[_Keep]:
    """Keeps frames on the executors' disks until the audit is over."""
    keep = _Keep()
    try:
        yield keep
    finally:
        keep.let_go()


class _Keep:
    def __init__(self) -> None:
        self._frames: list[DataFrame] = []

    def __call__(self, frame: DataFrame) -> DataFrame:
        self._frames.append(frame.persist(StorageLevel.DISK_ONLY))
        return frame

    def let_go(self) -> None:
        for frame in self._frames:
            frame.unpersist()


# --- comparing -----------------------------------------------------------------------------------


def _compacted(logs: ClusterLogs) -> list[str]:
    return sorted({one.topic for one in logs.ranges if one.is_compacted})


def _differences(
    material: Material, standings: DataFrame, logs: ClusterLogs, wishes: Wishes
) -> DataFrame:
    acked, records = material.acknowledged, material.records
    comparable = material.batches.where(~F.col("topic").isin(_compacted(logs)))
    control = replica_frames.control_offsets(material.batches)
    found = [
        audit.missing_or_changed(standings),
        audit.unreadable(standings),
        audit.acknowledged_at_one_offset(acked),
        audit.acknowledged_twice(acked),
        audit.out_of_order(acked),
        audit.offset_gaps(records, material.ranges, control),
    ]
    if wishes.is_of_table:
        found.append(audit.read_twice(records))
    if wishes.records_are_unique:
        found.append(audit.repeated_content(acked, records))
    if wishes.compares_replicas:
        found += [
            replica_frames.damaged_batches(material.batches),
            replica_frames.replica_differences(comparable, material.replica_ranges),
            replica_frames.repeated_sequences(comparable),
        ]
    return audit.all_of(found)


# --- telling -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What an audit came to. ``counting`` is how many differences make it a bad end."""

    topics: tuple[str, ...]
    partitions: int
    records: int
    batches: int
    replicas: int
    standings: Mapping[str, int]
    differences: Mapping[str, int]
    counting: int
    first: tuple[Row, ...]
    unchecked: tuple[str, ...]
    table: str

    def summary(self) -> dict[str, object]:
        return {
            "topics": self.topics,
            "partitions": self.partitions,
            "records": self.records,
            "batches": self.batches,
            "replicas": self.replicas,
            "acknowledged": sum(self.standings.values()),
            "standings": self.standings,
            "missing": self.differences.get("missing", 0),
            "differences": self.differences,
            "differences_that_count": self.counting,
            "first_differences": [row.asDict() for row in self.first],
            "unchecked": self.unchecked,
            "table": self.table,
        }

    def lines(self) -> Iterator[str]:
        yield (
            f"{self.records:,} records in {self.partitions:,} partitions, "
            f"{self.batches:,} batches in {self.replicas:,} replicas"
        )
        told = ", ".join(f"{count:,} {name}" for name, count in sorted(self.standings.items()))
        acknowledged = f"{sum(self.standings.values()):,} records acknowledged"
        yield f"{acknowledged}: {told}" if told else acknowledged
        for kind, count in sorted(self.differences.items()):
            yield f"{kind}: {count:,}"
        for row in self.first:
            place = f"{row.topic}-{row.partition}"
            offset = "" if row.offset is None else f" at {row.offset}"
            where = "" if row.broker_id is None else f" on broker {row.broker_id}"
            yield f"  {row.difference}: {place}{offset}{where}: {row.detail}"
        if sum(self.differences.values()) > len(self.first):
            yield f"  and more in {self.table}"
        for sentence in self.unchecked:
            yield f"NOT CHECKED: {sentence}"
        count = self.counting
        yield f"{count:,} differences count" if count else "nothing is missing, nothing differs"


def _findings(
    job: Job, material: Material, standings: DataFrame, logs: ClusterLogs, wishes: Wishes
) -> Findings:
    table = job.table(TABLE)
    found = read_folder(job.spark, table, AUDIT_DIFFERENCES)
    assert found is not None, "it was published just now"
    kinds = _counted(found, "difference")
    forgiven = FORGIVABLE if wishes.allows_duplicates else ()
    first = found.orderBy("difference", "topic", "partition", "offset").limit(_SHOWN).collect()
    counted = _counted(standings, "standing")
    return Findings(
        topics=tuple(sorted({one.topic for one in logs.ranges})),
        partitions=len(logs.ranges),
        records=material.records.count(),
        batches=material.batches.where("finding is null").count(),
        replicas=len(logs.replicas) if wishes.compares_replicas else 0,
        standings=counted,
        differences=kinds,
        counting=sum(count for kind, count in kinds.items() if kind not in forgiven),
        first=tuple(first),
        unchecked=tuple(_unchecked(material, counted, logs, wishes)),
        table=table,
    )


def _of_other_topics(lines: int) -> str:
    return f"{lines:,} lines of acknowledgements that are of other topics"


def _counted(frame: DataFrame, column: str) -> dict[str, int]:
    return {row[column]: row["count"] for row in frame.groupBy(column).count().collect()}


def _unchecked(
    material: Material, standings: Mapping[str, int], logs: ClusterLogs, wishes: Wishes
) -> Iterator[str]:
    """What nobody may take for checked."""
    yield from logs.unseen
    if standings.get("trimmed"):
        yield f"{standings['trimmed']:,} acknowledged records are before the start of their logs"
    if standings.get("unchecked"):
        yield f"{standings['unchecked']:,} acknowledged records of compacted topics have no key CRC"
    compacted = _compacted(logs)
    if compacted:
        yield f"offsets and replicas of compacted topics: {', '.join(compacted)}"
    plain, nameless = material.acknowledged.agg(
        F.count_if(F.expr("key_crc is null and value_crc is null")),
        F.count_if(F.expr("producer is null or sequence is null")),
    ).collect()[0]
    if plain:
        yield f"contents of {plain:,} acknowledged records that came without a CRC"
    if nameless:
        yield f"order of {nameless:,} acknowledged records without producer and sequence"
    if not wishes.compares_replicas:
        yield "replicas, which were not to be compared"
    unread = material.batches.where("finding = 'unread'").groupBy("broker_id", "path", "detail")
    told = unread.agg(F.expr("sum(last_offset - base_offset + 1)").alias("offsets"))
    for row in told.orderBy("broker_id", "path").limit(_TOLD_REASONS).collect():
        yield f"{row.offsets:,} offsets in {row.path} of broker {row.broker_id}: {row.detail}"
