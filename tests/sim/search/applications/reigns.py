"""``Reigns``: producers with one transactional id that take over from each other.

Sometimes a new producer starts while the last one still writes, unaware that it is fenced.
Transactions that the fenced one begins from then on must have no effect.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from kraftjbod.core.errors import OperatingError
from tests.sim.search.applications.application import Surroundings
from tests.sim.search.applications.transaction_ledger import Outcome, Written
from tests.sim.search.applications.transactional_producer import (
    TransactionalProducer,
)

#: Timeout after which the coordinator aborts an open transaction.
_TRANSACTION_MS: Final = 8_000
_REIGN_S: Final = (1.0, 9.0)
_AGAIN_S: Final = 0.2


@dataclass(eq=False, slots=True, kw_only=True)
class Reign:
    """One producer, from its start until it is refused."""

    name: str
    producer: TransactionalProducer
    began_at: tuple[int, int] | None = None
    """Its producer id and epoch, once the coordinator has answered."""


class Reigns:
    """``rule`` runs one reign: it writes transactions until it is refused, or ``is_stopping``."""

    def __init__(
        self,
        transactional_id: str,
        rng: random.Random,
        around: Surroundings,
        rule: Callable[[Reigns, Reign], Awaitable[None]],
    ) -> None:
        self.is_stopping = False
        self._id = transactional_id
        self._rng = rng
        self._around = around
        self._rule = rule
        self._reigns: list[Reign] = []
        self._running: set[asyncio.Task[None]] = set()
        self._governing: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._governing = self._around.begin(self._govern(), self._id)

    async def stop(self) -> None:
        """Stop, and wait until all transactions have ended or were refused."""
        self.is_stopping = True
        if self._governing is not None:
            await self._governing

    def is_fenced(self, reign: Reign) -> bool:
        """Whether another producer took over, according to the coordinator."""
        mine = reign.began_at
        assert mine is not None, reign
        return any(one.began_at is not None and one.began_at > mine for one in self._reigns)

    async def _govern(self) -> None:
        while not self.is_stopping:
            reign = self._new_reign()
            task = self._around.begin(self._live(reign), reign.name)
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            await asyncio.wait({task}, timeout=self._rng.uniform(*_REIGN_S))
            if not task.done():
                self._around.note(f"{reign.name} is taken for dead")
        while self._running:
            await asyncio.wait(set(self._running))

    def _new_reign(self) -> Reign:
        name = f"{self._id}.{len(self._reigns)}"
        producer = TransactionalProducer(
            self._around.client(name),
            self._id,
            timeout_ms=_TRANSACTION_MS,
            grows_epoch=self._rng.random() < 0.7,
        )
        self._reigns.append(Reign(name=name, producer=producer))
        return self._reigns[-1]

    async def _live(self, reign: Reign) -> None:
        producer = reign.producer
        try:
            await producer.init()
            reign.began_at = (producer.producer_id, producer.epoch)
            await self._rule(self, reign)
        except OperatingError as e:
            self._around.note(f"{reign.name} ends: {e}")
            await asyncio.sleep(_AGAIN_S)


async def end(producer: TransactionalProducer, written: Written, *, committed: bool) -> None:
    """End a transaction, and note its outcome."""
    if committed:
        written.outcome = Outcome.UNKNOWN
    await producer.end(committed=committed)
    written.outcome = Outcome.COMMITTED if committed else Outcome.ABORTED
