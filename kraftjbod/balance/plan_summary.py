"""PURE. The result of a plan in figures and as text: before, after, and the goals it misses.

Shares are those of fair_shares.py: of each broker's bytes, or of the cluster's bytes if replicas
may change brokers.

:attr:`PlanFigures.least_bytes` is a lower bound: any plan that brings every directory within the
tolerance of its share moves at least so many bytes. Proof: the shares are the same for every plan,
because they depend only on the bytes before the plan. Bytes leave a directory only by moves, so
the bytes above ``share * (1 + tolerance)`` must be moved out of it. Summed over directories, no
byte is counted twice. Likewise the bytes that a directory lacks below
``share * (1 - tolerance)`` must be moved into it. The larger of the two sums is the bound.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import pstdev
from typing import Any, Final, NamedTuple

from kraftjbod.balance.fair_shares import DirLoad, byte_band, shares
from kraftjbod.balance.planner import Tier
from kraftjbod.balance.transfer_planner import DirSums, Sent
from kraftjbod.core.text.size_text import size_text

#: Longer lists of directories, brokers or missed goals are not printed in full.
MOST_LINES: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDir:
    """One directory before and after the plan.

    ``load`` and ``fixed_bytes``, the bytes that no move can remove, are the planner's input.
    ``largest_bytes`` is the size of the largest replica before the plan. Write rates are bytes per
    second.
    """

    broker_id: int
    path: str
    rack: str | None = None
    load: DirLoad
    fixed_bytes: int
    largest_bytes: int
    bytes_before: int
    bytes_after: int
    write_rate_before: float
    write_rate_after: float
    replicas_before: int
    replicas_after: int

    @staticmethod
    def of_sums(one: DirSums, more: Sent) -> PlannedDir:
        """Return the directory with ``more``, the sum of arriving less leaving replicas, added."""
        return PlannedDir(
            broker_id=one.broker_id,
            path=one.path,
            rack=one.rack,
            load=one.load,
            fixed_bytes=one.fixed_bytes,
            largest_bytes=one.largest_bytes,
            bytes_before=one.size_bytes,
            bytes_after=one.size_bytes + more.size_bytes,
            write_rate_before=one.write_rate,
            # A sum of floats may be slightly below zero.
            write_rate_after=max(0.0, one.write_rate + more.write_rate),
            replicas_before=one.replicas,
            replicas_after=one.replicas + more.replicas,
        )


class MoveGroup(NamedTuple):
    """Moves of one purpose, all of them between brokers or all within brokers."""

    is_across: bool
    tier: int
    moves: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveCounts:
    """Numbers and bytes of moves. The ``across`` fields cover moves to another broker,
    ``moved_bytes_for_rate`` moves of the tier RATE.
    """

    moves: int
    moved_bytes: int
    moves_across: int
    moved_bytes_across: int
    moved_bytes_for_rate: int

    @staticmethod
    def of_groups(groups: Sequence[MoveGroup]) -> MoveCounts:
        """Return the total counts and bytes of the moves in ``groups``."""
        across = [one for one in groups if one.is_across]
        return MoveCounts(
            moves=sum(one.moves for one in groups),
            moved_bytes=sum(one.size_bytes for one in groups),
            moves_across=sum(one.moves for one in across),
            moved_bytes_across=sum(one.size_bytes for one in across),
            moved_bytes_for_rate=sum(one.size_bytes for one in groups if one.tier == Tier.RATE),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Fill levels of directories as fractions of their sizes; ``mean`` is all bytes over all sizes.

    ``skew`` is ``fullest`` over ``mean``, ``rate_skew`` the highest write rate over the mean of
    all; each is 1.0 if that mean is 0. ``deviation`` is the standard deviation of the fractions.
    """

    fullest: float
    emptiest: float
    mean: float
    skew: float
    deviation: float
    rate_skew: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFigures(MoveCounts):
    """Figures of a whole plan. The spreads cover only directories that take replicas.

    No plan that meets the goals moves less than ``least_bytes``. ``missed`` has a line for each
    directory that stays outside the tolerance.
    """

    least_bytes: int
    before: Spread
    after: Spread
    missed: tuple[str, ...]


def figures(
    dirs: Sequence[PlannedDir],
    *,
    moves: MoveCounts,
    tolerance: float,
    across_brokers: bool,
) -> PlanFigures:
    """Compute the figures of a plan; with ``across_brokers`` shares are those of the cluster."""
    wanted = _shares(dirs, across_brokers=across_brokers)
    above = sum(
        max(0.0, one.bytes_before - share * (1 + tolerance))
        for one, share in zip(dirs, wanted, strict=True)
    )
    below = sum(
        max(0.0, share * (1 - tolerance) - one.bytes_before)
        for one, share in zip(dirs, wanted, strict=True)
    )
    return PlanFigures(
        **asdict(moves),
        least_bytes=round(max(above, below)),
        before=spread(dirs, is_after=False),
        after=spread(dirs, is_after=True),
        missed=tuple(_missed(dirs, wanted, tolerance)),
    )


def spread(dirs: Iterable[PlannedDir], *, is_after: bool) -> Spread:
    """Compute the spread over the directories that take replicas."""
    open_dirs = [one for one in dirs if one.load.takes and one.load.total_bytes > 0]
    held = [one.bytes_after if is_after else one.bytes_before for one in open_dirs]
    rates = [one.write_rate_after if is_after else one.write_rate_before for one in open_dirs]
    fills = [size / one.load.total_bytes for size, one in zip(held, open_dirs, strict=True)]
    mean = sum(held) / sum(one.load.total_bytes for one in open_dirs) if open_dirs else 0.0
    all_rate = sum(rates)
    return Spread(
        fullest=max(fills, default=0.0),
        emptiest=min(fills, default=0.0),
        mean=mean,
        skew=max(fills) / mean if mean > 0 else 1.0,
        deviation=pstdev(fills) if fills else 0.0,
        rate_skew=max(rates) * len(rates) / all_rate if all_rate > 0 else 1.0,
    )


