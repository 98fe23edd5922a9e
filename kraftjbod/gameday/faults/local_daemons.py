"""WIRE. Find the daemons of a ``kraftjbod-local`` (``make up``) cluster, and wait for them.

local_broker.py verifies brokers. Controllers are known by the files of the cluster that a verified
broker belongs to.

Modules that `examine` needs for controllers are imported here, before any load. An import during
the load blocks its event loop for up to a second and would be measured as a gap of the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Final

import kraftjbod.cli.clients.controller_client
import kraftjbod.protocol.rpc_config_messages
import kraftjbod.protocol.rpc_quorum_messages  # noqa: F401 - so that it is there
from kraftjbod.cli.clients.cluster_client import ClusterClient, ClusterMetadata
from kraftjbod.cli.clients.replica_admin import describe_log_dirs
from kraftjbod.cli.health_tool import examine
from kraftjbod.core.errors import OperatingError, StartupError
from kraftjbod.gameday.faults.cluster_watch import Victim, victims
from kraftjbod.gameday.faults.fault import RETURN_TIMEOUT_S, CannotPlay, Target
from kraftjbod.gameday.faults.local_broker import require_broker_process, require_own_directory
from kraftjbod.local.active_controller import active_controller
from kraftjbod.local.cluster_process import ClusterProcesses
from kraftjbod.local.daemon_process import DaemonProcess, command_line

_POLL_S: Final = 0.05
_GONE_TIMEOUT_S: Final = 30.0
_NOTICED_S: Final = 60.0
_ANSWER_MS: Final = 2_000


async def busiest_broker(
    client: ClusterClient, topic: str, broker_id: int | None = None
) -> tuple[int, list[Victim], int]:
    """Return the broker that leads most partitions of ``topic``, its directories, and its pid.

    :param broker_id: the broker, if it was chosen already.
    :raises CannotPlay: the broker is not on this machine, or has no online directory.
    """
    found = await victims(client, topic)
    leaders = [p.leader for p in client.metadata.topic(topic).partitions.values()]
    if broker_id is None:
        broker_id = max(client.metadata.brokers, key=leaders.count)
    mine = [one for one in found if one.broker_id == broker_id]
    return broker_id, mine, process_of(client, broker_id, mine)


def process_of(client: ClusterClient, broker_id: int, mine: list[Victim]) -> int:
    """Return the pid of the broker that has the directories ``mine``.

    :raises CannotPlay: no directory is online, or the broker is not on this machine.
    """
    if not mine:
        raise CannotPlay(f"broker {broker_id} has no log directory that is online")
    require_own_directory(mine[0])
    port = client.metadata.brokers[broker_id].port
    return require_broker_process(broker_id, port, [one.path for one in mine])


def broker_target(broker_id: int, mine: list[Victim], what: str) -> Target:
    return Target(broker_id=broker_id, what=what, led=frozenset().union(*(one.led for one in mine)))


def local_cluster_of(broker_id: int, pid: int) -> ClusterProcesses | None:
    """Return the local cluster of a broker process, or None.

    The run directory of a local cluster is two levels above the configuration file in the process's
    arguments. The cluster must know ``pid`` as this broker.
    """
    for word in command_line(pid):
        if word.endswith(f"/broker-{broker_id}.properties"):
            found = ClusterProcesses.load(Path(word).parents[1])
            if found is not None and broker_id in found.brokers:
                return found if found.brokers[broker_id].pid == pid else None
    return None


async def require_local_cluster(client: ClusterClient, topic: str) -> ClusterProcesses:
    """Return the local cluster whose broker leads the most partitions of ``topic``.

    Faults on controllers and restarts of brokers need its processes and configuration files.

    :raises CannotPlay: the cluster was not started by ``kraftjbod-local``, or is not on this
        machine.
    """
    broker_id, _, pid = await busiest_broker(client, topic)
    cluster = local_cluster_of(broker_id, pid)
    if cluster is None:
        raise CannotPlay(
            f"broker {broker_id} was not started by kraftjbod-local, so its controllers, and how "
            "it is started again, are not known: play this on such a cluster, or use --observe"
        )
    return cluster


def require_active_controller(cluster: ClusterProcesses) -> DaemonProcess:
    """Return the active controller, which another controller could replace.

    :raises CannotPlay: the cluster has only one controller, or none is active.
    """
    if len(cluster.controllers) == 1:
        raise CannotPlay(
            "the cluster has only one controller, so that none can take over: "
            "kraftjbod-local up --controllers 3 creates a cluster with three"
        )
    active = active_controller(cluster.controllers.values())
    if active is None:
        raise CannotPlay("no controller is active just now")
    return active


async def wait_gone(pid: int) -> float:
    """Wait until the process has ended, and return the time (monotonic, in seconds).

    :raises StartupError: the process did not end within 30 s.
    """
    deadline = time.monotonic() + _GONE_TIMEOUT_S
    # A zombie has no command line.
    while any(command_line(pid)):
        if time.monotonic() > deadline:
            raise StartupError(
                f"process {pid} is still there, {_GONE_TIMEOUT_S:.0f} s after it was to end: "
                "see what it waits for"
            )
        await asyncio.sleep(_POLL_S)
    return time.monotonic()


async def wait_broker_missing(client: ClusterClient, broker_id: int) -> float | None:
    """Return the time (monotonic, in seconds) when the cluster's metadata lacked the broker; None
    if it did not within 60 s.
    """
    deadline = time.monotonic() + _NOTICED_S
    nodes = [node for node in client.metadata.brokers.values() if node.node_id != broker_id]
    # Not the broker itself: a paused broker lets requests time out.
    others = ",".join(f"{node.host}:{node.port}" for node in nodes)
    async with ClusterClient(others, request_timeout_ms=_ANSWER_MS) as watcher:
        while time.monotonic() < deadline:
            # A client with known brokers would ask the paused one too.
            watcher.metadata = ClusterMetadata()
            with contextlib.suppress(OperatingError):
                if broker_id not in (await watcher.refresh_metadata([])).brokers:
                    return time.monotonic()
            await asyncio.sleep(_POLL_S)
    return None


async def wait_broker_back(client: ClusterClient, broker_id: int, *, who: str) -> None:
    """Wait until the broker is in the metadata and answers requests.

    :param who: the program that restarts the broker, for the message.
    :raises StartupError: the broker did not return within 120 s; the message has the reason.
    """
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
    raise StartupError(
        f"broker {broker_id} is not back {RETURN_TIMEOUT_S:.0f} s after {who} was to start it "
        f"again: {reason}"
    )


async def wait_controller_back(controller: DaemonProcess) -> None:
    """Wait until the controller is active or follows the active one.

    :raises StartupError: the controller did not return within 120 s; the message has the reason.
    """
    deadline = time.monotonic() + RETURN_TIMEOUT_S
    while True:
        health = await examine(controller.address, _ANSWER_MS, is_broker=False)
        if health.reason is None:
            return
        if time.monotonic() > deadline:
            raise StartupError(
                f"{controller.files.name} is not back after {RETURN_TIMEOUT_S:.0f} s: "
                f"{health.reason}"
            )
        await asyncio.sleep(_POLL_S)
