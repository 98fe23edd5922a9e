"""Transactions where their log is led: asked for, ended everywhere, gone on with elsewhere."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kraftjbod.broker.transactions.transaction_records import TransactionState
from kraftjbod.core.errors import ErrorCode
from kraftjbod.protocol.messages import (
    FindCoordinatorRequest,
)
from tests.unit.broker.gates import until
from tests.unit.broker.impaired_dirs import answer, stall
from tests.unit.broker.transactions.transaction_rig import (
    ID,
    NEW,
    Partitions,
    adding,
    end,
    init,
    lead,
    loaded,
    marked_by,
    state_of,
    verifying,
)

E = ErrorCode
S = TransactionState


def figures(rig: Any) -> tuple[float, ...]:
    """Open, ending; committed, aborted and timed out since the start."""
    named = rig.around.metrics.snapshot()
    ended = (f"Transactions{how}PerSec" for how in ("Committed", "Aborted", "TimedOut"))
    names = ("NumOngoingTransactions", "NumTransactionsAwaitingMarkers", *ended)
    return tuple(named[name] for name in names)


async def test_a_transaction_is_ended_in_all_its_partitions(partitions: Partitions) -> None:
    async with marked_by(partitions) as rig:
        found = await rig.ask(FindCoordinatorRequest(coordinator_keys=[ID], key_type=1), 6)
        assert [(one.error_code, one.node_id) for one in found.coordinators] == [(0, 1)]
        producer = await init(rig)
        assert producer == (5_000, 0)
        assert await adding(rig, producer, 0, 1) == [0, 0]
        assert (await end(rig, producer)).error_code == 0
        await until(lambda: state_of(rig) is S.COMPLETE_COMMIT)
        assert partitions.said == [(0, True, 0, 0)]
        (topic,) = partitions.markers[0].topics
        assert (topic.name, list(topic.partition_indexes)) == ("t", [0, 1])
        assert (await end(rig, producer)).error_code == 0
        # Another one with the same id: the old one is out.
        again = await init(rig)
        assert again == (5_000, 1)
        assert await adding(rig, producer, 0) == [E.PRODUCER_FENCED]
        assert await adding(rig, producer, 0, version=1) == [E.INVALID_PRODUCER_EPOCH]
        # With an epoch for each transaction.
        await adding(rig, again, 0)
        ended = await end(rig, again, commits=False, version=NEW)
        assert (ended.error_code, ended.producer_id, ended.producer_epoch) == (0, 5_000, 2)
        await until(lambda: state_of(rig) is S.COMPLETE_ABORT)
        assert partitions.said[1:] == [(2, False, 0, 2)]
        assert figures(rig) == (0, 0, 1, 1, 0)


async def test_the_next_coordinator_ends_what_was_decided(partitions: Partitions) -> None:
    async with marked_by(partitions) as rig:
        partitions.code = E.NOT_LEADER_OR_FOLLOWER
        producer = await init(rig)
        await adding(rig, producer, 0, 1)
        assert figures(rig) == (1, 0, 0, 0, 0)
        await end(rig, producer, commits=False)
        assert figures(rig) == (0, 1, 0, 1, 0)
        await lead(rig, 1, leader=2)
        assert await init(rig) == (-1, E.NOT_COORDINATOR)
        partitions.code = E.NONE
        partitions.markers.clear()
        await lead(rig, 7)
        await loaded(rig)
        await until(lambda: state_of(rig) is S.COMPLETE_ABORT)
        assert {said[2] for said in partitions.said} == {7}
        # A newer epoch with the same log ends it as well.
        partitions.code = E.NOT_LEADER_OR_FOLLOWER
        producer = await init(rig)
        await adding(rig, producer, 0)
        await end(rig, producer)
        await until(lambda: partitions.said[-1][2] == 7 and partitions.said[-1][1])
        partitions.code = E.NONE
        partitions.markers.clear()
        await lead(rig, 8)
        await until(lambda: state_of(rig) is S.COMPLETE_COMMIT)
        assert partitions.said[-1][2] == 8


async def test_who_has_it_open_for_too_long_is_fenced(partitions: Partitions) -> None:
    async with marked_by(partitions) as rig:
        rig.tasks.start(rig.parts.transaction_coordinator.run(), "transactions")
        producer = await init(rig, timeout_ms=30)
        await adding(rig, producer, 0)
        await until(lambda: state_of(rig) is S.COMPLETE_ABORT)
        assert partitions.said == [(1, False, 0, 0)]
        assert figures(rig) == (0, 0, 0, 1, 1)
        assert (await end(rig, producer)).error_code == E.PRODUCER_FENCED
        assert await init(rig, producer_id=producer[0], producer_epoch=0) == (
            -1,
            E.PRODUCER_FENCED,
        )


async def test_ids_that_nobody_uses_are_forgotten(partitions: Partitions) -> None:
    async with marked_by(
        partitions,
        transactional_id_expiration_ms="1",
        transaction_remove_expired_transaction_cleanup_interval_ms="1",
    ) as rig:
        await init(rig)
        coordinating = rig.parts.transaction_coordinator
        rig.tasks.start(coordinating.run(), "transactions")
        await until(lambda: coordinating.describe(ID) is None)
        await lead(rig, 1, leader=2)
        await lead(rig, 2)
        await loaded(rig)
        assert rig.around.metrics.snapshot()["NumTransactionalIds"] == 0


async def test_what_is_not_replicated_is_not_answered(partitions: Partitions) -> None:
    async with marked_by(partitions, transaction_state_log_write_timeout_ms="40") as rig:
        producer = await init(rig)
        await lead(rig, 1, isr=(1, 2))
        assert await adding(rig, producer, 0) == [E.COORDINATOR_NOT_AVAILABLE]
        assert state_of(rig) is S.EMPTY
        stall(rig.dirs[0])
        assert await adding(rig, producer, 0) == [E.NOT_COORDINATOR]
        await answer(rig.dirs[0])


async def test_who_may_have_been_replaced_tells_nothing_from_memory(
    partitions: Partitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with marked_by(partitions, transaction_state_log_write_timeout_ms="40") as rig:
        producer = await init(rig)
        assert await adding(rig, producer, 0) == [0]
        await lead(rig, 1, isr=(1, 2))
        assert await adding(rig, producer, 0) == [0], "it was added before"
        assert await verifying(rig, producer, 0) == [0]
        lifecycle = type(rig.wiring.cluster.lifecycle)
        monkeypatch.setattr(lifecycle, "may_be_deposed", property(lambda _: True))
        assert await adding(rig, producer, 0) == [E.COORDINATOR_NOT_AVAILABLE]
        assert await verifying(rig, producer, 0) == [E.COORDINATOR_NOT_AVAILABLE]
        await lead(rig, 2)
        assert await adding(rig, producer, 0) == [0], "nobody else can lead"
        assert await verifying(rig, producer, 0) == [0]
        await lead(rig, 3, leader=2)
        await lead(rig, 4)
        await loaded(rig)
        assert await verifying(rig, producer, 0) == [0], "what was appended meanwhile means nothing"


async def test_who_waits_for_a_coordinator_that_goes_is_sent_on(partitions: Partitions) -> None:
    async with marked_by(partitions) as rig:
        producer = await init(rig)
        await lead(rig, 1, isr=(1, 2))
        waiting = asyncio.ensure_future(adding(rig, producer, 0))
        transaction = rig.parts.transaction_coordinator.describe(ID)
        await until(lambda: transaction._is_writing)
        assert await init(rig) == (-1, E.CONCURRENT_TRANSACTIONS)
        await lead(rig, 2, leader=2)
        assert await waiting == [E.NOT_COORDINATOR]
