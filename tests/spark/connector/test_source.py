"""The source against real topics: it reads the records of a model of the topics.

Hypothesis draws options and offsets; the model is a list of records. Streams are driven as Spark
drives them; the last tests use Spark."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from kraftjbod.core.errors import ConfigError, UnknownTopicOrPartitionError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.spark.connector.offset_lookup import OffsetLookup
from kraftjbod.spark.connector.offsets import DataLossError
from kraftjbod.spark.connector.options import COLUMNS, EARLIEST, LATEST
from kraftjbod.spark.connector.source import KraftjbodDataSource, register
from kraftjbod.spark.tables.schemas import RECORD, RECORD_WITH_HEADERS
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster
from tests.spark import live
from tests.spark.live import START_MS, Record, Row, Stream

pytestmark = [pytest.mark.process, pytest.mark.clients, pytest.mark.timeout(300)]

A0, A1, A2 = (TopicPartition("fixed-a", index) for index in range(3))
B0 = TopicPartition("fixed-b", 0)
TRIMMED: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """Topics that no test changes, and the model: records by partition, first offsets."""

    bootstrap: str
    records: dict[TopicPartition, list[Record]]
    first: dict[TopicPartition, int]

    def last(self, partition: TopicPartition) -> int:
        own = self.records[partition]
        return own[-1].offset + 1 if own else self.first[partition]

    def between(self, partition: TopicPartition, start: int, end: int) -> list[Record]:
        return [r for r in self.records[partition] if start <= r.offset < end]

    def at_time(self, partition: TopicPartition, time_ms: int) -> int | None:
        return next((r.offset for r in self.records[partition] if r.timestamp_ms >= time_ms), None)


def record(index: int, partition: int) -> Record:
    """Return a record of any kind: without key, without value, with headers; times rise and
    fall."""
    headers = (("h", b"%d" % index), ("h", None)) if index % 5 == 0 else ()
    return Record(
        value=None if index % 11 == 10 else b"value-%d" % index,
        key=None if index % 3 == 0 else b"key-%d" % (index % 4),
        partition=partition,
        timestamp_ms=START_MS + index * 10 - (25 if index % 4 == 0 else 0),
        headers=headers,
    )


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Cluster:
    config = {
        "storage.telemetry.enable": "true",
        "storage.telemetry.log.dir.interval.ms": "300",
        "storage.telemetry.replica.interval.ms": "600",
    }
    return make_shared_cluster(brokers=1, dirs=2, config=config)


@pytest.fixture(scope="module")
def fixed(cluster: Cluster) -> Fixed:
    bootstrap = cluster.bootstrap
    # Their records are older than the default retention allows.
    cluster.create_topic("fixed-a", partitions=3, retention_ms=-1)
    cluster.create_topic("fixed-b", retention_ms=-1)
    written = [
        *live.write(bootstrap, "fixed-a", [record(i, 0) for i in range(60)]),
        *live.write(bootstrap, "fixed-a", [record(i, 1) for i in range(25)]),
        *live.write(bootstrap, "fixed-b", [record(i, 0) for i in range(10)]),
    ]
    live.delete_records(bootstrap, "fixed-b", TRIMMED)
    first = {A0: 0, A1: 0, A2: 0, B0: TRIMMED}
    return Fixed(
        bootstrap=bootstrap,
        first=first,
        records={
            p: [r for r in written if (r.topic, r.partition) == p and r.offset >= first[p]]
            for p in first
        },
    )


# --- batches, any options ------------------------------------------------------------------------

Places = dict[TopicPartition, int | None]


def as_json(numbers: dict[TopicPartition, int]) -> str:
    reported: dict[str, dict[str, int]] = {}
    for partition, number in numbers.items():
        reported.setdefault(partition.topic, {})[str(partition.partition)] = number
    return json.dumps(reported)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Options of one read, and the expected result by the model."""

    options: dict[str, str]
    partitions: tuple[TopicPartition, ...]
    # By partition; None if no record is recent enough.
    starts: Places
    ends: Places


