"""Every frame of a plan ends in its schema."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from kraftjbod.balance.group_plans import Move
from kraftjbod.spark.plan.plan_tables import CROSSINGS, MOVES, SENT, as_table
from kraftjbod.spark.tables.schemas import PLAN_MOVES


def test_as_table_orders_casts_and_selects_columns(spark: SparkSession) -> None:
    loose = spark.range(1).select(
        F.lit("more").alias("extra"),
        F.lit(3).alias("replicas"),
        F.lit("7").alias("to_broker"),
        F.lit(6).alias("from_broker"),
        F.lit(1).alias("write_rate"),
        F.lit(5.0).alias("size_bytes"),
    )
    assertDataFrameEqual(as_table(loose, SENT), spark.createDataFrame([(6, 7, 5, 1.0, 3)], SENT))


def test_moves_schema_has_the_columns_of_written_moves_then_the_rank() -> None:
    rank = ["tier", "score", "step"]
    assert MOVES.fieldNames() == [*PLAN_MOVES.fieldNames(), *rank, "phase"]
    assert MOVES.fieldNames() == list(Move._fields)
    assert CROSSINGS.fieldNames()[-3:] == rank
