"""WIRE. The sink `kraftjbod`: writes frames to topics, in batches and in streams.

A row is a record. Columns are those of Spark's official Kafka connector:

* ``value`` (required) and ``key``, string or binary; a null value is a tombstone.
* ``topic``, string, unless the option ``topic`` names one topic for all rows. The option has
  priority.
* ``partition``, integer. If it is null, the key determines the partition as in Java's producers.
  Without a key the producer chooses one.
* ``headers``, array of (key string, value binary): written whenever the frame has the column.

The other columns of the source (``offset``, ``timestamp``, ``timestampType``) are ignored, so that
a topic can be copied. Any other column is an error.

Options are ``topic``, ``includeHeaders`` (accepted as in the connector, without effect) and
``kafka.NAME`` for the client. ``kafka.bootstrap.servers`` is required.

Every row is written at least once. A task succeeds only when all in-sync replicas have acknowledged
each of its records. Otherwise it fails, and Spark runs it again, which duplicates the records that
the failed run had written. Retries of the client do not duplicate records, because the producer is
idempotent. Within one run of a task, records of a partition are written in the order of the rows.
``kafka.acks`` can weaken the guarantee.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.logger import PySparkLogger
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, DataType, IntegerType, StringType, StructField, StructType

from kraftjbod.core.errors import ConfigError
from kraftjbod.spark.connector.options import client_settings, flag, reject_unknown
from kraftjbod.spark.connector.record_writer import Headers, Row, WrittenRange, task_writer
from kraftjbod.spark.tables.schemas import RECORD, RECORD_WITH_HEADERS

#: Options of the sink, and those that Spark adds for streams.
SINK_OPTIONS: Final = ("topic", "includeHeaders", "checkpointLocation", "queryName")
_TYPES: Final[Mapping[str, tuple[DataType, ...]]] = {
    "topic": (StringType(),),
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    "partition": (IntegerType(),),
    "headers": (RECORD_WITH_HEADERS["headers"].dataType,),
}
_LEFT_OUT: Final = frozenset(RECORD.names) - _TYPES.keys()
_BY_KEY: Final = -1
_FORBIDDEN: Final = {
    "key.serializer": "keys are written as they are: cast them in the query",
    "value.serializer": "values are written as they are: cast them in the query",
    "interceptor.classes": "change records in the query",
    "transactional.id": "records are written at least once",
    "partitioner.class": "use kafka.partitioner, or column partition",
    "buffer.memory": "use kafka.queue.buffering.max.kbytes",
    "max.block.ms": "leave it out: kafka.delivery.timeout.ms limits every wait",
}
_RENAMED: Final = {
    "max.request.size": "message.max.bytes",
    "message.timeout.ms": "delivery.timeout.ms",
    "request.required.acks": "acks",
}

_logger: Final = PySparkLogger.getLogger("kraftjbod.spark.connector.sink")


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The acknowledged ranges of one task."""

    ranges: tuple[WrittenRange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPlan:
    """The checked options of a write, which are sent to every task.

    ``topic`` is the option of that name; None if the column ``topic`` names the topic of each row.
    ``kafka`` has settings by librdkafka's names.
    """

    topic: str | None
    kafka: Mapping[str, str]


def plan_writes(options: Mapping[str, str], schema: StructType) -> SinkPlan:
    """Check that a frame of ``schema`` can be written with ``options``.

    :raises ConfigError: naming the option or column that is missing, unknown or wrong.
    """
    reject_unknown(options, SINK_OPTIONS, where="the sink")
    topic = next((value for name, value in options.items() if name.lower() == "topic"), None)
    if topic is not None and not topic.strip():
        raise ConfigError("option topic is empty: name a topic")
    flag({name.lower(): value for name, value in options.items()}, "includeHeaders", default=False)
    kafka = client_settings(options, forbidden=_FORBIDDEN, renamed=_RENAMED)
    if "value" not in schema.names:
        raise ConfigError(f"there is no column value in {', '.join(schema.names)}")
    if topic is None and "topic" not in schema.names:
        raise ConfigError("where to? Set option topic, or give the frame a column topic")
    for column in schema.fields:
        _check_column(column)
    if len(set(schema.names)) < len(schema.names):
        raise ConfigError(f"two columns have one name: {', '.join(schema.names)}")
    return SinkPlan(topic=topic.strip() if topic is not None else None, kafka=kafka)


class KraftjbodWriter(DataSourceArrowWriter):
    """Spark's writer for ``frame.write.format("kraftjbod").mode("append").save()``."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError('topics are only added to: write with mode("append")')
        self._plan = plan_writes(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_batches(self._plan, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        log_ranges(messages, batch_id=None)


class KraftjbodStreamWriter(DataSourceStreamArrowWriter):
    """Spark's writer for ``frame.writeStream.format("kraftjbod").start()``.

    Each batch of the stream is written like a frame.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._plan = plan_writes(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return write_batches(self._plan, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        log_ranges(messages, batch_id=batchId)


def write_batches(plan: SinkPlan, batches: Iterable[pa.RecordBatch]) -> Written:
    """Write all rows of one task, and wait until they are acknowledged.

    :param plan: topic and client settings, which the driver made with :func:`plan_writes`.
    :returns: the acknowledged offset ranges.
    :raises WriteError: a row was not acknowledged; the task must run again.
    :raises ConfigError: a row names no topic, or the client rejects the settings.
    """
    with task_writer(plan.kafka) as writer:
        for batch in batches:
            writer.write(rows_of(batch, plan.topic))
        return Written(writer.finish())


def rows_of(batch: pa.RecordBatch, topic: str | None) -> Iterator[Row]:
    """Return the records of an Arrow batch, whose columns were checked before.

    :param topic: topic of all rows; None for the column ``topic``.
    :raises ConfigError: a row names no topic.
    """
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    topics: Iterable[str] = itertools.repeat(topic or "")
    if topic is None:
        if columns["topic"].null_count:
            raise ConfigError("a row has a null topic: fill column topic, or set option topic")
        topics = columns["topic"].to_pylist()
    keys: Iterable[bytes | None] = itertools.repeat(None)
    if "key" in columns:
        keys = _bytes(columns["key"])
    partitions: Iterable[int] = itertools.repeat(_BY_KEY)
    if "partition" in columns:
        partitions = columns["partition"].fill_null(_BY_KEY).to_pylist()
    headers: Iterable[Headers | None] = itertools.repeat(None)
    if "headers" in columns:
        headers = map(_headers, columns["headers"].to_pylist())
    return zip(topics, _bytes(columns["value"]), keys, partitions, headers, strict=False)


def log_ranges(messages: Iterable[WriterCommitMessage | None], *, batch_id: int | None) -> None:
    """Log the offsets acknowledged by the tasks of one batch at debug level, on the driver.

    :param batch_id: number of a stream's batch; None for a frame.
    """
    for message in messages:
        for written in message.ranges if isinstance(message, Written) else ():
            _logger.debug(
                "records_acknowledged",
                batch_id=batch_id,
                partition=f"{written.topic}-{written.partition}",
                first_offset=written.first_offset,
                last_offset=written.last_offset,
                records=written.records,
            )


def _bytes(column: pa.Array) -> list[bytes | None]:
    """Return the values of a column as bytes. Strings are already UTF-8 and are not decoded."""
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    return list(column.to_pylist())


def _headers(own: list[dict[str, Any] | None] | None) -> Headers | None:
    if own is None:
        return None
    return [(header["key"], header["value"]) for header in own if header is not None]


def _check_column(column: StructField) -> None:
    if column.name in _LEFT_OUT:
        return
    if column.name not in _TYPES:
        raise ConfigError(
            f"the sink has no column {column.name!r}: drop it; it knows {', '.join(_TYPES)}"
        )
    given = column.dataType.simpleString()
    wanted = [kind.simpleString() for kind in _TYPES[column.name]]
    if given not in wanted:
        raise ConfigError(f"column {column.name} is {given}: expected {' or '.join(wanted)}")
