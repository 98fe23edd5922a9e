"""``ReplicaRemovals``: complete removals, before a topic of the same name is created."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.ids import TopicId, Uuid
from kraftjbod.metadata.records import RemoveTopicRecord
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.vfs_fault import FaultVfs
from tests.unit.broker.broker_rig import TOPIC_ID, TP, brokers, partition, topic
from tests.unit.broker.gates import Gate, settle
from tests.unit.broker.impaired_dirs import answer, fill, stall


async def test_removal_of_a_replica_lasts_until_both_copies_are_removed() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        await rig.logs.create_future(TP, rig.dirs[1], Uuid(b"m" * 16))
        removals = rig.parts.removals
        assert TP not in removals and removals.under_way(TP) is None
        removals.begin_removal(TP)
        waiting = removals.under_way(TP)
        assert TP in removals and waiting is not None
        await removals.delete(TP)
        assert waiting.is_set() and TP not in removals
        assert rig.logs.handles() == [] and rig.logs.futures() == []


async def test_topic_deleted_again_during_the_first_removal_is_removed_once() -> None:
    """The future replica is removed together with its replica, and not a second time."""
    slow, other = FaultVfs(MemVfs()), TopicId(b"u" * 16)
    async with brokers(1, slow, MemVfs()) as (rig,):
        await rig.follow(topic(), partition())
        await rig.logs.create_future(TP, rig.dirs[1], Uuid(b"m" * 16))
        with capture_logs() as logged:
            with Gate(slow, "rename", "*t-0*") as gate:
                rig.replay(RemoveTopicRecord(topic_id=TOPIC_ID))
                await gate.reached()
                rig.replay(topic(topic_id=other), partition(topic_id=other))
                rig.replay(RemoveTopicRecord(topic_id=other))
            await rig.parts.publisher.disk_work_done()
        assert TP not in rig.parts.removals
        assert rig.logs.handles() == [] and rig.logs.futures() == []
        bad = ("background_job_failed", "replica_removal_failed")
        assert [line for line in logged if line["event"] in bad] == []


async def test_set_aside_renames_the_replica_directory() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        rig.parts.removals.begin_removal(TP)
        with capture_logs() as logged:
            await rig.parts.removals.set_aside(TP)
        assert [line["event"] for line in logged] == ["stray_replica_set_aside"]
        names = [entry.name for entry in rig.dirs[0].vfs.list_dir("/d1")]
        assert any(name.endswith("-stray") for name in names) and "t-0" not in names


async def test_failed_removal_of_a_future_replica_is_logged() -> None:
    slow = FaultVfs(MemVfs())
    async with brokers(1, FaultVfs(MemVfs()), slow) as (rig,):
        await rig.follow(topic(), partition())
        await rig.logs.create_future(TP, rig.dirs[1], Uuid(b"m" * 16))
        with capture_logs() as logged, Gate(slow, "rename", "*-future") as gate:
            going = rig.tasks.start(rig.parts.removals.drop_future(TP), "drop")
            await gate.reached()
            rig.dirs[1].go_offline("test")
            await going
        assert "future_replica_not_removed" in [line["event"] for line in logged]
        assert rig.logs.futures() == []


@pytest.mark.parametrize("copy", ["current", "future"])
async def test_removal_in_a_stalled_directory_waits_until_it_answers(copy: str) -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        await rig.logs.create_future(TP, rig.dirs[1], Uuid(b"m" * 16))
        removals = rig.parts.removals
        log_dir = rig.dirs[0 if copy == "current" else 1]
        stall(log_dir)
        if copy == "current":
            removals.begin_removal(TP)
            going = asyncio.create_task(removals.delete(TP))
        else:
            going = asyncio.create_task(removals.drop_future(TP))
        await settle()
        assert not going.done()
        await answer(log_dir)
        await going
        assert rig.logs.futures() == [] and len(rig.logs.handles()) == (copy == "future")


async def test_removal_in_a_full_directory_succeeds() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        await rig.logs.create_future(TP, rig.dirs[1], Uuid(b"m" * 16))
        for log_dir in rig.dirs:
            await fill(log_dir)
        rig.parts.removals.begin_removal(TP)
        await rig.parts.removals.delete(TP)
        assert rig.logs.handles() == [] and rig.logs.futures() == []
