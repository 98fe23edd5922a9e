"""WIRE. Reads partitions of one topic from given offsets, without a group and without commits.

One fetch per leader is in flight at a time. :meth:`Consumer.poll` returns the records that have
arrived. After a retriable error of a partition the fetch is repeated with fresh metadata. Other
errors are raised.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kraftjbod.cli.clients.cluster_client import ClusterClient, kafka_error, may_pass
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.protocol.control_records import read_marker
from kraftjbod.protocol.messages import FetchRequest, FetchResponse
from kraftjbod.protocol.record_batch import BatchHeader, batches
from kraftjbod.protocol.records import Record, read_records

_BACKOFF_S: Final = 0.05
_READ_COMMITTED: Final = 1


class AbortedTransaction(NamedTuple):
    """An aborted transaction, whose first record is at ``first_offset``."""

    first_offset: int
    producer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedRecords:
    """Complete batches of one partition, from which iteration yields the requested records.

    The first batch may begin before ``start_offset``, the first requested offset. ``next_offset``
    is the offset to read next.
    """

    partition: int
    start_offset: int
    next_offset: int
    batches: memoryview
    aborted: tuple[AbortedTransaction, ...] = ()
    """The aborted transactions in the batches, in order, for read_committed."""

    def __iter__(self) -> Iterator[tuple[BatchHeader, Record]]:
        """Yield each record with the header of its batch, without control and aborted records."""
        to_come, aborting = list(reversed(self.aborted)), set[int]()
        for position, header in batches(self.batches):
            while to_come and to_come[-1].first_offset <= header.last_offset:
                aborting.add(to_come.pop().producer_id)
            if header.is_control:
                marker = read_marker(self.batches, position, header)
                if marker is not None and not marker.is_commit:
                    aborting.discard(header.producer_id)
                continue
            if header.is_transactional and header.producer_id in aborting:
                continue
            for record in read_records(self.batches, position):
                if record.offset >= self.start_offset:
                    yield header, record


class Consumer:
    """Reads partitions of ``topic`` by number, without a consumer group.

    ``positions`` has the offset of the next record by partition; it begins as ``offsets`` and
    advances with :meth:`poll`.
    """

    def __init__(
        self,
        client: ClusterClient,
        topic: str,
        offsets: Mapping[int, int],
        *,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        max_bytes: int = 50 * 1024 * 1024,
        partition_max_bytes: int = 1024 * 1024,
        retry_timeout_ms: int = 60_000,
        read_committed: bool = False,
    ) -> None:
        """:param offsets: offset of the first record to read, by partition.
        :param read_committed: whether to return records of a transaction only after its commit.
            Records after the start of an open transaction have to wait for its end.
        """
        self._isolation_level = _READ_COMMITTED if read_committed else 0
        self.positions = dict(offsets)
        self._client = client
        self._topic = topic
        self._max_wait_ms = max_wait_ms
        self._min_bytes = min_bytes
        self._max_bytes = max_bytes
        self._partition_max_bytes = partition_max_bytes
        self._retry_timeout_ms = retry_timeout_ms
        self._fetches: dict[asyncio.Task[list[FetchedRecords]], frozenset[int]] = {}
        #: Per partition, the time of the first of its successive failures.
        self._failing_since: dict[int, float] = {}
        self._stale = False

    async def poll(self, timeout_ms: int) -> list[FetchedRecords]:
        """Return the records that have arrived; wait up to ``timeout_ms`` for the first ones.

        The result is empty if none arrive in that time.

        :raises OperatingError: an error that is not retriable, or that lasts longer than
            ``retry_timeout_ms``.
        """
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        while True:
            await self._refresh_if_stale()
            self._start_fetches()
            remaining_s = max(0.0, deadline - asyncio.get_running_loop().time())
            # If no partition has a leader, there is no fetch to wait for.
            waiting: set[asyncio.Future[Any]] = set(self._fetches) or {
                asyncio.ensure_future(asyncio.sleep(min(remaining_s, _BACKOFF_S)))
            }
            done, _ = await asyncio.wait(
                waiting, timeout=remaining_s, return_when=asyncio.FIRST_COMPLETED
            )
            arrived = [fetched for task in done for fetched in self._take(task)]
            if arrived or asyncio.get_running_loop().time() >= deadline:
                return arrived

    async def close(self) -> None:
        """Cancel the fetches in flight, and wait for their end."""
        for task in self._fetches:
            task.cancel()
        await asyncio.gather(*self._fetches, return_exceptions=True)
        self._fetches.clear()

    def stop_reading(self, partition: int) -> None:
        """Stop fetching ``partition``, and drop its records that are in flight."""
        self.positions.pop(partition, None)

    async def _refresh_if_stale(self) -> None:
        if not self._stale:
            return
        await asyncio.sleep(_BACKOFF_S)
        try:
            await self._client.refresh_metadata([self._topic])
            self._stale = False
        except OperatingError as e:
            self._failed(self.positions, e)

    def _start_fetches(self) -> None:
        busy = frozenset().union(*self._fetches.values())
        by_leader: defaultdict[int, list[int]] = defaultdict(list)
        for partition in self.positions:
            if partition in busy:
                continue
            try:
                by_leader[self._client.metadata.leader(self._topic, partition)].append(partition)
            except OperatingError as e:
                self._failed([partition], e)
        for leader, partitions in by_leader.items():
            task = asyncio.create_task(self._fetch(leader, partitions))
            self._fetches[task] = frozenset(partitions)

    def _take(self, task: asyncio.Future[Any]) -> list[FetchedRecords]:
        partitions = self._fetches.pop(task, None)  # type: ignore[call-overload] # or a sleep
        if partitions is None:
            return []
        try:
            return [fetched for fetched in task.result() if fetched.partition in self.positions]
        except OperatingError as e:
            self._failed(partitions, e)
            return []

    def _failed(self, partitions: Iterable[int], error: OperatingError) -> None:
        """Note a failed fetch of ``partitions``.

        :raises OperatingError: the error is not retriable, or lasts too long.
        """
        now = asyncio.get_running_loop().time()
        self._stale = True
        for partition in partitions:
            since = self._failing_since.setdefault(partition, now)
            if not may_pass(error) or now - since > self._retry_timeout_ms / 1000:
                raise error

    async def _fetch(self, leader: int, partitions: list[int]) -> list[FetchedRecords]:
        metadata = self._client.metadata.topic(self._topic)
        known = metadata.partitions
        topic = FetchRequest.FetchTopic(
            topic=self._topic,
            topic_id=metadata.topic_id,
            partitions=[
                FetchRequest.FetchPartition(
                    partition=partition,
                    current_leader_epoch=known[partition].leader_epoch,
                    fetch_offset=self.positions[partition],
                    partition_max_bytes=self._partition_max_bytes,
                )
                for partition in partitions
                if partition in self.positions
            ],
        )
        response = await self._client.request(
            leader,
            FetchRequest(
                max_wait_ms=self._max_wait_ms,
                min_bytes=self._min_bytes,
                max_bytes=self._max_bytes,
                isolation_level=self._isolation_level,
                topics=[topic],
            ),
        )
        if response.error_code != ErrorCode.NONE:
            raise kafka_error(response.error_code, f"fetch from broker {leader}")
        results = [result for answer in response.responses for result in answer.partitions]
        return [fetched for result in results if (fetched := self._read(result)) is not None]

    def _read(self, result: FetchResponse.PartitionData) -> FetchedRecords | None:
        partition = result.partition_index
        if result.error_code != ErrorCode.NONE:
            self._failed([partition], kafka_error(result.error_code, f"{self._topic}-{partition}"))
            return None
        self._failing_since.pop(partition, None)
        records = memoryview(result.records or b"")
        start = self.positions.get(partition)
        last = max(batches(records), default=None)
        if start is None or last is None or last[1].next_offset <= start:
            return None
        next_offset = last[1].next_offset
        self.positions[partition] = next_offset
        return FetchedRecords(
            partition=partition,
            start_offset=start,
            next_offset=next_offset,
            batches=records,
            aborted=tuple(
                sorted(
                    AbortedTransaction(one.first_offset, one.producer_id)
                    for one in result.aborted_transactions or ()
                )
            ),
        )
