"""PURE. Plan the moves of one broker's replicas between its directories.

Goals, in this order:

1. Drained directories become empty, and replicas from other brokers get a directory.
2. Each directory holds its share of the bytes, within the tolerance. Shares are proportional to
   directory sizes.
3. Each directory gets the same write rate as the others, within the rate tolerance.

Rules:

* A move never fills its target: incoming bytes count at once, leaving bytes free no space, and the
  sum stays within the caller's spare bytes.
* Directories that do not take get no replica. Directories that do not give are not read.
* A move or swap for balance leaves both directories strictly between their former levels, so that
  the worst one never gets worse. A rate move leaves both within the tolerance of the bytes.
* No replica moves twice.

Directories and replicas are identified by their indexes in the given sequences.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from kraftjbod.balance.fair_shares import (
    Band,
    DirLoad,
    Goals,
    byte_band,
    level_of,
    rate_band,
    shares,
)

#: A replica may exceed the needed bytes by this factor before smaller ones are tried.
_SNUG: Final = 1.1
#: Below this part of the need, one larger replica is better than small ones or a swap.
_WORTHWHILE: Final = 1 / 16
#: A broker's own level may differ from the requested one by this part of the tolerance.
_NEAR: Final = 0.7
#: Part of the gap between two directories that may move. The whole gap would swap their levels.
_OF_GAP: Final = 0.75
#: Minimum gain of a swap as a part of its moved bytes.
_SWAP_GAIN: Final = 1 / 8
#: Limit of swaps per directory, for bytes and for rate each.
_MAX_SWAPS: Final = 32
#: Number of replicas with the highest rate in a directory that are tried for a swap.
_HOTTEST: Final = 16
#: Number of directories with the lowest rate that are tried as targets of rate moves.
_COOLEST: Final = 4


class Tier(IntEnum):
    """Purpose of a move. Within a phase of the plan, lower numbers come first."""

    DRAIN = 0
    """Empties a drained directory or broker."""
    ACROSS = 1
    """Takes a replica to another broker, to level the brokers' bytes."""
    BYTES = 2
    """Levels the bytes of directories."""
    RATE = 3
    """Levels the write rates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLoad:
    """One replica; ``directory`` is the index of its directory, None if it comes from another
    broker. ``write_rate`` is in bytes per second.
    """

    directory: int | None
    size_bytes: int
    write_rate: float = 0.0
    is_movable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DirMove:
    """Move of the replica with index ``replica`` to the directory with index ``target``.

    The two moves of a swap have the same ``step``. ``score`` is the fill level of the source (of a
    rate move: its write rate) as a multiple of its share; it never rises within a tier.
    """

    replica: int
    target: int
    tier: Tier
    step: int
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DirPlan:
    """Moves of a broker; ``misfits`` are the indexes of replicas that must move and fit nowhere."""

    moves: tuple[DirMove, ...]
    misfits: tuple[int, ...]


def plan_broker(dirs: Sequence[DirLoad], replicas: Sequence[ReplicaLoad], goals: Goals) -> DirPlan:
    """Plan the moves of one broker towards ``goals``.

    :param dirs: the broker's directories; replicas and moves name them by index.
    :param replicas: replicas on the broker, and those that arrive from other brokers.
    :returns: the moves in plan order, and the replicas that had to move and fit nowhere.
    """
    board = _Board(dirs, replicas, goals)
    misfits = tuple(_place(board))
    _balance_bytes(board)
    _balance_rate(board)
    return DirPlan(moves=tuple(_ordered(board.moves)), misfits=misfits)


class _Board:
    """State of the broker during planning."""

    def __init__(
        self, dirs: Sequence[DirLoad], replicas: Sequence[ReplicaLoad], goals: Goals
    ) -> None:
        self.dirs = dirs
        self.replicas = replicas
        self.goals = goals
        self.spare = [load.spare_bytes for load in dirs]
        self.bytes = [0] * len(dirs)
        self.rate = [0.0] * len(dirs)
        #: Movable replicas by directory: size and index, ascending.
        self.free: list[list[tuple[int, int]]] = [[] for _ in dirs]
        self.moves: list[DirMove] = []
        self._step = 0
        fixed_bytes, fixed_rate = [0] * len(dirs), [0.0] * len(dirs)
        coming_bytes, coming_rate = 0, 0.0
        for index, replica in enumerate(replicas):
            where = replica.directory
            if where is None:
                coming_bytes += replica.size_bytes
                coming_rate += replica.write_rate
                continue
            self.bytes[where] += replica.size_bytes
            self.rate[where] += replica.write_rate
            if replica.is_movable and dirs[where].gives:
                insort(self.free[where], (replica.size_bytes, index))
            else:
                fixed_bytes[where] += replica.size_bytes
                fixed_rate[where] += replica.write_rate
        bands = [
            byte_band(load, held, fixed)
            for load, held, fixed in zip(dirs, self.bytes, fixed_bytes, strict=True)
        ]
        level = _level(bands, sum(self.bytes) + coming_bytes, goals)
        self.byte_share = [band.at(level) for band in bands]
        all_rate = sum(self.rate) + coming_rate
        self.rate_share = shares(
            [
                rate_band(load, held, fixed, most=all_rate)
                for load, held, fixed in zip(dirs, self.rate, fixed_rate, strict=True)
            ],
            all_rate,
        )

    @property
    def takers(self) -> list[int]:
        return [d for d, load in enumerate(self.dirs) if load.takes]

    def fill(self, directory: int) -> float:
        """Return the directory's bytes as a multiple of its share."""
        return _ratio(self.bytes[directory], self.byte_share[directory])

    def heat(self, directory: int) -> float:
        """Return the directory's write rate as a multiple of its share."""
        return _ratio(self.rate[directory], self.rate_share[directory])

    def begin_step(self) -> None:
        self._step += 1

    def move(self, replica: int, target: int, tier: Tier, score: float) -> None:
        load = self.replicas[replica]
        assert load.size_bytes <= self.spare[target], (replica, target)
        if load.directory is not None:
            self.bytes[load.directory] -= load.size_bytes
            self.rate[load.directory] -= load.write_rate
            self.free[load.directory].remove((load.size_bytes, replica))
        self.bytes[target] += load.size_bytes
        self.rate[target] += load.write_rate
        self.spare[target] -= load.size_bytes
        self.moves.append(
            DirMove(replica=replica, target=target, tier=tier, step=self._step, score=score)
        )

    def most_bytes(self, source: int, target: int) -> float:
        """Return the largest number of bytes that may move from ``source`` to ``target``.

        After such a move both directories are between their former fill levels. 0.0 if ``source``
        is not fuller than ``target``.
        """
        gap = self.fill(source) - self.fill(target)
        least_share = min(self.byte_share[source], self.byte_share[target])
        return gap * least_share * _OF_GAP if gap > 0 and least_share > 0 else 0.0

    def bytes_in_band(self, source: int, target: int, moved_bytes: int) -> bool:
        """Return whether both directories hold their share, within the tolerance, after
        ``moved_bytes`` have moved from ``source`` to ``target``."""
        tolerance = self.goals.tolerance
        return (
            self.bytes[source] - moved_bytes >= self.byte_share[source] * (1 - tolerance)
            and self.bytes[source] - moved_bytes <= self.byte_share[source] * (1 + tolerance)
            and self.bytes[target] + moved_bytes >= self.byte_share[target] * (1 - tolerance)
            and self.bytes[target] + moved_bytes <= self.byte_share[target] * (1 + tolerance)
        )


