"""No free space at the N-th operation, for each N: once, for a while, or until a test frees space.

An operation without space fails with a retriable error, and memory and files agree at once. When
there is space, the same objects continue. At the end no record is lost or duplicated, and the
outcome equals that of a disk that never was full.
"""

from __future__ import annotations

from collections.abc import Callable
from errno import EDQUOT

import pytest

from kraftjbod.testing.faults import DiskFault
from tests.faults.dirs.full_rig import Outcome, ShrunkDisk, SpaceShortage, World, play
from tests.faults.vfs_fault import Fault

#: More operations than the workload has.
_TOO_MANY = 3000
#: Number of parts of a sweep: part 1 begins with the first operation, part 2 with the second.
SHARES = 8


async def outcome_without_fault() -> Outcome:
    world = World()
    reported = await play(world)
    assert world.refusals == 0
    return reported


async def outcome_with_fault(world: World, fault: Fault) -> Outcome:
    world.vfs.inject(fault)
    return await play(world)


async def sweep(
    make: Callable[[int, World], Fault], *, first: int = 1, step: int = SHARES, least: int = 100
) -> None:
    """Run a workload per ``step`` operations; about ``least`` operations must be refused."""
    expected, refused = await outcome_without_fault(), 0
    for n in range(first, _TOO_MANY, step):
        world = World()
        fault = make(n, world)
        try:
            assert await outcome_with_fault(world, fault) == expected
        except BaseException as e:
            e.add_note(f"no space at operation {n}")
            raise
        if fault.hits == 0:
            assert refused * step > least
            return
        refused += world.refusals > 0
    raise AssertionError("the story never ended")


#: For cases that differ in their duration only.
EVERY_SECOND = range(1, SHARES + 1, 2)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", range(1, SHARES + 1))
async def test_workload_without_space_for_any_operation_ends_as_with_space(first: int) -> None:
    await sweep(lambda n, world: SpaceShortage(nth=n, mem=world.mems[0]), first=first)


async def test_workload_without_quota_for_any_operation_ends_as_with_space() -> None:
    await sweep(lambda n, world: SpaceShortage(nth=n, errno=EDQUOT, mem=world.mems[0]), step=15)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", EVERY_SECOND)
@pytest.mark.parametrize("length", [2, 5])
async def test_workload_without_space_for_some_operations_ends_as_with_space(
    length: int, first: int
) -> None:
    await sweep(
        lambda n, world: SpaceShortage(nth=n, length=length, mem=world.mems[0]), first=first
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", EVERY_SECOND)
async def test_workload_without_space_until_it_is_freed_ends_as_with_space(first: int) -> None:
    await sweep(
        lambda n, world: SpaceShortage(nth=n, length=_TOO_MANY, mem=world.mems[0]), first=first
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", [1, 2])
async def test_workload_with_space_for_half_a_write_ends_as_with_space(first: int) -> None:
    kinds = frozenset({"write_at", "copy_from"})
    await sweep(
        lambda n, world: SpaceShortage(
            nth=n, kinds=kinds, effect=DiskFault.SHORT_WRITE, mem=world.mems[0]
        ),
        first=first,
        step=2,
        least=50,
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", [1, 5])
@pytest.mark.parametrize("but_for_bytes", [0, 100])
async def test_workload_on_a_disk_of_limited_capacity_ends_as_with_space(
    but_for_bytes: int, first: int
) -> None:
    await sweep(
        lambda n, world: ShrunkDisk(nth=n, mem=world.mems[0], but_for_bytes=but_for_bytes),
        first=first,
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", [1, 5])
async def test_workload_on_a_disk_without_inodes_ends_as_with_space(first: int) -> None:
    await sweep(
        lambda n, world: ShrunkDisk(nth=n, mem=world.mems[0], inodes_only=True), first=first
    )
