"""``ReplicaManager``: replicas follow metadata, and end when their directory fails."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from kraftjbod.broker.replicas import replica_manager
from kraftjbod.broker.replicas.directory_reconcile import reconcile
from kraftjbod.broker.replicas.replica_maker import MAX_PREFERRED_DIRECTORIES
from kraftjbod.core.errors import ErrorCode, OverloadedError
from kraftjbod.core.ids import (
    LOST_DIR,
    MIGRATING_DIR,
    UNASSIGNED_DIR,
    DirectoryId,
    TopicId,
    TopicPartition,
)
from kraftjbod.metadata.records import (
    ConfigRecord,
    FeatureLevelRecord,
    RemoveTopicRecord,
    ResourceType,
)
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import batch
from tests.faults.vfs_fault import Fault, FaultVfs
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
from tests.unit.broker.gates import Gate, settle, until
from tests.unit.broker.impaired_dirs import fill, heal

UNKNOWN_DIR = DirectoryId(b"u" * 16)


async def test_replica_is_created_in_the_assigned_directory() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(directories=[dir_of(1, 2)]))
        handle = rig.logs.get(TP)
        assert handle is not None and handle.log_dir is rig.dirs[1]
        await rig.parts.assignments.idle()
        assert assigned(rig) == []


async def test_replica_without_a_directory_is_placed_and_reported() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(directories=[UNASSIGNED_DIR]))
        handle = rig.logs.get(TP)
        assert handle is not None
        await rig.parts.assignments.idle()
        assert assigned(rig) == [handle.log_dir.directory_id]


async def test_assignments_wait_until_the_level_and_the_registration_have_directories() -> None:
    """KIP-858, "Migration": assignments are neither sent too early nor forgotten."""
    async with brokers() as (rig,):
        level = FeatureLevelRecord(name="metadata.version", feature_level=14)
        await rig.follow(level, topic(), partition(directories=[MIGRATING_DIR]))
        handle = rig.logs.get(TP)
        assert handle is not None
        await rig.follow(FeatureLevelRecord(name="metadata.version", feature_level=17))
        assert rig.parts.assignments.queued == 0
        await rig.follow(rig.registration())
        await rig.parts.assignments.idle()
        assert assigned(rig) == [handle.log_dir.directory_id]
        await rig.follow(rig.registration(fenced=True))
        assert len(assigned(rig)) == 1


async def test_returned_directory_reconciles_no_replica_in_its_assigned_directory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All replicas of a broker are looked at in one event loop iteration."""
    reconciled: list[object] = []

    def counting(*args: Any) -> Any:
        reconciled.append(args)
        return reconcile(*args)

    async with brokers() as (rig,):
        await rig.follow(topic(), *(partition(index) for index in range(5)))
        monkeypatch.setattr(replica_manager, "reconcile", counting)
        rig.parts.publisher.reconcile_again(offline_too=True)
        assert not reconciled
        replica = rig.parts.hosted.get(TP)
        assert replica is not None
        replica.registration = dataclasses.replace(
            replica.registration, directories=(UNASSIGNED_DIR,)
        )
        rig.parts.publisher.reconcile_again(offline_too=True)
        assert len(reconciled) == 1
        await rig.parts.assignments.idle()
        assert assigned(rig) == [dir_of(1, 1)]


async def test_deleted_topic_can_be_recreated_immediately() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        await rig.ask(produce(batch()), 9)
        again = TopicId(b"2" * 16)
        await rig.follow(
            RemoveTopicRecord(topic_id=topic().topic_id),
            topic(topic_id=again),
            partition(topic_id=again),
        )
        handle = rig.logs.get(TP)
        assert handle is not None
        assert (handle.topic_id, handle.log_end_offset) == (again, 0)


async def test_topic_config_applies_to_the_next_request() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        await rig.follow(
            ConfigRecord(
                resource_type=ResourceType.TOPIC,
                resource_name="t",
                name="max.message.bytes",
                value="10",
            )
        )
        assert only(await rig.ask(produce(batch()), 9)).error_code == ErrorCode.MESSAGE_TOO_LARGE


