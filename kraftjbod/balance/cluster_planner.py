"""PURE. `plan_cluster`: plan the replica moves of a whole cluster in one process.

First the planner chooses replicas that change brokers, in rounds (:func:`cross_in_turns`). Then it
plans the directories of every broker. A hundred thousand replicas take as long as a start of Java,
so no Spark is needed. Spark uses the same sums and rounds, and runs the steps per broker
(group_plans.py) on its executors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from kraftjbod.balance.fair_shares import Goals
from kraftjbod.balance.group_plans import (
    Crossing,
    Home,
    Move,
    by_broker,
    crossings_of_broker,
    is_candidate,
    limited_move,
    moves_of_broker,
    order,
)
from kraftjbod.balance.placement import (
    LogDir,
    Placed,
    PlanRequest,
    Replica,
    empty_dirs,
    filled_dirs,
    placed_replicas,
    require_known,
)
from kraftjbod.balance.plan_limits import within_limits
from kraftjbod.balance.plan_summary import MoveCounts, MoveGroup, PlannedDir
from kraftjbod.balance.transfer_planner import (
    NOTHING,
    DirSums,
    Racks,
    Sent,
    Task,
    after,
    broker_loads,
    byte_tasks,
    cluster_level,
    rate_tasks,
    without_stuck,
)

#: Each round plans what earlier rounds left over. The first one plans nearly everything.
_BYTE_TURNS: Final = 4
_RATE_TURNS: Final = 1
_OF_TOLERANCE: Final = 0.5

Step = Callable[[str], None]
"""Called with progress messages."""


class Reassigned(NamedTuple):
    """A partition with at least one moving replica: its brokers and their directories, in order.

    An unknown directory is None.
    """

    topic: str
    partition: int
    brokers: Sequence[int]
    log_dirs: Sequence[str | None]
    brokers_before: Sequence[int]
    log_dirs_before: Sequence[str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """The moves, the resulting assignments, and every directory before and after."""

    moves: list[Move]
    partitions: list[Reassigned]
    dirs: list[PlannedDir]

    @property
    def counts(self) -> MoveCounts:
        """Numbers and bytes of all moves."""
        return MoveCounts.of_groups(
            [
                MoveGroup(one.from_broker != one.to_broker, one.tier, 1, one.size_bytes)
                for one in self.moves
            ]
        )


def plan_cluster(
    dirs: Iterable[LogDir],
    replicas: Iterable[Replica],
    request: PlanRequest,
    step: Step = lambda _: None,
) -> ClusterPlan:
    """Plan moves that bring each directory as near to its share as ``request`` allows.

    Replicas change brokers only with ``request.across_brokers``.

    :param step: called with progress messages.
    :raises StartupError: ``dirs`` is empty, or a drain names an unknown broker or directory.
    """
    empty = empty_dirs(dirs, request.drains)
    placed = placed_replicas(replicas, empty)
    known = filled_dirs(empty, placed)
    require_known(known, request.drains)
    step(f"{sum(one.replicas for one in known):,} replicas in {len(known):,} directories")
    crossings: dict[tuple[str, int], Crossing] = {}
    goals = request.goals
    if request.across_brokers:
        crossings = _crossings(placed, known, goals, step)
        goals = cluster_goals(known, goals)
    moves = _moves(placed, known, crossings, goals)
    moves.sort(key=order)
    if request.max_moves is not None or request.max_bytes is not None:
        allowed = within_limits(map(limited_move, moves), request.max_moves, request.max_bytes)
        # The generator ends where the limit is reached.
        moves = [one for one, is_made in zip(moves, allowed, strict=False) if is_made]
    return ClusterPlan(
        moves=moves, partitions=_reassigned(placed, moves), dirs=_planned_dirs(known, moves)
    )


def cluster_goals(dirs: Iterable[DirSums], goals: Goals) -> Goals:
    """Return ``goals`` with ``level`` set to the fill level of the whole cluster, for plans across
    brokers."""
    return replace(goals, level=cluster_level(dirs))


# --- between brokers -----------------------------------------------------------------------------

Pick = Callable[[Mapping[int, Task], Collection[int], int], Iterable[tuple[int, int, Sent]]]
"""Choose replicas for tasks, given the drained brokers and the number of the round.

