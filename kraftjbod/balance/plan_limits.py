"""PURE. Which moves of a plan are made when only so many are allowed: whole ones, good by
themselves.

A plan is made as if all of it were done: a later move counts on what earlier ones took away or
brought. So a limit may not just leave some out.

* What belongs together (the two moves of a swap) is made whole or left out whole.
* What is larger than all that is allowed is left out, and so is what counted on it: a move for
  balance out of a directory that then has less than planned, or into one that has more. What has to
  find a place (drains, moves across brokers) counts on nothing.
* At the first that no longer fits beside those before it, the limit is reached.

So each move for balance is made between directories of which the source is at least as full as the
plan had it, and the target at most: both end strictly between where they were, as planned.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from kraftjbod.balance.planner import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedMove:
    """What a limit goes by. ``unit`` is what the moves of a swap share, and neighbours do not."""

    unit: Hashable
    tier: Tier
    source: Hashable
    target: Hashable
    size_bytes: int


def within_limits(
    moves: Iterable[LimitedMove], most_moves: int | None, most_bytes: int | None
) -> Iterator[bool]:
    """For each of ``moves``, which are in the order of their use, whether it is made.

    Ends early where the limit is reached: none of the rest is.
    """
    state = _Left()
    so_many, so_large = 0, 0
    for _, members in groupby(moves, key=lambda move: move.unit):
        unit = list(members)
        size = sum(move.size_bytes for move in unit)
        is_too_large = (most_moves is not None and len(unit) > most_moves) or (
            most_bytes is not None and size > most_bytes
        )
        is_made = not is_too_large and state.allows(unit)
        if is_made:
            so_many, so_large = so_many + len(unit), so_large + size
            if (most_moves is not None and so_many > most_moves) or (
                most_bytes is not None and so_large > most_bytes
            ):
                return
        else:
            state.leave_out(unit)
        for _ in unit:
            yield is_made


class _Left:
    """Directories that are not as the plan had them, for what was left out so far."""

    def __init__(self) -> None:
        #: They have more than planned: something does not leave.
        self._fuller: set[Hashable] = set()
        #: They have less than planned: something does not come.
        self._emptier: set[Hashable] = set()

    def allows(self, unit: Sequence[LimitedMove]) -> bool:
        """Whether the moves are as good as they were planned."""
        source, target = _ends(unit)
        match unit[0].tier:
            case Tier.DRAIN | Tier.ACROSS:
                return True
            case Tier.BYTES:
                return source not in self._emptier and target not in self._fuller
            case Tier.RATE:
                # By rate in one direction, by bytes in any: both have to be as planned.
                return not {source, target} & (self._fuller | self._emptier)

    def leave_out(self, unit: Sequence[LimitedMove]) -> None:
        source, target = _ends(unit)
        self._fuller.add(source)
        self._emptier.add(target)


def _ends(unit: Sequence[LimitedMove]) -> tuple[Hashable, Hashable]:
    """Where bytes go from and to; of a swap, where the larger one goes."""
    largest = max(unit, key=lambda move: move.size_bytes)
    return largest.source, largest.target
