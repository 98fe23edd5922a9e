"""Frames of a plan, from directories and replicas to moves, on small clusters compared whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from kraftjbod.balance.fair_shares import Goals
from kraftjbod.balance.planner import Tier
from kraftjbod.spark.plan import plan_frames
from kraftjbod.spark.plan.plan_frames import Drain
from kraftjbod.spark.plan.plan_tables import CROSSINGS, MOVES
from kraftjbod.spark.tables.schemas import LOG_DIRS, REPLICAS


def log_dirs(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    """Broker, rack, path, state, cordoned, total, free."""
    full = [(b, rack, path, "", state, *more) for b, rack, path, state, *more in rows]
    return spark.createDataFrame(full, LOG_DIRS)


def replicas(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    """Partition of topic t, broker, path, size, and optionally rate, future, brokers."""
    full = []
    for partition, broker, path, size, *more in rows:
        rate, is_future, brokers = (*more, *(0.0, False, None)[len(more) :])
        full.append(
            ("t", partition, broker, path, size, rate, False, is_future, brokers or [broker])
        )
    return spark.createDataFrame(full, REPLICAS)


def two_disks(spark: SparkSession) -> DataFrame:
    return log_dirs(
        spark,
        (1, None, "/a", "online", False, 1000, 500),
        (1, None, "/b", "online", False, 1000, 900),
    )


def test_what_may_be_done_with_a_directory(spark: SparkSession) -> None:
    told = log_dirs(
        spark,
        (1, "r", "/online", "online", False, 1000, 101),
        (1, "r", "/cordoned", "online", True, 1000, 100),
        (1, "r", "/full", "saturated", False, 1000, 0),
        (1, "r", "/hung", "stalled", False, 1000, 100),
        (1, "r", "/dead", "offline", False, 0, 0),
        (1, "r", "/drained", "online", False, 1000, 100),
        (2, "r", "/drained", "online", False, 1000, 100),
        (3, "r", "/any", "online", False, 1000, 100),
    )
    judged = plan_frames.directories(
        told, [Drain(broker_id=1, path="/drained"), Drain(broker_id=3)]
    )
    rows = judged.select("broker_id", "path", "room_bytes", "takes", "gives", "is_drained")
    assertDataFrameEqual(
        rows,
        spark.createDataFrame(
            [
                (1, "/online", 80, True, True, False),
                (1, "/cordoned", 0, False, True, False),
                (1, "/full", 0, False, True, False),
                (1, "/hung", 0, False, False, False),
                (1, "/dead", 0, False, False, False),
                (1, "/drained", 0, False, True, True),
                (2, "/drained", 80, True, True, False),
                (3, "/any", 0, False, True, True),
            ],
            rows.schema,
        ),
    )


def test_moves_under_way_count_where_they_go(spark: SparkSession) -> None:
    dirs = plan_frames.directories(two_disks(spark))
    found = replicas(
        spark,
        (0, 1, "/a", 100, 2.0),
        (0, 1, "/b", 30, 0.0, True),
        (1, 1, "/a", 50),
        (2, 1, "/b", 40, 0.0, True),
        (3, 1, "/a", 5, 0.0, False, [2, 3]),
        (4, 1, "/elsewhere", 5),
    )
    placed = plan_frames.placed(found, dirs)
    rows = placed.select("partition", "path", "size_bytes", "pending_bytes", "is_movable")
    assertDataFrameEqual(
        rows,
        spark.createDataFrame(
            [
                (0, "/b", 100, 70, False),
                (1, "/a", 50, 0, True),
                (2, "/b", 40, 0, False),
                (3, "/a", 5, 0, False),
                (4, "/elsewhere", 5, 0, False),
            ],
            rows.schema,
        ),
    )
    sums = plan_frames.sums(dirs, placed).select(
        "path", "room_bytes", "size_bytes", "fixed_bytes", "replicas", "largest_bytes", "write_rate"
    )
    assertDataFrameEqual(
        sums,
        spark.createDataFrame(
            [("/a", 400, 55, 5, 2, 50, 0.0), ("/b", 650, 140, 140, 2, 100, 2.0)], sums.schema
        ),
    )


def test_directories_of_one_broker_are_evened_out(spark: SparkSession) -> None:
    dirs = plan_frames.directories(two_disks(spark))
    placed = plan_frames.placed(replicas(spark, *((n, 1, "/a", 10) for n in range(4))), dirs)
    sums = plan_frames.sums(dirs, placed)
    moves = plan_frames.moves(placed, sums, Goals())
    ends = moves.select("from_broker", "from_path", "to_broker", "to_path", "size_bytes", "tier")
    expected = [(1, "/a", 1, "/b", 10, int(Tier.BYTES))] * 2
    assertDataFrameEqual(ends, spark.createDataFrame(expected, ends.schema))
    after = plan_frames.plan_dirs(sums, moves).select(
        "path", "bytes_before", "bytes_after", "replicas_before", "replicas_after"
    )
    assertDataFrameEqual(
        after, spark.createDataFrame([("/a", 40, 20, 4, 2), ("/b", 0, 20, 0, 2)], after.schema)
    )


def test_each_partition_is_a_candidate_on_one_broker(spark: SparkSession) -> None:
    dirs = plan_frames.directories(
        log_dirs(spark, *((b, None, "/a", "online", False, 1000, 900) for b in range(1, 5)))
    )
    everywhere = [(n, b, "/a", 10, 0.0, False, [1, 2, 3]) for n in range(40) for b in (1, 2, 3)]
    placed = plan_frames.placed(replicas(spark, *everywhere), dirs)
    usual = plan_frames.candidates(placed, [1, 2], [], turn=0).collect()
    assert sorted(row.partition for row in usual) == list(range(40))
    assert {row.broker_id for row in usual} == {1, 2}
    other = plan_frames.candidates(placed, [1, 2], [], turn=1).collect()
    assert {(r.partition, r.broker_id) for r in usual} != {
        (r.partition, r.broker_id) for r in other
    }
    urgent = plan_frames.candidates(placed, [1, 2], [2], turn=0).collect()
    assert {row.broker_id for row in urgent} == {2} and len(urgent) == 40
    crossing = spark.createDataFrame([("t", 7, 1, 4, 10, 0.0, 1, 1.5, 0)], CROSSINGS)
    left = plan_frames.without(plan_frames.candidates(placed, [1, 2], [], turn=0), crossing)
    assert sorted(row.partition for row in left.collect()) == [n for n in range(40) if n != 7]


def test_a_crossing_gets_a_directory_and_the_turn_of_the_one_it_replaces(
    spark: SparkSession,
) -> None:
    dirs = plan_frames.directories(
        log_dirs(
            spark,
            (1, None, "/a", "online", False, 1000, 900),
            (2, None, "/a", "online", False, 1000, 900),
            (3, None, "/a", "online", False, 1000, 900),
            (3, None, "/b", "online", False, 1000, 900),
            (4, None, "/a", "online", True, 1000, 900),
        )
    )
    found = [(n, b, "/a", 10, 1.0, False, [5, 1, 2]) for n in (0, 1) for b in (1, 2)]
    placed = plan_frames.placed(replicas(spark, *found, (9, 3, "/a", 10)), dirs)
    sums = plan_frames.sums(dirs, placed)
    crossings = spark.createDataFrame(
        [("t", 0, 1, 3, 10, 1.0, 1, 1.5, 0), ("t", 1, 2, 4, 10, 1.0, 1, 1.5, 0)], CROSSINGS
    )
    moves = plan_frames.moves(placed, sums, Goals(), crossings)
    expected = [("t", 0, 1, "/a", 3, "/b", 10, 1.0, 1, 1.5, 0)]
    assertDataFrameEqual(moves, spark.createDataFrame(expected, MOVES))
    told = plan_frames.reassigned(placed, moves)
    assertDataFrameEqual(
        told,
        spark.createDataFrame(
            [("t", 0, [5, 3, 2], [None, "/b", "/a"], [5, 1, 2], [None, "/a", "/a"])], told.schema
        ),
    )


def ranked(spark: SparkSession, rows: Iterable[Sequence[Any]]) -> DataFrame:
    """Partition, ends, size, tier, score, step."""
    full = [
        ("t", p, 1, f"/{ends[0]}", 1, f"/{ends[1]}", size, 0.0, int(tier), score, s)
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
    assert kept(None, 30) == [1, 2, 3], "what is larger than all does not count"
    assert kept(1, 40) == [3]

    def of_a_swap(most_bytes: int) -> list[int]:
        swap = [(0, "ab", 300, Tier.BYTES, 1.2, 0), (1, "ba", 200, Tier.BYTES, 1.2, 0)]
        rows = plan_frames.limited(ranked(spark, swap), None, most_bytes).collect()
        return sorted(row.partition for row in rows)

    assert of_a_swap(500) == [0, 1]
    assert of_a_swap(250) == [], "one half alone would go into the fuller directory"
