"""Topics with known records, and the source without a Spark session.

Readers run in this process as the driver and a worker run them; a few queries in a session cover
the rest."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import confluent_kafka
import pyarrow as pa
from confluent_kafka import admin as client_admin

from kraftjbod.spark.connector.source import KraftjbodDataSource, KraftjbodStreamReader
from tests.integration.clients import TIMEOUT_S, quiet

# 2026-01-01T00:00:00Z
START_MS: Final = 1_767_225_600_000

Row = dict[str, Any]
Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record to produce; :func:`write` sets its ``offset``."""

    value: bytes | None
    key: bytes | None = None
    partition: int = 0
    timestamp_ms: int = START_MS
    headers: tuple[Header, ...] = ()
    topic: str = ""
    offset: int = -1

    def row(self) -> Row:
        """Return the row of the source for it."""
        return {
            "key": self.key,
            "value": self.value,
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "timestamp": self.timestamp_ms,
            "timestampType": 0,
            "headers": [{"key": k, "value": v} for k, v in self.headers] or None,
        }


def write(
    bootstrap: str, topic: str, records: Iterable[Record], **settings: object
) -> list[Record]:
    """Produce in order, wait for every acknowledgement, and return the records with their
    offsets."""
    producer = confluent_kafka.Producer(
        {
            **quiet(bootstrap),
            "linger.ms": 5,
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
    )
    written: list[Record] = []
    failed: list[Any] = []
    for record in records:

        def delivered(error: Any, message: Any, record: Record = record) -> None:
            failed.extend([error] if error is not None else [])
            written.append(replace(record, topic=topic, offset=message.offset()))

        producer.produce(
            topic,
            value=record.value,
            key=record.key,
            partition=record.partition,
            timestamp=record.timestamp_ms,
            headers=list(record.headers),
            on_delivery=delivered,
        )
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0
    assert failed == []
    return sorted(written, key=lambda record: (record.partition, record.offset))


def values(count: int, *, first: int = 0, partitions: int = 1) -> list[Record]:
    """Return numbered records, distributed to the partitions in turn."""
    return [
        Record(value=f"{number:06}".encode(), key=b"k", partition=number % partitions)
        for number in range(first, first + count)
    ]


def admin(bootstrap: str) -> Any:
    return client_admin.AdminClient(quiet(bootstrap))


def add_partitions(bootstrap: str, topic: str, count: int) -> None:
    new: Any = client_admin.NewPartitions  # type: ignore[attr-defined] # re-exported by habit
    client = admin(bootstrap)  # its answers die with it
    (future,) = client.create_partitions([new(topic, count)]).values()
    future.result(TIMEOUT_S)


def delete_records(bootstrap: str, topic: str, before: int, partition: int = 0) -> None:
    """Delete all records below offset ``before``."""
    wanted = confluent_kafka.TopicPartition(topic, partition, before)
    client = admin(bootstrap)  # its answers die with it
    (future,) = client.delete_records([wanted]).values()
    assert future.result(TIMEOUT_S).low_watermark == before


def delete_topic(bootstrap: str, topic: str) -> None:
    client = admin(bootstrap)  # its answers die with it
    (future,) = client.delete_topics([topic]).values()
    future.result(TIMEOUT_S)


def source(bootstrap: str, **options: object) -> KraftjbodDataSource:
    named = {key: str(value) for key, value in options.items()}
    kafka = {key.replace("kafka_", "kafka.", 1).replace("_", "."): v for key, v in named.items()}
    return KraftjbodDataSource({"kafka.bootstrap.servers": bootstrap, **kafka})


def read_batches(bootstrap: str, **options: object) -> list[list[pa.RecordBatch]]:
    """Return the Arrow batches of a batch query by task."""
    own = source(bootstrap, **options)
    reader = own.reader(own.schema())
    return [list(reader.read(task)) for task in reader.partitions()]


def read(bootstrap: str, **options: object) -> list[Row]:
    """Return the rows of a batch query, ordered by partition and offset if these columns exist."""
    return rows(batch for task in read_batches(bootstrap, **options) for batch in task)


def rows(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    """Return the rows, with timestamps in milliseconds."""
    found = []
    for batch in batches:
        columns = {}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if name == "timestamp":
                columns[name] = [micros // 1000 for micros in column.view(pa.int64()).to_pylist()]
            else:
                columns[name] = column.to_pylist()
        found += [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ]
    return sorted(found, key=lambda r: (r.get("topic"), r.get("partition"), r.get("offset")))


def expected(records: Sequence[Record], *, headers: bool = False) -> list[Row]:
    found = [record.row() for record in records]
    if not headers:
        for row in found:
            del row["headers"]
    return found


class Stream:
    """The driver of a streaming query: it calls the reader as Spark does, with JSON in between."""

    def __init__(self, bootstrap: str, **options: object) -> None:
        own = source(bootstrap, **options)
        reader = own.streamReader(own.schema())
        assert isinstance(reader, KraftjbodStreamReader)
        self.reader = reader
        self.at: Any = None

    def batch(self) -> list[Row] | None:
        """Return the rows of the next batch; None without new records."""
        begin = self.at if self.at is not None else through_json(self.reader.initialOffset())
        end = through_json(self.reader.latestOffset(begin, self.reader.getDefaultReadLimit()))
        if end == self.at:
            return None
        tasks = self.reader.partitions(begin, end)
        found = rows(batch for task in tasks for batch in self.reader.read(task))
        self.at = end
        return found


def through_json(offset: Any) -> Any:
    return json.loads(json.dumps(offset))
