"""WIRE. `RecordReader`: reads one range of one partition as Arrow batches, on an executor.

* It starts and ends at exact offsets, even if offsets are missing. It commits no offsets and joins
  no consumer group.
* The client is librdkafka, which follows leader changes, decompresses and checks CRCs. It was not
  made for these brokers, so each job also proves that other clients work with them. Without a
  record for ``kafkaConsumer.pollTimeoutMs`` the read fails and reports its position.
* Lost records are an error or a warning, depending on ``failOnDataLoss``.
* A worker process keeps a few idle consumers with their connections for later tasks.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from kraftjbod.core.errors import OperatingError, RequestTimedOutError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.spark.connector.offset_lookup import is_transient, make_client, quiet
from kraftjbod.spark.connector.offsets import DataLossError, OffsetRange

#: Most records of an Arrow batch. Their bytes are bounded by ``queued.max.messages.kbytes``.
BATCH_ROWS: Final = 20_000
#: Limit of idle consumers per worker process, and their maximum age.
IDLE_CONSUMERS: Final = 4
IDLE_S: Final = 300.0
_POLL_S: Final = 0.5
_QUESTION_S: Final = 15.0
#: Limit of one column of a batch, whose offsets have 32 bits.
_MOST_BYTES: Final = 2**31 - 1
_MAX_MILLIS: Final = 2**63 // 1000 - 1
#: Defaults that a user's settings replace. The records of a range exist already, so a broker need
#: not wait for more: only the last fetch of a task would wait. A client whose queue is full tries
#: again after the backoff. With the library's default of a second, a worker would often wait that
#: long with an empty queue.
_DEFAULTS: Final = {
    "isolation.level": "read_uncommitted",
    "check.crcs": "true",
    "fetch.wait.max.ms": "10",
    "queued.max.messages.kbytes": "32768",
    "fetch.queue.backoff.ms": "5",
}
#: Settings that the source controls.
_OURS: Final = {
    "auto.offset.reset": "error",
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
}
_OUT_OF_RANGE: Final = frozenset(
    {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION}
)
_GONE: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_ID,
    }
)
_executor_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """Settings for all ranges of a query. ``kafka`` has librdkafka's settings, with the group
    id."""

    kafka: Mapping[str, str]
    columns: tuple[str, ...]
    fail_on_data_loss: bool
    poll_timeout_ms: int


def report_loss(message: str, *, fails: bool) -> None:
    """Report lost records as ``failOnDataLoss`` says: log a warning, or raise.

    :raises DataLossError: ``fails`` is true.
    """
    if fails:
        raise DataLossError(
            f"{message}. With option failOnDataLoss=false the query continues without them"
        )
    _executor_log.warning("%s; failOnDataLoss is false, so the query continues", message)


class RecordReader:
    """Reads the records of one range."""

    def __init__(self, found: OffsetRange, settings: ReadSettings, schema: pa.Schema) -> None:
        self._range = found
        self._settings = settings
        self._schema = schema
        #: Offset of the next record.
        self._position = found.start
        self._is_done = found.size <= 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the records of the range in order.

        :raises DataLossError: records are lost, and ``failOnDataLoss`` is true.
        :raises RequestTimedOutError: no record arrives for ``kafkaConsumer.pollTimeoutMs``.
        :raises OperatingError: records are damaged, or the cluster reports an error.
        """
        if self._is_done:
            return
        with BorrowedConsumer(self._settings.kafka) as consumer:
            consumer.assign(self._range.partition, self._position)
            patience_s = self._settings.poll_timeout_ms / 1000
            deadline = time.monotonic() + patience_s
            while not self._is_done:
                records = self._judge(consumer, consumer.take())
                if consumer.gone is not None and not records and not self._is_done:
                    self._hear(consumer, consumer.gone, -1)
                if records:
                    yield self._batch(records)
                    # Time spent by the caller on the batches does not count.
                    deadline = time.monotonic() + patience_s
                elif not self._is_done and time.monotonic() >= deadline:
                    raise RequestTimedOutError(
                        f"{self._range}: no record at offset {self._position} for {patience_s:g} s "
                        f"(kafkaConsumer.pollTimeoutMs): {consumer.trouble or 'no error reported'}"
                    )

    def _judge(self, consumer: RangeConsumer, messages: Sequence[Any]) -> Sequence[Any]:
        """Return the records of the range among ``messages``, and advance the position past them.

        Handles the errors among ``messages``.
        """
        records, errors = messages, []
        if any(map(Message.error, messages)):
            records = [message for message in messages if message.error() is None]
            errors = [message for message in messages if message.error() is not None]
        if records and records[-1].offset() >= self._range.end:
            records = [record for record in records if record.offset() < self._range.end]
            self._is_done = True
        if records:
            self._position = records[-1].offset() + 1
            self._is_done = self._is_done or self._position >= self._range.end
        for message in errors:
            if not self._is_done:
                self._hear(consumer, message.error(), message.offset())
        return records

    def _hear(self, consumer: RangeConsumer, error: Any, offset: int) -> None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            # An end before ours comes from a leader that does not know the high watermark yet.
            self._is_done = offset >= self._range.end
        elif code in _OUT_OF_RANGE:
            self.out_of_range(consumer)
        elif code in _GONE:
            self._lose(f"{self._range}: the partition is gone; it was read up to {self._position}")
            self._is_done = True
        elif is_transient(error):
            consumer.trouble = error.str()
        else:
            raise OperatingError(
                f"{self._range}: cannot be read at offset {self._position}: {error.str()}"
            )

    def out_of_range(self, consumer: RangeConsumer) -> None:
        """Handle a position that the broker calls out of range: report lost records, or try
        again."""
        first, last = consumer.watermarks(self._range.partition)
        if first <= self._position <= last:
            # The response came from a broker that was not the leader.
            consumer.trouble = f"offset {self._position} was said to be out of range"
            consumer.assign(self._range.partition, self._position)
            return
        self._lose(
            f"{self._range}: offset {self._position} is gone: the log holds {first} to {last}"
        )
        if self._position < first < self._range.end:
            self._position = first
            consumer.assign(self._range.partition, first)
        else:
            self._is_done = True

    def _lose(self, message: str) -> None:
        report_loss(message, fails=self._settings.fail_on_data_loss)

    # --- columns ---------------------------------------------------------------------------------

    def _batch(self, records: Sequence[Any]) -> pa.RecordBatch:
        """Return the requested columns of ``records`` as an Arrow batch."""
        columns = [self._column(name, records) for name in self._settings.columns]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, name: str, records: Sequence[Any]) -> pa.Array:
        count = len(records)
        match name:
            case "key":
                return binary_column(list(map(Message.key, records)))
            case "value":
                return binary_column(list(map(Message.value, records)))
            case "topic":
                return pa.repeat(pa.scalar(self._range.partition.topic, pa.string()), count)
            case "partition":
                return pa.repeat(pa.scalar(self._range.partition.partition, pa.int32()), count)
            case "offset":
                offsets = np.fromiter(map(Message.offset, records), np.int64, count)
                return _numbers(pa.int64(), offsets)
            case "timestamp":
                times = map(itemgetter(1), map(Message.timestamp, records))
                return self._micros(np.fromiter(times, np.int64, count))
            case "timestampType":
                kinds = map(itemgetter(0), map(Message.timestamp, records))
                # The client library counts from "none"; Kafka calls that -1.
                return _numbers(pa.int32(), np.fromiter(kinds, np.int32, count) - np.int32(1))
            case _:
                headers = list(map(_headers, map(Message.headers, records)))
                return pa.array(headers, self._schema.field("headers").type)

    def _micros(self, millis: Any) -> pa.Array:
        if millis.max() > _MAX_MILLIS:
            raise OperatingError(
                f"{self._range}: a timestamp of {millis.max()} ms is beyond Spark's last; leave "
                "column timestamp out (option columns)"
            )
        return _numbers(pa.timestamp("us", tz="UTC"), millis * 1000)


