"""FRAME. Classifies records of topics for the table ``ingested``: good, late or corrupt.

* ``corrupt``: the value does not match its schema: it is no UTF-8 text or no JSON object with these
  fields and types, or a NOT NULL field is null. Unknown fields and a second object after the first
  are ignored. Records without a value (tombstones) are not checked. Without a schema no record is
  corrupt.
* ``late``: the record arrived too long after its event time, a field of the value. The arrival is
  the timestamp of the record. Without such a field the event time is the timestamp, and the arrival
  is the time of the batch, which Spark keeps for a repeated batch.
* ``good``: all other records.
* Every record gets exactly one row, with key, value and headers as unchanged bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from kraftjbod.core.errors import ConfigError
from kraftjbod.spark.tables.schemas import INGESTED

GOOD: Final = "good"
LATE: Final = "late"
CORRUPT: Final = "corrupt"
_CORRUPT_COLUMN: Final = "_corrupt_record"
_ENDS_WITH_OBJECT: Final = r"\}[ \t\r\n]*$"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Rules to classify records.

    ``event_time`` is the path of a field of the value, with dots. A record is late if its timestamp
    is more than ``late_after_ms`` after that field. If ``event_time`` is None, the record is late
    if the job reads it more than ``late_after_ms`` after its timestamp. No record is late if
    ``late_after_ms`` is None.

    :raises ConfigError: the field is not in the schema, or is not a time.
    """

    value_schema: StructType | None = None
    event_time: str | None = None
    late_after_ms: int | None = None

    def __post_init__(self) -> None:
        if self.event_time is None:
            return
        if self.value_schema is None:
            raise ConfigError("--event-time names a field of the value: give its --value-schema")
        kind = _type_at(self.value_schema, self.event_time)
        if not isinstance(kind, TimestampType | TimestampNTZType | LongType | IntegerType):
            raise ConfigError(
                f"--event-time {self.event_time}: a TIMESTAMP, or a BIGINT of milliseconds since "
                f"1970, is expected, not {kind.simpleString()}"
            )


def ingested(records: DataFrame, judgement: Judgement) -> DataFrame:
    """Return ``INGESTED``: one classified row per row of ``records`` (``RECORD_WITH_HEADERS``)."""
    parsed = _parsed(records, judgement.value_schema)
    timed = parsed.withColumn("event_time", _event_time(judgement))
    judged = timed.withColumn("fault", _fault(judgement.value_schema))
    judged = judged.withColumn("delay", _delay(judgement))
    judged = judged.withColumn(
        "status",
        F.when(F.col("fault").isNotNull(), CORRUPT)
        .when(F.col("delay").isNotNull(), LATE)
        .otherwise(GOOD),
    ).withColumn("reason", F.coalesce("fault", "delay"))
    return judged.select(*(F.col(f.name).cast(f.dataType).alias(f.name) for f in INGESTED.fields))


def _parsed(records: DataFrame, schema: StructType | None) -> DataFrame:
    """Add the column ``parsed``: the value as a struct of ``schema``, and text that does not
    match."""
    if schema is None:
        return records
    lenient = StructType([*schema.fields, StructField(_CORRUPT_COLUMN, StringType())])
    text = F.when(F.is_valid_utf8(F.col("value").cast("string")), F.col("value").cast("string"))
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT_COLUMN}
    return records.withColumn("parsed", F.from_json(text, lenient, options))


def _fault(schema: StructType | None) -> Column:
    """Return a column with the reason why a record is corrupt, or null."""
    if schema is None:
        return F.lit(None).cast("string")
    is_text = F.is_valid_utf8(F.col("value").cast("string"))
    is_parsed = F.col("parsed").isNotNull() & F.col(f"parsed.{_CORRUPT_COLUMN}").isNull()
    # Spark's parser ignores text after the object.
    is_parsed = is_parsed & F.col("value").cast("string").rlike(_ENDS_WITH_OBJECT)
    fault = F.when(F.col("value").isNull(), None).when(~is_text, "the value is no UTF-8 text")
    fault = fault.when(~is_parsed, f"the value is no JSON object of {schema.simpleString()}")
    for field in schema.fields:
        if not field.nullable:
            is_lacking = F.col("parsed").getField(field.name).isNull()
            fault = fault.when(is_lacking, f"the value has no {field.name}")
    return fault.cast("string")


def _event_time(judgement: Judgement) -> Column:
    if judgement.event_time is None or judgement.value_schema is None:
        return F.lit(None).cast("timestamp")
    field = F.col("parsed")
    for name in judgement.event_time.split("."):
        field = field.getField(name)
    kind = _type_at(judgement.value_schema, judgement.event_time)
    if isinstance(kind, LongType | IntegerType):
        return F.timestamp_millis(field.cast("long"))
    return field.cast("timestamp")


def _delay(judgement: Judgement) -> Column:
    """Return a column with the reason why a record is late, or null."""
    if judgement.late_after_ms is None:
        return F.lit(None).cast("string")
    if judgement.event_time is None:
        happened, arrived = F.col("timestamp"), F.current_timestamp()
    else:
        happened, arrived = F.col("event_time"), F.col("timestamp")
    delay_ms = F.unix_millis(arrived) - F.unix_millis(happened)
    text = F.format_string(f"%d ms after its time, more than {judgement.late_after_ms}", delay_ms)
    return F.when(delay_ms > judgement.late_after_ms, text)


def _type_at(schema: StructType, path: str) -> DataType:
    """Return the type of the field at ``path``.

    :raises ConfigError: the field does not exist.
    """
    kind: DataType = schema
    for name in path.split("."):
        if not isinstance(kind, StructType) or name not in kind.names:
            known = ", ".join(kind.names) if isinstance(kind, StructType) else "no fields"
            raise ConfigError(f"--event-time {path}: there is no {name!r} in {known}")
        kind = kind[name].dataType
    return kind
