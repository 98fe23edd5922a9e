"""WIRE. Reads the records of audited topics, except unreadable ones.

A reader cannot pass a damaged batch if no other in-sync replica has the partition. The audit finds
such places in the replicas' batches and reads around them, so that records after the damage are
audited too. Acknowledged records within the damage count as missing.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from kraftjbod.core.errors import OperatingError
from kraftjbod.spark.audit.log_ranges import ClusterLogs
from kraftjbod.spark.tables.schemas import AUDITED_COLUMNS

#: A partition with more damaged places is not read, because each place costs another query.
_MOST_PIECES: Final = 64


class Piece(NamedTuple):
    """Offsets of one partition from ``start`` (inclusive) to ``end`` (exclusive)."""

    topic: str
    partition: int
    start: int
    end: int


def damaged_leaders(batches: DataFrame) -> list[Piece]:
    """Return the damaged ranges of leaders, in order.

    :param batches: ``REPLICA_BATCHES``.
    """
    rows = batches.where("is_leader and finding = 'damaged'").orderBy(
        "topic", "partition", "base_offset"
    )
    found = rows.select("topic", "partition", "base_offset", "last_offset").collect()
    return [Piece(r.topic, r.partition, r.base_offset, r.last_offset + 1) for r in found]


def sound_pieces(logs: ClusterLogs, damages: Iterable[Piece]) -> list[Piece]:
    """Return the readable pieces of each log.

    A damaged log is read completely if another in-sync replica could become the leader.

    :raises OperatingError: a partition is damaged in too many places; names it.
    """
    in_sync = Counter((replica.topic, replica.partition) for replica in logs.replicas)
    holes: dict[tuple[str, int], list[Piece]] = defaultdict(list)
    for damage in damages:
        if in_sync[damage.topic, damage.partition] < 2:
            holes[damage.topic, damage.partition].append(damage)
    pieces: list[Piece] = []
    for one in logs.ranges:
        if one.log_start is None or one.log_end is None:
            continue
        own = sorted(holes[one.topic, one.partition])
        if len(own) >= _MOST_PIECES:
            raise OperatingError(
                f"{one.topic}-{one.partition} is damaged in {len(own)} places and has no other "
                "replica in sync: restore it, or audit without it"
            )
        start = one.log_start
        for hole in own:
            pieces.append(Piece(one.topic, one.partition, start, hole.start))
            start = max(start, hole.end)
        pieces.append(Piece(one.topic, one.partition, start, one.log_end))
    return [piece for piece in pieces if piece.start < piece.end]


def read_records(
    spark: SparkSession,
    pieces: Sequence[Piece],
    bootstrap_servers: str,
    kafka: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the records of all ``pieces`` as ``AUDITED_COLUMNS``.

    :param kafka: options ``kafka.NAME`` of the source.
    """
    options = {**(kafka or {}), "kafka.bootstrap.servers": bootstrap_servers}
    # One query reads one piece of each partition at most.
    rounds: list[dict[tuple[str, int], Piece]] = []
    for piece in pieces:
        place = (piece.topic, piece.partition)
        fitting = next((taken for taken in rounds if place not in taken), None)
        if fitting is None:
            fitting = {}
            rounds.append(fitting)
        fitting[place] = piece
    empty = spark.createDataFrame([], AUDITED_COLUMNS)
    frames = [_read(spark, taken.values(), options) for taken in rounds]
    return reduce(DataFrame.unionByName, frames) if frames else empty


def _read(spark: SparkSession, pieces: Iterable[Piece], options: Mapping[str, str]) -> DataFrame:
    partitions: dict[str, list[int]] = defaultdict(list)
    starts: dict[str, dict[str, int]] = defaultdict(dict)
    ends: dict[str, dict[str, int]] = defaultdict(dict)
    for topic, partition, start, end in pieces:
        partitions[topic].append(partition)
        starts[topic][str(partition)] = start
        ends[topic][str(partition)] = end
    return (
        spark.read.format("kraftjbod")
        .options(**options)
        .option("assign", json.dumps(partitions))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        # The audit reports lost records itself, so the reader must not fail.
        .option("failOnDataLoss", "false")
        .option("columns", ",".join(AUDITED_COLUMNS.names))
        .load()
    )
