"""WIRE. The input of an audit: acknowledgements, records and batches, each read once, and their
sums.

* Acknowledgements and records are joined by stretches of offsets, in one shuffle, and persisted on
  the executors' disks. Later rules then see the same data as the sums.
* The driver holds a few numbers per stretch, and no rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.core.errors import ConfigError
from kraftjbod.spark.audit import audit_frames as audit
from kraftjbod.spark.audit import replica_frames
from kraftjbod.spark.audit.audit_sieve import (
    BatchSums,
    LogRange,
    Partition,
    Stretch,
    StretchSums,
    odd_replicas,
    odd_stretches,
    ranges_from_first_of,
)
from kraftjbod.spark.audit.audited_topics import damaged_leaders, read_records, sound_pieces
from kraftjbod.spark.audit.log_ranges import ClusterLogs, describe_logs, log_starts
from kraftjbod.spark.audit.replica_batches import (
    ranges_frame,
    read_replica_batches,
    replica_ranges,
    tasks_for,
)
from kraftjbod.spark.session.job import Job
from kraftjbod.spark.tables.schemas import (
    ACKNOWLEDGED_LINES,
    INGESTED,
    LOG_RANGES,
    REPLICA_BATCHES,
    STRETCH_SUMS,
)

_JSON_ENDINGS: Final = (".json", ".jsonl", ".ndjson")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """The options of an audit.

    ``compares_replicas``: compare the batches of all in-sync replicas. ``records_are_unique``:
    records with the same content are differences. ``allows_duplicates``: repeated and misordered
    records do not cause exit code 1. ``table`` names the table of ``ingest`` to audit; None for the
    topics themselves. ``kafka`` has the options ``kafka.NAME`` of the source.
    """

    compares_replicas: bool
    records_are_unique: bool
    allows_duplicates: bool
    #: Name of a table that ``ingest`` wrote, to be audited instead of the topics.
    table: str | None
    #: Options ``kafka.NAME`` of the source.
    kafka: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_of_table(self) -> bool:
        return self.table is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """The acknowledgements of producers for the audited topics; ``lines`` are
    ``ACKNOWLEDGED_LINES``.

    ``disorderly`` are the partitions with lines that are disorderly in
    :func:`audit_frames.line_sums`. ``others`` is the number of lines of other topics.
    """

    lines: DataFrame
    topics: list[str]
    #: Partitions in which the lines of a producer are not in order.
    disorderly: frozenset[Partition]
    #: Number of lines about other topics.
    others: int


@dataclass(frozen=True, kw_only=True)
class Material:
    """The data that one audit compares: acknowledgements, records, batches of replicas, and sums of
    each.

    Sums are computed per stretch: a range of ``length`` offsets of a partition. Only stretches
    whose sums leave a doubt are compared record by record.

    ``places`` are ``AUDITED_PLACES``, ``batches`` are ``REPLICA_BATCHES``, and ``replica_ranges``
    are ``REPLICA_RANGES``. ``other_lines`` is the number of acknowledgement lines of other topics.
    """

    options: AuditOptions
    logs: ClusterLogs
    #: Acknowledgements and records side by side.
    places: DataFrame
    sums: Sequence[StretchSums]
    #: The offsets that are expected.
    ranges: Sequence[LogRange]
    #: Batches of all in-sync replicas; empty if replicas are not compared.
    batches: DataFrame
    batch_sums: Sequence[BatchSums]
    replica_ranges: DataFrame
    disorderly: frozenset[Partition]
    other_lines: int = 0
    #: Length of a stretch, in offsets.
    length: int = audit.GAP_STRETCH

    @cached_property
    def odd(self) -> frozenset[Stretch]:
        """The stretches to compare record by record, because their sums do not prove that all is
        well."""
        control = {one.place: one.control for one in self.batch_sums}
        return frozenset(odd_stretches(self.sums, self.ranges, control, length=self.length))

    @cached_property
    def odd_stretches(self) -> DataFrame:
        spark = self.places.sparkSession
        return spark.createDataFrame(sorted(self.odd), StructType(STRETCH_SUMS.fields[:3]))

    @cached_property
    def odd_replicas(self) -> frozenset[Partition]:
        """The partitions whose replicas have to be compared batch by batch."""
        asked = [(replica.topic, replica.partition) for replica in self.logs.replicas]
        return frozenset(odd_replicas(self.batch_sums, asked, passed_over=self.compacted))

    @property
    def found_by_sums(self) -> int:
        """Number of acknowledged records in stretches that the sums clear; all of them are
        found."""
        return sum(one.acknowledged for one in self.sums if one.place not in self.odd)

    @property
    def has_findings(self) -> bool:
        """Whether any replica is damaged or was not read completely."""
        return any(one.findings for one in self.batch_sums)

    @property
    def compacted(self) -> list[str]:
        return sorted({one.topic for one in self.ranges if one.is_compacted})

    @property
    def ranges_frame(self) -> DataFrame:
        return self.places.sparkSession.createDataFrame(list(self.ranges), LOG_RANGES)

    def rows(self, *, acknowledged: bool) -> DataFrame:
        """Return the rows of ``places`` that are acknowledgements, or if ``acknowledged`` is False
        those that are records of the logs.
        """
        half = F.col("is_acknowledged")
        return self.places.where(half if acknowledged else ~half)

    def odd_rows(self, *, acknowledged: bool) -> DataFrame:
        """Return the rows of :meth:`rows` that are in the odd stretches."""
        odd = F.broadcast(self.odd_stretches)
        return self.rows(acknowledged=acknowledged).join(odd, list(audit.STRETCH), "left_semi")

    def of_partitions(self, frame: DataFrame, partitions: frozenset[Partition]) -> DataFrame:
        """Return the rows of ``frame`` that belong to ``partitions``."""
        place = StructType(LOG_RANGES.fields[:2])
        named = frame.sparkSession.createDataFrame(sorted(partitions), place)
        return frame.join(F.broadcast(named), list(audit.PARTITION), "left_semi")


def read_claims(job: Job, path: str | None, topics: str | None) -> Claims:
    """Read the acknowledgements. Runs a Spark job.

    :param path: a Parquet table or a file of JSON lines; None for no acknowledgements.
    :param topics: names with commas between; None for all topics in the acknowledgements.
    :raises ConfigError: required columns or values are missing, or no topic is named.
    """
    lines = _lines(job, path)
    sums = audit.line_sums(lines).collect()
    lacking = sum(row.lacking for row in sums)
    if lacking:
        raise ConfigError(f"{path}: {lacking} lines lack one of {', '.join(audit.PLACE)}")
    if topics is None:
        names = {row.topic for row in sums}
    else:
        names = set(filter(None, (part.strip() for part in topics.split(","))))
    if not names:
        raise ConfigError("no topic to audit: name some with --topics or --acknowledged")
    return Claims(
        lines=lines.where(F.col("topic").isin(sorted(names))),
        topics=sorted(names),
        disorderly=frozenset(
            (row.topic, row.partition) for row in sums if row.disorderly and row.topic in names
        ),
        others=sum(row.lines for row in sums if row.topic not in names),
    )


def _lines(job: Job, path: str | None) -> DataFrame:
    if path is None:
        return job.spark.createDataFrame([], ACKNOWLEDGED_LINES)
    if path.rstrip("/").endswith(_JSON_ENDINGS):
        return job.spark.read.schema(ACKNOWLEDGED_LINES).option("mode", "FAILFAST").json(path)
    lines = job.spark.read.parquet(path)
    lacking = [column for column in audit.PLACE if column not in lines.columns]
    if lacking:
        raise ConfigError(f"{path} has no column {', '.join(lacking)}")
    return audit.cast_to(lines, ACKNOWLEDGED_LINES)


def read_material(
    job: Job, keep: DiskFrames, claims: Claims, bootstrap_servers: str, options: AuditOptions
) -> Material:
    """Read the batches of replicas and the records, up to the current log ends, and compute the
    sums. Runs Spark jobs.

    :raises OperatingError: a topic does not exist, no broker responds, or a log is damaged in 64 or
        more places and has no other in-sync replica.
    """
    logs = _describe(bootstrap_servers, claims.topics)
    asked = replica_ranges(logs) if options.compares_replicas else []
    of_replicas = ranges_frame(job.spark, asked)
    batches, batch_sums = job.spark.createDataFrame([], REPLICA_BATCHES), []
    if asked:
        tasks = tasks_for(job.spark, len(asked))
        batches = keep(read_replica_batches(of_replicas, bootstrap_servers, tasks=tasks))
        batch_sums = [BatchSums(*row) for row in replica_frames.batch_sums(batches).collect()]
        read = sum(one.batches for one in batch_sums)
        job.step(f"read {read:,} batches of {len(logs.replicas):,} replicas")
    if options.table is not None:
        table = job.spark.read.schema(INGESTED).parquet(job.table(options.table))
        records = table.where(F.col("topic").isin(claims.topics))
    else:
        is_damaged = any(one.findings for one in batch_sums)
        pieces = sound_pieces(logs, damaged_leaders(batches) if is_damaged else [])
        records = read_records(job.spark, pieces, bootstrap_servers, options.kafka)
    acked = audit.acknowledgements(claims.lines)
    places = keep(audit.side_by_side(acked, audit.audited_records(records)))
    sums = [StretchSums(*row) for row in audit.stretch_sums(places).collect()]
    counts = f"{sum(one.records for one in sums):,} records of {len(logs.ranges):,} partitions"
    job.step(f"read {counts}")
    return Material(
        options=options,
        logs=logs,
        places=places,
        sums=sums,
        ranges=_ranges(logs, bootstrap_servers, sums, from_table=options.is_of_table),
        batches=batches,
        batch_sums=batch_sums,
        replica_ranges=of_replicas,
        disorderly=claims.disorderly,
        other_lines=claims.others,
    )


def _describe(bootstrap_servers: str, topics: Sequence[str]) -> ClusterLogs:
    async def describe() -> ClusterLogs:
        async with ClusterClient(bootstrap_servers, client_id="kraftjbod-audit") as client:
            return await describe_logs(client, topics)

    return asyncio.run(describe())


def _ranges(
    logs: ClusterLogs, bootstrap_servers: str, sums: Sequence[StretchSums], *, from_table: bool
) -> list[LogRange]:
    """Return the offsets that the audit expects to exist.

    :param from_table: the records are those of a table. Otherwise retention may have deleted some
        while they were read, so the log starts are queried again.
    """
    if from_table:
        return ranges_from_first_of(logs.ranges, sums)

    async def ask() -> dict[Partition, int]:
        async with ClusterClient(bootstrap_servers, client_id="kraftjbod-audit") as client:
            await client.retry(client.refresh_metadata)
            return await log_starts(client, logs.ranges)

    starts = asyncio.run(ask())

    def since(one: LogRange) -> LogRange:
        if one.log_start is None or one.log_end is None:
            return one
        start = starts.get((one.topic, one.partition), one.log_start)
        return one._replace(log_start=min(max(one.log_start, start), one.log_end))

    return [since(one) for one in logs.ranges]


@contextmanager
def disk_frames() -> Iterator[DiskFrames]:
    """Context with a :class:`DiskFrames`, whose frames are unpersisted at its end."""
    keep = DiskFrames()
    try:
        yield keep
    finally:
        keep.unpersist()


class DiskFrames:
    """Frames on the executors' disks. Call it to persist a frame when Spark first computes the
    frame."""

    def __init__(self) -> None:
        self._frames: list[DataFrame] = []

    def __call__(self, frame: DataFrame) -> DataFrame:
        self._frames.append(frame.persist(StorageLevel.DISK_ONLY))
        return frame

    def unpersist(self) -> None:
        for frame in self._frames:
            frame.unpersist()
