"""``TransactionCoordinator``: transactions of a led log partition, markers and failover."""

from __future__ import annotations

import asyncio
import random
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
    OLD,
    STATE,
    Partitions,
    add,
    adding,
    end,
    end_of,
    init,
    lead,
    loaded,
    marked_by,
    state_of,
    verifying,
)
from tests.work_count import count_bytecodes

E = ErrorCode
S = TransactionState


def figures(rig: Any) -> tuple[float, ...]:
    """Ongoing and ending transactions, and the committed, aborted and timed out ones."""
    named = rig.around.metrics.snapshot()
    ended = (f"Transactions{how}PerSec" for how in ("Committed", "Aborted", "TimedOut"))
    names = ("NumOngoingTransactions", "NumTransactionsAwaitingMarkers", *ended)
    return tuple(named[name] for name in names)


async def test_transaction_is_ended_in_all_its_partitions(partitions: Partitions) -> None:
    async with marked_by(partitions) as rig:
        found = await rig.ask(FindCoordinatorRequest(coordinator_keys=[ID], key_type=1), 6)
        assert [(one.error_code, one.node_id) for one in found.coordinators] == [(0, 1)]
        producer = await init(rig)
        assert producer == (5_000, 0)
        assert await adding(rig, producer, 0, 1) == [0, 0]
        assert (await end(rig, producer)).error_code == 0
        await until(lambda: state_of(rig) is S.COMPLETE_COMMIT)
        assert partitions.sent_markers == [(0, True, 0, 0)]
        (topic,) = partitions.markers[0].topics
        assert (topic.name, list(topic.partition_indexes)) == ("t", [0, 1])
        assert (await end(rig, producer)).error_code == 0
        # Another producer with the same id fences the old one.
        again = await init(rig)
        assert again == (5_000, 1)
        assert await adding(rig, producer, 0) == [E.PRODUCER_FENCED]
        assert await adding(rig, producer, 0, version=1) == [E.INVALID_PRODUCER_EPOCH]
        # In version 2 each transaction has its own epoch.
        await adding(rig, again, 0)
        ended = await end(rig, again, commits=False, version=NEW)
        assert (ended.error_code, ended.producer_id, ended.producer_epoch) == (0, 5_000, 2)
        await until(lambda: state_of(rig) is S.COMPLETE_ABORT)
        assert partitions.sent_markers[1:] == [(2, False, 0, 2)]
        assert figures(rig) == (0, 0, 1, 1, 0)


async def test_next_coordinator_completes_a_decided_transaction(partitions: Partitions) -> None:
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
        assert {sent_markers[2] for sent_markers in partitions.sent_markers} == {7}
        # A newer leader epoch with the same log completes the transaction, too.
        partitions.code = E.NOT_LEADER_OR_FOLLOWER
        producer = await init(rig)
        await adding(rig, producer, 0)
        await end(rig, producer)
        await until(lambda: partitions.sent_markers[-1][2] == 7 and partitions.sent_markers[-1][1])
        partitions.code = E.NONE
        partitions.markers.clear()
        await lead(rig, 8)
        await until(lambda: state_of(rig) is S.COMPLETE_COMMIT)
        assert partitions.sent_markers[-1][2] == 8


async def test_transaction_above_its_timeout_is_aborted_and_its_producer_fenced(
    partitions: Partitions,
) -> None:
    async with marked_by(partitions) as rig:
        rig.tasks.start(rig.parts.transaction_coordinator.run_expirations(), "transactions")
        producer = await init(rig, timeout_ms=30)
        await adding(rig, producer, 0)
        await until(lambda: state_of(rig) is S.COMPLETE_ABORT)
        assert partitions.sent_markers == [(1, False, 0, 0)]
        assert figures(rig) == (0, 0, 0, 1, 1)
        assert (await end(rig, producer)).error_code == E.PRODUCER_FENCED
        assert await init(rig, producer_id=producer[0], producer_epoch=0) == (
            -1,
            E.PRODUCER_FENCED,
        )


async def test_unused_transactional_ids_expire(partitions: Partitions) -> None:
    async with marked_by(
        partitions,
        transactional_id_expiration_ms="1",
        transaction_remove_expired_transaction_cleanup_interval_ms="1",
    ) as rig:
        await init(rig)
        coordinating = rig.parts.transaction_coordinator
        rig.tasks.start(coordinating.run_expirations(), "transactions")
        await until(lambda: coordinating.describe(ID) is None)
        await lead(rig, 1, leader=2)
        await lead(rig, 2)
        await loaded(rig)
        assert rig.around.metrics.snapshot()["NumTransactionalIds"] == 0


