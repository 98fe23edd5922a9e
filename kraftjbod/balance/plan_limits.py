"""PURE. Selection of moves under a limit, such that the selected moves are useful without the rest.

A plan assumes that all its moves are made: a later move relies on the bytes that earlier moves
removed or added. So a limit cannot drop arbitrary moves.

* The two moves of a swap are selected or dropped together.
* A move larger than the whole limit is dropped. Balance moves that rely on it are dropped too:
  those out of a directory that then has less than planned, or into one that has more. Drains and
  moves across brokers rely on no other move.
* The selection ends at the first move that exceeds the remaining limit.

So for each selected balance move, the source is at least as full as planned, and the target at
most. Both end strictly between their former levels, as planned.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from kraftjbod.balance.planner import Tier


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedMove:
    """The values of a move that a limit needs.

    Adjacent moves with the same ``unit`` are kept or dropped together.
    """

    unit: Hashable
    tier: Tier
    source: Hashable
    target: Hashable
    size_bytes: int


def within_limits(
    moves: Iterable[LimitedMove], most_moves: int | None, most_bytes: int | None
) -> Iterator[bool]:
    """Yield for each of ``moves``, in plan order, whether it is selected.

    Ends early at the limit: no further move is selected. A unit that alone exceeds a limit is not
    selected, nor a move that has lost its use because earlier moves were not. None means no limit;
    a sum equal to the limit is allowed.
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
    """Directories whose bytes differ from the plan, because moves were dropped."""

    def __init__(self) -> None:
        #: Directories with more bytes than planned: a dropped move does not leave them.
        self._fuller: set[Hashable] = set()
        #: Directories with fewer bytes than planned: a dropped move does not arrive.
        self._emptier: set[Hashable] = set()

    def allows(self, unit: Sequence[LimitedMove]) -> bool:
        """Return whether the moves are still as useful as planned."""
        source, target = _ends(unit)
        match unit[0].tier:
            case Tier.DRAIN | Tier.ACROSS:
                return True
            case Tier.BYTES:
                return source not in self._emptier and target not in self._fuller
            case Tier.RATE:
                # A rate move may shift bytes in either direction, so both must be as planned.
                return not {source, target} & (self._fuller | self._emptier)

    def leave_out(self, unit: Sequence[LimitedMove]) -> None:
        source, target = _ends(unit)
        self._fuller.add(source)
        self._emptier.add(target)


def _ends(unit: Sequence[LimitedMove]) -> tuple[Hashable, Hashable]:
    """Return source and target; for a swap those of its larger move."""
    largest = max(unit, key=lambda move: move.size_bytes)
    return largest.source, largest.target
