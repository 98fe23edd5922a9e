"""Leftover copies at a start: deleted, duplicate and stray replicas, resolved by metadata."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.ids import (
    LOST_DIR,
    UNASSIGNED_DIR,
    BrokerId,
    DirectoryId,
    TopicId,
    TopicIdPartition,
    TopicPartition,
    Uuid,
)
from kraftjbod.metadata.records import ConfigRecord, PartitionRecord, Record, ResourceType
from kraftjbod.protocol.rpc_messages import AssignReplicasToDirsRequest
from kraftjbod.storage.dir_names import PARTITION_METADATA
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.replicas.stray_mark import StrayReason
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import batch
from tests.faults.vfs_fault import Fault, FaultVfs
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
from tests.unit.broker.directories.test_log_dir_state_handler import handler_of
from tests.unit.broker.impaired_dirs import fill

DOOMED = f"t-0.{Uuid(b'm' * 16).hex()}-delete"
STRAY = f"t-0.{Uuid(b's' * 16).hex()}-stray"
GONE = DirectoryId(b"g" * 16)
UNCLEAN = (
    ConfigRecord(
        resource_type=ResourceType.TOPIC,
        resource_name="t",
        name="unclean.leader.election.enable",
        value="true",
    ),
)


async def disks_with_a_doomed_copy() -> tuple[MemVfs, MemVfs]:
    """``t-0`` with one record is renamed for deletion in the first directory; no other copy
    exists."""
    disks = (MemVfs(), MemVfs())
    async with brokers(1, *disks) as (rig,):
        await rig.follow(topic(), partition())
        assert only(await rig.ask(produce(batch()), 9)).error_code == 0
    disks[0].rename("/d1/t-0", f"/d1/{DOOMED}")
    return disks


async def test_deleted_copy_is_restored_if_metadata_assigns_it() -> None:
    """The second rename of a swap is missing, and the move was reverted."""
    disks = await disks_with_a_doomed_copy()
    async with brokers(1, *disks, opens=False) as (rig,):
        rig.replay(topic(), partition())
        with capture_logs() as logged:
            await rig.parts.leftovers.resolve()
        assert "deleted_replica_restored" in [line["event"] for line in logged]
        rig.parts.publisher.open()
        await rig.parts.publisher.disk_work_done()
        handle = rig.logs.get(TP)
        assert handle is not None and handle.log_end_offset == 1


async def test_deleted_copy_is_kept_while_the_assigned_directory_is_offline() -> None:
    disks = await disks_with_a_doomed_copy()
    async with brokers(1, *disks, opens=False) as (rig,):
        rig.replay(topic(), partition(directories=[GONE]))
        with capture_logs() as logged:
            await rig.parts.leftovers.resolve()
        assert "deleted_replica_kept" in [line["event"] for line in logged]
        assert len(rig.logs.orphans) == 1 and rig.logs.get(TP) is None


@pytest.mark.parametrize(
    "records",
    [
        (),
        (topic(topic_id=TopicId(b"2" * 16)), partition(topic_id=TopicId(b"2" * 16))),
        (topic(), partition(replicas=(2,), leader=2)),
    ],
    ids=["no-topic", "another-topic", "not-here"],
)
async def test_deleted_copy_that_metadata_does_not_need_is_removed(
    records: tuple[object, ...],
) -> None:
    disks = await disks_with_a_doomed_copy()
    async with brokers(1, *disks, opens=False) as (rig,):
        rig.replay(*records)
        await rig.parts.leftovers.resolve()
        assert not rig.logs.orphans and rig.logs.get(TP) is None


async def test_deleted_copy_is_kept_if_the_assigned_directory_lacks_the_replica() -> None:
    """The copy was deleted, and the only replica stayed offline without its records."""
    disks = await disks_with_a_doomed_copy()
    async with brokers(1, *disks, opens=False) as (rig,):
        await come_up(rig, topic(), partition(directories=[dir_of(1, 2)]))
        assert reported_lost(rig)
        assert len(rig.logs.orphans) == 1 and rig.logs.get(TP) is None


@pytest.mark.parametrize("has_older_stray", [False, True])
async def test_deleted_copy_is_restored_when_its_replica_is_created(has_older_stray: bool) -> None:
    """The replica is not in sync. The restored copy only has to catch up."""
    disks = await disks_with_a_doomed_copy()
    if has_older_stray:
        async with brokers(1, *disks, opens=False) as (rig,):
            await rig.logs.create(TP, TOPIC_ID, dir_of(1, 1))
            await rig.logs.rename_stray(TP, StrayReason.NOT_A_REPLICA, None)
            disks[0].rename(rig.logs.strays.all()[0].directory, f"/d1/{STRAY}")
    says = dict(BOTH, isr=(2,), leader=2)
    async with brokers(1, *disks, opens=False) as (rig,):
        with capture_logs() as logged:
            await come_up(rig, topic(), partition(**says))
        assert "replica_made_of_deleted_copy" in [line["event"] for line in logged]
        handle = rig.logs.get(TP)
        assert handle is not None and handle.log_end_offset == 1
        assert not rig.logs.orphans and len(rig.logs.strays.all()) == has_older_stray


@pytest.mark.parametrize("impair", [None, fill])
async def test_last_replica_is_created_from_its_deleted_copy_in_any_directory(
    impair: Callable[[LogDir], Awaitable[None]] | None,
) -> None:
    """An empty log in another directory would replace the only records: the assigned directory was
    forgotten, and unclean elections are allowed."""
    disks = await disks_with_a_doomed_copy()
    async with brokers(1, *disks, opens=False) as (rig,):
        rig.parts.manager.prefer_directory(TP, dir_of(1, 2))
        if impair is not None:
            await impair(rig.dirs[0])
        rig.dirs[0].is_cordoned = True
        await come_up(rig, topic(), *UNCLEAN, partition(directories=[LOST_DIR]))
        handle = rig.logs.get(TP)
        assert handle is not None and handle.log_end_offset == 1


async def test_directory_failure_while_a_deleted_copy_is_created_leaves_the_replica_offline() -> (
    None
):
    disks = await disks_with_a_doomed_copy()
    sick = FaultVfs(disks[0])
    async with brokers(1, sick, FaultVfs(disks[1]), opens=False) as (rig,):
        rig.tasks.start(handler_of(rig).run_handler(), "handler")
        sick.inject(Fault(kinds=frozenset({"rename"})))
        await come_up(rig, topic(), *UNCLEAN, partition(directories=[LOST_DIR]))
        assert [log_dir.is_online for log_dir in rig.dirs] == [False, True]
        assert rig.logs.get(TP) is None


async def test_deleted_copy_without_a_readable_topic_id_is_not_created_again() -> None:
    disks = await disks_with_a_doomed_copy()
    async with brokers(1, *disks, opens=False) as (rig,):
        disks[0].unlink_if_exists(f"/d1/{DOOMED}/{PARTITION_METADATA}")
        await come_up(rig, topic(), *UNCLEAN, partition(directories=[LOST_DIR]))
        handle = rig.logs.get(TP)
        assert handle is not None and handle.log_end_offset == 0
        assert disks[0].is_dir(f"/d1/{DOOMED}"), "an operator may repair it"


async def test_deleted_copy_beside_a_replica_is_kept_only_for_the_same_topic() -> None:
    """Its directory returns while another topic of that name is served or being created."""
    disks = await disks_with_a_doomed_copy()
    async with brokers(1, *disks, opens=False) as (rig,):
        rig.replay(topic(), partition())
        await rig.parts.leftovers.resolve(lambda tp: tp == TP)
        assert len(rig.logs.orphans) == 1
    async with brokers(1, *disks, opens=False) as (rig,):
        other = TopicId(b"2" * 16)
        rig.replay(topic(topic_id=other), partition(topic_id=other))
        await rig.parts.leftovers.resolve(lambda tp: tp == TP)
        assert not rig.logs.orphans


async def test_directory_failure_while_a_deleted_copy_is_restored_does_not_stop_the_start() -> None:
    disks = await disks_with_a_doomed_copy()
    sick = FaultVfs(disks[0])
    async with brokers(1, sick, FaultVfs(disks[1]), opens=False) as (rig,):
        rig.replay(topic(), partition())
        sick.inject(Fault(kinds=frozenset({"rename"})))
        with capture_logs() as logged:
            await rig.parts.leftovers.resolve()
        assert "deleted_replica_not_restored" in [line["event"] for line in logged]
        assert [log_dir.is_online for log_dir in rig.dirs] == [False, True]


def take_turns(rig: BrokerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the handler of a directory failure finish before the next copy is processed."""

    def then_others(step: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[object]]:
        async def take(*about: object) -> object:
            try:
                return await step(*about)
            finally:
                for _ in range(20):
                    await asyncio.sleep(0)

        return take

    for name in ("resolve", "discard_deleted", "restore_deleted"):
        monkeypatch.setattr(rig.logs, name, then_others(getattr(rig.logs, name)))


