"""``FreeSpacePolicy``: when a directory is short of space, and when it heals."""

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


def test_free_space_policy_is_short_below_the_minimum() -> None:
    plan = FreeSpacePolicy(min_free_bytes=10)
    assert [plan.is_short(space(free)) for free in (9, 10)] == [True, False]


def test_free_space_policy_without_minimum_is_short_at_zero_bytes() -> None:
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
        # Otherwise the released reserve would be enough space for itself.
        (40 * MIB, 0, 0, False, 41 * MIB),
        (0, 0, None, True, MIB),
        (0, 0, 3 * MIB, True, 3 * MIB),
        (0, 5, 0, True, MIB + 5),
    ],
)
def test_free_space_policy_heals_at_the_required_bytes(
    reserve: int, minimum: int, heal: int | None, has_reserve: bool, needed: int
) -> None:
    plan = FreeSpacePolicy(reserve_bytes=reserve, min_free_bytes=minimum, heal_free_bytes=heal)
    found = [plan.is_enough(space(n), has_reserve=has_reserve) for n in (needed - 1, needed)]
    assert found == [False, True]


def test_free_space_policy_requires_inodes_if_the_file_system_counts_them() -> None:
    plan = FreeSpacePolicy()
    few = LEAST_FREE_INODES - 1
    assert not plan.is_enough(space(MIB, few), has_reserve=True)
    assert plan.is_enough(space(MIB, few + 1), has_reserve=True)
    assert plan.is_enough(space(MIB, 0, counts_inodes=False), has_reserve=True)


def heals(plan: FreeSpacePolicy, *frees: int) -> list[bool]:
    return [plan.may_heal(space(MIB + free), has_reserve=False) for free in frees]


def test_free_space_policy_heals_after_two_good_checks_in_a_row() -> None:
    plan = FreeSpacePolicy(reserve_bytes=10, heal_free_bytes=0)
    assert heals(plan, 10, 9, 10, 10, 10, 9, 10) == [False, False, False, True, True, False, False]


def test_free_space_policy_restarts_the_count_when_the_disk_fills_up() -> None:
    plan = FreeSpacePolicy(reserve_bytes=10, heal_free_bytes=0)
    assert heals(plan, 10) == [False]
    plan.filled_up(space(0))
    assert heals(plan, 10, 10) == [False, True]


def test_free_space_policy_backs_off_if_a_disk_with_space_fills_up_repeatedly() -> None:
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