def binary_column(values: list[bytes | None]) -> pa.Array:
    """Return ``pa.array(values)``, built from buffers: several times as fast, and without pandas.

    :raises OperatingError: the values exceed 2 GiB, the limit of a column.
    """
    count = len(values)
    validity = None
    if None in values:
        is_there = np.fromiter((value is not None for value in values), np.bool_, count)
        validity = pa.py_buffer(np.packbits(is_there, bitorder="little"))
    there: list[Any] = [value or b"" for value in values] if validity else values
    ends = np.zeros(count + 1, np.int64)
    np.cumsum(np.fromiter(map(len, there), np.int64, count), out=ends[1:])
    if ends[-1] > _MOST_BYTES:
        raise OperatingError(
            f"{count} records of {ends[-1]} bytes came at once, and a batch holds {_MOST_BYTES}: "
            "set option kafka.queued.max.messages.kbytes lower"
        )
    buffers = [validity, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(there))]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def _numbers(kind: pa.DataType, numbers: Any) -> pa.Array:
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _headers(headers: Any) -> list[dict[str, object]] | None:
    """Return the headers as the connector does: None for a record without headers."""
    if not headers:
        return None
    return [{"key": key, "value": value} for key, value in headers]


# --- consumers -----------------------------------------------------------------------------------


