"""The reads of one task: exact ends, all codecs, gaps, deleted records, changes of leaders."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from kraftjbod.core.errors import ConfigError, OperatingError, RequestTimedOutError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.spark.connector.offsets import DataLossError, OffsetRange
from kraftjbod.spark.connector.options import COLUMNS
from kraftjbod.spark.connector.record_reader import (
    BATCH_ROWS,
    IDLE_CONSUMERS,
    IDLE_S,
    BorrowedConsumer,
    ReadSettings,
    RecordReader,
    binary_column,
    close_idle_consumers,
    idle_consumers,
)
from kraftjbod.spark.tables.schemas import RECORD
from tests.integration.clients import COMPRESSIONS
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster
from tests.spark import live
from tests.spark.live import Record

pytestmark = [pytest.mark.process, pytest.mark.clients, pytest.mark.timeout(300)]

SCHEMA: Final[pa.Schema] = to_arrow_schema(RECORD, timezone="UTC")


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Cluster:
    config = {"log.cleaner.backoff.ms": "100", "log.cleaner.min.cleanable.ratio": "0.01"}
    return make_shared_cluster(brokers=1, dirs=2, config=config)


@pytest.fixture(autouse=True)
def no_idle_consumers() -> Iterator[None]:
    """Remove idle consumers of other tests before and after each test."""
    close_idle_consumers()
    yield
    close_idle_consumers()


def reader(
    cluster: Cluster,
    topic: str,
    start: int,
    end: int,
    *,
    fails: bool = True,
    poll_timeout_ms: int = 60_000,
    **kafka: str,
) -> RecordReader:
    named = {name.replace("_", "."): value for name, value in kafka.items()}
    settings = ReadSettings(
        kafka={"bootstrap.servers": cluster.bootstrap, "group.id": "tests", **named},
        columns=COLUMNS,
        fail_on_data_loss=fails,
        poll_timeout_ms=poll_timeout_ms,
    )
    found = OffsetRange(partition=TopicPartition(topic, 0), start=start, end=end)
    return RecordReader(found, settings, SCHEMA)


def offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch["offset"].to_pylist()]


@given(values=st.lists(st.none() | st.binary(max_size=9), max_size=40))
@settings(deadline=None)
def test_binary_column_equals_the_array_of_arrow(values: list[bytes | None]) -> None:
    column = binary_column(values)
    column.validate(full=True)
    assert column == pa.array(values, pa.binary())
    assert column.null_count == values.count(None)


def test_binary_column_beyond_arrows_limit_is_refused() -> None:
    with pytest.raises(OperatingError, match=r"queued\.max\.messages\.kbytes lower"):
        binary_column([b"x" * 2**20] * 2048)


def test_reader_reads_every_codec(cluster: Cluster) -> None:
    cluster.create_topic("codecs", retention_ms=-1)
    written: list[Record] = []
    for number, codec in enumerate(COMPRESSIONS):
        records = live.values(50, first=number * 50)
        written += live.write(cluster.bootstrap, "codecs", records, compression_type=codec)
    found = live.rows(reader(cluster, "codecs", 0, len(written)).batches())
    assert found == live.expected(written)


def test_reader_of_range_within_batches_returns_exactly_the_range(cluster: Cluster) -> None:
    cluster.create_topic("ends", retention_ms=-1)
    live.write(cluster.bootstrap, "ends", live.values(1000), compression_type="zstd")
    for start, end in ((0, 1), (17, 18), (123, 877), (999, 1000), (500, 500), (0, 1000)):
        found = offsets(reader(cluster, "ends", start, end).batches())
        assert found == list(range(start, end))


def test_reader_bounds_the_rows_of_batches(cluster: Cluster) -> None:
    cluster.create_topic("many", retention_ms=-1)
    count = BATCH_ROWS * 2 + 1
    live.write(cluster.bootstrap, "many", live.values(count), queue_buffering_max_messages=200_000)
    batches = list(reader(cluster, "many", 0, count).batches())
    assert all(0 < batch.num_rows <= BATCH_ROWS for batch in batches)
    assert offsets(iter(batches)) == list(range(count))


def test_reader_with_full_queue_fetches_again_soon(cluster: Cluster) -> None:
    """A client with a full queue fetches again soon after the queue is emptied."""
    cluster.create_topic("wide", retention_ms=-1)
    count = 600
    records = [Record(value=b"x" * 1000)] * count
    live.write(cluster.bootstrap, "wide", records, batch_num_messages=20)
    kafka = {"queued.max.messages.kbytes": "1", "fetch.message.max.bytes": "65536"}
    servers = {"bootstrap.servers": cluster.bootstrap, "group.id": "tests"}
    turns: list[int] = []
    with BorrowedConsumer({**servers, **kafka}) as consumer:
        consumer.assign(TopicPartition("wide", 0), 0)
        while sum(turns) < count:
            turns.append(sum(message.error() is None for message in consumer.take()))
    in_vain = turns[turns.index(next(filter(None, turns))) :].count(0)
    assert in_vain < 4, turns


def test_reader_of_compacted_log_skips_missing_offsets(cluster: Cluster) -> None:
    """Offsets are missing at the beginning, in the middle, and at the end of a range."""
    cluster.create_topic("holes", cleanup_policy="compact", segment_bytes=5_000, retention_ms=-1)
    # Every fortieth record stays, and the last record of each other key.
    keys = [b"own-%d" % i if i % 40 == 0 else b"k%d" % (i % 7) for i in range(700)]
    records = [Record(value=b"v" * 40, key=key) for key in keys]
    live.write(cluster.bootstrap, "holes", records, batch_num_messages=10)

    def compacted() -> list[int]:
        return offsets(reader(cluster, "holes", 0, 700).batches())

    cluster.wait("compaction", lambda: len(compacted()) < 400)
    found = compacted()
    assert found[-1] == 699
    gaps = [(a, b) for a, b in itertools.pairwise(found) if b - a > 3]
    assert gaps
    last, after = gaps[-1]
    for start, end in ((0, last + 2), (last + 1, after), (last + 1, after + 1), (last, after - 1)):
        # Compaction may continue between two reads, which only removes more records.
        own = offsets(reader(cluster, "holes", start, end).batches())
        assert set(own) <= {offset for offset in found if start <= offset < end}
        if start <= after < end:
            assert after in own or compacted() != found


def test_reader_of_deleted_range_raises_data_loss_or_returns_nothing(cluster: Cluster) -> None:
    """The last records are deleted and no new ones exist: the end of the log shows that."""
    cluster.create_topic("tail", retention_ms=-1)
    live.write(cluster.bootstrap, "tail", live.values(10))
    live.delete_records(cluster.bootstrap, "tail", 10)
    with pytest.raises(DataLossError, match="offset 4 is gone: the log holds 10 to 10"):
        offsets(reader(cluster, "tail", 4, 10).batches())
    assert offsets(reader(cluster, "tail", 4, 10, fails=False).batches()) == []


def test_reader_reports_records_deleted_during_the_read(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create_topic("trimmed", retention_ms=-1, segment_bytes=20_000)
    live.write(
        cluster.bootstrap, "trimmed", [Record(value=b"x" * 1000)] * 100, batch_num_messages=5
    )
    slow = {"fetch_message_max_bytes": "2000", "queued_min_messages": "1"}
    strict = reader(cluster, "trimmed", 0, 100, **slow).batches()
    easy = reader(cluster, "trimmed", 0, 100, fails=False, **slow).batches()
    begun = [offsets(iter([next(strict)])), offsets(iter([next(easy)]))]
    assert begun[0][0] == begun[1][0] == 0
    live.delete_records(cluster.bootstrap, "trimmed", 80)
    with pytest.raises(DataLossError, match="the log holds 80 to 100") as caught:
        offsets(strict)
    assert "failOnDataLoss=false" in str(caught.value)
    with caplog.at_level(logging.WARNING):
        found = begun[1] + offsets(easy)
    assert "the log holds 80 to 100; failOnDataLoss is false" in caplog.text
    assert found == sorted(set(found))
    assert found[-20:] == list(range(80, 100))


def test_reader_after_false_out_of_range_reads_the_offset(cluster: Cluster) -> None:
    """A broker reports the offset as out of range, and the leader has it."""
    cluster.create_topic("again", retention_ms=-1)
    live.write(cluster.bootstrap, "again", live.values(10))
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "tests"}
    with BorrowedConsumer(settings) as consumer:
        reader(cluster, "again", 4, 10).out_of_range(consumer)
        taken: list[int] = []
        cluster.wait(
            "the records", lambda: taken.extend(m.offset() for m in consumer.take()) or taken
        )
        assert taken[0] == 4
        assert "offset 4 was said to be out of range" in consumer.trouble


def test_reader_of_deleted_topic_raises_data_loss_or_returns_nothing(cluster: Cluster) -> None:
    cluster.create_topic("going", retention_ms=-1)
    live.write(cluster.bootstrap, "going", live.values(10))
    live.delete_topic(cluster.bootstrap, "going")
    options = {"topic_metadata_propagation_max_ms": "500"}
    with pytest.raises(DataLossError, match="going-0 offsets 0 to 10: the partition is gone"):
        offsets(reader(cluster, "going", 0, 10, **options).batches())
    assert offsets(reader(cluster, "going", 0, 10, fails=False, **options).batches()) == []


def test_reader_without_records_ends_with_a_timeout(cluster: Cluster) -> None:
    """For missing records, and for an unreachable cluster."""
    cluster.create_topic("short", retention_ms=-1)
    live.write(cluster.bootstrap, "short", live.values(10))
    with pytest.raises(RequestTimedOutError) as caught:
        offsets(reader(cluster, "short", 5, 11, poll_timeout_ms=1000).batches())
    assert "short-0 offsets 5 to 11: no record at offset 10 for 1 s" in str(caught.value)
    unreachable = reader(
        cluster, "short", 0, 1, poll_timeout_ms=1000, bootstrap_servers="127.0.0.1:1"
    )
    with pytest.raises(RequestTimedOutError, match=r"127\.0\.0\.1:1"):
        offsets(unreachable.batches())


def test_reader_of_time_outside_sparks_range_names_the_column(cluster: Cluster) -> None:
    cluster.create_topic("future", retention_ms=-1, message_timestamp_after_max_ms=2**63 - 1)
    live.write(cluster.bootstrap, "future", [Record(value=b"x", timestamp_ms=2**62)])
    with pytest.raises(OperatingError, match="leave column timestamp out"):
        offsets(reader(cluster, "future", 0, 1).batches())


def test_reader_with_unknown_setting_names_it(cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match=r"no\.such\.setting"):
        offsets(reader(cluster, "any", 0, 1, no_such_setting="1").batches())


def test_reader_closed_early_leaves_its_consumer_reusable(cluster: Cluster) -> None:
    cluster.create_topic("kept", retention_ms=-1)
    live.write(cluster.bootstrap, "kept", live.values(10))
    for start in (0, 3, 0):
        assert offsets(reader(cluster, "kept", start, 10).batches()) == list(range(start, 10))
    abandoned = reader(cluster, "kept", 0, 10).batches()
    next(abandoned)
    abandoned.close()  # type: ignore[attr-defined] # it is a generator
    assert offsets(reader(cluster, "kept", 2, 5).batches()) == [2, 3, 4]
    assert idle_consumers() == 1


def test_idle_consumers_are_kept_for_tasks_with_equal_settings() -> None:
    def settings(number: int) -> dict[str, str]:
        return {"bootstrap.servers": "h:1", "group.id": "g", "client.id": str(number)}

    with BorrowedConsumer(settings(0)) as one, BorrowedConsumer(settings(0)) as two:
        assert one is not two
    with BorrowedConsumer(settings(0)) as three:
        assert three in (one, two)
    assert idle_consumers() == 1
    with pytest.raises(ValueError, match="task failed"), BorrowedConsumer(settings(0)):
        raise ValueError("task failed")
    assert idle_consumers() == 0, "a consumer of a task that failed is not used again"
    for number in range(IDLE_CONSUMERS + 2):
        with BorrowedConsumer(settings(number)):
            assert idle_consumers() == min(number, IDLE_CONSUMERS)
    close_idle_consumers(unused_s=IDLE_S)
    assert idle_consumers() == IDLE_CONSUMERS
    close_idle_consumers()
    assert idle_consumers() == 0


def test_reader_continues_after_failure_of_the_leaders_disk(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=3, dirs=2)
    cluster.create_topic(
        "moving", replication_factor=3, retention_ms=-1, assignments={0: [1, 2, 3]}
    )
    live.write(cluster.bootstrap, "moving", [Record(value=b"x" * 1000)] * 100, batch_num_messages=5)
    slow = reader(
        cluster, "moving", 0, 100, fetch_message_max_bytes="2000", queued_min_messages="1"
    ).batches()
    found = offsets(iter([next(slow)]))
    (leader,) = (part.leader for part in cluster.partitions("moving").values())
    (path,) = (
        path for path, own in cluster.replicas_by_dir(leader, "moving").items() if own == [0]
    )
    disk = Path(path)
    mode = disk.stat().st_mode & 0o777
    disk.chmod(0)
    try:
        cluster.wait_event(cluster.brokers[leader], "log_dir_offline")
        found += offsets(slow)
    finally:
        disk.chmod(mode)
    assert found == list(range(100))
    assert cluster.partitions("moving")[0].leader != leader
