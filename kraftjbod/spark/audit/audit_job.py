"""WIRE. ``kraftjbod-pipeline audit``: compares acknowledged records with those in the cluster.

All data is compared up to the log ends at the start of the job. Differences are written to the
table ``audit_differences``. Unchecked parts are reported as prominently as differences.

The data is read and joined once, by stretches of offsets. Sums select the stretches that need the
rules (audit_sieve.py); in a correct cluster no stretch does.

The exit code is 1 if records are missing, changed, damaged or different between replicas. Duplicate
or reordered records also count, unless ``--allow-duplicates`` declares that producers are not
idempotent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import click
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from kraftjbod.spark.audit import audit_frames as audit
from kraftjbod.spark.audit import replica_frames
from kraftjbod.spark.audit.audit_material import (
    AuditOptions,
    Material,
    disk_frames,
    read_claims,
    read_material,
)
from kraftjbod.spark.session.job import Job, JobOutcome, job_command, kafka_option
from kraftjbod.spark.tables.schemas import AUDIT_DIFFERENCES, AUDITED_ACKNOWLEDGEMENTS
from kraftjbod.spark.tables.stored_tables import publish, read_folder

TABLE: Final = "audit_differences"
#: Differences that are possible with at-least-once producers.
FORGIVABLE: Final = ("duplicate", "out_of_order")
_SHOWN: Final = 20
#: Limit of reasons for unread parts that are listed.
_LISTED_REASONS: Final = 50


@job_command("audit", finding="differences that count")
@click.option("--bootstrap-server", required=True, metavar="HOST:PORT,...")
@click.option(
    "--topics", metavar="TOPIC,...", help="Topics to audit.  [default: all acknowledged ones]"
)
@click.option(
    "--acknowledged",
    metavar="PATH",
    help="Acknowledged records: a file of JSON lines if the name ends in .json, .jsonl or "
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
@click.option("--allow-duplicates", is_flag=True, help="Duplicates and disorder do not count.")
@click.option(
    "--records-are-unique",
    is_flag=True,
    help="No producer sends a key and value twice, so equal records are duplicates.",
)
@kafka_option
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
    kafka: Mapping[str, str],
) -> JobOutcome:
    """Compare acknowledged records with the records of topics."""
    options = AuditOptions(
        compares_replicas=replicas,
        records_are_unique=records_are_unique,
        allows_duplicates=allow_duplicates,
        table=name if ingested else None,
        kafka=kafka,
    )
    claims = read_claims(job, acknowledged, topics)
    job.step(f"asking {bootstrap_server} about {', '.join(claims.topics)}")
    with disk_frames() as keep:
        material = read_material(job, keep, claims, bootstrap_server, options)
        standings = keep(judged_standings(job, material))
        publish(judged_differences(job, material, standings), job.table(TABLE))
        findings = _findings(job, material, standings)
    words = tuple(findings.lines())
    return JobOutcome(summary=findings.summary(), lines=words, exit_code=int(findings.counting > 0))


# --- comparing -----------------------------------------------------------------------------------


def judged_standings(job: Job, material: Material) -> DataFrame:
    """Return ``AUDITED_ACKNOWLEDGEMENTS``: the result for each acknowledged record of the stretches
    whose sums leave a doubt; empty if there is none."""
    if not material.odd:
        return job.spark.createDataFrame([], AUDITED_ACKNOWLEDGEMENTS)
    return audit.standings(
        material.odd_rows(acknowledged=True),
        material.odd_rows(acknowledged=False),
        material.ranges_frame,
        has_compacted=bool(material.compacted),
    )


def judged_differences(job: Job, material: Material, standings: DataFrame) -> DataFrame:
    """Return ``AUDIT_DIFFERENCES``: all differences in the stretches and replicas whose sums leave
    a doubt."""
    found = [job.spark.createDataFrame([], AUDIT_DIFFERENCES)]
    acked, records = material.rows(acknowledged=True), material.rows(acknowledged=False)
    if material.odd:
        control = replica_frames.control_offsets(material.batches)
        odd_records = material.odd_rows(acknowledged=False)
        found += [
            audit.missing_or_changed(standings),
            audit.unreadable(standings),
            audit.acknowledged_at_one_offset(material.odd_rows(acknowledged=True)),
            audit.offset_gaps(
                odd_records,
                material.ranges_frame,
                control,
                stretch=material.length,
                only=material.odd_stretches,
            ),
        ]
        if material.options.is_of_table:
            found.append(audit.read_twice(odd_records))
    if material.disorderly:
        disorderly = material.of_partitions(acked, material.disorderly)
        found += [audit.acknowledged_twice(disorderly), audit.out_of_order(disorderly)]
    if material.options.records_are_unique:
        found.append(audit.repeated_content(acked, records))
    return audit.all_of(found + _differences_of_replicas(material))


def _differences_of_replicas(material: Material) -> list[DataFrame]:
    found = []
    if material.has_findings:
        found.append(replica_frames.damaged_batches(material.batches))
    comparable = material.batches.where(~F.col("topic").isin(material.compacted))
    if material.odd_replicas:
        odd = material.of_partitions(comparable, material.odd_replicas)
        found.append(replica_frames.replica_differences(odd, material.replica_ranges))
    if any(one.numbered for one in material.batch_sums):
        found.append(replica_frames.repeated_sequences(comparable))
    return found


# --- the report ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The results of an audit, for its output.

    ``standings`` counts the acknowledged records by standing, ``differences`` the differences by
    kind, and ``counting`` the differences that cause exit code 1. ``first`` has the first
    differences, and ``table`` the path of all. ``unchecked`` has a sentence per part that was not
    checked.
    """

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
        words = ", ".join(f"{count:,} {name}" for name, count in sorted(self.standings.items()))
        acknowledged = f"{sum(self.standings.values()):,} records acknowledged"
        yield f"{acknowledged}: {words}" if words else acknowledged
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


