"""LOOP. ``GroupTelemetryEmitter``: reports to ``__group_telemetry`` how far the groups that this
broker coordinates are behind.

A round per ``group.telemetry.interval.ms``, one record per group and partition with an offset.

* A round of no records makes no topic: a cluster without groups has none.
* There is one round at a time, and in it one batch. What has not been taken when the next round is
  due, or had no room in the round, is dropped, and counted.
* A trouble is logged once, and so is its end; that nobody takes samples hurts nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.telemetry.group_telemetry_gatherer import (
    GroupOffset,
    GroupTelemetryGatherer,
)
from kraftjbod.broker.telemetry.log_ends import Ends, LogEnds
from kraftjbod.broker.telemetry.sample_writer import BATCH_RECORDS, SLICE_RECORDS, SampleWriter
from kraftjbod.core.errors import OperatingError
from kraftjbod.core.ids import BrokerId, Uuid
from kraftjbod.core.loop.timing import Clock, Deadline
from kraftjbod.core.telemetry import Metrics, get_logger
from kraftjbod.protocol.records import Record
from kraftjbod.protocol.telemetry.group_telemetry import encode, record_key
from kraftjbod.protocol.telemetry.storage_telemetry import Origin


class GroupTelemetryEmitter:
    """One coroutine, :meth:`run`."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        rack: str | None,
        incarnation: Uuid,
        cache: MetadataCache,
        gatherer: GroupTelemetryGatherer,
        ends: LogEnds,
        writer: SampleWriter,
        clock: Clock,
        metrics: Metrics,
        interval_ms: int,
    ) -> None:
        self._broker_id = broker_id
        self._rack = rack
        self._incarnation = str(incarnation)
        self._cache = cache
        self._gatherer = gatherer
        self._ends = ends
        self._writer = writer
        self._clock = clock
        self._metrics = metrics
        self._interval_ms = interval_ms
        self._is_in_trouble = False
        self._log = get_logger(component="group_telemetry", broker_id=broker_id)

    async def run(self) -> None:
        """A round at once, and then one per interval until cancelled."""
        due_ms = self._clock.now_ms()
        try:
            while True:
                deadline = Deadline(due_ms + self._interval_ms)
                await self._round_or_bug(deadline)
                # After a standstill of the process what was missed is not made up for.
                now_ms = self._clock.now_ms()
                due_ms = max(deadline.at_ms, now_ms)
                await asyncio.sleep((due_ms - now_ms) / 1000)
        finally:
            self._writer.close()
            self._ends.close()

    async def _round_or_bug(self, deadline: Deadline) -> None:
        """Not even a bug in here is worth a broker; it is logged as one."""
        try:
            await self.round(deadline)
        except Exception as e:
            self._log.error("group_telemetry_round_failed", exc_info=e)

    async def round(self, deadline: Deadline) -> None:
        """Tell of every group once; what is not taken before ``deadline`` is dropped."""
        offsets, left_out = await self._gatherer.offsets()
        self._drop(left_out)
        if not offsets:
            return
        sent = 0
        try:
            if not await self._has_topic():
                self._drop(len(offsets))
                return
            ends = await self._ends.find({one.topic_partition for one in offsets})
            while sent < len(offsets):
                part = offsets[sent : sent + BATCH_RECORDS]
                records = await self._records(part, ends)
                if records:
                    await self._writer.send(records, deadline)
                    self._metrics.count("GroupTelemetrySentTotal", len(records))
                sent += len(part)
        except OperatingError as e:
            self._drop(len(offsets) - sent)
            if not self._is_in_trouble:
                self._is_in_trouble = True
                self._log.warning("group_telemetry_dropped", code=e.code.name, reason=e.message)
            return
        if self._is_in_trouble:
            self._is_in_trouble = False
            self._log.info("group_telemetry_sent_again")

    def _drop(self, count: int) -> None:
        self._metrics.count("GroupTelemetryDroppedTotal", count)

    async def _records(self, offsets: Sequence[GroupOffset], ends: Ends) -> list[Record]:
        records: list[Record] = []
        for at in range(0, len(offsets), SLICE_RECORDS):
            records += self._reported_now(offsets[at : at + SLICE_RECORDS], ends)
            await asyncio.sleep(0)
        return records

    def _reported_now(self, offsets: Sequence[GroupOffset], ends: Ends) -> list[Record]:
        now_ms = self._clock.wall_ms()
        origin = Origin(
            cluster_id=self._cache.cluster_id,
            broker_id=self._broker_id,
            rack=self._rack,
            incarnation=self._incarnation,
            time_ms=now_ms,
        )
        return [
            Record(key=record_key(one), value=encode(origin, one), timestamp_ms=now_ms)
            for one in self._gatherer.samples(offsets, ends)
        ]

    async def _has_topic(self) -> bool:
        """Whether samples have anywhere to go, or will soon.

        :raises OperatingError: why the controller does not create the topic.
        """
        creation = await self._writer.ensure_topic()
        if creation.created is not None:
            self._log.info(
                "group_telemetry_topic_created",
                partitions=creation.created.num_partitions,
                replication_factor=creation.created.replication_factor,
            )
        return creation.is_there
