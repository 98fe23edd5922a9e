"""Numbered records, a streaming query that copies them by our source and sink, and its judge.

``python -m tests.spark.stream_copy`` runs the query in a separate process, which a test kills::

    stream_copy BOOTSTRAP FROM TO CHECKPOINT [--master URL] [--conf KEY=VALUE ...]
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from kraftjbod.spark import spark_session
from tests.integration import checker

PARTITIONS: Final = 2
KEYS: Final = 50
RECORDS: Final = 1200
PER_BATCH: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """The defects of a copy, one sentence each; and the number of duplicates."""

    missing: list[str]
    out_of_order: list[str]
    doubled: int

    @property
    def findings(self) -> list[str]:
        return self.missing + self.out_of_order


def produce_numbered(bootstrap: str, topic: str) -> None:
    """Produce for each of :data:`KEYS` keys its own numbers from 0."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    failed: list[str] = []
    for number in range(RECORDS):
        key, own = f"key-{number % KEYS}", number // KEYS
        producer.produce(
            topic,
            key=key,
            value=f"{key} {own}",
            on_delivery=lambda error, _: failed.append(error.str()) if error else None,
        )
    assert producer.flush(60) == 0
    assert failed == []


def start_copy(
    spark: SparkSession, bootstrap: str, source: str, to: str, checkpoint: Path
) -> StreamingQuery:
    """Copy until the present end, some hundred records in a batch."""
    servers = {"kafka.bootstrap.servers": bootstrap}
    return (
        spark.readStream.format("kraftjbod")
        .options(**servers, subscribe=source, startingOffsets="earliest")
        .option("maxOffsetsPerTrigger", PER_BATCH)
        .load()
        .select("key", "value")
        .writeStream.format("kraftjbod")
        .options(**servers, topic=to, checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def count(bootstrap: str, topic: str) -> int:
    return sum(1 for n in range(PARTITIONS) for _ in checker.read(bootstrap, topic, n))


def judge(bootstrap: str, topic: str) -> Copied:
    """Check that each record exists, a key's records in one partition and first ones in order."""
    came: Counter[str] = Counter()
    order: dict[tuple[str, int], list[int]] = defaultdict(list)
    for partition in range(PARTITIONS):
        for _, value in checker.read(bootstrap, topic, partition):
            record = value.decode()
            came[record] += 1
            if came[record] == 1:
                key, _, number = record.partition(" ")
                order[key, partition].append(int(number))
    wanted = [f"key-{number % KEYS} {number // KEYS}" for number in range(RECORDS)]
    return Copied(
        missing=[f"{record} is not there" for record in wanted if not came[record]],
        out_of_order=[
            f"{key} came as {numbers} in partition {partition}"
            for (key, partition), numbers in sorted(order.items())
            if numbers != sorted(numbers) or len(numbers) < RECORDS // KEYS
        ],
        doubled=came.total() - len(came),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "source", "to", "checkpoint"):
        parser.add_argument(name)
    parser.add_argument("--master")
    parser.add_argument("--conf", action="append", default=[])
    given = parser.parse_args()
    conf = dict(pair.split("=", 1) for pair in given.conf)
    spark = spark_session("copy", master=given.master, conf=conf)
    query = start_copy(spark, given.bootstrap, given.source, given.to, Path(given.checkpoint))
    query.awaitTermination()


if __name__ == "__main__":
    main()
