"""``StrayRetention``: which stray replicas are purged, and which wait for an administrator."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from kraftjbod.broker.directories.stray_retention import StrayRetention
from kraftjbod.core.ids import (
    UNASSIGNED_DIR,
    DirectoryId,
    TopicIdPartition,
    TopicPartition,
    Uuid,
)
from kraftjbod.metadata.records import FeatureLevelRecord, Record, RemoveTopicRecord
from kraftjbod.storage.dir_names import STRAY_MARK, ReplicaDirKind, doomed_dir_name
from kraftjbod.storage.replicas.stray_mark import StrayReason
from kraftjbod.storage.vfs import write_atomically
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import ManualClock, batch, format_dir, headers_of
from tests.unit.broker.broker_rig import TP, BrokerRig, brokers, dir_of, partition, topic
from tests.unit.broker.impaired_dirs import answer, stall
from tests.unit.broker.replicas.test_leftover_copies import GONE, disks_with_a_doomed_copy
from tests.unit.broker.scripted_controller import RealClock

DAY_MS, WEEK_MS = 86_400_000, 7 * 86_400_000
METADATA_LOG, OTHER = Uuid(b"l" * 16), Uuid(b"o" * 16)


class Later(ManualClock):
    """The real clock, ``ms`` later; the wall clock is ``jumped_ms`` later still."""

    def __init__(self) -> None:
        super().__init__(0)
        self.jumped_ms = 0

    def now_ms(self) -> int:
        return RealClock().now_ms() + self.ms

    def wall_ms(self) -> int:
        return RealClock().wall_ms() + self.ms + self.jumped_ms


def metadata_log(log_id: Uuid) -> Record:
    return FeatureLevelRecord(name="metadata.version", feature_level=30, metadata_log_id=log_id)


def retention(rig: BrokerRig, clock: Later, retention_ms: int = WEEK_MS) -> StrayRetention:
    return StrayRetention(
        broker_id=rig.broker_id,
        logs=rig.logs,
        cache=rig.parts.cache,
        clock=clock,
        retention_ms=retention_ms,
        check_interval_ms=1,
    )


async def test_stray_of_a_deleted_topic_is_purged_after_the_retention() -> None:
    async with brokers(opens=False) as (rig,):
        # The topic was deleted while its directory was offline; the start finds the copy.
        await rig.logs.create(TP, topic().topic_id)
        rig.replay(metadata_log(METADATA_LOG))
        rig.parts.publisher.open()
        await rig.parts.publisher.disk_work_done()
        clock = Later()
        purges = retention(rig, clock)
        clock.jumped_ms = 365 * DAY_MS
        await purges.purge_due()
        assert len(rig.logs.strays.all()) == 1, "a wall clock jump must not age strays"
        clock.jumped_ms, clock.ms = 0, WEEK_MS - DAY_MS
        await purges.purge_due()
        assert len(rig.logs.strays.all()) == 1
        clock.ms = WEEK_MS
        with capture_logs() as logged:
            await purges.purge_due()
        assert "stray_purged" in [line["event"] for line in logged]
        assert not rig.logs.strays.all()
        assert not [e for e in rig.dirs[0].vfs.list_dir("/d1") if "stray" in e.name]


@pytest.mark.parametrize(
    ("set_aside_by", "reason"),
    [
        (OTHER, StrayReason.TOPIC_UNKNOWN),
        (None, StrayReason.UNREADABLE),
        (None, StrayReason.SUPERSEDED),
    ],
)
async def test_stray_not_set_aside_by_this_metadata_log_is_kept(
    set_aside_by: Uuid | None, reason: StrayReason
) -> None:
    async with brokers() as (rig,):
        await rig.logs.create(TP, topic().topic_id)
        await rig.logs.rename_stray(TP, reason, set_aside_by)
        await rig.follow(metadata_log(METADATA_LOG))
        clock = Later()
        clock.ms = 100 * WEEK_MS
        await retention(rig, clock).purge_due()
        assert len(rig.logs.strays.all()) == 1


@pytest.mark.parametrize("named_after", [METADATA_LOG, OTHER])
async def test_stray_without_a_mark_is_purged_if_its_name_has_the_current_log_id(
    named_after: Uuid,
) -> None:
    async with brokers() as (rig,):
        await rig.logs.create(TP, topic().topic_id)
        await rig.logs.rename_stray(TP, StrayReason.TOPIC_UNKNOWN, METADATA_LOG)
        (stray,) = rig.logs.strays.all()
        vfs, name = stray.log_dir.vfs, doomed_dir_name(TP, ReplicaDirKind.STRAY, named_after)
        vfs.unlink_if_exists(f"{stray.directory}/{STRAY_MARK}")
        vfs.rename(stray.directory, f"{stray.log_dir.path}/{name}")
        rig.logs.strays.forget_all_in(stray.log_dir)
        found = stray._replace(directory=f"{stray.log_dir.path}/{name}", mark=None)
        rig.logs.strays.found([found])
        await rig.follow(metadata_log(METADATA_LOG))
        clock = Later()
        purges = retention(rig, clock)
        await purges.purge_due()
        assert len(rig.logs.strays.all()) == 1, "the age starts with the new mark"
        clock.ms = WEEK_MS + DAY_MS
        await purges.purge_due()
        assert len(rig.logs.strays.all()) == (0 if named_after == METADATA_LOG else 1)


async def test_incomplete_replica_directory_is_purged_and_an_unreadable_one_is_kept() -> None:
    disk = MemVfs()
    format_dir(disk, "/d1", 1)
    for name in ("empty-0", "torn-0", "damaged-0"):
        disk.make_dirs(f"/d1/{name}")
    write_atomically(disk, "/d1/torn-0/partition.metadata.tmp", b"ver")
    write_atomically(disk, "/d1/damaged-0/00000000000000000000.log", b"record")
    async with brokers(1, disk) as (rig,):
        assert len(rig.logs.strays.all()) == 3
        clock = Later()
        purges = retention(rig, clock)
        clock.jumped_ms = 365 * DAY_MS
        await purges.purge_due()
        assert len(rig.logs.strays.all()) == 3
        clock.ms = 100 * WEEK_MS
        await purges.purge_due()
        (stray,) = rig.logs.strays.all()
        assert stray.topic_partition == TopicPartition("damaged", 0)
        assert [e.name for e in disk.list_dir("/d1") if e.is_dir] == [
            stray.directory.removeprefix("/d1/")
        ]


async def test_stray_of_a_current_replica_is_kept_until_another_copy_is_served() -> None:
    async with brokers(opens=False) as (rig,):
        await rig.logs.create(TP, topic().topic_id)
        await rig.logs.rename_stray(TP, StrayReason.NOT_A_REPLICA, METADATA_LOG)
        rig.replay(metadata_log(METADATA_LOG), topic(), partition())
        clock = Later()
        clock.ms = 100 * WEEK_MS
        await retention(rig, clock).purge_due()
        assert len(rig.logs.strays.all()) == 1
        await rig.logs.create(TP, topic().topic_id)
        await retention(rig, clock).purge_due()
        assert not rig.logs.strays.all()


async def test_orphaned_copy_is_purged_when_its_topic_is_deleted() -> None:
    """The start kept the copy because the directory that metadata names was offline."""
    disks = await disks_with_a_doomed_copy()
    async with brokers(1, *disks, opens=False) as (rig,):
        rig.replay(metadata_log(METADATA_LOG), topic(), partition(directories=[GONE]))
        await rig.parts.leftovers.resolve()
        purges = retention(rig, Later())
        await purges.purge_due()
        assert len(rig.logs.orphans) == 1
        rig.replay(RemoveTopicRecord(topic_id=topic().topic_id))
        await purges.purge_due()
        assert not rig.logs.orphans


@pytest.mark.parametrize(
    "named", [dir_of(1, 1), dir_of(1, 2), UNASSIGNED_DIR], ids=["d1", "d2", "unassigned"]
)
async def test_orphaned_copy_is_purged_when_another_copy_is_in_sync(named: DirectoryId) -> None:
    """The directory that metadata names was forgotten, and the replica was recreated."""
    ids = {"replicas": (1, 2), "leader": 2}
    disks = await disks_with_a_doomed_copy()
    async with brokers(1, *disks, opens=False) as (rig,):
        rig.replay(topic(), partition(directories=[GONE]))
        await rig.parts.leftovers.resolve()
        purges = retention(rig, Later())
        rig.replay(partition(directories=[named]))
        await purges.purge_due()
        assert len(rig.logs.orphans) == 1, "no other copy exists"
        created = await rig.logs.create(TP, topic().topic_id, dir_of(1, 2))
        rig.replay(partition(**ids, directories=[GONE, dir_of(2, 1)]))
        await purges.purge_due()
        assert len(rig.logs.orphans) == 1, "the copy in the offline directory may return"
        rig.replay(partition(**ids, isr=(2,), directories=[named, dir_of(2, 1)]))
        await purges.purge_due()
        assert len(rig.logs.orphans) == 1, "the created copy has to catch up"
        rig.replay(partition(**ids, directories=[named, dir_of(2, 1)]))
        await purges.purge_due()
        assert not rig.logs.orphans
        assert rig.logs.get(TP) is created


@pytest.mark.parametrize("epoch", [None, 0, 1])
async def test_orphaned_copy_beside_a_leader_is_purged_only_if_the_leader_has_its_records(
    epoch: int | None,
) -> None:
    """The only replica was recreated empty. The kept copy has the only acknowledged record, which a
    record in another leader epoch does not replace. With the same epoch it is the real replica,
    whose directory returned."""
    disks = await disks_with_a_doomed_copy()
    async with brokers(1, *disks, opens=False) as (rig,):
        rig.replay(metadata_log(METADATA_LOG), topic(), partition(directories=[GONE]))
        await rig.parts.leftovers.resolve()
        served = await rig.logs.create(TP, topic().topic_id, dir_of(1, 2))
        if epoch is not None:
            data = batch()
            await served.append_as_leader(data, headers_of(data), epoch)
        rig.replay(partition(directories=[dir_of(1, 2)], epoch=1))
        await retention(rig, Later()).purge_due()
        assert not rig.logs.orphans
        strays = rig.logs.strays.strays_of(TopicIdPartition(topic().topic_id, 0))
        assert len(strays) == (0 if epoch == 0 else 1)
        for stray in strays:
            assert stray.mark is not None and stray.mark.metadata_log_id == METADATA_LOG
            await rig.logs.delete(TP)
            assert (await rig.logs.strays.take_back(stray)).log_end_offset == 1


async def test_orphaned_copy_in_a_stalled_directory_stays_while_its_log_cannot_be_read() -> None:
    disks = await disks_with_a_doomed_copy()
    async with brokers(1, *disks, opens=False) as (rig,):
        rig.replay(topic(), partition(directories=[GONE]))
        await rig.parts.leftovers.resolve()
        await rig.logs.create(TP, topic().topic_id, dir_of(1, 2))
        rig.replay(partition(directories=[dir_of(1, 2)]))
        stall(rig.dirs[0])
        await retention(rig, Later()).purge_due()
        assert len(rig.logs.orphans) == 1
        await answer(rig.dirs[0])


async def test_orphaned_copy_removed_by_an_operator_becomes_no_stray() -> None:
    disks = await disks_with_a_doomed_copy()
    async with brokers(1, *disks, opens=False) as (rig,):
        rig.replay(topic(), partition(directories=[GONE]))
        await rig.parts.leftovers.resolve()
        (orphan,) = rig.logs.orphans
        orphan.log_dir.vfs.remove_tree(orphan.directory)
        await rig.logs.keep_as_stray(orphan, METADATA_LOG)
        assert not rig.logs.orphans and not rig.logs.strays.all()
        assert orphan.log_dir.is_online


async def test_orphaned_copy_is_purged_when_its_replica_leaves_the_broker() -> None:
    """The replica was reassigned while the directory that metadata names was offline."""
    disks = await disks_with_a_doomed_copy()
    async with brokers(1, *disks, opens=False) as (rig,):
        rig.replay(topic(), partition(directories=[GONE]))
        await rig.parts.leftovers.resolve()
        purges = retention(rig, Later())
        rig.replay(partition(replicas=(2,), leader=2))
        await purges.purge_due()
        assert not rig.logs.orphans


async def test_stray_retention_of_minus_one_keeps_strays() -> None:
    async with brokers(opens=False) as (rig,):
        await rig.logs.create(TP, topic().topic_id)
        await rig.logs.rename_stray(TP, StrayReason.TOPIC_UNKNOWN, METADATA_LOG)
        rig.replay(metadata_log(METADATA_LOG))
        clock = Later()
        clock.ms = 100 * WEEK_MS
        await retention(rig, clock, -1).purge_due()
        assert len(rig.logs.strays.all()) == 1


async def test_stray_retention_of_minus_one_purges_orphaned_copies() -> None:
    disks = await disks_with_a_doomed_copy()
    async with brokers(1, *disks, opens=False) as (rig,):
        rig.replay(metadata_log(METADATA_LOG))
        assert len(rig.logs.orphans) == 1
        rig.tasks.start(retention(rig, Later(), -1).run_retention(), "retention")
        async with asyncio.timeout(30):
            while rig.logs.orphans:
                await asyncio.sleep(0.001)
