"""WIRE. `RecordWriter`: writes the records of one task; all are acknowledged, or the task fails.

* The producer is idempotent and waits for all in-sync replicas, unless the settings differ.
* Every delivery report is checked. The first failure ends the writer with an error that names the
  record's partition and the reason. Queued records are dropped, because the task runs again.
* No wait is unlimited: each record is reported within ``delivery.timeout.ms``.
* The queue is bounded in records and bytes. A writer that is faster than the cluster waits.
* A new idempotent producer needs half a second before it can write, so a process keeps the producer
  of a successful task for its next task. The producer of a failed task is never reused.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from kraftjbod.core.errors import ConfigError, OperatingError

Headers = list[tuple[str, str | bytes | None]]
#: A record: topic, value, key, partition (-1: by the key), headers.
Row = tuple[str, bytes | None, bytes | None, int, Headers | None]

#: Defaults that user settings override. Keyed records use the partitioner of Java producers.
DEFAULTS: Final[Mapping[str, object]] = {
    "acks": "all",
    "enable.idempotence": True,
    "partitioner": "murmur2_random",
    "delivery.timeout.ms": 120_000,
    "message.max.bytes": 1_048_576,
    "linger.ms": 20,
    "queue.buffering.max.messages": 100_000,
    "queue.buffering.max.kbytes": 64 * 1024,
    "retry.backoff.max.ms": 500,
}
_ROWS_PER_POLL: Final = 1000
_WAIT_S: Final = 0.1
_TOPIC_WAIT_S: Final = 5.0
#: Time after the delivery timeout within which the client must report on every record.
_REPORT_S: Final = 30.0
_CLOSE_S: Final = 5.0
#: Maximum idle time of a kept producer, and the number of kept producers.
_IDLE_S: Final = 60.0
_MAX_IDLE: Final = 4
_REMEMBERED_TROUBLES: Final = 3
_UNKNOWN: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})


class WriteError(OperatingError):
    """A record could not be written, so the task must fail and run again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRange:
    """Acknowledged records of one task in one partition: their number, first and last offset (both
    inclusive).

    Records of other producers may be between the offsets. Offsets are -1 with acks=0.
    """

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    records: int


