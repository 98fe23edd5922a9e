"""FreeSpacePolicy: short of free space, and not short any more."""

from __future__ import annotations

import pytest

from kraftjbod.storage.log_dirs.free_space_policy import (
    LEAST_FREE_INODES,
    LONGEST_WAIT_CHECKS,
    FreeSpacePolicy,
)
from kraftjbod.storage.vfs import Space

MIB = 1024 * 1024


def space(usable: int, inodes: int = 1000, *, counts_inodes: bool = True) -> Space:
    return Space(
        total_bytes=100 * MIB,
        usable_bytes=usable,
        free_inodes=inodes,
        counts_inodes=counts_inodes,
    )


def test_short_of_space_is_less_than_the_minimum() -> None:
    plan = FreeSpacePolicy(min_free_bytes=10)
    assert [plan.is_short(space(free)) for free in (9, 10)] == [True, False]


def test_nothing_free_is_short_of_space_where_space_is_counted() -> None:
    plan = FreeSpacePolicy()
    assert [plan.is_short(space(free)) for free in (0, 1)] == [True, False]
    assert not plan.is_short(Space(total_bytes=0, usable_bytes=0, free_inodes=0))


@pytest.mark.parametrize(
    ("reserve", "minimum", "heal", "has_reserve", "needed"),
    [
        (40 * MIB, 0, None, False, 80 * MIB),
        (40 * MIB, 0, None, True, 40 * MIB),
        (40 * MIB, 100, None, False, 80 * MIB + 100),
        (40 * MIB, 100, 7 * MIB, False, 47 * MIB + 100),
        (40 * MIB, 100, 7 * MIB, True, 7 * MIB + 100),
        # Else the reserve that was given away would be space enough for itself.
        (40 * MIB, 0, 0, False, 41 * MIB),
        (0, 0, None, True, MIB),
        (0, 0, 3 * MIB, True, 3 * MIB),
        (0, 5, 0, True, MIB + 5),
    ],
)
def test_what_must_be_free_to_heal(
    reserve: int, minimum: int, heal: int | None, has_reserve: bool, needed: int
) -> None:
    plan = FreeSpacePolicy(reserve_bytes=reserve, min_free_bytes=minimum, heal_free_bytes=heal)
    found = [plan.is_enough(space(n), has_reserve=has_reserve) for n in (needed - 1, needed)]
    assert found == [False, True]


def test_inodes_count_where_they_are_counted() -> None:
    plan = FreeSpacePolicy()
    few = LEAST_FREE_INODES - 1
    assert not plan.is_enough(space(MIB, few), has_reserve=True)
    assert plan.is_enough(space(MIB, few + 1), has_reserve=True)
    assert plan.is_enough(space(MIB, 0, counts_inodes=False), has_reserve=True)


def heals(plan: FreeSpacePolicy, *frees: int) -> list[bool]:
    return [plan.may_heal(space(MIB + free), has_reserve=False) for free in frees]


def test_two_good_checks_in_a_row() -> None:
    plan = FreeSpacePolicy(reserve_bytes=10, heal_free_bytes=0)
    assert heals(plan, 10, 9, 10, 10, 10, 9, 10) == [False, False, False, True, True, False, False]


def test_filling_up_begins_the_count_again() -> None:
    plan = FreeSpacePolicy(reserve_bytes=10, heal_free_bytes=0)
    assert heals(plan, 10) == [False]
    plan.filled_up(space(0))
    assert heals(plan, 10, 10) == [False, True]


def test_a_file_system_that_contradicts_itself_is_asked_ever_more_rarely() -> None:
    plan, waits = FreeSpacePolicy(reserve_bytes=10, heal_free_bytes=0), []
    for _ in range(9):
        plan.filled_up(space(MIB + 10))
        checks = 0
        while not heals(plan, 10)[0]:
            checks += 1
        waits.append(checks - 1)
    assert waits == [2, 4, 8, 16, 32, 64, 64, 64, LONGEST_WAIT_CHECKS]
    plan.filled_up(space(0))
    assert heals(plan, 10, 10) == [False, True]
    plan.filled_up(None)
    assert heals(plan, 10, 10) == [False, True]
