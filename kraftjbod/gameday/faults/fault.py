"""WIRE. What every fault of a game day can do, and what it was aimed at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.core.errors import StartupError


class CannotPlay(StartupError):
    """A scenario is not possible here, or for this user; nothing was touched."""


#: How long a broker may take to notice something, and a directory or a broker to come back.
NOTICE_TIMEOUT_S: Final = 60.0
RETURN_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """``led``: the partitions whose leader gets the fault."""

    broker_id: int
    what: str
    led: frozenset[int]


class Fault(Protocol):
    """In this order; :meth:`undo` comes last whatever happened, and may come at any time."""

    async def prepare(self, client: ClusterClient) -> None:
        """Before there is a topic.

        :raises CannotPlay: what the operator has to change.
        """

    async def aim(self, client: ClusterClient, topic: str) -> Target:
        """Choose what to break, and prove that it is here to be broken.

        :raises CannotPlay: if it is not.
        """

    def inject(self) -> None:
        """Break it."""

    async def wait_noticed(self, client: ClusterClient) -> float | None:
        """The instant (monotonic) when its broker, or the cluster, reported it; ``None``: never."""

    async def heal(self, client: ClusterClient) -> None:
        """Mend it, and wait until what was broken is back.

        :raises StartupError: if it does not come back in time.
        """

    async def undo(self, client: ClusterClient) -> None:
        """Leave everything as it was found; nothing if that is so already.

        :raises StartupError: saying what is left to do by hand.
        """
