"""``Application``: a user's application on a simulated cluster beside the plain load."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Coroutine, Mapping
from typing import Protocol

from kraftjbod.cli.clients.cluster_client import ClusterClient


class Application(Protocol):
    """``start`` it, wait for progress after the last fault, ``stop`` it, wait until nothing is
    ``unsettled``, ``judge``, ``close``."""

    @property
    def topics(self) -> Mapping[str, int]:
        """Number of partitions by topic, of topics that it needs before it starts."""

    def start(self) -> None: ...

    def silent_since(self, since_ms: int) -> list[str]:
        """Return the parts without progress since ``since_ms``, one sentence each."""

    async def stop(self) -> None:
        """Start no new work, and end in order."""

    def unsettled(self) -> list[str]:
        """Return the reasons why it cannot be judged yet, one sentence each."""

    async def judge(self) -> list[str]:
        """Return the violations once the cluster is at rest, one sentence each."""

    async def close(self) -> None: ...


class Surroundings:
    """Parts of the simulation for an application, and the application's tasks and clients."""

    def __init__(
        self,
        make_client: Callable[[str], ClusterClient],
        *,
        now_ms: Callable[[], int],
        found: Callable[[str], None],
        note: Callable[[str], None],
    ) -> None:
        """
        :param make_client: returns a client of the cluster with that name.
        :param found: called with one sentence for each violation.
        :param note: called with a line for the story of the run.
        """
        self.now_ms = now_ms
        self.found = found
        self.note = note
        self._make_client = make_client
        self._clients: list[ClusterClient] = []
        self._tasks: list[asyncio.Task[None]] = []

    def client(self, name: str) -> ClusterClient:
        """Return a client, which is closed at the end at the latest."""
        client = self._make_client(name)
        self._clients.append(client)
        return client

    def begin(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        """Start a task. An exception that ends it is a finding."""
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