@st.composite
def questions(draw: st.DrawFn, fixed: Fixed) -> Question:
    topics, partitions = draw(
        st.sampled_from(
            [
                ({"subscribe": "fixed-a"}, (A0, A1, A2)),
                ({"subscribe": "fixed-b, fixed-a"}, (A0, A1, A2, B0)),
                ({"subscribePattern": "fixed-[a-c]"}, (A0, A1, A2, B0)),
                ({"assign": '{"fixed-a": [1, 2], "fixed-b": [0]}'}, (A1, A2, B0)),
            ]
        )
    )
    options: dict[str, str] = dict(topics)
    places = [
        _draw_place(draw, fixed, partitions, which, options) for which in ("starting", "ending")
    ]
    if draw(st.booleans()):
        options["minPartitions"] = str(draw(st.integers(1, 12)))
    if draw(st.booleans()):
        options["maxRecordsPerPartition"] = str(draw(st.integers(1, 30)))
    if draw(st.booleans()):
        options["includeHeaders"] = "true"
    return Question(options=options, partitions=partitions, starts=places[0], ends=places[1])


def _draw_place(
    draw: st.DrawFn,
    fixed: Fixed,
    partitions: Sequence[TopicPartition],
    which: str,
    options: dict[str, str],
) -> Places:
    is_start = which == "starting"
    times = st.integers(START_MS - 50, START_MS + 700)
    match draw(st.sampled_from(["default", "offsets", "offsets", "time", "times"])):
        case "default":
            return {p: fixed.first[p] if is_start else fixed.last(p) for p in partitions}
        case "offsets":
            near = {p: draw(st.integers(fixed.first[p] - 1, fixed.last(p) + 1)) for p in partitions}
            offsets = {p: n for p, n in near.items() if n >= 0}
            place = EARLIEST if is_start else LATEST
            chosen = {
                p: place if draw(st.booleans()) else offsets.get(p, place) for p in partitions
            }
            options[f"{which}Offsets"] = as_json(chosen)
            return {
                p: {EARLIEST: fixed.first[p], LATEST: fixed.last(p)}.get(n, n)
                for p, n in chosen.items()
            }
        case "time":
            time_ms = draw(times)
            options[f"{which}Timestamp"] = str(time_ms)
            asked = dict.fromkeys(partitions, time_ms)
        case _:
            asked = {p: draw(times) for p in partitions}
            options[f"{which}OffsetsByTimestamp"] = as_json(asked)
    found: Places = {p: fixed.at_time(p, time_ms) for p, time_ms in asked.items()}
    if is_start and draw(st.booleans()):
        options["startingOffsetsByTimestampStrategy"] = "latest"
        found = {p: fixed.last(p) if offset is None else offset for p, offset in found.items()}
    return found if is_start else {p: fixed.last(p) if o is None else o for p, o in found.items()}


@given(data=st.data())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_source_batch_reads_the_records_of_the_model(fixed: Fixed, data: st.DataObject) -> None:
    question = data.draw(questions(fixed))
    wrong = None
    records: list[Record] = []
    for partition in question.partitions:
        start, end = question.starts[partition], question.ends[partition]
        assert end is not None
        if start is None:
            wrong = ConfigError
            break
        low, high = fixed.first[partition], fixed.last(partition)
        if not (low <= start <= high and start <= end <= high):
            wrong = wrong or DataLossError
        records += fixed.between(partition, start, end)
    if wrong is not None:
        with pytest.raises(wrong):
            live.read(fixed.bootstrap, **question.options)
        return
    tasks = live.read_batches(fixed.bootstrap, **question.options)
    found = live.rows(batch for task in tasks for batch in task)
    has_headers = "includeHeaders" in question.options
    assert found == live.expected(records, headers=has_headers)
    if "maxRecordsPerPartition" in question.options:
        longest = int(question.options["maxRecordsPerPartition"])
        assert all(sum(batch.num_rows for batch in task) <= longest for task in tasks)


@given(columns=st.lists(st.sampled_from([*COLUMNS, "headers"]), min_size=1, unique=True))
@settings(max_examples=20, deadline=None)
def test_source_returns_only_wanted_columns(fixed: Fixed, columns: list[str]) -> None:
    found = live.read_batches(
        fixed.bootstrap, subscribe="fixed-a", columns=",".join(columns), includeHeaders="true"
    )
    batches = [batch for task in found for batch in task]
    assert all(batch.schema.names == columns for batch in batches)
    every = [row for p in (A0, A1) for row in live.expected(fixed.records[p], headers=True)]
    wanted = [{name: row[name] for name in columns} for row in every]
    assert sorted(map(repr, live.rows(batches))) == sorted(map(repr, wanted))


