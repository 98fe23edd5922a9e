"""Additional load of a soak with large logs.

* :class:`Fill` writes gigabytes in small batches before the faults begin, and reads them back at
  the end. Record ``n`` of a partition holds its number and has the offset ``n``.
* :class:`LogQueries` sends ListOffsets requests, deletes the oldest records of the large topic, and
  creates, fills and deletes topics during the faults.
* :func:`unexplained_states` finds directories that went STALLED or OFFLINE without a fault on
  their broker.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from confluent_kafka import (
    OFFSET_INVALID,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.integration.checker import read

TOPIC: Final = "soak-large"
PARTITIONS: Final = 6
_VALUE_BYTES: Final = 4000
_NUMBER_DIGITS: Final = 20
#: 16 kB, which is the batch size of Kafka's producer.
_BATCH_RECORDS: Final = 4
_IN_FLIGHT: Final = 20_000
_FLUSH_S: Final = 300.0
_ASK_S: Final = 20.0
_PAUSE_S: Final = 0.2
#: Number of queries between deletions of records and of a topic.
_QUERIES_PER_DELETE: Final = 20
_DELETED_SHARE: Final = 0.01
#: Small enough that no segment is deleted. Otherwise replicas differ until retention runs on each.
_MOST_DELETED: Final = 500_000
_READ_S: Final = 600.0
#: The offset in the answer to a query by time that no record matches.
NO_OFFSET: Final = -1
_STATES: Final = ("log_dir_stalled", "log_dir_offline")
#: Delay between a state change and its event.
_LATE_S: Final = 5.0


class Fill:
    """Writes the records of :data:`TOPIC` and reads them back."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.written = [0] * PARTITIONS
        self._failures: list[str] = []
        self.began_ms = self.ended_ms = 0

    def write(self, size_bytes: int, report_line: Callable[[str], None]) -> None:
        """Write ``size_bytes`` of values, evenly to all partitions.

        :raises AssertionError: a record was not acknowledged.
        """
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 5,
                # By number: librdkafka cannot rebuild a batch that it cut by size.
                "batch.num.messages": _BATCH_RECORDS,
                "queue.buffering.max.messages": 2 * _IN_FLIGHT,
                "message.timeout.ms": int(_FLUSH_S * 1000),
            }
        )
        self.began_ms = int(time.time() * 1000)
        count = size_bytes // _VALUE_BYTES // PARTITIONS
        for number in range(count):
            for partition in range(PARTITIONS):
                producer.produce(
                    TOPIC, value=_value(number), partition=partition, on_delivery=self._delivered
                )
            while len(producer) > _IN_FLIGHT:
                producer.poll(0.1)
            if number % (count // 10 + 1) == 0:
                report_line(f"filled {number / count:.0%} of {size_bytes / 1e9:.1f} GB")
        left = producer.flush(_FLUSH_S)
        assert not left and not self._failures, f"{left} unanswered, {self._failures[:3]}"
        self.written = [count] * PARTITIONS
        self.ended_ms = int(time.time() * 1000)

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None:
            self._failures.append(str(error))

    def findings(self) -> list[str]:
        """Read all records that were not deleted; return a sentence per partition with a gap."""
        found = []
        for partition, written in enumerate(self.written):
            expected = None
            records = read(self._bootstrap, TOPIC, partition, timeout_s=_READ_S)
            for offset, value in records:
                number = int(value[:_NUMBER_DIGITS])
                if offset != number or expected not in (None, offset):
                    found.append(f"{TOPIC}-{partition}: {value[:_NUMBER_DIGITS]!r} at {offset}")
                    break
                expected = offset + 1
            else:
                if expected != written:
                    found.append(f"{TOPIC}-{partition} ends at {expected} instead of {written}")
        return found


def _value(number: int) -> bytes:
    return b"%0*d" % (_NUMBER_DIGITS, number) + bytes(_VALUE_BYTES - _NUMBER_DIGITS)


class LogQueries:
    """Sends queries and deletions in the ``with`` block; ``counts`` has their numbers by result.

    A failed request is only counted, since brokers have faults. An impossible offset is a finding.
    """

    def __init__(self, bootstrap: str, fill: Fill, seed: int) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        self._fill = fill
        self._rng = random.Random(seed)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log-queries", daemon=True)
        self.counts: Counter[str] = Counter()
        self.findings: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        for number in itertools.count(1):
            if self._stopping.wait(_PAUSE_S):
                return
            self._attempt("ListOffsets", self._query)
            if number % _QUERIES_PER_DELETE == 0:
                self._attempt("DeleteRecords", self._delete_records)
                self._attempt("DeleteTopics", lambda n=number: self._delete_topic(f"soak-gone-{n}"))

    def _attempt(self, name: str, ask: Callable[[], None]) -> None:
        try:
            ask()
        except KafkaException as e:
            name = f"{name} refused with {e.args[0].name()}"
            # librdkafka 2.16 keeps the leader epoch that a broker refused, and sends it again.
            with contextlib.suppress(KafkaException):
                self._admin.list_topics(timeout=_ASK_S)
        self.counts[name] += 1

    def _query(self) -> None:
        partition = self._rng.randrange(PARTITIONS)
        when_ms = self._rng.randint(self._fill.began_ms, self._fill.ended_ms)
        by_time = OffsetSpec.for_timestamp(when_ms)
        spec = self._rng.choice((by_time, OffsetSpec.max_timestamp(), OffsetSpec.earliest()))
        found = self._listed_offset(partition, spec)
        # No record is that new if the partition's last record is older than the other partitions'.
        least = NO_OFFSET if spec is by_time else 0
        if not least <= found <= self._fill.written[partition]:
            self.findings.append(
                f"ListOffsets of {TOPIC}-{partition} with {type(spec).__name__} found {found}"
            )

    def _listed_offset(self, partition: int, spec: OffsetSpec) -> int:
        asked = TopicPartition(TOPIC, partition)
        listed = self._admin.list_offsets({asked: spec}, request_timeout=_ASK_S)
        return require_answered(listed[asked].result().offset)

    def _delete_records(self) -> None:
        partition = self._rng.randrange(PARTITIONS)
        asked = TopicPartition(TOPIC, partition)
        start = self._listed_offset(partition, OffsetSpec.earliest())
        written = self._fill.written[partition]
        asked.offset = min(written // 2, _MOST_DELETED, start + int(written * _DELETED_SHARE))
        self._admin.delete_records([asked], request_timeout=_ASK_S)[asked].result()

    def _delete_topic(self, name: str) -> None:
        made = self._admin.create_topics([NewTopic(name, 2, 3)], request_timeout=_ASK_S)
        made[name].result()
        for number in range(1000):
            self._producer.produce(name, value=_value(number))
        self._producer.flush(_ASK_S)
        self._admin.delete_topics([name], request_timeout=_ASK_S)[name].result()


def require_answered(offset: int) -> int:
    """Return the offset of a ListOffsets result that a broker sent.

    If the request to the leader timed out or lost its connection, librdkafka 2.16 returns a result
    without an error, and with an offset that no broker sends.

    :raises KafkaException: no broker answered.
    """
    if offset == OFFSET_INVALID:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "the leader did not answer"))
    return offset


@dataclass(frozen=True, slots=True)
class Struck:
    """A period (wall clock, seconds) in which faults affected these brokers."""

    brokers: frozenset[int]
    began_s: float
    ended_s: float


def unexplained_states(
    events: Mapping[int, Iterable[Mapping[str, Any]]], struck: Sequence[Struck]
) -> list[str]:
    """Return a sentence for each directory that went STALLED or OFFLINE without a fault.

    :param events: the events of each broker, by its id.
    """
    found = []
    for broker, logged in events.items():
        for event in logged:
            if event["event"] not in _STATES:
                continue
            at_s = datetime.datetime.fromisoformat(event["timestamp"]).timestamp()
            if not any(
                broker in one.brokers and one.began_s <= at_s <= one.ended_s + _LATE_S
                for one in struck
            ):
                found.append(f"{event['event']} without a strike: {event}")
    return found
