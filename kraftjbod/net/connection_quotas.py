"""PURE. ``ConnectionQuotas``: how many connections a listener has, in all and per address.

* A client's connection takes a free place. The last ``reserved`` places are not for clients.
* One that finds none, or comes from an address that has too many, is *pending*: the oldest of those
  is evicted when the next one comes, and none is pending for longer than ``pending_ms``.
* A broker that shows itself leaves its place to clients and has one of its own, up to
  ``max_connections`` with them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaLimits:
    """How many connections one listener accepts."""

    max_connections: int = 10_000
    reserved: int = 0
    """For brokers: as many of ``max_connections``."""
    pending: int = 0
    """Beyond the places of clients, for those who may turn out to be brokers."""
    pending_ms: int = 5_000
    max_per_host: int = 2**31 - 1
    per_host: Mapping[str, int] = field(default_factory=dict)
    """Other limits for some addresses."""

    @property
    def clients(self) -> int:
        return max(0, self.max_connections - self.reserved)


class Counted(Protocol):
    """A connection."""

    peer_host: str
    is_privileged: bool

    def abort(self, reason: str) -> None: ...


class _Place(Enum):
    CLIENT = "client"
    PENDING = "pending"
    BROKER = "broker"


class ConnectionQuotas:
    """Gives places; whoever has none any more is aborted here."""

    def __init__(self, limits: QuotaLimits) -> None:
        self._limits = limits
        self._places: dict[Counted, _Place] = {}
        #: Those that are pending and since when, the oldest first.
        self._pending: dict[Counted, float] = {}
        self._count: Counter[_Place] = Counter()
        #: Clients by address.
        self._hosts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._places)

    def admit(
        self, connection: Counted, now_s: float, *, are_descriptors_short: bool = False
    ) -> bool:
        """Give ``connection`` a place; False if there is none.

        No client gets one while descriptors are short: disks need the rest.
        """
        host = connection.peer_host
        is_free = self._count[_Place.CLIENT] < self._limits.clients and not are_descriptors_short
        if is_free and self._hosts[host] < self._limit_of(host):
            self._put(connection, _Place.CLIENT)
            return True
        if not self._limits.pending:
            return False
        if len(self._pending) >= self._limits.pending:
            self.evict(next(iter(self._pending)))
        self._put(connection, _Place.PENDING)
        self._pending[connection] = now_s
        return True

    def note_broker(self, connection: Counted) -> None:
        """``connection`` is a broker's, as it has shown: it takes no client's place from now on."""
        brokers = self._limits.max_connections - self._limits.clients
        place = self._places.get(connection)
        if place is None or place is _Place.BROKER:
            return
        # Without places of their own they are counted as all are, and only need not wait.
        connection.is_privileged = True
        if self._count[_Place.BROKER] < brokers:
            self.release(connection)
            self._put(connection, _Place.BROKER)

    def release(self, connection: Counted) -> None:
        place = self._places.pop(connection, None)
        if place is None:
            return
        self._count[place] -= 1
        self._pending.pop(connection, None)
        if place is _Place.CLIENT:
            self._hosts[connection.peer_host] -= 1
            if not self._hosts[connection.peer_host]:
                del self._hosts[connection.peer_host]

    def evict(self, connection: Counted) -> None:
        self.release(connection)
        connection.abort("the places that are left are brokers'")

    def evict_pending(self, now_s: float) -> None:
        """Evict who was pending for too long."""
        until_s = now_s - self._limits.pending_ms / 1000
        for old in [old for old, since_s in self._pending.items() if since_s <= until_s]:
            self.evict(old)

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def _put(self, connection: Counted, place: _Place) -> None:
        self._places[connection] = place
        self._count[place] += 1
        if place is _Place.CLIENT:
            self._hosts[connection.peer_host] += 1

    def _limit_of(self, host: str) -> int:
        return self._limits.per_host.get(host, self._limits.max_per_host)
