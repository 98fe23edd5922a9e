"""``StripedReplicaPlacer``."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.controller.partitions.replica_placer import StripedReplicaPlacer, UsableBroker
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerId

_clusters = st.lists(
    st.tuples(st.sampled_from([None, "a", "b", "c"]), st.booleans()), min_size=1, max_size=9
).filter(lambda brokers: not all(fenced for _, fenced in brokers))


def _brokers(described: list[tuple[str | None, bool]]) -> list[UsableBroker]:
    return [
        UsableBroker(broker_id=BrokerId(i), rack=rack, fenced=fenced)
        for i, (rack, fenced) in enumerate(described)
    ]


def _place(
    brokers: list[UsableBroker], partitions: int, factor: int, seed: int = 0
) -> list[tuple[BrokerId, ...]]:
    placer = StripedReplicaPlacer(draw_below=random.Random(seed).randrange)
    return placer.place(brokers, partitions=partitions, replication_factor=factor)


@given(_clusters, st.integers(0, 20), st.data())
def test_place_spreads_replicas_over_racks_with_unfenced_leader(
    described: list[tuple[str | None, bool]], partitions: int, data: st.DataObject
) -> None:
    brokers = _brokers(described)
    factor = data.draw(st.integers(1, len(brokers)))
    placed = _place(brokers, partitions, factor, data.draw(st.integers(0, 99)))
    by_id = {broker.broker_id: broker for broker in brokers}
    racks = {broker.rack or "" for broker in brokers}
    assert len(placed) == partitions
    for replicas in placed:
        assert len(set(replicas)) == len(replicas) == factor
        assert not by_id[replicas[0]].fenced
        used = Counter(by_id[replica].rack or "" for replica in replicas)
        assert len(used) == min(factor, len(racks))


@given(st.integers(1, 8), st.integers(0, 99))
def test_place_in_one_rack_spreads_leaders_evenly(count: int, seed: int) -> None:
    brokers = _brokers([(None, False)] * count)
    leaders = Counter(replicas[0] for replicas in _place(brokers, count * 3, 1, seed))
    assert set(leaders.values()) == {3}


@given(st.integers(1, 4), st.integers(2, 3), st.integers(0, 99))
def test_place_in_equal_racks_spreads_leaders_evenly(per_rack: int, racks: int, seed: int) -> None:
    brokers = _brokers([("abc"[i % racks], False) for i in range(per_rack * racks)])
    placed = _place(brokers, len(brokers), racks, seed)
    assert set(Counter(replicas[0] for replicas in placed).values()) == {1}
    assert set(Counter(r for replicas in placed for r in replicas).values()) == {racks}


@pytest.mark.parametrize(
    ("described", "factor", "reported"),
    [
        ([(None, False)], 0, "must be positive"),
        ([(None, False)], 2, r"only 1 broker\(s\) are registered"),
        ([(None, True)], 1, "All brokers are currently fenced"),
        ([], 1, "All brokers are currently fenced"),
    ],
)
def test_place_rejects_impossible_replication_factor(
    described: list[tuple[str | None, bool]], factor: int, reported: str
) -> None:
    with pytest.raises(OperatingError, match=reported) as refused:
        _place(_brokers(described), 1, factor)
    assert refused.value.code == ErrorCode.INVALID_REPLICATION_FACTOR
