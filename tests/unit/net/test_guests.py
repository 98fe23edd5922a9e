"""Places at a door: whoever comes in whatever order, brokers get in and nobody has too many."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from kraftjbod.net.guests import Guests, PlaceLimits


class Guest:
    def __init__(self, peer_host: str = "1.1.1.1") -> None:
        self.peer_host = peer_host
        self.is_privileged = False
        self.aborted: str | None = None

    def abort(self, reason: str) -> None:
        self.aborted = reason


@pytest.mark.parametrize("seed", range(30))
def test_brokers_get_in_whoever_fills_the_house(seed: int) -> None:
    chance = random.Random(seed)
    limits = PlaceLimits(
        max_connections=chance.randint(4, 20),
        reserved=(reserved := chance.randint(1, 4)),
        porch=chance.randint(1, 3),
        porch_ms=1000,
        max_per_host=chance.randint(1, 10),
        per_host={"1.1.1.1": chance.randint(0, 15)},
    )
    guests, inside, brokers, now_s = Guests(limits), list[Guest](), list[Guest](), 0.0
    for _ in range(400):
        now_s += chance.random()
        match chance.randrange(4):
            case 0 if inside:
                gone = inside.pop(chance.randrange(len(inside)))
                guests.leave(gone)
                brokers = [broker for broker in brokers if broker is not gone]
            case 1 if len(brokers) < reserved:
                broker = Guest(chance.choice(["1.1.1.1", "3.3.3.3"]))
                assert guests.enter(broker, now_s)
                guests.is_broker(broker)
                inside.append(broker)
                brokers.append(broker)
            case 2:
                guests.clear_porch(now_s)
            case _:
                stranger = Guest(chance.choice(["1.1.1.1", "2.2.2.2", "3.3.3.3"]))
                assert guests.enter(stranger, now_s)
                inside.append(stranger)
        inside = [guest for guest in inside if guest.aborted is None]
        assert all(broker.aborted is None and broker.is_privileged for broker in brokers)
        strangers = Counter(g.peer_host for g in inside if not g.is_privileged)
        assert strangers.total() <= limits.strangers + limits.porch
        assert strangers["1.1.1.1"] <= limits.per_host["1.1.1.1"] + limits.porch
        assert strangers["2.2.2.2"] <= limits.max_per_host + limits.porch
        assert len(guests) == len(inside) <= limits.max_connections + limits.porch


def test_nobody_stays_in_the_porch() -> None:
    guests = Guests(PlaceLimits(max_connections=2, reserved=1, porch=2, porch_ms=5000))
    first, second, third = Guest(), Guest(), Guest()
    for now_s, guest in enumerate((first, second, third)):
        assert guests.enter(guest, now_s)
    guests.clear_porch(6)
    assert [guest.aborted is None for guest in (first, second, third)] == [True, False, True]
    guests.clear_porch(7)
    assert third.aborted
    assert (len(guests), guests.has_porch_guests) == (1, False)


def test_without_a_porch_who_finds_no_place_is_told_at_once() -> None:
    guests = Guests(PlaceLimits(max_connections=1))
    first = Guest()
    assert guests.enter(first, 0)
    assert not guests.enter(Guest(), 0)
    guests.leave(first)
    assert guests.enter(Guest(), 0)
