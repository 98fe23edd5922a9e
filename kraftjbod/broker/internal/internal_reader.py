"""LOOP. ``InternalReader``: the log of a partition that is led here, from its start to its end.

For who keeps in memory what a partition of an internal topic holds, and begins to lead it. Records
come batch by batch, in slices of so many bytes of the log, with a turn for everybody else between.
The end comes once everything before it is committed. Until then it may be lost with this leader,
also what an earlier one wrote, and whatever rests on it must not be told to anybody.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from kraftjbod.broker.replicas.hosted_replicas import HostedReplica, HostedReplicas
from kraftjbod.core import buggify
from kraftjbod.core.errors import CorruptRecordError, LogDirImpairedError, OverloadedError
from kraftjbod.core.ids import LeaderEpoch, TopicPartition
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.core.loop.work_slices import WorkSlices
from kraftjbod.protocol.record_batch import BatchHeader, read_header
from kraftjbod.protocol.records import Record, read_records
from kraftjbod.storage.log.log_handle import LogHandle, ReadResult


class InternalBatch(NamedTuple):
    """A batch and its records; compaction may have left none."""

    header: BatchHeader
    records: tuple[Record, ...]


class InternalReader:
    def __init__(
        self,
        *,
        replicas: HostedReplicas,
        damage_met: Callable[[HostedReplica], None],
        backoff: ExponentialBackoff,
        slice_bytes: int,
    ) -> None:
        """:param slice_bytes: what is read of the log at once, if no batch is larger."""
        self._replicas = replicas
        self._damage_met = damage_met
        self._backoff = backoff
        self._slice_bytes = slice_bytes

    async def read(
        self, topic_partition: TopicPartition, leader_epoch: LeaderEpoch
    ) -> AsyncIterator[InternalBatch]:
        """Everything, until the log's end is met, and committed.

        A directory that hangs or has too much to do, and followers that are away, are waited for as
        long as the partition is led here in that epoch.

        :raises OperatingError: if it is not, or no more; CORRUPT_MESSAGE, if the log is damaged.
        """
        handle = self._led(topic_partition, leader_epoch)
        position = handle.log_start_offset
        slices, waits = WorkSlices.of_loop(), 0
        while True:
            # Of an empty log, too: an append may be on its way, and the first read comes after it.
            end, result = await self._read_at(topic_partition, leader_epoch, position)
            handle = self._led(topic_partition, leader_epoch)
            at = 0
            while at < len(result.records):
                await slices.turn()
                header = read_header(result.records, at)
                records = read_records(result.records, at)
                yield InternalBatch(header, tuple(r for r in records if r.offset >= position))
                at += header.size_bytes
                position = max(position, header.next_offset)
            if not result.records:
                position = end
            if position < handle.log_end_offset:
                continue
            if self._is_committed(topic_partition, position):
                return
            waits += 1
            await asyncio.sleep(self._backoff.wait_ms(waits) / 1000)

    async def _read_at(
        self, topic_partition: TopicPartition, leader_epoch: LeaderEpoch, position: int
    ) -> tuple[int, ReadResult]:
        """What is there up to the offset that comes first."""
        failures = 0
        while True:
            # Looked up anew each time: the replica may be in another directory by now.
            handle = self._led(topic_partition, leader_epoch)
            slice_bytes = self._slice_bytes
            if buggify.is_on and buggify.fires("broker.small_coordinator_read"):
                slice_bytes = 1
            try:
                end = handle.log_end_offset
                return end, await handle.read_checked(position, slice_bytes, end, True)
            except CorruptRecordError:
                self._damage_met(self._replicas.require(topic_partition))
                raise
            except (LogDirImpairedError, OverloadedError):
                failures += 1
                await asyncio.sleep(self._backoff.wait_ms(failures) / 1000)

    def _is_committed(self, topic_partition: TopicPartition, end: int) -> bool:
        partition, _ = self._replicas.require(topic_partition).require_open()
        return partition.high_watermark >= end

    def _led(self, topic_partition: TopicPartition, leader_epoch: LeaderEpoch) -> LogHandle:
        partition, handle = self._replicas.require(topic_partition).require_open()
        partition.require_leader(leader_epoch)
        return handle