def _findings(job: Job, material: Material, standings: DataFrame) -> Findings:
    options, table = material.options, job.table(TABLE)
    found = read_folder(job.spark, table, AUDIT_DIFFERENCES)
    assert found is not None, "it was published just now"
    kinds = _counted(found, "difference")
    forgiven = FORGIVABLE if options.allows_duplicates else ()
    first = found.orderBy("difference", "topic", "partition", "offset").limit(_SHOWN)
    counted = Counter(_counted(standings, "standing") if material.odd else {})
    counted["found"] += material.found_by_sums
    return Findings(
        topics=tuple(sorted({one.topic for one in material.ranges})),
        partitions=len(material.ranges),
        records=sum(one.records for one in material.sums),
        batches=sum(one.batches for one in material.batch_sums),
        replicas=len(material.logs.replicas) if options.compares_replicas else 0,
        standings={standing: count for standing, count in counted.items() if count},
        differences=kinds,
        counting=sum(count for kind, count in kinds.items() if kind not in forgiven),
        first=tuple(first.collect()) if kinds else (),
        unchecked=tuple(_unchecked(material, counted)),
        table=table,
    )


def _counted(frame: DataFrame, column: str) -> dict[str, int]:
    return {row[column]: row["count"] for row in frame.groupBy(column).count().collect()}


def _unchecked(material: Material, standings: Mapping[str, int]) -> Iterator[str]:
    """Yield a sentence about each part of the data that was not checked."""
    yield from material.logs.unseen
    if standings["trimmed"]:
        yield f"{standings['trimmed']:,} acknowledged records are before the start of their logs"
    if standings["unchecked"]:
        yield f"{standings['unchecked']:,} acknowledged records of compacted topics have no key CRC"
    if material.compacted:
        yield f"offsets and replicas of compacted topics: {', '.join(material.compacted)}"
    if plain := sum(one.plain for one in material.sums):
        yield f"contents of {plain:,} acknowledged records that came without a CRC"
    if nameless := sum(one.nameless for one in material.sums):
        yield f"order of {nameless:,} acknowledged records without producer and sequence"
    if not material.options.compares_replicas:
        yield "replicas, which were not to be compared"
    if material.has_findings:
        unread = material.batches.where("finding = 'unread'").groupBy("broker_id", "path", "detail")
        summed = unread.agg(F.expr("sum(last_offset - base_offset + 1)").alias("offsets"))
        for row in summed.orderBy("broker_id", "path").limit(_LISTED_REASONS).collect():
            yield f"{row.offsets:,} offsets in {row.path} of broker {row.broker_id}: {row.detail}"
    if material.other_lines:
        yield f"{material.other_lines:,} lines of acknowledgements that are of other topics"