async def test_failed_directory_fails_its_replicas_and_their_waiting_requests() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2)))
        producing = asyncio.create_task(rig.ask(produce(batch(), timeout_ms=60_000), 9))
        fetching = asyncio.create_task(rig.ask(fetch(max_wait_ms=60_000), 12))
        while not (len(rig.parts.hosted.produces) and len(rig.parts.hosted.consumer_fetches)):
            await asyncio.sleep(0.001)
        rig.dirs[0].go_offline("test")
        lost = rig.parts.manager.mark_offline(rig.dirs[0])
        assert [replica.topic_partition for replica in lost] == [TP]
        assert rig.parts.manager.leads_in(dir_of(1, 1), {TP})
        assert only(await producing).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert only(await fetching).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert only(await rig.ask(produce(batch()), 9)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        # Some clients (aiokafka) do not know storage errors, but all clients look for a new leader.
        await rig.follow(partition(replicas=(1, 2), leader=2, epoch=1))
        for asked, version in ((produce(batch()), 9), (fetch(), 12)):
            answered = only(await rig.ask(asked, version))
            assert answered.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_leads_in_failed_directory_is_evaluated_when_it_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """KIP-858, log.dir.failure.timeout.ms: a controller without the report assigns more leaders.

    A replica that was recreated in another directory is led there.
    """
    async with brokers() as (rig,):
        reported: list[Callable[[], bool]] = []
        monkeypatch.setattr(
            rig.parts.lifecycle, "report_offline", lambda _, leads, **__: reported.append(leads)
        )
        rig.tasks.start(rig.parts.state_handler.run_handler(), "handler")
        await rig.follow(topic(), partition(replicas=(1, 2), leader=2))
        await fill(rig.dirs[1])
        rig.dirs[0].go_offline("test")
        await until(lambda: bool(reported))
        (leads,) = reported
        assert not leads()
        await rig.follow(partition(1))
        assert leads(), "metadata lets the replica lead without a log"
        await heal(rig.dirs[1])
        recreated = rig.parts.hosted.require(TP._replace(partition=1))
        await until(lambda: recreated.handle is not None)
        assert not leads(), "the replica leads in another directory"
        await rig.follow(partition(replicas=(1, 2), epoch=1))
        assert leads(), "the replica became leader"


async def test_metadata_before_the_failure_is_handled_does_not_use_the_failed_replica() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2)))
        rig.dirs[0].go_offline("test")
        await rig.follow(partition(replicas=(1, 2), epoch=1))
        rig.parts.manager.mark_offline(rig.dirs[0])
        assert only(await rig.ask(produce(batch()), 9)).error_code == ErrorCode.KAFKA_STORAGE_ERROR


async def test_replica_creation_continues_elsewhere_when_its_directory_fails() -> None:
    sick = FaultVfs(MemVfs())
    async with brokers(1, sick, MemVfs()) as (rig,):
        sick.inject(Fault(path="*/t-0*"))
        with capture_logs() as logged:
            await rig.follow(topic(), partition(directories=[UNASSIGNED_DIR]))
            if rig.dirs[0].is_online:
                return  # The other directory had more free space.
        handle = rig.logs.get(TP)
        assert handle is not None and handle.log_dir is rig.dirs[1]
        assert "replica_creation_failed" in [line["event"] for line in logged]


async def test_replica_that_may_be_in_an_offline_directory_is_not_recreated() -> None:
    """KIP-858: healthy disks must not fill with copies of the replicas of the failed disk."""
    disks = (MemVfs(), MemVfs())
    async with brokers(1, *disks) as (rig,):
        await rig.follow(topic(), partition(directories=[dir_of(1, 1)]))
    async with brokers(1, *disks, opens=False) as (rig,):
        rig.replay(topic(), partition(directories=[UNKNOWN_DIR]))
        rig.dirs[0].go_offline("test")
        rig.logs.drop(rig.dirs[0])
        with capture_logs() as logged:
            rig.parts.publisher.open()
            await rig.parts.publisher.disk_work_done()
        assert rig.logs.get(TP) is None
        assert "replica_awaits_offline_dir" in [line["event"] for line in logged]
        assert only(await rig.ask(produce(batch()), 9)).error_code == ErrorCode.KAFKA_STORAGE_ERROR


async def test_in_sync_replica_without_a_directory_is_reported_lost() -> None:
    async with brokers(opens=False) as (rig,):
        rig.replay(topic(), partition(directories=[UNASSIGNED_DIR]))
        rig.dirs[0].go_offline("test")
        rig.parts.publisher.open()
        await rig.parts.assignments.idle()
        assert assigned(rig) == [LOST_DIR]


async def test_copies_without_metadata_are_set_aside() -> None:
    disks = (MemVfs(), MemVfs())
    async with brokers(1, *disks) as (rig,):
        await rig.follow(topic(), partition(directories=[dir_of(1, 1)]))
    with capture_logs() as logged:
        async with brokers(1, *disks) as (rig,):
            await rig.parts.publisher.disk_work_done()
            assert rig.logs.handles() == []
    assert "stray_replica_set_aside" in [line["event"] for line in logged]


