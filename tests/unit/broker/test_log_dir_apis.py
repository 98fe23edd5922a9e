"""DescribeLogDirs: sizes, lag, and what is offline."""

from __future__ import annotations

from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import TopicPartition
from kraftjbod.protocol.kafka_codec import message
from tests.faults.rig import batch
from tests.unit.broker.broker_rig import brokers, dir_of, partition, produce, topic

KIND = message("DescribeLogDirsRequest")


async def test_sizes_by_directory_and_an_offline_one_with_its_error_only():
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(), partition(1, directories=[dir_of(1, 2)]))
        records = batch(3)
        await rig.ask(produce(records, tp=TopicPartition("t", 1)), 9)
        rig.dirs[0].go_offline("test")
        rig.parts.replicas.mark_offline(rig.dirs[0])
        rig.logs.drop(rig.dirs[0])
        online, offline = (await rig.ask(KIND(topics=None))).results
        assert (online.log_dir, online.error_code) == ("/d2", 0)
        (part,) = online.topics[0].partitions
        assert (part.partition_index, part.partition_size) == (1, len(records))
        assert (part.offset_lag, part.is_future_key) == (0, False)
        assert (offline.log_dir, offline.error_code) == ("/d1", ErrorCode.KAFKA_STORAGE_ERROR)
        assert (list(offline.topics), offline.total_bytes) == ([], -1)


async def test_only_the_partitions_asked_for():
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(), partition(1))
        asked = KIND(topics=[KIND.DescribableLogDirTopic(topic="t", partitions=[1])])
        first, second = (await rig.ask(asked)).results
        assert [p.partition_index for t in first.topics for p in t.partitions] == [1]
        assert list(second.topics) == []
