"""The brokers that the scale parts measure: kraftjbod's, and Apache Kafka's if its jars are given.

They run one after the other on the same disk with the same client, and each figure names its
broker. ``python -m tests.bench.main --kafka-libs DIR`` names the folder of Kafka's jars.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient, NewTopic

from kraftjbod.core.ids import TopicPartition
from kraftjbod.protocol.messages import (
    FetchRequest,
    ListOffsetsRequest,
    MetadataRequest,
    ProduceRequest,
)
from kraftjbod.storage.checkpoints import format_offsets, parse_partition_metadata
from kraftjbod.storage.dir_names import PARTITION_METADATA, RECOVERY_POINT_CHECKPOINT
from tests.bench.disasters import count, is_whole
from tests.bench.figures import Process, Report, running_cluster
from tests.bench.kafka_process import kafka_alone
from tests.faults.large_log import GIB, MIB, LargeLog, write_sparse_log
from tests.faults.rig import batch
from tests.integration import raw

#: Sizes of a log; with batches of 1 MiB a GiB takes 4 MiB of a disk.
SIZES_GIB: Final = (1, 10, 100, 1000)
#: No retention, because the records of a generated log have timestamps of 1970.
KEPT: Final = {"retention.ms": "-1", "message.timestamp.before.max.ms": str(2**62)}
_CONFIG: Final = {"auto.create.topics.enable": "false"}
PRODUCE_VERSION: Final = 9
_LIST_OFFSETS_VERSION: Final = 7
_METADATA_VERSION: Final = 9
_FETCH_VERSION: Final = 11
_DEADLINE_S: Final = 600.0
_POLL_S: Final = 0.02
_TOPIC_PARTITIONS: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One broker, running."""

    name: str
    address: str
    process: Process
    log_dirs: Sequence[Path]

    # -- the process ------------------------------------------------------------------------

    def stop(self) -> float:
        """Seconds from SIGTERM until the process has ended."""
        began_s = time.perf_counter()
        self.process.terminate()
        wait("the process to end", lambda: not self.process.is_running)
        return time.perf_counter() - began_s

    def rss_kb(self) -> float:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e3

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    # -- topics -----------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> None:
        """Create a topic and wait until each partition has taken a record.

        :param config: with underscores instead of dots.
        """
        admin = AdminClient({"bootstrap.servers": self.address})
        configs = {key.replace("_", "."): value for key, value in config.items()}
        made = admin.create_topics([NewTopic(name, partitions, 1, config=KEPT | configs)])
        made[name].result(_DEADLINE_S)
        self.wait_served({name: partitions})

    def delete_topic(self, name: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.address})
        admin.delete_topics([name])[name].result(_DEADLINE_S)

    def create_many(self, partitions: int, first: int = 0) -> dict[str, int]:
        """Topics of at most 500 partitions, numbered from ``first``; partitions by topic."""
        topics = {}
        for number, begin in enumerate(range(0, partitions, _TOPIC_PARTITIONS), first):
            topics[f"many-{number}"] = min(_TOPIC_PARTITIONS, partitions - begin)
            self.create_topic(f"many-{number}", topics[f"many-{number}"])
        return topics

    def wait_served(self, topics: Mapping[str, int]) -> None:
        """Wait until every partition of ``topics`` has taken a record."""
        for topic, partitions in topics.items():
            wait(f"{topic} to take records", partial(self._is_written, topic, partitions))

    def _is_written(self, topic: str, partitions: int) -> bool:
        answer = self.ask(produce_request(topic, range(partitions)), PRODUCE_VERSION)
        return all(part.error_code == 0 for part in answer.responses[0].partition_responses)

    def ask(self, body: Any, version: int) -> Any:
        """One request on a new connection."""
        return raw.exchange(self.address, body, version)

    # -- logs -------------------------------------------------------------------------------

    def put_log(self, topic: str, size_gib: int) -> LargeLog:
        """Stop the broker, write a log of ``size_gib`` for a new topic, and start the broker."""
        shape = LargeLog.of_size(GIB, MIB, segments=size_gib)
        self.create_topic(topic, segment_bytes=str(GIB), file_delete_delay_ms="1000")
        self.stop()
        (directory,) = (found for d in self.log_dirs for found in d.glob(f"{topic}-0"))
        topic_id = parse_partition_metadata(
            (directory / PARTITION_METADATA).read_text(), PARTITION_METADATA
        )
        shutil.rmtree(directory)
        tp = TopicPartition(topic, 0)
        write_sparse_log(str(directory.parent), shape, topic_partition=tp, topic_id=topic_id)
        # All but the active segment were flushed, as when a broker rolled them.
        flushed = shape.end_offset - shape.batches_per_segment
        checkpoint = directory.parent / RECOVERY_POINT_CHECKPOINT
        checkpoint.write_bytes(format_offsets({tp: flushed}))
        _own(directory.parent)
        self.process.start()
        self.wait_served({topic: 1})
        return shape

    def list_offset(self, topic: str, timestamp: int) -> int:
        """The offset that ListOffsets finds for ``timestamp``, or for a special value."""
        request = ListOffsetsRequest
        part = request.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        asked = request.ListOffsetsTopic(name=topic, partitions=[part])
        answer = self.ask(request(replica_id=-1, topics=[asked]), _LIST_OFFSETS_VERSION)
        (found,) = answer.topics[0].partitions
        assert found.error_code == 0, found
        return int(found.offset)

    def fetch(self, topic: str, offset: int, size_bytes: int) -> int:
        """The number of bytes that a Fetch from ``offset`` returns."""
        request = FetchRequest
        part = request.FetchPartition(
            partition=0, fetch_offset=offset, partition_max_bytes=size_bytes
        )
        asked = request.FetchTopic(topic=topic, partitions=[part])
        body = request(max_wait_ms=1000, min_bytes=1, max_bytes=size_bytes, topics=[asked])
        answer = self.ask(body, _FETCH_VERSION)
        (found,) = answer.responses[0].partitions
        assert found.error_code == 0, found
        return len(found.records or b"")