@given(low=st.integers(0, 3), high=st.integers(11, 20))
@settings(max_examples=10, deadline=None)
def test_source_without_fail_on_data_loss_omits_missing_offsets(
    fixed: Fixed, low: int, high: int
) -> None:
    options = {
        "subscribe": "fixed-b",
        "startingOffsets": as_json({B0: low}),
        "endingOffsets": as_json({B0: high}),
    }
    with pytest.raises(DataLossError) as caught:
        live.read(fixed.bootstrap, **options)
    assert f"fixed-b-0 has no offset {low} to begin at: it holds 4 to 10" in str(caught.value)
    assert f"fixed-b-0 has no offset {high} to end at" in str(caught.value)
    assert "failOnDataLoss=false" in str(caught.value)
    found = live.read(fixed.bootstrap, **options, failOnDataLoss="false")
    assert found == live.expected(fixed.records[B0])


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"subscribe": "fixed-a,fixed-x"}, UnknownTopicOrPartitionError, "no such topic: fixed-x"),
        (
            {"assign": '{"fixed-a": [0, 3]}'},
            UnknownTopicOrPartitionError,
            "no such partition: fixed-a-3",
        ),
        (
            {"subscribe": "fixed-a", "startingOffsets": '{"fixed-a": {"0": 1}}'},
            ConfigError,
            "names no offset for fixed-a-1, fixed-a-2",
        ),
        (
            {"assign": '{"fixed-a": [0]}', "endingOffsets": '{"fixed-a": {"0": 1, "2": 1}}'},
            ConfigError,
            "endingOffsets names fixed-a-2, which this query does not read",
        ),
        (
            {"subscribe": "fixed-b", "startingTimestamp": str(START_MS + 10**6)},
            ConfigError,
            "fixed-b-0 has no record as young as",
        ),
        ({"subscribe": "fixed-a", "kafka.no.such": "1"}, ConfigError, 'property: "no.such"'),
    ],
)
def test_source_error_names_the_topic_partition_or_setting(
    fixed: Fixed, options: dict[str, str], error: type[Exception], said: str
) -> None:
    with pytest.raises(error) as caught:
        live.read(fixed.bootstrap, **options)
    assert said in str(caught.value)


def test_source_pattern_without_match_reads_nothing(fixed: Fixed) -> None:
    assert live.read(fixed.bootstrap, subscribePattern="nothing-.*") == []


def test_source_pattern_excludes_internal_topics(cluster: Cluster, fixed: Fixed) -> None:
    cluster.wait(
        "the internal topic of telemetry",
        lambda: "__storage_telemetry" in live.admin(fixed.bootstrap).list_topics(timeout=10).topics,
    )
    found = live.read(fixed.bootstrap, subscribePattern="__storage_telemetry|fixed-b")
    assert {row["topic"] for row in found} == {"fixed-b"}
    assert live.read(fixed.bootstrap, subscribe="__storage_telemetry", columns="topic")


# --- streams -------------------------------------------------------------------------------------


