"""``python -m``: reads a topic and writes all of it to each partition of another, in transactions.

Each transaction contains the read records for each partition, and the group's offsets. The copier
runs until it is killed, or until another one with its transactional id has fenced it; then it ends
with :data:`FENCED`."""

from __future__ import annotations

import faulthandler
import itertools
import sys
from typing import Final

import confluent_kafka
from confluent_kafka import KafkaException, TopicPartition

# Copies of each number.
COPIES: Final = 3
FENCED: Final = 3
_TIMEOUT_S: Final = 60.0
_MOST_TOGETHER: Final = 20
# An iteration that takes longer prints a traceback to standard error. librdkafka's
# send_offsets_to_transaction may wait forever for a lost coordinator, despite its timeout (its
# issues 5456 and 5511).
_STUCK_S: Final = 30.0
# Every n-th transaction is aborted at its end.
_ABANDONED: Final = 5


class Copier:
    def __init__(self, bootstrap: str, source: str, target: str, name: str) -> None:
        self._target = target
        servers = {"bootstrap.servers": bootstrap, "log_level": 0}
        self._producer = confluent_kafka.Producer(
            {**servers, "transactional.id": name, "transaction.timeout.ms": 10_000}
        )
        self._producer.init_transactions(_TIMEOUT_S)
        self._consumer = confluent_kafka.Consumer(
            {
                **servers,
                "group.id": name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 500,
            }
        )
        self._consumer.subscribe([source])

    def run(self) -> None:
        for turn in itertools.count(1):
            faulthandler.dump_traceback_later(_STUCK_S)
            messages = self._consumer.consume(_MOST_TOGETHER, 0.2)
            read = [each for each in messages if each.error() is None]
            if read:
                self._copy(read, gives_up=turn % _ABANDONED == 0)

    def _copy(self, read: list[confluent_kafka.Message], *, gives_up: bool) -> None:
        try:
            self._producer.begin_transaction()
            for message in read:
                for partition in range(COPIES):
                    self._producer.produce(self._target, message.value(), partition=partition)
            self._producer.send_offsets_to_transaction(
                self._consumer.position(self._consumer.assignment()),
                self._consumer.consumer_group_metadata(),
                _TIMEOUT_S,
            )
            if not gives_up:
                self._until_done(self._producer.commit_transaction)
                return
        except KafkaException as e:
            if not e.args[0].txn_requires_abort():
                raise
        self._until_done(self._producer.abort_transaction)
        self._rewind()

    @staticmethod
    def _until_done(end: object) -> None:
        """Repeat a call that timed out, and only such calls."""
        while True:
            try:
                end(_TIMEOUT_S)  # type: ignore[operator]  # of the producer
            except KafkaException as e:
                if not e.args[0].retriable():
                    raise
            else:
                return

    def _rewind(self) -> None:
        """Seek to the group's offsets, or to the beginning if there are none."""
        assigned = self._consumer.assignment()
        while True:
            try:
                committed = self._consumer.committed(assigned, _TIMEOUT_S)
            except KafkaException as e:
                print(e, file=sys.stderr, flush=True)
            else:
                break
        for each in committed:
            at = each.offset if each.offset >= 0 else confluent_kafka.OFFSET_BEGINNING
            self._consumer.seek(TopicPartition(each.topic, each.partition, at))


def main() -> None:
    try:
        Copier(*sys.argv[1:]).run()
    except KafkaException as e:
        print(e, file=sys.stderr, flush=True)
        sys.exit(FENCED if e.args[0].fatal() else 1)


if __name__ == "__main__":
    main()
