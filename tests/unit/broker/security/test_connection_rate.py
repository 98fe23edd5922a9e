"""``connection_delay_ms``: rates of addresses, by name and by default (KIP-612)."""

from __future__ import annotations

from kraftjbod.broker.security.connection_rate import MAX_DELAY_MS, connection_delay_ms
from kraftjbod.core.client_quota import Quotas
from kraftjbod.core.loop.client_rates import BURST_S, ClientRates

KEY = "connection_creation_rate"
BURST = BURST_S[KEY]


class Rig:
    def __init__(self, quotas: Quotas) -> None:
        self.now_ms = 1_000_000
        self.rates = ClientRates(lambda: quotas, lambda: self.now_ms)
        self.rates.refresh(quotas)

    def delays(self, host: str, count: int) -> list[int]:
        return [connection_delay_ms(self.rates, host) for _ in range(count)]


def test_connections_beyond_a_burst_are_delayed_and_not_counted() -> None:
    rig = Rig({(("ip", "10.0.0.1"),): {KEY: 2.0}})
    assert rig.delays("10.0.0.1", 2 * BURST + 100) == [0] * 2 * BURST + [500] * 100
    rig.now_ms += 500
    assert rig.delays("10.0.0.1", 2) == [0, 500]
    assert rig.delays("10.0.0.2", 100) == [0] * 100, "no quota"


def test_delay_is_limited_and_the_default_applies_to_each_address() -> None:
    rig = Rig({(("ip", None),): {KEY: 0.1}})
    for host in ("10.0.0.1", "10.0.0.2"):
        assert rig.delays(host, 2) == [0, MAX_DELAY_MS]
