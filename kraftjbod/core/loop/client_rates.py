"""PURE. ``ClientRates``: the amounts that clients may use per second on this node (ADR 114).

* A rate is that of one node, as in Kafka, and is shared by all connections of a user, of a client
  id, or of a client id of a user: see ``core/client_quota.py``.
* A client may use the amount of a few seconds at once (:data:`BURST_S`). A client that uses more
  waits until its balance is zero again.
* A change of one entity's quotas costs the same with one entity as with all that can exist.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from kraftjbod.core.client_quota import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    QUOTA_KEYS,
    QuotaEntity,
    Quotas,
    candidates,
)
from kraftjbod.core.loop.timing import TokenBucket

#: As with Kafka's defaults: ten full windows of one second, and eleven for mutations.
BURST_S: Final[Mapping[str, int]] = {
    PRODUCER_BYTE_RATE: 10,
    CONSUMER_BYTE_RATE: 10,
    CONTROLLER_MUTATION_RATE: 11,
    CONNECTION_CREATION_RATE: 10,
}
#: Balances in memory, of each key. With more clients, the one unused for longest is dropped: that
#: client has a full burst again.
MAX_BALANCES: Final = 10_000


#: The entities that have a quota, by its key.
Limited = dict[str, set[QuotaEntity]]


def empty_limited() -> Limited:
    """Return the entities of a node without quotas, for :meth:`ClientRates.use_limited`."""
    return {key: set() for key in QUOTA_KEYS}


class ClientRates:
    """Balances of clients with quotas on this node, one per quota key and sharing entity.

    A sharing entity is the second item of a pair from :func:`candidates`: clients with the quota of
    one user or client id share a balance. At most 10,000 balances per key are kept; the
    one that was looked up least recently is dropped first.

    A client is an entity with names only: its user and client id, or its address.
    """

    def __init__(self, quotas: Callable[[], Quotas], now_ms: Callable[[], int]) -> None:
        """
        :param quotas: returns the quotas in the metadata.
        :param now_ms: returns the monotonic time.
        """
        self._quotas = quotas
        self._now_ms = now_ms
        self._limited = empty_limited()
        #: The sharing entity and the rate of each client, by key; None without a quota. Balances
        #: are not cached here: each lookup has to update the order of ``_balances``.
        self._found: dict[str, dict[QuotaEntity, tuple[QuotaEntity, float] | None]] = {
            key: {} for key in QUOTA_KEYS
        }
        #: By key, in the order of their last lookup.
        self._balances: dict[str, dict[QuotaEntity, TokenBucket]] = {key: {} for key in QUOTA_KEYS}

    def refresh(self, changed: Iterable[QuotaEntity]) -> None:
        """Apply the present quotas in the metadata to the entities ``changed``. A client whose
        quota did not change keeps its balance.
        """
        for found in self._found.values():
            found.clear()
        quotas = self._quotas()
        for entity in changed:
            values = quotas.get(entity, {})
            for key, entities in self._limited.items():
                if key in values:
                    entities.add(entity)
                else:
                    entities.discard(entity)

    def use_limited(self, limited: Limited) -> None:
        """Apply the present quotas in the metadata to all entities. As :meth:`refresh`, but the
        cost does not depend on the number of entities.

        :param limited: all entities with a quota, by its key.
        """
        for found in self._found.values():
            found.clear()
        self._limited = limited

    def is_set(self, key: str) -> bool:
        """Return whether any entity has the quota ``key``; if not, :meth:`spend` has no effect."""
        return bool(self._limited[key])

    def spend(self, key: str, client: QuotaEntity, amount: int) -> int:
        """Subtract ``amount`` from the client's balance; return the ms until it may continue.

        :param amount: a negative amount is given back to the client.
        """
        balance = self._balance(key, client)
        if balance is None:
            return 0
        now_ms = self._now_ms()
        balance.spend(amount, now_ms)
        return balance.wait_ms(now_ms)

    def wait_ms(self, key: str, client: QuotaEntity) -> int:
        """Return the ms until the client's balance is zero or positive; 0 if it is now, or without
        a quota. Nothing is spent.
        """
        balance = self._balance(key, client)
        return 0 if balance is None else balance.wait_ms(self._now_ms())

    def burst(self, key: str, client: QuotaEntity) -> int | None:
        """Return the amount that the client may use at once after a pause, at least 1. None
        without a quota."""
        balance = self._balance(key, client)
        return None if balance is None else max(1, math.floor(balance.per_second * BURST_S[key]))

    def _balance(self, key: str, client: QuotaEntity) -> TokenBucket | None:
        found = self._found[key]
        if client not in found:
            if len(found) >= MAX_BALANCES:
                found.clear()
            found[client] = self._find(key, client)
        limit = found[client]
        return None if limit is None else self._balance_of(key, *limit)

    def _find(self, key: str, client: QuotaEntity) -> tuple[QuotaEntity, float] | None:
        quotas = self._quotas()
        for entity, sharing in candidates(client):
            rate = quotas.get(entity, {}).get(key)
            if rate is not None:
                return sharing, rate
        return None

    def _balance_of(self, key: str, sharing: QuotaEntity, rate: float) -> TokenBucket:
        balances = self._balances[key]
        balance = balances.pop(sharing, None)
        if balance is None:
            balance = TokenBucket(rate, self._now_ms(), burst_s=BURST_S[key])
            if len(balances) >= MAX_BALANCES:
                del balances[next(iter(balances))]
        elif balance.per_second != rate:
            balance.set_rate(rate, self._now_ms())
        balances[sharing] = balance
        return balance
