"""DeleteRecords over real doors: who may ask for what, and that followers and disks follow."""

from __future__ import annotations

from typing import Any

from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.topic_config import CleanupPolicy, TopicConfig
from kraftjbod.protocol.kafka_codec import message
from kraftjbod.storage.log_handle import LogHandle
from tests.faults.rig import batch
from tests.faults.vfs_mem import MemVfs
from tests.unit.broker.broker_rig import TP, BrokerRig, brokers, partition, produce, topic
from tests.unit.broker.gates import until

DELETE = message("DeleteRecordsRequest")
SMALL = TopicConfig(segment_bytes=1024, retention_ms=-1)


async def deleted(rig: BrokerRig, offset: int, *, name: str = "t", version: int = 2) -> Any:
    part = DELETE.DeleteRecordsPartition(partition_index=0, offset=offset)
    topics = [DELETE.DeleteRecordsTopic(name=name, partitions=[part])]
    request = DELETE(topics=topics, timeout_ms=5_000)
    return (await rig.ask(request, version)).topics[0].partitions[0]


def log_of(rig: BrokerRig) -> LogHandle:
    handle = rig.logs.get(TP)
    assert handle is not None
    return handle


async def test_the_log_starts_where_it_was_told_to():
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        await rig.ask(produce(batch(5)), 9)
        await rig.ask(produce(batch(5)), 9)
        told = await deleted(rig, 7, version=0)
        assert (told.error_code, told.low_watermark) == (0, 7)
        assert log_of(rig).log_start_offset == 7
        # What is hidden stays hidden.
        assert (await deleted(rig, 3)).low_watermark == 7
        assert (await deleted(rig, -1)).low_watermark == 10
        assert (log_of(rig).log_start_offset, log_of(rig).log_end_offset) == (10, 10)
        await rig.ask(produce(batch(1)), 9)
        assert log_of(rig).log_end_offset == 11


async def test_what_cannot_be_deleted_is_refused():
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2)))
        await rig.ask(produce(batch(5), acks=1), 9)
        # Nothing is committed: the other one has no record yet.
        assert (await deleted(rig, 1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await deleted(rig, -2)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await deleted(rig, -1)).low_watermark == 0
        unknown = await deleted(rig, 0, name="absent")
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert unknown.low_watermark == -1
        config = TopicConfig(cleanup_policy=CleanupPolicy.parse("compact"))
        log_of(rig).set_config(config)
        assert (await deleted(rig, 0)).error_code == ErrorCode.POLICY_VIOLATION
        await rig.follow(partition(replicas=(1, 2), leader=2, epoch=1))
        assert (await deleted(rig, 0)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_followers_take_the_new_start_over():
    async with brokers(2) as rigs:
        for rig in rigs:
            await rig.follow(topic(), partition(replicas=(1, 2)))
        await rigs[0].ask(produce(batch(4)), 9)
        await rigs[0].ask(produce(batch(4)), 9)
        assert (await deleted(rigs[0], 4)).low_watermark == 4
        await until(lambda: log_of(rigs[1]).log_start_offset == 4)
        # With records in the same answer, too.
        await deleted(rigs[0], -1)
        await rigs[0].ask(produce(batch(1)), 9)
        await until(lambda: log_of(rigs[1]).log_start_offset == 8)
        assert log_of(rigs[1]).log_end_offset == 9


async def test_a_full_directory_gets_its_room_back_at_once():
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
        assert (await deleted(rig, 2)).low_watermark == 2
        # Not only hidden: they have left the log.
        assert log_of(rig).first_segment_offset == 2
        assert (await deleted(rig, -1)).low_watermark == 4
        assert log_of(rig).size_bytes == 0
