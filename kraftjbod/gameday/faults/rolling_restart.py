"""WIRE. The scenario of a rolling restart: each daemon in turn is stopped and started again.

It needs a ``kraftjbod-local`` cluster. Controllers come first, as in an upgrade. The next daemon is
stopped once the one before serves and every replica is in sync.
"""

from __future__ import annotations

from collections.abc import Callable

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.gameday.faults.cluster_watch import wait_in_sync
from kraftjbod.gameday.faults.fault import RETURN_TIMEOUT_S, Target
from kraftjbod.gameday.faults.local_daemons import (
    require_local_cluster,
    wait_broker_back,
    wait_controller_back,
    wait_gone,
)
from kraftjbod.local.cluster_process import ClusterProcesses
from kraftjbod.local.daemon_process import DaemonProcess


class RollingRestart:
    """Restarts all daemons in sequence in an orderly way, to measure the effect. No fault is
    injected."""

    def __init__(self, mark: Callable[[str], None]) -> None:
        """:param mark: records an event of the scenario."""
        self._mark = mark
        self._cluster: ClusterProcesses | None = None
        self._topic = ""
        self._stopping: tuple[DaemonProcess, int] | None = None
        self._waiting: list[DaemonProcess] = []

    async def prepare(self, client: ClusterClient) -> None:
        """Do nothing: the scenario needs no preparation."""

    async def aim(self, client: ClusterClient, topic: str) -> Target:
        cluster = self._cluster = await require_local_cluster(client, topic)
        self._topic = topic
        self._waiting = cluster.daemons
        return Target(
            broker_id=-1,
            what=f"{len(cluster.controllers)} controllers and {len(cluster.brokers)} brokers, "
            "one after the other (SIGTERM)",
            led=frozenset(client.metadata.topic(topic).partitions),
        )

    def inject(self) -> None:
        self._stop_next()

    async def wait_noticed(self, client: ClusterClient) -> float | None:
        """Wait until the first daemon has ended, and return that time (monotonic, in seconds).

        :raises StartupError: the daemon did not end within 30 s.
        """
        assert self._stopping is not None
        return await wait_gone(self._stopping[1])

    async def heal(self, client: ClusterClient) -> None:
        """Restart all daemons in sequence."""
        await self._start_stopped(client)
        while self._waiting:
            self._stop_next()
            await self._start_stopped(client)

    async def undo(self, client: ClusterClient) -> None:
        await self._start_stopped(client)

    def _stop_next(self) -> None:
        daemon = self._waiting.pop(0)
        self._mark(f"{daemon.files.name} is stopped")
        self._stopping = daemon, daemon.pid or 0
        daemon.terminate()

    async def _start_stopped(self, client: ClusterClient) -> None:
        if self._stopping is None:
            return
        assert self._cluster is not None
        daemon, pid = self._stopping
        await wait_gone(pid)
        daemon.start()
        self._cluster.write_cluster_json()
        self._stopping = None
        if daemon.files.role == "controller":
            await wait_controller_back(daemon)
        else:
            await wait_broker_back(client, daemon.files.node_id, who="this tool")
            await wait_in_sync(client, self._topic, timeout_s=RETURN_TIMEOUT_S)
