from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.sim.search.shrink import shrink


@pytest.mark.parametrize("needed", [{0}, {19}, {3, 4}, {0, 7, 19}, {2, 5, 11, 17}])
def test_shrink_removes_items_that_are_not_needed(needed: set[int]) -> None:
    tries = 0

    def still_fails(items: Sequence[int]) -> bool:
        nonlocal tries
        tries += 1
        return needed <= set(items)

    assert shrink(range(20), still_fails) == tuple(sorted(needed))
    assert tries < 100


def test_shrink_stops_after_max_tries_with_the_smallest_so_far() -> None:
    left = shrink(range(1000), lambda items: {0, 500, 999} <= set(items), max_tries=5)
    assert {0, 500, 999} <= set(left) and len(left) < 1000
