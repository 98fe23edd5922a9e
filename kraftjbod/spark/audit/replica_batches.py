"""WIRE. Reads the record batches of every in-sync replica from its own broker, on executors.

* Fetch requests use replica id -2, Kafka's debugging consumer. Followers answer such requests with
  their own records up to the high watermark.
* Each batch becomes one row: position, number of records, CRC and producer. Its bytes are checked
  against the CRC and then dropped.
* Unreadable offsets also become a row: ``damaged`` or ``unread``, with the reason. A range is
  abandoned after :data:`PATIENCE_S` without progress.
* An in-sync replica that ends before the others gets no such row; its missing batches show the
  difference.

One task reads several ranges one after another and holds one fetch at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from kraftjbod.cli.clients.cluster_client import ClusterClient, kafka_error, may_pass
from kraftjbod.core.errors import CorruptRecordError, ErrorCode, OperatingError
from kraftjbod.protocol.messages import FetchRequest, FetchResponse
from kraftjbod.protocol.record_batch import BatchHeader, batches, check_crc
from kraftjbod.spark.audit.log_ranges import ClusterLogs
from kraftjbod.spark.tables.schemas import REPLICA_BATCHES, REPLICA_RANGES

#: Limit of offsets of a replica that one task reads.
RANGE_OFFSETS: Final = 2_000_000
#: Time without progress after which the range of a replica is abandoned.
PATIENCE_S: Final = 30.0
_REPLICA_READER: Final = -2
#: First version of Fetch with a separate field for the replica id.
_FETCH_SINCE: Final = 15
_FETCH_BYTES: Final = 8 * 1024 * 1024
_FETCH_WAIT_MS: Final = 200
_BACKOFF_S: Final = 0.2
_TASKS_PER_CORE: Final = 4

Row = dict[str, Any]


def replica_ranges(
    logs: ClusterLogs, *, range_offsets: int = RANGE_OFFSETS
) -> list[tuple[Any, ...]]:
    """Return rows of ``REPLICA_RANGES``: the ranges to read of each replica of a log with a leader.

    :param range_offsets: maximum length of a range.
    """
    ends = {(one.topic, one.partition): (one.log_start, one.log_end) for one in logs.ranges}
    rows: list[tuple[Any, ...]] = []
    for replica in logs.replicas:
        start, end = ends[replica.topic, replica.partition]
        if start is not None and end is not None:
            rows += (
                (*replica, first, min(first + range_offsets, end))
                for first in range(start, end, range_offsets)
            )
    return rows


def ranges_frame(spark: SparkSession, rows: Sequence[tuple[Any, ...]]) -> DataFrame:
    return spark.createDataFrame(list(rows), REPLICA_RANGES)


def read_replica_batches(
    ranges: DataFrame, bootstrap_servers: str, *, tasks: int, patience_s: float = PATIENCE_S
) -> DataFrame:
    """Return ``REPLICA_BATCHES``: the batches in ``ranges`` (``REPLICA_RANGES``).

    Every action on the returned frame reads the replicas again, unless it is persisted.

    :param tasks: number of Spark tasks.
    :param patience_s: seconds without progress after which a range is abandoned.
    """
    read = partial(_read, bootstrap_servers, patience_s)
    return ranges.repartition(max(1, tasks)).mapInArrow(read, REPLICA_BATCHES)


def tasks_for(spark: SparkSession, ranges: int) -> int:
    """Return the number of tasks for this number of ranges: at most one per range, and at most four
    per core. A core gets several, because replicas differ in size.
    """
    cores = int(spark.sparkContext.defaultParallelism)
    return max(1, min(ranges, _TASKS_PER_CORE * cores))


def _read(
    bootstrap_servers: str, patience_s: float, ranges: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Run one task: yield the rows of ``ranges`` as Arrow batches.

    After a range is abandoned, further ranges of that broker get no patience. The event loop is
    paused while Spark processes the yielded batches.
    """
    schema = to_arrow_schema(REPLICA_BATCHES)
    silent: set[int] = set()
    with asyncio.Runner() as runner:
        client = ClusterClient(bootstrap_servers, client_id="kraftjbod-audit")
        try:
            for batch in ranges:
                for row in batch.to_pylist():
                    patience = 0.0 if row["broker_id"] in silent else patience_s
                    reader = ReplicaReader(client, row, patience_s=patience)
                    while not reader.is_done:
                        found = runner.run(reader.step())
                        if found:
                            yield pa.RecordBatch.from_pylist(found, schema=schema)
                    if reader.is_abandoned:
                        silent.add(row["broker_id"])
        finally:
            runner.run(client.close())


