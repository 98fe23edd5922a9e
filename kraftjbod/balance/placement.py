"""PURE. The replicas and directories of a cluster, and the rules for moving them.

The input is a report of the cluster or its telemetry (:class:`LogDir`, :class:`Replica`).
The rules:

* A replica that is already moving counts in its target with its final size, and no plan moves it.
* Only a directory that is online, not cordoned and not drained takes replicas. A plan fills at most
  :data:`SAFE_SHARE` of its free bytes. Replicas in offline or stalled directories do not move.
* A replica moves only if its partition's assignment contains its broker.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kraftjbod.balance.fair_shares import DirLoad, Goals
from kraftjbod.balance.transfer_planner import DirSums
from kraftjbod.core.errors import StartupError
from kraftjbod.core.log_dir_state import LogDirState

#: Fraction of a directory's free bytes that a plan may fill. Appends continue during the copy.
SAFE_SHARE: Final = 0.8

_OPEN: Final[str] = LogDirState.ONLINE.value
_READABLE: Final = frozenset({LogDirState.ONLINE.value, LogDirState.SATURATED.value})


class LogDir(NamedTuple):
    """One log directory of one broker; ``state`` is the value of a ``LogDirState``."""

    broker_id: int
    rack: str | None
    path: str
    directory_id: str | None
    state: str
    is_cordoned: bool
    total_bytes: int
    free_bytes: int


class Replica(NamedTuple):
    """One replica in its directory; ``brokers`` is its partition's assignment, None if unknown.

    ``is_future`` marks the future replica of a move, or a replica that a pending reassignment adds.
    ``write_rate`` is in bytes per second.
    """

    topic: str
    partition: int
    broker_id: int
    path: str
    size_bytes: int
    write_rate: float
    is_leader: bool
    is_future: bool
    brokers: Sequence[int] | None


class Placed(NamedTuple):
    """A replica at the place that it has after all pending moves and reassignments.

    ``pending_bytes`` have not been copied there yet. ``write_rate`` is in bytes per second.
    ``brokers`` is the partition's assignment, None if unknown. ``is_movable`` is whether a plan may
    move the replica, ``must_leave`` whether it may and its directory or broker is drained.
    """

    topic: str
    partition: int
    broker_id: int
    path: str
    size_bytes: int
    pending_bytes: int
    write_rate: float
    brokers: Sequence[int] | None
    is_movable: bool
    must_leave: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """A directory to be emptied, or a whole broker if ``path`` is None."""

    broker_id: int
    path: str | None = None

    def __str__(self) -> str:
        return f"broker {self.broker_id}" if self.path is None else f"{self.broker_id}:{self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """Goals and limits of a plan; None means no limit."""

    goals: Goals = field(default_factory=Goals)
    across_brokers: bool = False
    drains: tuple[Drain, ...] = ()
    max_moves: int | None = None
    max_bytes: int | None = None


def empty_dirs(log_dirs: Iterable[LogDir], drains: Collection[Drain] = ()) -> list[DirSums]:
    """Return the load of each directory, with sums of zero.

    An online directory takes replicas unless it is cordoned or drained. Replicas can leave an
    online or a saturated directory.

    :param drains: the directories and brokers to be emptied.
    """
    drained = {(drain.broker_id, drain.path) for drain in drains}
    found = []
    for one in log_dirs:
        is_drained = not drained.isdisjoint(((one.broker_id, None), (one.broker_id, one.path)))
        takes = one.state == _OPEN and not one.is_cordoned and not is_drained
        load = DirLoad(
            total_bytes=one.total_bytes,
            spare_bytes=math.floor(one.free_bytes * SAFE_SHARE) if takes else 0,
            takes=takes,
            gives=one.state in _READABLE,
            is_drained=is_drained,
        )
        found.append(
            DirSums(
                broker_id=one.broker_id,
                path=one.path,
                load=load,
                size_bytes=0,
                fixed_bytes=0,
                write_rate=0.0,
                fixed_rate=0.0,
                replicas=0,
                rack=one.rack,
            )
        )
    return found


def placed_replicas(replicas: Iterable[Replica], dirs: Iterable[DirSums]) -> list[Placed]:
    """Return each replica once, at the place that it has after pending moves and reassignments.
    Movable are replicas without a pending move, in a directory that gives (:class:`DirLoad`), on a
    broker of their assignment.
    """
    loads = {(one.broker_id, one.path): one.load for one in dirs}
    current: list[Replica] = []
    future: dict[tuple[str, int, int], list[Replica]] = defaultdict(list)
    for one in replicas:
        if one.is_future:
            future[one[:3]].append(one)
        else:
            current.append(one)
    found = []
    for one in current:
        copies = future.pop(one[:3], None)
        if copies is not None:
            found += [_moving(one, copy) for copy in copies]
            continue
        load = loads.get((one.broker_id, one.path))
        is_movable = load is not None and load.gives and one.broker_id in (one.brokers or ())
        must_leave = load is not None and is_movable and load.is_drained
        found.append(Placed(*one[:5], 0, one.write_rate, one.brokers, is_movable, must_leave))
    return found + [_moving(one, one) for copies in future.values() for one in copies]


def _moving(current: Replica, future: Replica) -> Placed:
    return Placed(
        *current[:3],
        path=future.path,
        size_bytes=max(current.size_bytes, future.size_bytes),
        pending_bytes=max(0, current.size_bytes - future.size_bytes),
        write_rate=current.write_rate,
        brokers=current.brokers,
        is_movable=False,
        must_leave=False,
    )


@dataclass(slots=True)
class _Held:
    """Sums of the replicas in one directory."""

    size_bytes: int = 0
    fixed_bytes: int = 0
    pending_bytes: int = 0
    write_rate: float = 0.0
    fixed_rate: float = 0.0
    replicas: int = 0
    largest_bytes: int = 0

    def add(self, one: Placed) -> None:
        self.size_bytes += one.size_bytes
        self.pending_bytes += one.pending_bytes
        self.write_rate += one.write_rate
        self.replicas += 1
        self.largest_bytes = max(self.largest_bytes, one.size_bytes)
        if not one.is_movable:
            self.fixed_bytes += one.size_bytes
            self.fixed_rate += one.write_rate


def filled_dirs(dirs: Iterable[DirSums], placed: Iterable[Placed]) -> list[DirSums]:
    """Return the directories with the sums of their replicas, sorted by broker and path.

    Pending bytes reduce the spare bytes at once. The order makes sums of floats reproducible.
    """
    held: dict[tuple[int, str], _Held] = defaultdict(_Held)
    for one in placed:
        held[one.broker_id, one.path].add(one)
    ordered = sorted(dirs, key=lambda one: (one.broker_id, one.path))
    return [_filled(one, held[one.broker_id, one.path]) for one in ordered]


def _filled(one: DirSums, held: _Held) -> DirSums:
    load = one.load
    return DirSums(
        broker_id=one.broker_id,
        path=one.path,
        rack=one.rack,
        load=DirLoad(
            total_bytes=load.total_bytes,
            spare_bytes=max(0, load.spare_bytes - held.pending_bytes),
            takes=load.takes,
            gives=load.gives,
            is_drained=load.is_drained,
        ),
        size_bytes=held.size_bytes,
        fixed_bytes=held.fixed_bytes,
        write_rate=held.write_rate,
        fixed_rate=held.fixed_rate,
        replicas=held.replicas,
        largest_bytes=held.largest_bytes,
    )


def require_known(dirs: Sequence[DirSums], drains: Iterable[Drain]) -> None:
    """Require a known directory, and that ``drains`` name known directories or brokers.

    :raises StartupError: no directory is known, or a drain names an unknown one.
    """
    if not dirs:
        raise StartupError("no log directory is known, so there is nothing to plan with")
    for drain in drains:
        own = [one.path for one in dirs if one.broker_id == drain.broker_id]
        if drain.path not in (None, *own) or not own:
            there = ", ".join(own) or f"brokers {sorted({one.broker_id for one in dirs})}"
            raise StartupError(f"--drain {drain}: there is no such directory; there are {there}")
