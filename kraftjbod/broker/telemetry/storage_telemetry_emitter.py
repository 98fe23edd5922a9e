"""LOOP. ``StorageTelemetryEmitter``: reports to ``__storage_telemetry`` what this broker's disks
are like.

A round per ``storage.telemetry.log.dir.interval.ms`` samples every directory, and of every replica
too when ``storage.telemetry.replica.interval.ms`` is over.

* There is one round at a time, and in it one batch. What has not been taken when the next round is
  due is dropped, and counted.
* A trouble is logged once, and so is its end; that nobody takes samples hurts nothing else.
* Others get their turn every millisecond or two: samples are made in slices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.telemetry.sample_writer import BATCH_RECORDS, SLICE_RECORDS, SampleWriter
from kraftjbod.broker.telemetry.storage_telemetry_gatherer import StorageTelemetryGatherer, Subject
from kraftjbod.core.errors import OperatingError
from kraftjbod.core.ids import BrokerId, Uuid
from kraftjbod.core.loop.timing import Clock, Deadline
from kraftjbod.core.telemetry import Metrics, get_logger
from kraftjbod.protocol.records import Record
from kraftjbod.protocol.telemetry.storage_telemetry import Origin, encode, record_key


class StorageTelemetryEmitter:
    """One coroutine, :meth:`run`."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        rack: str | None,
        incarnation: Uuid,
        cache: MetadataCache,
        gatherer: StorageTelemetryGatherer,
        writer: SampleWriter,
        clock: Clock,
        metrics: Metrics,
        log_dir_interval_ms: int,
        replica_interval_ms: int,
    ) -> None:
        self._broker_id = broker_id
        self._rack = rack
        self._incarnation = str(incarnation)
        self._cache = cache
        self._gatherer = gatherer
        self._writer = writer
        self._clock = clock
        self._metrics = metrics
        self._interval_ms = log_dir_interval_ms
        self._replica_interval_ms = replica_interval_ms
        self._is_in_trouble = False
        self._log = get_logger(component="storage_telemetry", broker_id=broker_id)

    async def run(self) -> None:
        """A round at once, and then one per interval until cancelled."""
        due_ms = replicas_due_ms = self._clock.now_ms()
        try:
            while True:
                with_replicas = due_ms >= replicas_due_ms
                deadline = Deadline(due_ms + self._interval_ms)
                has_topic = await self._round_or_bug(deadline, with_replicas=with_replicas)
                if with_replicas and has_topic:
                    replicas_due_ms = due_ms + self._replica_interval_ms
                # After a standstill of the process what was missed is not made up for.
                now_ms = self._clock.now_ms()
                due_ms = max(deadline.at_ms, now_ms)
                await asyncio.sleep((due_ms - now_ms) / 1000)
        finally:
            self._writer.close()

    async def _round_or_bug(self, deadline: Deadline, *, with_replicas: bool) -> bool:
        """Not even a bug in here is worth a broker; it is logged as one."""
        try:
            return await self.round(deadline, with_replicas=with_replicas)
        except Exception as e:
            self._log.error("storage_telemetry_round_failed", exc_info=e)
            return True

    async def round(self, deadline: Deadline, *, with_replicas: bool) -> bool:
        """Tell of everything once; what is not taken before ``deadline`` is dropped.

        False if there is no topic, because more brokers are waited for.
        """
        subjects = await self._gatherer.subjects(with_replicas=with_replicas)
        sent = 0
        try:
            if not await self._has_topic():
                self._drop(len(subjects))
                return False
            while sent < len(subjects):
                part = subjects[sent : sent + BATCH_RECORDS]
                records = await self._records(part)
                if records:
                    await self._writer.send(records, deadline)
                    self._metrics.count("StorageTelemetrySentTotal", len(records))
                sent += len(part)
        except OperatingError as e:
            self._drop(len(subjects) - sent)
            if not self._is_in_trouble:
                self._is_in_trouble = True
                self._log.warning("storage_telemetry_dropped", code=e.code.name, reason=e.message)
            return True
        if self._is_in_trouble:
            self._is_in_trouble = False
            self._log.info("storage_telemetry_sent_again")
        return True

    def _drop(self, count: int) -> None:
        self._metrics.count("StorageTelemetryDroppedTotal", count)

    async def _records(self, subjects: Sequence[Subject]) -> list[Record]:
        records: list[Record] = []
        for at in range(0, len(subjects), SLICE_RECORDS):
            records += self._reported_now(subjects[at : at + SLICE_RECORDS])
            await asyncio.sleep(0)
        return records

    def _reported_now(self, subjects: Sequence[Subject]) -> Iterator[Record]:
        now_ms = self._clock.wall_ms()
        origin = Origin(
            cluster_id=self._cache.cluster_id,
            broker_id=self._broker_id,
            rack=self._rack,
            incarnation=self._incarnation,
            time_ms=now_ms,
        )
        for sample in self._gatherer.samples(subjects):
            yield Record(
                key=record_key(origin, sample), value=encode(origin, sample), timestamp_ms=now_ms
            )

    async def _has_topic(self) -> bool:
        """Whether samples have anywhere to go, or will soon.

        :raises OperatingError: why the controller does not create the topic.
        """
        creation = await self._writer.ensure_topic()
        if creation.created is not None:
            self._log.info(
                "storage_telemetry_topic_created",
                partitions=creation.created.num_partitions,
                replication_factor=creation.created.replication_factor,
            )
        return creation.is_there
