"""Power cuts at every operation of a move, on both disks at once.

After each: one current copy, what was certain is there, what is there was written, and the move
either goes on to its end or is over. This answers KAFKA-16082 and the restart that promotes a
shorter copy, or refuses to start because there are two.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.moves.move_rig import Written, check, node_on, story, two_disks, watched
from tests.faults.vfs_fault import WRITING_KINDS


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(4))
async def test_a_power_cut_at_every_operation_of_a_move(seed: int) -> None:
    disks = two_disks()
    vfss = watched(disks)
    written = Written()
    clones: list[tuple[tuple[MemVfs, MemVfs], Written]] = []

    def snapshot(kind: str, path: str) -> None:
        if kind in WRITING_KINDS:
            number = len(clones) * 7 + seed
            left = (disks[0].crash_clone(number), disks[1].crash_clone(number + 1_000_000))
            clones.append((left, written.copy()))

    manager = node_on(*vfss)
    await manager.load()
    for vfs in vfss:
        vfs.on_operation = snapshot
    await story(manager, written, random.Random(seed))
    for vfs in vfss:
        vfs.on_operation = None
    assert len(clones) > 200
    outcomes: Counter[str] = Counter()
    for left, known in clones:
        outcomes[await check(left, known, at_least=known.certain_end)] += 1
    # Each stage of the story was cut somewhere.
    assert set(outcomes) == {"nothing yet", "/d1", "/d1 moving", "/d2"}, outcomes