Start = Callable[..., AbstractContextManager[Subject]]


def each_kind(report: Report) -> list[Start]:
    """Return functions that start a kraftjbod broker and, if jars are given, a Kafka broker.

    Each takes a configuration with keys that both brokers support.
    """
    kinds: list[Start] = [_ours]
    if report.kafka_libs is not None:
        kinds.append(partial(_kafka, report.kafka_libs))
    return kinds


@contextmanager
def _ours(config: Mapping[str, str] | None = None) -> Iterator[Subject]:
    with running_cluster(brokers=1, dirs=1, broker_config={1: _CONFIG | dict(config or {})}) as one:
        broker = one.brokers[1]
        yield Subject(
            name="ours", address=broker.address, process=broker, log_dirs=broker.files.log_dirs
        )


@contextmanager
def _kafka(libs: Path, config: Mapping[str, str] | None = None) -> Iterator[Subject]:
    with kafka_alone(libs, config=_CONFIG | dict(config or {})) as node:
        subject = Subject(name="Kafka", address=node.address, process=node, log_dirs=node.log_dirs)
        wait(
            "Kafka to serve",
            lambda: subject.ask(MetadataRequest(topics=[]), _METADATA_VERSION).brokers,
        )
        yield subject


def produce_request(topic: str, partitions: Sequence[int]) -> Any:
    """A ProduceRequest of version 9 with a record of a byte for each of ``partitions``."""
    request = ProduceRequest
    records = batch(timestamp=int(time.time() * 1000))
    parts = [request.PartitionProduceData(index=index, records=records) for index in partitions]
    data = request.TopicProduceData(name=topic, partition_data=parts)
    return request(acks=1, timeout_ms=10_000, topic_data=[data])


def create_replicated(address: str, topics: int, partitions: int) -> None:
    """Create topics with three replicas and wait until all are in sync."""
    admin = AdminClient({"bootstrap.servers": address})
    asked = MetadataRequest(topics=None)
    wait("three brokers", lambda: len(raw.exchange(address, asked, _METADATA_VERSION).brokers) == 3)
    made = [NewTopic(f"many-{number}", partitions, 3) for number in range(topics)]
    for future in admin.create_topics(made).values() if made else ():
        future.result(_DEADLINE_S)
    wait("all replicas in sync", lambda: count(address, is_whole) == topics * partitions)


def wait(what: str, condition: Callable[[], object]) -> None:
    """Poll until ``condition`` is true. A connection error counts as false.

    :raises AssertionError: on a timeout; the message has ``what``.
    """
    deadline = time.monotonic() + _DEADLINE_S
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except OSError:
            pass  # The broker does not listen yet.
        time.sleep(_POLL_S)
    raise AssertionError(f"waited {_DEADLINE_S:.0f} s for {what}")


def _own(directory: Path) -> None:
    """Change the owner of each file to the directory's owner, since daemons do not run as root."""
    owner = directory.stat()
    for root, dirs, files in os.walk(directory):
        for name in (*dirs, *files):
            os.chown(os.path.join(root, name), owner.st_uid, owner.st_gid)
