"""ListOffsets and OffsetForLeaderEpoch over a real listener."""

from __future__ import annotations

from typing import Any

from kraftjbod.core.errors import ErrorCode
from kraftjbod.protocol.messages import (
    DeleteRecordsRequest,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
)
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import batch
from tests.faults.vfs_fault import FaultVfs
from tests.unit.broker.broker_rig import (
    TP,
    BrokerRig,
    brokers,
    dir_of,
    partition,
    produce,
    topic,
)
from tests.unit.broker.gates import Gate

LIST, EPOCHS, DELETE = ListOffsetsRequest, OffsetForLeaderEpochRequest, DeleteRecordsRequest
EARLIEST, LATEST, OF_MAX_TIMESTAMP = -2, -1, -3
EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -4, -5, -6


async def listed(rig: BrokerRig, timestamp: int, version: int = 8, **more: Any) -> Any:
    part = LIST.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = LIST(
        replica_id=more.pop("replica_id", -1),
        topics=[LIST.ListOffsetsTopic(name=more.pop("name", "t"), partitions=[part])],
    )
    return (await rig.ask(request, version)).topics[0].partitions[0]


async def test_list_offsets_finds_log_ends_and_offsets_by_timestamp() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        await rig.ask(produce(batch(2, timestamp=1_000)), 9)
        await rig.ask(produce(batch(3, timestamp=2_000)), 9)
        assert (await listed(rig, EARLIEST)).offset == 0
        assert (await listed(rig, LATEST)).offset == 5
        by_time = await listed(rig, 1_500)
        assert (by_time.offset, by_time.timestamp) == (2, 2_000)
        assert (await listed(rig, OF_MAX_TIMESTAMP)).offset in (2, 4)
        assert (await listed(rig, 9_999)).offset == -1
        assert (await listed(rig, -77)).error_code == ErrorCode.UNSUPPORTED_VERSION
        unknown = await listed(rig, LATEST, name="absent")
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_list_offsets_earliest_has_epoch_of_first_record_or_of_the_leader() -> None:
    """A consumer that starts there needs the epoch to detect a truncated log (KIP-320)."""
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(epoch=3))
        assert (await listed(rig, EARLIEST)).leader_epoch == 3
        await rig.ask(produce(batch(2)), 9)
        await rig.follow(partition(epoch=5))
        await rig.ask(produce(batch(2)), 9)
        for spec in (EARLIEST, EARLIEST_LOCAL):
            first = await listed(rig, spec)
            assert (first.offset, first.leader_epoch) == (0, 3)
        part = DELETE.DeleteRecordsPartition(partition_index=0, offset=3)
        topics = [DELETE.DeleteRecordsTopic(name="t", partitions=[part])]
        await rig.ask(DELETE(topics=topics, timeout_ms=5_000), 2)
        first = await listed(rig, EARLIEST)
        assert (first.offset, first.leader_epoch) == (3, 5)


async def test_list_offsets_special_specs_need_newer_versions_and_tiered_specs_find_nothing() -> (
    None
):
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        await rig.ask(produce(batch(2)), 9)
        for spec, since in (
            (OF_MAX_TIMESTAMP, 7),
            (EARLIEST_LOCAL, 8),
            (LATEST_TIERED, 9),
            (EARLIEST_PENDING_UPLOAD, 11),
        ):
            found = await listed(rig, spec, since)
            assert found.error_code == ErrorCode.NONE, spec
            if spec in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
                assert (found.offset, found.timestamp, found.leader_epoch) == (-1, -1, -1), spec
            too_old = await listed(rig, spec, since - 1)
            assert too_old.error_code == ErrorCode.UNSUPPORTED_VERSION, spec


async def test_list_offsets_latest_is_the_high_watermark() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2)))
        await rig.ask(produce(batch(3), acks=1), 9)
        assert (await listed(rig, LATEST)).offset == 0
        assert (await listed(rig, LATEST, replica_id=2)).offset == 0, "a replica id proves nothing"


async def test_list_offsets_on_a_new_leader_returns_offset_not_available() -> None:
    """KIP-207: clients that do not know this code receive LEADER_NOT_AVAILABLE."""
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2)))
        await rig.ask(produce(batch(3), acks=1), 9)
        await rig.follow(partition(replicas=(1, 2), epoch=1))
        assert (await listed(rig, LATEST)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        assert (await listed(rig, LATEST, 4)).error_code == ErrorCode.LEADER_NOT_AVAILABLE


async def test_offset_for_leader_epoch_returns_epoch_and_end_offset() -> None:
    async def ended(rig: BrokerRig, epoch: int, current: int = -1) -> tuple[int, int, int]:
        part = EPOCHS.OffsetForLeaderPartition(
            partition=0, current_leader_epoch=current, leader_epoch=epoch
        )
        request = EPOCHS(topics=[EPOCHS.OffsetForLeaderTopic(topic="t", partitions=[part])])
        answered = (await rig.ask(request)).topics[0].partitions[0]
        return answered.error_code, answered.leader_epoch, answered.end_offset

    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        await rig.ask(produce(batch(2)), 9)
        await rig.follow(partition(epoch=5))
        assert await ended(rig, 0) == (0, 0, 2)
        # Epoch 3 has no records here, and epoch 5 starts at the log end.
        assert await ended(rig, 3) == (0, 0, 2)
        assert await ended(rig, 5) == (0, 5, 2)
        assert (await ended(rig, 0, current=4))[0] == ErrorCode.FENCED_LEADER_EPOCH


async def test_list_offsets_with_hanging_directory_fails_only_its_partitions() -> None:
    sick = FaultVfs(MemVfs())
    async with brokers(1, sick, MemVfs(), log_dir_io_suspect_ms="50") as (rig,):
        await rig.follow(topic(), partition(), partition(1, directories=[dir_of(1, 2)]))
        for index in (0, 1):
            await rig.ask(produce(batch(timestamp=1_000), tp=TP._replace(partition=index)), 9)
        with Gate(sick, "exists") as gate:
            busy = rig.dirs[0].submit(OpKind.READ, lambda: sick.exists("/d1"))
            await gate.reached()
            parts = [LIST.ListOffsetsPartition(partition_index=i, timestamp=500) for i in (0, 1)]
            request = LIST(
                replica_id=-1, topics=[LIST.ListOffsetsTopic(name="t", partitions=parts)]
            )
            answered = (await rig.ask(request, 8)).topics[0].partitions
            codes = [part.error_code for part in answered]
            assert codes == [ErrorCode.KAFKA_STORAGE_ERROR, 0]
        await busy
