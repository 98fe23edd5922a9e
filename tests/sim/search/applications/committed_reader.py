"""``CommittedReader``: reads the committed records of a topic from its beginning.

It reads until it is cancelled, and knows which partitions have open transactions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from kraftjbod.cli.clients.cluster_client import ClusterClient, may_pass
from kraftjbod.cli.clients.consumer import Consumer, FetchedRecords
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.protocol.messages import FetchResponse

_POLL_MS: Final = 1_000
_PAUSE_S: Final = 0.2
_FOREVER_MS: Final = 3_600_000


class _Observed(Consumer):
    """A consumer that passes on each partition's part of an answer."""

    on_answer: Callable[[FetchResponse.PartitionData], None]

    def _read(self, result: FetchResponse.PartitionData) -> FetchedRecords | None:
        self.on_answer(result)
        return super()._read(result)


class CommittedReader:
    """:param saw: called with partition and value of each record, in order of each partition."""

    def __init__(
        self,
        client: ClusterClient,
        topic: str,
        partitions: int,
        *,
        saw: Callable[[int, bytes], None],
    ) -> None:
        self.topic = topic
        self._client = client
        self._saw = saw
        #: By partition: last stable offset and high watermark.
        self._ends: dict[int, tuple[int, int]] = {}
        #: By partition: the offset after the last record that ``saw`` received. The consumer's
        #: position is greater while records wait for the next poll.
        self._read_to: dict[int, int] = {}
        self._consumer = _Observed(
            client,
            topic,
            dict.fromkeys(range(partitions), 0),
            retry_timeout_ms=_FOREVER_MS,
            read_committed=True,
        )
        self._consumer.on_answer = self._received
        #: Partitions whose next answer may be for a fetch from before the first :meth:`unread`;
        #: None before that call.
        self._late: set[int] | None = None

    async def run(self) -> None:
        """Read until cancelled."""
        await self._client.retry(lambda: self._client.refresh_metadata([self.topic]))
        try:
            while True:
                await self._poll()
        finally:
            await self._consumer.close()

    async def _poll(self) -> None:
        try:
            fetched = await self._consumer.poll(_POLL_MS)
        except OperatingError as e:
            if not may_pass(e):
                raise
            await asyncio.sleep(_PAUSE_S)
            return
        for records in fetched:
            for _, record in records:
                self._saw(records.partition, record.value or b"")
            self._read_to[records.partition] = records.next_offset

    def _received(self, answer: FetchResponse.PartitionData) -> None:
        if self._late is not None and answer.partition_index in self._late:
            self._late.discard(answer.partition_index)
        elif answer.error_code == ErrorCode.NONE:
            ends = answer.last_stable_offset, answer.high_watermark
            self._ends[answer.partition_index] = ends

    def unread(self) -> list[str]:
        """Return partitions with open transactions or without a complete read, by fetches that were
        sent after the first call. Call it when all records to be read are written."""
        if self._late is None:
            self._late = set(self._consumer.positions)
            self._ends.clear()
        missing = []
        for partition in self._consumer.positions:
            position = self._read_to.get(partition, 0)
            stable, end = self._ends.get(partition, (-1, -1))
            if end == -1:
                missing.append(f"of {self.topic}-{partition} nothing was received since")
            elif stable != end:
                missing.append(f"{self.topic}-{partition} has a transaction open at {stable}")
            elif position != end:
                missing.append(f"{self.topic}-{partition} is read up to {position} of {end}")
        return missing
