"""A dead directory, from the channel to the report."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from kraftjbod.broker.log_dir_state_handler import LogDirStateHandler
from kraftjbod.core.errors import ErrorCode, KafkaStorageError
from kraftjbod.metadata.records import PartitionChangeRecord
from tests.faults.rig import batch
from tests.unit.broker.broker_rig import (
    TOPIC_ID,
    TP,
    BrokerRig,
    brokers,
    dir_of,
    only,
    partition,
    produce,
    topic,
)
from tests.unit.broker.gates import until


def handler_of(rig: BrokerRig, metadata_dir: str = "/meta") -> LogDirStateHandler:
    return LogDirStateHandler(
        channel=rig.failures,
        fetchers=rig.parts.fetchers,
        moves=rig.parts.moves,
        assignments=rig.parts.assignments,
        replicas=rig.parts.replicas,
        publisher=rig.parts.publisher,
        logs=rig.logs,
        lifecycle=rig.parts.lifecycle,
        metadata_dir=metadata_dir,
    )


async def test_its_replicas_end_and_the_other_directory_goes_on():
    async with brokers() as (rig,):
        rig.tasks.start(handler_of(rig).run(), "handler")
        await rig.follow(topic(), partition(), partition(1, directories=[dir_of(1, 2)]))
        with capture_logs() as told:
            rig.dirs[0].go_offline("test")
            while rig.logs.get(TP) is not None:
                await asyncio.sleep(0)
        assert "log_dir_replicas_offline" in [line["event"] for line in told]
        dead = only(await rig.ask(produce(batch()), 9))
        assert dead.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        alive = only(await rig.ask(produce(batch(), tp=TP._replace(partition=1)), 9))
        assert alive.error_code == 0


async def test_the_last_directory_cannot_be_lost():
    async with brokers() as (rig,):
        handler = handler_of(rig)
        rig.tasks.start(handler.run(), "handler")
        for log_dir in rig.dirs:
            log_dir.go_offline("test")
        with pytest.raises(KafkaStorageError, match="last log directory"):
            await handler.lost()


async def test_the_metadata_directory_cannot_be_lost():
    async with brokers() as (rig,):
        handler = handler_of(rig, metadata_dir="/d1")
        rig.tasks.start(handler.run(), "handler")
        rig.dirs[0].go_offline("test")
        with pytest.raises(KafkaStorageError, match="metadata directory"):
            await handler.lost()


async def test_a_failure_that_cannot_be_handled_stops_the_broker_and_the_handler_goes_on():
    """KAFKA-19289: a handler that dies silently leaves a broker leading dead partitions."""
    async with brokers() as (rig,):
        handler = handler_of(rig)
        rig.tasks.start(handler.run(), "handler")
        await rig.follow(topic(), partition())
        replica = rig.parts.hosted.get(TP)
        assert replica is not None
        replica.partition = None
        with capture_logs() as told:
            rig.dirs[0].go_offline("test")
            with pytest.raises(KafkaStorageError, match="could not be handled"):
                await handler.lost()
        assert "log_dir_failure_unhandled" in [line["event"] for line in told]
        rig.dirs[1].go_offline("test")
        while rig.logs.handles_in(rig.dirs[1]):
            await asyncio.sleep(0)


async def test_a_follower_s_loops_end_and_its_other_directory_goes_on_following():
    async with brokers(2) as (leader, rig):
        rig.tasks.start(handler_of(rig).run(), "handler")
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
        # Nothing of the dead directory counts until metadata says that it left the ISR.
        waiting = asyncio.create_task(leader.ask(produce(batch(), timeout_ms=60_000), 9))
        await until(lambda: len(leader.parts.hosted.produces))
        leader.replay(
            PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, isr=(leader.broker_id,))
        )
        assert only(await waiting).error_code == 0
