"""Appending as the leader: from a producer's bytes to an outcome that can be answered.

The stairs of one partition in one produce request:

1. role, epoch and in-sync replicas are checked, and the append is queued for the directory's
   thread, all without an ``await``, so that pipelined requests keep their order; while the
   replica changes its directory all this waits at its gate, in order;
2. when the append is done the role is checked again, because it may have moved meanwhile;
3. with ``acks=all`` the outcome waits for the high watermark.

* An outcome is a value, never an exception: an abandoned one leaves nothing unretrieved.
* What an append did to log end and high watermark takes effect even if nobody waits any more.
* A directory that does not answer in ``log.dir.io.suspect.ms`` costs its partitions an error of
  their own, and the rest of the request goes through.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from kraftjbod.broker.hosted_replicas import HostedReplica, HostedReplicas
from kraftjbod.broker.topic_configs import TopicConfigs
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.telemetry import Metrics
from kraftjbod.core.timing import Clock
from kraftjbod.protocol.record_batch import Buffer, validate
from kraftjbod.storage.log_values import AppendResult

ACKS_ALL: Final = -1
_NO_OFFSET: Final = -1


class AppendOutcome(NamedTuple):
    """What a producer is told about one partition."""

    code: ErrorCode
    message: str | None = None
    base_offset: int = _NO_OFFSET
    log_append_time_ms: int = -1
    log_start_offset: int = _NO_OFFSET


class PendingAppend:
    """One partition of one produce request, on its way."""

    __slots__ = ("done", "is_written", "topic_partition")

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.done: asyncio.Future[AppendOutcome] = asyncio.get_running_loop().create_future()
        #: The directory has answered; what is left is to wait for followers.
        self.is_written = False

    def end(self, outcome: AppendOutcome) -> None:
        if not self.done.done():
            self.done.set_result(outcome)


class ReplicaAppends:
    def __init__(
        self,
        *,
        replicas: HostedReplicas,
        topic_configs: TopicConfigs,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._replicas = replicas
        self._clock = clock
        self._topic_configs = topic_configs
        self._metrics = metrics

    def append(
        self, topic_partition: TopicPartition, records: Buffer | None, *, acks: int, timeout_ms: int
    ) -> PendingAppend:
        """Queue one partition's batches; never raises an :class:`OperatingError`."""
        pending = PendingAppend(topic_partition)
        self._try(pending, records or b"", acks, timeout_ms)
        return pending

    async def outcomes(
        self, pending: Sequence[PendingAppend], *, suspect_after_ms: int
    ) -> list[AppendOutcome]:
        """Every outcome, in order; each ends by itself at its own deadline."""
        watch = asyncio.get_running_loop().call_later(suspect_after_ms / 1000, _give_up, pending)
        try:
            return [await one.done for one in pending]
        finally:
            watch.cancel()

    def _try(self, pending: PendingAppend, records: Buffer, acks: int, timeout_ms: int) -> None:
        if pending.done.done():
            return  # It was given up at the gate.
        try:
            self._start(pending, records, acks, timeout_ms)
        except OperatingError as e:
            pending.end(AppendOutcome(e.code, e.message))

    def _start(self, pending: PendingAppend, records: Buffer, acks: int, timeout_ms: int) -> None:
        replica = self._replicas.require(pending.topic_partition)
        if replica.gate.is_closed:
            replica.gate.hold(lambda: self._try(pending, records, acks, timeout_ms))
            return
        partition, handle = replica.require_open()
        partition.require_appendable(acks)
        config = self._topic_configs.get(pending.topic_partition.topic)
        headers = validate(records, max_batch_bytes=config.max_message_bytes)
        leader_epoch = partition.leader_epoch
        writing = handle.append_as_leader(records, headers, leader_epoch)
        size_bytes = len(records)

        def written(append: asyncio.Future[AppendResult]) -> None:
            self._written(pending, replica, append, size_bytes, leader_epoch, acks, timeout_ms)

        writing.add_done_callback(written)
        self._metrics.count("BytesInPerSec", size_bytes)

    def _written(
        self,
        pending: PendingAppend,
        replica: HostedReplica,
        append: asyncio.Future[AppendResult],
        size_bytes: int,
        leader_epoch: int,
        acks: int,
        timeout_ms: int,
    ) -> None:
        """The directory's thread has answered."""
        pending.is_written = True
        error = append.exception()
        if isinstance(error, OperatingError):
            pending.end(AppendOutcome(error.code, error.message))
            return
        if error is not None:
            raise error
        result = append.result()
        if not result.duplicate:
            replica.count_appended(size_bytes)
        if not self._replicas.is_current(replica):
            pending.end(AppendOutcome(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        try:
            partition, handle = replica.require_open()
        except OperatingError as e:
            pending.end(AppendOutcome(e.code, e.message))
            return
        partition.note_idle_followers(self._clock.now_ms())
        has_committed = partition.log_end_moved(handle.log_end_offset)
        self._replicas.log_end_moved(replica, size_bytes, has_committed=has_committed)
        if not partition.is_leader or partition.leader_epoch != leader_epoch:
            pending.end(AppendOutcome(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        outcome = AppendOutcome(
            ErrorCode.NONE,
            None,
            result.base_offset,
            result.log_append_time_ms,
            result.log_start_offset,
        )
        if acks != ACKS_ALL:
            pending.end(outcome)
            return
        self._replicate(pending, replica, outcome, result.last_offset + 1, timeout_ms)

    def _replicate(
        self,
        pending: PendingAppend,
        replica: HostedReplica,
        outcome: AppendOutcome,
        required_offset: int,
        timeout_ms: int,
    ) -> None:
        assert replica.partition is not None, replica
        code = replica.partition.acks_state(required_offset)
        if code is not None:
            pending.end(outcome if code is ErrorCode.NONE else AppendOutcome(code))
            return
        try:
            waiting = self._replicas.produces.wait(
                replica.topic_partition, required_offset, timeout_ms
            )
        except OperatingError as e:
            pending.end(AppendOutcome(e.code, e.message))
            return

        def replicated(wait: asyncio.Future[ErrorCode]) -> None:
            code = wait.result()
            pending.end(outcome if code is ErrorCode.NONE else AppendOutcome(code))

        waiting.add_done_callback(replicated)


def _give_up(pending: Sequence[PendingAppend]) -> None:
    """Answer for directories that have not answered by now."""
    for one in pending:
        if not one.is_written:
            one.end(
                AppendOutcome(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"the log directory of {one.topic_partition} does not answer",
                )
            )
