"""``Workload``: producers and consumers of a simulated cluster, recorded in a ledger.

One producer for each partition, with the ``acks`` of its topic (idempotent with acks=all), and one
consumer for each topic. They use this project's own client.
"""

from __future__ import annotations

import asyncio
import random
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kraftjbod.cli.clients.cluster_client import ClusterClient, ClusterMetadata, may_pass
from kraftjbod.cli.clients.config_admin import (
    ConfigChange,
    ConfigResource,
    ResourceType,
    incremental_alter_configs,
)
from kraftjbod.cli.clients.consumer import Consumer, FetchedRecords
from kraftjbod.cli.clients.producer import ACKS_ALL, ACKS_NONE, Producer
from kraftjbod.core.errors import (
    CorruptRecordError,
    ErrorCode,
    KraftJbodError,
    OperatingError,
    RequestTimedOutError,
)
from kraftjbod.core.ids import TopicPartition
from kraftjbod.protocol.framing import Buffer
from kraftjbod.protocol.messages import FetchResponse
from kraftjbod.protocol.record_batch import batches, check_crc
from kraftjbod.protocol.records import Record
from tests.sim.search.ledgers.ledger import Ledger, Stream, stamped_ms, value_of

_FOREVER_MS: Final = 3_600_000
_PAUSE_S: Final = 0.2
_POLL_MS: Final = 1_000
_WRITE_S: Final = 4.0
_WRITE_PAUSE_S: Final = 0.4
#: Interval at which a second consumer of an acks=all topic reads some random old batches.
_LOOK_BACK_S: Final = 0.7
_LOOK_BACK_BATCHES: Final = 4
#: Share of these reads that begin shortly before a rotten batch, if there is one.
_NEAR_ROT: Final = 0.7
_FIRST_RETENTION_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTopic:
    """A topic with a producer for each of its partitions."""

    name: str
    partitions: int
    acks: int = ACKS_ALL
    pause_ms: int = 60
    """Pause between an acknowledgement and the next record."""
    padding_bytes: int = 0
    """Size of each record in addition to its value."""

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """Return the headers of each record."""
        return (("padding", bytes(self.padding_bytes)),) if self.padding_bytes else ()


class _Observed(Consumer):
    """A consumer that passes on each partition's part of an answer."""

    on_answer: Callable[[FetchResponse.PartitionData], None]

    def _read(self, result: FetchResponse.PartitionData) -> FetchedRecords | None:
        self.on_answer(result)
        return super()._read(result)


class MetadataWrites:
    """Changes of a configuration, one after the other, each with a unique value."""

    def __init__(self, client: ClusterClient, topic: str) -> None:
        self._client = client
        self._resource = ConfigResource(ResourceType.TOPIC, topic)
        #: Values whose write was answered.
        self.answered: set[bytes] = set()

    async def run(self) -> None:
        """Write until cancelled."""
        value = _FIRST_RETENTION_MS
        while True:
            value += 1
            change = ConfigChange("delete.retention.ms", str(value))
            try:
                async with asyncio.timeout(_WRITE_S):
                    await self._client.refresh_metadata()
                    await incremental_alter_configs(self._client, {self._resource: [change]})
            except (KraftJbodError, TimeoutError):
                await asyncio.sleep(_PAUSE_S)
                continue
            self.answered.add(str(value).encode())
            await asyncio.sleep(_WRITE_PAUSE_S)


