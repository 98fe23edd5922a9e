"""WIRE. Reads as a member of a consumer group, by librdkafka, and commits what was handed out.

What was taken from the library and not handed out is not committed, so that a tool that ends after
``--max-messages`` leaves the next record to the next one.
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
Handed = tuple[str, int, Record, TimestampType]


class GroupReader:
    """Used once: :meth:`subscribe` or :meth:`assign`, :meth:`records`, :meth:`close`."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        """:param settings: of a consumer, in the Java client's names.
        :raises ConfigError: for a setting that nobody knows.
        """
        self._consumer = make_consumer({**settings, "enable.auto.offset.store": "false"})
        self._last: Any = None

    def subscribe(self, topic: str | None, include: str | None) -> None:
        """To one topic, or to all whose whole names a regular expression matches."""
        with refused_as_ours():
            self._consumer.subscribe([f"^({include})$" if topic is None else topic])

    def assign(self, topic: str, partition: int, offset: str) -> None:
        """To one partition; no group is joined.

        :param offset: a number, ``earliest`` or ``latest``.
        """
        start = {"earliest": OFFSET_BEGINNING, "latest": OFFSET_END}
        at = start[offset] if offset in start else int(offset)
        with refused_as_ours():
            self._consumer.assign([TopicPartition(topic, partition, at)])

    def records(self, timeout_ms: int | None) -> Iterator[Handed | None]:
        """Each record as it comes, and None where the output may be flushed meanwhile.

        :param timeout_ms: when to end, where none comes for so long; None: never.
        :raises OperatingError: an error that will not pass.
        """
        quiet_since = time.monotonic()
        while True:
            # What is there is taken at once; only then it is waited for more.
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
                yield _handed(message)
                quiet_since = time.monotonic()
            elif timeout_ms is not None and (time.monotonic() - quiet_since) * 1000 >= timeout_ms:
                return

    def printed(self) -> None:
        """The last record has reached its reader: it may be committed."""
        with refused_as_ours():
            self._consumer.store_offsets(message=self._last)

    @staticmethod
    def _wait_s(timeout_ms: int | None) -> float:
        return _POLL_S if timeout_ms is None else min(_POLL_S, timeout_ms / 1000)

    def close(self) -> None:
        """Commit what was handed out, where the settings say so, and leave the group."""
        self._consumer.close()


def _handed(message: Any) -> Handed:
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
