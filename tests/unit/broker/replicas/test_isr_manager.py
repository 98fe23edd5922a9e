"""``IsrManager``: shrinking and expanding the ISR, and delivery of the changes."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from kraftjbod.broker.replicas import isr_manager
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerId, TopicPartition
from kraftjbod.metadata.records import PartitionChangeRecord
from kraftjbod.protocol.rpc_messages import (
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    RpcRequest,
    RpcResponse,
)
from tests.faults.rig import batch
from tests.unit.broker.broker_rig import (
    TOPIC,
    TOPIC_ID,
    TP,
    BrokerRig,
    accept,
    brokers,
    partition,
    produce,
    topic,
)
from tests.unit.broker.gates import until
from tests.unit.broker.impaired_dirs import answer, stall


def isr_changes(rig: BrokerRig) -> list[tuple[BrokerId, ...]]:
    return [
        change.isr
        for request in rig.controller.seen
        if isinstance(request, AlterPartitionRequest)
        for change in request.partitions
    ]


def isr(rig: BrokerRig) -> tuple[BrokerId, ...]:
    replica = rig.parts.hosted.get(TP)
    assert replica is not None and replica.partition is not None
    return replica.partition.isr


async def replay_isr(rig: BrokerRig, members: tuple[int, ...]) -> None:
    """Replay the new ISR as metadata; the controller's response alone removes no member."""
    await rig.follow(
        PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, isr=tuple(map(BrokerId, members)))
    )


async def test_follower_that_caught_up_joins_the_isr() -> None:
    async with brokers(2) as rigs:
        rigs[0].tasks.start(rigs[0].parts.isr.run_isr_manager(), "isr")
        for rig in rigs:
            await rig.follow(topic(), partition(replicas=(1, 2), isr=[1]))
        while isr(rigs[0]) != (1, 2):
            await asyncio.sleep(0.005)
        assert isr_changes(rigs[0])[0] == (1, 2)


async def test_isr_expansion_in_metadata_before_the_response_is_counted_as_expansion() -> None:
    async with brokers(2) as rigs:
        rigs[0].tasks.start(rigs[0].parts.isr.run_isr_manager(), "isr")
        rigs[0].controller.may_answer.clear()
        for rig in rigs:
            await rig.follow(topic(), partition(replicas=(1, 2), isr=[1]))
        await until(lambda: isr_changes(rigs[0]))
        await replay_isr(rigs[0], (1, 2))
        rigs[0].controller.may_answer.set()
        counts = rigs[0].around.metrics.snapshot
        await until(lambda: counts()["IsrExpandsPerSec"] + counts()["IsrShrinksPerSec"])
        assert (counts()["IsrExpandsPerSec"], counts()["IsrShrinksPerSec"]) == (1, 0)


async def test_lagging_member_leaves_the_isr_and_waiting_produce_completes() -> None:
    async with brokers(1, replica_lag_time_max_ms="50") as (rig,):
        rig.tasks.start(rig.parts.isr.run_isr_manager(), "isr")
        rig.tasks.start(rig.parts.isr.watch(), "watch")
        await rig.follow(topic(), partition(replicas=(1, 2)))
        writing = asyncio.create_task(rig.ask(produce(batch(), timeout_ms=60_000), 9))
        await until(lambda: isr_changes(rig))
        await replay_isr(rig, (1,))
        written = await writing
        assert written.responses[0].partition_responses[0].error_code == 0
        assert isr(rig) == (1,)


async def test_isr_lag_check_covers_all_partitions_in_parts() -> None:
    """Each partition is checked four times per replica.lag.time.max.ms."""
    async with brokers(1) as (rig,):
        await rig.follow(topic(), *(partition(n, replicas=(1, 2)) for n in range(15)))
        manager, checked = rig.parts.isr, []
        manager._check = lambda replica, *_: checked.append(replica.topic_partition.partition)
        counts = []
        for part in range(manager._lag_parts):
            before = len(checked)
            manager._check_all(part)
            counts.append(len(checked) - before)
        assert sorted(checked) == list(range(15))
        assert counts == [1] * 15


async def test_refused_isr_expansion_is_retried_by_the_periodic_check() -> None:
    """The follower is caught up and idle, so that none of its fetches triggers the change."""
    refused = [True]

    def answer(request: RpcRequest) -> RpcResponse:
        if isinstance(request, AlterPartitionRequest) and refused:
            refused.clear()
            change = request.partitions[0]
            return AlterPartitionResponse(
                partitions=(
                    AlteredPartition(
                        topic_id=change.topic_id,
                        partition=change.partition,
                        error_code=ErrorCode.INELIGIBLE_REPLICA,
                    ),
                )
            )
        return accept(request)

    async with brokers(2, answer=answer, replica_lag_time_max_ms="100") as rigs:
        rigs[0].tasks.start(rigs[0].parts.isr.run_isr_manager(), "isr")
        rigs[0].tasks.start(rigs[0].parts.isr.watch(), "watch")
        for rig in rigs:
            await rig.follow(topic(), partition(replicas=(1, 2), isr=[1]))
        while isr(rigs[0]) != (1, 2):
            await asyncio.sleep(0.005)
        assert len(isr_changes(rigs[0])) == 2


