"""DescribeLogDirs (sizes, lag, states, offline directories) and AlterReplicaLogDirs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import LOST_DIR, TopicId, TopicPartition
from kraftjbod.protocol.messages import AlterReplicaLogDirsRequest, DescribeLogDirsRequest
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.replicas.stray_mark import StrayReason
from kraftjbod.storage.vfs import Space
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import batch
from tests.faults.vfs_fault import FaultVfs
from tests.unit.broker.broker_rig import (
    TP,
    BrokerRig,
    brokers,
    dir_of,
    partition,
    produce,
    topic,
)
from tests.unit.broker.gates import Gate, settle, until
from tests.unit.broker.impaired_dirs import fill, stall

KIND = DescribeLogDirsRequest
ALTER = AlterReplicaLogDirsRequest


async def test_describe_log_dirs_reports_sizes_of_online_and_error_of_offline_directory() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(), partition(1, directories=[dir_of(1, 2)]))
        records = batch(3)
        await rig.ask(produce(records, tp=TopicPartition("t", 1)), 9)
        rig.dirs[0].go_offline("test")
        rig.parts.manager.mark_offline(rig.dirs[0])
        rig.logs.drop(rig.dirs[0])
        online, offline = (await rig.ask(KIND(topics=None))).results
        assert (online.log_dir, online.error_code) == ("/d2", 0)
        (part,) = online.topics[0].partitions
        assert (part.partition_index, part.partition_size) == (1, len(records))
        assert (part.offset_lag, part.is_future_key) == (0, False)
        assert (offline.log_dir, offline.error_code) == ("/d1", ErrorCode.KAFKA_STORAGE_ERROR)
        assert (list(offline.topics), offline.total_bytes) == ([], -1)
        # An administrator needs the reason and the number of affected replicas.
        assert (offline.reason, offline.assigned_replicas) == ("test", 1)
        assert (online.reason, online.assigned_replicas) == ("", -1)
        assert (online.state, offline.state) == ("online", "offline")
        assert (online.directory_id, offline.directory_id) == (dir_of(1, 2), dir_of(1, 1))


async def test_describe_log_dirs_contains_the_broker_id_since_version_2() -> None:
    async with brokers() as (rig,):
        assert (await rig.ask(KIND(topics=None))).broker_id == 1
        assert (await rig.ask(KIND(topics=None), 1)).broker_id == -1


async def test_describe_log_dirs_reports_replicas_of_lost_directories() -> None:
    async with brokers(opens=False) as (rig,):
        rig.replay(topic(), partition(directories=[LOST_DIR], leader=-1))
        rig.parts.publisher.open()
        assert list((await rig.ask(KIND(topics=[]))).lost_replicas) == ["t-0"]
        assert list((await rig.ask(KIND(topics=[]), 1)).lost_replicas) == []


async def test_describe_log_dirs_reports_cordoned_directories() -> None:
    async with brokers() as (rig,):
        rig.dirs[1].is_cordoned = True
        answered = await rig.ask(KIND(topics=None))
        assert [result.is_cordoned for result in answered.results] == [False, True]
        older = await rig.ask(KIND(topics=None), 4)
        assert not any(result.is_cordoned for result in older.results)


async def sample(rig: BrokerRig, log_dir: LogDir, *, usable_bytes: int) -> None:
    """Let the monitor measure the directory once, at a later time than before."""
    log_dir.space = Space(total_bytes=1_000_000, usable_bytes=usable_bytes, free_inodes=9)
    began_ms = rig.around.clock.now_ms()
    await until(lambda: rig.around.clock.now_ms() > began_ms)
    await rig.parts.monitor.measure()
    rig.parts.monitor.check()


async def test_describe_log_dirs_reports_scrubs_latency_and_growth() -> None:
    async with brokers(log_dir_scrub_interval_ms="1") as (rig,):
        await rig.follow(topic(), partition())
        monitor, first = rig.parts.monitor, rig.dirs[0]
        await sample(rig, first, usable_bytes=900_000)
        await rig.ask(produce(batch(500)), 9)
        await sample(rig, first, usable_bytes=990_000)
        growth = monitor.disk_growth_bytes_per_second(first)
        log_growth = monitor.growth_bytes_per_second(first)
        until_full = monitor.seconds_until_full(first)
        assert growth < 0 < log_growth and until_full is not None
        rig.dirs[1].statistics.latency_ms = 7.5
        before = (await rig.ask(KIND(topics=None))).results
        assert [(d.last_scrub_ms, d.scrub_errors) for d in before] == [(-1, -1), (-1, -1)]
        assert [d.latency_ms for d in before] == [0, 7.5]
        assert [d.reserve_bytes for d in before] == [0, 0]
        assert [d.is_slow for d in before] == [False, False]
        assert [d.growth_bytes_per_second for d in before] == [round(growth), 0]
        assert [d.log_growth_bytes_per_second for d in before] == [round(log_growth), 0]
        assert [d.seconds_until_full for d in before] == [round(until_full), -1]
        rig.tasks.start(rig.parts.scrubs.run_scrubs(), "scrubs")
        await until(lambda: rig.parts.scrubs.by_dir)
        await until(lambda: all(s.figures.passes for s in rig.parts.scrubs.by_dir.values()))
        rig.dirs[1].go_offline("test")
        alive, dead = (await rig.ask(KIND(topics=None))).results
        assert alive.last_scrub_ms > 0
        assert (alive.scrub_errors, dead.scrub_errors, dead.latency_ms) == (0, -1, -1)


async def test_log_dir_growth_separates_logs_from_other_files_on_the_disk() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        monitor, (ours, others) = rig.parts.monitor, rig.dirs

        async def sample(used_bytes: int) -> None:
            for log_dir in rig.dirs:
                usable_bytes = (1 << 30) - used_bytes
                log_dir.space = Space(total_bytes=1 << 30, usable_bytes=usable_bytes, free_inodes=9)
            began_ms = rig.around.clock.now_ms()
            await until(lambda: rig.around.clock.now_ms() > began_ms)
            await monitor.measure()
            monitor.check()

        await sample(0)
        await rig.ask(produce(batch(500)), 9)
        await sample(0)
        assert monitor.growth_bytes_per_second(ours) > 0
        assert monitor.disk_growth_bytes_per_second(ours) == 0
        assert monitor.seconds_until_full(ours) > 0
        assert monitor.seconds_until_full(others) is None
        await sample(1 << 20)
        assert monitor.growth_bytes_per_second(others) == 0
        assert monitor.disk_growth_bytes_per_second(others) > 0
        assert monitor.seconds_until_full(others) > 0
        before = monitor.growth_bytes_per_second(ours)
        # Copies that existed when the broker started do not count as growth.
        monitor._sizes.clear()
        await sample(1 << 20)
        assert 0 < monitor.growth_bytes_per_second(ours) < before


async def test_describe_log_dirs_with_partitions_returns_only_those_partitions() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(), partition(1))
        asked = KIND(topics=[KIND.DescribableLogDirTopic(topic="t", partitions=[1])])
        first, second = (await rig.ask(asked)).results
        assert [p.partition_index for t in first.topics for p in t.partitions] == [1]
        assert list(second.topics) == []


async def test_describe_log_dirs_reports_future_copy_with_lag_and_queued_assignments() -> None:
    """Each path has its directory id, so that metadata can be compared with the disks."""
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        await rig.ask(produce(batch(3)), 9)
        rig.controller.may_answer.clear()
        assert await alter(rig, "/d2") == 0
        await until(lambda: rig.parts.assignments.queued)
        first, second = (await rig.ask(KIND(topics=None))).results
        (current,), (future,) = first.topics[0].partitions, second.topics[0].partitions
        assert (current.is_future_key, future.is_future_key) == (False, True)
        assert future.offset_lag == 0 and future.partition_size == current.partition_size
        assert (first.queued_assignments, second.queued_assignments) == (0, 1)
        rig.controller.may_answer.set()
        await rig.parts.moves.ended(TP)


# --- AlterReplicaLogDirs --------------------------------------------------------------------------


def move_to(path: str, tp: TopicPartition = TP) -> Any:
    """The request that moves one replica."""
    topic = ALTER.AlterReplicaLogDirTopic(name=tp.topic, partitions=[tp.partition])
    return ALTER(dirs=[ALTER.AlterReplicaLogDir(path=path, topics=[topic])])


async def alter(rig: BrokerRig, path: str, tp: TopicPartition = TP) -> int:
    """Request the move of one partition and return its error code."""
    (named,) = (await rig.ask(move_to(path, tp))).results
    (part,) = named.partitions
    assert (named.topic_name, part.partition_index) == tuple(tp)
    return int(part.error_code)


@pytest.mark.parametrize("by_id", [False, True])
async def test_alter_replica_log_dirs_accepts_path_or_directory_id(by_id: bool) -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        assert await alter(rig, f"dirid:{dir_of(1, 2)}" if by_id else "/d2") == 0
        await rig.parts.moves.ended(TP)
        handle = rig.logs.get(TP)
        assert handle is not None and handle.log_dir is rig.dirs[1]


async def test_alter_replica_log_dirs_checks_errors_in_kafkas_order() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(), partition(1, directories=[dir_of(1, 2)]))
        long, unknown = TopicPartition("x" * 249, 0), TopicPartition("unknown", 0)
        rig.dirs[1].go_offline("test")
        rig.parts.manager.mark_offline(rig.dirs[1])
        rig.logs.drop(rig.dirs[1])
        assert await alter(rig, "/nowhere", long) == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert await alter(rig, "/nowhere", unknown) == ErrorCode.LOG_DIR_NOT_FOUND
        assert await alter(rig, "/d2", unknown) == ErrorCode.KAFKA_STORAGE_ERROR
        other = TopicPartition("t", 1)
        assert await alter(rig, "/d1", other) == ErrorCode.KAFKA_STORAGE_ERROR
        assert await alter(rig, "/d1", unknown) == ErrorCode.REPLICA_NOT_AVAILABLE
        assert await alter(rig, "/d1") == 0, "the replica is in that directory already"


async def test_alter_replica_log_dirs_before_creation_places_the_replica_until_reset_by_any() -> (
    None
):
    async with brokers() as (rig,):
        for n in (0, 1):
            requested = TopicPartition("t", n)
            assert await alter(rig, "/d2", requested) == ErrorCode.REPLICA_NOT_AVAILABLE
        assert await alter(rig, "any") == ErrorCode.REPLICA_NOT_AVAILABLE
        await rig.follow(topic(), partition(), partition(1))
        kept, moved = (rig.logs.get(TopicPartition("t", n)) for n in (0, 1))
        assert kept is not None and kept.log_dir is rig.dirs[0]
        assert moved is not None and moved.log_dir is rig.dirs[1]


@pytest.mark.parametrize("how", ["any", "/d1"])
async def test_alter_replica_log_dirs_to_any_or_current_directory_cancels_the_move(
    how: str,
) -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        rig.controller.may_answer.clear()
        assert await alter(rig, "/d2") == 0
        await until(lambda: rig.parts.assignments.queued)
        assert await alter(rig, how) == 0
        rig.controller.may_answer.set()
        await rig.parts.moves.ended(TP)
        handle = rig.logs.get(TP)
        assert handle is not None and handle.log_dir is rig.dirs[0]
        assert rig.logs.futures() == []


async def test_alter_replica_log_dirs_during_a_swap_applies_after_the_swap() -> None:
    slow = FaultVfs(MemVfs())
    async with brokers(1, FaultVfs(MemVfs()), slow) as (rig,):
        await rig.follow(topic(), partition())
        with Gate(slow, "rename", "*-future") as gate:
            assert await alter(rig, "/d2") == 0
            await gate.reached()
            asking = asyncio.create_task(alter(rig, "/d1"))
            await settle()
            assert not asking.done()
            gate.open()
            assert await asking == 0
        await rig.parts.moves.ended(TP)
        handle = rig.logs.get(TP)
        assert handle is not None and handle.log_dir is rig.dirs[0]


async def test_alter_replica_log_dirs_to_cordoned_directory_fails_unless_it_cancels_a_move() -> (
    None
):
    """A move out of a cordoned directory can be cancelled."""
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        rig.dirs[1].is_cordoned = True
        refused = await rig.ask(move_to("/d2"))
        (part,) = refused.results[0].partitions
        assert part.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert part.error_message == "/d2 is cordoned and takes no new replicas (KIP-1066)"
        older = (await rig.ask(move_to("/d2"), 1)).results[0].partitions[0]
        assert (older.error_code, older.error_message) == (part.error_code, None)
        rig.dirs[0].is_cordoned, rig.dirs[1].is_cordoned = True, False
        rig.controller.may_answer.clear()
        assert await alter(rig, "/d2") == 0
        await until(lambda: rig.parts.assignments.queued)
        assert await alter(rig, "/d1") == 0
        rig.controller.may_answer.set()
        await rig.parts.moves.ended(TP)
        handle = rig.logs.get(TP)
        assert handle is not None and handle.log_dir is rig.dirs[0]


async def test_describe_log_dirs_reports_future_replica_before_its_directory_exists() -> None:
    """Otherwise a tool would treat the move as finished."""
    slow = FaultVfs(MemVfs())
    async with brokers(1, FaultVfs(MemVfs()), slow) as (rig,):
        await rig.follow(topic(), partition())
        await rig.ask(produce(batch(3)), 9)
        with Gate(slow, "make_dirs", "*-future") as gate:
            assert await alter(rig, "/d2") == 0
            await gate.reached()
            answered = (await rig.ask(KIND(topics=None))).results[1].topics[0].partitions
        assert [(p.partition_size, p.offset_lag, p.is_future_key) for p in answered] == [
            (0, 3, True)
        ]


async def test_impaired_directory_is_described_without_error_and_accepts_no_replica() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(), partition(1, directories=[dir_of(1, 2)]))
        await fill(rig.dirs[0])
        stall(rig.dirs[1])
        described = (await rig.ask(KIND(topics=None))).results
        assert [(d.error_code, d.state, len(d.topics)) for d in described] == [
            (0, "saturated", 1),
            (0, "stalled", 1),
        ]
        assert await alter(rig, "/d2") == ErrorCode.KAFKA_STORAGE_ERROR
        other = TopicPartition("t", 1)
        assert await alter(rig, "/d1", other) == ErrorCode.KAFKA_STORAGE_ERROR
        assert await alter(rig, "/d1") == 0, "the replica is in that directory already"


async def test_describe_log_dirs_lists_stray_replicas_on_request() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        await rig.ask(produce(batch(3)), 9)
        await rig.logs.create(TopicPartition("x", 5), TopicId(b"x" * 16), dir_of(1, 2))
        await rig.logs.rename_stray(TopicPartition("x", 5), StrayReason.TOPIC_UNKNOWN)
        assert not any(found.strays for found in (await rig.ask(KIND(topics=None))).results)
        none, one = (await rig.ask(KIND(topics=None, include_strays=True))).results
        assert list(none.strays) == []
        (stray,) = one.strays
        assert (stray.topic_name, stray.partition_index) == ("x", 5)
        assert (stray.topic_id, stray.reason) == (b"x" * 16, "topic unknown")
        assert stray.directory.endswith("-stray")
        assert stray.set_aside_ms > 0
        assert stray.size > 0
