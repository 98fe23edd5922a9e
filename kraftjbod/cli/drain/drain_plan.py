"""WIRE. Where the replicas of a directory or a broker go when it is emptied: rules by bytes.

* The largest replica first, each to the directory with most free bytes after what is planned.
* Nothing goes where it does not fit; what fits nowhere is reported, with the best that there is.
* A broker never gets a second replica of a partition.
* Within the broker first; to other brokers where that is asked for or the broker itself is left.
  Among those, a broker in a rack that has no other replica of the partition comes first.
* What is on its way already goes on, and its bytes are taken.

Plain values in, plain values out: no cluster is asked here, so other planners can use the rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from kraftjbod.cli.reassignment.reassignment_plan import Replica
from kraftjbod.core.ids import TopicPartition


class Scope(Enum):
    """Where replicas may go."""

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
    """A directory that takes new replicas, and how many bytes of them."""

    place: Place
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """A replica that has to go.

    ``holders`` are the brokers that have the partition, or are about to; ``under_way`` is where it
    is moving already, with ``copied_bytes`` there.
    """

    replica: Replica
    source: str
    size_bytes: int
    holders: frozenset[int]
    under_way: Place | None = None
    copied_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One replica and its new place; ``shares_rack`` if the partition has a replica there."""

    replica: Replica
    source: str
    target: Place
    size_bytes: int
    is_under_way: bool = False
    shares_rack: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """A replica for which there is no space; ``best_free_bytes`` is None where nothing is open."""

    replica: Replica
    size_bytes: int
    best_free_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainPlan:
    moves: tuple[Move, ...]
    misfits: tuple[Misfit, ...]

    @property
    def size_bytes(self) -> int:
        """Of all moves."""
        return sum(move.size_bytes for move in self.moves)


_NO_RACK: Final = None


class _FreeSpace:
    """Free bytes by place, as the plan goes on."""

    def __init__(self, open_places: Iterable[OpenPlace], racks: Mapping[int, str | None]) -> None:
        self._free = {one.place: one.free_bytes for one in open_places}
        self._racks = racks

    def take(self, place: Place, size_bytes: int) -> None:
        if place in self._free:
            self._free[place] -= size_bytes

    def best(self, leaving: Leaving, *, is_same_broker: bool) -> tuple[Place, bool] | None:
        """The place that comes first, and whether it shares a rack; None if nothing is open."""
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
        """Of all places where the replica might have gone."""
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


#: Whether to search within the broker, by turns.
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
    """A place for each replica of ``leaving`` in ``open_places``, or why there is none.

    Each partition may be named once. The source itself must not be among them.
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
