"""``AlterLogDirsManager`` on memory disks with a scripted controller: moves and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
from collections.abc import AsyncIterator, Callable
from errno import EMFILE
from typing import Any

import pytest
from structlog.testing import capture_logs

from kraftjbod.broker.moves.replica_move_state import MovePhase
from kraftjbod.broker.replicas.hosted_replicas import HostedReplica
from kraftjbod.cli.clients.cluster_admin import create_topic
from kraftjbod.cli.clients.replica_admin import alter_replica_log_dirs
from kraftjbod.core.errors import ErrorCode, KafkaStorageError
from kraftjbod.core.ids import LOST_DIR, UNASSIGNED_DIR, TopicId, TopicPartition, Uuid
from kraftjbod.metadata.records import ConfigRecord, RemoveTopicRecord, ResourceType
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.moves.future_replica import CopyStep, FutureReplica
from kraftjbod.testing.simulation import SimulatedCluster
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import batch
from tests.faults.vfs_fault import Fault, FaultVfs
from tests.unit.broker.broker_rig import (
    TOPIC_ID,
    TP,
    BrokerRig,
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
from tests.unit.broker.impaired_dirs import answer, fill, stall
from tests.unit.broker.scripted_controller import RealClock

D1, D2, D3 = (dir_of(1, n) for n in (1, 2, 3))


def hosted(rig: BrokerRig) -> HostedReplica:
    replica = rig.parts.hosted.get(TP)
    assert replica is not None
    return replica


def where(rig: BrokerRig) -> LogDir:
    handle = hosted(rig).handle
    assert handle is not None
    return handle.log_dir


def begin(rig: BrokerRig, target: int = 2) -> None:
    rig.parts.moves.start(hosted(rig), rig.dirs[target - 1])


async def ended(rig: BrokerRig) -> None:
    async with asyncio.timeout(20):
        await rig.parts.moves.ended(TP)


def phase(rig: BrokerRig) -> MovePhase | None:
    moves = rig.parts.moves.moves()
    return moves[0].phase if moves else None


def names(rig: BrokerRig, number: int) -> list[str]:
    """The directories of the replica in one log directory."""
    log_dir = rig.dirs[number - 1]
    found = (entry.name for entry in log_dir.vfs.list_dir(log_dir.path))
    return sorted(name for name in found if name.startswith("t-0"))


async def write(rig: BrokerRig, count: int = 1) -> None:
    for _ in range(count):
        assert only(await rig.ask(produce(batch(), acks=1), 9)).error_code == 0


async def read_values(rig: BrokerRig) -> int:
    """Return the high watermark that a consumer sees."""
    answer = only(await rig.ask(fetch(), 12))
    assert answer.error_code == 0
    return int(answer.high_watermark)


@contextlib.asynccontextmanager
async def one_broker(*vfss: MemVfs | FaultVfs, **overrides: str) -> AsyncIterator[BrokerRig]:
    """A broker with three directories that leads ``t-0`` in the first, with three records."""
    disks = vfss or (MemVfs(), MemVfs(), MemVfs())
    async with brokers(1, *disks, **overrides) as (rig,):
        await rig.follow(topic(), partition(directories=[D1]))
        await write(rig, 3)
        yield rig


def logged(lines: list[Any], event: str) -> list[Any]:
    return [line for line in lines if line["event"] == event]


# --- successful moves ----------------------------------------------------------------------------


async def test_moved_replica_is_served_after_the_controller_accepted_the_assignment() -> None:
    async with one_broker() as rig:
        with capture_logs() as lines:
            begin(rig)
            assert [m.topic_partition for m in rig.parts.moves.moves()] == [TP]
            await ended(rig)
        assert where(rig) is rig.dirs[1] and assigned(rig) == [D2]
        assert names(rig, 2) == ["t-0"]
        assert [name.endswith("-delete") for name in names(rig, 1)] in ([], [True])
        (moved,) = logged(lines, "replica_moved")
        assert (moved["source"], moved["target"]) == ("/d1", "/d2")
        assert rig.logs.future(TP) is None and rig.parts.moves.moves() == []
        await write(rig, 2)
        assert await read_values(rig) == 5
        assert rig.around.metrics.snapshot()["ReplicaAlterLogDirsPartitionCount"] == 0


async def test_appends_continue_while_a_replica_moves_between_directories() -> None:
    """All acknowledged records exist afterwards, in order and once."""
    async with one_broker() as rig:
        stop = asyncio.Event()

        async def load() -> int:
            count = 0
            while not stop.is_set():
                await write(rig)
                count += 1
            return count

        loading = asyncio.create_task(load())
        for target in (2, 3, 1):
            begin(rig, target)
            await ended(rig)
            assert where(rig) is rig.dirs[target - 1]
        stop.set()
        written = await loading
        handle = hosted(rig).handle
        assert handle is not None and handle.log_end_offset == 3 + written
        assert await read_values(rig) == 3 + written
        assert assigned(rig) == [D2, D3, D1]


async def test_move_continues_copying_until_the_controller_accepts_the_assignment() -> None:
    """KIP-858: the metadata is ahead of the disk only for the time of the swap."""
    async with one_broker() as rig:
        rig.controller.may_answer.clear()
        begin(rig)
        await until(lambda: phase(rig) is MovePhase.QUEUED)
        await write(rig, 3)
        future = rig.logs.future(TP)
        assert future is not None
        await until(lambda: future.log_end_offset == 6)
        assert where(rig) is rig.dirs[0] and phase(rig) is MovePhase.QUEUED
        rig.controller.may_answer.set()
        await ended(rig)
        assert where(rig) is rig.dirs[1]


def test_move_waiting_for_the_controller_polls_its_disks_with_backoff(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = 0

    async def catch_up(*args: Any) -> CopyStep:
        nonlocal steps
        steps += 1
        return await plain(*args)

    plain = FutureReplica.catch_up
    monkeypatch.setattr(FutureReplica, "catch_up", catch_up)
    with SimulatedCluster(1, brokers=1, log_dirs=2) as cluster:
        cluster.start()
        client = cluster.client("operator")
        client.run(create_topic(client.kafka, "t", partitions=1, replication_factor=1))
        client.run(client.kafka.refresh_metadata(["t"]))
        wiring = cluster.broker(1).wiring
        assert wiring is not None
        cluster.run_for(1_000)
        replica = wiring.replicas.hosted.get(TP)
        assert replica is not None and replica.handle is not None
        (target,) = set(cluster.broker(1).log_dirs) - {replica.handle.log_dir.path}
        cluster.controller().kill()
        client.run(alter_replica_log_dirs(client.kafka, 1, {target: [TP]}))
        cluster.run_for(10_000)
        assert 10 < steps < 100
        cluster.controller().start()
        cluster.wait_for(lambda: not wiring.replicas.moves.moves(), "the move ended")


async def test_append_during_a_swap_waits_for_the_gate() -> None:
    slow = FaultVfs(MemVfs())
    async with one_broker(FaultVfs(MemVfs()), slow) as rig:
        with Gate(slow, "rename", "/d2/*-future") as gate:
            begin(rig)
            await gate.reached()
            assert hosted(rig).gate.is_closed
            writing = [asyncio.create_task(rig.ask(produce(batch(), acks=1), 9)) for _ in range(3)]
            reading = await read_values(rig)
            await until(lambda: repr(hosted(rig).gate) == "<AppendGate closed 3>")
            assert not any(one.done() for one in writing) and reading == 3
            gate.open()
            answers = [only(one) for one in await asyncio.gather(*writing)]
        assert sorted(answer.base_offset for answer in answers) == [3, 4, 5]
        await ended(rig)
        assert where(rig) is rig.dirs[1] and await read_values(rig) == 6


async def test_assignment_in_flight_does_not_prevent_a_later_move() -> None:
    async with brokers(1, MemVfs(), MemVfs(), MemVfs()) as (rig,):
        rig.controller.may_answer.clear()
        await rig.follow(topic(), partition(directories=[UNASSIGNED_DIR]))
        target = next(d for d in rig.dirs if d is not where(rig))
        rig.parts.moves.start(hosted(rig), target)
        await until(lambda: phase(rig) is MovePhase.QUEUED)
        # A leader epoch without a new directory must not withdraw the assignment.
        await rig.follow(partition(directories=[UNASSIGNED_DIR], epoch=1))
        rig.controller.may_answer.set()
        await ended(rig)
        assert where(rig) is target and assigned(rig)[-1] == target.directory_id


# --- cancelled moves -----------------------------------------------------------------------------


async def test_move_cancelled_while_copying_removes_the_future_replica() -> None:
    slow = FaultVfs(MemVfs())
    async with one_broker(FaultVfs(MemVfs()), slow) as rig:
        with Gate(slow, "copy_from") as gate:
            begin(rig)
            await gate.reached()
            assert rig.parts.moves.cancel(TP) and not rig.parts.moves.cancel(TP)
            gate.open()
            await ended(rig)
        assert where(rig) is rig.dirs[0] and rig.logs.future(TP) is None
        assert not [name for name in names(rig, 2) if name.endswith("-future")]
        assert assigned(rig) == []


async def test_disk_failure_after_a_repeated_cancellation_reports_no_unhandled_error() -> None:
    """An immediate stop cancels the wait twice; seed 48 of the simulator found it."""
    unhandled: list[dict[str, Any]] = []
    dies = asyncio.Event()

    async def copy() -> None:
        await dies.wait()
        raise KafkaStorageError("log dir /d2 is offline: it does not answer")

    async with one_broker() as rig:
        asyncio.get_running_loop().set_exception_handler(lambda _, seen: unhandled.append(seen))
        waiting = asyncio.ensure_future(rig.parts.moves._whole(copy()))
        for _ in range(2):
            await asyncio.sleep(0)
            waiting.cancel()
        await asyncio.wait({waiting})
        del waiting
        dies.set()
        for _ in range(3):
            await asyncio.sleep(0)
        gc.collect()
    assert unhandled == []


async def test_move_cancelled_while_queued_reverts_the_assignment() -> None:
    """The controller may have accepted meanwhile: its response belongs to the cancelled move."""
    async with one_broker() as rig:
        rig.controller.may_answer.clear()
        begin(rig)
        await until(lambda: assigned(rig) == [D2])
        rig.parts.moves.cancel(TP)
        rig.controller.may_answer.set()
        await ended(rig)
        await rig.parts.assignments.idle()
        assert assigned(rig) == [D2, D1] and where(rig) is rig.dirs[0]
        assert rig.logs.future(TP) is None


async def test_late_acceptance_of_a_cancelled_move_does_not_swap_the_next_one() -> None:
    async with one_broker() as rig:
        rig.controller.may_answer.clear()
        begin(rig)
        await until(lambda: assigned(rig) == [D2])
        begin(rig, 3)
        first, seen = rig.controller.may_answer, len(rig.controller.seen)
        await until(lambda: phase(rig) is MovePhase.QUEUED)
        first.set()
        await ended(rig)
        assert len(rig.controller.seen) > seen
        assert where(rig) is rig.dirs[2] and assigned(rig)[-1] == D3
        assert names(rig, 2) == [] or all(n.endswith("-delete") for n in names(rig, 2))


async def test_cancelled_move_can_be_restarted_immediately() -> None:
    async with one_broker() as rig:
        for _ in range(5):
            begin(rig)
            rig.parts.moves.cancel(TP)
        begin(rig)
        begin(rig)
        await ended(rig)
        assert where(rig) is rig.dirs[1]


async def test_move_cancelled_before_its_first_step_leaves_no_future_replica() -> None:
    async with one_broker() as rig:
        begin(rig)
        rig.parts.moves.cancel(TP)
        await ended(rig)
        assert rig.parts.moves.moves() == [] and rig.logs.futures() == []


async def test_move_to_the_current_directory_ends_the_move() -> None:
    async with one_broker() as rig:
        rig.controller.may_answer.clear()
        begin(rig)
        await until(lambda: phase(rig) is MovePhase.QUEUED)
        begin(rig, 1)
        rig.controller.may_answer.set()
        await ended(rig)
        assert where(rig) is rig.dirs[0]
        begin(rig, 1)
        assert rig.parts.moves.moves() == []


async def test_deleted_topic_ends_its_moves() -> None:
    """No copy, no pause and no move remains."""
    for at_swap in (False, True):
        slow = FaultVfs(MemVfs())
        async with one_broker(FaultVfs(MemVfs()), slow) as rig:
            kind, path = ("rename", "/d2/*-future") if at_swap else ("copy_from", "*")
            with Gate(slow, kind, path) as gate:
                begin(rig)
                await gate.reached()
                rig.replay(RemoveTopicRecord(topic_id=TOPIC_ID))
                again = TopicId(b"2" * 16)
                rig.replay(topic(topic_id=again), partition(topic_id=again, directories=[D2]))
                gate.open()
                await rig.parts.publisher.disk_work_done()
            await ended(rig)
            assert rig.logs.futures() == []
            handle = rig.logs.get(TP)
            assert handle is not None and handle.topic_id == again
            assert handle.log_end_offset == 0
            assert names(rig, 2)[0] == "t-0" and "t-0" not in names(rig, 1)


# --- impaired directories -------------------------------------------------------------------------


async def test_move_to_a_target_that_fills_up_ends_and_frees_its_space() -> None:
    async with one_broker() as rig, with_handler(rig):
        rig.controller.may_answer.clear()
        begin(rig)
        await until(lambda: assigned(rig) == [D2])
        with capture_logs() as lines:
            await fill(rig.dirs[1])
            await until(lambda: not rig.parts.moves.moves())
        rig.controller.may_answer.set()
        await ended(rig)
        await rig.parts.assignments.idle()
        assert assigned(rig) == [D2, D1] and rig.logs.futures() == []
        assert [line["reason"] for line in logged(lines, "replica_move_failed")] == [
            "target_filled_up"
        ]
        await write(rig)
        assert where(rig) is rig.dirs[0] and await read_values(rig) == 4


async def test_move_to_a_target_without_space_for_the_last_bytes_keeps_the_source() -> None:
    """The failing swap ends the move."""
    tight = MemVfs()
    async with one_broker(MemVfs(), tight) as rig:
        rig.controller.may_answer.clear()
        begin(rig)
        await until(lambda: assigned(rig) == [D2])
        tight.capacity_bytes = tight.used_bytes()
        await write(rig, 200)
        rig.controller.may_answer.set()
        await ended(rig)
        await rig.parts.assignments.idle()
        assert assigned(rig)[-1] == D1 and where(rig) is rig.dirs[0]
        assert rig.logs.futures() == [] and not hosted(rig).gate.is_closed
        await write(rig)
        assert await read_values(rig) == 204


async def test_replica_moves_out_of_a_full_directory() -> None:
    async with one_broker() as rig, with_handler(rig):
        await fill(rig.dirs[0])
        begin(rig)
        await ended(rig)
        assert where(rig) is rig.dirs[1]
        await write(rig)
        assert await read_values(rig) == 4, "the replica accepts appends in its new directory"


@pytest.mark.parametrize("number", [1, 2])
async def test_move_pauses_while_source_or_target_is_stalled(number: int) -> None:
    async with one_broker() as rig, with_handler(rig):
        stalled = rig.dirs[number - 1]
        stall(stalled)
        with capture_logs() as lines:
            begin(rig)
            await until(lambda: logged(lines, "replica_move_paused"))
            await asyncio.sleep(0)
            assert rig.parts.moves.moves() and not logged(lines, "replica_move_step_failed")
            await answer(stalled)
            await ended(rig)
        assert where(rig) is rig.dirs[1] and len(logged(lines, "replica_move_paused")) == 1


@pytest.mark.parametrize("number", [1, 2])
async def test_accepted_assignment_is_reverted_while_a_directory_is_stalled(
    number: int,
) -> None:
    """Otherwise the controller would treat the replica as healthy in the target directory."""
    async with one_broker() as rig, with_handler(rig):
        rig.controller.may_answer.clear()
        begin(rig)
        await until(lambda: assigned(rig) == [D2])
        stalled = rig.dirs[number - 1]
        stall(stalled)
        await until(lambda: rig.parts.assignments.queued_into(D1) == 1)
        rig.controller.may_answer.set()
        await rig.parts.assignments.idle()
        assert assigned(rig) == [D2, D1] and rig.parts.moves.moves()
        await answer(stalled)
        await ended(rig)
        assert assigned(rig) == [D2, D1, D2] and where(rig) is rig.dirs[1]


# --- failed directories --------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def with_handler(rig: BrokerRig) -> AsyncIterator[None]:
    task = rig.tasks.start(rig.parts.state_handler.run_handler(), "handler")
    yield
    task.cancel()


async def test_move_to_a_failed_target_keeps_the_source_and_reverts_the_assignment() -> None:
    async with one_broker() as rig, with_handler(rig):
        rig.controller.may_answer.clear()
        begin(rig)
        await until(lambda: assigned(rig) == [D2])
        with capture_logs() as lines:
            rig.dirs[1].go_offline("test")
            await until(lambda: not rig.parts.moves.moves())
        rig.controller.may_answer.set()
        await ended(rig)
        await rig.parts.assignments.idle()
        assert assigned(rig) == [D2, D1], (
            "the controller must not assign the replica to the failed directory"
        )
        await write(rig)
        assert await read_values(rig) == 4 and logged(lines, "replica_move_failed")
        assert rig.around.metrics.snapshot()["ReplicaAlterLogDirsFailedPartitionsCount"] == 1


async def test_failed_source_reverts_the_assignment_and_keeps_the_future_replica() -> None:
    """KIP-858: otherwise the controller would treat the replica as healthy in the target."""
    async with one_broker() as rig, with_handler(rig):
        rig.controller.may_answer.clear()
        begin(rig)
        await until(lambda: assigned(rig) == [D2])
        rig.dirs[0].go_offline("test")
        await until(lambda: hosted(rig).is_offline)
        assert rig.parts.assignments.queued_into(D1) == 1
        rig.controller.may_answer.set()
        await ended(rig)
        await rig.parts.assignments.idle()
        assert assigned(rig) == [D2, D1]
        assert [name.endswith("-future") for name in names(rig, 2)] == [True], "untouched"
        answer = only(await rig.ask(produce(batch()), 9))
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize(("slowly", "copies_left"), [("copy_from", 1), ("make_dirs", 0)])
async def test_move_whose_source_fails_before_the_assignment_assigns_no_directory(
    slowly: str, copies_left: int
) -> None:
    """A future replica created after the end of its move is unused; found by simulator seed
    700142."""
    slow = FaultVfs(MemVfs())
    async with one_broker(FaultVfs(MemVfs()), slow) as rig, with_handler(rig):
        with Gate(slow, slowly) as gate:
            begin(rig)
            await gate.reached()
            rig.dirs[0].go_offline("test")
            await until(lambda: hosted(rig).is_offline)
            gate.open()
            await ended(rig)
        assert assigned(rig) == []
        copies = [name for name in names(rig, 2) if name.endswith("-future")]
        assert len(copies) == copies_left
        assert (rig.logs.future(TP) is not None) == (copies_left == 1)


async def test_target_failure_at_the_last_rename_keeps_the_source() -> None:
    sick = FaultVfs(MemVfs())
    async with one_broker(FaultVfs(MemVfs()), sick) as rig, with_handler(rig):
        sick.inject(Fault(kinds=frozenset({"rename"}), path="/d2/*-future"))
        begin(rig)
        await ended(rig)
        assert not rig.dirs[1].is_online and where(rig) is rig.dirs[0]
        await rig.parts.assignments.idle()
        assert assigned(rig) == [D2, D1] and names(rig, 1) == ["t-0"]
        await write(rig)
        assert await read_values(rig) == 4 and not hosted(rig).gate.is_closed


async def test_source_failure_at_the_first_rename_takes_the_replica_offline() -> None:
    sick = FaultVfs(MemVfs())
    async with one_broker(sick, FaultVfs(MemVfs())) as rig, with_handler(rig):
        sick.inject(Fault(kinds=frozenset({"rename"}), path="/d1/t-0"))
        begin(rig)
        await ended(rig)
        await until(lambda: hosted(rig).is_offline)
        await rig.parts.assignments.idle()
        assert assigned(rig) == [D2, D1] and not hosted(rig).gate.is_closed


async def test_move_replaces_the_future_replica_of_another_move() -> None:
    async with one_broker() as rig:
        moves = rig.parts.moves
        with capture_logs() as lines:
            # A future copy of another move is in the way until it is dropped.
            await rig.logs.create_future(TP, rig.dirs[2], Uuid.random(rig.around.random_bytes))
            begin(rig)
            await ended(rig)
        assert where(rig) is rig.dirs[1] and rig.logs.future(TP) is None
        assert not logged(lines, "replica_move_failed") and moves.moves() == []


async def test_failed_move_step_without_directory_failure_is_retried() -> None:
    """For example, a process without free file descriptors blames no disk."""
    sick = FaultVfs(MemVfs())
    async with one_broker(FaultVfs(MemVfs()), sick) as rig:
        sick.inject(Fault(kinds=frozenset({"copy_from"}), errno=EMFILE, sticky=False))
        with capture_logs() as lines:
            begin(rig)
            await ended(rig)
        assert logged(lines, "replica_move_step_failed")
        assert where(rig) is rig.dirs[1] and rig.dirs[1].is_online


# --- roles ----------------------------------------------------------------------------------------


async def test_move_continues_after_leader_changes() -> None:
    async with one_broker() as rig:
        rig.controller.may_answer.clear()
        begin(rig)
        await until(lambda: phase(rig) is MovePhase.QUEUED)
        for epoch in (1, 2, 3):
            await rig.follow(partition(directories=[D1], epoch=epoch))
            await write(rig)
        rig.controller.may_answer.set()
        await ended(rig)
        assert where(rig) is rig.dirs[1] and await read_values(rig) == 6


async def test_moved_follower_continues_fetching_in_its_new_directory() -> None:
    async with brokers(2) as (leader, follower):
        both = partition(replicas=(1, 2), isr=(1, 2))
        for rig in (leader, follower):
            await rig.follow(topic(), both)
        await write(leader, 3)
        replica = hosted(follower)
        await until(lambda: replica.handle and replica.handle.log_end_offset == 3)
        follower.parts.moves.start(replica, follower.dirs[1])
        await write(leader, 3)
        await ended(follower)
        await write(leader, 3)
        await until(lambda: replica.handle and replica.handle.log_end_offset == 9)
        assert where(follower) is follower.dirs[1]
        assert assigned(follower) == [dir_of(2, 2)]


async def test_leader_that_becomes_follower_during_a_swap_resigns_and_follows_later() -> None:
    slow = FaultVfs(MemVfs())
    async with brokers(2, FaultVfs(MemVfs()), slow) as (first, second):
        for rig in (first, second):
            await rig.follow(topic(), partition(replicas=(1, 2)))
        await write(first, 3)
        with Gate(slow, "rename", "/d2/*-future") as gate:
            begin(first)
            await gate.reached()
            held = asyncio.create_task(first.ask(produce(batch(), acks=1), 9))
            await until(lambda: repr(hosted(first).gate) == "<AppendGate closed 1>")
            assert not held.done()
            for rig in (first, second):
                await rig.follow(partition(replicas=(1, 2), leader=2, epoch=1))
            late = first.ask(produce(batch(), acks=1), 9)
            for answer in await asyncio.gather(held, late):
                assert only(answer).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            gate.open()
            await ended(first)
        await until(lambda: hosted(second).handle and hosted(second).handle.log_end_offset == 3)
        await write(second, 2)
        await until(lambda: hosted(first).handle and hosted(first).handle.log_end_offset == 5)
        assert where(first) is first.dirs[1]


async def test_follower_whose_source_fails_during_the_swap_continues_in_the_target() -> None:
    slow = FaultVfs(MemVfs())
    async with brokers(2, FaultVfs(MemVfs()), slow) as (follower, leader), with_handler(follower):
        for rig in (leader, follower):
            await rig.follow(topic(), partition(replicas=(1, 2), isr=(1, 2), leader=2))
        await write(leader, 3)
        replica = hosted(follower)
        await until(lambda: replica.handle and replica.handle.log_end_offset == 3)
        with Gate(slow, "rename", "/d2/*-future") as gate:
            follower.parts.moves.start(replica, follower.dirs[1])
            await gate.reached()
            follower.dirs[0].go_offline("test")
            await until(lambda: replica.is_offline)
            for rig in (leader, follower):
                await rig.follow(partition(replicas=(1, 2), isr=(1, 2), leader=2, epoch=1))
            gate.open()
            await ended(follower)
        assert where(follower) is follower.dirs[1] and not replica.is_offline
        await write(leader, 2)
        await until(lambda: replica.handle and replica.handle.log_end_offset == 5)


# --- restarts -------------------------------------------------------------------------------------


async def stopped_in_a_move(disks: tuple[MemVfs, ...]) -> None:
    """Stop a broker while its move is queued; the copy in the second directory is complete."""
    async with one_broker(*disks) as rig:
        rig.controller.may_answer.clear()
        begin(rig)
        await until(lambda: phase(rig) is MovePhase.QUEUED)
        future = rig.logs.future(TP)
        assert future is not None
        await until(lambda: future.log_end_offset == 3)


async def test_interrupted_move_is_resumed_after_a_restart() -> None:
    disks = (MemVfs(), MemVfs(), MemVfs())
    await stopped_in_a_move(disks)
    async with brokers(1, *disks, opens=False) as (rig,):
        rig.replay(topic(), partition(directories=[D1]))
        with capture_logs() as lines:
            rig.parts.publisher.open()
            await ended(rig)
        assert logged(lines, "replica_move_resumed") and where(rig) is rig.dirs[1]
        assert assigned(rig) == [D2] and await read_values(rig) == 3


async def test_accepted_move_is_finished_after_a_restart_without_a_new_assignment() -> None:
    disks = (MemVfs(), MemVfs(), MemVfs())
    await stopped_in_a_move(disks)
    async with brokers(1, *disks, opens=False) as (rig,):
        rig.replay(topic(), partition(directories=[D2]))
        rig.parts.publisher.open()
        await ended(rig)
        assert where(rig) is rig.dirs[1] and assigned(rig) == []
        assert await read_values(rig) == 3


async def test_future_replica_of_a_deleted_topic_is_removed_at_start() -> None:
    disks = (MemVfs(), MemVfs(), MemVfs())
    await stopped_in_a_move(disks)
    async with brokers(1, *disks, opens=False) as (rig,):
        rig.parts.publisher.open()
        await rig.parts.publisher.disk_work_done()
        assert rig.logs.futures() == [] and rig.logs.handles() == []


async def test_resumed_move_that_is_cancelled_removes_the_future_replica() -> None:
    disks = (MemVfs(), MemVfs(), MemVfs())
    await stopped_in_a_move(disks)
    async with brokers(1, *disks, opens=False) as (rig,):
        rig.replay(topic(), partition(directories=[D2]))
        rig.parts.publisher.open()
        rig.parts.moves.cancel(TP)
        await ended(rig)
        await rig.parts.assignments.idle()
        assert rig.logs.futures() == [] and assigned(rig) == [D1]


def without_source(disks: tuple[MemVfs, ...]) -> None:
    """Remove the copy in the first directory, so that only the future replica is left."""
    disks[0].remove_tree("/d1/t-0")


async def test_future_replica_without_a_source_is_adopted_outside_the_isr() -> None:
    """KIP-113, "Handle failure", for the case without a failed directory."""
    disks = (MemVfs(), MemVfs(), MemVfs())
    await stopped_in_a_move(disks)
    without_source(disks)
    async with brokers(1, *disks, opens=False) as (rig,):
        directories = [D1, dir_of(2, 1)]
        rig.replay(topic(), partition(replicas=(1, 2), directories=directories, isr=[2], leader=2))
        with capture_logs() as lines:
            rig.parts.publisher.open()
            await rig.parts.publisher.disk_work_done()
        await rig.parts.assignments.idle()
        assert logged(lines, "future_replica_adopted")
        assert where(rig) is rig.dirs[1] and assigned(rig) == [D2]


def hide_future(rig: BrokerRig) -> Callable[[], None]:
    """Hide the future replica as if its directory were away. Return a function that shows it."""
    futures = rig.logs._registry.futures
    future = futures.pop(TP)
    return lambda: futures.update({TP: future})


@pytest.mark.parametrize("made_in", [1, 2])
async def test_future_replica_found_while_the_log_is_recreated_is_resumed_or_removed(
    made_in: int,
) -> None:
    """Its directory returns at that moment, after the adoption and before the log exists."""
    slow = FaultVfs(MemVfs()), FaultVfs(MemVfs())
    disks = (*(vfs.inner for vfs in slow), MemVfs())
    await stopped_in_a_move(disks)
    without_source(disks)
    async with brokers(1, *slow, disks[2], opens=False) as (rig,):
        show_future = hide_future(rig)
        directories = [LOST_DIR, dir_of(2, 1)]
        rig.replay(topic(), partition(replicas=(1, 2), directories=directories, isr=[2], leader=2))
        rig.parts.manager.prefer_directory(TP, dir_of(1, made_in))
        with Gate(slow[made_in - 1], "make_dirs", "*/t-0") as gate:
            rig.parts.publisher.open()
            await gate.reached()
            show_future()
            rig.parts.publisher.reconcile_again(offline_too=True)
            gate.open()
            await rig.parts.publisher.disk_work_done()
        await ended(rig)
        assert where(rig) is rig.dirs[1] and rig.logs.futures() == []
        assert names(rig, 2)[0] == "t-0" and "future" not in " ".join(names(rig, 2))


async def test_future_replica_of_former_topic_is_removed_while_new_log_is_created() -> None:
    """Its directory returns after the topic was deleted and created again with the same name."""
    slow, disks = FaultVfs(MemVfs()), (MemVfs(), MemVfs())
    await stopped_in_a_move((slow.inner, *disks))
    without_source((slow.inner, *disks))
    other_id = TopicId(b"2" * 16)
    async with brokers(1, slow, *disks, opens=False) as (rig,):
        show_future = hide_future(rig)
        rig.replay(
            topic(topic_id=other_id),
            partition(
                topic_id=other_id,
                replicas=(1, 2),
                directories=[LOST_DIR, dir_of(2, 1)],
                isr=[2],
                leader=2,
            ),
        )
        rig.parts.manager.prefer_directory(TP, dir_of(1, 1))
        with Gate(slow, "make_dirs", "*/t-0") as gate:
            rig.parts.publisher.open()
            await gate.reached()
            show_future()
            rig.parts.publisher.reconcile_again(offline_too=True)
            gate.open()
            await rig.parts.publisher.disk_work_done()
        assert where(rig) is rig.dirs[0] and rig.logs.futures() == []
        assert "future" not in " ".join(names(rig, 2))


async def test_future_replica_without_a_source_leads_only_with_unclean_leader_election() -> None:
    """An unfinished copy may lack acknowledged records."""
    disks = (MemVfs(), MemVfs(), MemVfs())
    await stopped_in_a_move(disks)
    without_source(disks)
    async with brokers(1, *disks, opens=False) as (rig,):
        rig.replay(topic(), partition(directories=[D1]))
        with capture_logs() as lines:
            rig.parts.publisher.open()
            await rig.parts.assignments.idle()
            assert [line["event"] for line in lines] == ["replica_reported_lost"]
            await rig.follow(partition(directories=[LOST_DIR], leader=-1, epoch=1))
        assert logged(lines, "last_in_sync_replica_lost")
        assert hosted(rig).is_offline and assigned(rig) == [LOST_DIR]
        assert [name.endswith("-future") for name in names(rig, 2)] == [True]
        with capture_logs() as lines:
            await rig.follow(
                ConfigRecord(
                    resource_type=ResourceType.TOPIC,
                    resource_name="t",
                    name="unclean.leader.election.enable",
                    value="true",
                )
            )
        assert logged(lines, "future_replica_adopted")
        await rig.parts.assignments.idle()
        assert where(rig) is rig.dirs[1] and assigned(rig) == [LOST_DIR, D2]


# --- failed target, intact source ----------------------------------------------------------------


async def started_without_target(rig: BrokerRig) -> None:
    """Metadata assigns the replica to the target, which is offline."""
    rig.replay(topic(), partition(directories=[D2]))
    rig.dirs[1].go_offline("test")
    rig.logs.drop(rig.dirs[1])
    await rig.parts.requested_moves.load(rig.wiring.cluster.is_agreed_to)
    rig.parts.publisher.open()
    await rig.parts.publisher.disk_work_done()
    await rig.parts.assignments.idle()


async def test_source_serves_after_a_restart_if_the_target_failed() -> None:
    disks = (MemVfs(), MemVfs(), MemVfs())
    await stopped_in_a_move(disks)
    for _ in range(2):  # The controller may miss the report, and the broker may restart again.
        async with brokers(1, *disks, opens=False) as (rig,):
            await started_without_target(rig)
            assert where(rig) is rig.dirs[0] and assigned(rig) == [D1]
            assert await read_values(rig) == 3


async def test_failed_target_of_a_move_that_could_not_be_undone_keeps_the_source() -> None:
    disks = (MemVfs(), MemVfs(), MemVfs())
    async with one_broker(*disks) as rig:
        rig.tasks.start(rig.parts.state_handler.run_handler(), "handler")
        rig.controller.may_answer.clear()
        begin(rig)
        await until(lambda: phase(rig) is MovePhase.QUEUED)
        rig.dirs[1].go_offline("test")
        await ended(rig)
    async with brokers(1, *disks, opens=False) as (rig,):
        await started_without_target(rig)
        assert where(rig) is rig.dirs[0] and assigned(rig) == [D1]


async def test_copy_without_a_recorded_move_waits_for_the_assigned_directory() -> None:
    """The copy looks the same, but no record names a move from its directory."""
    disks = (MemVfs(), MemVfs(), MemVfs())
    await stopped_in_a_move(disks)
    disks[0].unlink_if_exists("/d1/asked-moves.json")
    async with brokers(1, *disks, opens=False) as (rig,):
        await started_without_target(rig)
        assert hosted(rig).is_offline and assigned(rig) == []
        assert names(rig, 1) == ["t-0"]


async def test_recreated_replica_clears_the_recorded_move() -> None:
    """The source failed, another log replaced it and failed as well, and the source returned."""
    disks = (MemVfs(), MemVfs(), MemVfs())
    async with one_broker(*disks) as rig:
        begin(rig)
        await ended(rig)
        rig.tasks.start(rig.parts.state_handler.run_handler(), "handler")
        rig.controller.may_answer.clear()
        begin(rig, 3)
        await until(lambda: phase(rig) is MovePhase.QUEUED)
        note = json.loads(disks[0].read_if_exists("/d1/asked-moves.json") or b"")
        assert [(m["source"], m["target"]) for m in note["moves"]] == [(str(D2), str(D3))]
        rig.controller.may_answer.set()
        # Broker 2 leads, and the content of the failed directory is abandoned.
        both = {"replicas": (1, 2), "isr": [2], "leader": 2}
        rig.dirs[1].go_offline("test")
        await until(lambda: hosted(rig).is_offline)
        await rig.follow(partition(directories=[UNASSIGNED_DIR, dir_of(2, 1)], epoch=1, **both))
        assert where(rig) is not rig.dirs[1]
        note = json.loads(disks[0].read_if_exists("/d1/asked-moves.json") or b"")
        assert note["moves"] == []


async def test_future_replica_without_a_source_waits_while_a_directory_is_offline() -> None:
    disks = (MemVfs(), MemVfs(), MemVfs())
    await stopped_in_a_move(disks)
    async with brokers(1, *disks, opens=False) as (rig,):
        rig.replay(topic(), partition(directories=[D1]))
        rig.dirs[0].go_offline("test")
        rig.logs.drop(rig.dirs[0])
        rig.parts.publisher.open()
        await rig.parts.publisher.disk_work_done()
        assert hosted(rig).is_offline and assigned(rig) == []
        assert [name.endswith("-future") for name in names(rig, 2)] == [True]


# --- rate, order, stalls -------------------------------------------------------------------------


async def test_moves_above_the_thread_limit_copy_nothing_while_they_wait() -> None:
    slow = FaultVfs(MemVfs())
    many = [TopicPartition("t", n) for n in range(4)]
    async with brokers(1, FaultVfs(MemVfs()), slow, num_replica_alter_log_dirs_threads="1") as (
        rig,
    ):
        await rig.follow(topic(), *(partition(tp.partition, directories=[D1]) for tp in many))
        for tp in many:
            await rig.ask(produce(batch(), tp=tp), 9)
        with Gate(slow, "copy_from") as gate:
            for tp in many:
                replica = rig.parts.hosted.get(tp)
                assert replica is not None
                rig.parts.moves.start(replica, rig.dirs[1])
            await gate.reached()
            await until(lambda: len(rig.logs.futures()) == 4)
            assert [m.copied_bytes for m in rig.parts.moves.moves()][1:] == [0, 0, 0]
            gate.open()
            for tp in many:
                await rig.parts.moves.ended(tp)
        assert {h.log_dir for h in rig.logs.handles()} == {rig.dirs[1]}


async def test_low_move_rate_delays_moves_and_a_higher_rate_continues_them() -> None:
    async with one_broker(replica_alter_log_dirs_io_max_bytes_per_second="1") as rig:
        begin(rig)
        await until(lambda: any(m.copied_bytes for m in rig.parts.moves.moves()))
        await write(rig, 3)
        await settle()
        assert where(rig) is rig.dirs[0] and phase(rig) is not None
        rig.parts.moves.set_rate(1 << 40)
        await ended(rig)
        assert where(rig) is rig.dirs[1]


async def test_stalled_move_is_logged_once() -> None:
    """A future replica that never catches up, or a controller without answer, must be visible."""
    async with one_broker() as rig:
        rig.controller.may_answer.clear()
        begin(rig)
        await until(lambda: phase(rig) is MovePhase.QUEUED)
        with capture_logs() as lines:
            for _ in range(3):
                rig.parts.moves.check_progress(RealClock().now_ms() + 60_001)
        (stalled,) = logged(lines, "replica_move_stalled")
        assert stalled["phase"] == "queued"
        rig.controller.may_answer.set()
        await ended(rig)
