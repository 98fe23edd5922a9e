"""Copies that only the metadata can tell apart, on disks as a stop or a crash leaves them."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.ids import DirectoryId, TopicId, Uuid
from tests.faults.rig import batch
from tests.faults.vfs_fault import Fault, FaultVfs
from tests.faults.vfs_mem import MemVfs
from tests.unit.broker.broker_rig import TP, brokers, dir_of, only, partition, produce, topic

DOOMED = f"t-0.{Uuid(b'm' * 16).hex()}-delete"
GONE = DirectoryId(b"g" * 16)


async def disks_with_a_doomed_copy() -> tuple[MemVfs, MemVfs]:
    """``t-0`` with one record is on its way out of the first directory, and nowhere else."""
    disks = (MemVfs(), MemVfs())
    async with brokers(1, *disks) as (rig,):
        await rig.follow(topic(), partition())
        assert only(await rig.ask(produce(batch()), 9)).error_code == 0
    disks[0].rename("/d1/t-0", f"/d1/{DOOMED}")
    return disks


async def test_a_copy_on_its_way_out_comes_back_if_metadata_means_it():
    """The other rename of a swap never came, and the move had been taken back."""
    disks = await disks_with_a_doomed_copy()
    async with brokers(1, *disks, opens=False) as (rig,):
        rig.replay(topic(), partition())
        with capture_logs() as told:
            await rig.parts.leftovers.resolve()
        assert "deleted_replica_restored" in [line["event"] for line in told]
        rig.parts.publisher.open()
        await rig.parts.publisher.disk_work_done()
        handle = rig.logs.get(TP)
        assert handle is not None and handle.log_end_offset == 1


async def test_a_copy_on_its_way_out_stays_while_the_named_directory_is_away():
    disks = await disks_with_a_doomed_copy()
    async with brokers(1, *disks, opens=False) as (rig,):
        rig.replay(topic(), partition(directories=[GONE]))
        with capture_logs() as told:
            await rig.parts.leftovers.resolve()
        assert "deleted_replica_kept" in [line["event"] for line in told]
        assert len(rig.logs.orphans) == 1 and rig.logs.get(TP) is None


@pytest.mark.parametrize(
    "records",
    [
        (),
        (topic(topic_id=TopicId(b"2" * 16)), partition(topic_id=TopicId(b"2" * 16))),
        (topic(), partition(replicas=(2,), leader=2)),
        (topic(), partition(replicas=(1, 2), isr=(2,), leader=2)),
        (topic(), partition(directories=[dir_of(1, 2)])),
    ],
    ids=["no-topic", "another-topic", "not-here", "not-in-sync", "elsewhere"],
)
async def test_a_copy_on_its_way_out_that_nobody_needs_goes(records: tuple[object, ...]):
    disks = await disks_with_a_doomed_copy()
    async with brokers(1, *disks, opens=False) as (rig,):
        rig.replay(*records)
        await rig.parts.leftovers.resolve()
        assert not rig.logs.orphans and rig.logs.get(TP) is None


async def test_a_directory_that_dies_over_a_copy_that_comes_back_does_not_hold_up_the_start():
    disks = await disks_with_a_doomed_copy()
    sick = FaultVfs(disks[0])
    async with brokers(1, sick, FaultVfs(disks[1]), opens=False) as (rig,):
        rig.replay(topic(), partition())
        sick.inject(Fault(kinds=frozenset({"rename"})))
        with capture_logs() as told:
            await rig.parts.leftovers.resolve()
        assert "deleted_replica_not_restored" in [line["event"] for line in told]
        assert [log_dir.is_online for log_dir in rig.dirs] == [False, True]


async def test_of_two_copies_the_one_that_metadata_names_is_served():
    disks = (MemVfs(), MemVfs())
    for n in (1, 2):
        async with brokers(1, *disks, opens=False) as (rig,):
            await rig.logs.create(TP, topic().topic_id, dir_of(1, n))
            if n == 1:
                disks[0].rename("/d1/t-0", "/d1/hidden")
    disks[0].rename("/d1/hidden", "/d1/t-0")
    async with brokers(1, *disks, opens=False) as (rig,):
        assert list(rig.logs.duplicates) == [TP]
        rig.replay(topic(), partition(directories=[dir_of(1, 2)]))
        await rig.parts.leftovers.resolve()
        handle = rig.logs.get(TP)
        assert handle is not None and handle.log_dir is rig.dirs[1]


async def test_a_directory_that_dies_over_its_second_copy_does_not_hold_up_the_start():
    disks = (MemVfs(), MemVfs())
    for n in (1, 2):
        async with brokers(1, *disks, opens=False) as (rig,):
            await rig.logs.create(TP, topic().topic_id, dir_of(1, n))
            disks[0].rename("/d1/t-0", "/d1/hidden") if n == 1 else None
    disks[0].rename("/d1/hidden", "/d1/t-0")
    sick = FaultVfs(disks[0])
    async with brokers(1, sick, disks[1], opens=False) as (rig,):
        rig.replay(topic(), partition(directories=[dir_of(1, 2)]))
        sick.inject(Fault(kinds=frozenset({"rename"})))
        with capture_logs() as told:
            await rig.parts.leftovers.resolve()
        assert "replica_copy_not_removed" in [line["event"] for line in told]
        assert [log_dir.is_online for log_dir in rig.dirs] == [False, True]
        rig.parts.publisher.open()
        await rig.parts.publisher.disk_work_done()
        assert only(await rig.ask(produce(batch()), 9)).error_code == 0