Yields source broker, target broker, and the sum of any number of chosen replicas."""


def cross_in_turns(
    dirs: Sequence[DirSums], goals: Goals, racks: Racks, pick: Pick, step: Step
) -> None:
    """Let ``pick`` choose the replicas that change brokers, in rounds.

    :param pick: chooses the replicas for the tasks of a round, and keeps the choices.
    :param step: called with progress messages.
    """
    # A part of the tolerance for brokers leaves the rest of it for their directories.
    own_goals = replace(
        goals,
        tolerance=goals.tolerance * _OF_TOLERANCE,
        rate_tolerance=goals.rate_tolerance * _OF_TOLERANCE,
    )
    open_brokers = {one.broker_id for one in dirs if not one.load.is_drained}
    drained = racks.keys() - open_brokers
    loads = broker_loads(dirs)
    stuck: set[int] = set()
    for turn in range(_BYTE_TURNS + _RATE_TURNS):
        wanted = without_stuck(loads, stuck) if stuck else loads
        tasks = (byte_tasks if turn < _BYTE_TURNS else rate_tasks)(wanted, racks, own_goals)
        if not tasks:
            continue
        given: dict[int, Sent] = {}
        taken: dict[int, Sent] = {}
        for source, target, sent in pick(tasks, drained, turn):
            given[source] = given.get(source, NOTHING) + sent
            taken[target] = taken.get(target, NOTHING) + sent
        count = sum(sent.replicas for sent in given.values())
        step(f"turn {turn + 1}: {count:,} replicas leave {len(given)} of {len(tasks)} brokers")
        loads = after(loads, given, taken)
        stuck |= tasks.keys() - given.keys() - drained


def racks_of(dirs: Iterable[DirSums]) -> dict[int, str | None]:
    """Return the rack of each broker by id; None for a broker without a rack."""
    return {one.broker_id: one.rack for one in dirs}


def _crossings(
    placed: Sequence[Placed], dirs: Sequence[DirSums], goals: Goals, step: Step
) -> dict[tuple[str, int], Crossing]:
    """Return the chosen crossings by partition; one replica of a partition crosses at most."""
    racks = racks_of(dirs)
    done: dict[tuple[str, int], Crossing] = {}

    def pick(
        tasks: Mapping[int, Task], drained: Collection[int], turn: int
    ) -> Iterable[tuple[int, int, Sent]]:
        found: dict[int, list[Placed]] = defaultdict(list)
        for one in placed:
            if one[:2] not in done and is_candidate(one, tasks.keys(), drained, turn):
                found[one.broker_id].append(one)
        for source, candidates in sorted(found.items()):
            for crossing in crossings_of_broker(tasks[source], candidates, racks):
                done[crossing.topic, crossing.partition] = crossing
                yield source, crossing.to_broker, sent_by(crossing)

    cross_in_turns(dirs, goals, racks, pick, step)
    return done


# --- between the directories of brokers ----------------------------------------------------------


def sent_by(one: Crossing | Move) -> Sent:
    """Return the size and write rate of one moving replica as sums over one replica."""
    return Sent(size_bytes=one.size_bytes, write_rate=one.write_rate, replicas=1)


def _moves(
    placed: Iterable[Placed],
    dirs: Sequence[DirSums],
    crossings: Mapping[tuple[str, int], Crossing],
    goals: Goals,
) -> list[Move]:
    homes: dict[int, list[Home]] = defaultdict(list)
    for one in placed:
        crossing = crossings.get((one.topic, one.partition))
        crosses = crossing is not None and crossing.from_broker == one.broker_id
        rank, home = None, one.broker_id
        if crossing is not None and crosses:
            rank, home = crossing.rank, crossing.to_broker
        homes[home].append(Home(*one[:5], one.write_rate, one.is_movable, rank))
    return [
        move
        for broker, own in by_broker(dirs).items()
        for move in moves_of_broker(own, homes[broker], goals)
    ]


# --- the resulting plan ---------------------------------------------------------------------------


def _reassigned(placed: Iterable[Placed], moves: Iterable[Move]) -> list[Reassigned]:
    moving: dict[tuple[str, int], dict[int, tuple[int, str]]] = defaultdict(dict)
    for move in moves:
        moving[move[:2]][move.from_broker] = (move.to_broker, move.to_path)
    paths: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
    brokers: dict[tuple[str, int], Sequence[int]] = {}
    for one in placed:
        if one[:2] in moving:
            paths[one[:2]][one.broker_id] = one.path
            brokers.setdefault(one[:2], one.brokers or ())
    return [reassign(*key, brokers[key], paths[key], moving[key]) for key in sorted(moving)]


def reassign(
    topic: str,
    partition: int,
    brokers: Sequence[int],
    paths: Mapping[int, str],
    moves: Mapping[int, tuple[int, str]],
) -> Reassigned:
    """Return the new assignment of one partition.

    A new replica takes its predecessor's place in the list of brokers, so that preferred leaders
    stay evenly distributed.

    :param paths: the directory of each replica, by broker.
    :param moves: target broker and directory, by source broker.
    """
    ends = [moves.get(broker, (broker, paths.get(broker))) for broker in brokers]
    return Reassigned(
        topic,
        partition,
        brokers=tuple(broker for broker, _ in ends),
        log_dirs=tuple(path for _, path in ends),
        brokers_before=tuple(brokers),
        log_dirs_before=tuple(paths.get(broker) for broker in brokers),
    )


def _planned_dirs(dirs: Iterable[DirSums], moves: Iterable[Move]) -> list[PlannedDir]:
    """Return every directory before and after the moves."""
    ends: dict[tuple[int, str], Sent] = defaultdict(lambda: NOTHING)
    for move in moves:
        sent = sent_by(move)
        ends[move.from_broker, move.from_path] += -sent
        ends[move.to_broker, move.to_path] += sent
    return [PlannedDir.of_sums(one, ends[one.broker_id, one.path]) for one in dirs]
