"""``Transactors``: transactions over several partitions, some of them aborted, and producers
that continue to write after they are fenced."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kraftjbod.core.ids import TopicPartition
from kraftjbod.testing.simulation.simulated_host import WORLD_BEGAN_MS
from tests.sim.search.applications.application import Surroundings
from tests.sim.search.applications.committed_reader import CommittedReader
from tests.sim.search.applications.reigns import Reign, Reigns, end
from tests.sim.search.applications.transaction_ledger import (
    Outcome,
    TransactionLedger,
)

TOPIC: Final = "booked"
PARTITIONS: Final = 2
_MOST_RECORDS: Final = 4
_PAUSE_S: Final = (0.05, 0.8)
_ABORTED: Final = 0.25


class Transactors:
    """One transactional id; see :class:`~.application.Application`."""

    topics: Mapping[str, int] = MappingProxyType({TOPIC: PARTITIONS})

    def __init__(self, rng: random.Random, around: Surroundings) -> None:
        self.ledger = TransactionLedger()
        self._rng = rng
        self._around = around
        self._reigns = Reigns("transactor", rng, around, self._rule)
        self._reader = CommittedReader(
            around.client("booked-reader"), TOPIC, PARTITIONS, saw=self._saw
        )
        self._seen: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
        self._committed_ms = -1

    def start(self) -> None:
        self._reigns.start()
        self._around.begin(self._reader.run(), "booked-reader")

    def silent_since(self, since_ms: int) -> list[str]:
        is_silent = self._committed_ms <= since_ms
        return [f"no transaction is committed since {since_ms / 1000:.3f} s"] if is_silent else []

    async def stop(self) -> None:
        await self._reigns.stop()

    def unsettled(self) -> list[str]:
        return self._reader.unread()

    async def judge(self) -> list[str]:
        """Check that each transaction is complete, and that a second reader reads the same."""
        again: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITIONS)}
        reader = CommittedReader(
            self._around.client("booked-again"),
            TOPIC,
            PARTITIONS,
            saw=lambda partition, value: again[partition].append(value),
        )
        self._around.begin(reader.run(), "booked-again")
        while reader.unread():
            await asyncio.sleep(_PAUSE_S[0])
        return [
            *self.ledger.judge(),
            *(
                f"{TOPIC}-{partition}: {len(self._seen[partition])} committed records were read, "
                f"and {len(values)} later, or others"
                for partition, values in again.items()
                if values != self._seen[partition]
            ),
        ]

    async def close(self) -> None:
        await self._around.close()

    def _saw(self, partition: int, value: bytes) -> None:
        self._seen[partition].append(value)
        if wrong := self.ledger.saw(TOPIC, partition, value):
            self._around.found(wrong)

    async def _rule(self, reign: Reign) -> None:
        while not self._reigns.is_stopping:
            await self._transact(reign)
            await asyncio.sleep(self._rng.uniform(*_PAUSE_S))

    async def _transact(self, reign: Reign) -> None:
        rng, producer = self._rng, reign.producer
        written = self.ledger.begin(
            reign.name, rng.randint(1, _MOST_RECORDS), is_fenced=self._reigns.is_fenced(reign)
        )
        for index in range(written.records):
            tp = TopicPartition(TOPIC, rng.randrange(PARTITIONS))
            timestamp_ms = WORLD_BEGAN_MS + self._around.now_ms()
            await producer.send({tp: [written.value(index)]}, timestamp_ms)
            if rng.random() < 0.2:
                await asyncio.sleep(rng.uniform(*_PAUSE_S))
        # Its open transaction was aborted when the successor took over.
        written.is_fenced = self._reigns.is_fenced(reign)
        await end(producer, written, committed=rng.random() > _ABORTED)
        if written.outcome is Outcome.COMMITTED:
            self._committed_ms = self._around.now_ms()
            if written.is_fenced:
                self._around.found(f"{written}: that was answered")