async def test_removal_in_an_offline_directory_is_logged_as_failed() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        rig.dirs[0].go_offline("test")
        with capture_logs() as logged:
            await rig.follow(RemoveTopicRecord(topic_id=topic().topic_id))
        assert "replica_removal_failed" in [line["event"] for line in logged]


async def test_topic_recreated_while_the_old_log_is_created_gets_its_own_log() -> None:
    slow = FaultVfs(MemVfs())
    again = TopicId(b"2" * 16)
    async with brokers(1, slow, MemVfs()) as (rig,):
        with Gate(slow, "make_dirs", "*/t-0*") as gate:
            rig.replay(topic(), partition())
            await gate.reached()
            rig.replay(RemoveTopicRecord(topic_id=topic().topic_id))
            rig.replay(topic(topic_id=again), partition(topic_id=again))
            gate.open()
            await rig.parts.publisher.disk_work_done()
        handle = rig.logs.get(TP)
        assert handle is not None and handle.topic_id == again
        assert only(await rig.ask(produce(batch()), 9)).error_code == 0


async def test_topic_deleted_while_its_log_is_created_leaves_no_files() -> None:
    slow = FaultVfs(MemVfs())
    async with brokers(1, slow, MemVfs()) as (rig,):
        with Gate(slow, "make_dirs", "*/t-0*") as gate:
            rig.replay(topic(), partition())
            await gate.reached()
            rig.replay(RemoveTopicRecord(topic_id=topic().topic_id))
            gate.open()
            await rig.parts.publisher.disk_work_done()
        assert rig.logs.handles() == []
        assert "t-0" not in [entry.name for entry in slow.list_dir("/d1")]


async def test_removal_overtaken_by_a_directory_failure_is_logged_as_failed() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        with capture_logs() as logged:
            rig.replay(RemoveTopicRecord(topic_id=topic().topic_id))
            rig.dirs[0].go_offline("test")
            rig.parts.manager.mark_offline(rig.dirs[0])
            rig.logs.drop(rig.dirs[0])
            await rig.parts.publisher.disk_work_done()
        assert "replica_removal_failed" in [line["event"] for line in logged]


async def test_removal_waits_while_the_directory_queue_is_full() -> None:
    slow = FaultVfs(MemVfs())
    async with brokers(1, slow, MemVfs()) as (rig,):
        await rig.follow(topic(), partition())
        log_dir = rig.dirs[0]
        with Gate(slow, "exists") as gate:
            queued = [log_dir.submit(OpKind.READ, lambda: slow.exists("/d1"))]
            await gate.reached()
            with contextlib.suppress(OverloadedError):
                while True:
                    queued.append(log_dir.submit(OpKind.READ, bool))
            rig.replay(RemoveTopicRecord(topic_id=topic().topic_id))
            await asyncio.sleep(0)
            gate.open()
            await rig.parts.publisher.disk_work_done()
            await asyncio.gather(*queued)
        assert rig.logs.handles() == []
        assert "t-0" not in [entry.name for entry in slow.list_dir("/d1")]


async def test_copy_of_a_deleted_topic_with_the_same_name_is_set_aside_at_start() -> None:
    """The directory was offline when the topic was deleted and created again."""
    disks = (MemVfs(), MemVfs())
    async with brokers(1, *disks) as (rig,):
        await rig.follow(topic(), partition())
        await rig.ask(produce(batch()), 9)
    again = TopicId(b"2" * 16)
    others = {"replicas": (1, 2), "isr": [2], "leader": 2}
    async with brokers(1, *disks, opens=False) as (rig,):
        rig.replay(topic(topic_id=again), partition(topic_id=again, **others))
        with capture_logs() as logged:
            rig.parts.publisher.open()
            await rig.parts.publisher.disk_work_done()
        assert "stray_replica_set_aside" in [line["event"] for line in logged]
        handle = rig.logs.get(TP)
        assert handle is not None
        assert (handle.topic_id, handle.log_end_offset) == (again, 0)
        names = [entry.name for entry in disks[0].list_dir("/d1")]
        assert [name.endswith("-stray") for name in names if name.startswith("t-0.")] == [True]


