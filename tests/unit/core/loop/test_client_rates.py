"""``ClientRates``: precedence, sharing, bursts, changes and their cost, and limits of memory."""

from __future__ import annotations

from typing import Any

import pytest

from kraftjbod.core.client_quota import address_entity, client_entity
from kraftjbod.core.loop import client_rates
from kraftjbod.core.loop.client_rates import ClientRates

PRODUCE, CONSUME = "producer_byte_rate", "consumer_byte_rate"
BURST_S = client_rates.BURST_S[PRODUCE]
ALICE, APP = ("user", "alice"), ("client-id", "app")


class CountedQuotas(dict[Any, dict[str, float]]):
    """Counts the entities that a reader visits."""

    visits = 0

    def get(self, key: Any, default: Any = None) -> Any:
        self.visits += 1
        return super().get(key, default)

    def _visit_all(self, *_: object) -> Any:
        raise AssertionError("all entities are visited")

    __iter__ = items = values = keys = _visit_all


class Rig:
    def __init__(self, quotas: dict[Any, dict[str, float]]) -> None:
        self.quotas: dict[Any, dict[str, float]] = {}
        self.now_ms = 1_000_000
        self.rates = ClientRates(lambda: self.quotas, lambda: self.now_ms)
        self.use(quotas)

    def use(self, quotas: dict[Any, dict[str, float]]) -> None:
        changed = self.quotas.keys() | quotas.keys()
        self.quotas = quotas
        self.rates.refresh(changed)

    def spend(self, size_bytes: int, user: str = "alice", client_id: str = "app") -> int:
        return self.rates.spend(PRODUCE, client_entity(user, client_id), size_bytes)


def test_spend_without_a_quota_never_waits() -> None:
    rig = Rig({})
    assert not rig.rates.is_set(PRODUCE)
    assert rig.spend(10**12) == 0
    assert rig.rates.burst(CONSUME, client_entity("alice", "app")) is None


def test_spend_waits_for_the_bytes_beyond_a_burst() -> None:
    rig = Rig({(ALICE,): {PRODUCE: 1000.0}})
    assert rig.rates.is_set(PRODUCE) and not rig.rates.is_set(CONSUME)
    assert rig.spend(1000 * BURST_S) == 0
    assert rig.spend(2000) == 2000
    rig.now_ms += 1500
    assert rig.spend(0) == 500
    rig.now_ms += 500
    assert rig.spend(1) == 1
    client = client_entity("alice", "app")
    assert rig.rates.spend(CONSUME, client, 10**9) == 0, "no quota of that key"
    assert (rig.rates.wait_ms(PRODUCE, client), rig.rates.wait_ms(CONSUME, client)) == (1, 0)


def test_spend_of_a_fractional_rate_waits_for_whole_units() -> None:
    mutations = "controller_mutation_rate"
    rig, client = Rig({(ALICE,): {mutations: 0.5}}), client_entity("alice", "app")
    assert rig.rates.burst(mutations, client) == 5, "eleven seconds"
    assert rig.rates.spend(mutations, client, 6) == 1000
    assert rig.rates.spend(mutations, client, -6) == 0, "returned"


def test_spend_of_each_address_has_its_own_rate() -> None:
    key = "connection_creation_rate"
    rig = Rig({(("ip", None),): {key: 1.0}, (("ip", "10.0.0.2"),): {key: 2.0}})
    waits = [rig.rates.spend(key, address_entity(f"10.0.0.{i}"), 12) for i in (1, 2, 3)]
    assert waits == [2000, 0, 2000]


@pytest.mark.parametrize(
    ("entity", "shares", "is_apart"),
    [
        ((ALICE,), ("alice", "other"), ("bob", "app")),
        ((("user", None),), ("alice", "other"), ("bob", "app")),
        ((APP,), ("bob", "app"), ("alice", "other")),
        ((("client-id", None),), ("bob", "app"), ("alice", "other")),
        ((("client-id", None), ALICE), ("alice", "app"), ("alice", "other")),
    ],
)
def test_spend_of_a_client_delays_those_that_share_its_rate(
    entity: Any, shares: tuple[str, str], is_apart: tuple[str, str]
) -> None:
    rig = Rig({entity: {PRODUCE: 1000.0}})
    assert rig.spend(1000 * BURST_S + 500) == 500
    assert rig.spend(0, *shares) == 500
    assert rig.spend(0, *is_apart) == 0


def test_refresh_changes_the_rate_and_keeps_the_debt() -> None:
    rig = Rig({(ALICE,): {PRODUCE: 1000.0}})
    assert rig.spend(1000 * BURST_S + 1000) == 1000
    rig.use({(ALICE,): {PRODUCE: 2000.0}})
    assert rig.spend(0) == 500
    assert rig.rates.burst(PRODUCE, client_entity("alice", "app")) == 2000 * BURST_S
    rig.use({})
    assert rig.spend(10**9) == 0 and not rig.rates.is_set(PRODUCE)


def test_refresh_visits_only_the_changed_entities() -> None:
    """It visited all of up to 100,000 in one event loop iteration."""
    rig = Rig({})
    quotas = CountedQuotas({(("user", f"u{n}"),): {PRODUCE: 1.0} for n in range(1000)})
    rig.quotas = quotas
    rig.rates.refresh([(("user", "u1"),), (("user", "gone"),)])
    assert quotas.visits == 2 and rig.rates.is_set(PRODUCE)
    rig.spend(1)
    assert quotas.visits <= 10


def test_balances_are_limited_and_the_one_unused_for_longest_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_rates, "MAX_BALANCES", 2)
    rig = Rig({(("user", None),): {PRODUCE: 1000.0}})
    for user in "abc":
        assert rig.spend(1000 * BURST_S + 1000, user) == 1000
    rig.rates.refresh(())
    assert rig.spend(0, "c") == 1000
    assert rig.spend(0, "a") == 0, "its balance was dropped"


def test_balance_of_a_busy_client_outlives_balances_used_less_recently(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if each lookup of the busy client repeats an earlier one."""
    monkeypatch.setattr(client_rates, "MAX_BALANCES", 2)
    rig = Rig({(("user", None),): {PRODUCE: 1000.0}})
    assert rig.spend(1000 * BURST_S + 1000, "busy") == 1000
    rig.spend(1, "idle")
    assert rig.spend(0, "busy") == 1000
    rig.spend(1, "new")
    assert rig.spend(0, "busy", "other-app") == 1000, "the balance of its user was dropped"
