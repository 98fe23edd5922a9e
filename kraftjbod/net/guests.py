"""PURE. Who is in: places at a door, counted in all and per address, some of them kept for brokers.

* A stranger takes a free place. The last ``reserved`` ones are no strangers' places.
* Who finds none, or too many from its own address, stands in the *porch*: the oldest there goes
  when the next one comes, and nobody stays longer than ``porch_ms``.
* A broker that shows itself leaves its place to strangers and has one of its own, up to
  ``max_connections`` with them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceLimits:
    """How many connections one port lets in."""

    max_connections: int = 10_000
    reserved: int = 0
    """For brokers: as many of ``max_connections``."""
    porch: int = 0
    """Beyond the places of strangers, for those who may turn out to be brokers."""
    porch_ms: int = 5_000
    max_per_host: int = 2**31 - 1
    per_host: Mapping[str, int] = field(default_factory=dict)
    """Other limits for some addresses."""

    @property
    def strangers(self) -> int:
        return max(0, self.max_connections - self.reserved)


class Guest(Protocol):
    """A connection."""

    peer_host: str
    is_privileged: bool

    def abort(self, reason: str) -> None: ...


class _Place(Enum):
    ROOM = "room"
    PORCH = "porch"
    BROKER = "broker"


class Guests:
    """Gives places; whoever has none any more is aborted here."""

    def __init__(self, limits: PlaceLimits) -> None:
        self._limits = limits
        self._places: dict[Guest, _Place] = {}
        #: Those in the porch and since when, the oldest first.
        self._porch: dict[Guest, float] = {}
        self._count: Counter[_Place] = Counter()
        #: Strangers in the room, by address.
        self._hosts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._places)

    def enter(self, guest: Guest, now_s: float) -> bool:
        """Give ``guest`` a place; False if there is none."""
        host = guest.peer_host
        if self._count[_Place.ROOM] < self._limits.strangers and self._hosts[host] < self._limit_of(
            host
        ):
            self._put(guest, _Place.ROOM)
            return True
        if not self._limits.porch:
            return False
        if len(self._porch) >= self._limits.porch:
            self.turn_out(next(iter(self._porch)))
        self._put(guest, _Place.PORCH)
        self._porch[guest] = now_s
        return True

    def is_broker(self, guest: Guest) -> None:
        """``guest`` has shown that it is one; it is out of the way of strangers from now on."""
        brokers = self._limits.max_connections - self._limits.strangers
        place = self._places.get(guest)
        if place is None or place is _Place.BROKER:
            return
        # Without places of their own they are guests as all are, who only need not wait.
        guest.is_privileged = True
        if self._count[_Place.BROKER] < brokers:
            self.leave(guest)
            self._put(guest, _Place.BROKER)

    def leave(self, guest: Guest) -> None:
        place = self._places.pop(guest, None)
        if place is None:
            return
        self._count[place] -= 1
        self._porch.pop(guest, None)
        if place is _Place.ROOM:
            self._hosts[guest.peer_host] -= 1
            if not self._hosts[guest.peer_host]:
                del self._hosts[guest.peer_host]

    def turn_out(self, guest: Guest) -> None:
        self.leave(guest)
        guest.abort("the places that are left are brokers'")

    def clear_porch(self, now_s: float) -> None:
        """Turn out who stood there for too long."""
        until_s = now_s - self._limits.porch_ms / 1000
        for guest in [guest for guest, since_s in self._porch.items() if since_s <= until_s]:
            self.turn_out(guest)

    @property
    def has_porch_guests(self) -> bool:
        return bool(self._porch)

    def _put(self, guest: Guest, place: _Place) -> None:
        self._places[guest] = place
        self._count[place] += 1
        if place is _Place.ROOM:
            self._hosts[guest.peer_host] += 1

    def _limit_of(self, host: str) -> int:
        return self._limits.per_host.get(host, self._limits.max_per_host)
