"""``ConnectionQuotas``: reserved places of brokers, pending connections, and limits per host."""

from __future__ import annotations

import random
from collections import Counter

from kraftjbod.net.connection_quotas import ConnectionQuotas, QuotaLimits
from tests.each_case import each_case


class Connection:
    def __init__(self, peer_host: str = "1.1.1.1") -> None:
        self.peer_host = peer_host
        self.is_privileged = False
        self.aborted: str | None = None

    def abort(self, reason: str) -> None:
        self.aborted = reason


@each_case("seed", range(30))
def test_connection_quotas_always_admit_brokers_to_reserved_places(seed: int) -> None:
    chance = random.Random(seed)
    limits = QuotaLimits(
        max_connections=chance.randint(4, 20),
        reserved=(reserved := chance.randint(1, 4)),
        pending=chance.randint(1, 3),
        pending_ms=1000,
        max_per_host=chance.randint(1, 10),
        per_host={"1.1.1.1": chance.randint(0, 15)},
    )
    quotas, inside, brokers, now_s = (
        ConnectionQuotas(limits),
        list[Connection](),
        list[Connection](),
        0.0,
    )
    for _ in range(400):
        now_s += chance.random()
        match chance.randrange(4):
            case 0 if inside:
                gone = inside.pop(chance.randrange(len(inside)))
                quotas.release(gone)
                brokers = [broker for broker in brokers if broker is not gone]
            case 1 if len(brokers) < reserved:
                broker = Connection(chance.choice(["1.1.1.1", "3.3.3.3"]))
                assert quotas.admit(broker, now_s)
                quotas.note_broker(broker)
                inside.append(broker)
                brokers.append(broker)
            case 2:
                quotas.evict_pending(now_s)
            case _:
                client = Connection(chance.choice(["1.1.1.1", "2.2.2.2", "3.3.3.3"]))
                assert quotas.admit(client, now_s)
                inside.append(client)
        inside = [connection for connection in inside if connection.aborted is None]
        assert all(broker.aborted is None and broker.is_privileged for broker in brokers)
        clients = Counter(g.peer_host for g in inside if not g.is_privileged)
        assert clients.total() <= limits.clients + limits.pending
        assert clients["1.1.1.1"] <= limits.per_host["1.1.1.1"] + limits.pending
        assert clients["2.2.2.2"] <= limits.max_per_host + limits.pending
        assert len(quotas) == len(inside) <= limits.max_connections + limits.pending


def test_connection_quotas_evict_pending_connections_after_pending_ms() -> None:
    quotas = ConnectionQuotas(
        QuotaLimits(max_connections=2, reserved=1, pending=2, pending_ms=5000)
    )
    first, second, third = Connection(), Connection(), Connection()
    for now_s, connection in enumerate((first, second, third)):
        assert quotas.admit(connection, now_s)
    quotas.evict_pending(6)
    assert [connection.aborted is None for connection in (first, second, third)] == [
        True,
        False,
        True,
    ]
    quotas.evict_pending(7)
    assert third.aborted
    assert (len(quotas), quotas.has_pending) == (1, False)


def test_connection_quotas_without_pending_places_refuse_at_the_limit() -> None:
    quotas = ConnectionQuotas(QuotaLimits(max_connections=1))
    first = Connection()
    assert quotas.admit(first, 0)
    assert not quotas.admit(Connection(), 0)
    quotas.release(first)
    assert quotas.admit(Connection(), 0)


def test_changed_limits_apply_to_later_connections() -> None:
    quotas = ConnectionQuotas(QuotaLimits(max_connections=2))
    first, second, third = Connection(), Connection(), Connection()
    assert quotas.admit(first, 0.0)
    assert quotas.admit(second, 0.0)
    quotas.set_limits(QuotaLimits(max_connections=1))
    assert (first.aborted, second.aborted) == (None, None)
    quotas.release(first)
    assert not quotas.admit(third, 1.0)
    quotas.set_limits(QuotaLimits(max_connections=2))
    assert quotas.admit(third, 2.0)
