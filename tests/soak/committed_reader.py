"""``CommittedReader`` reads all committed records of one topic after its writers have stopped."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, TopicPartition

#: Limit of one client call.
TRY_S: Final = 10.0
#: Enough for open transactions to time out and for a topic to be read.
END_S: Final = 120.0


class CommittedRecord(NamedTuple):
    partition: int
    offset: int
    value: bytes


class UnreadableError(Exception):
    """The topic cannot be read to its end; the message says how far it can."""


class CommittedReader:
    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._bootstrap, self._topic, self._partitions = bootstrap, topic, partitions

    def settled_ends(self) -> dict[int, int]:
        """Wait until no transaction is open, and return the end of each partition.

        :raises UnreadableError: a transaction stays open.
        """
        deadline = time.monotonic() + END_S
        while True:
            stable, last = self._ends("read_committed"), self._ends("read_uncommitted")
            if stable == last:
                return stable
            if time.monotonic() > deadline:
                raise UnreadableError(
                    f"a transaction of {self._topic} stays open: last stable {stable}, "
                    f"log ends {last}"
                )
            time.sleep(1.0)

    def read(self, ends: Mapping[int, int]) -> Iterator[CommittedRecord]:
        """Yield every committed record, in the order of each partition.

        :raises UnreadableError: not all partitions could be read to ``ends`` in time.
        """
        consumer = self._consumer("read_committed")
        try:
            consumer.assign([TopicPartition(self._topic, number, 0) for number in ends])
            unfinished = {number for number, end in ends.items() if end > 0}
            deadline = time.monotonic() + END_S
            while unfinished and time.monotonic() < deadline:
                message = consumer.poll(1.0)
                if message is None:
                    continue
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                if error := message.error():
                    if error.code() == KafkaError._PARTITION_EOF:
                        unfinished.discard(partition)
                    continue
                value = message.value()
                assert value is not None and offset is not None
                yield CommittedRecord(partition, offset, value)
        finally:
            consumer.close()
        if unfinished:
            raise UnreadableError(
                f"{self._topic}: partitions {sorted(unfinished)} cannot be read to {ends}"
            )

    def _ends(self, isolation: str) -> dict[int, int]:
        consumer = self._consumer(isolation)
        try:
            return {
                number: consumer.get_watermark_offsets(TopicPartition(self._topic, number), TRY_S)[
                    1
                ]
                for number in range(self._partitions)
            }
        finally:
            consumer.close()

    def _consumer(self, isolation: str) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "committed-reader",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "isolation.level": isolation,
                "log_level": 0,
            }
        )