class RangeConsumer:
    """A librdkafka consumer that reads one range of offsets after the other.

    ``trouble`` is the last error that it reported, empty without one. ``gone`` is the error about a
    missing topic, or None; the client does not report it in order with the records.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.trouble = ""
        self.gone: Any = None
        self.idle_since = 0.0
        whole = {**_DEFAULTS, **quiet(settings), **_OURS, "error_cb": self._on_error}
        self._consumer: Any = make_client(Consumer, whole)

    def _on_error(self, error: Any) -> None:
        self.trouble = error.str()
        if error.code() in _GONE:
            self.gone = error

    def assign(self, partition: TopicPartition, offset: int) -> None:
        """Read only ``partition``, starting at ``offset``."""
        self._consumer.assign([ClientPartition(partition.topic, partition.partition, offset)])

    def take(self) -> list[Any]:
        """Return the available messages, including errors; waits up to half a second for the first
        one."""
        first = self._consumer.poll(_POLL_S)
        if first is None:
            return []
        # With a time-out, consume would wait for that many messages.
        return [first, *self._consumer.consume(BATCH_ROWS - 1, 0)]

    def watermarks(self, partition: TopicPartition) -> tuple[int, int]:
        """Return the leader's current first offset, and the offset after the last record.

        :raises OperatingError: the leader does not respond.
        """
        asked = ClientPartition(partition.topic, partition.partition)
        try:
            first, last = self._consumer.get_watermark_offsets(asked, timeout=_QUESTION_S)
        except KafkaException as e:
            reason = e.args[0].str()
            raise OperatingError(f"{partition}: its offsets are not known: {reason}") from e
        return first, last

    def rest(self) -> None:
        """Stop fetching, drop prefetched records, and forget errors."""
        self.trouble, self.gone = "", None
        self._consumer.unassign()

    def close(self) -> None:
        self._consumer.close()


class BorrowedConsumer:
    """Context with a consumer for one task: an idle one with the same settings, or a new one.

    After an error the consumer is closed, otherwise it becomes idle.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings
        self._key = frozenset(settings.items())
        self._client: RangeConsumer | None = None

    def __enter__(self) -> RangeConsumer:
        close_idle_consumers(unused_s=IDLE_S)
        self._client = _idle.pop(self._key, None) or RangeConsumer(self._settings)
        return self._client

    def __exit__(self, kind: object, *_: object) -> None:
        client = self._client
        assert client is not None
        if kind is not None and kind is not GeneratorExit:
            client.close()
            return
        client.rest()
        client.idle_since = time.monotonic()
        previous = _idle.pop(self._key, None)
        if previous is not None:
            previous.close()
        _idle[self._key] = client
        if len(_idle) > IDLE_CONSUMERS:
            _idle.popitem(last=False)[1].close()


#: Idle consumers of this process by settings, the longest idle first.
_idle: OrderedDict[frozenset[tuple[str, str]], RangeConsumer] = OrderedDict()


def idle_consumers() -> int:
    """Return the number of idle consumers of this process."""
    return len(_idle)


def close_idle_consumers(*, unused_s: float = 0.0) -> None:
    """Close consumers that have been idle for at least ``unused_s`` seconds."""
    now = time.monotonic()
    for key in [key for key, client in _idle.items() if now - client.idle_since >= unused_s]:
        _idle.pop(key).close()
