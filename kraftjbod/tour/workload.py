"""The load: one producer per partition, each with connections of its own, all at full speed.

Each producer sends the next batch when the last one is acknowledged (acks=all), and notes when that
was. It goes on until told to stop, at least once through its lines, at most ``max_s`` seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from kraftjbod.cli.cluster_client import ClusterClient
from kraftjbod.cli.producer import Producer, now_ms
from kraftjbod.core.errors import OperatingError
from kraftjbod.tour.source_lines import LineStream

BATCH_RECORDS: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """The cluster took ``count`` records at ``offset`` and following; ``at_s`` is monotonic."""

    at_s: float
    offset: int
    count: int


class Gap(NamedTuple):
    """Time without an acknowledged write, between two that were."""

    start_s: float
    end_s: float

    @property
    def length_ms(self) -> int:
        return round((self.end_s - self.start_s) * 1000)


class PartitionLoad:
    """What one producer sent, and what the cluster acknowledged of it."""

    def __init__(self, partition: int, stream: LineStream) -> None:
        self.partition = partition
        self.stream = stream
        self.acks: list[Ack] = []
        self.acked = 0
        #: Records of a last batch that was neither acknowledged nor refused.
        self.in_doubt = 0
        self.error: str | None = None

    @property
    def has_sent_all(self) -> bool:
        """Whether every line was acknowledged at least once."""
        return self.acked >= len(self.stream)

    def longest_gap(self, from_s: float, to_s: float) -> Gap:
        """The longest gap of all that end after ``from_s`` and begin before ``to_s``."""
        instants = [ack.at_s for ack in self.acks]
        gaps = [Gap(a, b) for a, b in pairwise(instants) if b >= from_s and a <= to_s]
        return max(gaps, key=lambda gap: gap.end_s - gap.start_s, default=Gap(from_s, to_s))

    async def run(self, bootstrap_servers: str, topic: str, stop: asyncio.Event) -> None:
        async with ClusterClient(
            bootstrap_servers, client_id=f"tour-{self.partition}", request_timeout_ms=10_000
        ) as client:
            await client.retry(client.refresh_metadata)
            producer = Producer(client, topic, request_timeout_ms=10_000)
            while not (stop.is_set() and self.has_sent_all):
                records = self.stream.records(self.acked, self._batch_size(), now_ms())
                try:
                    offset = await producer.send(self.partition, records)
                except OperatingError as e:
                    self.in_doubt, self.error = len(records), str(e)
                    return
                self.acks.append(Ack(at_s=time.monotonic(), offset=offset, count=len(records)))
                self.acked += len(records)

    def _batch_size(self) -> int:
        """The last batch of a round is cut short, so that rounds begin with a batch."""
        return min(BATCH_RECORDS, len(self.stream) - self.acked % len(self.stream))


class Workload:
    """All producers together."""

    def __init__(self, streams: Sequence[LineStream], *, max_s: float) -> None:
        self.loads = [PartitionLoad(index, stream) for index, stream in enumerate(streams)]
        self._max_s = max_s
        self._stop = asyncio.Event()

    @property
    def lines(self) -> int:
        return sum(len(load.stream) for load in self.loads)

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
        """Produce until stopped; producers that fail say so in their ``error``."""
        try:
            async with asyncio.timeout(self._max_s):
                async with asyncio.TaskGroup() as group:
                    for load in self.loads:
                        group.create_task(load.run(bootstrap_servers, topic, self._stop))
        except TimeoutError:
            for load in self.loads:
                if not load.has_sent_all:
                    # Its last batch was on its way when the time was over.
                    load.in_doubt = load.in_doubt or BATCH_RECORDS
                    load.error = load.error or f"not done within {self._max_s:.0f} s"
