"""LOOP. The load of a topic: one producer with its own connections per partition.

Each producer sends a batch and waits until it is acknowledged (acks=all, idempotent). At a given
rate, batches that were due during a gap are skipped, so that no burst follows the gap and distorts
the measurement.
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

#: Minimum time between acknowledgements, and so the resolution of gaps.
TICK_S: Final = 0.02
_REQUEST_TIMEOUT_MS: Final = 10_000
#: A producer fails after this time without an acknowledgement.
DELIVERY_TIMEOUT_MS: Final = 90_000
#: Short, so that producers resume soon after the cluster recovers.
_RETRY_BACKOFF_MAX_MS: Final = 100


class TopicLoad:
    """The load of a topic: one producer for each partition in ``streams``, which runs until
    :meth:`stop`.
    """

    def __init__(
        self,
        streams: Mapping[int, RecordStream],
        *,
        batch_records: int,
        interval_s: float = 0.0,
        least: Mapping[int, int] | None = None,
    ) -> None:
        """:param interval_s: least time between the batches of a partition; 0 is full speed.
        :param least: records by partition that are acknowledged before its producer ends.
        """
        self.loads = [PartitionLoad(partition, stream) for partition, stream in streams.items()]
        self._batch_records = batch_records
        self._interval_s = interval_s
        self._least = least or {}
        #: Set when all producers have ended.
        self.ended = asyncio.Event()
        self._stop = asyncio.Event()

    @classmethod
    def at_rate(cls, streams: Mapping[int, RecordStream], rate: float) -> TopicLoad:
        """Return a load of ``rate`` records per second and partition."""
        batch_records = max(1, math.ceil(rate * TICK_S))
        return cls(streams, batch_records=batch_records, interval_s=batch_records / rate)

    @property
    def acked(self) -> int:
        return sum(load.acked for load in self.loads)

    @property
    def errors(self) -> list[str]:
        return [f"partition {load.partition}: {load.error}" for load in self.loads if load.error]

    @property
    def is_flowing(self) -> bool:
        """Whether a batch of every partition was acknowledged."""
        return all(load.acked for load in self.loads)

    def stop(self) -> None:
        """Ask every producer to end once its last batch and its least number are acknowledged."""
        self._stop.set()

    async def run_load(self, bootstrap_servers: str, topic: str) -> None:
        """Produce until :meth:`stop`, and return when every producer has ended.

        A failing producer ends early and stores its failure in ``error``.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for load in self.loads:
                    group.create_task(self._produce(load, bootstrap_servers, topic))
        finally:
            self.ended.set()

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
            least = self._least.get(load.partition, 0)
            while not (self._stop.is_set() and load.acked >= least):
                if not await load.send(producer, self._batch_records):
                    return
                now_s = time.monotonic()
                due_s = max(due_s + self._interval_s, now_s)
                await asyncio.sleep(due_s - now_s)
