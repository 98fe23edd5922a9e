from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.sim.search.shrink import shrink


@pytest.mark.parametrize("needed", [{0}, {19}, {3, 4}, {0, 7, 19}, {2, 5, 11, 17}])
def test_what_is_not_needed_goes(needed: set[int]) -> None:
    tries = 0

    def still_fails(items: Sequence[int]) -> bool:
        nonlocal tries
        tries += 1
        return needed <= set(items)

    assert shrink(range(20), still_fails) == tuple(sorted(needed))
    assert tries < 100


def test_it_ends_in_time_with_what_it_has() -> None:
    left = shrink(range(1000), lambda items: {0, 500, 999} <= set(items), max_tries=5)
    assert {0, 500, 999} <= set(left) and len(left) < 1000
