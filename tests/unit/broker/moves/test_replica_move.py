"""``ReplicaMove``: detection of stalls, and pauses."""

from __future__ import annotations

import asyncio

from kraftjbod.broker.moves.replica_move import ReplicaMove
from kraftjbod.broker.moves.replica_move_state import Cancelled, ReplicaMoveState
from kraftjbod.broker.replicas.hosted_replicas import HostedReplica
from kraftjbod.core.ids import Uuid
from kraftjbod.metadata.registrations import PartitionRegistration
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import format_dir, open_dir
from tests.unit.broker.broker_rig import TOPIC_ID, TP, dir_of, partition


def a_move() -> ReplicaMove:
    vfs = MemVfs()
    source, target = (
        (format_dir(vfs, f"/d{n}", 10 + n), open_dir(vfs, f"/d{n}", 10 + n))[1] for n in (1, 2)
    )
    registration = PartitionRegistration.from_record(partition())
    state = ReplicaMoveState(move_id=Uuid(b"m" * 16), source=dir_of(1, 1), target=dir_of(1, 2))
    replica = HostedReplica(TP, TOPIC_ID, registration, is_new=False)
    return ReplicaMove(replica, source, target, state)


async def test_has_stalled_is_true_once_until_the_move_progresses() -> None:
    move = a_move()
    assert not move.has_stalled(100_000, 60_000), "the move has not started"
    move.note_progress(1_000)
    assert [move.has_stalled(at, 60_000) for at in (60_999, 61_000, 90_000)] == [False, True, False]
    move.note_progress(90_000)
    assert [move.has_stalled(at, 60_000) for at in (149_999, 150_000)] == [False, True]
    move.note_progress(200_000)
    move.state.handle(Cancelled())
    assert not move.has_stalled(900_000, 60_000)


async def test_replica_move_pause_ends_on_a_change_or_after_its_time() -> None:
    move = a_move()
    await move.pause(1)
    pausing = asyncio.create_task(move.pause(3_600_000))
    await asyncio.sleep(0)
    move.changed.set()
    await pausing
    assert not move.changed.is_set()
    assert move.progress.topic_partition == TP and "copying" in repr(move)