async def test_transaction_write_without_replication_returns_an_error(
    partitions: Partitions,
) -> None:
    async with marked_by(partitions, transaction_state_log_write_timeout_ms="40") as rig:
        producer = await init(rig)
        await lead(rig, 1, isr=(1, 2))
        assert await adding(rig, producer, 0) == [E.COORDINATOR_NOT_AVAILABLE]
        assert state_of(rig) is S.EMPTY
        stall(rig.dirs[0])
        assert await adding(rig, producer, 0) == [E.NOT_COORDINATOR]
        await answer(rig.dirs[0])


async def test_coordinator_that_may_be_deposed_does_not_answer_from_memory(
    partitions: Partitions, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with marked_by(partitions, transaction_state_log_write_timeout_ms="40") as rig:
        producer = await init(rig)
        assert await adding(rig, producer, 0) == [0]
        await lead(rig, 1, isr=(1, 2))
        assert await adding(rig, producer, 0) == [0], "the partition was added before"
        assert await verifying(rig, producer, 0) == [0]
        lifecycle = type(rig.wiring.cluster.lifecycle)
        monkeypatch.setattr(lifecycle, "may_be_deposed", property(lambda _: True))
        assert await adding(rig, producer, 0) == [E.COORDINATOR_NOT_AVAILABLE]
        assert await verifying(rig, producer, 0) == [E.COORDINATOR_NOT_AVAILABLE]
        await lead(rig, 2)
        assert await adding(rig, producer, 0) == [0], "no other broker can lead"
        assert await verifying(rig, producer, 0) == [0]
        await lead(rig, 3, leader=2)
        await lead(rig, 4)
        await loaded(rig)
        assert await verifying(rig, producer, 0) == [0], "records of the other leader do not matter"


async def test_request_waiting_at_an_unloaded_coordinator_returns_not_coordinator(
    partitions: Partitions,
) -> None:
    async with marked_by(partitions) as rig:
        producer = await init(rig)
        await lead(rig, 1, isr=(1, 2))
        log = rig.logs.get(STATE)
        assert log is not None
        waiting = asyncio.ensure_future(adding(rig, producer, 0))
        await until(lambda: log.log_end_offset > log.high_watermark)
        assert await init(rig) == (-1, E.CONCURRENT_TRANSACTIONS)
        await lead(rig, 2, leader=2)
        assert await waiting == [E.NOT_COORDINATOR]


@pytest.mark.parametrize("seed", range(3))
async def test_transaction_metrics_equal_a_recount_after_each_step_of_a_random_history(
    partitions: Partitions, seed: int
) -> None:
    dice, epoch, seen = random.Random(seed), 0, set()
    async with marked_by(partitions, transactional_id_expiration_ms="1") as rig:
        coordinator = rig.parts.transaction_coordinator
        for _ in range(120):
            transactional_id = dice.choice("abc")
            known = coordinator.describe(transactional_id)
            producer = (1, 0)
            if known is not None:
                producer = known.metadata.producer_id, known.metadata.producer_epoch
            match dice.randrange(6):
                case 0:
                    await init(rig, transactional_id=transactional_id)
                case 1 | 2:
                    request = add(producer, dice.randrange(2))
                    request.v3_and_below_transactional_id = transactional_id
                    await rig.ask(request, 3)
                case 3:
                    partitions.code = dice.choice((E.NONE, E.NOT_LEADER_OR_FOLLOWER))
                case 4:
                    request = end_of(producer, commits=dice.random() < 0.5)
                    request.transactional_id = transactional_id
                    await rig.ask(request, OLD)
                case _ if dice.random() < 0.2:
                    epoch += 2
                    await lead(rig, epoch - 1, leader=2)
                    assert figures(rig)[:2] == (0, 0)
                    await lead(rig, epoch)
                    await loaded(rig)
            states = [one.state for one in coordinator.all_transactions()]
            ending = states.count(S.PREPARE_COMMIT) + states.count(S.PREPARE_ABORT)
            assert figures(rig)[:2] == (states.count(S.ONGOING), ending)
            seen.update(states)
    assert seen >= {S.EMPTY, S.ONGOING, S.PREPARE_ABORT, S.COMPLETE_ABORT}


async def test_transaction_metrics_cost_the_same_for_any_number_of_ids(
    partitions: Partitions,
) -> None:
    """A snapshot of the metrics is one step of the event loop."""
    async with marked_by(partitions) as rig:
        known, counts = 0, []
        for size in (3, 30, 300):
            for number in range(known, size):
                await init(rig, transactional_id=f"id{number}")
            known = size
            assert rig.around.metrics.snapshot()["NumTransactionalIds"] == size
            counts.append(count_bytecodes(rig.around.metrics.snapshot))
        assert max(counts) <= counts[0] + 100, counts
