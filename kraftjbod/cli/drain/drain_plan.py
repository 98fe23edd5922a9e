"""WIRE. Plans the new directories of the replicas on a drained directory or broker, by their sizes.

* The largest replica is placed first, in the directory with the most free bytes left.
* A replica is placed only where it fits. A replica without a place is reported with the largest
  free space.
* A broker never gets a second replica of a partition.
* Directories of the same broker are preferred. Other brokers are used if that is requested or the
  whole broker is drained. Among them, brokers in a rack without a replica of the partition are
  preferred.
* Moves in progress continue, and their bytes are subtracted.

Input and output are plain values, and no cluster is contacted, so other planners can use this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from kraftjbod.cli.reassignment.reassignment_plan import Replica
from kraftjbod.core.ids import TopicPartition


class Scope(Enum):
    """The brokers to which a drain may move replicas: only their own, preferably their own, or only
    others."""

    WITHIN_BROKER = "within_broker"
    BROKER_FIRST = "broker_first"
    OTHER_BROKERS = "other_brokers"


class Place(NamedTuple):
    """A directory of a broker."""

    broker_id: int
    path: str

    def __str__(self) -> str:
        return f"{self.broker_id}:{self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenPlace:
    """A directory that accepts new replicas.

    ``free_bytes`` is the space for them; negative if less is free than the broker keeps free.
    """

    place: Place
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """A replica that has to be moved.

    ``source`` is the path of its directory; empty if unknown, because the broker is not alive.
    ``holders`` are the brokers that have or will get a replica of the partition. ``under_way`` is
    the target of a move in progress, with ``copied_bytes`` there.
    """

    replica: Replica
    source: str
    size_bytes: int
    holders: frozenset[int]
    under_way: Place | None = None
    copied_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A replica and its new place.

    ``shares_rack``: another replica of the partition is in the rack of that place.
    """

    replica: Replica
    source: str
    target: Place
    size_bytes: int
    is_under_way: bool = False
    shares_rack: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """A replica that fits in no directory.

    ``best_free_bytes`` is the largest free space of the directories that may take it; None if no
    directory may.
    """

    replica: Replica
    size_bytes: int
    best_free_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainPlan:
    moves: tuple[Move, ...]
    misfits: tuple[Misfit, ...]

    @property
    def size_bytes(self) -> int:
        """Total size of the moved replicas."""
        return sum(move.size_bytes for move in self.moves)


_NO_RACK: Final = None


class _FreeSpace:
    """Free bytes by place, which shrink as replicas are placed."""

    def __init__(self, open_places: Iterable[OpenPlace], racks: Mapping[int, str | None]) -> None:
        self._free = {one.place: one.free_bytes for one in open_places}
        self._racks = racks

    def take(self, place: Place, size_bytes: int) -> None:
        if place in self._free:
            self._free[place] -= size_bytes

    def best(self, leaving: Leaving, *, is_same_broker: bool) -> tuple[Place, bool] | None:
        """Return the best place, and whether it shares a rack; None if no directory is open.

        The place may be too small, if the replica fits nowhere.

        :param is_same_broker: whether to search the replica's broker, or else the others.
        """
        ranked = [
            ((not self.fits(place, leaving), self._shares_rack(place, leaving), -free), place)
            for place, free in self._free.items()
            if self._is_open(place, leaving, is_same_broker=is_same_broker)
        ]
        if not ranked:
            return None
        (_, shares, _), place = min(ranked)
        return place, shares

    def fits(self, place: Place, leaving: Leaving) -> bool:
        return self._free[place] >= leaving.size_bytes

    def most_free(self, leaving: Leaving, scope: Scope) -> int | None:
        """Return the largest free space of all places that the replica may use; None without such a
        place."""
        free = [
            free
            for place, free in self._free.items()
            for is_same in _ORDER[scope]
            if self._is_open(place, leaving, is_same_broker=is_same)
        ]
        return max(free, default=None)

    def _is_open(self, place: Place, leaving: Leaving, *, is_same_broker: bool) -> bool:
        if is_same_broker:
            return place.broker_id == leaving.replica.broker_id and place.path != leaving.source
        return place.broker_id not in leaving.holders

    def _shares_rack(self, place: Place, leaving: Leaving) -> bool:
        if place.broker_id == leaving.replica.broker_id:
            return False
        rack = self._racks.get(place.broker_id)
        others = leaving.holders - {leaving.replica.broker_id}
        return rack is not _NO_RACK and rack in {self._racks.get(other) for other in others}


#: Per scope: search within the broker (True) or on others, in this order.
_ORDER: Final[Mapping[Scope, tuple[bool, ...]]] = {
    Scope.WITHIN_BROKER: (True,),
    Scope.BROKER_FIRST: (True, False),
    Scope.OTHER_BROKERS: (False,),
}


def plan_drain(
    leaving: Iterable[Leaving],
    open_places: Iterable[OpenPlace],
    *,
    scope: Scope,
    racks: Mapping[int, str | None] | None = None,
) -> DrainPlan:
    """Return a place in ``open_places`` for each replica, or the reason why it has none. A replica
    whose move is in progress keeps the target of the move.

    :param leaving: the replicas; at most one of each partition.
    :param open_places: the open directories without those of the source.
    :param racks: rack by broker id.
    """
    everything = sorted(leaving, key=lambda one: (-one.size_bytes, one.replica))
    free = _FreeSpace(open_places, racks or {})
    moves: list[Move] = []
    misfits: list[Misfit] = []
    seen: set[TopicPartition] = set()
    for one in everything:
        assert one.replica.topic_partition not in seen, one
        seen.add(one.replica.topic_partition)
        if one.under_way is not None:
            free.take(one.under_way, max(0, one.size_bytes - one.copied_bytes))
            moves.append(_move(one, one.under_way, is_under_way=True))
    for one in everything:
        if one.under_way is not None:
            continue
        found = _find(one, free, scope)
        if found is None:
            misfits.append(
                Misfit(
                    replica=one.replica,
                    size_bytes=one.size_bytes,
                    best_free_bytes=free.most_free(one, scope),
                )
            )
            continue
        place, shares_rack = found
        free.take(place, one.size_bytes)
        moves.append(_move(one, place, shares_rack=shares_rack))
    return DrainPlan(moves=tuple(moves), misfits=tuple(misfits))


def _find(one: Leaving, free: _FreeSpace, scope: Scope) -> tuple[Place, bool] | None:
    for is_same_broker in _ORDER[scope]:
        best = free.best(one, is_same_broker=is_same_broker)
        if best is not None and free.fits(best[0], one):
            return best
    return None


def _move(
    one: Leaving, target: Place, *, is_under_way: bool = False, shares_rack: bool = False
) -> Move:
    return Move(
        replica=one.replica,
        source=one.source,
        target=target,
        size_bytes=one.size_bytes,
        is_under_way=is_under_way,
        shares_rack=shares_rack,
    )
