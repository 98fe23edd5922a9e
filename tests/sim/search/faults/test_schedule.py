from __future__ import annotations

import random
from collections import Counter

from tests.sim.search.faults.schedule import (
    LARGE_QUORUM_WEIGHTS,
    QUORUM_WEIGHTS,
    UNLIMITED_WEIGHTS,
    Kind,
    Shape,
    draw_schedule,
    draw_shape,
    only,
)


def test_draw_schedule_with_equal_seeds_is_equal_and_many_seeds_draw_every_kind() -> None:
    played: Counter[Kind] = Counter()
    shape, promised = Shape(controllers=5), {*QUORUM_WEIGHTS, *LARGE_QUORUM_WEIGHTS}
    for seed in range(150):
        drawn = [
            draw_schedule(
                random.Random(seed),
                shape,
                duration_ms=20_000,
                mean_gap_ms=1_000,
                keeps_promise=seed % 2 == 0,
            )
            for _ in range(2)
        ]
        assert drawn[0] == drawn[1]
        faults = drawn[0]
        assert [fault.number for fault in faults] == list(range(1, len(faults) + 1))
        assert [fault.at_ms for fault in faults] == sorted(fault.at_ms for fault in faults)
        assert all(fault.other != fault.broker and fault.at_ms < 20_000 for fault in faults)
        played.update(fault.kind for fault in faults)
        assert seed % 2 or promised.issuperset(fault.kind for fault in faults)
    assert set(played) == set(Kind) == {*promised, *UNLIMITED_WEIGHTS}


def test_schedule_only_keeps_the_chosen_faults_unchanged() -> None:
    faults = draw_schedule(random.Random(3), Shape(), duration_ms=60_000)
    some = only(faults, [2, 5])
    assert [fault.number for fault in some] == [2, 5]
    assert all(fault in faults for fault in some)
    assert some[0].rng().random() == faults[1].rng().random()


def test_draw_shape_has_room_for_three_replicas() -> None:
    shapes = {draw_shape(random.Random(seed)) for seed in range(50)}
    assert len(shapes) > 5
    assert all(shape.brokers >= 3 and shape.dirs >= 2 for shape in shapes)


def test_draw_schedule_with_kinds_draws_no_other_kind() -> None:
    kinds = {Kind.ROT, Kind.KILL}
    drawn = {
        fault.kind
        for seed in range(10)
        for fault in draw_schedule(random.Random(seed), Shape(), duration_ms=20_000, kinds=kinds)
    }
    assert drawn == kinds


def test_draw_schedule_lengthens_network_partitions_only() -> None:
    cuts = {Kind.PARTITION, Kind.QUORUM_CUT, Kind.SPLIT}
    kinds = {*cuts, Kind.STAND_STILL, Kind.RESET}
    for longest_cut_ms in (6_000, 45_000):
        faults = draw_schedule(
            random.Random(5),
            Shape(controllers=3),
            duration_ms=300_000,
            kinds=kinds,
            longest_cut_ms=longest_cut_ms,
        )
        of_cuts = max(fault.for_ms for fault in faults if fault.kind in cuts)
        assert longest_cut_ms * 0.8 < of_cuts <= longest_cut_ms
        assert max(fault.for_ms for fault in faults if fault.kind not in cuts) <= 6_000
