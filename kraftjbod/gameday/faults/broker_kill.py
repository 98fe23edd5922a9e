"""WIRE. Scenarios of a killed broker (SIGKILL) and of a paused broker (SIGSTOP, SIGCONT).

The tool restarts a broker of a ``kraftjbod-local`` (``make up``) cluster in the same way. For any
other broker it waits until the broker's supervisor has restarted it.
"""

from __future__ import annotations

import os
import signal

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.gameday.faults.fault import Target
from kraftjbod.gameday.faults.local_daemons import (
    broker_target,
    busiest_broker,
    local_cluster_of,
    wait_broker_back,
    wait_broker_missing,
    wait_gone,
)
from kraftjbod.local.cluster_process import ClusterProcesses


class BrokerKill:
    """A fault: SIGKILL for a broker, by default the one that leads most partitions of the topic."""

    def __init__(self, broker_id: int | None = None) -> None:
        self._local: ClusterProcesses | None = None
        self._chosen_id = broker_id
        self._broker_id = -1
        self._pid = 0
        self._is_down = False

    async def prepare(self, client: ClusterClient) -> None:
        """Do nothing: the fault needs no preparation."""

    async def aim(self, client: ClusterClient, topic: str) -> Target:
        self._broker_id, mine, self._pid = await busiest_broker(client, topic, self._chosen_id)
        self._local = local_cluster_of(self._broker_id, self._pid)
        what = f"broker {self._broker_id}, process {self._pid} (kill -9)"
        return broker_target(self._broker_id, mine, what)

    def inject(self) -> None:
        self._is_down = True
        os.kill(self._pid, signal.SIGKILL)

    async def wait_noticed(self, client: ClusterClient) -> float | None:
        """Return the time (monotonic, in seconds) when the cluster's metadata lacked the broker;
        None if it did not within 60 s.
        """
        return await wait_broker_missing(client, self._broker_id)

    async def heal(self, client: ClusterClient) -> None:
        await wait_gone(self._pid)
        if self._local is not None:
            self._local.brokers[self._broker_id].start()
            self._local.write_cluster_json()
        self._is_down = False
        who = "this tool" if self._local is not None else "its supervisor"
        await wait_broker_back(client, self._broker_id, who=who)

    async def undo(self, client: ClusterClient) -> None:
        if self._is_down:
            await self.heal(client)


class BrokerPause:
    """A fault: SIGSTOP for the broker that leads most partitions of the topic. Its connections stay
    open, and it answers none of them."""

    def __init__(self) -> None:
        self._broker_id = -1
        self._pid = 0
        self._is_stopped = False

    async def prepare(self, client: ClusterClient) -> None:
        """Do nothing: the fault needs no preparation."""

    async def aim(self, client: ClusterClient, topic: str) -> Target:
        self._broker_id, mine, self._pid = await busiest_broker(client, topic)
        what = f"broker {self._broker_id}, process {self._pid} (SIGSTOP)"
        return broker_target(self._broker_id, mine, what)

    def inject(self) -> None:
        self._is_stopped = True
        os.kill(self._pid, signal.SIGSTOP)

    async def wait_noticed(self, client: ClusterClient) -> float | None:
        return await wait_broker_missing(client, self._broker_id)

    async def heal(self, client: ClusterClient) -> None:
        await self.undo(client)

    async def undo(self, client: ClusterClient) -> None:
        if self._is_stopped:
            os.kill(self._pid, signal.SIGCONT)
            self._is_stopped = False
            await wait_broker_back(client, self._broker_id, who="SIGCONT")
