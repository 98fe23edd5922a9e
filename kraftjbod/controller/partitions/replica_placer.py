"""PURE. ``StripedReplicaPlacer``: chooses brokers for the replicas of new partitions.

Leaders rotate through the racks and, within a rack, through its brokers. The other replicas follow
on the racks after the leader's. So no rack or broker gets a second leader before all others have
one, and the replicas of a partition are spread over as many racks as possible.

* Unfenced brokers come before fenced ones of the same rack. A fenced broker never comes first.
* A broker holds at most one replica of a partition.
* The order within a rack is random for each lap, so that the second replicas of one broker's
  partitions are not always on the same neighbour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class UsableBroker:
    """A broker on which a new replica may be placed. A fenced one never gets the first replica of a
    partition.
    """

    broker_id: BrokerId
    rack: str | None
    fenced: bool


class _Ring:
    """Brokers in a circle. Each round visits every broker at most once, from its own start
    position."""

    def __init__(self, brokers: list[BrokerId], draw_below: Callable[[int], int]) -> None:
        self._brokers = _shuffled(sorted(brokers), draw_below)
        #: Start of the next round, separate for rounds with a leader from this ring. Otherwise, if
        #: the ring led every other round, only every other broker would become a leader.
        self._turns = {True: 0, False: 0}
        self._round = -1
        self._start = 0
        self._visited = 0

    def take(self, round_number: int, *, leads: bool) -> BrokerId | None:
        """Return the next broker that this round has not visited; None if all were visited.

        :param leads: whether the broker is to lead. Leaders and followers have separate starting
            points, each of which advances by one broker per round.
        """
        if round_number != self._round:
            self._round, self._start, self._visited = round_number, self._turns[leads], 0
            self._turns[leads] += 1
        if self._visited == len(self._brokers):
            return None
        self._visited += 1
        return self._brokers[(self._start + self._visited - 1) % len(self._brokers)]


class _Rack:
    def __init__(self, brokers: list[UsableBroker], draw_below: Callable[[int], int]) -> None:
        self._unfenced = _Ring([b.broker_id for b in brokers if not b.fenced], draw_below)
        self._fenced = _Ring([b.broker_id for b in brokers if b.fenced], draw_below)

    def take_leader(self, round_number: int) -> BrokerId | None:
        return self._unfenced.take(round_number, leads=True)

    def take_follower(self, round_number: int) -> BrokerId | None:
        unfenced = self._unfenced.take(round_number, leads=False)
        return self._fenced.take(round_number, leads=False) if unfenced is None else unfenced


class StripedReplicaPlacer:
    """Places the replicas of new partitions.

    ``draw_below(n)`` returns a random number in [0, n).
    """

    def __init__(self, *, draw_below: Callable[[int], int]) -> None:
        self._draw_below = draw_below

    def place(
        self, brokers: Iterable[UsableBroker], *, partitions: int, replication_factor: int
    ) -> list[tuple[BrokerId, ...]]:
        """Return the replicas of each new partition, the preferred leader first.

        :raises OperatingError: INVALID_REPLICATION_FACTOR: the factor is not positive or exceeds
            the number of ``brokers``, or all of them are fenced.
        """
        usable = list(brokers)
        _require_enough(usable, replication_factor)
        unfenced_count = sum(not broker.fenced for broker in usable)
        placed: list[tuple[BrokerId, ...]] = []
        while len(placed) < partitions:
            stripes = _Stripes(usable, self._draw_below)
            in_this_lap = min(unfenced_count, partitions - len(placed))
            placed += [stripes.place(lap, replication_factor) for lap in range(in_this_lap)]
        return placed


class _Stripes:
    """One lap of placing, which places as many partitions as there are unfenced brokers."""

    def __init__(self, brokers: list[UsableBroker], draw_below: Callable[[int], int]) -> None:
        by_rack: dict[str, list[UsableBroker]] = {}
        for broker in brokers:
            by_rack.setdefault(broker.rack or "", []).append(broker)
        self._racks = [_Rack(by_rack[name], draw_below) for name in sorted(by_rack)]
        self._first = draw_below(len(self._racks))

    def place(self, round_number: int, replication_factor: int) -> tuple[BrokerId, ...]:
        racks = len(self._racks)
        start = (self._first + round_number) % racks
        order = [(start + step) % racks for step in range(racks)]
        leader_rack, leader = next(
            (rack, leader)
            for rack in order
            if (leader := self._racks[rack].take_leader(round_number)) is not None
        )
        replicas = [leader]
        position = leader_rack
        while len(replicas) < replication_factor:
            position = (position + 1) % racks
            follower = self._racks[position].take_follower(round_number)
            if follower is not None:
                replicas.append(follower)
        return tuple(replicas)


def _shuffled(brokers: list[BrokerId], draw_below: Callable[[int], int]) -> list[BrokerId]:
    left = list(brokers)
    return [left.pop(draw_below(len(left))) for _ in brokers]


def _require_enough(brokers: list[UsableBroker], replication_factor: int) -> None:
    if replication_factor <= 0:
        raise _invalid(
            f"Invalid replication factor {replication_factor}: "
            "the replication factor must be positive."
        )
    if all(broker.fenced for broker in brokers):
        raise _invalid(
            "All brokers are currently fenced, or have all their log directories cordoned."
        )
    if replication_factor > len(brokers):
        raise _invalid(
            f"The target replication factor of {replication_factor} cannot be reached because "
            f"only {len(brokers)} broker(s) are registered or some brokers have all their log "
            "directories cordoned."
        )


def _invalid(message: str) -> OperatingError:
    return OperatingError(message, code=ErrorCode.INVALID_REPLICATION_FACTOR)
