"""FRAME. Records of ``__storage_telemetry`` and ``__group_telemetry`` as tables.

Every record becomes one row in ``log_dir_samples``, ``replica_samples``, ``group_lag`` or
``telemetry_rejects``. A record is rejected, with a reason, if it is no JSON object with fields of
the right types, has a newer schema or an unknown kind, lacks an identifying field, or has an
invalid time.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kraftjbod.protocol.telemetry import group_telemetry
from kraftjbod.protocol.telemetry.storage_telemetry import SCHEMA
from kraftjbod.spark.tables.schemas import (
    GROUP_LAG,
    LOG_DIR_SAMPLES,
    REPLICA_SAMPLES,
    TELEMETRY_REJECTS,
)

LOG_DIR: Final = "log_dir"
REPLICA: Final = "replica"
LAG: Final = group_telemetry.KIND
#: Column in which Spark puts text that it could not parse.
_CORRUPT: Final = "_corrupt_record"
#: Fields without which a sample cannot be used.
_REQUIRED: Final = ("broker_id", "incarnation", "time_ms")
_REQUIRED_OF_KIND: Final = {
    LOG_DIR: ("directory_id", "path", "state", "total_bytes", "free_bytes"),
    REPLICA: ("directory_id", "path", "topic", "partition", "is_future", "size_bytes"),
    LAG: ("group_id", "topic", "partition", "committed_offset"),
}
#: The first millisecond that Spark cannot print as a timestamp: the year 10000.
_END_OF_TIME_MS: Final = 253_402_300_800_000


def _as_sent(schema: StructType) -> list[StructField]:
    """Return the fields of the JSON that becomes ``schema``; its times are milliseconds."""
    return [
        StructField(f"{field.name}_ms", LongType()) if field.dataType == TimestampType() else field
        for field in schema.fields
    ]


_ALL_KINDS: Final = {
    field.name: field
    for schema in (LOG_DIR_SAMPLES, REPLICA_SAMPLES, GROUP_LAG)
    for field in _as_sent(schema)
}
#: The fields of records of all kinds.
SAID: Final = StructType(
    [
        StructField("schema", IntegerType()),
        StructField("kind", StringType()),
        *_ALL_KINDS.values(),
        StructField(_CORRUPT, StringType()),
    ]
)


def said(records: DataFrame) -> DataFrame:
    """Add the column ``said``, the parsed JSON, and ``reason``, which is null for a valid
    sample."""
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    document = F.from_json(F.col("value").cast("string"), SAID, options)
    # Exploding a single element makes Spark parse each record once. As a plain column the
    # expression would be repeated wherever a filter or field uses it, some forty times.
    parsed = records.select("*", F.explode(F.array(document)).alias("said"))
    return parsed.withColumn("reason", _reason())


def log_dir_samples(records: DataFrame) -> DataFrame:
    """Return the table ``log_dir_samples``: one row per valid sample of a log directory among
    ``records``."""
    return _samples(records, LOG_DIR, LOG_DIR_SAMPLES)


def replica_samples(records: DataFrame) -> DataFrame:
    """Return the table ``replica_samples``: one row per valid sample of a replica among
    ``records``."""
    return _samples(records, REPLICA, REPLICA_SAMPLES)


def group_lag(records: DataFrame) -> DataFrame:
    """Return the table ``group_lag``: one row per valid sample of a group's lag among
    ``records``."""
    return _samples(records, LAG, GROUP_LAG)


def rejects(records: DataFrame) -> DataFrame:
    """Return the table ``telemetry_rejects``: the records that are not valid samples, with the
    reason."""
    rejected = said(records).where(F.col("reason").isNotNull())
    return rejected.select(
        *(F.col(field.name).cast(field.dataType) for field in TELEMETRY_REJECTS.fields)
    )


def not_from_the_future(samples: DataFrame, leeway_s: int) -> DataFrame:
    """Remove samples whose time is more than ``leeway_s`` seconds in the future, due to wrong
    clocks."""
    return samples.where(
        F.col("time") <= F.current_timestamp() + F.make_dt_interval(secs=F.lit(leeway_s))
    )


def _samples(records: DataFrame, kind: str, schema: StructType) -> DataFrame:
    of_kind = said(records).where(F.col("reason").isNull() & (F.col("said.kind") == kind))
    return of_kind.select(
        *(_value(field).cast(field.dataType).alias(field.name) for field in schema.fields)
    )


def _value(field: StructField) -> Column:
    if field.dataType != TimestampType():
        return F.col(f"said.{field.name}")
    millis = F.col(f"said.{field.name}_ms")
    return F.when(_is_time(millis), F.timestamp_millis(millis))


def _is_time(millis: Column) -> Column:
    return millis.between(0, _END_OF_TIME_MS - 1)


def _reason() -> Column:
    """Return a column with the first problem of a record, or null."""
    schema, kind = F.col("said.schema"), F.col("said.kind")
    wrong = [
        (F.col("value").isNull(), F.lit("no value")),
        (
            schema > SCHEMA,
            F.concat(F.lit("schema "), schema, F.lit(f" is newer than {SCHEMA}")),
        ),
        (
            F.col("said").isNull() | F.col(f"said.{_CORRUPT}").isNotNull(),
            F.lit("no JSON object with fields of the right types"),
        ),
        (schema.isNull(), F.lit("no schema")),
        (kind.isNull(), F.lit("no kind")),
        (~kind.isin(*_REQUIRED_OF_KIND), F.concat(F.lit("unknown kind "), kind)),
        *(_lacks(name) for name in _REQUIRED),
        *(
            (lacking & (kind == of), reason)
            for of, names in _REQUIRED_OF_KIND.items()
            for lacking, reason in map(_lacks, names)
        ),
        (~_is_time(F.col("said.time_ms")), F.lit("time_ms is no time")),
    ]
    return F.coalesce(*(F.when(is_wrong, reason) for is_wrong, reason in wrong))


def _lacks(name: str) -> tuple[Column, Column]:
    return F.col(f"said.{name}").isNull(), F.lit(f"no {name}")
