"""LOOP. ``SampleEmitter``: sends samples of this broker to an internal topic in rounds.

There is one round per interval. Some rounds are *whole*: they also sample slowly changing values.

* One round runs at a time, with one batch in flight. Samples that are not accepted before the next
  round, or exceed the limit of the round, are dropped and counted.
* A round without samples does not create the topic.
* All samples of a broker go to one partition in batches, so that a round uses one connection and
  the leader has few batches to handle.
* An error and its end are logged once. Lost samples have no other effect.
* Samples are created in slices of a millisecond or two, with event loop iterations in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.internal.internal_producer import InternalProducer
from kraftjbod.broker.internal.internal_topic_creator import InternalTopicCreator
from kraftjbod.broker.internal.internal_topics import InternalTopic
from kraftjbod.core.errors import OperatingError
from kraftjbod.core.ids import BrokerId, Uuid
from kraftjbod.core.loop.timing import Clock, Deadline
from kraftjbod.core.telemetry import get_logger
from kraftjbod.protocol.record_batch import Compression
from kraftjbod.protocol.records import Record, build_batch
from kraftjbod.protocol.telemetry.storage_telemetry import Origin

_BATCH_RECORDS: Final = 250
#: Number of records per slice: a millisecond or two.
_SLICE_RECORDS: Final = 50
#: Only the leader acknowledges: samples are not worth a wait for followers.
_ACKS: Final = 1

Subject = TypeVar("Subject")


class Gathered(NamedTuple, Generic[Subject]):
    subjects: Sequence[Subject]
    left_out: int = 0
    """Number of subjects beyond the limit of the round."""


class Gatherer(Protocol[Subject]):
    """The source of the samples of one telemetry topic. ``gather`` returns the subjects of a round,
    such as directories, and ``records`` a record for each subject.
    """

    async def gather(self, *, whole: bool) -> Gathered[Subject]:
        """Return the subjects of a round; only a ``whole`` round has slowly changing ones."""
        ...

    def records(self, origin: Origin, subjects: Sequence[Subject]) -> Iterable[Record]:
        """Return a record for each subject that was not replaced since ``gather()``.

        Call it with few subjects at a time, to keep the event loop responsive.
        """

    def close(self) -> None: ...


class SampleEmitter(Generic[Subject]):
    """Sends samples to an internal topic in rounds, in one coroutine, :meth:`run_emitter`."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        rack: str | None,
        incarnation: Uuid,
        cache: MetadataCache,
        gatherer: Gatherer[Subject],
        topic: InternalTopic,
        creator: InternalTopicCreator,
        producer: InternalProducer,
        clock: Clock,
        count_sent: Callable[[int], None],
        count_dropped: Callable[[int], None],
        interval_ms: int,
        whole_interval_ms: int,
    ) -> None:
        self._broker_id = broker_id
        self._rack = rack
        self._incarnation = str(incarnation)
        self._cache = cache
        self._gatherer = gatherer
        self._topic = topic
        self._creator = creator
        self._producer = producer
        self._clock = clock
        self._count_sent = count_sent
        self._count_dropped = count_dropped
        self._interval_ms = interval_ms
        self._whole_interval_ms = whole_interval_ms
        self._is_in_trouble = False
        self._log = get_logger(component="samples", broker_id=broker_id, topic=topic.name)

    async def run_emitter(self) -> None:
        """Send samples at once and then every interval, until cancelled.

        At the end the producer and the gatherer are closed.
        """
        due_ms = whole_due_ms = self._clock.now_ms()
        try:
            while True:
                whole = due_ms >= whole_due_ms
                deadline = Deadline(due_ms + self._interval_ms)
                if await self._round_or_bug(deadline, whole=whole) and whole:
                    whole_due_ms = due_ms + self._whole_interval_ms
                # After a pause of the process, missed rounds are not repeated.
                now_ms = self._clock.now_ms()
                due_ms = max(deadline.at_ms, now_ms)
                await asyncio.sleep((due_ms - now_ms) / 1000)
        finally:
            self._producer.close()
            self._gatherer.close()

    async def _round_or_bug(self, deadline: Deadline, *, whole: bool) -> bool:
        """Run a round. An unexpected exception is logged, because it must not stop the broker.

        :return: as :meth:`round`; True after an exception.
        """
        try:
            return await self.round(deadline, whole=whole)
        except Exception as e:
            self._log.error("samples_round_failed", exc_info=e)
            return True

    async def round(self, deadline: Deadline, *, whole: bool) -> bool:
        """Send all samples once. Drop samples that are not accepted before ``deadline``. After an
        error the remaining samples are dropped, the error is logged, and the result is True.

        :param whole: also send samples of slowly changing values.
        :return: False if the topic is missing because its creation waits for more brokers.
        """
        subjects, left_out = await self._gatherer.gather(whole=whole)
        self._count_dropped(left_out)
        if not subjects:
            return True
        sent = 0
        try:
            if not await self._has_topic():
                self._count_dropped(len(subjects))
                return False
            while sent < len(subjects):
                part = subjects[sent : sent + _BATCH_RECORDS]
                if records := await self._records(part):
                    await self._send(records, deadline)
                    self._count_sent(len(records))
                sent += len(part)
        except OperatingError as e:
            self._count_dropped(len(subjects) - sent)
            if not self._is_in_trouble:
                self._is_in_trouble = True
                self._log.warning("samples_dropped", code=e.code.name, reason=e.message)
            return True
        if self._is_in_trouble:
            self._is_in_trouble = False
            self._log.info("samples_sent_again")
        return True

    async def _records(self, subjects: Sequence[Subject]) -> list[Record]:
        records: list[Record] = []
        for at in range(0, len(subjects), _SLICE_RECORDS):
            origin = Origin(
                cluster_id=self._cache.cluster_id,
                broker_id=self._broker_id,
                rack=self._rack,
                incarnation=self._incarnation,
                time_ms=self._clock.wall_ms(),
            )
            records += self._gatherer.records(origin, subjects[at : at + _SLICE_RECORDS])
            await asyncio.sleep(0)
        return records

    async def _send(self, records: Sequence[Record], deadline: Deadline) -> None:
        """Send one batch, with retries until ``deadline``. After a retry it may be in the log
        twice.

        :raises OperatingError: the last failure.
        """
        # Every client supports gzip, and repeated names shrink to a tenth.
        await self._producer.send(
            self._topic.name,
            build_batch(records, compression=Compression.GZIP),
            acks=_ACKS,
            deadline=deadline,
            choose=lambda partitions: self._broker_id % partitions,
        )

    async def _has_topic(self) -> bool:
        """Create the topic if needed; return whether it exists or will soon.

        :raises OperatingError: the controller's reason not to create the topic.
        """
        creation = await self._creator.ensure(self._topic)
        if creation.created is not None:
            self._log.info(
                "samples_topic_created",
                partitions=creation.created.num_partitions,
                replication_factor=creation.created.replication_factor,
            )
        return creation.is_there
