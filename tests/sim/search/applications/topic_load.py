"""``TopicLoad``: writes to and reads from one topic, identified by its id.

* While another topic has the name, it waits: a record for one topic must not go to the other, which
  the client's metadata would name. It waits until its end once its topic is deleted.
* A reader whose position was removed continues at the log start offset. The ledger checks whether
  that offset is allowed.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Final

from kraftjbod.cli.clients.cluster_admin import EARLIEST, list_offsets
from kraftjbod.cli.clients.cluster_client import ClusterClient, kafka_error, may_pass
from kraftjbod.cli.clients.consumer import Consumer, FetchedRecords
from kraftjbod.cli.clients.producer import Producer
from kraftjbod.core.errors import ErrorCode, OperatingError, RequestTimedOutError
from kraftjbod.core.ids import TopicId
from kraftjbod.protocol.messages import FetchResponse
from kraftjbod.protocol.records import Record
from tests.sim.search.applications.application import Surroundings
from tests.sim.search.ledgers.ledger import Ledger, Stream, stamped_ms, value_of

_FOREVER_MS: Final = 3_600_000
_POLL_MS: Final = 1_000
_PAUSE_S: Final = 0.2


def require_topic(client: ClusterClient, name: str, topic_id: TopicId) -> None:
    """:raises OperatingError: UNKNOWN_TOPIC_ID: in the client's metadata the name is another
    topic's, or unknown."""
    if client.metadata.topic(name).topic_id != topic_id:
        raise kafka_error(ErrorCode.UNKNOWN_TOPIC_ID, f"{name} of id {topic_id}")


class _Writer(Producer):
    def __init__(self, client: ClusterClient, name: str, topic_id: TopicId) -> None:
        super().__init__(
            client,
            name,
            request_timeout_ms=client.request_timeout_ms,
            delivery_timeout_ms=_FOREVER_MS,
        )
        self._topic_id = topic_id

    async def _produce(self, partition: int, batch: bytes) -> int:
        require_topic(self._client, self._topic, self._topic_id)
        return await super()._produce(partition, batch)


class _Reader(Consumer):
    def __init__(self, client: ClusterClient, name: str, topic_id: TopicId) -> None:
        super().__init__(client, name, {}, retry_timeout_ms=_FOREVER_MS)
        self._topic_id = topic_id
        #: The latest log start offset in an answer.
        self.latest_start = 0

    def _read(self, result: FetchResponse.PartitionData) -> FetchedRecords | None:
        self.latest_start = max(self.latest_start, result.log_start_offset)
        return super()._read(result)

    async def _fetch(self, leader: int, partitions: list[int]) -> list[FetchedRecords]:
        require_topic(self._client, self._topic, self._topic_id)
        return await super()._fetch(leader, partitions)

    async def continue_from_the_earliest(self) -> None:
        """:raises OperatingError: the log start offset could not be fetched."""
        await self._client.refresh_metadata([self._topic])
        require_topic(self._client, self._topic, self._topic_id)
        starts = await list_offsets(self._client, self._topic, [*self.positions], EARLIEST)
        require_topic(self._client, self._topic, self._topic_id)
        for partition, start in starts.items():
            self.positions[partition] = max(start, self.positions[partition])


