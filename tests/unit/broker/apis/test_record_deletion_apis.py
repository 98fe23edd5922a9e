"""DeleteRecords over real listeners: validation, and the effect on followers and disks."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import BrokerEpoch, BrokerId, PartitionEpoch, Uuid
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.topic_config import CleanupPolicy, TopicConfig
from kraftjbod.metadata.records import (
    BrokerRegistrationChangeRecord,
    ImpairedLogDir,
    Record,
    RegisterBrokerRecord,
)
from kraftjbod.protocol.messages import DeleteRecordsRequest, FetchRequest
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import batch, chores, manager_of, open_dir
from tests.unit.broker.broker_rig import (
    TOPIC_ID,
    TP,
    BrokerRig,
    brokers,
    dir_of,
    partition,
    produce,
    topic,
)
from tests.unit.broker.gates import until

DELETE = DeleteRecordsRequest
SMALL = TopicConfig(segment_bytes=1024, retention_ms=-1)


FETCH = FetchRequest
TWO = BrokerId(2)


async def deleted(
    rig: BrokerRig, offset: int, *, name: str = "t", version: int = 2, timeout_ms: int = 5_000
) -> Any:
    part = DELETE.DeleteRecordsPartition(partition_index=0, offset=offset)
    topics = [DELETE.DeleteRecordsTopic(name=name, partitions=[part])]
    request = DELETE(topics=topics, timeout_ms=timeout_ms)
    return (await rig.ask(request, version)).topics[0].partitions[0]


def log_of(rig: BrokerRig) -> LogHandle:
    handle = rig.logs.get(TP)
    assert handle is not None
    return handle


async def test_delete_records_advances_log_start_offset() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        await rig.ask(produce(batch(5)), 9)
        await rig.ask(produce(batch(5)), 9)
        answered = await deleted(rig, 7, version=0, timeout_ms=0)
        assert (answered.error_code, answered.low_watermark) == (0, 7)
        assert log_of(rig).log_start_offset == 7
        # A lower offset does not restore deleted records.
        assert (await deleted(rig, 3)).low_watermark == 7
        assert (await deleted(rig, -1)).low_watermark == 10
        assert (log_of(rig).log_start_offset, log_of(rig).log_end_offset) == (10, 10)
        await rig.ask(produce(batch(1)), 9)
        assert log_of(rig).log_end_offset == 11


async def test_delete_records_invalid_requests_are_rejected() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2)))
        await rig.ask(produce(batch(5), acks=1), 9)
        # Nothing is committed because broker 2 has no record yet.
        assert (await deleted(rig, 1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await deleted(rig, -2)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        late = await deleted(rig, -1, timeout_ms=0)
        assert late.error_code == ErrorCode.REQUEST_TIMED_OUT, "2 may lead, and start anywhere"
        unknown = await deleted(rig, 0, name="absent")
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert unknown.low_watermark == -1
        config = TopicConfig(cleanup_policy=CleanupPolicy.parse("compact"))
        log_of(rig).set_config(config)
        assert (await deleted(rig, 0)).error_code == ErrorCode.POLICY_VIOLATION
        await rig.follow(partition(replicas=(1, 2), leader=2, epoch=1))
        assert (await deleted(rig, 0)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_delete_records_waits_for_a_directory_swap() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        await rig.ask(produce(batch(5)), 9)
        gate = rig.parts.hosted.require(TP).gate
        gate.close()
        with log_of(rig).retention_paused():
            asked = asyncio.ensure_future(deleted(rig, 4))
            await until(lambda: repr(gate).endswith("closed 1>"))
        assert log_of(rig).log_start_offset == 0
        gate.open()
        assert (await asked).low_watermark == 4


async def test_delete_records_followers_adopt_the_log_start_offset() -> None:
    async with brokers(2) as rigs:
        for rig in rigs:
            await rig.follow(topic(), partition(replicas=(1, 2)))
        await rigs[0].ask(produce(batch(4)), 9)
        await rigs[0].ask(produce(batch(4)), 9)
        assert (await deleted(rigs[0], 4)).low_watermark == 4
        await until(lambda: log_of(rigs[1]).log_start_offset == 4)
        # Also if the fetch response has records.
        await deleted(rigs[0], -1)
        await rigs[0].ask(produce(batch(1)), 9)
        await until(lambda: log_of(rigs[1]).log_start_offset == 8)
        assert log_of(rigs[1]).log_end_offset == 9


async def test_delete_records_acknowledged_offset_survives_a_crash_of_all_brokers() -> None:
    """All brokers lose power after the response, and any of them may lead afterwards."""
    async with brokers(2) as rigs:
        for rig in rigs:
            await rig.follow(topic(), partition(replicas=(1, 2)))
        await rigs[0].ask(produce(batch(4)), 9)
        await rigs[0].ask(produce(batch(4)), 9)
        for offset in (3, 8):
            assert (await deleted(rigs[0], offset)).low_watermark == offset
            for rig in rigs:
                path = log_of(rig).log_dir.path
                left = rig.disks_at[path].crash_clone(offset)
                logs = manager_of([open_dir(left, path, int(path[2:]))])
                await logs.load()
                handle = logs.get(TP)
                assert handle is not None
                assert handle.log_start_offset == offset, rig.broker_id


async def test_delete_records_frees_space_of_a_full_directory() -> None:
    vfs = MemVfs()
    async with brokers(1, vfs) as (rig,):
        await rig.follow(topic(), partition())
        log_of(rig).set_config(SMALL)
        for _ in range(4):
            await rig.ask(produce(batch(1, body=bytes(700))), 9)
        vfs.capacity_bytes = vfs.used_bytes()
        refused = await rig.ask(produce(batch(1, body=bytes(700))), 9)
        code = refused.responses[0].partition_responses[0].error_code
        assert code == ErrorCode.KAFKA_STORAGE_ERROR
        assert rig.dirs[0].state is LogDirState.SATURATED
        assert (await relieved(rig, 2)).low_watermark == 2
        # The segments are removed, not only hidden.
        assert log_of(rig).first_segment_offset == 2
        assert (await relieved(rig, -1)).low_watermark == 4
        assert log_of(rig).size_bytes == 0


async def relieved(rig: BrokerRig, offset: int) -> Any:
    """Delete records while housekeeping reclaims space as in a full directory."""
    asked = asyncio.ensure_future(deleted(rig, offset))
    while not asked.done():
        await chores(rig.logs).reclaim_space()
        await asyncio.sleep(0.01)
    return await asked


# --- waiting for the followers -------------------------------------------------------------------


async def fetched(
    rig: BrokerRig, offset: int, log_start_offset: int, *, leader_epoch: int = 0
) -> None:
    """Fetch as broker 2 from ``offset`` on, with its log start offset."""
    part = FETCH.FetchPartition(
        partition=0,
        fetch_offset=offset,
        log_start_offset=log_start_offset,
        partition_max_bytes=1 << 20,
        current_leader_epoch=leader_epoch,
    )
    request = FETCH(
        replica_state=FETCH.ReplicaState(replica_id=TWO, replica_epoch=BrokerEpoch(-1)),
        max_bytes=1 << 20,
        topics=[FETCH.FetchTopic(topic_id=TOPIC_ID, partitions=[part])],
    )
    response = await rig.ask(request, 16)
    assert response.error_code == 0 and response.responses[0].partitions[0].error_code == 0
    # The next fetch of the session proves that this fetch was not late.
    request.session_id, request.session_epoch, request.topics = response.session_id, 1, []
    assert (await rig.ask(request, 16)).error_code == 0


def second(rig: BrokerRig) -> RegisterBrokerRecord:
    """Registration of a live broker that sends no requests."""
    return dataclasses.replace(
        rig.registration(),
        broker_id=TWO,
        incarnation_id=Uuid(b"2" * 16),
        log_dirs=(dir_of(2, 1), dir_of(2, 2)),
    )


async def five_on_both(rig: BrokerRig) -> None:
    """Give broker 2 five records, as far as its fetches show."""
    await rig.follow(second(rig), topic(), partition(replicas=(1, 2)))
    await rig.ask(produce(batch(5), acks=1), 9)
    await fetched(rig, 5, 0)


async def begun(rig: BrokerRig, offset: int) -> asyncio.Task[Any]:
    """Start a deletion that waits for followers."""
    asked = asyncio.ensure_future(deleted(rig, offset))
    await until(lambda: len(rig.parts.hosted.deletions))
    assert log_of(rig).log_start_offset == offset
    return asked


async def test_delete_records_waits_for_the_log_start_of_a_live_follower() -> None:
    async with brokers() as (rig,):
        await five_on_both(rig)
        asked = await begun(rig, 3)
        await fetched(rig, 5, 2)
        assert len(rig.parts.hosted.deletions) == 1
        await fetched(rig, 5, 3)
        answered = await asked
        assert (answered.error_code, answered.low_watermark) == (0, 3)
        # Both replicas have reached that offset.
        assert (await deleted(rig, 2)).low_watermark == 3
        # A new leader does not know the log start of a follower yet, and does not answer an old
        # request.
        await rig.follow(partition(replicas=(1, 2), leader=2, epoch=1))
        await rig.follow(partition(replicas=(1, 2), leader=1, epoch=2))
        asked = asyncio.ensure_future(deleted(rig, 1))
        await until(lambda: len(rig.parts.hosted.deletions))
        await fetched(rig, 5, 3, leader_epoch=2)
        assert (await asked).low_watermark == 3


async def test_delete_records_waiting_for_followers_times_out() -> None:
    async with brokers() as (rig,):
        await five_on_both(rig)
        for timeout_ms in (100, 0):
            answered = await deleted(rig, 3, timeout_ms=timeout_ms)
            late = (ErrorCode.REQUEST_TIMED_OUT, -1)
            assert (answered.error_code, answered.low_watermark) == late
        # The leader has advanced its own log start.
        assert log_of(rig).log_start_offset == 3


FULL = (ImpairedLogDir(directory_id=dir_of(2, 1), state=LogDirState.SATURATED),)


@pytest.mark.parametrize(
    "change",
    [
        {"fenced": True},
        {"log_dirs": (dir_of(2, 2),)},
        {"impaired_log_dirs": FULL},
    ],
    ids=["fenced", "directory offline", "directory full"],
)
async def test_delete_records_does_not_wait_for_replicas_that_cannot_lead(
    change: dict[str, Any],
) -> None:
    """The replica is in sync, then eligible: the leader waits as long as it may be elected."""
    async with brokers() as (rig,):
        await five_on_both(rig)
        asked = await begun(rig, 3)
        epoch = rig.parts.cache.state.brokers[TWO].epoch
        rig.replay(BrokerRegistrationChangeRecord(broker_id=TWO, broker_epoch=epoch, **change))
        assert len(rig.parts.hosted.deletions) == 1, "in sync"
        leader_alone = dataclasses.replace(
            partition(replicas=(1, 2), isr=(1,)), partition_epoch=PartitionEpoch(1)
        )
        rig.replay(dataclasses.replace(leader_alone, elr=(TWO,)))
        assert len(rig.parts.hosted.deletions) == 1, "eligible"
        rig.replay(dataclasses.replace(leader_alone, partition_epoch=PartitionEpoch(2)))
        assert (await asked).low_watermark == 3


async def test_follower_with_deleted_records_does_not_join_the_isr() -> None:
    """The follower was absent during the deletion and is caught up by its first fetch."""
    async with brokers() as (rig,):
        await rig.follow(second(rig), topic(), partition(replicas=(1, 2), isr=(1,)))
        await rig.ask(produce(batch(5)), 9)
        await deleted(rig, 3, timeout_ms=0)
        led = rig.parts.hosted.require(TP).partition
        assert led is not None and led.high_watermark == 5
        await fetched(rig, 5, 0)
        assert led.pending_isr_change is None
        await fetched(rig, 5, 3)
        assert led.pending_isr_change is not None and TWO in led.pending_isr_change.isr


@pytest.mark.parametrize(
    ("record", "code", "low_watermark"),
    [
        (
            dataclasses.replace(partition(replicas=(1,)), partition_epoch=PartitionEpoch(1)),
            ErrorCode.NONE,
            3,
        ),
        (partition(replicas=(1, 2), leader=2, epoch=1), ErrorCode.NOT_LEADER_OR_FOLLOWER, -1),
    ],
    ids=["follower removed", "led elsewhere"],
)
async def test_delete_records_wait_ends_when_the_late_follower_or_the_leader_is_replaced(
    record: Record, code: ErrorCode, low_watermark: int
) -> None:
    async with brokers() as (rig,):
        await five_on_both(rig)
        asked = await begun(rig, 3)
        rig.replay(record)
        answered = await asked
        assert (answered.error_code, answered.low_watermark) == (code, low_watermark)


async def test_delete_records_wait_ends_when_the_directory_fails() -> None:
    async with brokers() as (rig,):
        await five_on_both(rig)
        asked = await begun(rig, 3)
        rig.dirs[0].go_offline("test")
        rig.parts.manager.mark_offline(rig.dirs[0])
        assert (await asked).error_code == ErrorCode.KAFKA_STORAGE_ERROR


async def test_delete_records_wakes_waiting_follower_fetches() -> None:
    """The follower's fetch would wait for records much longer than the request waits."""
    async with brokers(2, replica_fetch_wait_max_ms="20000") as rigs:
        for rig in rigs:
            await rig.follow(topic(), partition(replicas=(1, 2)))
        for _ in range(2):
            await rigs[0].ask(produce(batch(4)), 9)
        # The follower has the latest high watermark, so that no change is left for its next fetch.
        await until(lambda: log_of(rigs[1]).high_watermark == 4)
        assert (await deleted(rigs[0], 3)).low_watermark == 3
        assert [log_of(rig).log_start_offset for rig in rigs] == [3, 3]


async def test_delete_records_of_internal_topics_returns_invalid_topic() -> None:
    """As in Kafka: regardless of the leader and of the cleanup policy."""
    async with brokers() as (rig,):
        await rig.follow(topic("__consumer_offsets"), partition())
        for version in (0, 2):
            answered = await deleted(rig, -1, name="__consumer_offsets", version=version)
            assert answered.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
            assert answered.low_watermark == -1