def _level(bands: Sequence[Band], all_bytes: int, goals: Goals) -> float:
    """Return ``goals.level`` if the broker's own level is near it, else the broker's own level.

    A level is the bytes of a directory as a fraction of its size.
    """
    own = level_of(bands, all_bytes)
    if goals.level is None or abs(own - goals.level) > goals.level * goals.tolerance * _NEAR:
        return own
    return goals.level


def _ratio(held: float, share: float) -> float:
    if share > 0:
        return held / share
    return float("inf") if held > 0 else 1.0


# --- incoming and drained replicas ---------------------------------------------------------------


def _place(board: _Board) -> Iterator[int]:
    """Place incoming and drained replicas, the largest first.

    Each gets the directory that is emptiest afterwards. Yields the indexes of replicas that fit
    into no directory.
    """
    homeless = [
        index
        for index, replica in enumerate(board.replicas)
        if replica.directory is None
        or (replica.is_movable and _leaves(board.dirs[replica.directory]))
    ]
    homeless.sort(key=lambda index: (-board.replicas[index].size_bytes, index))
    for index in homeless:
        replica = board.replicas[index]
        open_dirs = [d for d in board.takers if board.spare[d] >= replica.size_bytes]
        if not open_dirs:
            yield index
            continue
        board.begin_step()
        target = min(open_dirs, key=lambda d: (_fill_with(board, d, replica.size_bytes), d))
        tier = Tier.ACROSS if replica.directory is None else Tier.DRAIN
        board.move(index, target, tier, float("inf"))


