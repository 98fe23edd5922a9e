"""WIRE. ``Application``: what runs on a simulated cluster beside the plain load, and is judged."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Coroutine, Mapping
from typing import Protocol

from kraftjbod.cli.clients.cluster_client import ClusterClient


class Application(Protocol):
    """``start`` it, wait until it goes on after the last fault, ``stop`` it, wait until nothing is
    ``unsettled``, ``judge``, ``close``."""

    @property
    def topics(self) -> Mapping[str, int]:
        """Partitions by name of what it needs before it starts."""

    def start(self) -> None: ...

    def silent_since(self, since_ms: int) -> list[str]:
        """What has not gone on since then, one sentence each."""

    async def stop(self) -> None:
        """Begin nothing more, and end in order."""

    def unsettled(self) -> list[str]:
        """What keeps it from being judged, one sentence each."""

    async def judge(self) -> list[str]:
        """What must not be, now that all is at rest; one sentence each."""

    async def close(self) -> None: ...


class Surroundings:
    """What an application is handed of the simulation, and the tasks and clients that it has."""

    def __init__(
        self,
        make_client: Callable[[str], ClusterClient],
        *,
        now_ms: Callable[[], int],
        found: Callable[[str], None],
        note: Callable[[str], None],
    ) -> None:
        """
        :param make_client: of a name, a client of the cluster.
        :param found: called with one sentence for everything that must not be.
        :param note: told of what happens, for whoever reads the story.
        """
        self.now_ms = now_ms
        self.found = found
        self.note = note
        self._make_client = make_client
        self._clients: list[ClusterClient] = []
        self._tasks: list[asyncio.Task[None]] = []

    def client(self, name: str) -> ClusterClient:
        """One that is closed with everything, if nobody does before."""
        client = self._make_client(name)
        self._clients.append(client)
        return client

    def begin(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        """A task of its own; an error that ends it is found."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            where = "".join(traceback.format_tb(error.__traceback__)[-2:])
            self.found(f"{task.get_name()} ended by {error!r}: {where}")

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self._clients:
            await client.close()