def producer_settings(settings: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of a producer: the defaults, replaced by the user's settings.

    Without ``acks=all`` the producer is not idempotent, unless the user sets
    ``enable.idempotence``.

    :raises ConfigError: the delivery timeout is unlimited or no number.
    """
    merged = {**DEFAULTS, **settings}
    timeout = str(merged["delivery.timeout.ms"])
    if not timeout.isdigit() or int(timeout) == 0:
        raise ConfigError(
            f"kafka.delivery.timeout.ms is {timeout!r}: expected milliseconds, and more than none"
        )
    if str(merged["acks"]) not in ("all", "-1") and "enable.idempotence" not in settings:
        merged["enable.idempotence"] = False
    return merged


class RecordWriter:
    """Writes records. Call :meth:`write` any number of times, then :meth:`finish`.

    The writer can be used again after :meth:`finish`, unless a call raised an error.

    :param settings: settings of librdkafka, which replace :data:`DEFAULTS`.
    :raises ConfigError: the client rejects the settings.
    """

    def __init__(self, settings: Mapping[str, object]) -> None:
        self._settings = producer_settings(settings)
        self._delivery_timeout_s = int(str(self._settings["delivery.timeout.ms"])) / 1000
        self._errors: deque[str] = deque(maxlen=_REMEMBERED_TROUBLES)
        self._topics: set[str] = set()
        self._written: dict[tuple[str, int], list[int]] = {}
        self._failed = 0
        self._failure = ""
        try:
            self._producer = Producer(
                {**self._settings, "error_cb": self._on_error, "log_level": 0}
            )
        except (KafkaException, TypeError, ValueError) as e:
            raise ConfigError(f"the Kafka client does not take these settings: {_words(e)}") from e

    def write(self, rows: Iterable[Row]) -> None:
        """Queue records, and wait while the queue is full; the order within a partition is kept.

        :raises WriteError: one of these records or an earlier one cannot be written.
        """
        produce, topics, on_delivery = self._producer.produce, self._topics, self._on_delivery
        for number, row in enumerate(rows, 1):
            topic, value, key, partition, headers = row
            if topic not in topics:
                self._look_up(topic)
            try:
                produce(topic, value, key, partition, on_delivery, headers=headers)
            except BufferError:
                self._produce_when_queue_has_space(row)
            except (KafkaException, TypeError, UnicodeError) as e:
                raise WriteError(self._refusal(row, e)) from e
            if not number % _ROWS_PER_POLL:
                self._poll(0)
        self._poll(0)

    def finish(self) -> tuple[WrittenRange, ...]:
        """Wait until every record is acknowledged; return the ranges written since the last call.

        Waits for the delivery timeout and a margin at most. Ranges are sorted by topic and
        partition.

        :raises WriteError: a record failed: names its partition and the reason. Or records were
            neither acknowledged nor refused in time: names their number and the last errors.
        """
        limit_s = self._delivery_timeout_s + _REPORT_S
        deadline = time.monotonic() + limit_s
        while self._producer.flush(_WAIT_S):
            self._raise_if_failed()
            if time.monotonic() > deadline:
                raise WriteError(
                    f"{len(self._producer)} records were neither written nor refused in "
                    f"{limit_s:.0f} s{self._last_errors()}"
                )
        self._raise_if_failed()
        written, self._written = self._written, {}
        return tuple(
            WrittenRange(
                topic=topic,
                partition=partition,
                first_offset=first,
                last_offset=last,
                records=records,
            )
            for (topic, partition), (first, last, records) in sorted(written.items())
        )

    def close(self) -> None:
        """Drop queued records, and wait up to 5 s for the reports about the others."""
        self._producer.purge()
        self._producer.flush(_CLOSE_S)

    def _produce_when_queue_has_space(self, row: Row) -> None:
        """Queue ``row``, and wait while the queue is full.

        The wait ends within the delivery timeout, because the client then drops records of the
        queue.

        :raises WriteError: a record failed.
        """
        topic, value, key, partition, headers = row
        while True:
            self._poll(_WAIT_S)
            try:
                self._producer.produce(
                    topic, value, key, partition, self._on_delivery, headers=headers
                )
            except BufferError:
                continue
            except (KafkaException, TypeError, UnicodeError) as e:
                raise WriteError(self._refusal(row, e)) from e
            return

    def _poll(self, timeout_s: float) -> None:
        self._producer.poll(timeout_s)
        self._raise_if_failed()

    def _look_up(self, topic: str) -> None:
        """Wait up to 5 s until a broker knows ``topic``, which may have been created just now.

        :raises WriteError: the topic does not exist, or no broker responds.
        """
        deadline = time.monotonic() + _TOPIC_WAIT_S
        while True:
            try:
                metadata = self._producer.list_topics(topic, timeout=self._delivery_timeout_s)
            except KafkaException as e:
                raise WriteError(
                    f"no broker of {self._settings.get('bootstrap.servers')} knows topic "
                    f"{topic}: {_words(e)}{self._last_errors()}"
                ) from e
            error = metadata.topics[topic].error
            if error is None or error.code() == KafkaError.LEADER_NOT_AVAILABLE:
                break
            if error.code() not in _UNKNOWN or time.monotonic() > deadline:
                raise WriteError(f"topic {topic} cannot be written: {error.str()}")
            time.sleep(_WAIT_S)
        self._topics.add(topic)

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        """Count an acknowledged record, or note the first error.

        :param message: the client's ``Message``, whose every getter is typed as optional.
        """
        topic, partition = message.topic(), message.partition()
        if error is not None:
            self._failed += 1
            if not self._failure:
                self._failure = f"{topic}-{partition}: {error.str()}"
                if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                    self._failure += f" (a record of {len(message)} bytes)"
            return
        offset = message.offset()
        found = self._written.get((topic, partition))
        if found is None:
            self._written[topic, partition] = [offset, offset, 1]
        else:
            if offset > found[1]:
                found[1] = offset
            found[2] += 1

    def _on_error(self, error: KafkaError) -> None:
        self._errors.append(error.str())

    def _raise_if_failed(self) -> None:
        if self._failed:
            raise WriteError(f"{self._failed} records not written: {self._failure}")

    def _refusal(self, row: Row, error: Exception) -> str:
        topic, value, key, partition, _ = row
        where = topic if partition < 0 else f"{topic}-{partition}"
        size = len(value or b"") + len(key or b"")
        message = f"a record of {size} bytes for {where} was refused: {_words(error)}"
        if isinstance(error, KafkaException) and (
            error.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
        ):
            message += f"; kafka.message.max.bytes is {self._settings['message.max.bytes']}"
        return message

    def _last_errors(self) -> str:
        self._producer.poll(0)
        return f" (the client says: {'; '.join(self._errors)})" if self._errors else ""


@contextmanager
def task_writer(settings: Mapping[str, str]) -> Iterator[RecordWriter]:
    """Context with a writer for one task.

    A later task of this process with equal settings may reuse it. After an error it is closed.
    """
    key = tuple(sorted(settings.items()))
    writer, idle_since = _idle.pop(key, (None, 0.0))
    if writer is not None and time.monotonic() - idle_since > _IDLE_S:
        writer.close()
        writer = None
    if writer is None:
        writer = RecordWriter(settings)
    try:
        yield writer
    except BaseException:
        writer.close()
        raise
    while len(_idle) >= _MAX_IDLE:
        oldest, _ = _idle.pop(next(iter(_idle)))
        oldest.close()
    _idle[key] = writer, time.monotonic()


_idle: dict[tuple[tuple[str, str], ...], tuple[RecordWriter, float]] = {}


def _words(error: Exception) -> str:
    if isinstance(error, KafkaException):
        cause: Any = error.args[0]
        return str(cause.str())
    return str(error)
