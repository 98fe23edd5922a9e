"""The baseline of the planner's bench: everything in one process, from the fullest to the emptiest.

It is the algorithm of a simple script with the sizes of all directories: move the largest replica
that fits from the fullest directory to the emptiest one, until the tolerance is reached. It keeps
the planner's constraints (space, usable directories, replicas, racks), and ignores write rates.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kraftjbod.balance.transfer_planner import DirSums

#: Limit of moves between brokers, so that the bench ends.
MAX_CROSSINGS: Final = 400_000


@dataclass(slots=True)
class Place:
    """A directory; replicas are indexes."""

    broker: int
    total_bytes: int
    spare_bytes: int
    takes: bool
    gives: bool
    held_bytes: int = 0
    replicas: list[int] = field(default_factory=list)

    @property
    def fill(self) -> float:
        return self.held_bytes / self.total_bytes if self.total_bytes else 0.0


@dataclass(slots=True)
class Greedy:
    """All directories by broker and path, and all replicas by columns."""

    places: dict[tuple[int, str], Place]
    sizes: list[int]
    assigned: list[Sequence[int]]
    partitions: list[tuple[str, int]]
    racks: Mapping[int, str | None]
    moved_bytes: int = 0
    moves: int = 0

    @classmethod
    def load(cls, sums: Sequence[DirSums], columns: Mapping[str, list[Any]]) -> Greedy:
        places = {
            (one.broker_id, one.path): Place(
                one.broker_id,
                one.load.total_bytes,
                one.load.spare_bytes,
                one.load.takes,
                one.load.gives,
            )
            for one in sums
        }
        racks = {one.broker_id: one.rack for one in sums}
        for index, key in enumerate(zip(columns["broker_id"], columns["path"], strict=True)):
            place = places[key]
            place.held_bytes += columns["size_bytes"][index]
            place.replicas.append(index)
        for place in places.values():
            place.replicas.sort(key=lambda i: -columns["size_bytes"][i])
        return cls(
            places=places,
            sizes=columns["size_bytes"],
            assigned=columns["brokers"],
            partitions=list(zip(columns["topic"], columns["partition"], strict=True)),
            racks=racks,
        )

    def within_brokers(self, tolerance: float) -> None:
        by_broker: dict[int, list[Place]] = defaultdict(list)
        for place in self.places.values():
            if place.gives:
                by_broker[place.broker].append(place)
        for places in by_broker.values():
            while self._one_step(places, tolerance):
                pass

    def _one_step(self, places: list[Place], tolerance: float) -> bool:
        total = sum(place.total_bytes for place in places)
        mean = sum(place.held_bytes for place in places) / total
        full = max(places, key=lambda place: place.fill)
        empty = min((p for p in places if p.takes), key=lambda place: place.fill, default=full)
        if full is empty or full.fill <= mean * (1 + tolerance):
            return False
        half = (full.fill - empty.fill) * min(full.total_bytes, empty.total_bytes) / 2
        found = self._largest(full, min(half, empty.spare_bytes))
        if found is None:
            return False
        self._move(found, full, empty)
        return True

    def across_brokers(self, tolerance: float) -> None:
        """The fullest broker gives to the emptiest that may take it, the largest replica first."""
        brokers: dict[int, list[Place]] = defaultdict(list)
        for place in self.places.values():
            brokers[place.broker].append(place)
        held = {b: sum(p.held_bytes for p in own) for b, own in brokers.items()}
        total = {b: sum(p.total_bytes for p in own if p.takes) for b, own in brokers.items()}
        open_brokers = [b for b, size in total.items() if size]
        mean = sum(held.values()) / sum(total.values())
        gone: set[tuple[str, int]] = set()
        heap = [(-held[b] / total[b], b) for b in open_brokers]
        heapq.heapify(heap)
        while heap and self.moves < MAX_CROSSINGS:
            fill, source = heapq.heappop(heap)
            if -fill <= mean * (1 + tolerance):
                return
            target = min(open_brokers, key=lambda b: held[b] / total[b])
            half = (-fill - held[target] / total[target]) * min(total[source], total[target]) / 2
            step = next(self._crossings(brokers, source, target, half, gone), None)
            if step is None:
                continue
            found, place, to = step
            gone.add(self.partitions[found])
            self._move(found, place, to)
            held[source] -= self.sizes[found]
            held[target] += self.sizes[found]
            heapq.heappush(heap, (-held[source] / total[source], source))

    def _crossings(
        self,
        brokers: Mapping[int, list[Place]],
        source: int,
        target: int,
        most: float,
        gone: set[tuple[str, int]],
    ) -> Iterator[tuple[int, Place, Place]]:
        to = min((p for p in brokers[target] if p.takes), key=lambda place: place.fill)
        for place in sorted(brokers[source], key=lambda place: -place.fill):
            if not place.gives:
                continue
            for found in place.replicas:
                fits = 0 < self.sizes[found] <= min(most, to.spare_bytes)
                if (
                    fits
                    and self.partitions[found] not in gone
                    and self._may_go(found, source, target)
                ):
                    yield found, place, to
                    break

    def _may_go(self, found: int, source: int, target: int) -> bool:
        holders = self.assigned[found]
        if target in holders:
            return False
        others = {self.racks[b] for b in holders if b != source}
        return len(others | {self.racks[target]}) >= len(others | {self.racks[source]})

    def _largest(self, place: Place, most: float) -> int | None:
        return next((i for i in place.replicas if 0 < self.sizes[i] <= most), None)

    def _move(self, found: int, source: Place, target: Place) -> None:
        size = self.sizes[found]
        source.replicas.remove(found)
        source.held_bytes -= size
        target.held_bytes += size
        target.spare_bytes -= size
        self.moved_bytes += size
        self.moves += 1