async def test_directory_failure_while_one_deleted_copy_is_resolved_drops_its_other_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second copy was no longer registered, and the broker ended with an error."""
    for records in ((), (topic(), partition(), partition(1))):
        disks = await disks_with_a_doomed_copy()
        disks[0].make_dirs(f"/d1/{DOOMED.replace('t-0', 't-1')}")
        file = disks[0].open(f"/d1/{DOOMED}/{PARTITION_METADATA}", OpenMode.READ_WRITE)
        other = f"/d1/{DOOMED.replace('t-0', 't-1')}/{PARTITION_METADATA}"
        disks[0].open(other, OpenMode.CREATE).write_at(0, [file.read_at(0, file.size())])
        sick = FaultVfs(disks[0])
        async with brokers(1, sick, FaultVfs(disks[1]), opens=False) as (rig,):
            rig.replay(*records)
            assert len(rig.logs.orphans) == 2
            sick.inject(Fault(kinds=frozenset({"rename"})))
            rig.tasks.start(handler_of(rig).run_handler(), "handler")
            take_turns(rig, monkeypatch)
            await rig.parts.leftovers.resolve()
            assert [log_dir.is_online for log_dir in rig.dirs] == [False, True]
            assert not rig.logs.orphans


async def test_duplicate_copy_named_by_metadata_is_served() -> None:
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


async def test_duplicate_copy_of_an_earlier_topic_is_not_served() -> None:
    """The same holds for a longer log, and if metadata names neither directory."""
    disks = (MemVfs(), MemVfs())
    old = TopicId(b"o" * 16)
    async with brokers(1, *disks) as (rig,):
        await rig.follow(topic(topic_id=old), partition(topic_id=old, directories=[dir_of(1, 1)]))
        assert only(await rig.ask(produce(batch()), 9)).error_code == 0
    disks[0].rename("/d1/t-0", "/d1/hidden")
    async with brokers(1, *disks, opens=False) as (rig,):
        await rig.logs.create(TP, TOPIC_ID, dir_of(1, 2))
    disks[0].rename("/d1/hidden", "/d1/t-0")
    async with brokers(1, *disks, opens=False) as (rig,):
        assert list(rig.logs.duplicates) == [TP]
        rig.replay(topic(), partition(directories=[UNASSIGNED_DIR]))
        await rig.parts.leftovers.resolve()
        handle = rig.logs.get(TP)
        assert handle is not None and handle.topic_id == TOPIC_ID


async def disks_with_two_copies(*tps: TopicPartition) -> tuple[MemVfs, MemVfs]:
    disks = (MemVfs(), MemVfs())
    for n in (1, 2):
        async with brokers(1, *disks, opens=False) as (rig,):
            for tp in tps:
                await rig.logs.create(tp, TOPIC_ID, dir_of(1, n))
        for tp in tps if n == 1 else ():
            disks[0].rename(f"/d1/{tp}", f"/d1/hidden{tp.partition}")
    for tp in tps:
        disks[0].rename(f"/d1/hidden{tp.partition}", f"/d1/{tp}")
    return disks


async def test_directory_failure_while_a_duplicate_is_removed_does_not_stop_the_start() -> None:
    disks = await disks_with_two_copies(TP)
    sick = FaultVfs(disks[0])
    async with brokers(1, sick, disks[1], opens=False) as (rig,):
        rig.replay(topic(), partition(directories=[dir_of(1, 2)]))
        sick.inject(Fault(kinds=frozenset({"rename"})))
        with capture_logs() as logged:
            await rig.parts.leftovers.resolve()
        assert "replica_copy_not_removed" in [line["event"] for line in logged]
        assert [log_dir.is_online for log_dir in rig.dirs] == [False, True]
        rig.parts.publisher.open()
        await rig.parts.publisher.disk_work_done()
        assert only(await rig.ask(produce(batch()), 9)).error_code == 0


@pytest.mark.parametrize("sick", [1, 2])
async def test_directory_failure_while_one_duplicate_is_removed_drops_its_other_copies(
    sick: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failed directory was still chosen for the next replica, and the broker ended with an
    error."""
    tps = [TP, TopicPartition("t", 1)]
    disks = await disks_with_two_copies(*tps)
    faulty = [FaultVfs(disk) for disk in disks]
    async with brokers(1, *faulty, opens=False) as (rig,):
        named = [dir_of(1, 3 - sick), dir_of(1, sick)]
        rig.replay(topic(), *(partition(n, directories=[where]) for n, where in enumerate(named)))
        faulty[sick - 1].inject(Fault(kinds=frozenset({"rename"})))
        rig.tasks.start(handler_of(rig).run_handler(), "handler")
        take_turns(rig, monkeypatch)
        with capture_logs() as logged:
            await rig.parts.leftovers.resolve()
        assert "replica_copy_not_removed" in [line["event"] for line in logged]
        assert rig.logs.get(tps[0]) is not None
        assert len(rig.logs.duplicates[tps[1]]) == 1, "metadata names the failed directory"


