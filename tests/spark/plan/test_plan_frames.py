"""Frames of a plan, from directories and replicas to moves, on small clusters compared whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from kraftjbod.balance.fair_shares import Goals
from kraftjbod.balance.group_plans import by_broker
from kraftjbod.balance.placement import empty_dirs
from kraftjbod.balance.planner import Tier
from kraftjbod.spark.plan import plan_frames
from kraftjbod.spark.plan.plan_tables import CROSSINGS, MOVES
from kraftjbod.spark.tables.schemas import REPLICAS
from tests.unit.balance.clusters import log_dir


def replicas(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    """Partition of topic t, broker, path, size, and optionally rate, future, brokers."""
    full = []
    for partition, broker, path, size, *more in rows:
        rate, is_future, brokers = (*more, *(0.0, False, None)[len(more) :])
        full.append(
            ("t", partition, broker, path, size, rate, False, is_future, brokers or [broker])
        )
    return spark.createDataFrame(full, REPLICAS)


def test_move_to_another_broker_gets_a_directory_there_and_keeps_its_rank(
    spark: SparkSession,
) -> None:
    dirs = by_broker(
        empty_dirs(
            [
                *(log_dir(broker, "/a") for broker in (1, 2, 3)),
                log_dir(3, "/b"),
                log_dir(4, "/a", is_cordoned=True),
            ]
        )
    )
    found = [(n, b, "/a", 10, 1.0, False, [5, 1, 2]) for n in (0, 1) for b in (1, 2)]
    placed = plan_frames.placed(replicas(spark, *found, (9, 3, "/a", 10)), dirs)
    held = [plan_frames.dir_sums(row.asDict()) for row in plan_frames.sums(placed, dirs).collect()]
    crossings = spark.createDataFrame(
        [("t", 0, 1, 3, 10, 1.0, 1, 1.5, 0), ("t", 1, 2, 4, 10, 1.0, 1, 1.5, 0)], CROSSINGS
    )
    moves = plan_frames.moves(placed, {**dirs, **by_broker(held)}, Goals(), crossings)
    expected = [("t", 0, 1, "/a", 3, "/b", 10, 1.0, 1, 1.5, 0, 1)]
    assertDataFrameEqual(moves, spark.createDataFrame(expected, MOVES))
    [row] = plan_frames.touched(placed, moves).collect()
    assert (row.topic, row.partition, row.brokers) == ("t", 0, [5, 1, 2])
    assert row.paths == {1: "/a", 2: "/a"}
    assert row.moves == {1: (3, "/b"), 2: None}


def ranked(spark: SparkSession, rows: Iterable[Sequence[Any]]) -> DataFrame:
    """Partition, ends, size, tier, score, step."""
    full = [
        (
            *("t", p, 1, f"/{ends[0]}", 1, f"/{ends[1]}", size, 0.0, int(tier), score, s),
            0 if tier is Tier.DRAIN else 2,
        )
        for p, ends, size, tier, score, s in rows
    ]
    return spark.createDataFrame(full, MOVES)


def test_limits_take_the_best_moves_and_no_half_swaps(spark: SparkSession) -> None:
    moves = ranked(
        spark,
        [
            (0, "ab", 50, Tier.BYTES, 1.2, 4),
            (1, "cd", 10, Tier.BYTES, 1.5, 2),
            (2, "dc", 10, Tier.BYTES, 1.5, 2),
            (3, "eb", 10, Tier.DRAIN, 9.0, 1),
            (4, "ef", 500, Tier.DRAIN, 9.0, 0),
        ],
    )

    def kept(most_moves: int | None, most_bytes: int | None) -> list[int]:
        rows = plan_frames.limited(moves, most_moves, most_bytes).collect()
        return sorted(row.partition for row in rows)

    assert kept(None, None) == [0, 1, 2, 3, 4]
    assert kept(2, None) == [3, 4]
    assert kept(3, None) == [3, 4], "one half of a swap"
    assert kept(1, None) == [4], "a swap is two"
    assert kept(4, None) == [1, 2, 3, 4]
    assert kept(None, 30) == [1, 2, 3], "a replica larger than the limit is ignored"
    assert kept(1, 40) == [3]

    def of_a_swap(most_bytes: int) -> list[int]:
        swap = [(0, "ab", 300, Tier.BYTES, 1.2, 0), (1, "ba", 200, Tier.BYTES, 1.2, 0)]
        rows = plan_frames.limited(ranked(spark, swap), None, most_bytes).collect()
        return sorted(row.partition for row in rows)

    assert of_a_swap(500) == [0, 1]
    assert of_a_swap(250) == [], "one half alone would go into the fuller directory"
