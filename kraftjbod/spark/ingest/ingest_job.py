"""WIRE. ``kraftjbod-pipeline ingest``: topics to one Parquet table, each record exactly once.

The job is one streaming query: source, classification, file sink. Its checkpoint and the sink's own
log (``_spark_metadata`` in the table's folder) ensure that a repeated batch leaves its rows once.
The job may therefore be killed and restarted at any time. Spark readers see complete batches only,
and other readers must look up the valid files in ``_spark_metadata``.

The table has folders by ``status``: good, late and corrupt records. Each record of the topics is in
one folder. Values stay bytes: ``from_json(cast(value AS STRING), schema)`` parses the good ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from kraftjbod.core.errors import ConfigError
from kraftjbod.spark.connector.durations import duration_ms
from kraftjbod.spark.ingest.ingest_frames import Judgement, ingested
from kraftjbod.spark.session.job import Job, JobOutcome, job_command, streaming_options
from kraftjbod.spark.tables.schemas import INGESTED

#: Limit of partitions with gaps that are listed.
_LISTED_HOLES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The records to read, and the limit per batch. Either ``topics`` or ``topics_pattern`` is set.

    :raises ConfigError: both are set, or none is.
    """

    topics: str | None
    topics_pattern: str | None
    max_records_per_trigger: int | None
    allows_data_loss: bool
    #: Options ``kafka.NAME`` of the source.
    kafka: Mapping[str, str]

    def __post_init__(self) -> None:
        if (self.topics is None) == (self.topics_pattern is None):
            raise ConfigError("give either --topics or --topics-pattern")


@job_command("ingest")
@click.option("--topics", metavar="TOPIC,...", help="Names of the topics to read.")
@click.option("--topics-pattern", metavar="REGEX", help="Read the topics whose whole name matches.")
@click.option("--name", default="ingested", show_default=True, help="Name of the table.")
@click.option(
    "--value-schema",
    metavar="DDL|FILE",
    help="Schema of the values, such as `id BIGINT NOT NULL, at TIMESTAMP`: JSON objects with "
    "these fields. Other values are corrupt.  [default: all values are good]",
)
@click.option("--event-time", metavar="FIELD", help="Field of the value with its event time.")
@click.option(
    "--late-after",
    metavar="DURATION",
    help="A record is late if it arrives longer than this after its event time, such as `1 hour`. "
    "Without --event-time: if it is read longer than this after its arrival.  [default: never]",
)
@click.option(
    "--partition-by",
    multiple=True,
    type=click.Choice(["topic", "partition"]),
    help="Add a level of folders below those by status.",
)
@click.option(
    "--max-records-per-trigger",
    type=click.IntRange(min=1),
    help="Limit of a batch, for memory and file sizes.  [default: all records]",
)
@streaming_options
def command(
    job: Job,
    *,
    bootstrap_server: str,
    topics: str | None,
    topics_pattern: str | None,
    name: str,
    value_schema: str | None,
    event_time: str | None,
    late_after: str | None,
    partition_by: tuple[str, ...],
    max_records_per_trigger: int | None,
    allow_data_loss: bool,
    kafka: Mapping[str, str],
    checkpoint: str | None,
    available_now: bool,
    trigger: str,
) -> JobOutcome:
    """Write topics to a Parquet table, each record exactly once."""
    reading = Reading(
        topics=topics,
        topics_pattern=topics_pattern,
        max_records_per_trigger=max_records_per_trigger,
        allows_data_loss=allow_data_loss,
        kafka=kafka,
    )
    judgement = Judgement(
        value_schema=None if value_schema is None else read_schema(value_schema),
        event_time=event_time,
        late_after_ms=None if late_after is None else duration_ms(late_after, "--late-after"),
    )
    table = job.table(name)
    checkpoint = checkpoint or job.table(f"_checkpoints/{name}")
    rows = ingested(_records(job.spark, bootstrap_server, reading), judgement)
    writer = (
        rows.writeStream.format("parquet")
        .queryName(f"ingest {name}")
        .option("path", table)
        .option("checkpointLocation", checkpoint)
        .partitionBy("status", *partition_by)
    )
    if available_now:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=trigger)
    job.step(f"{topics or topics_pattern} to {table}")
    query = writer.start()
    query.awaitTermination()
    return _outcome(job, table, checkpoint, query)