class TopicLoad:
    """Call :meth:`begin` per partition, then :meth:`stop_writing` and :meth:`end`."""

    def __init__(
        self,
        around: Surroundings,
        ledger: Ledger,
        name: str,
        topic_id: TopicId,
        *,
        key: str,
        writer: ClusterClient,
        reader: ClusterClient,
        pause_s: float,
        filler: bytes | None = None,
        batches: Sequence[int] = (1,),
    ) -> None:
        """
        :param key: the ledger's key of the topic.
        :param writer: may be shared with other topics, like ``reader``.
        :param pause_s: pause from an acknowledgement to the next record of a partition.
        :param filler: the key of each record.
        :param batches: numbers of records of a producer's successive batches.
        """
        self.name, self.topic_id, self.key = name, topic_id, key
        self.acked_ms = -1
        #: The deletion was requested, so that requests may be refused.
        self.is_ending = False
        self._around = around
        self._ledger = ledger
        self._writer_client, self._reader_client = writer, reader
        self._pause_s = pause_s
        self._filler = filler
        self._batches = batches
        self._is_stopping = False
        self._reader = _Reader(reader, name, topic_id)
        self._writing: dict[int, asyncio.Task[None]] = {}
        self._reading: asyncio.Task[None] | None = None

    @property
    def partitions(self) -> int:
        return len(self._writing)

    @property
    def latest_start(self) -> int:
        """The latest log start offset that consumers saw."""
        return self._reader.latest_start

    def begin(self) -> None:
        """Start with one more partition, which must exist."""
        partition = self.partitions
        writing = self._write(partition)
        self._writing[partition] = self._around.begin(writing, f"{self.key}-{partition}-writer")
        self._reader.positions[partition] = 0
        if self._reading is None:
            self._reading = self._around.begin(self._read(), f"{self.key}-reader")

    async def stop_writing(self) -> None:
        """Stop writing, and wait for the answers of records in flight."""
        self._is_stopping = True
        await asyncio.gather(*self._writing.values(), return_exceptions=True)

    async def end(self) -> None:
        """End at once."""
        tasks = [*self._writing.values(), *filter(None, [self._reading])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._reader.close()

    def unread(self) -> list[str]:
        """Return a sentence for each partition with acknowledged records that are not read yet."""
        missing = []
        for partition, position in self._reader.positions.items():
            end = self._ledger.acked_end(self.key, partition)
            if position < end:
                missing.append(f"{self.key}-{partition} is read up to {position} of {end}")
        return missing

    # --- writing ---------------------------------------------------------------------------------

    async def _write(self, partition: int) -> None:
        """Produce streams one after the other: a stream ends when a record is in doubt."""
        lives = 0
        while not self._is_stopping:
            name = f"{self.key}-{partition}-{lives}"
            lives += 1
            stream = self._ledger.add(Stream(name=name, topic=self.key, partition=partition))
            writer = _Writer(self._writer_client, self.name, self.topic_id)
            try:
                await self._stream(writer, stream)
            except OperatingError as e:
                if not may_pass(e) and not isinstance(e, RequestTimedOutError):
                    self._require_ending(e)
                await asyncio.sleep(_PAUSE_S)

    async def _stream(self, writer: Producer, stream: Stream) -> None:
        for count in itertools.cycle(self._batches):
            if self._is_stopping:
                return
            first = stream.next_number
            stream.next_number += count
            numbers = range(first, stream.next_number)
            stream.in_doubt.update(numbers)
            now_ms = self._around.now_ms()
            records = [
                Record(
                    key=self._filler,
                    value=value_of(stream.name, number),
                    timestamp_ms=stamped_ms(number, now_ms),
                )
                for number in numbers
            ]
            offset = await writer.send(stream.partition, records)
            self.acked_ms = self._around.now_ms()
            for record, number in zip(records, numbers, strict=True):
                stream.in_doubt.discard(number)
                at = offset + number - first
                if wrong := stream.take_ack(
                    number, at, self.acked_ms, stamped_ms=record.timestamp_ms
                ):
                    self._around.found(wrong)
            await asyncio.sleep(self._pause_s)

    # --- reading ---------------------------------------------------------------------------------

    async def _read(self) -> None:
        while True:
            try:
                fetched = await self._reader.poll(_POLL_MS)
            except OperatingError as e:
                if e.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                    await self._read_on()
                elif not may_pass(e):
                    self._require_ending(e)
                await asyncio.sleep(_PAUSE_S)
                continue
            for records in fetched:
                for _, record in records:
                    self._saw(records.partition, record)

    async def _read_on(self) -> None:
        try:
            await self._reader.continue_from_the_earliest()
        except OperatingError as e:
            if not may_pass(e):
                self._require_ending(e)

    def _saw(self, partition: int, record: Record) -> None:
        wrong = self._ledger.saw(self.key, partition, record.offset, record.value or b"")
        if wrong:
            self._around.found(wrong)

    def _require_ending(self, error: Exception) -> None:
        if not self.is_ending:
            self._around.found(f"{self.key}: {error}")


class OwnedTopic:
    """An application with its own topic; ``start`` begins its task.

    See :class:`~.application.Application`.
    """

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        #: None while there is no topic.
        self._load: TopicLoad | None = None
        self._owning: asyncio.Task[None] | None = None
        self._is_stopping = False

    async def stop(self) -> None:
        self._is_stopping = True
        if self._owning is not None:
            await asyncio.gather(self._owning, return_exceptions=True)
        if self._load is not None:
            await self._load.stop_writing()

    def unsettled(self) -> list[str]:
        return [] if self._load is None else self._load.unread()

    async def judge(self) -> list[str]:
        """Return nothing: the logs on the disks are judged elsewhere."""
        return []

    async def close(self) -> None:
        await self._around.close()
