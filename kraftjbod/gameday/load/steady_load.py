"""LOOP. A steady load: one producer per partition, each with connections of its own, at a given
rate.

Each sends a few records every so many milliseconds and waits until they are acknowledged
(acks=all, idempotent). What was not sent during a gap is not made up for: the rate stays steady, so
that a gap is a gap of the cluster and not of a burst after it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from typing import Final

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.producer import Producer
from kraftjbod.gameday.load.acknowledgements import RecordStream
from kraftjbod.gameday.load.partition_load import PartitionLoad

#: Acknowledgements are at least so far apart: gaps are not known more finely.
TICK_S: Final = 0.02
_REQUEST_TIMEOUT_MS: Final = 10_000
#: After so long without an acknowledgement a producer gives up.
DELIVERY_TIMEOUT_MS: Final = 90_000
#: Short, so that a producer is back soon after the cluster is.
_RETRY_BACKOFF_MAX_MS: Final = 100


class SteadyLoad:
    """All producers together."""

    def __init__(self, streams: Mapping[int, RecordStream], *, rate: float) -> None:
        """:param rate: records a second, for each partition."""
        self.loads = [PartitionLoad(partition, stream) for partition, stream in streams.items()]
        self._batch_records = max(1, math.ceil(rate * TICK_S))
        self._interval_s = self._batch_records / rate
        self._stop = asyncio.Event()

    @property
    def acked(self) -> int:
        return sum(load.acked for load in self.loads)

    @property
    def errors(self) -> list[str]:
        return [f"partition {load.partition}: {load.error}" for load in self.loads if load.error]

    @property
    def is_flowing(self) -> bool:
        """Whether every partition has taken something."""
        return all(load.acked for load in self.loads)

    def stop(self) -> None:
        """Ask every producer to end when its last batch is acknowledged."""
        self._stop.set()

    async def run(self, bootstrap_servers: str, topic: str) -> None:
        """Produce until stopped; producers that fail say so in their ``error``."""
        async with asyncio.TaskGroup() as group:
            for load in self.loads:
                group.create_task(self._produce(load, bootstrap_servers, topic))

    async def _produce(self, load: PartitionLoad, bootstrap_servers: str, topic: str) -> None:
        async with ClusterClient(
            bootstrap_servers,
            client_id=f"gameday-{load.partition}",
            request_timeout_ms=_REQUEST_TIMEOUT_MS,
            retry_backoff_max_ms=_RETRY_BACKOFF_MAX_MS,
        ) as client:
            await client.retry(client.refresh_metadata)
            producer = Producer(
                client,
                topic,
                request_timeout_ms=_REQUEST_TIMEOUT_MS,
                delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            )
            due_s = time.monotonic()
            while not self._stop.is_set():
                if not await load.send(producer, self._batch_records):
                    return
                now_s = time.monotonic()
                due_s = max(due_s + self._interval_s, now_s)
                await asyncio.sleep(due_s - now_s)
