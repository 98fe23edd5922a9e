"""``Transactors``: transactions over several partitions, some of them aborted, and producers
that continue to write after they are fenced."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from kraftjbod.core.errors import OperatingError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.testing.simulation.simulated_host import WORLD_BEGAN_MS
from tests.sim.search.applications.application import Surroundings
from tests.sim.search.applications.committed_reader import CommittedReader
from tests.sim.search.applications.reigns import Reign, Reigns, end
from tests.sim.search.applications.transaction_ledger import (
    Outcome,
    TransactionLedger,
)

_ABORTED: Final = 0.25
_POLL_S: Final = 0.05
#: Time limit after which the hasty transactions begin although no broker is absent.
_ABSENCE_LIMIT_S: Final = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Where transactions are written, and how quickly."""

    name: str
    """Prefix of the transactional ids."""
    ids: int
    topic: str
    partitions: int
    most_records: int
    pause_s: tuple[float, float]
    hasty: int = 0
    """Number of first transactions without a pause: more than five hundred, with a costly call of
    100 us each, would make a sound directory seem to hang. They begin while a broker is absent."""
    hasty_ids: int = 0
    """Number of further ids, for the first transactions only."""


USUAL: Final = Pace(
    name="transactor", ids=1, topic="booked", partitions=2, most_records=4, pause_s=(0.05, 0.8)
)
HASTY: Final = Pace(
    name="hasty",
    ids=5,
    topic="hasty",
    partitions=1,
    most_records=1,
    pause_s=(0.05, 0.8),
    hasty=500,
    hasty_ids=20,
)
"""Hundreds of transactions a second in one partition, while a broker is absent. When this broker
catches up, it gets all of them at once, and does not know that they are replicated."""


class Transactors:
    """Producers of one or several transactional ids; see :class:`~.application.Application`."""

    def __init__(self, rng: random.Random, around: Surroundings, pace: Pace = USUAL) -> None:
        self.topics: Mapping[str, int] = MappingProxyType({pace.topic: pace.partitions})
        self.ledger = TransactionLedger()
        self._rng = rng
        self._around = around
        self._pace = pace
        self._reigns = [
            Reigns(f"{pace.name}-{number}", rng, around, self._rule)
            for number in range(pace.ids + pace.hasty_ids)
        ]
        self._may_begin = asyncio.Event()
        self._seen: dict[int, list[bytes]] = {one: [] for one in range(pace.partitions)}
        self._reader = CommittedReader(
            around.client(f"{pace.topic}-reader"), pace.topic, pace.partitions, saw=self._saw
        )
        self._committed_ms = -1
        self._begun = 0

    def start(self) -> None:
        if self._pace.hasty:
            self._around.begin(self._await_absence(), f"{self._pace.topic}-watch")
        else:
            self._may_begin.set()
        for reigns in self._reigns:
            reigns.start()
        self._around.begin(self._reader.run(), f"{self._pace.topic}-reader")

    def silent_since(self, since_ms: int) -> list[str]:
        is_silent = self._committed_ms <= since_ms
        return [f"no transaction is committed since {since_ms / 1000:.3f} s"] if is_silent else []

    async def stop(self) -> None:
        self._may_begin.set()
        await asyncio.gather(*(reigns.stop() for reigns in self._reigns))

    def unsettled(self) -> list[str]:
        return self._reader.unread()

    async def judge(self) -> list[str]:
        """Check that each transaction is complete, and that a second reader reads the same."""
        topic, partitions = self._pace.topic, self._pace.partitions
        again: dict[int, list[bytes]] = {partition: [] for partition in range(partitions)}
        reader = CommittedReader(
            self._around.client(f"{topic}-again"),
            topic,
            partitions,
            saw=lambda partition, value: again[partition].append(value),
        )
        self._around.begin(reader.run(), f"{topic}-again")
        while reader.unread():
            await asyncio.sleep(_POLL_S)
        return [
            *self.ledger.judge(),
            *(
                f"{topic}-{partition}: {len(self._seen[partition])} committed records were read, "
                f"and {len(values)} later, or others"
                for partition, values in again.items()
                if values != self._seen[partition]
            ),
        ]

    async def close(self) -> None:
        await self._around.close()

    def _saw(self, partition: int, value: bytes) -> None:
        self._seen[partition].append(value)
        if wrong := self.ledger.saw(self._pace.topic, partition, value):
            self._around.found(wrong)

    async def _await_absence(self) -> None:
        """Let the hasty transactions begin once the metadata has fewer brokers than before."""
        client, most = self._around.client(f"{self._pace.topic}-watch"), 0
        try:
            async with asyncio.timeout(_ABSENCE_LIMIT_S):
                while (brokers := len(client.metadata.brokers)) >= most:
                    most = brokers
                    await asyncio.sleep(_POLL_S)
                    with suppress(OperatingError):
                        await client.refresh_metadata([])
        except TimeoutError:
            pass
        self._may_begin.set()

    async def _rule(self, reigns: Reigns, reign: Reign) -> None:
        await self._may_begin.wait()
        while not reigns.is_stopping:
            await self._transact(reigns, reign)
            self._begun += 1
            if self._begun > self._pace.hasty:
                # The other ids were for the hasty transactions only.
                reigns.is_stopping |= reigns not in self._reigns[: self._pace.ids]
                await asyncio.sleep(self._rng.uniform(*self._pace.pause_s))

    async def _transact(self, reigns: Reigns, reign: Reign) -> None:
        rng, producer, pace = self._rng, reign.producer, self._pace
        written = self.ledger.begin(
            reign.name, rng.randint(1, pace.most_records), is_fenced=reigns.is_fenced(reign)
        )
        for index in range(written.records):
            tp = TopicPartition(pace.topic, rng.randrange(pace.partitions))
            timestamp_ms = WORLD_BEGAN_MS + self._around.now_ms()
            await producer.send({tp: [written.value(index)]}, timestamp_ms)
            if self._begun >= pace.hasty and rng.random() < 0.2:
                await asyncio.sleep(rng.uniform(*pace.pause_s))
        # Its open transaction was aborted when the successor took over.
        written.is_fenced = reigns.is_fenced(reign)
        await end(producer, written, committed=rng.random() > _ABORTED)
        if written.outcome is Outcome.COMMITTED:
            self._committed_ms = self._around.now_ms()
            if written.is_fenced:
                self._around.found(f"{written}: that was answered")
