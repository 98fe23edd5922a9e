"""PURE. ``MarkerQueue``: transaction markers to send, queued per partition leader.

* Each leader has a queue, so that one request has the markers of many transactions for one broker,
  and brokers do not wait for each other.
* A marker that a leader did not accept is retried after a pause with the leader of that time. The
  pause grows per partition and delays no other. A deleted partition counts as done.
* A dropped transaction, or one that is put again, is a different object: late responses for the
  previous object have no effect.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, NamedTuple

from kraftjbod.broker.transactions.transaction_records import TransactionMetadata, TransactionState
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import NO_LEADER, BrokerId, LeaderEpoch, TopicPartition
from kraftjbod.core.loop.timing import ExponentialBackoff

#: Limit of partitions in one request, over all its transactions.
MAX_PARTITIONS_PER_REQUEST: Final = 5_000
#: A newer coordinator or producer owns the transaction, so these markers are not needed.
_GIVEN_UP: Final = frozenset(
    {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED}
)
#: As in Kafka: the partition cannot hold markers.
_AS_GOOD_AS_DONE: Final = frozenset(
    {ErrorCode.NONE, ErrorCode.UNSUPPORTED_VERSION, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT}
)


class Ending:
    """A transaction that is to be committed or aborted: its end is in the log of the coordinator,
    and partitions in ``left`` lack the marker.

    ``metadata`` has the producer and the decision. ``coordinator_epoch`` is the epoch to write into
    the markers.
    """

    __slots__ = ("coordinator_epoch", "index", "left", "metadata", "transactional_id")

    def __init__(
        self,
        transactional_id: str,
        metadata: TransactionMetadata,
        *,
        index: int,
        coordinator_epoch: LeaderEpoch,
    ) -> None:
        """Create an ending.

        :param index: the transaction's partition of ``__transaction_state``.
        """
        self.transactional_id = transactional_id
        self.metadata = metadata
        self.index = index
        self.coordinator_epoch = coordinator_epoch
        #: Partitions without the marker. Only the queue changes it.
        self.left: set[TopicPartition] = set()

    @property
    def commits(self) -> bool:
        return self.metadata.state is TransactionState.PREPARE_COMMIT


class _Due(NamedTuple):
    ending: Ending
    partition: TopicPartition
    failures: int


class Outcome(NamedTuple):
    """Progress of one transaction: the partitions that need no marker any more.

    ``given_up`` is not NONE if the queue dropped the transaction because a partition leader
    answered with that code.
    """

    ending: Ending
    done: frozenset[TopicPartition]
    given_up: ErrorCode = ErrorCode.NONE


Batch = Mapping[Ending, list[TopicPartition]]


class MarkerQueue:
    def __init__(
        self,
        *,
        leader_of: Callable[[TopicPartition], BrokerId | None],
        backoff: ExponentialBackoff,
    ) -> None:
        """Create an empty queue.

        :param leader_of: returns the present leader of a partition: ``NO_LEADER`` if it has none,
            None if the partition does not exist.
        """
        self._leader_of = leader_of
        self._backoff = backoff
        #: The current object per transactional id.
        self._endings: dict[str, Ending] = {}
        self._queues: dict[BrokerId, deque[_Due]] = {}
        #: Markers in flight, by broker.
        self._asked: dict[BrokerId, list[_Due]] = {}
        #: Markers to retry: the time, a number that keeps the order, and the marker.
        self._later: list[tuple[int, int, _Due]] = []
        self._number = 0

    def __len__(self) -> int:
        """Number of transactions that lack markers."""
        return len(self._endings)

    def put(
        self, ending: Ending, partitions: Collection[TopicPartition], now_ms: int
    ) -> frozenset[TopicPartition]:
        """Queue a marker for each of ``partitions``, in place of earlier markers of the
        transaction. Return the partitions that do not exist, which count as done. ``now_ms`` is
        monotonic.
        """
        self._endings[ending.transactional_id] = ending
        ending.left = set(partitions)
        gone = frozenset(
            partition
            for partition in sorted(partitions)
            if not self._queue(_Due(ending, partition, 0), now_ms)
        )
        self._done(ending, gone)
        return gone

    def _done(self, ending: Ending, partitions: Collection[TopicPartition]) -> None:
        ending.left.difference_update(partitions)
        if not ending.left:
            self.drop(ending)

    def drop(self, ending: Ending) -> None:
        """Stop sending markers for the transaction. No effect if another :class:`Ending` of the
        same transactional id was put since.
        """
        if self._is_current(ending):
            del self._endings[ending.transactional_id]

    def drop_partition(self, index: int) -> None:
        """Drop all transactions of partition ``index`` of ``__transaction_state``."""
        for ending in [one for one in self._endings.values() if one.index == index]:
            self.drop(ending)

    def idle_brokers(self) -> Iterator[BrokerId]:
        """Return the brokers that have queued markers and no request in flight."""
        return iter([one for one, due in self._queues.items() if due and one not in self._asked])

    def take(self, broker_id: BrokerId) -> Batch:
        """Return the markers for the next request to a broker, by transaction.

        :meth:`answered` must follow unless the result is empty.
        """
        queue, taken = self._queues.get(broker_id, deque()), list[_Due]()
        batch: dict[Ending, list[TopicPartition]] = {}
        while queue and len(taken) < MAX_PARTITIONS_PER_REQUEST:
            due = queue.popleft()
            if self._is_current(due.ending):
                taken.append(due)
                batch.setdefault(due.ending, []).append(due.partition)
        if not queue:
            self._queues.pop(broker_id, None)
        if taken:
            self._asked[broker_id] = taken
        return batch

    def answered(
        self,
        broker_id: BrokerId,
        codes: Mapping[tuple[int, TopicPartition], ErrorCode],
        now_ms: int,
    ) -> list[Outcome]:
        """Handle a broker's response. Return the progress of each transaction that made any: the
        partitions that need no marker any more, or the error for which the queue dropped it.

        :param codes: the response's codes by producer id and partition. A marker without a code is
            retried.
        :param now_ms: monotonic time, from which the pause before a retry counts.
        """
        done: dict[Ending, set[TopicPartition]] = {}
        given_up: dict[Ending, ErrorCode] = {}
        for due in self._asked.pop(broker_id):
            ending, partition, failures = due
            if not self._is_current(ending):
                continue
            code = codes.get((ending.metadata.producer_id, partition))
            if code in _AS_GOOD_AS_DONE:
                done.setdefault(ending, set()).add(partition)
            elif code in _GIVEN_UP:
                given_up[ending] = code
            else:
                self._put_back(_Due(ending, partition, failures + 1), now_ms)
        for ending in given_up:
            self.drop(ending)
        outcomes = [Outcome(ending, frozenset(), code) for ending, code in given_up.items()]
        for ending, partitions in done.items():
            if ending not in given_up:
                self._done(ending, partitions)
                outcomes.append(Outcome(ending, frozenset(partitions)))
        return outcomes

    @property
    def next_ms(self) -> int | None:
        """The time (monotonic ms) at which :meth:`retry` must be called; None if no marker waits
        for a retry.
        """
        return self._later[0][0] if self._later else None

    def retry(self, now_ms: int) -> list[Outcome]:
        """Queue the markers whose pause is over at ``now_ms`` (monotonic), each for its partition's
        present leader. Return deleted partitions as done, per transaction.
        """
        gone: dict[Ending, set[TopicPartition]] = {}
        while self._later and self._later[0][0] <= now_ms:
            _, _, due = heapq.heappop(self._later)
            if self._is_current(due.ending) and not self._queue(due, now_ms):
                gone.setdefault(due.ending, set()).add(due.partition)
        for ending, partitions in gone.items():
            self._done(ending, partitions)
        return [Outcome(ending, frozenset(partitions)) for ending, partitions in gone.items()]

    def _queue(self, due: _Due, now_ms: int) -> bool:
        """Queue a marker for the partition's leader; return False if the partition does not
        exist."""
        leader = self._leader_of(due.partition)
        if leader is None:
            return False
        if leader == NO_LEADER:
            self._put_back(_Due(due.ending, due.partition, due.failures + 1), now_ms)
        else:
            self._queues.setdefault(leader, deque()).append(due)
        return True

    def _put_back(self, due: _Due, now_ms: int) -> None:
        self._number += 1
        at_ms = now_ms + self._backoff.wait_ms(due.failures)
        heapq.heappush(self._later, (at_ms, self._number, due))

    def _is_current(self, ending: Ending) -> bool:
        return self._endings.get(ending.transactional_id) is ending