def read_schema(text: str) -> StructType:
    """Parse ``text``, which is DDL or the name of a file with DDL.

    :raises ConfigError: the file cannot be read, or the DDL has no field.
    :raises ParseException: the text is not DDL.
    """
    path = Path(text)
    if len(text) < 256 and path.is_file():
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as e:
            raise ConfigError(f"cannot read --value-schema {path}: {e}") from e
    schema = StructType.fromDDL(text.strip())
    if not isinstance(schema, StructType) or not schema.fields:
        raise ConfigError(f"--value-schema {text!r} names no fields: say `id BIGINT, ...`")
    return schema


def _records(spark: SparkSession, bootstrap_servers: str, reading: Reading) -> DataFrame:
    reader = (
        spark.readStream.format("kraftjbod")
        .options(**reading.kafka)
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("failOnDataLoss", str(not reading.allows_data_loss).lower())
    )
    if reading.topics is not None:
        reader = reader.option("subscribe", reading.topics)
    if reading.topics_pattern is not None:
        reader = reader.option("subscribePattern", reading.topics_pattern)
    if reading.max_records_per_trigger is not None:
        reader = reader.option("maxOffsetsPerTrigger", str(reading.max_records_per_trigger))
    return reader.load()


# --- the report ----------------------------------------------------------------------------------


def _outcome(job: Job, table: str, checkpoint: str, query: StreamingQuery) -> JobOutcome:
    """Return the summary of the whole table after this run."""
    partitions = _partitions(job.spark, table)
    by_topic: dict[str, dict[str, int]] = {}
    for row in partitions:
        counts = by_topic.setdefault(row.topic, {"good": 0, "late": 0, "corrupt": 0})
        for status in counts:
            counts[status] += row[status]
    last = query.lastProgress
    summary = {
        "table": table,
        "checkpoint": checkpoint,
        "batches": None if last is None else last.batchId + 1,
        "rows": sum(row.rows for row in partitions),
        "topics": by_topic,
        "partitions": [
            {key: row[key] for key in ("topic", "partition", "rows", "first", "last")}
            for row in partitions
        ],
    }
    return JobOutcome(summary=summary, lines=tuple(_lines(table, by_topic, partitions)))


def _partitions(spark: SparkSession, table: str) -> list[Row]:
    """Return one row per partition: number of rows by status, and first and last offset."""
    try:
        rows = spark.read.schema(INGESTED).parquet(table)
    except AnalysisException as e:
        if e.getCondition() != "PATH_NOT_FOUND":
            raise
        return []  # The topics were empty, and nothing was written.
    counted = rows.groupBy("topic", "partition").agg(
        F.count("*").alias("rows"),
        F.min("offset").alias("first"),
        F.max("offset").alias("last"),
        *(F.count_if(F.col("status") == s).alias(s) for s in ("good", "late", "corrupt")),
    )
    return counted.orderBy("topic", "partition").collect()


def _lines(
    table: str, by_topic: Mapping[str, Mapping[str, int]], partitions: list[Row]
) -> Iterator[str]:
    for topic, counts in by_topic.items():
        kinds = ", ".join(f"{count:,} {status}" for status, count in counts.items())
        yield f"{topic}: {sum(counts.values()):,} records: {kinds}"
    if not by_topic:
        yield "no records"
    holes = [row for row in partitions if row.rows != row.last - row.first + 1]
    for row in holes[:_LISTED_HOLES]:
        offsets = f"offsets {row.first} to {row.last}"
        yield f"{row.topic}-{row.partition}: {row.rows:,} records in {offsets}"
    if len(holes) > _LISTED_HOLES:
        yield f"and {len(holes) - _LISTED_HOLES:,} more partitions with holes in their offsets"
    yield f"table: {table}"