def _leaves(load: DirLoad) -> bool:
    return load.is_drained and load.gives


def _fill_with(board: _Board, directory: int, more_bytes: int) -> float:
    return _ratio(board.bytes[directory] + more_bytes, board.byte_share[directory])


# --- bytes ---------------------------------------------------------------------------------------


def _balance_bytes(board: _Board) -> None:
    """Move bytes out of directories above the tolerance, then into those below, then swap."""
    stuck: set[int] = set()
    while (found := _next_overfull(board, stuck)) or (found := _next_underfull(board)):
        replica, source, target = found
        board.begin_step()
        board.move(replica, target, Tier.BYTES, board.fill(source))
    for source in sorted(stuck, key=board.fill, reverse=True):
        _swap_bytes(board, source)


def _next_overfull(board: _Board, stuck: set[int]) -> tuple[int, int, int] | None:
    """Find a move out of the fullest directory above the tolerance.

    :param stuck: directories to skip. Gets each directory for which no move was found.
    :returns: the indexes of replica, source and target; None if no directory above the tolerance
        has a move.
    """
    givers = [d for d in range(len(board.dirs)) if board.free[d] and d not in stuck]
    for source in sorted(givers, key=board.fill, reverse=True):
        need = board.bytes[source] - board.byte_share[source] * (1 + board.goals.tolerance)
        if need <= 0:
            return None
        targets = sorted((d for d in board.takers if d != source), key=board.fill)
        for is_strict in (True, False):
            for target in targets:
                replica = _pick(board, source, target, need, is_strict=is_strict)
                if replica is not None:
                    return replica, source, target
        stuck.add(source)
    return None


def _next_underfull(board: _Board) -> tuple[int, int, int] | None:
    """Find a move into the emptiest directory below the tolerance.

    :returns: the indexes of replica, source and target; None if no directory below the tolerance
        has a move.
    """
    for target in sorted(board.takers, key=board.fill):
        need = board.byte_share[target] * (1 - board.goals.tolerance) - board.bytes[target]
        if need <= 0:
            return None
        sources = [d for d in range(len(board.dirs)) if board.free[d] and d != target]
        for source in sorted(sources, key=board.fill, reverse=True):
            replica = _pick(board, source, target, need, is_strict=True)
            if replica is not None:
                return replica, source, target
    return None


def _pick(board: _Board, source: int, target: int, need: float, *, is_strict: bool) -> int | None:
    """Return the index of the replica to move from ``source`` to ``target``, or None.

    The size of the replica is as near to ``need`` bytes as possible.

    :param is_strict: the move leaves ``source`` not below the tolerance, and ``target`` not above.
    """
    most = min(float(board.spare[target]), board.most_bytes(source, target))
    if is_strict:
        tolerance = board.goals.tolerance
        most = min(
            most,
            board.byte_share[target] * (1 + tolerance) - board.bytes[target],
            board.bytes[source] - board.byte_share[source] * (1 - tolerance),
        )
    free = board.free[source]
    end = bisect_left(free, (most, -1)) if most > 0 else 0
    middle = bisect_left(free, (need, -1), 0, end)
    above = free[middle] if middle < end else None
    below = free[middle - 1] if middle > 0 and free[middle - 1][0] > 0 else None
    if above is not None and (below is None or above[0] <= need * _SNUG):
        return above[1]
    if below is None or below[0] >= need * _WORTHWHILE:
        return None if below is None else below[1]
    if above is not None:
        return above[1]
    matters = sum(size for size, _ in free[:middle]) >= need / 2
    return below[1] if matters else None


def _swap_bytes(board: _Board, source: int) -> None:
    """Swap large replicas of ``source`` for smaller ones of other directories, while ``source`` is
    above the tolerance."""
    if not board.dirs[source].takes:
        return
    for _ in range(_MAX_SWAPS):
        need = board.bytes[source] - board.byte_share[source] * (1 + board.goals.tolerance)
        if need <= 0:
            return
        pairs = (
            pair
            for target in sorted((d for d in board.takers if d != source), key=board.fill)
            if (pair := _best_swap(board, source, target, need)) is not None
        )
        found = min(pairs, default=None)
        if found is None:
            return
        _, _, out, back, target = found
        _swap(board, out, back, source, target, Tier.BYTES, board.fill(source))


