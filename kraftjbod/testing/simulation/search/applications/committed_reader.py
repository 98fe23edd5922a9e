"""WIRE. ``CommittedReader``: reads a topic from its beginning on, what is committed and only that.

It goes on for ever, and knows which partitions hold what it may not be shown yet.
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
    """A consumer that shows what each answer says of a partition."""

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
        #: By partition: how far it may be read, and how far it goes.
        self._ends: dict[int, tuple[int, int]] = {}
        #: By partition: the end of what was shown to ``saw``. The consumer's position is ahead of
        #: that while records wait for the next poll.
        self._read_to: dict[int, int] = {}
        self._consumer = _Observed(
            client,
            topic,
            dict.fromkeys(range(partitions), 0),
            retry_timeout_ms=_FOREVER_MS,
            read_committed=True,
        )
        self._consumer.on_answer = self._heard
        #: Whose next answer may have been asked for before :meth:`unread` was; None before that.
        self._late: set[int] | None = None

    async def run(self) -> None:
        """Until cancelled."""
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

    def _heard(self, answer: FetchResponse.PartitionData) -> None:
        if self._late is not None and answer.partition_index in self._late:
            self._late.discard(answer.partition_index)
        elif answer.error_code == ErrorCode.NONE:
            ends = answer.last_stable_offset, answer.high_watermark
            self._ends[answer.partition_index] = ends

    def unread(self) -> list[str]:
        """Partitions that hold open transactions, or were not read to their ends, by what was asked
        for after the first call: call it when all that is to be read is written."""
        if self._late is None:
            self._late = set(self._consumer.positions)
            self._ends.clear()
        missing = []
        for partition in self._consumer.positions:
            position = self._read_to.get(partition, 0)
            stable, end = self._ends.get(partition, (-1, -1))
            if end == -1:
                missing.append(f"of {self.topic}-{partition} nothing was heard since")
            elif stable != end:
                missing.append(f"{self.topic}-{partition} has a transaction open at {stable}")
            elif position != end:
                missing.append(f"{self.topic}-{partition} is read up to {position} of {end}")
        return missing
