"""``LogDirStateHandler``: directories that fail, fill up, stall and recover."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from kraftjbod.broker.cluster.lifecycle.lifecycle_manager import BrokerLifecycleManager
from kraftjbod.broker.cluster.lifecycle.lifecycle_state import BrokerIdentity, LifecycleTimes
from kraftjbod.broker.directories.log_dir_state_handler import LogDirStateHandler
from kraftjbod.broker.partitions.replica_states import ReplicaState
from kraftjbod.core.errors import ErrorCode, KafkaStorageError
from kraftjbod.core.ids import BrokerEpoch, BrokerId, Uuid
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.metadata_version import METADATA_VERSION, MetadataVersion
from kraftjbod.metadata.records import FeatureLevelRecord, PartitionChangeRecord
from kraftjbod.protocol.rpc_messages import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    ListenerInfo,
    RpcRequest,
    RpcResponse,
)
from tests.faults.rig import batch
from tests.unit.broker.broker_rig import (
    TOPIC_ID,
    TP,
    BrokerRig,
    accept,
    brokers,
    dir_of,
    fetch,
    only,
    partition,
    produce,
    topic,
)
from tests.unit.broker.gates import until
from tests.unit.broker.impaired_dirs import answer, fill, heal, stall
from tests.unit.broker.scripted_controller import RealClock


def handler_of(
    rig: BrokerRig,
    metadata_dir: str = "/meta",
    lifecycle: BrokerLifecycleManager | None = None,
) -> LogDirStateHandler:
    return LogDirStateHandler(
        channel=rig.failures,
        fetchers=rig.parts.fetchers,
        moves=rig.parts.moves,
        assignments=rig.parts.assignments,
        replicas=rig.parts.manager,
        publisher=rig.parts.publisher,
        logs=rig.logs,
        lifecycle=lifecycle or rig.parts.lifecycle,
        metadata_dir=metadata_dir,
        leaderships=rig.parts.leaderships,
    )


async def test_failed_directory_fails_its_replicas_and_no_others() -> None:
    async with brokers() as (rig,):
        rig.tasks.start(handler_of(rig).run_handler(), "handler")
        await rig.follow(topic(), partition(), partition(1, directories=[dir_of(1, 2)]))
        with capture_logs() as logged:
            rig.dirs[0].go_offline("test")
            while rig.logs.get(TP) is not None:
                await asyncio.sleep(0)
        assert "log_dir_replicas_offline" in [line["event"] for line in logged]
        dead = only(await rig.ask(produce(batch()), 9))
        assert dead.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        alive = only(await rig.ask(produce(batch(), tp=TP._replace(partition=1)), 9))
        assert alive.error_code == 0


async def test_failure_of_the_last_directory_stops_the_broker() -> None:
    async with brokers() as (rig,):
        handler = handler_of(rig)
        rig.tasks.start(handler.run_handler(), "handler")
        for log_dir in rig.dirs:
            log_dir.go_offline("test")
        with pytest.raises(KafkaStorageError, match="last log directory"):
            await handler.lost()


async def test_failure_of_the_metadata_directory_stops_the_broker() -> None:
    async with brokers() as (rig,):
        handler = handler_of(rig, metadata_dir="/d1")
        rig.tasks.start(handler.run_handler(), "handler")
        rig.dirs[0].go_offline("test")
        with pytest.raises(KafkaStorageError, match="metadata directory"):
            await handler.lost()


async def test_unhandled_directory_failure_stops_the_broker_and_keeps_the_handler_running() -> None:
    """KAFKA-19289: a handler that ends silently leaves a broker that leads unusable partitions."""
    async with brokers() as (rig,):
        handler = handler_of(rig)
        rig.tasks.start(handler.run_handler(), "handler")
        await rig.follow(topic(), partition())
        replica = rig.parts.hosted.get(TP)
        assert replica is not None
        replica.partition = None
        with capture_logs() as logged:
            rig.dirs[0].go_offline("test")
            with pytest.raises(KafkaStorageError, match="could not be handled"):
                await handler.lost()
        assert "log_dir_failure_unhandled" in [line["event"] for line in logged]
        rig.dirs[1].go_offline("test")
        while rig.logs.handles_in(rig.dirs[1]):
            await asyncio.sleep(0)


async def test_failed_directory_of_a_follower_stops_its_fetchers_only() -> None:
    async with brokers(2) as (leader, rig):
        rig.tasks.start(handler_of(rig).run_handler(), "handler")
        records = [
            partition(i, replicas=(1, 2), directories=[dir_of(1, 1), dir_of(2, i + 1)])
            for i in (0, 1)
        ]
        for one in (leader, rig):
            await one.follow(topic(), *records)
        other = TP._replace(partition=1)
        assert only(await leader.ask(produce(batch(), tp=other), 9)).error_code == 0
        rig.dirs[0].go_offline("test")
        await until(lambda: rig.logs.get(TP) is None)
        assert rig.around.metrics.snapshot()["ReplicaFetcherCount"] == 1
        assert only(await leader.ask(produce(batch(), tp=other), 9)).base_offset == 1
        # High watermarks wait for the failed replica until metadata removes it from the ISR.
        waiting = asyncio.create_task(leader.ask(produce(batch(), timeout_ms=60_000), 9))
        await until(lambda: len(leader.parts.hosted.produces))
        leader.replay(
            PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, isr=(leader.broker_id,))
        )
        assert only(await waiting).error_code == 0


# --- impaired directories -------------------------------------------------------------------------


def state_of(rig: BrokerRig, index: int = 0) -> ReplicaState:
    replica = rig.parts.hosted.get(TP._replace(partition=index))
    assert replica is not None
    return replica.state


def end_of(rig: BrokerRig) -> int:
    handle = rig.logs.get(TP)
    assert handle is not None
    return handle.log_end_offset


def lifecycle_of(rig: BrokerRig) -> BrokerLifecycleManager:
    """A lifecycle manager that registers at the scripted controller and reports changes only."""
    return BrokerLifecycleManager(
        identity=BrokerIdentity(
            broker_id=rig.broker_id,
            cluster_id="c",
            incarnation_id=Uuid(b"i" * 16),
            listeners=(ListenerInfo(name="PLAINTEXT", host="127.0.0.1", port=9092),),
        ),
        online_dirs=[log_dir.directory_id for log_dir in rig.dirs],
        channel=rig.parts.channel,
        clock=RealClock(),
        random_unit=lambda: 0.5,
        times=LifecycleTimes(heartbeat_interval_ms=60_000),
    )


async def write(rig: BrokerRig, *, index: int = 0, acks: int = 1) -> int:
    """Produce a record and return the error code."""
    tp = TP._replace(partition=index)
    return int(only(await rig.ask(produce(batch(), tp=tp, acks=acks), 9)).error_code)


async def read_end(rig: BrokerRig) -> int:
    answered = only(await rig.ask(fetch(), 12))
    assert answered.error_code == 0
    return int(answered.high_watermark) if answered.records else 0


async def test_full_directory_is_readable_rejects_appends_and_recovers() -> None:
    async with brokers() as (rig,):
        rig.tasks.start(handler_of(rig).run_handler(), "handler")
        await rig.follow(topic(), partition(), partition(1, directories=[dir_of(1, 2)]))
        assert await write(rig) == 0
        with capture_logs() as logged:
            await fill(rig.dirs[0])
            await until(lambda: state_of(rig) is ReplicaState.SATURATED)
            assert await write(rig) == ErrorCode.KAFKA_STORAGE_ERROR
            assert await write(rig, index=1) == 0 and await read_end(rig) == 1
            await heal(rig.dirs[0])
            await until(lambda: state_of(rig) is ReplicaState.ONLINE)
            assert await write(rig) == 0 and await read_end(rig) == 2
        events = [line["event"] for line in logged]
        assert "log_dir_replicas_impaired" in events and "log_dir_replicas_recovered" in events


async def test_stalled_directory_returns_no_records_and_recovers() -> None:
    async with brokers() as (rig,):
        rig.tasks.start(handler_of(rig).run_handler(), "handler")
        await rig.follow(topic(), partition())
        assert await write(rig) == 0
        stall(rig.dirs[0])
        await until(lambda: state_of(rig) is ReplicaState.STALLED)
        assert await write(rig) == ErrorCode.KAFKA_STORAGE_ERROR
        assert await read_end(rig) == 0
        waiting = asyncio.create_task(rig.ask(fetch(max_wait_ms=60_000), 12))
        await until(lambda: len(rig.parts.hosted.consumer_fetches))
        await answer(rig.dirs[0])
        assert only(await waiting).records, "a waiting fetch completes when the directory recovers"
        assert await write(rig) == 0


async def test_follower_in_full_directory_stops_fetching_until_there_is_space() -> None:
    async with brokers(2) as (leader, rig):
        rig.tasks.start(handler_of(rig).run_handler(), "handler")
        for one in (leader, rig):
            await one.follow(topic(), partition(replicas=(1, 2)))
        assert await write(leader, acks=-1) == 0
        await fill(rig.dirs[0])
        await until(lambda: state_of(rig) is ReplicaState.SATURATED)
        assert rig.around.metrics.snapshot()["ReplicaFetcherCount"] == 0
        assert await write(leader) == 0
        # A new leader epoch does not restart the fetcher.
        for one in (leader, rig):
            change = PartitionChangeRecord(
                topic_id=TOPIC_ID,
                partition_id=0,
                isr=(BrokerId(1),),
                leader=BrokerId(1),
            )
            await one.follow(change)
        assert rig.around.metrics.snapshot()["ReplicaFetcherCount"] == 0 and end_of(rig) == 1
        await heal(rig.dirs[0])
        await until(lambda: end_of(rig) == 2)
        assert state_of(rig) is ReplicaState.ONLINE


async def test_pending_produce_in_a_full_directory_completes_when_followers_catch_up() -> None:
    async with brokers(2) as (rig, follower):
        rig.tasks.start(handler_of(rig).run_handler(), "handler")
        await rig.follow(topic(), partition(replicas=(1, 2)))
        connection = await rig.connect()
        asking = connection.request(
            produce(batch(), timeout_ms=60_000), timeout_ms=60_000, version=9
        )
        waiting = asyncio.create_task(asking)
        await until(lambda: len(rig.parts.hosted.produces))
        await fill(rig.dirs[0])
        await until(lambda: state_of(rig) is ReplicaState.SATURATED)
        assert not waiting.done()
        await follower.follow(topic(), partition(replicas=(1, 2)))
        assert only(await waiting).error_code == 0


async def test_full_or_stalled_last_directory_does_not_stop_the_broker() -> None:
    async with brokers() as (rig,):
        handler = handler_of(rig, metadata_dir="/d1")
        rig.tasks.start(handler.run_handler(), "handler")
        lost = asyncio.create_task(handler.lost())
        await rig.follow(topic(), partition())
        assert await write(rig) == 0
        rig.dirs[1].go_offline("test")
        await fill(rig.dirs[0])
        await until(lambda: state_of(rig) is ReplicaState.SATURATED)
        stall(rig.dirs[0])
        await until(lambda: state_of(rig) is ReplicaState.STALLED)
        assert not lost.done()
        rig.dirs[0].go_offline("test")
        with pytest.raises(KafkaStorageError, match="metadata directory"):
            await lost
        assert state_of(rig) is ReplicaState.OFFLINE, "offline from any state"


async def test_replica_without_a_usable_directory_is_created_when_space_returns() -> None:
    async with brokers() as (rig,):
        rig.tasks.start(handler_of(rig).run_handler(), "handler")
        await fill(rig.dirs[0])
        with capture_logs() as logged:
            # Following metadata waits for no disk, because a broker must start in this state.
            await rig.follow(topic(), partition())
        assert "replica_awaits_impaired_dir" in [line["event"] for line in logged]
        assert state_of(rig) is ReplicaState.HELD_BACK
        assert await write(rig) == ErrorCode.KAFKA_STORAGE_ERROR
        await heal(rig.dirs[0])
        await until(lambda: state_of(rig) is ReplicaState.ONLINE)
        assert await write(rig) == 0


async def test_impaired_directories_are_reported_to_the_controller_until_they_recover() -> None:
    def controller(request: RpcRequest) -> RpcResponse:
        match request:
            case BrokerRegistrationRequest():
                return BrokerRegistrationResponse(broker_epoch=BrokerEpoch(0))
            case BrokerHeartbeatRequest():
                return BrokerHeartbeatResponse(
                    is_caught_up=True, is_fenced=request.want_fence, should_shut_down=False
                )
            case _:
                return accept(request)

    def said(seen: list[RpcRequest]) -> list[LogDirState]:
        beats = [request for request in seen if isinstance(request, BrokerHeartbeatRequest)]
        return [one.state for one in beats[-1].impaired_log_dirs or ()] if beats else []

    async with brokers(answer=controller) as (rig,):
        level = MetadataVersion.IV_4_3_IV0
        rig.replay(FeatureLevelRecord(name=METADATA_VERSION, feature_level=level))
        lifecycle = lifecycle_of(rig)
        rig.tasks.start(handler_of(rig, lifecycle=lifecycle).run_handler(), "handler")
        lifecycle.start()
        await lifecycle.registered()
        await fill(rig.dirs[0])
        await rig.controller.wait_seen(lambda seen: said(seen) == [LogDirState.SATURATED])
        stall(rig.dirs[1])
        await rig.controller.wait_seen(
            lambda seen: said(seen) == [LogDirState.SATURATED, LogDirState.STALLED]
        )
        await heal(rig.dirs[0])
        await answer(rig.dirs[1])
        await rig.controller.wait_seen(lambda seen: said(seen) == [])
        await lifecycle.close()
