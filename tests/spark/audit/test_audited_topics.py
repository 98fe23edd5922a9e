"""The records of topics that an audit reads; test_audit_job.py reads from a real cluster."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from kraftjbod.core.errors import OperatingError
from kraftjbod.spark.audit.audit_sieve import LogRange
from kraftjbod.spark.audit.audited_topics import Piece, damaged_leaders, read_records, sound_pieces
from kraftjbod.spark.audit.log_ranges import ClusterLogs, ReplicaPlace
from kraftjbod.spark.tables.schemas import AUDITED_COLUMNS
from tests.spark.audit.test_replica_frames import batch, batches

LOGS = ClusterLogs(
    ranges=(
        LogRange("single", 0, 5, 30, False),
        LogRange("single", 1, 0, 0, False),
        LogRange("triple", 0, 0, 30, False),
        LogRange("gone", 0, None, None, False),
    ),
    replicas=(
        ReplicaPlace("single", 0, 1, "/d", True),
        ReplicaPlace("triple", 0, 1, "/d", True),
        ReplicaPlace("triple", 0, 2, "/d", False),
    ),
    unseen=(),
)


def test_sound_pieces_exclude_damage_of_partitions_with_one_replica() -> None:
    damages = [
        Piece("single", 0, 20, 30),
        Piece("single", 0, 10, 12),
        Piece("single", 0, 12, 13),
        Piece("triple", 0, 10, 12),
    ]
    assert sound_pieces(LOGS, damages) == [
        Piece("single", 0, 5, 10),
        Piece("single", 0, 13, 20),
        Piece("triple", 0, 0, 30),
    ]


def test_sound_pieces_of_partition_with_too_many_damages_are_refused() -> None:
    damages = [Piece("single", 0, n, n + 1) for n in range(64)]
    with pytest.raises(OperatingError, match="single-0 is damaged in 64 places"):
        sound_pieces(LOGS, damages)


def test_damaged_leaders_exclude_followers_and_unread_batches(spark: SparkSession) -> None:
    held = batches(
        spark,
        batch(1, 0, 4),
        batch(1, 5, 9, finding="damaged"),
        batch(1, 10, 12, finding="unread"),
        batch(2, 0, 4, finding="damaged"),
    )
    assert damaged_leaders(held) == [Piece("t", 0, 5, 10)]


def test_read_records_of_no_pieces_returns_an_empty_frame(spark: SparkSession) -> None:
    empty = read_records(spark, [], "localhost:1")
    assert empty.schema == AUDITED_COLUMNS and empty.count() == 0
