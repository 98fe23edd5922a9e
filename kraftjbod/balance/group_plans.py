"""PURE. The parts of a plan that are about one broker's replicas at a time.

plan_cluster calls them one after the other in one process, Spark calls them side by side on its
executors. Each sorts what it is given, so that the order in which replicas come says nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from kraftjbod.balance.fair_shares import Goals
from kraftjbod.balance.placement import Placed
from kraftjbod.balance.plan_limits import LimitedMove
from kraftjbod.balance.planner import ReplicaLoad, Tier, plan_broker
from kraftjbod.balance.transfer_planner import Candidate, DirSums, Racks, Task, choose


class Rank(NamedTuple):
    """Where a move comes among all; ``step`` numbers what belongs together on one broker."""

    tier: int
    score: float
    step: int


class Crossing(NamedTuple):
    """A replica that changes brokers, without a directory yet."""

    topic: str
    partition: int
    from_broker: int
    to_broker: int
    size_bytes: int
    write_rate: float
    tier: int
    score: float
    step: int

    @property
    def rank(self) -> Rank:
        return Rank(self.tier, self.score, self.step)


class Home(NamedTuple):
    """A replica by the broker that shall have it; ``rank`` is None for one that does not cross."""

    topic: str
    partition: int
    from_broker: int
    path: str
    size_bytes: int
    write_rate: float
    is_movable: bool
    rank: Rank | None


class Move(NamedTuple):
    """One replica that moves, and where it comes among all moves (:class:`Rank`)."""

    topic: str
    partition: int
    from_broker: int
    from_path: str
    to_broker: int
    to_path: str
    size_bytes: int
    write_rate: float
    tier: int
    score: float
    step: int


def draw(topic: str, partition: int, turn: int, among: int) -> int:
    """A number below ``among``, the same for the same partition and turn, wherever it is asked."""
    text = f"{topic}-{partition}-{turn}".encode()
    return int(hashlib.md5(text, usedforsecurity=False).hexdigest()[:8], 16) % max(1, among)


def is_candidate(
    one: Placed, sources: Collection[int], drained: Collection[int], turn: int
) -> bool:
    """Whether a replica may leave ``sources`` in this turn: of each partition one broker's only.

    ``drained`` brokers come before others.
    """
    if not one.is_movable or one.broker_id not in sources:
        return False
    brokers = one.brokers or ()
    pool = [broker for broker in brokers if broker in drained] or [
        broker for broker in brokers if broker in sources
    ]
    return pool[draw(one.topic, one.partition, turn, len(pool))] == one.broker_id


def crossings_of_broker(task: Task, candidates: Iterable[Placed], racks: Racks) -> list[Crossing]:
    """What one broker sends to others, of the replicas that may leave it."""
    rows = sorted(candidates, key=lambda one: one[:2])
    choices = choose(
        task,
        [
            Candidate(
                path=one.path,
                size_bytes=one.size_bytes,
                write_rate=one.write_rate,
                brokers=tuple(one.brokers or ()),
                must_leave=one.must_leave,
            )
            for one in rows
        ],
        racks,
    )
    return [
        Crossing(
            *rows[choice.candidate][:2],
            from_broker=task.load.broker_id,
            to_broker=choice.target,
            size_bytes=rows[choice.candidate].size_bytes,
            write_rate=rows[choice.candidate].write_rate,
            tier=int(choice.tier),
            score=choice.score,
            step=step,
        )
        for step, choice in enumerate(choices)
    ]


def moves_of_broker(dirs: Iterable[DirSums], homes: Iterable[Home], goals: Goals) -> Iterator[Move]:
    """What moves into directories of one broker, from within and from others.

    A crossing that finds no place in any directory stays out.
    """
    places = sorted(dirs, key=lambda one: one.path)
    number = {one.path: index for index, one in enumerate(places)}
    # What lies in a directory that nobody reports cannot be planned with.
    known = sorted(
        (one for one in homes if one.rank is not None or one.path in number),
        key=lambda one: one[:4],
    )
    if not places or not known:
        return
    replicas = [
        ReplicaLoad(
            directory=None if one.rank is not None else number[one.path],
            size_bytes=one.size_bytes,
            write_rate=one.write_rate,
            is_movable=one.is_movable,
        )
        for one in known
    ]
    broker = places[0].broker_id
    for move in plan_broker([one.load for one in places], replicas, goals).moves:
        one = known[move.replica]
        rank = one.rank or Rank(int(move.tier), move.score, move.step)
        yield Move(
            *one[:4], broker, places[move.target].path, one.size_bytes, one.write_rate, *rank
        )


def order(one: Move) -> tuple[int | float | str, ...]:
    """Moves in the order of their use: what they are for, how full their source is.

    What goes to another broker comes before what plans within brokers have made of that. The
    partition is in it only so that the same plan is limited the same way.
    """
    is_within = one.from_broker == one.to_broker
    first = 0 if one.tier == Tier.DRAIN else 2 if is_within else 1
    ends = (one.from_broker, one.to_broker, one.step)
    return (first, one.tier, -one.score, *ends, one.topic, one.partition)


def limited_move(one: Move) -> LimitedMove:
    """What a limit goes by."""
    is_within = one.from_broker == one.to_broker
    alone = None if is_within else (one.topic, one.partition)
    return LimitedMove(
        unit=(one.from_broker, one.to_broker, one.tier, one.step, alone),
        tier=Tier(one.tier),
        source=(one.from_broker, one.from_path),
        target=(one.to_broker, one.to_path),
        size_bytes=one.size_bytes,
    )


def by_broker(dirs: Sequence[DirSums]) -> dict[int, list[DirSums]]:
    """Directories in groups, brokers ascending."""
    groups: dict[int, list[DirSums]] = {}
    for one in sorted(dirs, key=lambda one: (one.broker_id, one.path)):
        groups.setdefault(one.broker_id, []).append(one)
    return groups