async def test_copy_in_a_directory_that_just_failed_does_not_block_others() -> None:
    """The failure is not handled yet, so that the registry still contains the failed log."""
    disks = (MemVfs(), MemVfs())
    where = [dir_of(2, 1), UNASSIGNED_DIR]
    async with brokers(1, *disks) as (rig,):
        await rig.follow(topic(), partition())
    async with brokers(1, *disks, opens=False) as (rig,):
        rig.replay(topic(), partition(replicas=(2, 1), isr=[2], leader=2, directories=where))
        rig.dirs[0].go_offline("test")
        rig.parts.publisher.open()
        await settle()
        rig.logs.drop(rig.dirs[0])
        await until(lambda: rig.logs.get(TP) is not None)
        handle = rig.logs.get(TP)
        assert handle is not None and handle.log_dir is rig.dirs[1]


# --- an empty log is not in sync ------------------------------------------------------------------


def events(reported: list[Any]) -> list[str]:
    return [line["event"] for line in reported]


@pytest.mark.parametrize(
    "counted",
    [
        {"isr": (1, 2), "leader": 2},
        {"isr": (), "elr": (2,), "last_known_elr": (1,), "leader": -1},
    ],
    ids=["in sync", "last known leader"],
)
async def test_replica_of_a_replaced_disk_is_reported_lost_before_it_is_recreated(
    counted: dict[str, Any],
) -> None:
    """The replica must not be elected before it has fetched records."""
    both = {"replicas": (1, 2), "directories": [UNKNOWN_DIR, dir_of(2, 1)], "leader": 2}
    async with brokers(opens=False) as (rig,):
        rig.replay(topic(), dataclasses.replace(partition(**both), **counted))
        with capture_logs() as logged:
            rig.parts.publisher.open()
            await rig.parts.assignments.idle()
        assert assigned(rig) == [LOST_DIR] and events(logged) == ["replica_reported_lost"]
        assert rig.logs.get(TP) is None
        # The controller removed the replica from the ISR.
        both["directories"] = [LOST_DIR, dir_of(2, 1)]
        await rig.follow(partition(isr=(2,), epoch=1, **both))
        await rig.parts.assignments.idle()
        handle = rig.logs.get(TP)
        assert handle is not None
        assert assigned(rig) == [LOST_DIR, handle.log_dir.directory_id]
        replica = rig.parts.hosted.get(TP)
        assert replica is not None and not replica.is_offline


async def test_last_in_sync_replica_of_a_replaced_disk_waits_for_unclean_election() -> None:
    """No leader is better than an empty one."""
    async with brokers(opens=False) as (rig,):
        rig.replay(topic(), partition(directories=[LOST_DIR], leader=-1))
        with capture_logs() as logged:
            rig.parts.publisher.open()
            await rig.follow(partition(directories=[LOST_DIR], leader=-1, epoch=1))
        assert events(logged) == ["last_in_sync_replica_lost"], "logged once"
        assert rig.logs.get(TP) is None and assigned(rig) == []
        # The operator allows an unclean leader election.
        await rig.follow(
            ConfigRecord(
                resource_type=ResourceType.TOPIC,
                resource_name="t",
                name="unclean.leader.election.enable",
                value="true",
            )
        )
        await rig.parts.assignments.idle()
        handle = rig.logs.get(TP)
        assert handle is not None and assigned(rig) == [handle.log_dir.directory_id]


async def test_in_sync_replica_missing_on_a_healthy_disk_is_not_recreated_empty() -> None:
    """A person or a file system check removed its directory."""
    disks = (MemVfs(), MemVfs())
    async with brokers(1, *disks) as (rig,):
        await rig.follow(topic(), partition())
        await rig.ask(produce(batch()), 9)
    disks[0].remove_tree("/d1/t-0")
    async with brokers(1, *disks, opens=False) as (rig,):
        rig.replay(topic(), partition())
        rig.parts.publisher.open()
        await rig.parts.assignments.idle()
        assert assigned(rig) == [LOST_DIR] and rig.logs.get(TP) is None
        with capture_logs() as logged:
            await rig.follow(partition(directories=[LOST_DIR], leader=-1, epoch=1))
        assert events(logged) == ["last_in_sync_replica_lost"]
        assert rig.logs.get(TP) is None


async def test_replica_never_created_before_a_crash_is_created_at_the_next_start() -> None:
    """The replica has no records, so that no permission is needed although it is the only one."""
    for directory in (dir_of(1, 1), UNASSIGNED_DIR):
        async with brokers(opens=False) as (rig,):
            rig.replay(topic(), partition(directories=[directory]))
            rig.parts.publisher.open()
            await rig.parts.publisher.disk_work_done()
            handle = rig.logs.get(TP)
            assert handle is not None and LOST_DIR not in assigned(rig)


