"""Transactions while a cluster suffers: each is read whole or not at all, and once.

:class:`Transactions` are producers of librdkafka's, each in a thread of its own, each with a
transactional id. A transaction writes some numbered records to partitions drawn from the seed, and
is committed, or aborted in one of ten. What a producer was told is compared at the end with what
a ``read_committed`` consumer reads; who was told nothing may find all of it or nothing.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import Final, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from kraftjbod.testing.simulation.search.applications.transaction_ledger import (
    Outcome,
    TransactionLedger,
    Written,
)

_PRODUCERS: Final = 2
_MOST_RECORDS: Final = 8
_PAUSE_S: Final = 0.05
#: One call of the client; what is not done then is asked for again.
_TRY_S: Final = 10.0
#: For a transaction to end, and for what is open at the end to be ended by its time-out.
_END_S: Final = 120.0
_MOST_FINDINGS: Final = 20


class _Transactor:
    """One producer, and a new one with the same id when it is told that it is of no use."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        name: str,
        seed: int,
        ledger: TransactionLedger,
    ) -> None:
        self._ledger = ledger
        self._config = {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": 30_000,
            "reconnect.backoff.max.ms": 500,
            "linger.ms": 0,
            "log_level": 0,
        }
        self._topic, self._partitions, self._name = topic, partitions, name
        self._rng = random.Random(f"{seed}/{name}")

    def run(self, stopping: threading.Event) -> None:
        producer: Producer | None = None
        while not stopping.is_set():
            if producer is None:
                producer = self._new()
            elif not self._one(producer):
                producer = None
            time.sleep(_PAUSE_S)

    def _new(self) -> Producer | None:
        producer = Producer(self._config)
        try:
            producer.init_transactions(_TRY_S)
        except KafkaException:
            return None
        return producer

    def _one(self, producer: Producer) -> bool:
        """One transaction; False if another producer has to go on."""
        records = self._rng.randint(1, _MOST_RECORDS)
        will_commit = self._rng.random() < 0.9
        transaction = self._ledger.begin(self._name, records)
        try:
            producer.begin_transaction()
            for index in range(records):
                where = self._rng.randrange(self._partitions)
                producer.produce(self._topic, transaction.value(index), partition=where)
            if not will_commit:
                return self._end(producer, transaction, Outcome.ABORTED)
        except (KafkaException, BufferError):
            return self._end(producer, transaction, Outcome.ABORTED)
        return self._end(producer, transaction, Outcome.COMMITTED)

    def _end(self, producer: Producer, transaction: Written, how: Outcome) -> bool:
        if how is Outcome.COMMITTED:
            transaction.outcome = Outcome.UNKNOWN
        deadline = time.monotonic() + _END_S
        while time.monotonic() < deadline:
            try:
                if how is Outcome.COMMITTED:
                    producer.commit_transaction(_TRY_S)
                else:
                    producer.abort_transaction(_TRY_S)
            except KafkaException as e:
                error: KafkaError = e.args[0]
                if error.txn_requires_abort():
                    how = Outcome.ABORTED
                elif not error.retriable():
                    return False
            else:
                transaction.outcome = how
                return True
        return False


class Transactions:
    """Writes to ``topic`` from ``with`` until :meth:`finish`."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, seed: int) -> None:
        self._bootstrap, self._topic, self._partitions = bootstrap, topic, partitions
        self._stopping = threading.Event()
        self._ledger = TransactionLedger()
        transactors = {
            name: _Transactor(bootstrap, topic, partitions, name, seed, self._ledger)
            for name in (f"transactor-{number}" for number in range(_PRODUCERS))
        }
        self._threads = [
            threading.Thread(target=one.run, args=(self._stopping,), name=name, daemon=True)
            for name, one in transactors.items()
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(_END_S + _TRY_S)

    @property
    def outcomes(self) -> Counter[Outcome]:
        """How many transactions ended how."""
        return self._ledger.outcomes

    def finish(self) -> list[str]:
        """Stop, read everything, compare; what is wrong, one sentence each."""
        self.__exit__()
        findings = [f"{thread.name} does not end" for thread in self._threads if thread.is_alive()]
        if findings:
            return findings
        ends = self._wait_for_open_ones()
        if isinstance(ends, str):
            return [ends]
        findings = self._read(ends)
        findings += self._ledger.judge()
        return findings[:_MOST_FINDINGS]

    def _wait_for_open_ones(self) -> dict[int, int] | str:
        """Ends of the partitions, when no transaction holds its readers back any more."""
        deadline = time.monotonic() + _END_S
        while True:
            stable, last = self._ends("read_committed"), self._ends("read_uncommitted")
            if stable == last:
                return stable
            if time.monotonic() > deadline:
                return f"a transaction stays open: last stable {stable}, log ends {last}"
            time.sleep(1.0)

    def _ends(self, isolation: str) -> dict[int, int]:
        consumer = self._consumer(isolation)
        try:
            return {
                number: consumer.get_watermark_offsets(TopicPartition(self._topic, number), _TRY_S)[
                    1
                ]
                for number in range(self._partitions)
            }
        finally:
            consumer.close()

    def _read(self, ends: dict[int, int]) -> list[str]:
        findings: list[str] = []
        consumer = self._consumer("read_committed")
        consumer.assign([TopicPartition(self._topic, number, 0) for number in ends])
        unfinished = {number for number, end in ends.items() if end > 0}
        deadline = time.monotonic() + _END_S
        while unfinished and time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is None:
                continue
            partition = message.partition()
            assert partition is not None
            if error := message.error():
                if error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard(partition)
                continue
            value = message.value()
            assert value is not None
            if wrong := self._ledger.saw(self._topic, partition, value):
                findings.append(wrong)
        consumer.close()
        if unfinished:
            findings.append(f"partitions {sorted(unfinished)} cannot be read to {ends}")
        return findings

    def _consumer(self, isolation: str) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "transactions",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "isolation.level": isolation,
                "log_level": 0,
            }
        )
