"""Transactional copiers while a cluster suffers: each input record is copied exactly once.

:class:`Copiers` are two members of one consumer group, each with a transactional producer of
librdkafka and a separate thread. A copier reads committed records of one topic, writes a copy of
each to another topic, adds its offsets with ``send_offsets_to_transaction`` and commits. At the end
the committed copies are compared with the committed input: no record lost or duplicated, in order.

Every copier measures its longest time without a commit, and the client's call during that time.

``send_offsets_to_transaction`` of librdkafka 2.10 to 2.16 may never return, despite its time limit
(confluentinc/librdkafka 5456 and 5511): it waits for a group coordinator that has left the
metadata, as a stopped broker does. Such a producer is abandoned, counted, and replaced.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from tests.soak.committed_reader import (
    END_S,
    TRY_S,
    CommittedReader,
    CommittedRecord,
    UnreadableError,
)

_GROUP: Final = "copiers"
_COPIERS: Final = 2
_MOST_RECORDS: Final = 200
#: Duration of a transaction. Shorter ones would write more markers to the small disks.
_BATCH_S: Final = 0.5
_POLL_S: Final = 0.1
_MOST_FINDINGS: Final = 20
_COMMITTED_PAUSE_S: Final = 1.0

#: Additional wait for a client call beyond its own limit.
_GRACE_S: Final = 5.0
_MOST_HUNG: Final = 50

T = TypeVar("T")


class ClientHangsError(Exception):
    """A call of the client did not return within its limit."""


def within(limit_s: float, call: Callable[[], T]) -> T:
    """Run ``call`` in a separate thread, which is abandoned if ``call`` does not return.

    The thread keeps what ``call`` uses alive: a producer that hangs cannot be closed either.
    """
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as e:
            done.set_exception(e)

    threading.Thread(target=run, daemon=True).start()
    try:
        return done.result(limit_s)
    except TimeoutError:
        raise ClientHangsError(f"no answer of the client within {limit_s:.0f} s") from None


@dataclass(frozen=True, slots=True)
class Wait:
    """A time without a commit, and the seconds of it in each client call, by name."""

    copier: str = ""
    seconds: float = 0.0
    in_calls: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        longest_first = sorted(self.in_calls.items(), key=lambda call: -call[1])
        calls = ", ".join(f"{name} {s:.1f} s" for name, s in longest_first)
        return f"{self.seconds:.1f} s of {self.copier or 'no copier'} ({calls or 'no calls'})"


class _Copier:
    """A consumer, and a producer that is replaced when the client says that it is unusable."""

    def __init__(
        self, bootstrap: str, source: str, target: str, partitions: int, name: str
    ) -> None:
        common = {
            "bootstrap.servers": bootstrap,
            "reconnect.backoff.max.ms": 500,
            "log_level": 0,
        }
        self._name = name
        self._source, self._target, self._partitions = source, target, partitions
        self._producer_config = {
            **common,
            "transactional.id": name,
            "transaction.timeout.ms": 30_000,
            "linger.ms": 0,
        }
        self._consumer = Consumer(
            {
                **common,
                "group.id": _GROUP,
                "client.id": name,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": 10_000,
            }
        )
        #: Records read and not yet copied. Cleared when the assignment changes.
        self._batch: list[CommittedRecord] = []
        #: False after an abort: the consumer has to seek to the committed offsets.
        self._has_position = True
        self._committed_at_s = time.monotonic()
        self._in_calls: dict[str, float] = defaultdict(float)
        self.commits = 0
        #: Number of producers that were abandoned in a call that did not return.
        self.hung = 0
        self.longest = Wait()

    @property
    def wait(self) -> Wait:
        """The time since the last commit."""
        seconds = time.monotonic() - self._committed_at_s
        return Wait(self._name, seconds, dict(self._in_calls))

    def run(self, stopping: threading.Event) -> None:
        forget = self._forget_batch
        self._consumer.subscribe([self._source], on_assign=forget, on_revoke=forget, on_lost=forget)
        producer: Producer | None = None
        while not stopping.is_set():
            if producer is None:
                producer = self._new_producer()
            elif not self._has_position:
                self._rewind()
            elif not self._copy(producer):
                producer = None
        self._consumer.close()

    def _forget_batch(self, *_: Any) -> None:
        self._batch.clear()

    def _new_producer(self) -> Producer | None:
        """Return a producer that has fenced its predecessor, or None after an error."""
        producer = Producer(self._producer_config)
        try:
            self._until_done("init_transactions", lambda: producer.init_transactions(TRY_S))
        except KafkaException:
            return None
        self._has_position = False
        return producer

    def _rewind(self) -> None:
        """Seek to the committed offsets. After an error, the caller tries again."""
        self._batch.clear()
        try:
            there = self._timed(
                "committed",
                lambda: self._consumer.committed(self._consumer.assignment(), TRY_S),
            )
            for one in there:
                if one.error is not None:
                    return
                offset = one.offset if one.offset >= 0 else OFFSET_BEGINNING
                self._consumer.seek(TopicPartition(one.topic, one.partition, offset))
        except KafkaException:
            # A pending change of the assignment needs a poll.
            self._timed("poll", lambda: self._consumer.poll(_POLL_S))
            return
        self._has_position = True

    def _copy(self, producer: Producer) -> bool:
        """Copy in one transaction; return False if another producer has to continue."""
        self._timed("poll", self._fill_batch)
        if not self._batch:
            return True
        copied, self._batch = self._batch, []
        ends = {one.partition: one.offset + 1 for one in copied}
        positions = [TopicPartition(self._source, *end) for end in ends.items()]
        try:
            producer.begin_transaction()
            for one in copied:
                value = b"%d %d %s" % one
                producer.produce(self._target, value, partition=one.partition % self._partitions)
            member = self._consumer.consumer_group_metadata()
            self._until_done(
                "send_offsets_to_transaction",
                lambda: within(
                    TRY_S + _GRACE_S,
                    lambda: producer.send_offsets_to_transaction(positions, member, TRY_S),
                ),
            )
            self._until_done("commit_transaction", lambda: producer.commit_transaction(TRY_S))
        except (KafkaException, BufferError) as e:
            self._has_position = False
            return self._abort(producer, e)
        except ClientHangsError:
            self.hung += 1
            if self.hung > _MOST_HUNG:
                raise
            return False
        self._has_committed()
        return True

    def _fill_batch(self) -> None:
        ends_s = time.monotonic() + _BATCH_S
        while len(self._batch) < _MOST_RECORDS and time.monotonic() < ends_s:
            message = self._consumer.poll(_POLL_S)
            if message is None or message.error() is not None:
                continue
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None and offset is not None and value is not None, message
            self._batch.append(CommittedRecord(partition, offset, value))

    def _abort(self, producer: Producer, cause: Exception) -> bool:
        error = cause.args[0] if isinstance(cause, KafkaException) else None
        if error is not None and not error.txn_requires_abort():
            return False
        try:
            self._until_done("abort_transaction", lambda: producer.abort_transaction(TRY_S))
        except KafkaException:
            return False
        return True

    def _has_committed(self) -> None:
        self.longest = max(self.longest, self.wait, key=lambda wait: wait.seconds)
        self._committed_at_s = time.monotonic()
        self._in_calls = defaultdict(float)
        self.commits += 1

    def _until_done(self, name: str, call: Callable[[], object]) -> None:
        """Repeat ``call`` while the client says that it can be repeated, for a bounded time."""
        deadline = time.monotonic() + END_S
        while True:
            try:
                self._timed(name, call)
            except KafkaException as e:
                error: KafkaError = e.args[0]
                if not error.retriable() or time.monotonic() > deadline:
                    raise
            else:
                return

    def _timed(self, name: str, call: Callable[[], T]) -> T:
        began_s = time.monotonic()
        try:
            return call()
        finally:
            self._in_calls[name] += time.monotonic() - began_s


class Copiers:
    """Copy ``source`` to ``target`` from ``with`` until :meth:`finish`."""

    def __init__(
        self,
        bootstrap: str,
        *,
        source: str,
        source_partitions: int,
        target: str,
        target_partitions: int,
    ) -> None:
        self._bootstrap = bootstrap
        self._source = source
        self._source_reader = CommittedReader(bootstrap, source, source_partitions)
        self._target_reader = CommittedReader(bootstrap, target, target_partitions)
        self._stopping = threading.Event()
        self._copiers = [
            _Copier(bootstrap, source, target, target_partitions, f"copier-{number}")
            for number in range(_COPIERS)
        ]
        self._threads = [
            threading.Thread(target=one.run, args=(self._stopping,), daemon=True)
            for one in self._copiers
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
    def commits(self) -> int:
        return sum(one.commits for one in self._copiers)

    @property
    def hung(self) -> int:
        """Producers whose client hung."""
        return sum(one.hung for one in self._copiers)

    @property
    def longest_wait(self) -> Wait:
        """The longest time without a commit of one of them, also if it has not ended."""
        waits = [wait for one in self._copiers for wait in (one.longest, one.wait)]
        return max(waits, key=lambda wait: wait.seconds)

    def finish(self) -> list[str]:
        """Wait for the last copy, stop, and compare; return the violations, one sentence each.

        Call it once the source has no writers any more.
        """
        try:
            expected = list(self._source_reader.read(self._source_reader.settled_ends()))
            if behind := self._wait_for_offsets(expected):
                return [behind]
            self.__exit__()
            if any(thread.is_alive() for thread in self._threads):
                return ["a copier does not end"]
            copies = list(self._target_reader.read(self._target_reader.settled_ends()))
        except UnreadableError as e:
            return [str(e)]
        return compare(expected, copies)[:_MOST_FINDINGS]

    def _wait_for_offsets(self, expected: list[CommittedRecord]) -> str | None:
        """Wait until the group has committed all offsets; return the missing ones at a deadline."""
        ends = {one.partition: one.offset + 1 for one in expected}
        group = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": _GROUP,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        deadline = time.monotonic() + END_S
        try:
            while True:
                where = [TopicPartition(self._source, partition) for partition in ends]
                committed = {one.partition: one.offset for one in group.committed(where, TRY_S)}
                behind = {
                    index: (committed[index], end)
                    for index, end in ends.items()
                    if committed[index] < end
                }
                if not behind:
                    return None
                if time.monotonic() > deadline:
                    waits = "; ".join(str(one.wait) for one in self._copiers)
                    return f"copiers have committed to, of: {behind}; without a commit: {waits}"
                time.sleep(_COMMITTED_PAUSE_S)
        finally:
            group.close()


def compare(expected: list[CommittedRecord], copies: list[CommittedRecord]) -> list[str]:
    """Return the violations in ``copies``, one sentence each; a copy names its original."""
    findings: list[str] = []
    missing = {(one.partition, one.offset): one.value for one in expected}
    last: dict[int, int] = defaultdict(lambda: -1)
    for copy in copies:
        partition, offset, value = copy.value.split(b" ", 2)
        where = int(partition), int(offset)
        if where[1] <= last[where[0]]:
            findings.append(f"{where} is copied again, or after {last[where[0]]}: {value!r}")
        elif where not in missing:
            findings.append(f"{where} is copied and was never committed: {value!r}")
        elif missing.pop(where) != value:
            findings.append(f"{where} is copied with another value: {value!r}")
        last[where[0]] = max(last[where[0]], where[1])
    findings += [f"{where} is not copied: {value!r}" for where, value in missing.items()]
    return findings