def as_json(plan: PlanFigures) -> dict[str, Any]:
    return asdict(plan)


def lines(dirs: Sequence[PlannedDir], plan: PlanFigures) -> list[str]:
    """Return the plan as text: a table, the totals, and the missed goals.

    The table has directories, or brokers if there are more than 40 directories. It is left out if
    nothing moves, or for more than 40 brokers.
    """
    brokers = _by_broker(dirs)
    tables = []
    if plan.moves and len(dirs) <= MOST_LINES:
        tables += _table(
            ("directory", "size", "bytes", "after", "full", "after", "written", "after"),
            [_dir_cells(one) for one in dirs],
        )
    elif plan.moves and len(brokers) <= MOST_LINES:
        tables += _table(
            ("broker", "bytes", "after", "skew", "after", "fullest", "after"),
            [_broker_cells(broker, own) for broker, own in brokers.items()],
        )
    return [
        *tables,
        f"skew {plan.before.skew:.2f} -> {plan.after.skew:.2f}, fullest "
        f"{plan.before.fullest:.2%} -> {plan.after.fullest:.2%} of its size, write rate skew "
        f"{plan.before.rate_skew:.2f} -> {plan.after.rate_skew:.2f}",
        f"{plan.moves:,} replicas move, {size_text(plan.moved_bytes)}; "
        f"{size_text(plan.moved_bytes_for_rate)} of it for the write rate; "
        f"{plan.moves_across:,} of them, {size_text(plan.moved_bytes_across)}, change brokers; "
        f"no plan can even out the bytes with less than {size_text(plan.least_bytes)}",
        *plan.missed[:MOST_LINES],
        *([f"... and {len(plan.missed) - MOST_LINES} more"] * (len(plan.missed) > MOST_LINES)),
    ]


def _shares(dirs: Sequence[PlannedDir], *, across_brokers: bool) -> list[float]:
    groups: Iterable[list[int]] = [list(range(len(dirs)))]
    if not across_brokers:
        by_broker: dict[int, list[int]] = defaultdict(list)
        for index, one in enumerate(dirs):
            by_broker[one.broker_id].append(index)
        groups = by_broker.values()
    wanted = [0.0] * len(dirs)
    for own in groups:
        bands = [byte_band(dirs[i].load, dirs[i].bytes_before, dirs[i].fixed_bytes) for i in own]
        dealt = shares(bands, sum(dirs[i].bytes_before for i in own))
        for index, share in zip(own, dealt, strict=True):
            wanted[index] = share
    return wanted


def _missed(dirs: Sequence[PlannedDir], wanted: Sequence[float], tolerance: float) -> Iterator[str]:
    """Yield the directories that stay outside the tolerance, worst first, with the known reason."""
    found: list[tuple[float, str]] = []
    for one, share in zip(dirs, wanted, strict=True):
        place = f"{one.broker_id}:{one.path}"
        if one.load.is_drained:
            if one.replicas_after:
                text = f"{place} keeps {one.replicas_after} replicas: {_why_kept(one)}"
                found.append((float("inf"), text))
            continue
        off = one.bytes_after - share
        if not one.load.gives or abs(off) <= share * tolerance + 1:
            continue
        word = "above" if off > 0 else "below"
        far = abs(off) / share if share else float("inf")
        text = f"{place} stays {size_text(abs(off))} ({far:.0%}) {word} its share"
        if off > 0 and one.largest_bytes > share * tolerance:
            text += f"; its largest replica has {size_text(one.largest_bytes)}"
        found.append((far, text))
    for _, text in sorted(found, key=lambda pair: -pair[0]):
        yield text


def _why_kept(one: PlannedDir) -> str:
    if not one.load.gives:
        return "it cannot be read"
    return (
        "no open directory has the free space for them, or what moves was limited; plan again later"
    )


def _by_broker(dirs: Iterable[PlannedDir]) -> dict[int, list[PlannedDir]]:
    grouped: dict[int, list[PlannedDir]] = defaultdict(list)
    for one in dirs:
        grouped[one.broker_id].append(one)
    return grouped


def _dir_cells(one: PlannedDir) -> tuple[str, ...]:
    total = one.load.total_bytes
    fills = (one.bytes_before / total, one.bytes_after / total) if total else (0.0, 0.0)
    return (
        f"{one.broker_id}:{one.path}",
        size_text(total),
        size_text(one.bytes_before),
        size_text(one.bytes_after),
        *(f"{fill:.2%}" for fill in fills),
        f"{size_text(one.write_rate_before)}/s",
        f"{size_text(one.write_rate_after)}/s",
    )


def _broker_cells(broker: int, own: Sequence[PlannedDir]) -> tuple[str, ...]:
    before, after = spread(own, is_after=False), spread(own, is_after=True)
    return (
        str(broker),
        size_text(sum(one.bytes_before for one in own)),
        size_text(sum(one.bytes_after for one in own)),
        f"{before.skew:.2f}",
        f"{after.skew:.2f}",
        f"{before.fullest:.2%}",
        f"{after.fullest:.2%}",
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Format a table with the first column left-aligned and the others right-aligned."""
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    return [
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (heads, *rows)
    ]
