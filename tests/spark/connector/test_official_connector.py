"""Spark's official Kafka connector on kraftjbod's topics, and as the reference of our source and
sink."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from kraftjbod.spark.connector.source import register
from tests.integration.clients import COMPRESSIONS
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster
from tests.spark.official_connector import VERSION, ConnectorUnreachable, add_connector

pytestmark = [pytest.mark.process, pytest.mark.clients, pytest.mark.timeout(600)]

PARTITIONS = 3
RECORDS_EACH = 20
FIRST_MS = 1_700_000_000_000
TOPIC, STAMPED = "mixed", "mixed-stamped"
OURS, THEIRS = "kraftjbod", "kafka"


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Cluster:
    """Topics of every kind of record: no key, no value, headers, each compression, both clocks."""
    cluster = make_shared_cluster(brokers=2, dirs=2)
    cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=2, retention_ms=-1)
    cluster.create_topic(STAMPED, message_timestamp_type="LogAppendTime")
    for number, compression in enumerate(COMPRESSIONS):
        _produce(cluster, number * RECORDS_EACH, compression)
    return cluster


def _produce(cluster: Cluster, first: int, compression: str) -> None:
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "compression.type": compression, "linger.ms": 50}
    )
    for number in range(first, first + RECORDS_EACH):
        record: dict[str, Any] = {
            "key": None if number % 4 == 0 else b"key-%d" % number,
            "value": None if number % 7 == 0 else b"\xff" + b"value-%d " % number * 20,
            "headers": [("h", b"1"), ("h", None), ("ä", b"")] if number % 3 == 0 else None,
            "timestamp": FIRST_MS + number * 1000,
        }
        producer.produce(TOPIC, partition=number % PARTITIONS, **record)
        if number % 5 == 0:
            producer.produce(STAMPED, **record)
    assert producer.flush(30) == 0


@pytest.fixture(scope="module")
def spark_with_both(spark: SparkSession) -> Iterator[SparkSession]:
    try:
        add_connector(spark)
    except ConnectorUnreachable as e:
        pytest.skip(str(e))
    register(spark)
    yield spark


def _read(spark: SparkSession, cluster: Cluster, kind: str, **options: str) -> DataFrame:
    servers = {"kafka.bootstrap.servers": cluster.bootstrap}
    return spark.read.format(kind).options(**servers, **options).load()


READS: dict[str, dict[str, str]] = {
    "all, with headers": {"subscribe": f"{TOPIC},{STAMPED}", "includeHeaders": "true"},
    "a pattern": {"subscribePattern": "mixed-.*"},
    "offsets of some partitions": {
        "assign": json.dumps({TOPIC: [0, 2]}),
        "startingOffsets": json.dumps({TOPIC: {"0": 5, "2": -2}}),
        "endingOffsets": json.dumps({TOPIC: {"0": 25, "2": -1}}),
    },
    "times": {
        "subscribe": TOPIC,
        "startingTimestamp": str(FIRST_MS + 30_500),
        "endingOffsetsByTimestamp": json.dumps(
            {TOPIC: {str(n): FIRST_MS + 60_000 for n in range(PARTITIONS)}}
        ),
    },
    "more tasks than partitions": {"subscribe": TOPIC, "minPartitions": "7"},
}


@pytest.mark.parametrize("name", READS)
def test_our_source_and_the_official_one_read_the_same_rows(
    spark_with_both: SparkSession, cluster: Cluster, name: str
) -> None:
    ours = _read(spark_with_both, cluster, OURS, **READS[name])
    theirs = _read(spark_with_both, cluster, THEIRS, **READS[name])
    assert ours.schema == theirs.schema
    assert ours.count() > 0
    assertDataFrameEqual(ours, theirs)


def _copy(
    spark: SparkSession, cluster: Cluster, kind: str, to: str, checkpoint: Path, **reader: str
) -> list[int]:
    """Stream a topic into another until its present end; return the rows of each batch."""
    servers = {"kafka.bootstrap.servers": cluster.bootstrap}
    query = (
        spark.readStream.format(kind)
        .options(**servers, subscribe=TOPIC, startingOffsets="earliest")
        .options(maxOffsetsPerTrigger="40", includeHeaders="true", **reader)
        .load()
        .writeStream.format(kind)
        .options(**servers, topic=to, checkpointLocation=str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(180)
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def test_both_connectors_copy_the_same_records_in_the_same_batches(
    spark_with_both: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """Partitions are kept, by their column; a second run copies nothing."""
    batches = {}
    for kind in (OURS, THEIRS):
        cluster.create_topic(f"copied-by-{kind}", partitions=PARTITIONS)
        where = (spark_with_both, cluster, kind, f"copied-by-{kind}", tmp_path / kind)
        batches[kind] = _copy(*where)
        assert _copy(*where) == []
    assert batches[OURS] == batches[THEIRS]
    count = len(COMPRESSIONS) * RECORDS_EACH
    assert sum(batches[OURS]) == count
    batches_done = (path for path in (tmp_path / OURS / "offsets").iterdir() if path.name.isdigit())
    last = max(batches_done, key=lambda path: int(path.name))
    printed = last.read_text().splitlines()[-1]
    assert "#topicId=" in printed
    assert _read(
        spark_with_both, cluster, THEIRS, subscribe=TOPIC, endingOffsets=printed
    ).count() == (count), "the connector reads our checkpoints' offsets"
    original = _read(spark_with_both, cluster, THEIRS, subscribe=TOPIC, includeHeaders="true")
    kept = ("key", "value", "partition", "offset", "headers")
    for kind in (OURS, THEIRS):
        copied = _read(
            spark_with_both, cluster, OURS, subscribe=f"copied-by-{kind}", includeHeaders="true"
        )
        assertDataFrameEqual(copied.select(*kept), original.select(*kept))


@pytest.mark.parametrize("subscribes", ["true", "false"])
def test_official_connector_reads_as_member_of_a_group(
    spark_with_both: SparkSession,
    cluster: Cluster,
    tmp_path: Path,
    subscribes: str,
    record_property: Callable[[str, object], None],
) -> None:
    """The group has a fixed name; the driver subscribes with it, as older drivers did, or not."""
    # For the page of clients.
    record_property("program", "spark-sql-kafka-0-10 (Spark)")
    record_property("trial", "group")
    record_property("version", VERSION)
    to = f"copied-by-group-{subscribes}"
    cluster.create_topic(to, partitions=PARTITIONS)
    key = "spark.sql.streaming.kafka.useDeprecatedOffsetFetching"
    group = {"kafka.group.id": to, "kafka.isolation.level": "read_committed"}
    before = spark_with_both.conf.get(key, "false")
    spark_with_both.conf.set(key, subscribes)
    try:
        where = (spark_with_both, cluster, THEIRS, to, tmp_path / "checkpoint")
        assert sum(_copy(*where, **group)) == len(COMPRESSIONS) * RECORDS_EACH
        assert _copy(*where, **group) == []
    finally:
        spark_with_both.conf.set(key, str(before))
    kept = ("key", "value", "partition", "offset")
    found, original = (
        _read(spark_with_both, cluster, THEIRS, subscribe=topic).select(*kept)
        for topic in (to, TOPIC)
    )
    assertDataFrameEqual(found, original)


def test_our_sink_and_the_official_one_write_the_same_records(
    spark_with_both: SparkSession, cluster: Cluster
) -> None:
    """Text and bytes, a topic per row, headers; a key has the same partition in both."""
    frame = spark_with_both.range(60).selectExpr(
        "concat('key-', id) AS key",
        "IF(id % 5 > 0, concat('größe ', id), NULL) AS value",
        "IF(id % 2 = 0, array(named_struct('key', 'h', 'value', X'00ff')), NULL) AS headers",
    )
    rows = {}
    for kind in (OURS, THEIRS):
        cluster.create_topic(f"written-by-{kind}", partitions=PARTITIONS)
        # The option belongs to the source: a column of headers is always written.
        frame.selectExpr(f"'written-by-{kind}' AS topic", "*").write.format(kind).options(
            **{"kafka.bootstrap.servers": cluster.bootstrap}, includeHeaders="false"
        ).mode("append").save()
        rows[kind] = _read(
            spark_with_both, cluster, THEIRS, subscribe=f"written-by-{kind}", includeHeaders="true"
        ).select("key", "value", "partition", "headers")
    assert rows[OURS].count() == 60
    assertDataFrameEqual(rows[OURS], rows[THEIRS])
