"""``ReplicaAssignments``: assignments of moving replicas and delayed metadata."""

from __future__ import annotations

from kraftjbod.broker.moves.replica_move_state import MovePhase
from kraftjbod.core.ids import TopicIdPartition
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.vfs_fault import FaultVfs
from tests.unit.broker.broker_rig import TOPIC_ID, assigned, brokers, partition, topic
from tests.unit.broker.gates import Gate, until
from tests.unit.broker.moves.test_alter_log_dirs_manager import (
    D1,
    D2,
    begin,
    ended,
    one_broker,
    phase,
    stopped_in_a_move,
    where,
)


async def test_reverted_assignment_missing_in_metadata_is_assigned_again_by_the_move() -> None:
    """Metadata still names the target; simulator seed 12300069 found this case."""
    disks = (MemVfs(), MemVfs(), MemVfs())
    await stopped_in_a_move(disks)
    async with brokers(1, *disks, opens=False) as (rig,):
        rig.controller.may_answer.clear()
        rig.replay(topic(), partition(directories=[D2]))
        rig.parts.assignments.assign(TopicIdPartition(TOPIC_ID, 0), D1)
        await until(lambda: assigned(rig) == [D1])
        rig.parts.publisher.open()
        await until(lambda: phase(rig) is MovePhase.QUEUED)
        rig.controller.may_answer.set()
        await ended(rig)
        assert where(rig) is rig.dirs[1] and assigned(rig) == [D1, D2]


async def test_late_metadata_of_a_reverted_assignment_does_not_undo_the_move() -> None:
    slow = FaultVfs(MemVfs())
    async with one_broker(slow, FaultVfs(MemVfs())) as rig:
        with Gate(slow, "rename", "/d1/t-0") as gate:
            begin(rig)
            await gate.reached()
            assert phase(rig) is MovePhase.SWAPPING and assigned(rig) == [D2]
            await rig.follow(partition(directories=[D2]))
            assert assigned(rig) == [D2]
            # An earlier request whose response did not arrive in time.
            await rig.follow(partition(directories=[D1]))
            await rig.parts.assignments.idle()
            gate.open()
            await ended(rig)
        assert where(rig) is rig.dirs[1] and assigned(rig) == [D2, D2]
