"""Assignors: invariants of the assignments for any subscriptions and earlier assignments."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.broker.groups.consumer.assignors import (
    ASSIGNORS,
    Subscriber,
    range_assignment,
    uniform_assignment,
)
from kraftjbod.core.ids import TopicIdPartition
from tests.unit.broker.groups.consumer.consumer_scene import topic_id

TOPICS = [topic_id(number) for number in range(4)]


def subscribers(rng: random.Random, *, same: bool, before: dict) -> list[Subscriber]:  # type: ignore[type-arg]  # partitions
    shared = frozenset(TOPICS)
    return [
        Subscriber(
            member_id=f"m{number}",
            topics=shared if same else frozenset(rng.sample(TOPICS, rng.randint(1, 4))),
            target=before.get(f"m{number}", frozenset()),
        )
        for number in range(rng.randint(1, 6))
    ]


@pytest.mark.parametrize("name", ASSIGNORS)
@given(seed=st.integers(0, 2**32), same=st.booleans())
def test_assignors_assign_each_partition_to_exactly_one_subscriber(
    name: str, seed: int, same: bool
) -> None:
    rng, before = random.Random(seed), {}
    for _ in range(4):
        sizes = {one: rng.randint(1, 7) for one in TOPICS}
        members = subscribers(rng, same=same, before=before)
        assigned = ASSIGNORS[name](members, sizes)
        assert assigned.keys() == {one.member_id for one in members}
        given_out = [partition for own in assigned.values() for partition in own]
        wanted = {topic for one in members for topic in one.topics}
        there = {TopicIdPartition(t, n) for t in wanted for n in range(sizes[t])}
        assert len(given_out) == len(there) and set(given_out) == there
        for one in members:
            assert {partition.topic_id for partition in assigned[one.member_id]} <= one.topics
        if same and name == "uniform":
            loads = [len(own) for own in assigned.values()]
            assert max(loads) - min(loads) <= 1
        before = assigned


def test_uniform_assignor_moves_as_few_partitions_as_possible() -> None:
    sizes = {TOPICS[0]: 6}
    two = uniform_assignment(
        [Subscriber(member_id=m, topics=frozenset(sizes), target=frozenset()) for m in "ab"], sizes
    )
    three = uniform_assignment(
        [
            Subscriber(member_id=m, topics=frozenset(sizes), target=two.get(m, frozenset()))
            for m in "abc"
        ],
        sizes,
    )
    assert three["a"] < two["a"] and three["b"] < two["b"] and len(three["c"]) == 2


def test_range_assignor_co_partitions_topics_of_equal_size() -> None:
    sizes = {TOPICS[0]: 5, TOPICS[1]: 5}
    members = [
        Subscriber(member_id="a", topics=frozenset(sizes), target=frozenset()),
        Subscriber(member_id="z", instance_id="1", topics=frozenset(sizes), target=frozenset()),
    ]
    assigned = range_assignment(members, sizes)
    assert {one.partition for one in assigned["z"]} == {0, 1, 2}, "static members come first"
    assert {one.partition for one in assigned["a"]} == {3, 4} and len(assigned["a"]) == 4
