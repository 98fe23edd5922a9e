"""``ReplicaMaker``: where logs are created while directories are full, stalled or failed."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from kraftjbod.broker.metadata import metadata_publisher
from kraftjbod.broker.partitions.replica_states import ReplicaState
from kraftjbod.broker.replicas.replica_changes import ReplicaChanges
from kraftjbod.core.ids import UNASSIGNED_DIR, TopicId
from kraftjbod.metadata.records import RemoveTopicRecord
from kraftjbod.storage.log.log_handle import LogHandle
from tests.unit.broker.broker_rig import TP, BrokerRig, brokers, dir_of, partition, topic
from tests.unit.broker.gates import until
from tests.unit.broker.impaired_dirs import answer, fill, stall


def state_of(rig: BrokerRig) -> ReplicaState:
    replica = rig.parts.hosted.get(TP)
    assert replica is not None
    return replica.state


def place_of(rig: BrokerRig) -> str:
    handle = rig.logs.get(TP)
    assert handle is not None
    return handle.log_dir.path


async def test_unassigned_replica_is_created_in_a_directory_with_space() -> None:
    async with brokers() as (rig,):
        await fill(rig.dirs[0])
        await rig.follow(topic(), partition(directories=[UNASSIGNED_DIR]))
        assert (place_of(rig), state_of(rig)) == ("/d2", ReplicaState.ONLINE)


async def test_replica_without_a_usable_directory_is_created_in_the_first_that_recovers() -> None:
    async with brokers() as (rig,):
        rig.tasks.start(rig.parts.state_handler.run_handler(), "handler")
        await fill(rig.dirs[0])
        stall(rig.dirs[1])
        with capture_logs() as logged:
            await rig.follow(topic(), partition(directories=[UNASSIGNED_DIR]))
        waits = [line for line in logged if line["event"] == "replica_awaits_impaired_dir"]
        assert len(waits) == 1 and "/d1 is saturated" in waits[0]["reason"]
        assert state_of(rig) is ReplicaState.HELD_BACK
        await answer(rig.dirs[1])
        await until(lambda: state_of(rig) is ReplicaState.ONLINE)
        assert place_of(rig) == "/d2"


async def test_preferred_directory_without_space_is_ignored() -> None:
    async with brokers() as (rig,):
        rig.parts.manager.prefer_directory(TP, dir_of(1, 2))
        await fill(rig.dirs[1])
        await rig.follow(topic(), partition(directories=[UNASSIGNED_DIR]))
        assert place_of(rig) == "/d1"


@pytest.mark.parametrize("where", ["preferred", "named"])
async def test_replica_is_not_created_in_a_cordoned_directory_chosen_earlier(where: str) -> None:
    """KIP-1066: a cordoned directory takes no new replicas, also if it was chosen before."""
    async with brokers() as (rig,):
        assigned_dir = UNASSIGNED_DIR if where == "preferred" else dir_of(1, 2)
        if where == "preferred":
            rig.parts.manager.prefer_directory(TP, dir_of(1, 2))
        rig.dirs[1].is_cordoned = True
        await rig.follow(topic(), partition(directories=[assigned_dir]))
        await rig.parts.assignments.idle()
        assert place_of(rig) == "/d1"


async def test_replica_waits_while_each_directory_is_cordoned_or_full() -> None:
    """KIP-1066: a cordoned directory takes no new replicas, also if it is the last one."""
    async with brokers() as (rig,):
        await fill(rig.dirs[0])
        rig.dirs[1].is_cordoned = True
        await rig.follow(topic(), partition(directories=[dir_of(1, 2)]))
        assert state_of(rig) is ReplicaState.HELD_BACK
        rig.dirs[1].is_cordoned = False
        rig.parts.publisher.reconcile_again()
        await until(lambda: state_of(rig) is ReplicaState.ONLINE)
        assert place_of(rig) == "/d2"


async def test_replica_waits_while_all_directories_are_cordoned() -> None:
    """The controller placed the replica before it knew about the cordons."""
    async with brokers() as (rig,):
        for log_dir in rig.dirs:
            log_dir.is_cordoned = True
        await rig.follow(topic(), partition())
        assert state_of(rig) is ReplicaState.HELD_BACK


async def test_waiting_replicas_are_reconciled_in_slices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A directory can return with thousands of replicas. Between two slices another directory
    returns, and a topic is deleted: a log created for it would be a stray."""
    monkeypatch.setattr(metadata_publisher, "RECONCILED_AT_ONCE", 2)
    deleted = TopicId(b"u" * 16)
    async with brokers() as (rig,):
        for log_dir in rig.dirs:
            log_dir.is_cordoned = True
        await rig.follow(topic(), *(partition(index) for index in range(4)))
        await rig.follow(topic("u", topic_id=deleted), partition(topic_id=deleted))
        replicas = list(rig.parts.hosted)
        assert [r.state for r in replicas] == [ReplicaState.HELD_BACK] * 5
        for log_dir in rig.dirs:
            log_dir.is_cordoned = False
        rig.parts.publisher.reconcile_again()
        assert [r.state for r in replicas].count(ReplicaState.HELD_BACK) == 3
        rig.parts.publisher.reconcile_again()
        assert [r.state for r in replicas].count(ReplicaState.HELD_BACK) == 1
        await rig.follow(RemoveTopicRecord(topic_id=deleted))
        await until(lambda: {r.state for r in rig.parts.hosted} == {ReplicaState.ONLINE})
        assert len(rig.parts.hosted) == 4
        await rig.parts.publisher.disk_work_done()
        assert {handle.topic_id for handle in rig.logs.handles()} == {topic().topic_id}
        # A slice skips replicas that an earlier slice, or metadata, gave a log.
        roles = [replica.partition for replica in rig.parts.hosted]
        outdated = [(replica, ReplicaState.HELD_BACK) for replica in replicas]
        assert rig.parts.manager.reconcile_waiting(outdated) == ReplicaChanges()
        assert [replica.partition for replica in rig.parts.hosted] == roles


async def test_replica_waiting_for_space_is_created_elsewhere_when_the_directory_fails() -> None:
    async with brokers() as (rig,):
        rig.tasks.start(rig.parts.state_handler.run_handler(), "handler")
        await fill(rig.dirs[0])
        await rig.follow(topic(), partition())
        assert state_of(rig) is ReplicaState.HELD_BACK
        rig.dirs[0].go_offline("test")
        await until(lambda: state_of(rig) is ReplicaState.ONLINE)
        assert place_of(rig) == "/d2"


async def test_creation_refused_by_a_directory_that_recovered_meanwhile_is_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise no event would trigger a retry, because the recovery was already reported."""
    async with brokers() as (rig,):
        create, refusals = rig.logs.create, [rig.dirs[0].impaired_error()]

        async def late(*wanted: Any) -> LogHandle:
            if refusals:
                raise refusals.pop()
            return await create(*wanted)

        monkeypatch.setattr(rig.logs, "create", late)
        await rig.follow(topic(), partition())
        assert refusals == [] and state_of(rig) is ReplicaState.ONLINE
