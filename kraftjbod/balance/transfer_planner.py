"""PURE. Plan moves between brokers: the driver plans byte amounts, executors choose replicas.

First :func:`byte_tasks` and :func:`rate_tasks` take the sums of brokers and decide how much each
overfull broker sends to which other broker. Then :func:`choose` picks replicas for one source at a
time, independent of other sources. The independent choices are compatible, because

* the transfers to a target together stay within its limit,
* a partition is a candidate on one broker only, which the caller ensures,
* the target has no replica of the partition, and the partition loses no rack. Pairs of brokers in
  one rack never lose a rack, so they come first.

planner.py later plans the directory of the target.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from kraftjbod.balance.planner import Tier

_BISECTIONS: Final = 64
#: A chosen replica may exceed its directory's excess bytes by this factor.
_ABOVE: Final = 2.0

Racks = Mapping[int, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DirSums:
    """Sums over the replicas in one directory; ``fixed`` sums cover only replicas that must not
    move.

    Rates are bytes per second. ``largest_bytes`` is the size of the largest replica.
    """

    broker_id: int
    path: str
    load: DirLoad
    size_bytes: int
    fixed_bytes: int
    write_rate: float
    fixed_rate: float
    replicas: int
    rack: str | None = None
    largest_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLoad:
    """Sums and shares of one broker.

    ``excess`` is the number of bytes above its share, by directory path; negative below.
    ``weight_bytes`` is the number of bytes that must leave drained directories: those of movable
    replicas, and one byte per replica, so that empty replicas count.
    """

    broker_id: int
    size_bytes: int
    share_bytes: float
    spare_bytes: int
    write_rate: float
    share_rate: float
    weight_bytes: int
    excess: Mapping[str, float]

    @property
    def fill(self) -> float:
        if self.share_bytes > 0:
            return self.size_bytes / self.share_bytes
        return float("inf") if self.weight_bytes else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """The bytes, or bytes per second, to move to the broker ``target``: about ``wanted``, and at
    most ``most_bytes`` bytes."""

    target: int
    wanted: float
    most_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Transfers of one source broker: ``wanted`` is in bytes, with ``is_rate`` in bytes per second.

    ``spare_bytes`` may leave the broker before it falls below the tolerance.
    """

    load: BrokerLoad
    spare_bytes: float
    transfers: tuple[Transfer, ...]
    is_rate: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A replica that a transfer may move to another broker.

    ``brokers`` are those of its partition, and ``write_rate`` is in bytes per second.
    ``must_leave``: its directory or broker is drained.
    """

    path: str
    size_bytes: int
    write_rate: float
    brokers: tuple[int, ...]
    must_leave: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The candidate with index ``candidate`` moves to broker ``target``."""

    candidate: int
    target: int
    tier: Tier
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The sums over the replicas that a broker or directory sends or receives; rates in bytes per
    second."""

    size_bytes: int
    write_rate: float
    replicas: int

    def __add__(self, other: Sent) -> Sent:
        return Sent(
            size_bytes=self.size_bytes + other.size_bytes,
            write_rate=self.write_rate + other.write_rate,
            replicas=self.replicas + other.replicas,
        )

    def __neg__(self) -> Sent:
        return Sent(
            size_bytes=-self.size_bytes, write_rate=-self.write_rate, replicas=-self.replicas
        )


NOTHING: Final = Sent(size_bytes=0, write_rate=0.0, replicas=0)


def cluster_level(dirs: Iterable[DirSums]) -> float:
    """Return the fill level at which the directories together hold all bytes.

    A level is a fraction of a directory's size; each directory's bytes stay within its bounds.
    """
    known = list(dirs)
    bands = [byte_band(one.load, one.size_bytes, one.fixed_bytes) for one in known]
    return level_of(bands, sum(one.size_bytes for one in known))


def broker_loads(dirs: Iterable[DirSums]) -> list[BrokerLoad]:
    """Return each broker, sorted by id, with its shares of the cluster's bytes and write rate.

    The share of bytes is the sum of its directories' bytes at the level of the whole cluster.
    """
    known = list(dirs)
    level = cluster_level(known)
    by_bytes = [byte_band(one.load, one.size_bytes, one.fixed_bytes).at(level) for one in known]
    all_rate = sum(one.write_rate for one in known)
    by_rate = shares(
        [rate_band(one.load, one.write_rate, one.fixed_rate, all_rate) for one in known], all_rate
    )
    grouped: dict[int, list[int]] = defaultdict(list)
    for index, one in enumerate(known):
        grouped[one.broker_id].append(index)
    return [
        BrokerLoad(
            broker_id=broker,
            size_bytes=sum(known[i].size_bytes for i in own),
            share_bytes=sum(by_bytes[i] for i in own),
            spare_bytes=sum(known[i].load.spare_bytes for i in own if known[i].load.takes),
            write_rate=sum(known[i].write_rate for i in own),
            share_rate=sum(by_rate[i] for i in own),
            weight_bytes=sum(
                known[i].size_bytes - known[i].fixed_bytes + known[i].replicas
                for i in own
                if known[i].load.is_drained and known[i].load.gives
            ),
            excess={known[i].path: known[i].size_bytes - by_bytes[i] for i in own},
        )
        for broker, own in sorted(grouped.items())
    ]


def after(
    loads: Iterable[BrokerLoad], given: Mapping[int, Sent], taken: Mapping[int, Sent]
) -> list[BrokerLoad]:
    """Return the brokers after moves. The space of replicas that leave does not count as spare.

    :param given: sums of the replicas that leave, by broker.
    :param taken: sums of the replicas that arrive, by broker.
    """
    changed = []
    for load in loads:
        out, come = given.get(load.broker_id, NOTHING), taken.get(load.broker_id, NOTHING)
        changed.append(
            replace(
                load,
                size_bytes=load.size_bytes - out.size_bytes + come.size_bytes,
                spare_bytes=max(0, load.spare_bytes - come.size_bytes),
                write_rate=load.write_rate - out.write_rate + come.write_rate,
                weight_bytes=max(0, load.weight_bytes - out.size_bytes - out.replicas),
            )
        )
    return changed


def without_stuck(loads: Sequence[BrokerLoad], stuck: Collection[int]) -> list[BrokerLoad]:
    """Return the loads with new shares, given that ``stuck`` brokers keep their excess.

    If racks or existing replicas prevent moves from one broker, other brokers send more instead.
    """
    kept = [load.broker_id in stuck and load.size_bytes > load.share_bytes for load in loads]
    bands = [
        Band(0.0, load.size_bytes, load.size_bytes)
        if is_kept
        else Band(load.share_bytes, 0.0, float(load.size_bytes + load.spare_bytes))
        for load, is_kept in zip(loads, kept, strict=True)
    ]
    dealt = shares(bands, sum(load.size_bytes for load in loads))
    return [replace(load, share_bytes=share) for load, share in zip(loads, dealt, strict=True)]


# --- how much: on the driver ---------------------------------------------------------------------


def byte_tasks(loads: Sequence[BrokerLoad], racks: Racks, goals: Goals) -> dict[int, Task]:
    """Return the transfers of bytes from overfull brokers to others, by source broker.

    The transfers bring all brokers within the tolerance if the targets have enough spare bytes.
    """
    high, low = 1 + goals.tolerance, 1 - goals.tolerance

    def gives(load: BrokerLoad, level: float) -> float:
        above = max(0.0, load.size_bytes - level * load.share_bytes)
        return max(above, float(load.weight_bytes) if load.share_bytes <= 0 else 0.0)

    def takes(load: BrokerLoad, level: float) -> float:
        return min(float(load.spare_bytes), max(0.0, level * load.share_bytes - load.size_bytes))

    wanted = max(sum(gives(load, high) for load in loads), sum(takes(load, low) for load in loads))
    spare_total = sum(takes(load, high) for load in loads)
    amount = min(wanted, spare_total)
    if amount <= 0:
        return {}
    down_to = _level(lambda level: -sum(gives(load, level) for load in loads), -amount)
    up_to = _level(lambda level: sum(takes(load, level) for load in loads), amount)
    given = {load.broker_id: gives(load, down_to) for load in loads}
    taken = {load.broker_id: takes(load, up_to) for load in loads}
    most = {load.broker_id: max(takes(load, high), takes(load, up_to)) for load in loads}
    pairs = _pairs(given, taken, racks)
    return _tasks(loads, pairs, taken, most, low, is_rate=False)


def rate_tasks(loads: Sequence[BrokerLoad], racks: Racks, goals: Goals) -> dict[int, Task]:
    """Return the transfers of write rate (bytes per second), by source broker.

    Targets stay within the tolerance of the bytes.
    """
    given, taken, most = {}, {}, {}
    for load in loads:
        if load.share_rate <= 0 or load.share_bytes <= 0:
            continue
        allowed = load.share_bytes * (1 + goals.tolerance) - load.size_bytes
        most[load.broker_id] = min(float(load.spare_bytes), max(0.0, allowed))
        given[load.broker_id] = max(
            0.0, load.write_rate - load.share_rate * (1 + goals.rate_tolerance)
        )
        taken[load.broker_id] = max(0.0, load.share_rate - load.write_rate)
        if most[load.broker_id] <= 0:
            taken[load.broker_id] = 0.0
    pairs = _pairs(given, taken, racks)
    return _tasks(loads, pairs, taken, most, 1 - goals.tolerance, is_rate=True)


def _level(amount_at: Callable[[float], float], amount: float) -> float:
    """Return the level at which the increasing function ``amount_at`` reaches ``amount``."""
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        if amount_at(high) >= amount:
            break
        high *= 2
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if amount_at(middle) >= amount:
            high = middle
        else:
            low = middle
    return high


def _pairs(
    given: Mapping[int, float], taken: Mapping[int, float], racks: Racks
) -> list[tuple[int, int, float]]:
    """Match sources and targets, within racks first and the largest first, so that pairs are few.

    :param given: amount that each source gives, by broker.
    :param taken: amount that each target takes, by broker.
    :returns: source, target and amount of each pair.
    """
    left_given, left_taken = dict(given), dict(taken)
    pairs: list[tuple[int, int, float]] = []
    named = sorted({rack for rack in racks.values() if rack is not None})
    for group in [*named, None]:
        members = [b for b in left_given if group is None or racks.get(b) == group]
        sources = [(-left_given[b], b) for b in members if left_given[b] > 0]
        targets = [(-left_taken[b], b) for b in left_taken if left_taken[b] > 0]
        if group is not None:
            targets = [(part, b) for part, b in targets if racks.get(b) == group]
        pairs += _matched(sources, targets, left_given, left_taken)
    return pairs


def _matched(
    sources: list[tuple[float, int]],
    targets: list[tuple[float, int]],
    left_given: dict[int, float],
    left_taken: dict[int, float],
) -> Iterator[tuple[int, int, float]]:
    heapq.heapify(sources)
    heapq.heapify(targets)
    while sources and targets:
        (give, source), (take, target) = heapq.heappop(sources), heapq.heappop(targets)
        part = min(-give, -take)
        yield source, target, part
        left_given[source] -= part
        left_taken[target] -= part
        if -give > part:
            heapq.heappush(sources, (give + part, source))
        if -take > part:
            heapq.heappush(targets, (take + part, target))


def _tasks(
    loads: Sequence[BrokerLoad],
    pairs: Iterable[tuple[int, int, float]],
    taken: Mapping[int, float],
    most: Mapping[int, float],
    low: float,
    *,
    is_rate: bool,
) -> dict[int, Task]:
    """Return a task per source broker.

    :param pairs: source, target and amount of each transfer.
    :param taken: the amounts of all transfers to a target together.
    :param most: the limit of bytes of a target, divided in proportion to the amounts.
    :param low: the fraction of its share below which a source must not fall.
    """
    grouped: dict[int, list[Transfer]] = defaultdict(list)
    for source, target, part in pairs:
        most_bytes = most[target] * part / taken[target]
        grouped[source].append(Transfer(target=target, wanted=part, most_bytes=most_bytes))
    by_id = {load.broker_id: load for load in loads}
    return {
        source: Task(
            load=by_id[source],
            spare_bytes=by_id[source].size_bytes - low * by_id[source].share_bytes,
            transfers=tuple(sorted(own, key=lambda t: (-t.wanted, t.target))),
            is_rate=is_rate,
        )
        for source, own in grouped.items()
    }


# --- which: on the executors ---------------------------------------------------------------------


def choose(task: Task, candidates: Sequence[Candidate], racks: Racks) -> list[Choice]:
    """Choose replicas for the task's transfers.

    :param candidates: movable replicas of the source. Each is chosen at most once.
    :returns: the choices in the order of the transfers.
    """
    pick = _Pick(task, candidates, racks)
    for transfer in task.transfers:
        if task.is_rate:
            pick.by_rate(transfer)
        else:
            pick.by_bytes(transfer)
    return pick.choices


class _Pick:
    """Remaining candidates and sums of one source while replicas are chosen."""

    def __init__(self, task: Task, candidates: Sequence[Candidate], racks: Racks) -> None:
        self.choices: list[Choice] = []
        self._load = task.load
        self._candidates = candidates
        self._racks = racks
        self._spare = task.spare_bytes
        self._excess = dict(task.load.excess)
        self._moved_bytes = 0
        self._left = set(range(len(candidates)))

    def by_bytes(self, transfer: Transfer) -> None:
        """Choose candidates for a transfer of bytes: from directories above their share first, and
        the largest first."""
        wanted, most = transfer.wanted, transfer.most_bytes
        able = self._able(transfer.target)
        able.sort(
            key=lambda i: (self._rank(i, transfer.target), -self._candidates[i].size_bytes, i)
        )
        for only_above in (True, False):
            for index in able:
                one = self._candidates[index]
                if index not in self._left or one.size_bytes > min(wanted, self._spare_for(one)):
                    continue
                if only_above and one.size_bytes > self._excess[one.path] * _ABOVE:
                    continue
                if one.size_bytes == 0 and not one.must_leave:
                    continue
                wanted -= one.size_bytes
                most -= one.size_bytes
                self._take(index, transfer.target, Tier.ACROSS)
        if wanted > 0:
            self._finish(able, transfer.target, wanted, most)

    def _finish(self, able: Iterable[int], target: int, wanted: float, most: float) -> None:
        """Choose the smallest candidate with ``wanted`` to ``most`` bytes. Choose nothing if there
        is no such candidate."""
        fit = [
            index
            for index in able
            if index in self._left
            and wanted
            <= self._candidates[index].size_bytes
            <= min(most, self._spare_for(self._candidates[index]))
        ]
        last = min(fit, key=lambda i: (self._candidates[i].size_bytes, i), default=None)
        if last is not None:
            self._take(last, target, Tier.ACROSS)

    def by_rate(self, transfer: Transfer) -> None:
        """Choose candidates for a transfer of write rate, the highest rate per byte first."""
        wanted, most = transfer.wanted, transfer.most_bytes

        def coldness(index: int) -> tuple[float, int]:
            one = self._candidates[index]
            return -one.write_rate / max(1, one.size_bytes), index

        for index in sorted(self._able(transfer.target), key=coldness):
            one = self._candidates[index]
            if not 0 < one.write_rate <= wanted:
                continue
            if one.size_bytes > min(most, self._spare):
                continue
            wanted -= one.write_rate
            most -= one.size_bytes
            self._take(index, transfer.target, Tier.RATE)

    def _able(self, target: int) -> list[int]:
        return [i for i in self._left if self._may_go(self._candidates[i], target)]

    def _may_go(self, one: Candidate, target: int) -> bool:
        return target not in one.brokers and self._gained_racks(one, target) >= 0

    def _gained_racks(self, one: Candidate, target: int) -> int:
        others = {self._racks.get(b) for b in one.brokers if b != self._load.broker_id} - {None}
        before = others | {self._racks.get(self._load.broker_id)} - {None}
        after_move = others | {self._racks.get(target)} - {None}
        return len(after_move) - len(before)

    def _rank(self, index: int, target: int) -> tuple[bool, int]:
        one = self._candidates[index]
        return not one.must_leave, -self._gained_racks(one, target)

    def _spare_for(self, one: Candidate) -> float:
        return float("inf") if one.must_leave else self._spare

    def _take(self, index: int, target: int, tier: Tier) -> None:
        one = self._candidates[index]
        self._left.remove(index)
        left = self._load.size_bytes - self._moved_bytes
        share = self._load.share_bytes
        self.choices.append(
            Choice(
                candidate=index,
                target=target,
                tier=Tier.DRAIN if one.must_leave else tier,
                score=left / share if share > 0 else float("inf"),
            )
        )
        self._spare -= one.size_bytes
        self._excess[one.path] -= one.size_bytes
        self._moved_bytes += one.size_bytes
