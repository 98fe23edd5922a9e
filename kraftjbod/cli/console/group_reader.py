"""WIRE. Reads as a member of a consumer group with librdkafka, and commits printed records.

Records that were fetched but not printed are not committed. After a run with ``--max-messages``,
the next run starts with the next record.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    TopicPartition,
)

from kraftjbod.cli.terminal.library_client import client_error, make_consumer, refused_as_ours
from kraftjbod.protocol.record_batch import TimestampType
from kraftjbod.protocol.records import Record

_POLL_S: Final = 0.5
ReceivedRecord = tuple[str, int, Record, TimestampType]


class GroupReader:
    """Reads records. Call once: :meth:`subscribe` or :meth:`assign`, :meth:`records`,
    :meth:`close`.

    Call :meth:`printed` after each record: only then its offset may be committed.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        """:param settings: consumer settings with the Java client's names.
        :raises ConfigError: a setting is unknown.
        """
        self._consumer = make_consumer({**settings, "enable.auto.offset.store": "false"})
        self._last: Any = None

    def subscribe(self, topic: str | None, include: str | None) -> None:
        """Join the group with a subscription to ``topic``, or if it is None to all topics whose
        whole name matches ``include``.

        :raises OperatingError: the client library refuses the subscription.
        """
        with refused_as_ours():
            self._consumer.subscribe([f"^({include})$" if topic is None else topic])

    def assign(self, topic: str, partition: int, offset: str) -> None:
        """Read one partition without joining a group.

        :param offset: a number, ``earliest`` or ``latest``.
        """
        start = {"earliest": OFFSET_BEGINNING, "latest": OFFSET_END}
        at = start[offset] if offset in start else int(offset)
        with refused_as_ours():
            self._consumer.assign([TopicPartition(topic, partition, at)])

    def records(self, timeout_ms: int | None) -> Iterator[ReceivedRecord | None]:
        """Yield each record. Yield None before a wait, so that the caller can flush its output.

        :param timeout_ms: end after this time without a record; None for no limit.
        :raises OperatingError: an error that is not retriable.
        """
        quiet_since = time.monotonic()
        while True:
            # Take fetched records without waiting; wait only without any.
            message = self._consumer.poll(0)
            if message is None:
                yield None
                message = self._consumer.poll(self._wait_s(timeout_ms))
            if message is not None and (error := message.error()) is not None:
                if not error.retriable():
                    raise client_error(error)
                message = None
            if message is not None:
                self._last = message
                yield _received(message)
                quiet_since = time.monotonic()
            elif timeout_ms is not None and (time.monotonic() - quiet_since) * 1000 >= timeout_ms:
                return

    def printed(self) -> None:
        """Mark the record that :meth:`records` yielded last as printed, so that its offset may be
        committed.

        :raises OperatingError: the client library refuses it.
        """
        with refused_as_ours():
            self._consumer.store_offsets(message=self._last)

    @staticmethod
    def _wait_s(timeout_ms: int | None) -> float:
        return _POLL_S if timeout_ms is None else min(_POLL_S, timeout_ms / 1000)

    def close(self) -> None:
        """Commit printed records if auto-commit is enabled, and leave the group."""
        self._consumer.close()


def _received(message: Any) -> ReceivedRecord:
    kind, timestamp_ms = message.timestamp()
    record = Record(
        key=message.key(),
        value=message.value(),
        timestamp_ms=-1 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
        headers=tuple(message.headers() or ()),
        offset=message.offset(),
    )
    is_append_time = kind == TIMESTAMP_LOG_APPEND_TIME
    stamped = TimestampType.LOG_APPEND_TIME if is_append_time else TimestampType.CREATE_TIME
    return message.topic(), message.partition(), record, stamped
