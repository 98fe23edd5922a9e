"""Power cuts at each operation of a move, on both disks at once.

Afterwards there is one current copy with all durable records and no other ones, and the move can be
finished or is over. In KAFKA-16082, a restart promoted a shorter copy, or refused to start because
of two copies.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.moves.move_rig import Written, check, manager_on, run_workload, two_disks, watched
from tests.faults.vfs_fault import WRITING_KINDS


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(4))
async def test_move_power_cut_at_each_operation_leaves_one_copy_with_durable_records(
    seed: int,
) -> None:
    disks = two_disks()
    vfss = watched(disks)
    written = Written()
    clones: list[tuple[tuple[MemVfs, MemVfs], Written]] = []

    def snapshot(kind: str, path: str) -> None:
        if kind in WRITING_KINDS:
            number = len(clones) * 7 + seed
            left = (disks[0].crash_clone(number), disks[1].crash_clone(number + 1_000_000))
            clones.append((left, written.copy()))

    manager = manager_on(*vfss)
    await manager.load()
    for vfs in vfss:
        vfs.on_operation = snapshot
    await run_workload(manager, written, random.Random(seed))
    for vfs in vfss:
        vfs.on_operation = None
    assert len(clones) > 200
    outcomes: Counter[str] = Counter()
    for left, known in clones:
        outcomes[await check(left, known, at_least=known.certain_end)] += 1
    # The power was cut in each stage of the workload.
    assert set(outcomes) == {"nothing yet", "/d1", "/d1 moving", "/d2"}, outcomes
