from __future__ import annotations

import asyncio
import random

import pytest

from tests.sim.search.applications.app_rig import rig
from tests.sim.search.applications.transaction_ledger import Outcome
from tests.sim.search.applications.transactional_producer import (
    TransactionalProducer,
)
from tests.sim.search.applications.transactors import HASTY, USUAL, Transactors


def test_transactions_are_complete_after_a_broker_is_killed() -> None:
    with rig() as around:
        transactors = Transactors(random.Random(2), around.around())

        async def strike() -> None:
            await asyncio.sleep(6)
            around.cluster.broker(2).kill()
            await asyncio.sleep(6)
            around.cluster.broker(2).start()
            await asyncio.sleep(4)

        around.play(transactors, strike)
        outcomes = transactors.ledger.outcomes
        assert outcomes[Outcome.COMMITTED] > 5 and outcomes[Outcome.ABORTED] > 1
        assert around.findings == []


@pytest.mark.long
def test_abort_that_commits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    end = TransactionalProducer.end

    async def commit(self: TransactionalProducer, *, committed: bool) -> None:
        await end(self, committed=True)

    monkeypatch.setattr(TransactionalProducer, "end", commit)
    with rig() as around:
        around.play(Transactors(random.Random(2), around.around()), lambda: asyncio.sleep(10))
        assert any("is read of transaction" in found for found in around.findings)


def test_hasty_transactors_commit_more_than_five_times_as_many_transactions() -> None:
    with rig() as around:
        usual, hasty = (
            Transactors(random.Random(2), around.around(), pace) for pace in (USUAL, HASTY)
        )
        counts = []
        for transactors in (usual, hasty):

            async def strike() -> None:
                around.cluster.broker(3).kill()
                await asyncio.sleep(6)
                around.cluster.broker(3).start()

            around.play(transactors, strike)
            counts.append(transactors.ledger.outcomes[Outcome.COMMITTED])
        assert counts[1] > 5 * counts[0] > 0
        assert around.findings == []
