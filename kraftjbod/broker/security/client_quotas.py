"""PURE. ``ClientQuotas``: the byte rates of clients on this broker (KIP-13, KIP-546).

* A rate is that of one broker, as in Kafka, and is shared by all connections of a user, of a client
  id, or of a client id of a user: see ``core/client_quota.py``.
* A client may send or receive the bytes of :data:`BURST_S` seconds at once. A client that spends
  more waits until its balance is zero again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from kraftjbod.core.client_quota import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    QuotaEntity,
    Quotas,
    candidates,
)
from kraftjbod.core.loop.timing import TokenBucket

#: As Kafka's default: ten full windows of one second.
BURST_S: Final = 10
#: Balances in memory. With more clients, the one unused for longest is dropped: that client has a
#: full burst again.
MAX_BALANCES: Final = 10_000
_RATES: Final = frozenset({PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE})


class ClientQuotas:
    def __init__(self, quotas: Callable[[], Quotas], now_ms: Callable[[], int]) -> None:
        """
        :param quotas: returns the quotas in the metadata.
        :param now_ms: returns the monotonic time.
        """
        self._quotas = quotas
        self._now_ms = now_ms
        #: Whether any client may have a byte rate.
        self.are_set = False
        #: The balance of a client by key, user and client id; None without a quota.
        self._found: dict[tuple[str, str, str], TokenBucket | None] = {}
        #: In the order of their last lookup.
        self._balances: dict[tuple[str, QuotaEntity], TokenBucket] = {}

    def refresh(self) -> None:
        """Use the present quotas of the metadata. Balances stay."""
        self._found.clear()
        self.are_set = any(not _RATES.isdisjoint(values) for values in self._quotas().values())

    def spend(self, key: str, user: str, client_id: str, size_bytes: int) -> int:
        """Subtract ``size_bytes`` from the client's balance; return the ms until it may continue.

        :param key: ``producer_byte_rate`` or ``consumer_byte_rate``.
        """
        balance = self._balance(key, user, client_id)
        if balance is None:
            return 0
        now_ms = self._now_ms()
        balance.spend(size_bytes, now_ms)
        return balance.wait_ms(now_ms)

    def most_bytes(self, key: str, user: str, client_id: str) -> int | None:
        """Return the bytes that one response may have, so that it does not exceed a whole burst.
        None without a quota."""
        balance = self._balance(key, user, client_id)
        return None if balance is None else balance.bytes_per_second * BURST_S

    def _balance(self, key: str, user: str, client_id: str) -> TokenBucket | None:
        client = (key, user, client_id)
        if client not in self._found:
            if len(self._found) >= MAX_BALANCES:
                self._found.clear()
            self._found[client] = self._find(key, user, client_id)
        return self._found[client]

    def _find(self, key: str, user: str, client_id: str) -> TokenBucket | None:
        quotas = self._quotas()
        for entity, sharing in candidates(user, client_id):
            rate = quotas.get(entity, {}).get(key)
            if rate is not None:
                return self._balance_of((key, sharing), max(1, math.floor(rate)))
        return None

    def _balance_of(self, name: tuple[str, QuotaEntity], rate: int) -> TokenBucket:
        now_ms = self._now_ms()
        balance = self._balances.pop(name, None)
        if balance is None:
            balance = TokenBucket(rate, now_ms, burst_s=BURST_S)
            if len(self._balances) >= MAX_BALANCES:
                del self._balances[next(iter(self._balances))]
        elif balance.bytes_per_second != rate:
            balance.set_rate(rate, now_ms)
        self._balances[name] = balance
        return balance