OTHER_ID = TopicId(b"2" * 16)
BOTH = {"replicas": (1, 2), "directories": [dir_of(1, 1), dir_of(2, 1)]}


async def disks_with_a_stray(*reason: Record, then: Sequence[Record] = ()) -> tuple[MemVfs, MemVfs]:
    """``t-0`` with one record was set aside in the first directory because of ``reason``."""
    disks = (MemVfs(), MemVfs())
    async with brokers(1, *disks) as (rig,):
        await rig.follow(topic(), partition())
        assert only(await rig.ask(produce(batch()), 9)).error_code == 0
    async with brokers(1, *disks, opens=False) as (rig,):
        rig.replay(*reason)
        rig.parts.publisher.open()
        await rig.parts.publisher.disk_work_done()
        await rig.follow(*then)
        assert rig.logs.get(TP) is None or rig.logs.get(TP).topic_id != TOPIC_ID
        (stray,) = rig.logs.strays.strays_of(TopicIdPartition(TOPIC_ID, 0))
        assert stray.mark is not None
    # The next broker of a test draws the same random names.
    disks[0].rename(stray.directory, f"/d1/{STRAY}")
    return disks


async def come_up(rig: BrokerRig, *records: Record) -> None:
    """Start as the daemon does after it has replayed ``records``."""
    rig.replay(*records)
    await rig.parts.leftovers.resolve()
    rig.parts.publisher.open()
    await rig.parts.publisher.disk_work_done()
    await rig.parts.assignments.idle()


