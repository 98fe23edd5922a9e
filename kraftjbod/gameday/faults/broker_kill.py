"""WIRE. The scenario of a broker that is killed (SIGKILL), and comes back.

A broker that ``kraftjbod-local`` (``make up``) started is started again as it does; any other has
somebody who supervises it, and is waited for.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Final

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.replica_admin import describe_log_dirs
from kraftjbod.core.errors import OperatingError, StartupError
from kraftjbod.gameday.faults.cluster_watch import victims
from kraftjbod.gameday.faults.fault import RETURN_TIMEOUT_S, CannotPlay, Target
from kraftjbod.gameday.faults.local_broker import require_broker_process, require_own_directory
from kraftjbod.local.cluster_process import ClusterProcesses
from kraftjbod.local.daemon_process import command_line

_POLL_S: Final = 0.05
_GONE_TIMEOUT_S: Final = 30.0
_NOTICED_S: Final = 60.0


class BrokerKill:
    """``kill -9`` for the broker that leads most partitions of the topic."""

    def __init__(self) -> None:
        self._local: ClusterProcesses | None = None
        self._target: Target | None = None
        self._pid = 0
        self._is_down = False

    async def prepare(self, client: ClusterClient) -> None:
        """Nothing: brokers die as they are."""

    async def aim(self, client: ClusterClient, topic: str) -> Target:
        found = await victims(client, topic)
        metadata = client.metadata
        leaders = [p.leader for p in metadata.topic(topic).partitions.values()]
        broker_id = max(metadata.brokers, key=leaders.count)
        mine = [one for one in found if one.broker_id == broker_id]
        if not mine:
            raise CannotPlay(f"broker {broker_id} has no log directory that is online")
        require_own_directory(mine[0])
        port = metadata.brokers[broker_id].port
        self._pid = require_broker_process(broker_id, port, [one.path for one in mine])
        self._local = _local_cluster_of(broker_id, self._pid)
        self._target = Target(
            broker_id=broker_id,
            what=f"broker {broker_id}, process {self._pid} (kill -9)",
            led=frozenset().union(*(one.led for one in mine)),
        )
        return self._target

    def inject(self) -> None:
        self._is_down = True
        os.kill(self._pid, signal.SIGKILL)

    async def wait_noticed(self, client: ClusterClient) -> float | None:
        """Until the cluster's metadata does not name the broker any more."""
        assert self._target is not None
        deadline = time.monotonic() + _NOTICED_S
        while time.monotonic() < deadline:
            try:
                metadata = await client.refresh_metadata([])
            except OperatingError:
                # The broker that was asked may be the one that died; another is asked next.
                await asyncio.sleep(_POLL_S)
                continue
            if self._target.broker_id not in metadata.brokers:
                return time.monotonic()
            await asyncio.sleep(_POLL_S)
        return None

    async def heal(self, client: ClusterClient) -> None:
        assert self._target is not None
        await self._wait_gone()
        broker_id = self._target.broker_id
        if self._local is not None:
            self._local.brokers[broker_id].start()
            self._local.write_cluster_json()
        self._is_down = False
        await self._wait_back(client, broker_id)

    async def undo(self, client: ClusterClient) -> None:
        if self._is_down:
            await self.heal(client)

    async def _wait_gone(self) -> None:
        deadline = time.monotonic() + _GONE_TIMEOUT_S
        while _runs(self._pid):
            if time.monotonic() > deadline:
                raise StartupError(
                    f"process {self._pid} is still there, {_GONE_TIMEOUT_S:.0f} s "
                    "after kill -9: see what it waits for"
                )
            await asyncio.sleep(_POLL_S)

    async def _wait_back(self, client: ClusterClient, broker_id: int) -> None:
        """Back is a broker that answers."""
        deadline = time.monotonic() + RETURN_TIMEOUT_S
        reason = "it is not in the cluster's metadata"
        while time.monotonic() < deadline:
            try:
                metadata = await client.refresh_metadata([])
                if broker_id in metadata.brokers:
                    await describe_log_dirs(client, broker_id)
                    return
            except OperatingError as e:
                reason = str(e)
            await asyncio.sleep(_POLL_S)
        who = "this tool" if self._local is not None else "its supervisor"
        raise StartupError(
            f"broker {broker_id} is not back {RETURN_TIMEOUT_S:.0f} s after {who} was to start it "
            f"again: {reason}"
        )


def _local_cluster_of(broker_id: int, pid: int) -> ClusterProcesses | None:
    """The cluster two levels above the configuration file that the process was started with, if
    that cluster knows the process as this broker."""
    for word in command_line(pid):
        if word.endswith(f"/broker-{broker_id}.properties"):
            found = ClusterProcesses.load(Path(word).parents[1])
            if found is not None and broker_id in found.brokers:
                return found if found.brokers[broker_id].pid == pid else None
    return None


def _runs(pid: int) -> bool:
    """What has ended, and only waits for its parent to take note, has no command line any more."""
    return any(command_line(pid))
