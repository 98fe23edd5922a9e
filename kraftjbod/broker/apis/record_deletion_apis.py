"""LOOP. DeleteRecords (KIP-107): advances the log start offset of partitions.

* Only the leader accepts the request, up to the high watermark; -1 means the high watermark.
* Followers receive the new log start, adopt it (replica_fetcher.py), and report it with the next
  fetch after it is on disk. The response waits for all replicas that may lead next (ISR, or ELR of
  KIP-966) and for all others that are alive, so that none of them returns the records as leader.
  On REQUEST_TIMED_OUT, the other replicas follow later.
* Replicas in full directories do not fetch (saturated_followers.py). Like replicas on dead brokers,
  they are waited for only while they may lead next. A replica that was not waited for joins the
  ISR only with the new log start (isr_manager.py).
* Records of topics that brokers keep in memory cannot be deleted.
* Retention frees the space; a full directory applies it at once.

The reported log start is in the checkpoints on the disks of all replicas that were waited for, so
no crash reverts it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from kraftjbod.broker.answer_partitions import answer_partitions
from kraftjbod.broker.replicas.hosted_replicas import HostedReplicas
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.core.errors import (
    ErrorCode,
    LogDirImpairedError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    OperatingError,
)
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.protocol.messages import DeleteRecordsRequest, DeleteRecordsResponse
from kraftjbod.storage.log.log_handle import LogHandle

Wanted = DeleteRecordsRequest.DeleteRecordsPartition
Deleted = DeleteRecordsResponse.DeleteRecordsPartitionResult
_HIGH_WATERMARK: Final = -1
_UNKNOWN_LOW_WATERMARK: Final = -1
#: Minimum time for the leader's own part: as in Kafka, the request's timeout is for the followers.
_LEAST_TIMEOUT_MS: Final = 1_000
#: Pause between attempts while a full directory frees space.
_PURGE_WAIT_S: Final = 0.2


def _refused(part: Wanted) -> Deleted:
    return Deleted(
        partition_index=part.partition_index,
        low_watermark=_UNKNOWN_LOW_WATERMARK,
        error_code=ErrorCode.INVALID_REQUEST,
    )


class RecordDeletionApis:
    def __init__(
        self, *, replicas: HostedReplicas, closed_topics: frozenset[str] = frozenset()
    ) -> None:
        """Create the handler of DeleteRecords.

        :param closed_topics: topics whose records clients cannot delete.
        """
        self._replicas = replicas
        self._closed_topics = closed_topics

    async def delete_records(
        self, request: DeleteRecordsRequest, _context: RequestContext
    ) -> DeleteRecordsResponse:
        asked = ((topic.name, part) for topic in request.topics for part in topic.partitions)
        ended = iter(
            await answer_partitions(
                asked,
                lambda one: self._delete(*one, request.timeout_ms),
                refuse=lambda one: _refused(one[1]),
            )
        )
        return DeleteRecordsResponse(
            topics=[
                DeleteRecordsResponse.DeleteRecordsTopicResult(
                    name=topic.name, partitions=[next(ended) for _ in topic.partitions]
                )
                for topic in request.topics
            ]
        )

    async def _delete(self, topic: str, part: Wanted, timeout_ms: int) -> Deleted:
        result = Deleted(partition_index=part.partition_index, low_watermark=_UNKNOWN_LOW_WATERMARK)
        due_s = asyncio.get_running_loop().time() + timeout_ms / 1000
        try:
            async with asyncio.timeout(max(timeout_ms, _LEAST_TIMEOUT_MS) / 1000):
                result.low_watermark = await self._start_at(
                    TopicPartition(topic, part.partition_index), part.offset, due_s
                )
        except TimeoutError:
            result.error_code = ErrorCode.REQUEST_TIMED_OUT
        except OperatingError as e:
            result.error_code = e.code
        return result

    async def _start_at(self, topic_partition: TopicPartition, offset: int, due_s: float) -> int:
        """Advance the log start to ``offset`` and return the low watermark of the partition.

        :param due_s: loop time until which the other replicas may take.
        :raises OperatingError: the deletion is refused; REQUEST_TIMED_OUT: not all replicas
            followed.
        """
        if topic_partition.topic in self._closed_topics:
            raise OperatingError(
                f"Cannot delete records of internal topic {topic_partition.topic}",
                code=ErrorCode.INVALID_TOPIC_EXCEPTION,
            )
        await self._pass_gate(topic_partition)
        replica = self._replicas.require(topic_partition)
        partition, handle = replica.require_open()
        partition.require_leader()
        if not handle.config.cleanup_policy.allows_record_deletion:
            raise OperatingError(
                f"cleanup.policy of {topic_partition.topic} does not let records be deleted",
                code=ErrorCode.POLICY_VIOLATION,
            )
        wanted = partition.high_watermark if offset == _HIGH_WATERMARK else offset
        if not 0 <= wanted <= partition.high_watermark:
            raise OffsetOutOfRangeError(
                f"offset {wanted} is outside 0..{partition.high_watermark} of {topic_partition}"
            )
        await handle.start_at(wanted)
        await self._keep_log_start(handle)
        if not self._replicas.is_current(replica):
            raise NotLeaderOrFollowerError(f"{topic_partition} is another replica now")
        self._replicas.reading_changed(replica)
        low_watermark = self._replicas.low_watermark(replica)
        if low_watermark >= wanted:
            return low_watermark
        left_ms = max(0, int((due_s - asyncio.get_running_loop().time()) * 1000))
        code = await self._replicas.deletions.wait(topic_partition, wanted, left_ms)
        if code is not ErrorCode.NONE:
            raise OperatingError(f"not all live replicas start at {wanted} yet", code=code)
        return max(wanted, self._replicas.low_watermark(replica))

    async def _keep_log_start(self, handle: LogHandle) -> None:
        """Persist the log start.

        A full directory first frees the space of the deleted records, and the write is repeated.
        """
        while True:
            if handle.log_dir.state is LogDirState.SATURATED:
                await handle.apply_retention()
            try:
                return await handle.keep_log_start()
            except LogDirImpairedError:
                if handle.log_dir.state is not LogDirState.SATURATED:
                    raise
            await asyncio.sleep(_PURGE_WAIT_S)

    async def _pass_gate(self, topic_partition: TopicPartition) -> None:
        """Wait while a move swaps the replica's copies.

        :raises OverloadedError: too many appends and deletions wait already.
        """
        gate = self._replicas.require(topic_partition).gate
        while gate.is_closed:
            opened = asyncio.Event()
            gate.hold(opened.set)
            await opened.wait()
