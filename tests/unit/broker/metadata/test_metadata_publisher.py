"""``MetadataPublisher``: the order in which metadata changes take effect."""

from __future__ import annotations

import asyncio

from kraftjbod.core.ids import TopicPartition
from kraftjbod.metadata.records import ConfigRecord, ResourceType
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.vfs_fault import Fault, FaultVfs
from tests.unit.broker.broker_rig import TP, brokers, dir_of, partition, topic


async def test_metadata_changes_wait_until_logs_are_loaded() -> None:
    async with brokers(opens=False) as (rig,):
        await rig.follow(topic(), partition())
        assert rig.logs.get(TP) is None
        rig.parts.publisher.open()
        await rig.parts.publisher.disk_work_done()
        assert rig.logs.get(TP) is not None


async def test_topic_config_applies_to_replicas_created_by_the_same_change() -> None:
    async with brokers() as (rig,):
        value = ConfigRecord(
            resource_type=ResourceType.TOPIC, resource_name="t", name="retention.ms", value="5"
        )
        await rig.follow(topic(), value, partition())
        handle = rig.logs.get(TP)
        assert handle is not None and handle.config.retention_ms == 5


async def test_hanging_directory_does_not_delay_changes_in_other_directories() -> None:
    sick = FaultVfs(MemVfs())
    async with brokers(1, sick, MemVfs()) as (rig,):
        sick.inject(Fault(effect=DiskFault.HANG_EIO, path="*/t-0*"))
        try:
            rig.replay(topic(), partition(), partition(1, directories=[dir_of(1, 2)]))
            other = rig.parts.hosted.get(TopicPartition("t", 1))
            assert other is not None
            while other.handle is None:
                await asyncio.sleep(0.001)
            assert rig.logs.get(TP) is None
        finally:
            sick.clear()


async def test_broker_config_applies_before_logs_are_loaded() -> None:
    async with brokers(opens=False) as (rig,):
        value = ConfigRecord(
            resource_type=ResourceType.BROKER,
            resource_name="1",
            name="leader.replication.throttled.rate",
            value="5",
        )
        rig.replay(value)
        assert rig.parts.dynamic_configs.current.leader_replication_throttled_rate == 5


async def test_broker_config_that_topics_do_not_use_keeps_topic_configs() -> None:
    """A cluster may have thousands of topics, and a throttle rate does not concern them."""
    async with brokers() as (rig,):
        own = ConfigRecord(
            resource_type=ResourceType.TOPIC, resource_name="t", name="segment.ms", value="7"
        )
        await rig.follow(topic(), partition(), own)
        before = rig.parts.topic_configs.get("t")
        for name in ("", "1"):
            rate = ConfigRecord(
                resource_type=ResourceType.BROKER,
                resource_name=name,
                name="leader.replication.throttled.rate",
                value="5",
            )
            await rig.follow(rate)
        assert rig.parts.topic_configs.get("t") is before


async def test_dynamic_min_isr_applies_immediately_to_topics_without_an_override() -> None:
    async with brokers(2, min_insync_replicas="2") as (rig, _):
        await rig.follow(topic(), partition(replicas=[1, 2], isr=[1]))
        hosted = rig.parts.hosted.get(TP)
        assert hosted is not None and hosted.partition is not None
        assert hosted.partition.is_under_min_isr
        value = ConfigRecord(
            resource_type=ResourceType.BROKER,
            resource_name="",
            name="min.insync.replicas",
            value="1",
        )
        await rig.follow(value)
        assert not hosted.partition.is_under_min_isr
