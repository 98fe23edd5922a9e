"""Transfers between brokers: tables, and invariants of random clusters."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.balance.fair_shares import DirLoad, Goals
from kraftjbod.balance.planner import Tier
from kraftjbod.balance.transfer_planner import (
    BrokerLoad,
    Candidate,
    Choice,
    DirSums,
    Sent,
    Task,
    Transfer,
    after,
    broker_loads,
    byte_tasks,
    choose,
    rate_tasks,
    without_stuck,
)

GOALS: Final = Goals(tolerance=0.05, rate_tolerance=0.2)
NO_RACKS: Final = dict.fromkeys(range(100))


def one_dir(
    broker: int,
    size: int,
    *,
    total: int = 1000,
    spare: int = 10_000,
    rate: float = 0.0,
    **more: bool,
) -> DirSums:
    return DirSums(
        broker_id=broker,
        path="/a",
        load=DirLoad(total_bytes=total, spare_bytes=spare, **more),
        size_bytes=size,
        fixed_bytes=0,
        write_rate=rate,
        fixed_rate=0.0,
        replicas=3,
    )


def flows(tasks: dict[int, Task]) -> dict[tuple[int, int], int]:
    return {
        (source, transfer.target): round(transfer.wanted)
        for source, task in tasks.items()
        for transfer in task.transfers
    }


@pytest.mark.parametrize(
    ("dirs", "wanted"),
    [
        ([one_dir(1, 100), one_dir(2, 100)], {}),
        ([one_dir(1, 104), one_dir(2, 96)], {}),
        ([one_dir(1, 200), one_dir(2, 0)], {(1, 2): 95}),
        ([one_dir(1, 300), one_dir(2, 0, total=2000)], {(1, 2): 195}),
        ([one_dir(1, 300), one_dir(2, 0), one_dir(3, 0)], {(1, 2): 98, (1, 3): 98}),
        ([one_dir(1, 200), one_dir(2, 0, spare=40)], {(1, 2): 38}),
        ([one_dir(1, 200), one_dir(2, 0, takes=False)], {}),
        (
            [one_dir(1, 60, takes=False, is_drained=True), one_dir(2, 66), one_dir(3, 0)],
            {(1, 3): 63},
        ),
        (
            [one_dir(1, 0, takes=False, is_drained=True), one_dir(2, 50), one_dir(3, 47)],
            {(1, 3): 3},
        ),
    ],
    ids=[
        "even",
        "within the tolerance",
        "to the tolerance",
        "larger brokers take more",
        "the emptiest first",
        "not more than there is free space",
        "cordoned",
        "drained",
        "drained of empty replicas",
    ],
)
def test_byte_tasks_even_out_brokers_within_limits(
    dirs: list[DirSums], wanted: dict[tuple[int, int], int]
) -> None:
    found = flows(byte_tasks(broker_loads(dirs), NO_RACKS, GOALS))
    assert found.keys() == wanted.keys()
    assert all(abs(found[pair] - part) <= 1 for pair, part in wanted.items())


def test_byte_tasks_prefer_brokers_of_the_same_rack() -> None:
    loads = broker_loads([one_dir(1, 200), one_dir(2, 200), one_dir(3, 0), one_dir(4, 0)])
    racks = {1: "a", 2: "b", 3: "b", 4: "a"}
    assert flows(byte_tasks(loads, racks, GOALS)).keys() == {(1, 4), (2, 3)}


def test_rate_tasks_are_limited_by_bytes() -> None:
    dirs = [one_dir(1, 100, rate=90.0), one_dir(2, 100, rate=10.0), one_dir(3, 100, rate=20.0)]
    tasks = rate_tasks(broker_loads(dirs), NO_RACKS, GOALS)
    assert flows(tasks).keys() == {(1, 2), (1, 3)}
    assert sum(flows(tasks).values()) == 90 - 40 * 1.2
    assert all(transfer.most_bytes <= 5.001 for transfer in tasks[1].transfers)
    assert 4.999 <= tasks[1].spare_bytes <= 5.001


def test_byte_tasks_after_replicas_were_sent_are_empty() -> None:
    loads = broker_loads([one_dir(1, 200, rate=1.0), one_dir(2, 0)])
    sent = Sent(size_bytes=97, write_rate=0.5, replicas=2)
    moved = after(loads, {1: sent}, {2: sent})
    assert byte_tasks(moved, NO_RACKS, GOALS) == {}
    assert [(one.size_bytes, one.write_rate) for one in moved] == [(103, 0.5), (97, 0.5)]
    assert moved[1].spare_bytes == loads[1].spare_bytes - 97


def test_without_stuck_redistributes_shares_of_closed_brokers() -> None:
    """Broker 2 keeps its 800; the others share the rest by their sizes."""
    loads = broker_loads(
        [one_dir(1, 800), one_dir(2, 800), one_dir(3, 0), one_dir(4, 0, takes=False)]
    )
    shared = without_stuck(loads, {2, 3})
    assert [round(load.share_bytes) for load in shared] == [400, 800, 400, 0]
    assert flows(byte_tasks(shared, NO_RACKS, GOALS)) == {(1, 3): 380}


def task(*transfers: Transfer, spare: float = 1000.0, is_rate: bool = False) -> Task:
    load = BrokerLoad(
        broker_id=1,
        size_bytes=1000,
        share_bytes=500.0,
        spare_bytes=0,
        write_rate=10.0,
        share_rate=5.0,
        weight_bytes=0,
        excess={"/full": 400.0, "/even": 0.0},
    )
    return Task(load=load, spare_bytes=spare, transfers=transfers, is_rate=is_rate)


def candidate(size: int, *others: int, path: str = "/full", **more: float) -> Candidate:
    return Candidate(
        path=path,
        size_bytes=size,
        write_rate=more.get("rate", 0.0),
        brokers=(1, *others),
        must_leave=bool(more.get("must_leave", False)),
    )


def chosen(choices: list[Choice]) -> list[tuple[int, int]]:
    return [(choice.candidate, choice.target) for choice in choices]


def test_choose_takes_largest_replicas_of_fullest_directory_first() -> None:
    there = [candidate(60, path="/even"), candidate(50), candidate(30), candidate(7)]
    to_two = Transfer(target=2, wanted=90, most_bytes=95)
    assert chosen(choose(task(to_two), there, NO_RACKS)) == [(1, 2), (2, 2), (3, 2)]


def test_choose_may_end_with_a_larger_replica_if_the_target_has_space() -> None:
    there = [candidate(50), candidate(45), candidate(49)]
    for most, expected in ((99, [(0, 2), (1, 2)]), (94, [(0, 2)])):
        to_two = Transfer(target=2, wanted=60, most_bytes=most)
        assert chosen(choose(task(to_two), there, NO_RACKS)) == expected


def test_choose_skips_holders_and_loses_no_rack() -> None:
    racks = {1: "a", 2: "b", 3: "b", 4: "a", 5: "c"}
    there = [candidate(10, 2), candidate(10, 2, 4), candidate(10, 4, 5), candidate(10, 3, 4)]

    def able(target: int) -> list[int]:
        to_it = Transfer(target=target, wanted=1000, most_bytes=1000)
        return sorted(index for index, _ in chosen(choose(task(to_it), there, racks)))

    assert able(2) == [2, 3], "broker 2 holds 0 and 1"
    assert able(3) == [1, 2]
    assert able(5) == [0, 1, 3]


def test_choose_prefers_a_new_rack() -> None:
    racks = {1: "a", 2: "b", 4: "a"}
    there = [candidate(10), candidate(10, 4)]
    to_two = Transfer(target=2, wanted=10, most_bytes=10)
    assert chosen(choose(task(to_two), there, racks)) == [(1, 2)]


def test_choose_lets_drained_replicas_leave_below_the_broker_share() -> None:
    there = [candidate(10, must_leave=True), candidate(0, must_leave=True), candidate(5)]
    to_two = Transfer(target=2, wanted=20, most_bytes=20)
    choices = choose(task(to_two, spare=0.0), there, NO_RACKS)
    assert chosen(choices) == [(0, 2), (1, 2)]
    assert {choice.tier for choice in choices} == {Tier.DRAIN}


def test_choose_for_rate_takes_hottest_replicas_first() -> None:
    there = [candidate(100, rate=5.0), candidate(10, rate=4.0), candidate(10, rate=9.0)]
    to_two = Transfer(target=2, wanted=9.5, most_bytes=110)
    assert chosen(choose(task(to_two, is_rate=True), there, NO_RACKS)) == [(2, 2)]
    to_two = Transfer(target=2, wanted=20, most_bytes=115)
    assert chosen(choose(task(to_two, is_rate=True), there, NO_RACKS)) == [(2, 2), (1, 2)]


# --- whole clusters ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Whole:
    """Brokers with one directory each; partitions with size and brokers."""

    racks: dict[int, str | None]
    dirs: list[DirSums]
    partitions: list[tuple[int, tuple[int, ...]]]


@st.composite
def clusters(draw: st.DrawFn) -> Whole:
    count = draw(st.integers(2, 8))
    seed = random.Random(draw(st.integers(0, 10**9)))
    racks = {b: seed.choice(["a", "b", "c", None]) for b in range(count)}
    factor = draw(st.integers(1, min(3, count)))
    weights = [seed.random() ** 2 + 0.01 for _ in range(count)]
    partitions = []
    for _ in range(draw(st.integers(0, 60))):
        brokers: list[int] = []
        while len(brokers) < factor:
            (drawn,) = seed.choices(range(count), weights)
            if drawn not in brokers:
                brokers.append(drawn)
        partitions.append((min(10_000, int(seed.paretovariate(0.8) * 10)), tuple(brokers)))
    dirs = []
    for broker in range(count):
        sizes = [size for size, brokers in partitions if broker in brokers]
        drained = seed.random() < 0.15
        dirs.append(
            DirSums(
                broker_id=broker,
                path="/a",
                load=DirLoad(
                    total_bytes=seed.choice([1000, 2000]),
                    spare_bytes=0 if drained else seed.choice([0, 300, 100_000]),
                    takes=not drained,
                    is_drained=drained,
                ),
                size_bytes=sum(sizes),
                fixed_bytes=0,
                write_rate=float(len(sizes)),
                fixed_rate=0.0,
                replicas=len(sizes),
            )
        )
    return Whole(racks, dirs, partitions)


@given(clusters(), st.booleans())
def test_choices_of_all_sources_fit_together(whole: Whole, by_rate: bool) -> None:
    loads = broker_loads(whole.dirs)
    share = {load.broker_id: load.share_bytes for load in loads}
    tasks = (rate_tasks if by_rate else byte_tasks)(loads, whole.racks, GOALS)
    taken: dict[int, int] = defaultdict(int)
    for source, own in tasks.items():
        drained = whole.dirs[source].load.is_drained
        # Each partition belongs to the first of its brokers that sends anything.
        held = [
            (size, brokers)
            for size, brokers in whole.partitions
            if next((b for b in brokers if b in tasks), None) == source
        ]
        there = [
            Candidate(
                path="/a", size_bytes=size, write_rate=1.0, brokers=brokers, must_leave=drained
            )
            for size, brokers in held
        ]
        choices = choose(own, there, whole.racks)
        assert len({choice.candidate for choice in choices}) == len(choices)
        for choice in choices:
            size, brokers = held[choice.candidate]
            assert choice.target not in brokers
            kept = {whole.racks[b] for b in brokers if b != source} - {None}
            was = kept | {whole.racks[source]} - {None}
            assert len(kept | {whole.racks[choice.target]} - {None}) >= len(was)
            taken[choice.target] += size
    for broker, size in taken.items():
        load = whole.dirs[broker]
        assert size <= load.load.spare_bytes, "the target may be filled"
        assert load.size_bytes + size <= share[broker] * 1.05 + 1, "the target has too much now"
