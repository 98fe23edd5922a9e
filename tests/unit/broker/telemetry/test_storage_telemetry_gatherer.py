"""``StorageTelemetryGatherer``: samples of directories and replicas on memory disks."""

from __future__ import annotations

from kraftjbod.broker.telemetry.storage_telemetry_gatherer import StorageTelemetryGatherer
from kraftjbod.core.ids import TopicPartition
from kraftjbod.metadata.records import RemoveTopicRecord
from kraftjbod.protocol.telemetry.storage_telemetry import LogDirSample, ReplicaSample
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import batch
from tests.faults.vfs_fault import FaultVfs
from tests.unit.broker.broker_rig import (
    TOPIC_ID,
    TP,
    BrokerRig,
    brokers,
    dir_of,
    fetch,
    partition,
    produce,
    topic,
)
from tests.unit.broker.gates import Gate, until
from tests.unit.broker.impaired_dirs import fill, stall

TP1 = TopicPartition("t", 1)


def gatherer(rig: BrokerRig) -> StorageTelemetryGatherer:
    return StorageTelemetryGatherer(
        logs=rig.logs,
        replicas=rig.parts.hosted,
        moves=rig.parts.moves,
        assignments=rig.parts.assignments,
        monitor=rig.parts.monitor,
    )


async def dirs(rig: BrokerRig) -> list[LogDirSample]:
    asked = gatherer(rig)
    samples = asked.samples((await asked.gather(whole=False)).subjects)
    return [sample for sample in samples if isinstance(sample, LogDirSample)]


async def replicas(rig: BrokerRig) -> dict[tuple[int, bool], ReplicaSample]:
    """Samples by partition index, and whether the replica is a future replica."""
    asked = gatherer(rig)
    samples = asked.samples((await asked.gather(whole=True)).subjects)
    return {(s.partition, s.is_future): s for s in samples if isinstance(s, ReplicaSample)}


async def two_partitions(rig: BrokerRig) -> bytes:
    """Create a replica in each directory, with two batches in the first; return one batch."""
    await rig.follow(topic(), partition(), partition(1, directories=[dir_of(1, 2)]))
    records = batch(3)
    for _ in range(2):
        await rig.ask(produce(records), 9)
    return records


async def test_log_dir_sample_reports_replicas_sizes_and_operations() -> None:
    async with brokers() as (rig,):
        size_bytes = 2 * len(await two_partitions(rig))
        first, second = await dirs(rig)
        assert (first.path, second.path) == ("/d1", "/d2")
        assert first.directory_id == str(dir_of(1, 1))
        assert (first.replicas, second.replicas) == (1, 1)
        assert (first.replica_bytes, second.replica_bytes) == (size_bytes, 0)
        assert (first.appended_bytes_total, second.appended_bytes_total) == (size_bytes, 0)
        assert sum(first.io_counts) == first.io_total > 0
        assert first.since_ms == rig.dirs[0].since_wall_ms > 0
        assert (first.moves_in, first.moves_out, first.moves_remaining_bytes) == (0, 0, 0)


async def test_replica_sample_reports_offsets_sizes_and_fetched_bytes() -> None:
    async with brokers(2) as (rig, other):
        for one in (rig, other):
            await one.follow(topic(), partition(replicas=(1, 2)))
        size_bytes = len(batch(3))
        await rig.ask(produce(batch(3)), 9)
        found = (await replicas(rig))[0, False]
        assert found == ReplicaSample(
            directory_id=str(dir_of(1, 1)),
            path="/d1",
            topic="t",
            topic_id=str(TOPIC_ID),
            partition=0,
            is_future=False,
            is_leader=True,
            size_bytes=size_bytes,
            log_start_offset=0,
            log_end_offset=3,
            appended_bytes_total=size_bytes,
            # The bytes went to the follower before the producer received its response.
            fetched_bytes_total=size_bytes,
            brokers=(1, 2),
        )
        follower = (await replicas(other))[0, False]
        assert not follower.is_leader
        assert (follower.appended_bytes_total, follower.fetched_bytes_total) == (size_bytes, 0)
        (followed, _) = await dirs(other)
        assert followed.appended_bytes_total == size_bytes
        await rig.ask(fetch(), 12)
        assert (await replicas(rig))[0, False].fetched_bytes_total == 2 * size_bytes
        assert (await dirs(rig))[0].fetched_bytes_total == 2 * size_bytes


async def test_appended_bytes_exclude_duplicate_batches() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        sent = batch(3, producer=(9, 0, 0))
        for _ in range(2):
            await rig.ask(produce(sent), 9)
        assert (await replicas(rig))[0, False].appended_bytes_total == len(sent)


async def test_move_is_sampled_in_both_directories_and_its_replica_keeps_its_counters() -> None:
    vfss = (FaultVfs(MemVfs()), FaultVfs(MemVfs()))
    async with brokers(1, *vfss) as (rig,):
        size_bytes = 2 * len(await two_partitions(rig))
        rig.controller.may_answer.clear()
        with Gate(vfss[1], "copy_from") as gate:
            replica = rig.parts.hosted.require(TP)
            rig.parts.moves.start(replica, rig.dirs[1])
            await gate.reached()
            source, target = await dirs(rig)
            assert (source.moves_in, source.moves_out) == (0, 1)
            assert (target.moves_in, target.moves_out) == (1, 0)
            assert (target.replicas, target.moves_remaining_bytes) == (1, size_bytes)
        await until(lambda: rig.parts.assignments.queued)
        _, target = await dirs(rig)
        assert (target.moves_remaining_bytes, target.replica_bytes) == (0, size_bytes)
        assert target.queued_assignments == 1
        future = (await replicas(rig))[0, True]
        assert (future.path, future.size_bytes, future.log_end_offset) == ("/d2", size_bytes, 6)
        assert (future.is_leader, future.appended_bytes_total) == (False, 0)
        rig.controller.may_answer.set()
        await rig.parts.moves.ended(TP)
        moved = await replicas(rig)
        assert (0, True) not in moved
        assert (moved[0, False].path, moved[0, False].appended_bytes_total) == ("/d2", size_bytes)
        # Copied bytes do not count as appended.
        assert [d.appended_bytes_total for d in await dirs(rig)] == [size_bytes, 0]


async def test_log_dir_sample_reports_the_state() -> None:
    async with brokers() as (rig,):
        await two_partitions(rig)
        await fill(rig.dirs[0])
        stall(rig.dirs[1])
        assert [d.state for d in await dirs(rig)] == ["saturated", "stalled"]
        rig.dirs[0].go_offline("test")
        rig.parts.manager.mark_offline(rig.dirs[0])
        rig.logs.drop(rig.dirs[0])
        offline, _ = await dirs(rig)
        assert (offline.state, offline.path) == ("offline", "/d1")
        assert (offline.replicas, offline.io_total, offline.total_bytes) == (0, 0, 0)
        assert set(await replicas(rig)) == {(1, False)}


async def test_replica_removed_between_gather_and_samples_is_omitted() -> None:
    async with brokers() as (rig,):
        await two_partitions(rig)
        asked = gatherer(rig)
        subjects = [*(await asked.gather(whole=True)).subjects]
        assert len(subjects) == 4
        await rig.follow(RemoveTopicRecord(topic_id=TOPIC_ID))
        assert [type(sample) for sample in asked.samples(subjects)] == [LogDirSample] * 2
