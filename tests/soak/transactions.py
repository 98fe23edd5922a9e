"""Transactional producers during faults: each transaction is read once and completely, or not.

:class:`Transactions` has librdkafka producers, each with a thread and a transactional id. A
transaction writes numbered records to random partitions. One of ten is aborted, the others are
committed. At the end the results are compared with the records that a ``read_committed`` consumer
reads. If the result of a commit is unknown, all or none of its records may be read.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import Final, Self

from confluent_kafka import KafkaError, KafkaException, Producer

from tests.sim.search.applications.transaction_ledger import (
    Outcome,
    TransactionLedger,
    Written,
)
from tests.soak.committed_reader import END_S, TRY_S, CommittedReader, UnreadableError

_PRODUCERS: Final = 2
_MOST_RECORDS: Final = 8
_PAUSE_S: Final = 0.05
_MOST_FINDINGS: Final = 20


class _Transactor:
    """A producer that is replaced by one with the same transactional id after a fatal error."""

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
            producer.init_transactions(TRY_S)
        except KafkaException:
            return None
        return producer

    def _one(self, producer: Producer) -> bool:
        """Run one transaction. Return False if the producer has to be replaced."""
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
        deadline = time.monotonic() + END_S
        while time.monotonic() < deadline:
            try:
                if how is Outcome.COMMITTED:
                    producer.commit_transaction(TRY_S)
                else:
                    producer.abort_transaction(TRY_S)
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
    """Writes to ``topic`` from the begin of the ``with`` block until :meth:`finish`."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, seed: int) -> None:
        self._topic = topic
        self._reader = CommittedReader(bootstrap, topic, partitions)
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
            thread.join(END_S + TRY_S)

    @property
    def outcomes(self) -> Counter[Outcome]:
        """Number of transactions by outcome."""
        return self._ledger.outcomes

    def finish(self) -> list[str]:
        """Stop the producers and compare all records. Return the violations, one sentence each."""
        self.__exit__()
        findings = [f"{thread.name} does not end" for thread in self._threads if thread.is_alive()]
        if findings:
            return findings
        try:
            for partition, _, value in self._reader.read(self._reader.settled_ends()):
                wrong = self._ledger.saw(self._topic, partition, value)
                findings += [wrong] if wrong else []
        except UnreadableError as e:
            return [*findings, str(e)][:_MOST_FINDINGS]
        findings += self._ledger.judge()
        return findings[:_MOST_FINDINGS]