@pytest.fixture
def topic(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("[", "-").replace("]", "")[-100:]
    cluster.create_topic(name, retention_ms=-1)
    return name


def read_all(stream: Stream) -> Iterator[list[Row]]:
    while (found := stream.batch()) is not None:
        yield found


def numbers(found: Sequence[Row]) -> list[int]:
    return sorted(int(row["value"]) for row in found)


def test_source_stream_with_limit_has_batches_of_at_most_that_size(
    cluster: Cluster, topic: str
) -> None:
    live.add_partitions(cluster.bootstrap, topic, 3)
    cluster.wait_whole(topic)
    live.write(cluster.bootstrap, topic, live.values(100, partitions=3))
    stream = Stream(
        cluster.bootstrap, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=30
    )
    batches = list(read_all(stream))
    # 10, 9 and 9 records of 34, 33 and 33; then 10 of each 24.
    assert [len(batch) for batch in batches] == [28, 30, 30, 12]
    assert numbers([row for batch in batches for row in batch]) == list(range(100))
    everything = stream.reader.latestOffset({topic: {"0": 0, "1": 0, "2": 0}}, ReadAllAvailable())
    assert everything == stream.at, "a trigger that takes everything ignores the limit"


def test_source_stream_from_latest_keeps_records_after_an_early_end(
    cluster: Cluster, topic: str
) -> None:
    """Its first batch is in the checkpoint's log of offsets, but did not complete."""
    live.write(cluster.bootstrap, topic, live.values(5))
    first = Stream(cluster.bootstrap, subscribe=topic)
    begin = first.reader.initialOffset()
    assert begin[topic]["0"] == 5
    live.write(cluster.bootstrap, topic, live.values(3, first=5))
    assert first.reader.initialOffset() == begin, "Spark asks twice and must hear the same"
    planned = first.reader.latestOffset(begin, first.reader.getDefaultReadLimit())

    again = Stream(cluster.bootstrap, subscribe=topic)
    later = again.reader.initialOffset()
    assert later[topic]["0"] == 8
    assert again.reader.partitions(later, planned) == []
    again.at = planned
    assert [numbers(batch) for batch in read_all(again)] == [[5, 6, 7]]


def test_source_stream_reads_new_partitions_from_their_beginning(
    cluster: Cluster, topic: str
) -> None:
    live.write(cluster.bootstrap, topic, live.values(4))
    stream = Stream(cluster.bootstrap, subscribe=topic, startingOffsets="earliest")
    assert numbers(stream.batch() or []) == [0, 1, 2, 3]
    live.add_partitions(cluster.bootstrap, topic, 3)
    cluster.wait_whole(topic)
    live.write(cluster.bootstrap, topic, live.values(9, first=4, partitions=3))
    found = [row for batch in read_all(stream) for row in batch]
    assert numbers(found) == list(range(4, 13))
    assert {row["partition"] for row in found} == {0, 1, 2}
    limited = Stream(
        cluster.bootstrap, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=5
    )
    limited.at = {topic: {"0": 4}}
    assert numbers([row for batch in read_all(limited) for row in batch]) == list(range(4, 13))


def test_source_stream_reads_new_topics_of_a_pattern(cluster: Cluster, topic: str) -> None:
    stream = Stream(cluster.bootstrap, subscribePattern=f"{topic}-.*", startingOffsets="earliest")
    assert stream.batch() == []
    cluster.create_topic(f"{topic}-more", retention_ms=-1)
    live.write(cluster.bootstrap, f"{topic}-more", live.values(3))
    assert numbers(stream.batch() or []) == [0, 1, 2]


def test_source_stream_with_available_now_ends_at_its_initial_end(
    cluster: Cluster, topic: str
) -> None:
    live.write(cluster.bootstrap, topic, live.values(10))
    stream = Stream(
        cluster.bootstrap,
        subscribe=topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=4,
        minOffsetsPerTrigger=3,
    )
    stream.reader.prepareForTriggerAvailableNow()
    assert numbers(stream.batch() or []) == [0, 1, 2, 3]
    live.write(cluster.bootstrap, topic, live.values(10, first=10))
    # The last batch is below the minimum: a wait for more would not end.
    assert [numbers(batch) for batch in read_all(stream)] == [[4, 5, 6, 7], [8, 9]]
    found = stream.reader.reportLatestOffset()
    assert found is not None
    assert found[topic]["0"] == 10


def test_source_stream_waits_for_its_minimum_up_to_the_maximum_delay(
    cluster: Cluster, topic: str
) -> None:
    live.write(cluster.bootstrap, topic, live.values(3))
    options = {
        "subscribe": topic,
        "startingOffsets": "earliest",
        "minOffsetsPerTrigger": 5,
        "maxTriggerDelay": "1h",
    }
    stream = Stream(cluster.bootstrap, **options)
    assert numbers(stream.batch() or []) == [0, 1, 2], "the first batch does not wait"
    live.write(cluster.bootstrap, topic, live.values(4, first=3))
    assert stream.batch() is None
    live.write(cluster.bootstrap, topic, live.values(1, first=7))
    assert numbers(stream.batch() or []) == [3, 4, 5, 6, 7]

    hasty = Stream(cluster.bootstrap, **{**options, "maxTriggerDelay": "1ms"})
    hasty.batch()
    live.write(cluster.bootstrap, topic, live.values(1, first=8))
    time.sleep(0.01)
    assert numbers(hasty.batch() or []) == [8]


# --- lost records -------------------------------------------------------------------------------


def streams_of(cluster: Cluster, topic: str, done: int) -> tuple[Stream, Stream]:
    """Return one stream that fails on data loss and one that continues, both after ``done``
    records."""
    both = []
    for fails in ("true", "false"):
        stream = Stream(
            cluster.bootstrap, subscribe=topic, startingOffsets="earliest", failOnDataLoss=fails
        )
        assert len(stream.batch() or []) == done
        both.append(stream)
    return both[0], both[1]


def test_source_stream_reports_trimmed_records(cluster: Cluster, topic: str) -> None:
    live.write(cluster.bootstrap, topic, live.values(10))
    strict, easy = streams_of(cluster, topic, 10)
    live.write(cluster.bootstrap, topic, live.values(10, first=10))
    live.delete_records(cluster.bootstrap, topic, 15)
    with pytest.raises(DataLossError) as caught:
        strict.batch()
    assert f"{topic}-0 offsets 10 to 20" in str(caught.value)
    assert "offset 10 is gone: the log holds 15 to 20" in str(caught.value)
    assert numbers(easy.batch() or []) == [15, 16, 17, 18, 19]


def recreate_topic(cluster: Cluster, topic: str, records: int) -> None:
    live.delete_topic(cluster.bootstrap, topic)
    cluster.wait(
        "the topic to be gone",
        lambda: topic not in live.admin(cluster.bootstrap).list_topics(timeout=10).topics,
    )
    cluster.create_topic(topic, retention_ms=-1)
    live.write(cluster.bootstrap, topic, live.values(records, first=100))


@pytest.mark.parametrize("records", [3, 10, 25], ids=["shorter", "as-long", "longer"])
def test_source_stream_reports_a_recreated_topic(
    cluster: Cluster, topic: str, records: int
) -> None:
    """Also a topic with as many records as the old one, or more."""
    live.write(cluster.bootstrap, topic, live.values(10))
    strict, easy = streams_of(cluster, topic, 10)
    recreate_topic(cluster, topic, records)
    with pytest.raises(DataLossError, match=f"topic {topic} was deleted and recreated"):
        strict.batch()
    found = [row for batch in read_all(easy) for row in batch]
    assert numbers(found) == list(range(100, 100 + records))


def test_source_batch_reports_a_topic_deleted_between_lookups(
    cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.write(cluster.bootstrap, topic, live.values(10))
    resolve = OffsetLookup.resolve

    def resolve_after_deletion(self: OffsetLookup, *args: Any, is_start: bool) -> Any:
        if is_start:
            live.delete_topic(cluster.bootstrap, topic)
        return resolve(self, *args, is_start=is_start)

    monkeypatch.setattr(OffsetLookup, "resolve", resolve_after_deletion)
    with pytest.raises(DataLossError, match=f"{topic}-0 is gone before anything of it was read"):
        live.read(cluster.bootstrap, subscribe=topic, startingOffsets="earliest")


def test_source_stream_reports_a_deleted_topic(cluster: Cluster, topic: str) -> None:
    live.write(cluster.bootstrap, topic, live.values(10))
    strict, easy = streams_of(cluster, topic, 10)
    live.delete_topic(cluster.bootstrap, topic)
    with pytest.raises(DataLossError, match=f"{topic}-0 is gone: it was read up to offset 10"):
        strict.batch()
    assert easy.batch() == []
    assert easy.batch() is None


def test_source_stream_accepts_checkpoint_without_topic_ids(cluster: Cluster, topic: str) -> None:
    """The official connector writes such checkpoints."""
    live.write(cluster.bootstrap, topic, live.values(10))
    stream = Stream(cluster.bootstrap, subscribe=topic)
    stream.at = {topic: {"0": 4}}
    assert numbers(stream.batch() or []) == [4, 5, 6, 7, 8, 9]
    stream.at = {topic: {"0": 12}}
    with pytest.raises(DataLossError, match="ends at offset 10, but was read up to offset 12"):
        stream.batch()


# --- with Spark ----------------------------------------------------------------------------------


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def frame(session: SparkSession, bootstrap: str, **options: str) -> DataFrame:
    reader = session.read.format("kraftjbod").option("kafka.bootstrap.servers", bootstrap)
    return reader.options(**options).load()


def test_source_frame_has_schema_and_rows_of_the_topic(session: SparkSession, fixed: Fixed) -> None:
    plain = frame(session, fixed.bootstrap, subscribe="fixed-b")
    assert plain.schema == RECORD
    whole = frame(
        session, fixed.bootstrap, SUBSCRIBE="fixed-a", includeheaders="true", minPartitions="5"
    )
    assert whole.schema == RECORD_WITH_HEADERS
    millis = "CAST(unix_micros(timestamp) / 1000 AS LONG) AS timestamp"
    found = whole.selectExpr(*(millis if name == "timestamp" else name for name in whole.columns))
    rows = [row.asDict(recursive=True) for row in found.collect()]
    rows.sort(key=lambda row: (row["partition"], row["offset"]))
    for row in rows:
        row["key"], row["value"] = (
            bytes(b) if b is not None else None for b in (row["key"], row["value"])
        )
    assert rows == [row for p in (A0, A1) for row in live.expected(fixed.records[p], headers=True)]
    assert frame(session, fixed.bootstrap, subscribePattern="nothing-.*").count() == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"subscribe": "fixed-a", "maxOffsetPerTrigger": "1"},
            "did you mean maxOffsetsPerTrigger?",
        ),
        ({"subscribe": "nowhere"}, "no such topic: nowhere"),
        (
            {"subscribe": "fixed-b", "startingOffsets": '{"fixed-b": {"0": 99}}'},
            "fixed-b-0 has no offset 99 to begin at: it holds 4 to 10",
        ),
    ],
)
def test_source_errors_are_raised_by_spark_with_their_reason(
    session: SparkSession, fixed: Fixed, options: dict[str, str], said: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        frame(session, fixed.bootstrap, **options).count()
    assert said in str(caught.value)


def run_to_end(
    session: SparkSession, bootstrap: str, out: Path, **options: str
) -> list[dict[str, Any]]:
    """Run a query to Parquet with Trigger.AvailableNow; return the progress of its batches."""
    reader = session.readStream.format("kraftjbod").option("kafka.bootstrap.servers", bootstrap)
    query = (
        reader.options(**options)
        .load()
        .selectExpr("CAST(value AS STRING) AS value", "partition", "offset")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(out / "checkpoint"))
        .option("path", str(out / "rows"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return [json.loads(progress.json) for progress in query.recentProgress]


def give_the_form_of_old(offsets: Path, topic: str) -> None:
    """Rewrite checkpoints to the older form, with the topic's id among its partitions."""
    for path in offsets.iterdir():
        if not path.name.isdigit():
            continue
        *head, printed = path.read_text().splitlines()
        (own, id_) = sorted(json.loads(printed).items())
        assert own[0] == topic
        old = {topic: {**own[1], "topicId": id_[0].removeprefix(f"{topic}#topicId=")}}
        path.write_text("\n".join([*head, json.dumps(old)]))
        (offsets / f".{path.name}.crc").unlink()


def test_source_query_continues_from_its_checkpoint(
    session: SparkSession, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "7"}
    live.write(cluster.bootstrap, topic, live.values(20))
    first = run_to_end(session, cluster.bootstrap, tmp_path, **options)
    assert [p["numInputRows"] for p in first if p["numInputRows"]] == [7, 7, 6]
    give_the_form_of_old(tmp_path / "checkpoint" / "offsets", topic)
    live.write(cluster.bootstrap, topic, live.values(5, first=20))
    live.add_partitions(cluster.bootstrap, topic, 2)
    cluster.wait_whole(topic)
    live.write(cluster.bootstrap, topic, live.values(6, first=25, partitions=2))
    second = run_to_end(session, cluster.bootstrap, tmp_path, **options)
    (got,) = second[-1]["sources"]
    assert got["endOffset"][topic] == {"0": 28, "1": 3}
    found = session.read.parquet(str(tmp_path / "rows")).orderBy("value").collect()
    assert [int(row["value"]) for row in found] == list(range(31))
    assert len({(row["partition"], row["offset"]) for row in found}) == 31


def test_source_query_that_fails_reports_the_loss(
    session: SparkSession, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    options = {"subscribe": topic, "startingOffsets": "earliest"}
    live.write(cluster.bootstrap, topic, live.values(5))
    run_to_end(session, cluster.bootstrap, tmp_path, **options)
    recreate_topic(cluster, topic, 7)
    with pytest.raises(PySparkException, match=f"topic {topic} was deleted and recreated"):
        run_to_end(session, cluster.bootstrap, tmp_path, **options)
    run_to_end(session, cluster.bootstrap, tmp_path, **options, failOnDataLoss="false")
    found = session.read.parquet(str(tmp_path / "rows")).orderBy("value").collect()
    assert [int(row["value"]) for row in found] == [0, 1, 2, 3, 4, *range(100, 107)]


def test_option_errors_leave_the_source_without_inner_frames() -> None:
    """Spark prints the traceback of its Python worker before the message."""
    options = {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "startingOffsets": "{"}
    with pytest.raises(ConfigError, match=r"option startingOffsets is '\{'") as refused:
        KraftjbodDataSource(options).schema()
    shown = "".join(traceback.format_exception(refused.value))
    assert "options.py" not in shown
    assert "JSONDecodeError" not in shown
