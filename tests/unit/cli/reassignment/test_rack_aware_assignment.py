"""``assign_replicas``: Kafka's rack-aware round robin."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.cli.reassignment.rack_aware_assignment import assign_replicas
from kraftjbod.cli.reassignment.reassignment_plan import ReassignmentError


def from_zero(_: int) -> int:
    return 0


def assign(
    racks: dict[int, str | None], partitions: int, replication_factor: int
) -> list[tuple[int, ...]]:
    return assign_replicas(
        racks,
        partitions=partitions,
        replication_factor=replication_factor,
        random_below=from_zero,
    )


def test_assign_replicas_without_racks_matches_kafkas_example() -> None:
    """Ten partitions, five brokers, three replicas: the second pass shifts the followers."""
    assert assign(dict.fromkeys(range(5)), 10, 3) == [
        (0, 1, 2),
        (1, 2, 3),
        (2, 3, 4),
        (3, 4, 0),
        (4, 0, 1),
        (0, 2, 3),
        (1, 3, 4),
        (2, 4, 0),
        (3, 0, 1),
        (4, 1, 2),
    ]


def test_assign_replicas_with_racks_matches_kafkas_example() -> None:
    """Six brokers in three racks are ordered 0, 3, 1, 5, 4, 2, so that racks alternate."""
    racks: dict[int, str | None] = {
        0: "rack1",
        1: "rack3",
        2: "rack3",
        3: "rack2",
        4: "rack2",
        5: "rack1",
    }
    proposed = assign(racks, 12, 3)
    assert [replicas[0] for replicas in proposed] == [0, 3, 1, 5, 4, 2] * 2
    assert proposed[:2] == [(0, 3, 1), (3, 1, 5)]
    assert all(len({racks[broker] for broker in replicas}) == 3 for replicas in proposed)


def test_assign_replicas_with_more_replicas_than_racks_uses_every_rack() -> None:
    racks: dict[int, str | None] = {1: "a", 2: "a", 3: "a", 4: "b"}
    for replicas in assign(racks, 8, 3):
        assert 4 in replicas


def test_assign_replicas_starts_at_random_broker() -> None:
    proposed = assign_replicas(
        dict.fromkeys(range(3)), partitions=1, replication_factor=1, random_below=lambda n: n - 1
    )
    assert proposed == [(2,)]


def test_assign_replicas_refuses_too_few_brokers_and_partial_racks() -> None:
    reported = r"Replication factor: 2 larger than available brokers: 1\."
    with pytest.raises(ReassignmentError, match=reported):
        assign({1: None}, 1, 2)
    with pytest.raises(ReassignmentError, match="Add --disable-rack-aware"):
        assign({1: "a", 2: None}, 1, 1)


@given(
    brokers=st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=9),
    partitions=st.integers(0, 40),
    draw=st.data(),
)
def test_assign_replicas_spreads_leaders_and_racks_evenly(
    brokers: list[str | None], partitions: int, draw: st.DataObject
) -> None:
    has_racks = all(brokers)
    racks = {index: rack if has_racks else None for index, rack in enumerate(brokers)}
    wanted = draw.draw(st.integers(1, len(racks)))
    proposed = assign_replicas(
        racks,
        partitions=partitions,
        replication_factor=wanted,
        random_below=lambda n: draw.draw(st.integers(0, n - 1)),
    )
    assert len(proposed) == partitions
    rack_count = len(set(racks.values()))
    for replicas in proposed:
        assert len(set(replicas)) == wanted
        assert len({racks[broker] for broker in replicas}) == min(wanted, rack_count)
    leaders = Counter(replicas[0] for replicas in proposed)
    assert max(leaders.values(), default=0) <= -(-partitions // len(racks))
