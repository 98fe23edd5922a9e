"""DescribeLogDirs: what lies in which directory of this broker, how big it is, what room is left.

* Sizes and offsets are the published figures of the logs; room is what the directory's own thread
  saw last. Nothing here touches a disk, so a sick one cannot hold up the answer.
* A directory that is offline is named with KAFKA_STORAGE_ERROR and nothing else is said of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Final

from kraftjbod.broker.hosted_replicas import HostedReplicas
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import TopicPartition
from kraftjbod.protocol.kafka_codec import Message, message
from kraftjbod.storage.log_dir import LogDir
from kraftjbod.storage.log_handle import LogHandle
from kraftjbod.storage.log_manager import LogManager

DescribeLogDirsResponse = message("DescribeLogDirsResponse")
_Result = DescribeLogDirsResponse.DescribeLogDirsResult
_Topic = DescribeLogDirsResponse.DescribeLogDirsTopic
_Partition = DescribeLogDirsResponse.DescribeLogDirsPartition

_UNKNOWN_LAG: Final = -1


class LogDirApis:
    def __init__(self, *, logs: LogManager, replicas: HostedReplicas) -> None:
        self._logs = logs
        self._replicas = replicas

    async def describe_log_dirs(self, request: Message, _context: RequestContext) -> Message:
        wanted = _wanted(request)
        by_dir: dict[LogDir, list[LogHandle]] = defaultdict(list)
        for handle in self._logs.handles():
            if wanted is None or handle.topic_partition in wanted:
                by_dir[handle.log_dir].append(handle)
        response: Message = DescribeLogDirsResponse(
            results=[
                *(self._describe(log_dir, by_dir[log_dir]) for log_dir in self._logs.online_dirs()),
                *(
                    _Result(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=log_dir.path)
                    for log_dir in self._logs.offline_dirs()
                ),
            ]
        )
        return response

    def _describe(self, log_dir: LogDir, handles: list[LogHandle]) -> Message:
        by_topic: dict[str, list[LogHandle]] = defaultdict(list)
        for handle in handles:
            by_topic[handle.topic_partition.topic].append(handle)
        described: Message = _Result(
            log_dir=log_dir.path,
            topics=[
                _Topic(
                    name=topic,
                    partitions=[
                        _Partition(
                            partition_index=handle.topic_partition.partition,
                            partition_size=handle.size_bytes,
                            offset_lag=self._lag(handle),
                        )
                        for handle in sorted(parts, key=lambda h: h.topic_partition.partition)
                    ],
                )
                for topic, parts in sorted(by_topic.items())
            ],
            total_bytes=log_dir.space.total_bytes,
            usable_bytes=log_dir.space.usable_bytes,
        )
        return described

    def _lag(self, handle: LogHandle) -> int:
        """How much of what is committed the copy does not have yet."""
        replica = self._replicas.get(handle.topic_partition)
        if replica is None or replica.partition is None:
            return _UNKNOWN_LAG
        return max(0, replica.partition.high_watermark - handle.log_end_offset)


def _wanted(request: Message) -> Collection[TopicPartition] | None:
    """The partitions asked for; None for all."""
    if request.topics is None:
        return None
    return {
        TopicPartition(topic.topic, index) for topic in request.topics for index in topic.partitions
    }
