"""LOOP. ``BatchedAppends``: collects coordinators' records of one event loop iteration in a batch.

Each append costs a thread handoff, a batch header, and a wait for replication. With a hundred
groups that commit at once, this is more than the cost of the records.

* Records for a partition in one event loop iteration are appended as one batch, in order, at its
  end. No caller waits for another append.
* The records of one call stay in one batch, even if there are many.
* A batch ends before it gets too large for the topic, so that no caller fails because of another
  one's records. A split after the append failed would change the order: a caller may flush, and
  append a batch of its own, before the failure is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from kraftjbod.broker.internal.internal_producer import InternalProducer
from kraftjbod.broker.replicas.pending_append import AppendOutcome
from kraftjbod.core import buggify
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import LeaderEpoch, TopicPartition
from kraftjbod.core.loop.completion import Completion
from kraftjbod.protocol.record_batch import HEADER_BYTES
from kraftjbod.protocol.records import Record, build_batch, most_bytes_of

#: Limit of records from several callers in one batch, because encoding blocks the event loop.
MOST_TOGETHER: Final = 500


class _Waiting(NamedTuple):
    records: Sequence[Record]
    completion: Completion[AppendOutcome]


class _Gathered:
    """The records of one partition that were collected in this event loop iteration."""

    __slots__ = ("count", "leader_epoch", "most_bytes", "waiting")

    def __init__(self, leader_epoch: LeaderEpoch) -> None:
        self.leader_epoch = leader_epoch
        self.waiting: list[_Waiting] = []
        self.count = 0
        #: Upper bound of the size of their batch.
        self.most_bytes = HEADER_BYTES


class BatchedAppends:
    """Appends the records of coordinators, one batch per partition and event loop iteration.

    No call is needed to flush: each iteration appends its records at its end.
    """

    def __init__(self, producer: InternalProducer, *, timeout_ms: int) -> None:
        self._producer = producer
        self._timeout_ms = timeout_ms
        self._gathered: dict[TopicPartition, _Gathered] = {}

    def append_records(
        self, partition: TopicPartition, records: Sequence[Record], *, leader_epoch: LeaderEpoch
    ) -> Completion[AppendOutcome]:
        """Append ``records`` with others of this event loop iteration, in the order of the calls.

        :param records: without headers.
        :return: as :meth:`InternalProducer.append_records`. The base offset is that of the first of
            ``records``.
        """
        most_bytes = sum(map(most_bytes_of, records))
        gathered = self._gathered.get(partition)
        if gathered is not None and (
            gathered.leader_epoch != leader_epoch
            or gathered.count + len(records) > MOST_TOGETHER
            or gathered.most_bytes + most_bytes > self._producer.max_batch_bytes(partition.topic)
            or (buggify.is_on and buggify.fires("broker.small_coordinator_batch"))
        ):
            self.flush(partition)
            gathered = None
        if gathered is None:
            gathered = self._gathered[partition] = _Gathered(leader_epoch)
            asyncio.get_running_loop().call_soon(self._flush, partition, gathered)
        completion: Completion[AppendOutcome] = Completion()
        gathered.waiting.append(_Waiting(records, completion))
        gathered.count += len(records)
        gathered.most_bytes += most_bytes
        return completion

    def flush(self, partition: TopicPartition) -> None:
        """Append the collected records of ``partition`` now, if there are any, before any append
        that the caller makes next."""
        gathered = self._gathered.pop(partition, None)
        if gathered is not None:
            self._append(partition, gathered.leader_epoch, gathered.waiting)

    def _flush(self, partition: TopicPartition, gathered: _Gathered) -> None:
        if self._gathered.get(partition) is gathered:
            self.flush(partition)

    def _append(
        self, partition: TopicPartition, leader_epoch: LeaderEpoch, waiting: Sequence[_Waiting]
    ) -> None:
        appending = self._producer.append_records(
            partition,
            build_batch([record for one in waiting for record in one.records]),
            leader_epoch=leader_epoch,
            timeout_ms=self._timeout_ms,
        )

        def ended(done: Completion[AppendOutcome]) -> None:
            outcome = done.result()
            if outcome.code is ErrorCode.MESSAGE_TOO_LARGE and len(waiting) > 1:
                # The limit was lowered while the append was held back. Callers repeat their writes.
                outcome = outcome._replace(code=ErrorCode.NOT_ENOUGH_REPLICAS)
            at = outcome.base_offset
            for one in waiting:
                one.completion.set_result(outcome._replace(base_offset=at))
                at += len(one.records)

        appending.add_done_callback(ended)
