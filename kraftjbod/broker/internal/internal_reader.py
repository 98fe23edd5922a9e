"""LOOP. ``InternalReader``: reads the log of a led partition of an internal topic from start to
end.

A coordinator uses it to load a partition at the start of a leadership. Batches are read in
slices of limited size, and the event loop runs other tasks in between. The read ends when
everything before the log end is committed. Before that, records of this or an earlier leader may
be lost, so no response may rely on them.
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
    """A batch that was read from an internal topic: its header and its records. ``records`` is
    empty if compaction has removed all of them.
    """

    header: BatchHeader
    records: tuple[Record, ...]


class InternalReader:
    def __init__(
        self,
        *,
        replicas: HostedReplicas,
        damage_met: Callable[[HostedReplica], object],
        backoff: ExponentialBackoff,
        slice_bytes: int,
    ) -> None:
        """Create a reader.

        :param damage_met: called with a replica whose log is damaged.
        :param slice_bytes: size of one read, unless a batch is larger.
        """
        self._replicas = replicas
        self._damage_met = damage_met
        self._backoff = backoff
        self._slice_bytes = slice_bytes

    async def read(
        self, topic_partition: TopicPartition, leader_epoch: LeaderEpoch
    ) -> AsyncIterator[InternalBatch]:
        """Yield all batches up to the log end, and wait until they are committed.

        Also waits for a hung or busy directory and for slow followers, as long as this broker leads
        in ``leader_epoch``.

        :raises OperatingError: this broker does not lead any more; CORRUPT_MESSAGE, if the log is
            damaged.
        """
        handle = self._led(topic_partition, leader_epoch)
        position = handle.log_start_offset
        slices, waits = WorkSlices.of_loop(), 0
        while True:
            # Also for an empty log: the first read comes after an append in flight.
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
        """Read a slice at ``position``; return the log end offset and the slice.

        Retries while the directory is impaired or busy.
        """
        failures = 0
        while True:
            # Looked up again each time: the replica may have moved to another directory.
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
