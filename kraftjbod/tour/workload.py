"""WIRE. The load of the tour: one producer with its own connections per partition, at full speed.

Each producer sends the next batch once the last one is acknowledged (acks=all), and records the
time. A producer runs until it is stopped and has sent all its lines, at most ``max_s`` seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.producer import Producer
from kraftjbod.gameday.load.partition_load import PartitionLoad
from kraftjbod.tour.source_lines import LineStream

BATCH_RECORDS: Final = 500


class LineLoad(PartitionLoad):
    """Producer of one partition's lines."""

    def __init__(self, partition: int, stream: LineStream) -> None:
        super().__init__(partition, stream)
        self.lines = len(stream)

    @property
    def has_sent_all(self) -> bool:
        """Whether every line was acknowledged at least once."""
        return self.acked >= self.lines

    async def run(self, bootstrap_servers: str, topic: str, stop: asyncio.Event) -> None:
        async with ClusterClient(
            bootstrap_servers, client_id=f"tour-{self.partition}", request_timeout_ms=10_000
        ) as client:
            await client.retry(client.refresh_metadata)
            producer = Producer(client, topic, request_timeout_ms=10_000)
            while not (stop.is_set() and self.has_sent_all):
                if not await self.send(producer, self._batch_size()):
                    return

    def _batch_size(self) -> int:
        """Return the size of the next batch. The last batch of a round is smaller."""
        return min(BATCH_RECORDS, self.lines - self.acked % self.lines)


class Workload:
    """The producers of all partitions."""

    def __init__(self, streams: Sequence[LineStream], *, max_s: float) -> None:
        self.loads = [LineLoad(index, stream) for index, stream in enumerate(streams)]
        self._max_s = max_s
        self._stop = asyncio.Event()

    @property
    def lines(self) -> int:
        return sum(load.lines for load in self.loads)

    @property
    def acked(self) -> int:
        return sum(load.acked for load in self.loads)

    @property
    def acked_bytes(self) -> int:
        """Bytes of the acknowledged values and keys."""
        return sum(
            len(load.stream.key(index)) + len(load.stream.value(index))
            for load in self.loads
            for index in range(load.acked)
        )

    @property
    def first_s(self) -> float:
        return min(load.acks[0].at_s for load in self.loads if load.acks)

    @property
    def last_s(self) -> float:
        return max(load.acks[-1].at_s for load in self.loads if load.acks)

    def stop(self) -> None:
        """Ask every producer to end once all its lines are acknowledged."""
        self._stop.set()

    async def run(self, bootstrap_servers: str, topic: str) -> None:
        """Produce until stopped. A failing producer stores its failure in ``error``."""
        try:
            async with asyncio.timeout(self._max_s):
                async with asyncio.TaskGroup() as group:
                    for load in self.loads:
                        group.create_task(load.run(bootstrap_servers, topic, self._stop))
        except TimeoutError:
            for load in self.loads:
                if not load.has_sent_all:
                    # A batch was in flight at the timeout.
                    load.in_doubt = load.in_doubt or BATCH_RECORDS
                    load.error = load.error or f"not done within {self._max_s:.0f} s"
