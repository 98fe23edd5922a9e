"""Copies that may lack acknowledged records are not in sync and do not lead."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import LOST_DIR, Uuid
from kraftjbod.metadata.records import ConfigRecord, ResourceType
from kraftjbod.storage.dir_names import CLEAN_SHUTDOWN_FILE
from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import ManualClock, batch
from tests.unit.broker.broker_rig import (
    TP,
    assigned,
    brokers,
    dir_of,
    fetch,
    only,
    partition,
    produce,
    topic,
)
from tests.unit.broker.gates import until

MARKS = [f"/d{n}/{CLEAN_SHUTDOWN_FILE}" for n in (1, 2)]


@pytest.mark.parametrize("is_clean", [True, False])
async def test_replica_found_in_another_directory_is_reported_lost_after_an_unclean_stop(
    is_clean: bool,
) -> None:
    """KIP-858: the partition may have been moved while the broker was offline.

    After an unclean stop the copy may lack records, which the controller must learn.
    """
    disks = (MemVfs(), MemVfs())
    async with brokers(1, *disks) as (rig,):
        await rig.follow(topic(), partition(directories=[dir_of(1, 1)]))
        await rig.ask(produce(batch()), 9)
    if not is_clean:
        disks[0].unlink_if_exists(MARKS[0])
    async with brokers(1, *disks, opens=False) as (rig,):
        rig.replay(topic(), partition(directories=[dir_of(1, 2)]))
        with capture_logs() as logged:
            rig.parts.publisher.open()
        await rig.parts.assignments.idle()
        assert "replica_found_elsewhere" in [entry["event"] for entry in logged]
        assert assigned(rig) == ([dir_of(1, 1)] if is_clean else [LOST_DIR, dir_of(1, 1)])
        rig.replay(partition(epoch=1))
        assert only(await rig.ask(produce(batch()), 9)).base_offset == 1


async def test_doubtful_copy_leads_and_its_directory_is_closed_as_clean_only_after_its_report() -> (
    None
):
    disks = (MemVfs(), MemVfs())
    both = {"replicas": (1, 2), "isr": (1, 2), "directories": [dir_of(1, 2), dir_of(2, 1)]}
    async with brokers(1, *disks) as (rig,):
        await rig.follow(topic(), partition(**both | {"directories": [dir_of(1, 1), dir_of(2, 1)]}))
    disks[0].unlink_if_exists(MARKS[0])
    async with brokers(1, *disks, opens=False) as (rig,):
        rig.controller.may_answer.clear()
        rig.replay(topic(), partition(**both, leader=2))
        rig.parts.publisher.open()
        await until(lambda: assigned(rig) == [LOST_DIR])
        rig.replay(partition(**both, leader=1, epoch=1))
        replica = rig.parts.hosted.get(TP)
        assert replica is not None and replica.partition is not None
        assert not replica.partition.is_leader
    assert not disks[0].exists(MARKS[0])
    assert disks[1].exists(MARKS[1])
    async with brokers(1, *disks, opens=False) as (rig,):
        rig.replay(topic(), partition(**both, leader=2))
    assert not disks[0].exists(MARKS[0]), "the copy was not checked"
    async with brokers(1, *disks, opens=False) as (rig,):
        rig.replay(topic(), partition(**both, leader=2))
        rig.parts.publisher.open()
        await rig.parts.assignments.idle()
        assert assigned(rig) == [LOST_DIR, dir_of(1, 1)]
        rig.replay(partition(**both, leader=1, epoch=1))
        assert rig.parts.hosted.get(TP).partition.is_leader
    assert disks[0].exists(MARKS[0])


async def test_replica_of_accepted_move_is_reported_lost_after_unclean_stop_of_its_source() -> None:
    disks = (MemVfs(), MemVfs())
    before, after = ([dir_of(1, n), dir_of(2, 1)] for n in (1, 2))
    both = {"replicas": (1, 2), "isr": (1, 2), "leader": 2}
    async with brokers(1, *disks) as (rig,):
        await rig.follow(topic(), partition(**both, directories=before))
        replica = rig.parts.hosted.get(TP)
        assert replica is not None
        rig.controller.may_answer.clear()
        rig.parts.moves.start(replica, rig.dirs[1])
        await until(lambda: rig.parts.assignments.queued)
    disks[0].unlink_if_exists(MARKS[0])
    async with brokers(1, *disks, opens=False) as (rig,):
        rig.replay(topic(), partition(**both, directories=after))
        rig.parts.publisher.open()
        await rig.parts.assignments.idle()
        assert assigned(rig) == [LOST_DIR, dir_of(1, 2)]


@pytest.mark.parametrize("batches_left", [0, 2])
async def test_copy_without_flushed_records_is_reported_lost_despite_clean_shutdown_mark(
    batches_left: int,
) -> None:
    vfs = MemVfs()
    both = {"replicas": (1, 2), "isr": (1, 2)}
    async with brokers(1, vfs) as (rig,):
        await rig.follow(topic(), partition(**both))
        for _ in range(3):
            await rig.ask(produce(batch(), acks=1), 9)
    assert vfs.exists(MARKS[0])
    (path,) = (f"/d1/t-0/{e.name}" for e in vfs.list_dir("/d1/t-0") if e.name.endswith(".log"))
    vfs.open(path, OpenMode.READ_WRITE).truncate(batches_left * len(batch()))
    async with brokers(1, vfs, opens=False) as (rig,):
        rig.replay(topic(), partition(**both))
        with capture_logs() as logged:
            rig.parts.publisher.open()
            await until(lambda: assigned(rig) == [LOST_DIR, dir_of(1, 1)])
        assert [entry["event"] for entry in logged] == ["replica_lost_flushed_records"]


@pytest.mark.parametrize("has_heir", [True, False])
@pytest.mark.parametrize("is_clean", [True, False])
async def test_copy_without_its_oldest_segment_leaves_the_isr_unless_it_is_the_only_member(
    has_heir: bool, is_clean: bool
) -> None:
    vfs = MemVfs()
    both = {"replicas": (1, 2), "isr": (1, 2) if has_heir else (1,)}
    small = ConfigRecord(
        resource_type=ResourceType.TOPIC,
        resource_name="t",
        name="segment.bytes",
        value="1048576",
    )
    async with brokers(1, vfs) as (rig,):
        await rig.follow(topic(), small, partition(**both))
        for _ in range(3):
            await rig.ask(produce(batch(body=bytes(600_000)), acks=1), 9)
    vfs.unlink_if_exists("/d1/t-0/00000000000000000000.log")
    if not is_clean:
        vfs.unlink_if_exists(MARKS[0])
    async with brokers(1, vfs, opens=False) as (rig,):
        rig.controller.may_answer.clear()
        rig.replay(topic(), small, partition(**both))
        with capture_logs() as logged:
            rig.parts.publisher.open()
            if has_heir:
                await until(lambda: assigned(rig) == [LOST_DIR])
        replica = rig.parts.hosted.get(TP)
        assert replica is not None and replica.partition is not None
        assert replica.partition.is_leader is not has_heir
        expected = ["damaged_replica_leaves_in_sync_set"] if has_heir else []
        assert [entry["event"] for entry in logged] == expected
        if not has_heir:
            # The replica serves its records and returns an error for missing ones.
            refused = only(await rig.ask(fetch(0), 12))
            assert refused.error_code == ErrorCode.CORRUPT_MESSAGE
            assert only(await rig.ask(fetch(1), 12)).error_code == ErrorCode.NONE


async def test_directories_are_closed_as_clean_after_a_promotion_while_the_broker_stops() -> None:
    """No clean stop preceded this one, and no broker serves the copy any more."""
    disks = (MemVfs(), MemVfs())
    async with brokers(1, *disks) as (rig,):
        await rig.follow(topic(), partition())
        await rig.ask(produce(batch()), 9)
        await rig.logs.create_future(TP, rig.dirs[1], Uuid(bytes(range(16))))
        await rig.logs.promote_future(TP, LogDirExecutor(name="mover", clock=ManualClock()))
    assert [disk.exists(mark) for disk, mark in zip(disks, MARKS, strict=True)] == [True, True]
