"""PURE. The steps of a plan that look at one broker's replicas at a time.

`plan_cluster` calls them one after the other in one process. Spark calls them in parallel on its
executors. Each step sorts its input, so that the order of replicas does not matter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from kraftjbod.balance.fair_shares import Goals
from kraftjbod.balance.placement import Placed
from kraftjbod.balance.plan_limits import LimitedMove
from kraftjbod.balance.planner import ReplicaLoad, Tier, plan_broker
from kraftjbod.balance.transfer_planner import Candidate, DirSums, Racks, Task, choose


class Rank(NamedTuple):
    """Position of a move in its phase of the plan: by ascending ``tier``, then descending
    ``score``.

    ``step`` groups moves of a broker that belong together.
    """

    tier: int
    score: float
    step: int


class Crossing(NamedTuple):
    """A replica that changes brokers and has no target directory yet.

    ``write_rate`` is in bytes per second. The last three fields are the move's :class:`Rank`.
    """

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
    """A replica, seen by the broker on which it will be once replicas have changed brokers.

    ``path`` is its present directory on ``from_broker``. ``write_rate`` is in bytes per second.
    ``rank`` is None if it stays on its broker.
    """

    topic: str
    partition: int
    from_broker: int
    path: str
    size_bytes: int
    write_rate: float
    is_movable: bool
    rank: Rank | None


class Move(NamedTuple):
    """One replica that moves, and its position among all moves (:class:`Rank`). ``write_rate`` is
    in bytes per second.
    """

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
    phase: int
    """0 for drains, 1 for other moves between brokers, 2 for other moves within a broker."""


#: Columns that sort moves: phase and purpose first, then how full the source is (``score`` is
#: descending). Moves within brokers were planned on top of those between brokers. The partition
#: makes the order, and so the effect of a limit, deterministic.
ORDER: Final = (
    "phase",
    "tier",
    "score",
    "from_broker",
    "to_broker",
    "step",
    "topic",
    "partition",
)


def draw(topic: str, partition: int, turn: int, among: int) -> int:
    """Return a pseudo-random number from 0 to ``among - 1``, determined by partition and turn."""
    text = f"{topic}-{partition}-{turn}".encode()
    return int(hashlib.md5(text, usedforsecurity=False).hexdigest()[:8], 16) % max(1, among)


def is_candidate(
    one: Placed, sources: Collection[int], drained: Collection[int], turn: int
) -> bool:
    """Return whether a replica may leave its broker in this turn.

    Of each partition, at most one replica is a candidate: one on a ``drained`` broker if there is
    one, else one on a broker of ``sources``.
    """
    if not one.is_movable or one.broker_id not in sources:
        return False
    brokers = one.brokers or ()
    pool = [broker for broker in brokers if broker in drained] or [
        broker for broker in brokers if broker in sources
    ]
    return pool[draw(one.topic, one.partition, turn, len(pool))] == one.broker_id


def crossings_of_broker(task: Task, candidates: Iterable[Placed], racks: Racks) -> list[Crossing]:
    """Choose the replicas that one broker sends to others; return them with their targets.

    :param task: the broker's transfers.
    :param candidates: the replicas that may leave it.
    """
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
    """Yield the moves into directories of one broker, from its own and from other brokers.

    A crossing that fits into no directory is dropped.
    """
    places = sorted(dirs, key=lambda one: one.path)
    number = {one.path: index for index, one in enumerate(places)}
    # Replicas in a directory without a report cannot be planned.
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
        phase = 0 if rank.tier == Tier.DRAIN else 2 if one.from_broker == broker else 1
        path = places[move.target].path
        yield Move(*one[:4], broker, path, one.size_bytes, one.write_rate, *rank, phase)


def order(one: Move) -> tuple[int | float | str, ...]:
    """Return the sort key of a move: the columns of :data:`ORDER`."""
    return tuple(-one.score if name == "score" else getattr(one, name) for name in ORDER)


def limited_move(one: Move) -> LimitedMove:
    """Convert a move to the form that :mod:`plan_limits` reads.

    The moves of a swap have one ``unit``, which a limit keeps or drops as a whole.
    """
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
    """Group directories by broker, in ascending order."""
    groups: dict[int, list[DirSums]] = {}
    for one in sorted(dirs, key=lambda one: (one.broker_id, one.path)):
        groups.setdefault(one.broker_id, []).append(one)
    return groups
