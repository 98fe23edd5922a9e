"""Where replicas are that move, and what the metadata says meanwhile."""

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


async def test_what_was_taken_back_and_is_not_known_yet_is_asked_for_again() -> None:
    """Metadata names the target still: simulator, seed 12300069."""
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


async def test_a_late_answer_to_what_was_taken_back_does_not_hold_against_the_move() -> None:
    slow = FaultVfs(MemVfs())
    async with one_broker(slow, FaultVfs(MemVfs())) as rig:
        with Gate(slow, "rename", "/d1/t-0") as gate:
            begin(rig)
            await gate.reached()
            assert phase(rig) is MovePhase.SWAPPING and assigned(rig) == [D2]
            await rig.follow(partition(directories=[D2]))
            assert assigned(rig) == [D2]
            # A request of before, of which the controller had given no answer in time.
            await rig.follow(partition(directories=[D1]))
            await rig.parts.assignments.idle()
            gate.open()
            await ended(rig)
        assert where(rig) is rig.dirs[1] and assigned(rig) == [D2, D2]
