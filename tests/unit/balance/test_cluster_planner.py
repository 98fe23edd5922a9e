"""Whole plans of small clusters, and invariants of plans of drawn clusters."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.balance.cluster_planner import Reassigned, plan_cluster
from kraftjbod.balance.placement import PlanRequest
from kraftjbod.balance.planner import Tier
from tests.unit.balance.clusters import drawn_cluster, log_dir, replica


def test_plan_cluster_evens_out_directories_of_one_broker() -> None:
    dirs = [log_dir(1, "/a", 500), log_dir(1, "/b")]
    plan = plan_cluster(dirs, [replica(n, 1, "/a", 10) for n in range(4)], PlanRequest())
    assert [move[2:7] for move in plan.moves] == [(1, "/a", 1, "/b", 10)] * 2
    assert {move.tier for move in plan.moves} == {Tier.BYTES}
    assert [(one.path, one.bytes_before, one.bytes_after) for one in plan.dirs] == [
        ("/a", 40, 20),
        ("/b", 0, 20),
    ]
    assert [(one.replicas_before, one.replicas_after) for one in plan.dirs] == [(4, 2), (0, 2)]
    assert (plan.counts.moves, plan.counts.moved_bytes, plan.counts.moves_across) == (2, 20, 0)


def test_plan_cluster_new_replica_takes_position_of_the_replaced_one() -> None:
    """Only broker 1 is full; broker 5 does not run, so that its directories are unknown."""
    dirs = [log_dir(1, "/a", 100), log_dir(2, "/a"), log_dir(3, "/a"), log_dir(3, "/b")]
    lying = [
        replica(0, 1, "/a", 300, brokers=(5, 1, 2)),
        replica(0, 2, "/a", 300, brokers=(5, 1, 2)),
        replica(1, 1, "/a", 300, brokers=(1, 2)),
        replica(1, 2, "/a", 300, brokers=(1, 2)),
    ]
    plan = plan_cluster(dirs, lying, PlanRequest(across_brokers=True))
    crossed = {one.partition: one for one in plan.partitions}
    assert crossed
    for one in crossed.values():
        assert 3 in one.brokers and 3 not in one.brokers_before
        turn = one.brokers.index(3)
        assert one.log_dirs[turn] in ("/a", "/b")
        assert [b for b in one.brokers if b != 3] == [
            b for at, b in enumerate(one.brokers_before) if at != turn
        ]
    if 0 in crossed:
        assert isinstance(crossed[0], Reassigned) and crossed[0].log_dirs[0] is None


@given(st.integers(0, 100_000))
def test_plan_cluster_overfills_no_directory_and_loses_no_rack(seed: int) -> None:
    dirs, replicas, request = drawn_cluster(seed)
    plan = plan_cluster(dirs, replicas, request)
    other_order = plan_cluster(dirs[::-1], sorted(replicas, key=str), request)
    assert plan == other_order
    coming: dict[tuple[int, str], int] = defaultdict(int)
    for move in plan.moves:
        coming[move.to_broker, move.to_path] += move.size_bytes
    free = {(one.broker_id, one.path): one.free_bytes for one in dirs if one.state == "online"}
    assert all(size <= free[place] * 0.8 for place, size in coming.items())
    racks = {one.broker_id: one.rack for one in dirs}
    for one in plan.partitions:
        assert len(set(one.brokers)) == len(one.brokers) == len(one.brokers_before)
        before, after = (
            {racks.get(b) for b in brokers} - {None}
            for brokers in (one.brokers_before, one.brokers)
        )
        assert len(after) >= len(before)
    if request.max_moves is not None:
        assert len(plan.moves) <= request.max_moves
    if request.max_bytes is not None:
        assert plan.counts.moved_bytes <= request.max_bytes
    assert sum(one.bytes_after for one in plan.dirs) >= sum(one.bytes_before for one in plan.dirs)