class ReplicaReader:
    """Reads one range of one replica, a fetch per :meth:`step`."""

    def __init__(self, client: ClusterClient, row: Row, *, patience_s: float) -> None:
        self._client = client
        self._topic: str = row["topic"]
        self._partition: int = row["partition"]
        self._broker_id: int = row["broker_id"]
        self._common = {k: row[k] for k in ("topic", "partition", "broker_id", "path", "is_leader")}
        self._start: int = row["start"]
        self._end: int = row["end"]
        self._position: int = self._start
        self._patience_s = patience_s
        self._waits_since: float | None = None
        #: Whether the broker did not respond with records in time.
        self.is_abandoned = False

    @property
    def is_done(self) -> bool:
        return self._position >= self._end

    async def step(self) -> list[Row]:
        """Fetch once and return the rows; empty, after a short pause, if the broker has no records
        yet.

        :raises OperatingError: a permanent error, such as a broker without this version of Fetch.
        """
        try:
            data = await self._fetch(self._broker_id, self._position)
        except OperatingError as e:
            if not may_pass(e):
                raise
            return await self._wait(e.message)
        match data.error_code:
            case ErrorCode.NONE:
                return await self._take(data)
            case ErrorCode.CORRUPT_MESSAGE:
                return await self._pass_damage("its broker finds it corrupt", None)
            case ErrorCode.OFFSET_OUT_OF_RANGE if data.log_start_offset > self._position:
                start = min(data.log_start_offset, self._end)
                return [self._pass("unread", start, f"its log starts at {data.log_start_offset}")]
            case ErrorCode.OFFSET_OUT_OF_RANGE:
                return await self._wait(None)
            case code:
                return await self._wait(str(kafka_error(code, f"broker {self._broker_id}")))

    async def _fetch(
        self, broker_id: int, position: int, max_bytes: int = _FETCH_BYTES
    ) -> FetchResponse.PartitionData:
        if self._topic not in self._client.metadata.topics:
            await self._client.refresh_metadata([self._topic])
        part = FetchRequest.FetchPartition(
            partition=self._partition, fetch_offset=position, partition_max_bytes=max_bytes
        )
        topic_id = self._client.metadata.topic(self._topic).topic_id
        body = FetchRequest(
            replica_state=FetchRequest.ReplicaState(replica_id=_REPLICA_READER, replica_epoch=-1),
            max_wait_ms=_FETCH_WAIT_MS,
            min_bytes=1,
            max_bytes=max_bytes,
            topics=[FetchRequest.FetchTopic(topic_id=topic_id, partitions=[part])],
        )
        response = await self._client.request(broker_id, body, min_version=_FETCH_SINCE)
        if response.error_code != ErrorCode.NONE:
            raise kafka_error(response.error_code, f"fetch from broker {broker_id}")
        (answer,) = response.responses[0].partitions
        return answer

    async def _take(self, data: FetchResponse.PartitionData) -> list[Row]:
        """Return rows for the valid batches of a successful response, and for damage after them."""
        records = memoryview(data.records or b"")
        rows: list[Row] = []
        began = self._position
        try:
            for at, header in batches(records):
                if header.next_offset <= self._position:
                    return rows + await self._pass_damage("its batches overlap", None)
                if header.base_offset >= self._end:
                    self._position = self._end
                    break
                try:
                    check_crc(records, at, header)
                except CorruptRecordError as e:
                    return rows + await self._pass_damage(e.message, header)
                if header.base_offset >= self._start:
                    rows.append(self._row(header))
                self._position = header.next_offset
        except CorruptRecordError as e:
            return rows + await self._pass_damage(e.message, None)
        if self._position > began:
            self._waits_since = None
            return rows
        if len(records):
            return await self._pass_damage("a batch is longer than the received bytes", None)
        if data.high_watermark > self._position:
            return await self._wait("it gives no records, though it has some")
        return await self._wait(None)

    async def _wait(self, reason: str | None) -> list[Row]:
        """Pause before another attempt, or abandon the range when the patience is over.

        :param reason: error of the last attempt; None if the log is only shorter than the range.
        :returns: rows about an abandoned range; empty to try again.
        """
        now = time.monotonic()
        self._waits_since = self._waits_since or now
        if now - self._waits_since < self._patience_s:
            await asyncio.sleep(_BACKOFF_S)
            return []
        if reason is None and await self._is_in_sync():
            self._position = self._end
            return []
        self.is_abandoned = reason is not None
        return [self._pass("unread", self._end, reason or "it is not in sync any more")]

    async def _is_in_sync(self) -> bool:
        return self._broker_id in await self._in_sync_replicas()

    async def _in_sync_replicas(self) -> tuple[int, ...]:
        """Return the broker ids of the in-sync replicas; empty if they cannot be queried."""
        try:
            metadata = await self._client.refresh_metadata([self._topic])
            return metadata.topic(self._topic).partitions[self._partition].isr
        except OperatingError:
            return ()

    async def _pass_damage(self, reason: str, header: BatchHeader | None) -> list[Row]:
        """Report a damaged batch, and continue after its end.

        The end is taken from another replica, else from ``header``, else from a search.
        """
        after = await self._end_at_another_replica()
        if after is None and header is not None:
            after = header.next_offset
        if after is None:
            after = await self._end_by_search()
        return [self._pass("damaged", after, reason)]

    async def _end_at_another_replica(self) -> int | None:
        """Return the end of the batch at the position in another in-sync replica; None if none has
        one."""
        for broker_id in await self._in_sync_replicas():
            if broker_id == self._broker_id:
                continue
            try:
                data = await self._fetch(broker_id, self._position, max_bytes=1)
                _, header = next(batches(memoryview(data.records or b"")))
            except (OperatingError, StopIteration):
                continue
            if header.next_offset > self._position:
                return header.next_offset
        return None

    async def _end_by_search(self) -> int:
        """Return the first offset found at which this replica is valid again after the damage.

        The search steps double and then halve. Valid batches between two close damages may be
        skipped.
        """
        step = 1
        while self._position + step < self._end:
            if await self._is_sound_at(self._position + step):
                break
            step *= 2
        bad, good = self._position + step // 2, min(self._position + step, self._end)
        while good - bad > 1:
            middle = (bad + good) // 2
            if await self._is_sound_at(middle):
                good = middle
            else:
                bad = middle
        return good

    async def _is_sound_at(self, offset: int) -> bool:
        try:
            data = await self._fetch(self._broker_id, offset, max_bytes=1)
            records = memoryview(data.records or b"")
            at, header = next(batches(records))
            check_crc(records, at, header)
        except (OperatingError, StopIteration):
            return False
        return True

    def _pass(self, finding: str, after: int, detail: str) -> Row:
        """Skip the offsets from the position to ``after``; return a row that reports them.

        :param finding: ``damaged`` or ``unread``.
        """
        row = self._common | {
            "base_offset": self._position,
            "last_offset": after - 1,
            "finding": finding,
            "detail": detail,
        }
        self._position = after
        self._waits_since = None
        return row

    def _row(self, header: BatchHeader) -> Row:
        return self._common | {
            "base_offset": header.base_offset,
            "last_offset": header.last_offset,
            "record_count": header.record_count,
            "crc": header.crc,
            "is_control": header.is_control,
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
        }
