"""In-sync sets: who is wanted in and out, and how the wish is delivered."""

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


def wishes(rig: BrokerRig) -> list[tuple[BrokerId, ...]]:
    return [
        wish.isr
        for request in rig.controller.seen
        if isinstance(request, AlterPartitionRequest)
        for wish in request.partitions
    ]


def isr(rig: BrokerRig) -> tuple[BrokerId, ...]:
    replica = rig.parts.hosted.get(TP)
    assert replica is not None and replica.partition is not None
    return replica.partition.isr


async def heard(rig: BrokerRig, members: tuple[int, ...]) -> None:
    """Metadata brings it; the answer to the wish alone puts nobody out."""
    await rig.follow(
        PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, isr=tuple(map(BrokerId, members)))
    )


async def test_a_follower_that_has_caught_up_is_let_in() -> None:
    async with brokers(2) as rigs:
        rigs[0].tasks.start(rigs[0].parts.isr.run(), "isr")
        for rig in rigs:
            await rig.follow(topic(), partition(replicas=(1, 2), isr=[1]))
        while isr(rigs[0]) != (1, 2):
            await asyncio.sleep(0.005)
        assert wishes(rigs[0])[0] == (1, 2)


async def test_a_member_that_lags_is_put_out_and_what_waits_for_it_is_committed() -> None:
    async with brokers(1, replica_lag_time_max_ms="50") as (rig,):
        rig.tasks.start(rig.parts.isr.run(), "isr")
        rig.tasks.start(rig.parts.isr.watch(), "watch")
        await rig.follow(topic(), partition(replicas=(1, 2)))
        writing = asyncio.create_task(rig.ask(produce(batch(), timeout_ms=60_000), 9))
        await until(lambda: wishes(rig))
        await heard(rig, (1,))
        written = await writing
        assert written.responses[0].partition_responses[0].error_code == 0
        assert isr(rig) == (1,)


async def test_check_looks_for_lag_in_a_part_of_the_partitions_without_under_replication() -> None:
    """Each partition is looked at four times in replica.lag.time.max.ms."""
    async with brokers(1) as (rig,):
        await rig.follow(topic(), *(partition(n, replicas=(1, 2)) for n in range(15)))
        manager, looked_at = rig.parts.isr, []
        manager._check = lambda replica, *_: looked_at.append(replica.topic_partition.partition)
        counts = []
        for part in range(manager._lag_parts):
            before = len(looked_at)
            manager._check_all(part)
            counts.append(len(looked_at) - before)
        assert sorted(looked_at) == list(range(15))
        assert counts == [1] * 15


async def test_a_follower_that_was_refused_once_is_found_by_looking() -> None:
    """It is caught up and idle, so no fetch of its own will show it."""
    refused = [True]

    def answer(request: RpcRequest) -> RpcResponse:
        if isinstance(request, AlterPartitionRequest) and refused:
            refused.clear()
            wish = request.partitions[0]
            return AlterPartitionResponse(
                partitions=(
                    AlteredPartition(
                        topic_id=wish.topic_id,
                        partition=wish.partition,
                        error_code=ErrorCode.INELIGIBLE_REPLICA,
                    ),
                )
            )
        return accept(request)

    async with brokers(2, answer=answer, replica_lag_time_max_ms="100") as rigs:
        rigs[0].tasks.start(rigs[0].parts.isr.run(), "isr")
        rigs[0].tasks.start(rigs[0].parts.isr.watch(), "watch")
        for rig in rigs:
            await rig.follow(topic(), partition(replicas=(1, 2), isr=[1]))
        while isr(rigs[0]) != (1, 2):
            await asyncio.sleep(0.005)
        assert len(wishes(rigs[0])) == 2


async def test_a_wish_that_was_not_delivered_is_sent_again() -> None:
    fails = [True]

    def answer(request: RpcRequest) -> RpcResponse:
        if isinstance(request, AlterPartitionRequest) and fails:
            fails.clear()
            raise OperatingError("not now", code=ErrorCode.STALE_BROKER_EPOCH)
        return accept(request)

    async with brokers(2, answer=answer) as rigs:
        rigs[0].tasks.start(rigs[0].parts.isr.run(), "isr")
        with capture_logs() as logged:
            for rig in rigs:
                await rig.follow(topic(), partition(replicas=(1, 2), isr=[1]))
            while isr(rigs[0]) != (1, 2):
                await asyncio.sleep(0.005)
        assert "alter_partition_failed" in [line["event"] for line in logged]


async def test_isr_change_behind_settled_ones_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request has no room for both changes, and metadata has settled the first one meanwhile."""
    monkeypatch.setattr(isr_manager, "MAX_PARTITIONS_PER_REQUEST", 1)
    async with brokers(1, replica_lag_time_max_ms="50") as (rig,):
        partitions = [partition(index, replicas=(1, 2)) for index in range(2)]
        await rig.follow(topic(), *partitions)
        rig.tasks.start(rig.parts.isr.watch(), "watch")
        for index in range(2):
            replica = rig.parts.hosted.get(TopicPartition(TOPIC, index))
            assert replica is not None and replica.partition is not None
            led = replica.partition
            # A member lags only while it lacks records.
            await rig.ask(produce(batch(), acks=1, tp=TopicPartition(TOPIC, index)), 9)
            await until(lambda led=led: led.pending_isr_change is not None)
        await heard(rig, (1,))
        rig.tasks.start(rig.parts.isr.run(), "isr")
        await until(lambda: wishes(rig))
        assert wishes(rig) == [(1,)]


async def test_a_leader_that_knows_less_than_the_controller_waits_for_metadata() -> None:
    """The refused change stays pending: who it added is waited for until metadata comes."""

    def answer(request: RpcRequest) -> RpcResponse:
        if isinstance(request, AlterPartitionRequest):
            (wish,) = request.partitions
            code = ErrorCode.INVALID_UPDATE_VERSION
            refusal = AlteredPartition(
                topic_id=wish.topic_id, partition=wish.partition, error_code=code
            )
            return AlterPartitionResponse(partitions=(refusal,))
        return accept(request)

    async with brokers(2, answer=answer) as rigs:
        rigs[0].tasks.start(rigs[0].parts.isr.run(), "isr")
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
        assert wishes(rigs[0]) == [(1, 2)]


async def test_a_leader_that_cannot_read_its_own_log_puts_nobody_out() -> None:
    async with brokers(1, replica_lag_time_max_ms="50") as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2)))
        waiting = asyncio.create_task(rig.ask(produce(batch(), timeout_ms=4_000), 9))
        await until(lambda: len(rig.parts.hosted.produces))
        stall(rig.dirs[0])
        rig.parts.manager.note_dir_state(rig.dirs[0])
        rig.tasks.start(rig.parts.isr.run(), "isr")
        rig.tasks.start(rig.parts.isr.watch(), "watch")
        await asyncio.sleep(0.2)
        assert isr(rig) == (1, 2) and wishes(rig) == []
        await answer(rig.dirs[0])
        rig.parts.manager.note_dir_state(rig.dirs[0])
        await until(lambda: wishes(rig))
        await heard(rig, (1,))
        written = await waiting
        assert written.responses[0].partition_responses[0].error_code == 0
        assert isr(rig) == (1,)
