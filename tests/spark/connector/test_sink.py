"""Frames to topics: accepted frames, the records of their rows, and refused frames."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import MapType, StringType, StructType

from kraftjbod.core.errors import ConfigError
from kraftjbod.spark.connector.record_writer import WrittenRange
from kraftjbod.spark.connector.sink import Written, log_ranges, plan_writes, rows_of
from kraftjbod.spark.connector.source import register
from kraftjbod.spark.tables.schemas import RECORD_WITH_HEADERS
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster

pytestmark = pytest.mark.timeout(300)

BROKER = {"kafka.bootstrap.servers": "127.0.0.1:1"}
TOPIC = {**BROKER, "topic": "t"}
ROWS = (
    "topic string, key string, value binary, partition int, "
    "headers array<struct<key string, value binary>>"
)


def schema(text: str) -> StructType:
    """Return the schema of ``name type`` pairs with commas, with types by their names in Spark's
    JSON."""
    found = StructType()
    for column in text.split(", "):
        name, kind = column.split(" ")
        found.add(name, MapType(StringType(), StringType()) if kind == "map" else kind)
    return found


@pytest.mark.parametrize(
    ("options", "columns", "complaint"),
    [
        ({"topic": "t"}, "value string", r"kafka\.bootstrap\.servers is missing"),
        (BROKER, "value string", "where to.* option topic"),
        ({**BROKER, "topic": " "}, "value string", "option topic is empty"),
        ({**TOPIC, "topics": "t"}, "value string", "no option 'topics': did you mean topic"),
        ({**TOPIC, "includeHeaders": "yes"}, "value string", "includeHeaders is 'yes'"),
        ({**TOPIC, "kafka.transactional.id": "x"}, "value string", r"kafka\.transactional\.id"),
        ({**TOPIC, "kafka.buffer.memory": "9"}, "value string", r"queue\.buffering\.max\.kbytes"),
        (TOPIC, "key string", "no column value in key"),
        (TOPIC, "value string, Key string", "no column 'Key': drop it"),
        (TOPIC, "value integer", "column value is int: expected string or binary"),
        (TOPIC, "value string, key long", "column key is bigint: expected string or binary"),
        (TOPIC, "value string, partition long", "column partition is bigint: expected int"),
        (BROKER, "value string, topic binary", "column topic is binary: expected string"),
        (TOPIC, "value string, headers map", "column headers is map<string,string>"),
        (TOPIC, "value string, value binary", "two columns have one name"),
    ],
)
def test_plan_writes_of_invalid_options_or_columns_is_refused(
    options: dict[str, str], columns: str, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        plan_writes(options, schema(columns))


@pytest.mark.parametrize("options", [{}, {"includeHeaders": "true"}, {"includeheaders": "false"}])
def test_plan_writes_accepts_the_schema_of_the_source(options: dict[str, str]) -> None:
    assert plan_writes({**TOPIC, **options}, RECORD_WITH_HEADERS).topic == "t"


def test_plan_writes_translates_javas_names_of_settings() -> None:
    options = {**TOPIC, "kafka.max.request.size": "9", "kafka.linger.ms": "1"}
    assert plan_writes(options, schema("value string")).kafka == {
        "bootstrap.servers": "127.0.0.1:1",
        "message.max.bytes": "9",
        "linger.ms": "1",
    }


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def test_rows_of_batch_with_every_column_returns_records() -> None:
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = rows_of(
        batch(
            headers=pa.array([[{"key": "h", "value": b"1"}], None, []], header),
            partition=pa.array([2, None, 0], pa.int32()),
            value=pa.array(["größe", None, ""]),
            key=pa.array([None, b"k", b""], pa.binary()),
            topic=pa.array(["a", "b", "a"]),
        ),
        None,
    )
    assert list(rows) == [
        ("a", "größe".encode(), None, 2, [("h", b"1")]),
        ("b", None, b"k", -1, None),
        ("a", b"", b"", 0, []),
    ]


def test_rows_of_batch_with_value_only_take_the_option_topic() -> None:
    large = batch(value=pa.array(["x"], pa.large_string()), topic=pa.array([None], pa.string()))
    assert list(rows_of(large, "t")) == [("t", b"x", None, -1, None)]


def test_rows_of_batch_with_null_topic_are_refused() -> None:
    rows = batch(value=pa.array(["x", "y"]), topic=pa.array(["a", None]))
    with pytest.raises(ConfigError, match="a row has a null topic"):
        rows_of(rows, None)


def test_log_ranges_logs_acknowledged_records(caplog: pytest.LogCaptureFixture) -> None:
    written = WrittenRange(topic="t", partition=1, first_offset=5, last_offset=9, records=4)
    with caplog.at_level(logging.DEBUG, logger="kraftjbod.spark.connector.sink"):
        log_ranges([Written((written,)), None], batch_id=3)
    (record,) = caplog.records
    found: Any = record
    assert (record.msg, found.context["partition"], found.context["last_offset"]) == (
        "records_acknowledged",
        "t-1",
        9,
    )


# --- on a cluster --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Cluster:
    cluster = make_shared_cluster(brokers=1, dirs=2, config={"auto.create.topics.enable": "false"})
    cluster.create_topic("bare")
    return cluster


def read(cluster: Cluster, topic: str, partition: int = 0) -> list[Message]:
    """Read complete records with an independent client."""
    consumer = Consumer(
        # Without an offset store: close would try for half a minute to commit offsets.
        {"bootstrap.servers": cluster.bootstrap, "group.id": "test", "enable.auto.commit": False}
    )
    try:
        at = TopicPartition(topic, partition, 0)
        _, end = consumer.get_watermark_offsets(at, timeout=30)
        consumer.assign([at])
        found: list[Message] = []
        while len(found) < end:
            came = consumer.consume(end - len(found), timeout=30)
            assert came, f"{len(found)} of {end} records of {topic}-{partition} came"
            found += [message for message in came if message.error() is None]
        return found
    finally:
        consumer.close()


def save(frame: DataFrame, cluster: Cluster, **options: str) -> None:
    register(frame.sparkSession)
    servers = {"kafka.bootstrap.servers": cluster.bootstrap}
    given = {name.replace("_", "."): value for name, value in options.items()}
    frame.write.format("kraftjbod").mode("append").options(**servers, **given).save()


@pytest.mark.process
def test_sink_writes_every_column(spark: SparkSession, cluster: Cluster) -> None:
    cluster.create_topic("one", partitions=2)
    cluster.create_topic("other")
    rows = [
        ("one", "k", bytearray(b"\x00\xff"), 1, [("h", bytearray(b"1")), ("h", None)]),
        ("one", None, None, 1, None),
        ("other", "", bytearray(b""), None, []),
    ]
    save(spark.createDataFrame(rows, ROWS).coalesce(1), cluster)
    found = [
        (message.topic(), message.key(), message.value(), message.headers())
        for topic, partition in (("one", 0), ("one", 1), ("other", 0))
        for message in read(cluster, topic, partition)
    ]
    assert found == [
        ("one", b"k", b"\x00\xff", [("h", b"1"), ("h", None)]),
        ("one", None, None, None),
        ("other", b"", b"", None),
    ]


@pytest.mark.process
def test_sink_with_option_topic_ignores_the_topic_column(
    spark: SparkSession, cluster: Cluster
) -> None:
    cluster.create_topic("wins")
    frame = spark.createDataFrame([("bare", "text")], "topic string, value string")
    save(frame, cluster, topic="wins", kafka_compression_type="zstd")
    assert [message.value() for message in read(cluster, "wins")] == [b"text"]


@pytest.mark.process
def test_sink_writes_each_batch_of_a_stream_once(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """A second run of the query writes only the records since the first one."""
    cluster.create_topic("stream")
    register(spark)
    folder = tmp_path / "in"
    for value in ("first", "second"):
        spark.createDataFrame([(value,)], "value string").write.mode("append").json(str(folder))
        query = (
            spark.readStream.schema("value string")
            .json(str(folder))
            .writeStream.format("kraftjbod")
            .option("kafka.bootstrap.servers", cluster.bootstrap)
            .option("topic", "stream")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .queryName("test")
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
    assert [message.value() for message in read(cluster, "stream")] == [b"first", b"second"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("columns", "options", "complaint"),
    [
        ("'x' AS value", {"topic": "nowhere"}, "topic nowhere cannot be written"),
        ("'x' AS value, 7 AS partition", {"topic": "bare"}, "bare-7.*Unknown partition"),
        ("repeat('x', 1100000) AS value", {"topic": "bare"}, "a record of 1100000 bytes for"),
        ("1 AS value", {"topic": "bare"}, "column value is int"),
        ("'x' AS value", {"topic": "bare", "kafka.wings": "2"}, "configuration property.*wings"),
    ],
)
def test_sink_errors_are_raised_by_spark_with_their_reason(
    spark: SparkSession, cluster: Cluster, columns: str, options: dict[str, str], complaint: str
) -> None:
    with pytest.raises(PySparkException, match=complaint):
        save(spark.sql(f"SELECT {columns}"), cluster, **options)


@pytest.mark.process
def test_sink_refuses_mode_overwrite(spark: SparkSession, cluster: Cluster) -> None:
    register(spark)
    writer = spark.sql("SELECT 'x' AS value").write.format("kraftjbod").mode("overwrite")
    with pytest.raises(PySparkException, match="topics are only added to"):
        writer.options(**TOPIC).save()
