"""PURE. ``ConnectionQuotas``: limits of a listener's connections, in total and per address.

* A client's connection takes a slot. The last ``reserved`` slots are not for clients.
* A connection without a slot, or from an address with too many connections, is *pending*. The
  oldest pending connection is evicted when another one arrives, and all after ``pending_ms``.
* A connection that is identified as a broker's gives its slot back to clients and takes a reserved
  one, if one is free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaLimits:
    """Limits of the connections that one listener accepts, in total and per address."""

    max_connections: int = 10_000
    reserved: int = 0
    """The part of ``max_connections`` that is reserved for brokers."""
    pending: int = 0
    """Additional connections that wait to be identified as brokers."""
    pending_ms: int = 5_000
    """A connection that is pending for longer is aborted."""
    max_per_host: int = 2**31 - 1
    per_host: Mapping[str, int] = field(default_factory=dict)
    """Limits of addresses that differ from ``max_per_host``."""

    @property
    def clients(self) -> int:
        return max(0, self.max_connections - self.reserved)


class Counted(Protocol):
    """A connection that takes a slot in :class:`ConnectionQuotas`.

    ``peer_host`` is the numeric address of the peer. ``is_privileged`` is set for a broker's
    connection, which gets memory without waiting.
    """

    peer_host: str
    is_privileged: bool

    def abort(self, reason: str) -> None: ...


class _Place(Enum):
    CLIENT = "client"
    PENDING = "pending"
    BROKER = "broker"


class ConnectionQuotas:
    """Limits the connections of a listener, in total and per address: assigns slots to connections,
    and aborts the connections that it evicts.
    """

    def __init__(self, limits: QuotaLimits) -> None:
        self._limits = limits
        self._places: dict[Counted, _Place] = {}
        #: Pending connections and the loop time of their arrival, oldest first.
        self._pending: dict[Counted, float] = {}
        self._count: Counter[_Place] = Counter()
        #: Number of client connections by address.
        self._hosts: Counter[str] = Counter()

    def set_limits(self, limits: QuotaLimits) -> None:
        """Apply other limits to connections that arrive from now on; open ones stay open."""
        self._limits = limits

    def __len__(self) -> int:
        return len(self._places)

    def admit(
        self, connection: Counted, now_s: float, *, are_descriptors_short: bool = False
    ) -> bool:
        """Assign a slot to ``connection`` or make it pending.

        If too many connections are pending, the oldest of them is aborted. Returns False if there
        is no slot and the limit of pending connections is 0.

        :param now_s: event loop time.
        :param are_descriptors_short: give no client slot, because disks need the remaining
            descriptors.
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
        """Note that ``connection`` is a broker's.

        The connection gets priority for memory, and a reserved slot instead of its present slot if
        one is free.
        """
        brokers = self._limits.max_connections - self._limits.clients
        place = self._places.get(connection)
        if place is None or place is _Place.BROKER:
            return
        # A broker without a reserved slot keeps its slot, and only has priority for memory.
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
        """Abort the connections that have been pending for ``pending_ms``.

        :param now_s: event loop time.
        """
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