def reported_lost(rig: BrokerRig) -> bool:
    return any(
        directory.directory_id == LOST_DIR
        for request in rig.controller.seen
        if isinstance(request, AssignReplicasToDirsRequest)
        for directory in request.directories
    )


@pytest.mark.parametrize("namesake", [False, True])
@pytest.mark.parametrize("named", [dir_of(1, 1), UNASSIGNED_DIR])
async def test_stray_set_aside_by_other_metadata_is_restored(
    named: DirectoryId, namesake: bool
) -> None:
    """The metadata that set the replica aside did not contain its topic.

    A namesake of the topic may exist, and the controller may have lost the assignment of the
    directory.
    """
    then = (topic(topic_id=OTHER_ID), partition(topic_id=OTHER_ID)) if namesake else ()
    disks = await disks_with_a_stray(then=then)
    async with brokers(1, *disks, opens=False) as (rig,):
        with capture_logs() as logged:
            await come_up(rig, topic(), partition(directories=[named]))
        assert "stray_taken_back" in [line["event"] for line in logged]
        handle = rig.logs.get(TP)
        assert handle is not None
        assert (handle.topic_id, handle.log_end_offset) == (TOPIC_ID, 1)
        left = [stray.topic_id for stray in rig.logs.strays.all()]
        assert left == ([OTHER_ID] if namesake else [])
        assert not reported_lost(rig)


