"""The fewest faults of a schedule that still make it fail (delta debugging, Zeller 2002)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def shrink(
    items: Sequence[T], still_fails: Callable[[Sequence[T]], bool], *, max_tries: int = 200
) -> tuple[T, ...]:
    """Return a part of ``items``, in their order, that fails and contains no superfluous item.

    ``items`` as a whole must fail. After ``max_tries`` returns the smallest part found so far.
    """
    left = list(items)
    parts = 2
    tries = 0
    while len(left) >= 2 and tries < max_tries:
        size = max(1, len(left) // parts)
        for start in range(0, len(left), size):
            rest = left[:start] + left[start + size :]
            tries += 1
            if rest and still_fails(rest):
                left, parts = rest, max(parts - 1, 2)
                break
            if tries >= max_tries:
                break
        else:
            if size == 1:
                break
            parts = min(len(left), parts * 2)
    return tuple(left)
