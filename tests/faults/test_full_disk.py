"""No room at the N-th operation, for every N: once, for a while, until somebody makes some.

Whatever found no room fails with an error that is worth another try, memory and files agree at
once, and when there is room the same objects go on. At the end nothing is lost, nothing is there
twice, and a client cannot tell that the disk was ever full.
"""

from __future__ import annotations

from errno import EDQUOT, ENOSPC

import pytest

from tests.faults.full_rig import Shrink, Spell, Told, World, tell
from tests.faults.vfs_fault import Effect, Fault

#: More than a story has operations.
_TOO_MANY = 3000


async def undisturbed() -> Told:
    world = World()
    told = await tell(world)
    assert world.refusals == 0
    return told


async def disturbed(world: World, fault: Fault) -> Told:
    world.vfs.inject(fault)
    return await tell(world)


async def sweep(make, *, step: int = 1) -> int:
    """One story per operation; how many of them were refused something."""
    expected, refused = await undisturbed(), 0
    for n in range(1, _TOO_MANY, step):
        world = World()
        fault = make(n, world)
        try:
            assert await disturbed(world, fault) == expected
        except BaseException as e:
            e.add_note(f"no room at operation {n}")
            raise
        if fault.hits == 0:
            assert n > 300
            return refused
        refused += world.refusals > 0
    raise AssertionError("the story never ended")


@pytest.mark.parametrize("errno", [ENOSPC, EDQUOT])
async def test_no_room_once(errno: int):
    assert await sweep(lambda n, world: Spell(nth=n, errno=errno)) > 200


@pytest.mark.parametrize("length", [2, 5])
async def test_no_room_for_some_operations(length: int):
    assert await sweep(lambda n, world: Spell(nth=n, length=length)) > 200


async def test_no_room_until_somebody_makes_some():
    assert await sweep(lambda n, world: Spell(nth=n, length=_TOO_MANY)) > 200


async def test_half_of_a_write_finds_room():
    def make(n: int, world: World) -> Spell:
        kinds = frozenset({"write_at", "copy_from"})
        return Spell(nth=n, kinds=kinds, effect=Effect.SHORT_WRITE)

    expected = await undisturbed()
    for n in range(1, _TOO_MANY):
        world = World()
        fault = make(n, world)
        assert await disturbed(world, fault) == expected, n
        if fault.hits == 0:
            return


@pytest.mark.parametrize("but_for_bytes", [0, 100])
async def test_a_disk_that_holds_no_more(but_for_bytes: int):
    await sweep(lambda n, world: Shrink(nth=n, mem=world.mems[0], but_for_bytes=but_for_bytes))


async def test_a_disk_without_inodes():
    await sweep(lambda n, world: Shrink(nth=n, mem=world.mems[0], inodes_only=True))