@pytest.mark.parametrize(
    ("because", "says"),
    [
        pytest.param(
            (topic(), partition(replicas=(2,), leader=2)), partition(**BOTH, leader=2), id="left"
        ),
        pytest.param(
            (), partition(**{**BOTH, "directories": [dir_of(1, 2), dir_of(2, 1)]}), id="moved"
        ),
    ],
)
async def test_stray_that_may_lack_records_is_reported_lost_before_it_is_used(
    because: tuple[Record, ...], says: Record
) -> None:
    """The replica left the broker, or metadata assigns another directory.

    It is reported as LOST first, and then restored as a follower.
    """
    disks = await disks_with_a_stray(*because)
    async with brokers(1, *disks, opens=False) as (rig,):
        await come_up(rig, topic(), says)
        assert reported_lost(rig)
        assert rig.logs.get(TP) is None
        assert isinstance(says, PartitionRecord)
        found = dataclasses.replace(
            says, isr=(BrokerId(2),), directories=(dir_of(1, 1), dir_of(2, 1))
        )
        await rig.follow(found)
        handle = rig.logs.get(TP)
        assert handle is not None
        assert handle.log_end_offset == 1


async def test_replica_with_two_strays_is_reported_lost() -> None:
    disks = await disks_with_a_stray()
    # The directory is unreadable and is set aside while the broker starts.
    disks[0].make_dirs("/d1/t-0")
    async with brokers(1, *disks, opens=False) as (rig,):
        assert len(rig.logs.strays.unreadable(TP)) == 1
        await come_up(rig, topic(), partition(**BOTH, leader=2))
        assert reported_lost(rig)
        assert rig.logs.get(TP) is None


@pytest.mark.parametrize("epoch", [0, 1])
async def test_stray_without_a_mark_is_restored_only_in_the_leader_epoch_of_its_last_record(
    epoch: int,
) -> None:
    disks = await disks_with_a_stray()
    async with brokers(1, *disks, opens=False) as (rig,):
        (stray,) = rig.logs.strays.all()
        assert stray.last_epoch == 0
    disks[0].unlink_if_exists(f"{stray.directory}/set-aside.json")
    async with brokers(1, *disks, opens=False) as (rig,):
        await come_up(rig, topic(), partition(**BOTH, leader=2, epoch=epoch))
        assert (rig.logs.get(TP) is not None) == (epoch == 0)
        assert reported_lost(rig) == (epoch != 0)


async def test_last_in_sync_replica_is_not_created_beside_an_unsuitable_stray() -> None:
    """An empty log in its place would hide the records."""
    disks = await disks_with_a_stray(topic(), partition(replicas=(2,), leader=2))
    async with brokers(1, *disks, opens=False) as (rig,):
        await come_up(rig, topic(), partition())
        assert reported_lost(rig)
        assert rig.logs.get(TP) is None
        assert len(rig.logs.strays.all()) == 1


async def test_replica_that_returns_to_its_broker_starts_from_its_stray() -> None:
    disks = await disks_with_a_stray(topic(), partition(replicas=(2,), leader=2))
    async with brokers(1, *disks, opens=False) as (rig,):
        await come_up(rig, topic(), partition(replicas=(2,), leader=2))
        assert len(rig.logs.strays.all()) == 1
        unassigned = [dir_of(2, 1), UNASSIGNED_DIR]
        back = partition(replicas=(2, 1), isr=(2,), leader=2, directories=unassigned)
        with capture_logs() as logged:
            await rig.follow(back)
        assert "replica_made_of_stray" in [line["event"] for line in logged]
        handle = rig.logs.get(TP)
        assert handle is not None
        assert handle.log_end_offset == 1
        assert not rig.logs.strays.all()


async def test_directory_failure_while_a_stray_is_restored_does_not_stop_the_start() -> None:
    disks = await disks_with_a_stray()
    sick = FaultVfs(disks[0])
    async with brokers(1, sick, disks[1], opens=False) as (rig,):
        sick.inject(Fault(kinds=frozenset({"rename"})))
        with capture_logs() as logged:
            await come_up(rig, topic(), partition(**BOTH, leader=2))
        assert "stray_not_taken_back" in [line["event"] for line in logged]
        assert [log_dir.is_online for log_dir in rig.dirs] == [False, True]
