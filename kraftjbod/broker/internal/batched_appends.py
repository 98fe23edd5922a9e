"""LOOP. ``BatchedAppends``: what coordinators write, a batch for all that wait in the same turn.

Each append costs a way to the directory's thread, a batch's header, and an offset that followers
are waited for; with a hundred groups that commit at once those cost more than the records.

* What comes for a partition in one turn of the loop goes into one batch, in order, at its end.
  Nobody waits for anybody else's append.
* What was given together stays together, in one batch, whatever its size.
* A batch that is too large for the topic is taken apart, so that nobody fails by another's records.
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
from kraftjbod.protocol.records import Record, build_batch

#: Of more than one writer in one batch: encoding them takes the loop.
MOST_TOGETHER: Final = 500


class _Waiting(NamedTuple):
    records: Sequence[Record]
    completion: Completion[AppendOutcome]


class _Gathered:
    """What came for a partition in this turn."""

    __slots__ = ("count", "leader_epoch", "waiting")

    def __init__(self, leader_epoch: LeaderEpoch) -> None:
        self.leader_epoch = leader_epoch
        self.waiting: list[_Waiting] = []
        self.count = 0


class BatchedAppends:
    """Needs no end: what was gathered is appended within the turn of the loop."""

    def __init__(self, producer: InternalProducer, *, timeout_ms: int) -> None:
        self._producer = producer
        self._timeout_ms = timeout_ms
        self._gathered: dict[TopicPartition, _Gathered] = {}

    def append(
        self, partition: TopicPartition, records: Sequence[Record], *, leader_epoch: LeaderEpoch
    ) -> Completion[AppendOutcome]:
        """As :meth:`InternalProducer.append`; the base offset is that of ``records``, one or more.

        What is appended first stands first.
        """
        gathered = self._gathered.get(partition)
        if gathered is not None and (
            gathered.leader_epoch != leader_epoch
            or gathered.count + len(records) > MOST_TOGETHER
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
        return completion

    def flush(self, partition: TopicPartition) -> None:
        """Append what has come for it, so that what its caller appends stands after it."""
        gathered = self._gathered.pop(partition, None)
        if gathered is not None:
            self._append(partition, gathered.leader_epoch, gathered.waiting)

    def _flush(self, partition: TopicPartition, gathered: _Gathered) -> None:
        if self._gathered.get(partition) is gathered:
            self.flush(partition)

    def _append(
        self, partition: TopicPartition, leader_epoch: LeaderEpoch, waiting: Sequence[_Waiting]
    ) -> None:
        appending = self._producer.append(
            partition,
            build_batch([record for one in waiting for record in one.records]),
            leader_epoch=leader_epoch,
            timeout_ms=self._timeout_ms,
        )

        def ended(done: Completion[AppendOutcome]) -> None:
            outcome = done.result()
            if outcome.code is ErrorCode.MESSAGE_TOO_LARGE and len(waiting) > 1:
                loop = asyncio.get_running_loop()
                for one in waiting:
                    loop.call_soon(self._append, partition, leader_epoch, [one])
                return
            at = outcome.base_offset
            for one in waiting:
                one.completion.set_result(outcome._replace(base_offset=at))
                at += len(one.records)

        appending.add_done_callback(ended)
