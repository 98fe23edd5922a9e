"""FRAME. Schemas of intermediate frames of plans; schemas.py has those of written tables."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from kraftjbod.spark.tables.schemas import PLAN_MOVES

PARTITION: Final = ("topic", "partition")
REPLICA: Final = (*PARTITION, "broker_id")
DIRECTORY: Final = ("broker_id", "path")

#: ``placed``: ``pending_bytes`` are still being copied to ``path``.
PLACED: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("broker_id", IntegerType()),
        StructField("path", StringType()),
        StructField("size_bytes", LongType()),
        StructField("pending_bytes", LongType()),
        StructField("write_rate", DoubleType()),
        StructField("brokers", ArrayType(IntegerType())),
        StructField("is_movable", BooleanType()),
        StructField("must_leave", BooleanType()),
    ]
)

#: ``sums``: a directory's role in the plan, and sums; ``fixed`` is the part that cannot be moved.
SUMS: Final = StructType(
    [
        StructField("broker_id", IntegerType()),
        StructField("rack", StringType()),
        StructField("path", StringType()),
        StructField("total_bytes", LongType()),
        StructField("spare_bytes", LongType()),
        StructField("takes", BooleanType()),
        StructField("gives", BooleanType()),
        StructField("is_drained", BooleanType()),
        StructField("size_bytes", LongType()),
        StructField("fixed_bytes", LongType()),
        StructField("write_rate", DoubleType()),
        StructField("fixed_rate", DoubleType()),
        StructField("replicas", LongType()),
        StructField("largest_bytes", LongType()),
    ]
)

#: Position of a move among all moves; ``step`` numbers related moves on one broker.
RANK: Final = (
    StructField("tier", IntegerType()),
    StructField("score", DoubleType()),
    StructField("step", IntegerType()),
)

CROSSINGS: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("from_broker", IntegerType()),
        StructField("to_broker", IntegerType()),
        StructField("size_bytes", LongType()),
        StructField("write_rate", DoubleType()),
        *RANK,
    ]
)

MOVES: Final = StructType([*PLAN_MOVES.fields, *RANK, StructField("phase", IntegerType())])

_MOVED: Final = (
    StructField("size_bytes", LongType()),
    StructField("write_rate", DoubleType()),
    StructField("replicas", LongType()),
)

#: ``sent``: bytes, rate and replicas by source and target broker.
SENT: Final = StructType(
    [StructField("from_broker", IntegerType()), StructField("to_broker", IntegerType()), *_MOVED]
)

#: ``changes``: bytes, rate and replicas that a directory gains; negative if it loses them.
CHANGES: Final = StructType(
    [StructField("broker_id", IntegerType()), StructField("path", StringType()), *_MOVED]
)

#: ``groups``: numbers and bytes of moves, the fields of ``MoveGroup``.
GROUPS: Final = StructType(
    [
        StructField("is_across", BooleanType()),
        StructField("tier", IntegerType()),
        StructField("moves", LongType()),
        StructField("size_bytes", LongType()),
    ]
)

_END: Final = StructType(
    [StructField("to_broker", IntegerType()), StructField("to_path", StringType())]
)

#: ``touched``: one partition with moves; ``paths`` and ``moves`` are by broker, and ``moves`` is
#: null for a replica that stays.
TOUCHED: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("brokers", ArrayType(IntegerType())),
        StructField("paths", MapType(IntegerType(), StringType())),
        StructField("moves", MapType(IntegerType(), _END)),
    ]
)


def as_table(frame: DataFrame, schema: StructType) -> DataFrame:
    """Return the columns of ``schema``, in its order and cast to its types."""
    return frame.select(
        *(F.col(field.name).cast(field.dataType).alias(field.name) for field in schema.fields)
    )