async def test_undelivered_isr_change_is_sent_again() -> None:
    fails = [True]

    def answer(request: RpcRequest) -> RpcResponse:
        if isinstance(request, AlterPartitionRequest) and fails:
            fails.clear()
            raise OperatingError("not now", code=ErrorCode.STALE_BROKER_EPOCH)
        return accept(request)

    async with brokers(2, answer=answer) as rigs:
        rigs[0].tasks.start(rigs[0].parts.isr.run_isr_manager(), "isr")
        with capture_logs() as logged:
            for rig in rigs:
                await rig.follow(topic(), partition(replicas=(1, 2), isr=[1]))
            while isr(rigs[0]) != (1, 2):
                await asyncio.sleep(0.005)
        assert "alter_partition_failed" in [line["event"] for line in logged]


async def test_isr_change_after_settled_ones_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request holds one change only, and metadata has settled the first one meanwhile."""
    monkeypatch.setattr(isr_manager, "MAX_PARTITIONS_PER_REQUEST", 1)
    async with brokers(1, replica_lag_time_max_ms="50") as (rig,):
        partitions = [partition(index, replicas=(1, 2)) for index in range(2)]
        await rig.follow(topic(), *partitions)
        rig.tasks.start(rig.parts.isr.watch(), "watch")
        for index in range(2):
            replica = rig.parts.hosted.get(TopicPartition(TOPIC, index))
            assert replica is not None and replica.partition is not None
            led = replica.partition
            # A member lags only if it lacks records.
            await rig.ask(produce(batch(), acks=1, tp=TopicPartition(TOPIC, index)), 9)
            await until(lambda led=led: led.pending_isr_change is not None)
        await replay_isr(rig, (1,))
        rig.tasks.start(rig.parts.isr.run_isr_manager(), "isr")
        await until(lambda: isr_changes(rig))
        assert isr_changes(rig) == [(1,)]


async def test_refused_isr_change_stays_pending_until_metadata_arrives() -> None:
    """The high watermark waits for the added member until metadata arrives."""

    def answer(request: RpcRequest) -> RpcResponse:
        if isinstance(request, AlterPartitionRequest):
            (change,) = request.partitions
            code = ErrorCode.INVALID_UPDATE_VERSION
            refusal = AlteredPartition(
                topic_id=change.topic_id, partition=change.partition, error_code=code
            )
            return AlterPartitionResponse(partitions=(refusal,))
        return accept(request)

    async with brokers(2, answer=answer) as rigs:
        rigs[0].tasks.start(rigs[0].parts.isr.run_isr_manager(), "isr")
        with capture_logs() as logged:
            for rig in rigs:
                await rig.follow(topic(), partition(replicas=(1, 2), isr=[1]))
            await until(lambda: "isr_change_refused" in [line["event"] for line in logged])
        replica = rigs[0].parts.hosted.require(TP)
        assert replica.partition is not None
        assert replica.partition.pending_isr_change is not None
        await rigs[0].follow(partition(replicas=(1, 2), epoch=1))
        assert replica.partition.pending_isr_change is None
        assert isr(rigs[0]) == (1, 2)
        assert isr_changes(rigs[0]) == [(1, 2)]


async def test_leader_with_stalled_directory_does_not_shrink_the_isr() -> None:
    async with brokers(1, replica_lag_time_max_ms="50") as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2)))
        waiting = asyncio.create_task(rig.ask(produce(batch(), timeout_ms=4_000), 9))
        await until(lambda: len(rig.parts.hosted.produces))
        stall(rig.dirs[0])
        rig.parts.manager.note_dir_state(rig.dirs[0])
        rig.tasks.start(rig.parts.isr.run_isr_manager(), "isr")
        rig.tasks.start(rig.parts.isr.watch(), "watch")
        await asyncio.sleep(0.2)
        assert isr(rig) == (1, 2) and isr_changes(rig) == []
        await answer(rig.dirs[0])
        rig.parts.manager.note_dir_state(rig.dirs[0])
        await until(lambda: isr_changes(rig))
        await replay_isr(rig, (1,))
        written = await waiting
        assert written.responses[0].partition_responses[0].error_code == 0
        assert isr(rig) == (1,)
