"""``plan_drain``: targets for the replicas of a drained directory or broker."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.cli.drain.drain_plan import (
    DrainPlan,
    Leaving,
    Misfit,
    OpenPlace,
    Place,
    Scope,
    plan_drain,
)
from kraftjbod.cli.reassignment.reassignment_plan import Replica

A, B, C = Place(1, "/a"), Place(1, "/b"), Place(1, "/c")


def leaving(
    index: int,
    size: int,
    *,
    holders: tuple[int, ...] = (1,),
    under_way: Place | None = None,
    copied: int = 0,
) -> Leaving:
    return Leaving(
        replica=Replica(1, "t", index),
        source="/a",
        size_bytes=size,
        holders=frozenset(holders),
        under_way=under_way,
        copied_bytes=copied,
    )


def open_place(place: Place, free: int) -> OpenPlace:
    return OpenPlace(place=place, free_bytes=free)


def targets(plan: DrainPlan) -> dict[int, Place]:
    return {move.replica.partition: move.target for move in plan.moves}


def test_plan_drain_places_largest_replica_first_in_place_with_most_space() -> None:
    plan = plan_drain(
        [leaving(0, 10), leaving(1, 30), leaving(2, 20)],
        [open_place(B, 50), open_place(C, 40)],
        scope=Scope.WITHIN_BROKER,
    )
    assert [move.replica.partition for move in plan.moves] == [1, 2, 0]
    assert targets(plan) == {1: B, 2: C, 0: B}
    assert (plan.misfits, plan.size_bytes) == ((), 60)


def test_plan_drain_reports_misfit_with_largest_free_space() -> None:
    plan = plan_drain(
        [leaving(0, 45), leaving(1, 10)],
        [open_place(B, 50), open_place(C, 3)],
        scope=Scope.WITHIN_BROKER,
    )
    assert targets(plan) == {0: B}
    assert plan.misfits == (Misfit(replica=Replica(1, "t", 1), size_bytes=10, best_free_bytes=5),)


def test_plan_drain_without_open_place_reports_no_best_space() -> None:
    (misfit,) = plan_drain([leaving(0, 0)], [], scope=Scope.WITHIN_BROKER).misfits
    assert misfit.best_free_bytes is None


@pytest.mark.parametrize(
    ("scope", "fits"),
    [(Scope.WITHIN_BROKER, False), (Scope.BROKER_FIRST, True), (Scope.OTHER_BROKERS, True)],
)
def test_plan_drain_uses_other_brokers_unless_the_scope_is_within_broker(
    scope: Scope, fits: bool
) -> None:
    plan = plan_drain(
        [leaving(0, 10)], [open_place(B, 5), open_place(Place(2, "/x"), 20)], scope=scope
    )
    assert bool(plan.moves) is fits


def test_plan_drain_broker_first_prefers_own_broker_with_less_space() -> None:
    places = [open_place(B, 10), open_place(Place(2, "/x"), 1000)]
    assert targets(plan_drain([leaving(0, 10)], places, scope=Scope.BROKER_FIRST)) == {0: B}
    plan = plan_drain([leaving(0, 10)], places, scope=Scope.OTHER_BROKERS)
    assert targets(plan) == {0: Place(2, "/x")}


def test_plan_drain_keeps_moves_in_flight_and_subtracts_their_space() -> None:
    plan = plan_drain(
        [leaving(0, 60), leaving(1, 50, under_way=B, copied=20)],
        [open_place(B, 80), open_place(C, 60)],
        scope=Scope.WITHIN_BROKER,
    )
    assert targets(plan) == {1: B, 0: C}
    assert [move.is_under_way for move in plan.moves] == [True, False]


def test_plan_drain_never_places_second_replica_on_a_broker() -> None:
    places = [open_place(Place(2, "/x"), 100), open_place(Place(3, "/x"), 50)]
    plan = plan_drain([leaving(0, 10, holders=(1, 2))], places, scope=Scope.OTHER_BROKERS)
    assert targets(plan) == {0: Place(3, "/x")}


def test_plan_drain_prefers_rack_without_replica_and_reports_shared_rack() -> None:
    racks = {1: "r1", 2: "r2", 3: "r2", 4: "r1"}
    places = [open_place(Place(3, "/x"), 100), open_place(Place(4, "/x"), 50)]
    one = leaving(0, 10, holders=(1, 2))
    (move,) = plan_drain([one], places, scope=Scope.OTHER_BROKERS, racks=racks).moves
    assert (move.target.broker_id, move.shares_rack) == (4, False)
    (move,) = plan_drain([one], places[:1], scope=Scope.OTHER_BROKERS, racks=racks).moves
    assert (move.target.broker_id, move.shares_rack) == (3, True)


@st.composite
def _clusters(draw: st.DrawFn) -> tuple[list[Leaving], list[OpenPlace], dict[int, str | None]]:
    brokers = draw(st.integers(1, 5))
    sizes = st.integers(0, 100)
    places = [
        open_place(Place(broker, path), draw(st.integers(-10, 300)))
        for broker in range(1, brokers + 1)
        for path in draw(st.sets(st.sampled_from(["/b", "/c", "/d"])))
    ]
    everything = []
    for index in range(draw(st.integers(0, 12))):
        holders = {1, *draw(st.sets(st.integers(1, brokers), max_size=3))}
        under_way = draw(st.none() | st.sampled_from([one.place for one in places] or [None]))
        if under_way is not None and under_way.broker_id != 1:
            under_way = None
        everything.append(leaving(index, draw(sizes), holders=tuple(holders), under_way=under_way))
    racks = {b: draw(st.sampled_from([None, "r1", "r2"])) for b in range(1, brokers + 1)}
    return everything, places, racks


@given(cluster=_clusters(), scope=st.sampled_from(Scope))
def test_plan_drain_never_overfills_a_directory_or_omits_or_duplicates_a_replica(
    cluster: tuple[list[Leaving], list[OpenPlace], dict[int, str | None]], scope: Scope
) -> None:
    everything, places, racks = cluster
    plan = plan_drain(everything, places, scope=scope, racks=racks)
    planned = [move.replica for move in plan.moves]
    refused = [misfit.replica for misfit in plan.misfits]
    assert sorted(planned + refused) == sorted(one.replica for one in everything)
    holders = {one.replica: one.holders for one in everything}
    new_bytes: defaultdict[Place, int] = defaultdict(int)
    old_bytes: defaultdict[Place, int] = defaultdict(int)
    for move in plan.moves:
        assert move.target != Place(1, "/a")
        if move.is_under_way:
            old_bytes[move.target] += move.size_bytes
            continue
        new_bytes[move.target] += move.size_bytes
        if move.target.broker_id == 1:
            assert scope is not Scope.OTHER_BROKERS
        else:
            assert scope is not Scope.WITHIN_BROKER
            assert move.target.broker_id not in holders[move.replica]
    free = {one.place: one.free_bytes for one in places}
    for place, size_bytes in new_bytes.items():
        assert size_bytes + old_bytes[place] <= free[place]
    for misfit in plan.misfits:
        if misfit.best_free_bytes is not None:
            assert misfit.best_free_bytes < misfit.size_bytes
