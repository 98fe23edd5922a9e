"""Parts of a plan that Spark computes in parallel; test_spark_plan compares both ways."""

from __future__ import annotations

from collections import Counter

from kraftjbod.balance.fair_shares import Goals
from kraftjbod.balance.group_plans import Home, Rank, draw, is_candidate, moves_of_broker
from kraftjbod.balance.placement import Placed, empty_dirs, filled_dirs
from kraftjbod.balance.planner import Tier
from tests.unit.balance.clusters import log_dir


def placed(partition: int, broker: int, brokers: tuple[int, ...] = (1, 2, 3)) -> Placed:
    return Placed("t", partition, broker, "/a", 10, 0, 0.0, brokers, True, False)


def test_is_candidate_chooses_each_partition_on_one_source_broker() -> None:
    def chosen(drained: tuple[int, ...], turn: int) -> dict[int, int]:
        found = [
            one
            for n in range(40)
            for one in (placed(n, 1), placed(n, 2), placed(n, 3))
            if is_candidate(one, {1, 2}, drained, turn)
        ]
        assert sorted(one.partition for one in found) == list(range(40))
        return {one.partition: one.broker_id for one in found}

    assert set(chosen((), 0).values()) == {1, 2}
    assert chosen((), 0) != chosen((), 1)
    assert set(chosen((2,), 0).values()) == {2}, "drained brokers come first"


def test_draw_by_topic_partition_and_turn_is_spread_evenly() -> None:
    counts = Counter(draw("topic", n, turn, 3) for n in range(1000) for turn in range(3))
    assert set(counts) == {0, 1, 2} and min(counts.values()) > 800


def test_moves_of_broker_place_incoming_replicas_that_fit() -> None:
    rank = Rank(Tier.ACROSS, 1.5, 7)
    homes = [Home("t", n, 1, "/a", size, 1.0, True, rank) for n, size in ((0, 10), (1, 5_000))]
    own = Home("t", 9, 3, "/a", 10, 0.0, True, None)
    dirs = filled_dirs(empty_dirs([log_dir(3, "/a"), log_dir(3, "/b")]), [])
    [move] = moves_of_broker(dirs, [*homes, own], Goals())
    assert move == ("t", 0, 1, "/a", 3, "/b", 10, 1.0, *rank, 1)
    closed = empty_dirs([log_dir(4, "/a", is_cordoned=True)])
    assert list(moves_of_broker(closed, homes, Goals())) == []
