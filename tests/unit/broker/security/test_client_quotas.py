"""``ClientQuotas``: precedence, sharing, bursts, changes, and limits of memory."""

from __future__ import annotations

from typing import Any

import pytest

from kraftjbod.broker.security import client_quotas
from kraftjbod.broker.security.client_quotas import BURST_S, ClientQuotas

PRODUCE, CONSUME = "producer_byte_rate", "consumer_byte_rate"
ALICE, APP = ("user", "alice"), ("client-id", "app")


class Rig:
    def __init__(self, quotas: dict[Any, dict[str, float]]) -> None:
        self.quotas = quotas
        self.now_ms = 1_000_000
        self.of_clients = ClientQuotas(lambda: self.quotas, lambda: self.now_ms)
        self.of_clients.refresh()

    def spend(self, size_bytes: int, user: str = "alice", client_id: str = "app") -> int:
        return self.of_clients.spend(PRODUCE, user, client_id, size_bytes)


def test_spend_without_a_quota_never_waits() -> None:
    rig = Rig({})
    assert not rig.of_clients.are_set
    assert rig.spend(10**12) == 0
    assert rig.of_clients.most_bytes(CONSUME, "alice", "app") is None


def test_spend_waits_for_the_bytes_beyond_a_burst() -> None:
    rig = Rig({(ALICE,): {PRODUCE: 1000.0}})
    assert rig.of_clients.are_set
    assert rig.spend(1000 * BURST_S) == 0
    assert rig.spend(2000) == 2000
    rig.now_ms += 1500
    assert rig.spend(0) == 500
    rig.now_ms += 500
    assert rig.spend(1) == 1
    assert rig.of_clients.spend(CONSUME, "alice", "app", 10**9) == 0, "no quota of that key"


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
    rig.quotas = {(ALICE,): {PRODUCE: 2000.0}}
    rig.of_clients.refresh()
    assert rig.spend(0) == 500
    assert rig.of_clients.most_bytes(PRODUCE, "alice", "app") == 2000 * BURST_S
    rig.quotas = {}
    rig.of_clients.refresh()
    assert rig.spend(10**9) == 0 and not rig.of_clients.are_set


def test_balances_are_limited_and_the_one_unused_for_longest_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_quotas, "MAX_BALANCES", 2)
    rig = Rig({(("user", None),): {PRODUCE: 1000.0}})
    for user in "abc":
        assert rig.spend(1000 * BURST_S + 1000, user) == 1000
    rig.of_clients.refresh()
    assert rig.spend(0, "c") == 1000
    assert rig.spend(0, "a") == 0, "its balance was dropped"