def _best_swap(
    board: _Board, source: int, target: int, need: float
) -> tuple[bool, int, int, int, int] | None:
    """Return the cheapest swap of a replica of ``source`` for a smaller one of ``target``.

    :returns: whether the gain is below ``need``, the moved bytes, the replica that leaves
        ``source``, the one that enters it, and ``target``. Smaller tuples are better. None if no
        swap is allowed or worthwhile.
    """
    most = board.most_bytes(source, target)
    best: tuple[bool, int, int, int, int] | None = None
    for back_size, back in board.free[target]:
        if back_size > board.spare[source] or most <= 0:
            break
        free = board.free[source]
        end = bisect_left(free, (min(back_size + most, board.spare[target] + 1), -1))
        middle = bisect_left(free, (back_size + need, -1), 0, end)
        for place in (middle, middle - 1):
            if not 0 <= place < end:
                continue
            size, out = free[place]
            gain = size - back_size
            if gain < max(1, need * _WORTHWHILE, (size + back_size) * _SWAP_GAIN):
                continue
            ranked = (gain < need, size + back_size, out, back, target)
            best = ranked if best is None else min(best, ranked)
    return best


def _swap(
    board: _Board, out: int, back: int, source: int, target: int, tier: Tier, score: float
) -> None:
    board.begin_step()
    board.move(out, target, tier, score)
    board.move(back, source, tier, score)


# --- rate ----------------------------------------------------------------------------------------


def _balance_rate(board: _Board) -> None:
    """Move or swap replicas with high write rates while the bytes stay within the tolerance."""
    if not any(board.rate):
        return
    for source in sorted(range(len(board.dirs)), key=board.heat, reverse=True):
        for _ in range(_MAX_SWAPS):
            need = board.rate[source] - board.rate_share[source] * (1 + board.goals.rate_tolerance)
            if need <= 0 or not _cool(board, source):
                break


def _cool(board: _Board, source: int) -> bool:
    """Plan one move or swap that lowers the write rate of ``source``.

    :returns: False if no move or swap is allowed.
    """
    rates = board.replicas
    hot = [i for _, i in board.free[source] if rates[i].write_rate > 0]
    hot.sort(key=lambda i: (-rates[i].write_rate / max(1, rates[i].size_bytes), i))
    targets = sorted((d for d in board.takers if d != source), key=board.heat)[:_COOLEST]
    score = board.heat(source)
    for target in targets:
        for out in hot:
            if _cools(board, source, target, out, None):
                board.begin_step()
                board.move(out, target, Tier.RATE, score)
                return True
    if not board.dirs[source].takes:
        return False
    hottest = sorted(hot, key=lambda i: (-rates[i].write_rate, i))[:_HOTTEST]
    for target in targets:
        pairs = [
            (_bytes_per_rate(board, out, back), out, back)
            for out in hottest
            for _, back in board.free[target]
            if _cools(board, source, target, out, back)
        ]
        if pairs:
            _, out, back = min(pairs)
            _swap(board, out, back, source, target, Tier.RATE, score)
            return True
    return False


def _cools(board: _Board, source: int, target: int, out: int, back: int | None) -> bool:
    """Return whether replica ``out`` may move from ``source`` to ``target``, and ``back`` the other
    way.

    The targets must have space, the bytes stay within the tolerance, and the write rates become
    more even.
    """
    size, rate = board.replicas[out].size_bytes, board.replicas[out].write_rate
    if size > board.spare[target]:
        return False
    if back is not None:
        other = board.replicas[back]
        if other.size_bytes > board.spare[source]:
            return False
        size, rate = size - other.size_bytes, rate - other.write_rate
    least_share = min(board.rate_share[source], board.rate_share[target])
    gap = board.heat(source) - board.heat(target)
    # As for bytes, both end strictly between their former levels.
    return (
        least_share > 0
        and 0 < rate < gap * least_share
        and board.bytes_in_band(source, target, size)
    )


def _bytes_per_rate(board: _Board, out: int, back: int) -> float:
    a, b = board.replicas[out], board.replicas[back]
    return (a.size_bytes + b.size_bytes) / (a.write_rate - b.write_rate)


def _ordered(moves: Iterable[DirMove]) -> Iterator[DirMove]:
    """Yield the moves sorted by tier and step.

    Scores are lowered so that they never rise within a tier: a limit on the plan then keeps its
    first moves.
    """
    ceiling = float("inf")
    tier: Tier | None = None
    for move in sorted(moves, key=lambda move: (move.tier, move.step)):
        if move.tier is not tier:
            tier, ceiling = move.tier, float("inf")
        ceiling = min(ceiling, move.score)
        yield DirMove(
            replica=move.replica,
            target=move.target,
            tier=move.tier,
            step=move.step,
            score=ceiling,
        )