async def test_replica_added_by_a_reassignment_is_created_despite_an_offline_directory() -> None:
    """An offline directory cannot hold a replica that this broker never had."""
    async with brokers() as (rig,):
        elsewhere = partition(replicas=(2,), leader=2)
        await rig.follow(topic(), elsewhere)
        rig.dirs[0].go_offline("test")
        added = partition(
            replicas=(2, 1), isr=(2,), leader=2, epoch=1,
            directories=[dir_of(2, 1), DirectoryId(b"q" * 16)],
        )  # fmt: skip
        await rig.follow(added)
        handle = rig.logs.get(TP)
        assert handle is not None and handle.log_dir is rig.dirs[1]


# --- preferred directories -----------------------------------------------------------------------


async def test_replica_is_created_in_its_preferred_directory() -> None:
    async with brokers() as (rig,):
        rig.parts.manager.prefer_directory(TP, dir_of(1, 2))
        await rig.follow(topic(), partition(directories=[dir_of(1, 1)]))
        await rig.parts.assignments.idle()
        handle = rig.logs.get(TP)
        assert handle is not None and handle.log_dir is rig.dirs[1]
        assert assigned(rig) == [dir_of(1, 2)]


async def test_preferred_directory_that_is_reset_or_unknown_is_ignored() -> None:
    async with brokers() as (rig,):
        rig.parts.manager.prefer_directory(TP, dir_of(1, 2))
        rig.parts.manager.prefer_directory(TP, None)
        other = TopicPartition("t", 1)
        rig.parts.manager.prefer_directory(other, UNKNOWN_DIR)
        both = [partition(n, directories=[dir_of(1, 1)]) for n in (0, 1)]
        await rig.follow(topic(), *both)
        assert {handle.log_dir for handle in rig.logs.handles()} == {rig.dirs[0]}


async def test_preferred_directories_are_limited_and_the_oldest_are_dropped() -> None:
    async with brokers() as (rig,):
        for n in range(MAX_PREFERRED_DIRECTORIES + 1):
            rig.parts.manager.prefer_directory(TopicPartition("t", n), dir_of(1, 2))
        both = [partition(n, directories=[dir_of(1, 1)]) for n in (0, 1)]
        await rig.follow(topic(), *both)
        first, second = (rig.logs.get(TopicPartition("t", n)) for n in (0, 1))
        assert first is not None and first.log_dir is rig.dirs[0]
        assert second is not None and second.log_dir is rig.dirs[1]


# --- the end of a move ---------------------------------------------------------------------------


async def test_promoted_copy_is_served_after_its_old_directory_failed() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        replica = rig.parts.hosted.get(TP)
        assert replica is not None and replica.handle is not None
        handle = replica.handle
        rig.parts.manager.mark_offline(handle.log_dir)
        assert replica.is_offline
        rig.parts.manager.promoted(replica, handle)
        assert not replica.is_offline
        assert only(await rig.ask(produce(batch()), 9)).error_code == 0


async def test_promoted_copy_in_a_failed_directory_is_offline() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        replica = rig.parts.hosted.get(TP)
        assert replica is not None and replica.handle is not None
        rig.dirs[0].go_offline("test")
        rig.parts.manager.promoted(replica, replica.handle)
        assert replica.is_offline and replica.handle is None


async def test_promoted_copy_of_a_deleted_topic_is_ignored() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        replica = rig.parts.hosted.get(TP)
        assert replica is not None and replica.handle is not None
        handle = replica.handle
        await rig.follow(RemoveTopicRecord(topic_id=topic().topic_id))
        rig.parts.manager.promoted(replica, handle)
        assert rig.parts.hosted.get(TP) is None


async def test_replica_that_returns_while_its_move_is_cleaned_up_is_recreated() -> None:
    """The future replica of the former incarnation must not be adopted."""
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        await rig.ask(produce(batch()), 9)
        replica = rig.parts.hosted.get(TP)
        assert replica is not None
        rig.controller.may_answer.clear()
        rig.parts.moves.start(replica, rig.dirs[1])
        await until(lambda: rig.parts.assignments.queued)
        rig.replay(partition(replicas=(2,), leader=2, epoch=1))
        rig.replay(partition(replicas=(2, 1), isr=(2,), leader=2, epoch=2))
        rig.controller.may_answer.set()
        await rig.parts.publisher.disk_work_done()
        handle = rig.logs.get(TP)
        assert handle is not None and handle.log_end_offset == 0
        assert rig.logs.futures() == [] and rig.parts.moves.moves() == []
