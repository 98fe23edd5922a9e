"""WIRE. The interface of game day faults, and the target of a fault."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.core.errors import StartupError


class CannotPlay(StartupError):
    """This machine or user cannot play the scenario. Its earlier changes are undone."""


#: Limit for a broker to notice a fault, and for a directory or broker to return.
NOTICE_TIMEOUT_S: Final = 60.0
RETURN_TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The broker, controller or disk that a fault breaks."""

    broker_id: int
    """-1 for a controller."""
    what: str
    """Its description for the report."""
    led: frozenset[int]
    """Partitions of the topic under load whose leader is on it."""


class Fault(Protocol):
    """A fault of a scenario. Its methods are called in the order in which they are defined.

    :meth:`undo` is always called at the end, also if another method raised an error.
    """

    async def prepare(self, client: ClusterClient) -> None:
        """Prepare the fault before the topic exists.

        :raises CannotPlay: the message names the change that an operator has to make.
        """

    async def aim(self, client: ClusterClient, topic: str) -> Target:
        """Choose the target, and verify that it is on this machine and may be broken.

        :raises CannotPlay: it is not.
        :raises StartupError: there is no target now, for example no directory is online.
        """

    def inject(self) -> None:
        """Inject the fault into the target that :meth:`aim` chose, without waiting for its
        effect."""

    async def wait_noticed(self, client: ClusterClient) -> float | None:
        """Wait until the fault is reported, and return that time (monotonic, in seconds).

        Return None if the fault was not reported within its time limit.
        """

    async def heal(self, client: ClusterClient) -> None:
        """Remove the fault, and wait until the target has recovered.

        :raises StartupError: the target did not recover in time.
        """

    async def undo(self, client: ClusterClient) -> None:
        """Restore the initial state. Does nothing if it is restored already.

        :raises StartupError: the message names the steps that an operator has to complete.
        """