class Workload:
    """Call ``start`` and ``stop_producing``, wait until ``unread`` is empty, then ``close``."""

    def __init__(
        self,
        make_client: Callable[[str], ClusterClient],
        topics: Mapping[str, LoadedTopic],
        *,
        now_ms: Callable[[], int],
        found: Callable[[str], None],
        rng: random.Random,
    ) -> None:
        """
        :param make_client: returns a client of the cluster with that name.
        :param rng: draws the batches to read again.
        :param found: called with one sentence for each violation.
        """
        self.ledger = Ledger()
        self._make_client = make_client
        self._topics = topics
        self._now_ms = now_ms
        self._found = found
        self._rng = rng
        #: Partitions and offsets of rotten batches.
        self.rotten: Sequence[tuple[TopicPartition, int]] = ()
        self._clients: list[ClusterClient] = []
        self._producing: list[asyncio.Task[None]] = []
        self._consuming: list[asyncio.Task[None]] = []
        self._is_stopping = False
        self._consumers: dict[str, _Observed] = {}
        #: Time of the last read record by partition.
        self._read_ms: dict[tuple[str, int], int] = {}

    def start(self) -> None:
        for topic in self._topics.values():
            for partition in range(topic.partitions):
                name = f"{topic.name}-{partition}-producer"
                work = self._produce(topic, partition)
                self._producing.append(self._begin(work, name))
            self._consuming.append(self._begin(self._consume(topic), f"{topic.name}-consumer"))
            if topic.acks == ACKS_ALL:
                look_back = self._look_back(topic)
                self._consuming.append(self._begin(look_back, f"{topic.name}-looks-back"))

    def _begin(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            where = "".join(traceback.format_tb(error.__traceback__)[-2:])
            self._found(f"{task.get_name()} ended by {error!r}: {where}")

    async def stop_producing(self) -> None:
        """Send no new records, and wait for the answers to the sent ones."""
        self._is_stopping = True
        await asyncio.gather(*self._producing)

    def silent_since(self, since_ms: int) -> list[str]:
        """Return partitions without an acknowledgement since ``since_ms``, one sentence each."""
        received = {
            (stream.topic, stream.partition)
            for stream in self.ledger.streams.values()
            if stream.acks and stream.acks[-1].at_ms > since_ms
        }
        # Records of acks=0 are not acknowledged, but read.
        received |= {
            key
            for key, read_ms in self._read_ms.items()
            if read_ms > since_ms and self._topics[key[0]].acks == ACKS_NONE
        }
        return [
            f"{topic.name}-{partition} has no acknowledgement since {since_ms / 1000:.3f} s"
            for topic in self._topics.values()
            for partition in range(topic.partitions)
            if (topic.name, partition) not in received
        ]

    def unread(self) -> list[str]:
        """Return committed records that no consumer read, one sentence per partition."""
        missing = []
        for name, topic in self._topics.items():
            consumer = self._consumers.get(name)
            for partition in range(topic.partitions if topic.acks == ACKS_ALL else 0):
                end = self.ledger.committed_end(name, partition)
                position = 0 if consumer is None else consumer.positions.get(partition, 0)
                if position < end:
                    missing.append(f"{name}-{partition} is read up to {position} of {end}")
        return missing

    async def close(self) -> None:
        tasks = [*self._producing, *self._consuming]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for consumer in self._consumers.values():
            await consumer.close()
        for client in self._clients:
            await client.close()

    # --- producers -------------------------------------------------------------------------------

    async def _produce(self, topic: LoadedTopic, partition: int) -> None:
        """Produce streams one after the other: a stream ends when a record is in doubt."""
        client = self._client(f"{topic.name}-{partition}-producer")
        lives = 0
        while not self._is_stopping:
            stream = self.ledger.add(
                Stream(
                    name=f"{topic.name}-{partition}-{lives}",
                    topic=topic.name,
                    partition=partition,
                    acks_all=topic.acks == ACKS_ALL,
                )
            )
            lives += 1
            producer = Producer(
                client,
                topic.name,
                acks=topic.acks,
                request_timeout_ms=client.request_timeout_ms,
                delivery_timeout_ms=_FOREVER_MS,
            )
            await self._stream(client, producer, stream, topic)

    async def _stream(
        self, client: ClusterClient, producer: Producer, stream: Stream, topic: LoadedTopic
    ) -> None:
        while not self._is_stopping:
            number = stream.next_number
            stream.next_number += 1
            stream.in_doubt.add(number)
            record = Record(
                value=value_of(stream.name, number),
                timestamp_ms=stamped_ms(number, self._now_ms()),
                headers=topic.headers,
            )
            sent_ms = self._now_ms()
            try:
                offset = await producer.send(stream.partition, [record])
            except OperatingError as e:
                if not _is_excused(e, stream):
                    self._found(f"{stream.name}: record {number} was refused: {e}")
                await asyncio.sleep(_PAUSE_S)
                return
            if offset >= 0:
                stream.in_doubt.discard(number)
                leader = leader_of(client.metadata, stream.topic, stream.partition)
                wrong = stream.take_ack(
                    number,
                    offset,
                    self._now_ms(),
                    sent_ms=sent_ms,
                    leader=leader,
                    stamped_ms=record.timestamp_ms,
                )
                if wrong and stream.acks_all:
                    self._found(wrong)
            await asyncio.sleep(topic.pause_ms / 1000)

    # --- consumers -------------------------------------------------------------------------------

    async def _consume(self, topic: LoadedTopic) -> None:
        client = self._client(f"{topic.name}-consumer")
        await client.retry(lambda: client.refresh_metadata([topic.name]), timeout_ms=_FOREVER_MS)
        offsets = dict.fromkeys(range(topic.partitions), 0)
        consumer = _Observed(client, topic.name, offsets, retry_timeout_ms=_FOREVER_MS)
        consumer.on_answer = lambda answer: self._received(topic, answer)
        self._consumers[topic.name] = consumer
        while True:
            try:
                fetched = await consumer.poll(_POLL_MS)
            except OperatingError as e:
                if not may_pass(e) and topic.acks == ACKS_ALL:
                    self._found(f"a consumer of {topic.name} at {consumer.positions}: {e}")
                    return
                if e.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                    # An unclean leader has fewer records: read its log from the beginning.
                    consumer.positions.update(offsets)
                await asyncio.sleep(_PAUSE_S)
                continue
            for records in fetched:
                self._note(topic, records)

    async def _look_back(self, topic: LoadedTopic) -> None:
        """Read old batches, each separately.

        A consumer at the log end reads the newest batches. This one is served from pages that
        readahead brought into memory.
        """
        client = self._client(f"{topic.name}-looks-back")
        await client.retry(lambda: client.refresh_metadata([topic.name]), timeout_ms=_FOREVER_MS)
        while True:
            await asyncio.sleep(_LOOK_BACK_S)
            partition = self._rng.randrange(topic.partitions)
            if end := self.ledger.acked_end(topic.name, partition):
                offsets = self._near_rot(topic) or {partition: self._rng.randrange(end)}
                consumer = Consumer(client, topic.name, offsets, partition_max_bytes=1)
                await self._read_some(topic, consumer)

    def _near_rot(self, topic: LoadedTopic) -> dict[int, int]:
        """Return a partition and an offset from which a consumer reaches a rotten batch soon.

        The offset is that of the batch, or at most three less, so that readahead may cache the
        batch before a fetch requests it. Return an empty dict if no batch of the topic is rotten.
        Otherwise return an offset in only a share of the calls (:data:`_NEAR_ROT`).
        """
        found = [(tp, offset) for tp, offset in self.rotten if tp.topic == topic.name]
        if not found or self._rng.random() >= _NEAR_ROT:
            return {}
        tp, offset = self._rng.choice(found)
        return {tp.partition: max(0, offset - self._rng.randrange(_LOOK_BACK_BATCHES))}

    async def _read_some(self, topic: LoadedTopic, consumer: Consumer) -> None:
        try:
            for _ in range(_LOOK_BACK_BATCHES):
                for records in await consumer.poll(_POLL_MS):
                    self._note(topic, records)
        except OperatingError as e:
            if not may_pass(e):
                self._found(f"reading {topic.name} at {consumer.positions} again: {e}")
        finally:
            await consumer.close()

    def _note(self, topic: LoadedTopic, fetched: FetchedRecords) -> None:
        damaged = damaged_batch(fetched.batches)
        if damaged:
            # Consumers of users may check no CRC, and decode the records or not.
            self._found(
                f"{topic.name}-{fetched.partition}: a consumer received a damaged {damaged}"
            )
            return
        note = self.ledger.saw if topic.acks == ACKS_ALL else self.ledger.read_loosely
        for _, record in fetched:
            self._read_ms[topic.name, fetched.partition] = self._now_ms()
            wrong = note(topic.name, fetched.partition, record.offset, record.value or b"")
            if not wrong and record.headers != topic.headers:
                where = f"{topic.name}-{fetched.partition} offset {record.offset}"
                wrong = f"{where}: a consumer read other headers than were sent"
            if wrong:
                self._found(wrong)

    def _received(self, topic: LoadedTopic, answer: FetchResponse.PartitionData) -> None:
        if answer.error_code == ErrorCode.NONE and topic.acks == ACKS_ALL:
            partition, high_watermark = answer.partition_index, answer.high_watermark
            self.ledger.note_high_watermark(topic.name, partition, high_watermark)

    def _client(self, name: str) -> ClusterClient:
        client = self._make_client(name)
        self._clients.append(client)
        return client


def damaged_batch(data: Buffer) -> str:
    """Return a description of the first batch whose CRC does not match; empty if there is none."""
    for position, header in batches(data):
        try:
            check_crc(data, position, header)
        except CorruptRecordError as e:
            return e.message
    return ""


def leader_of(metadata: ClusterMetadata, topic: str, partition: int) -> int:
    """Return the leader that ``metadata`` names, even if that broker has left; -1 for no leader.

    ``ClusterMetadata.leader`` raises an error instead. The metadata may have been refreshed without
    a leader after the record was sent.
    """
    found = metadata.topics.get(topic)
    known = None if found is None else found.partitions.get(partition)
    return -1 if known is None else known.leader


def _is_excused(error: OperatingError, stream: Stream) -> bool:
    """Return whether the cluster may return this error to a correct producer."""
    if may_pass(error) or isinstance(error, RequestTimedOutError):
        return True
    return not stream.acks_all
