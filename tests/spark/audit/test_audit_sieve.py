"""The sums of an audit pass only sound ranges: rules applied to all ranges find the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from kraftjbod.spark.audit import audit_frames as audit
from kraftjbod.spark.audit import replica_frames
from kraftjbod.spark.audit.audit_job import judged_differences, judged_standings
from kraftjbod.spark.audit.audit_material import AuditOptions, Material
from kraftjbod.spark.audit.audit_sieve import (
    BatchSums,
    LogRange,
    Stretch,
    StretchSums,
    ranges_from_first_of,
)
from kraftjbod.spark.audit.log_ranges import ClusterLogs, ReplicaPlace
from kraftjbod.spark.audit.replica_batches import ranges_frame, replica_ranges
from kraftjbod.spark.session.job import Job
from kraftjbod.spark.tables.schemas import ACKNOWLEDGED_LINES, AUDITED_RECORDS, REPLICA_BATCHES

pytestmark = pytest.mark.timeout(900)

LENGTH = 10
BATCH = 3
# The number of partitions that are altered in each way, each in another place.
TIMES = 4


@dataclass
class Log:
    """One partition: rows by offset, which are altered in place."""

    partition: int
    start: int
    end: int
    topic: str = "t"
    is_known: bool = True
    has_leader: bool = True
    # (offset, producer, sequence, crc) and (offset, crc).
    claims: list[list[Any]] = field(default_factory=list)
    records: list[list[Any]] = field(default_factory=list)
    # (broker, base, last, crc, is control, base sequence).
    batches: list[list[Any]] = field(default_factory=list)


def sound(partition: int, draw: random.Random, topic: str = "t") -> Log:
    start = draw.choice([0, 3, LENGTH])
    log = Log(partition, start, start + draw.choice([LENGTH, 25, 3 * LENGTH]), topic)
    for sequence, offset in enumerate(range(start, log.end)):
        log.claims.append([offset, draw.choice("ab"), sequence, offset])
        log.records.append([offset, offset])
    for base in range(start, log.end, BATCH):
        last = min(base + BATCH, log.end) - 1
        log.batches += [[broker, base, last, base, False, base] for broker in (1, 2, 3)]
    return log


def hurts(draw: random.Random) -> dict[str, Callable[[Log], object]]:
    """Return all possible defects, and changes that only look like defects."""

    def one(rows: list[Any]) -> Any:
        return rows[draw.randrange(len(rows))]

    def claim(log: Log, **changes: Any) -> None:
        names = ("offset", "producer", "sequence", "crc")
        old = dict(zip(names, one(log.claims), strict=True))
        log.claims.append(list({**old, **changes}.values()))

    def set_in(rows: list[Any], column: int, value: Any) -> None:
        one(rows)[column] = value

    def swap(log: Log) -> None:
        first, second = draw.sample([row for row in log.claims if row[1] == "a"], 2)
        first[2], second[2] = second[2], first[2]

    def cut(log: Log) -> None:
        log.records = [row for row in log.records if row[0] < log.start + LENGTH // 2]

    def lose_all(log: Log) -> None:
        log.records, log.claims = [], []

    def be_control(log: Log) -> None:
        base = one(log.batches)[1]
        for row in log.batches:
            row[4] = row[4] or row[1] == base
        ends = range(base, base + BATCH)
        log.records = [row for row in log.records if row[0] not in ends]
        log.claims = [row for row in log.claims if row[0] not in ends]

    return {
        "nothing": lambda log: None,
        "record gone": lambda log: log.records.remove(one(log.records)),
        "tail gone": cut,
        "all gone": lose_all,
        "record changed": lambda log: set_in(log.records, 1, -1),
        "record without key": lambda log: set_in(log.records, 1, None),
        "record twice": lambda log: log.records.append(list(one(log.records))),
        "record beyond": lambda log: log.records.append([log.end, log.end]),
        "claim gone": lambda log: log.claims.remove(one(log.claims)),
        "claim without crc": lambda log: set_in(log.claims, 3, None),
        "claim without name": lambda log: set_in(log.claims, 1, None),
        "claim twice": lambda log: log.claims.append(list(one(log.claims))),
        "claim contested": lambda log: claim(log, producer="c", sequence=1),
        "claim beyond": lambda log: claim(log, offset=log.end + 1, sequence=999),
        "claim before": lambda log: claim(log, offset=log.start - 1, sequence=-1),
        "claim elsewhere": lambda log: claim(log, offset=log.start),
        "order": swap,
        "unknown": lambda log: setattr(log, "is_known", False),
        "leaderless": lambda log: setattr(log, "has_leader", False),
        "control": be_control,
        "follower differs": lambda log: set_in(log.batches, 3, -1),
        "follower lacks": lambda log: log.batches.remove(one(log.batches)),
        "sequence again": lambda log: set_in(log.batches, 5, 0),
    }


def material(spark: SparkSession, logs: list[Log], options: AuditOptions) -> Material:
    """Return the input as the job reads it."""
    ranges = tuple(
        LogRange(
            *(log.topic, log.partition),
            *((log.start, log.end) if log.has_leader else (None, None)),
            log.topic == "compacted",
        )
        for log in logs
        if log.is_known
    )
    replicas = tuple(
        ReplicaPlace(one.topic, one.partition, broker, f"/d{broker}", broker == 1)
        for one in ranges
        if one.log_end is not None
        for broker in (1, 2, 3)
    )
    found = ClusterLogs(ranges=ranges, replicas=replicas, unseen=())
    lines = spark.createDataFrame(
        [
            (log.topic, log.partition, offset, who, number, crc, crc, None, None, None)
            for log in logs
            for offset, who, number, crc in log.claims
        ],
        ACKNOWLEDGED_LINES,
    )
    records = spark.createDataFrame(
        [
            (log.topic, log.partition, offset, crc, crc, offset)
            for log in logs
            if log.is_known and log.has_leader
            for offset, crc in log.records
        ],
        AUDITED_RECORDS,
    )
    batches = spark.createDataFrame(
        [
            (
                *(log.topic, log.partition, broker, f"/d{broker}", broker == 1, base, last),
                *(None, None, last - base + 1, crc, is_control, 7, 0, sequence),
            )
            for log in logs
            if log.is_known and log.has_leader
            for broker, base, last, crc, is_control, sequence in log.batches
        ],
        REPLICA_BATCHES,
    )
    places = audit.side_by_side(audit.acknowledgements(lines), records, stretch=LENGTH)
    sums = [StretchSums(*row) for row in audit.stretch_sums(places).collect()]
    of_batches = replica_frames.batch_sums(batches, stretch=LENGTH).collect()
    disorder = audit.line_sums(lines).where("disorderly > 0").collect()
    return Material(
        options=options,
        logs=found,
        places=places.persist(),
        sums=sums,
        ranges=ranges_from_first_of(ranges, sums) if options.is_of_table else ranges,
        batches=batches,
        batch_sums=[BatchSums(*row) for row in of_batches],
        replica_ranges=ranges_frame(spark, replica_ranges(found)),
        disorderly=frozenset((row.topic, row.partition) for row in disorder),
        length=LENGTH,
    )


def without_sieve(sieved: Material) -> Material:
    """Return the same input with each rule applied to all ranges."""
    whole = replace(sieved, disorderly=frozenset(one.place[:2] for one in sieved.sums))
    last = max(one.stretch for one in sieved.sums)
    logs = {
        *(one.place[:2] for one in sieved.sums),
        *((r.topic, r.partition) for r in sieved.ranges),
    }
    expected = {Stretch(*log, number) for log in logs for number in range(last + 1)}
    whole.__dict__["odd"] = frozenset(expected | {one.place for one in sieved.sums})
    whole.__dict__["odd_replicas"] = frozenset((r.topic, r.partition) for r in sieved.ranges)
    return whole


def test_sieve_passes_no_range_with_a_finding(spark: SparkSession) -> None:
    draw = random.Random(7)
    logs: list[Log] = []
    for hurt in hurts(draw).values():
        for topic in (*["t"] * TIMES, "compacted"):
            log = sound(len(logs), draw, topic)
            hurt(log)
            logs.append(log)
    options = AuditOptions(
        compares_replicas=True, records_are_unique=False, allows_duplicates=False, table="ingested"
    )
    sieved = material(spark, logs, options)
    whole = without_sieve(sieved)
    job = Job(spark=spark, tables="unused")
    few = judged_standings(job, sieved).persist()
    everything = judged_standings(job, whole).persist()
    standings, all_standings = rows(few), rows(everything)
    assert not_found(standings) == not_found(all_standings)
    found = sieved.found_by_sums + len(standings) - len(not_found(standings))
    assert found == len(all_standings) - len(not_found(all_standings)) > 0
    differences = rows(judged_differences(job, sieved, few))
    assert differences == rows(judged_differences(job, whole, everything))
    assert {one["difference"] for one in differences} == {
        *("missing", "changed", "duplicate", "out_of_order", "offset_gap", "replica_differs"),
        "unreadable",
    }
    # Sound ranges pass; of the others, only the altered stretch is examined.
    hurt_in = {one[:2] for one in sieved.odd} | sieved.odd_replicas | sieved.disorderly
    assert not hurt_in & {("t", partition) for partition in range(TIMES)}
    assert 0 < len(sieved.odd) < len(sieved.sums) / 2


def rows(frame: DataFrame) -> list[Row]:
    return sorted(frame.collect(), key=str)


def not_found(standings: list[Row]) -> list[Row]:
    return [one for one in standings if one["standing"] != "found"]
