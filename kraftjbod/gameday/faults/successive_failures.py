"""WIRE. The scenario of ``make run``: a disk fails, then the active controller, then the broker.

It needs a ``kraftjbod-local`` cluster with several controllers. The broker is the one of the dead
disk: the loss of any other would leave partitions with one replica, fewer than
``min.insync.replicas``. Each failure waits until the cluster has recovered from the one before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final

from kraftjbod.cli.clients.cluster_client import ClusterClient, ClusterMetadata
from kraftjbod.core.errors import KraftJbodError, StartupError
from kraftjbod.gameday.faults.broker_kill import BrokerKill
from kraftjbod.gameday.faults.cluster_watch import seen
from kraftjbod.gameday.faults.controller_faults import ControllerKill
from kraftjbod.gameday.faults.disk_faults import DeadDisk
from kraftjbod.gameday.faults.fault import NOTICE_TIMEOUT_S, Fault, Target

_NO_LEADER: Final = -1
#: Load between two failures, so that the gaps of one end before the next.
_PAUSE_S: Final = 1.0


class SuccessiveFailures:
    """A fault: a disk dies, then the active controller is killed and restarted, then the disk's
    broker is killed. Disk and broker recover in :meth:`heal`."""

    def __init__(self, mark: Callable[[str, float], None]) -> None:
        """:param mark: records an event of the scenario at a time (monotonic)."""
        self._mark = mark
        self._disk = DeadDisk()
        self._controller = ControllerKill()
        self._broker = BrokerKill()
        self._broker_id = -1
        self._led_from_disk: frozenset[int] = frozenset()
        self._topic = ""

    async def prepare(self, client: ClusterClient) -> None:
        """Do nothing: the fault needs no preparation."""

    async def aim(self, client: ClusterClient, topic: str) -> Target:
        self._topic = topic
        disk = await self._disk.aim(client, topic)
        await self._controller.aim(client, topic)
        self._broker = BrokerKill(disk.broker_id)
        broker = await self._broker.aim(client, topic)
        self._broker_id, self._led_from_disk = disk.broker_id, disk.led
        what = f"{disk.what}, then the active controller (kill -9), then {broker.what}"
        return Target(broker_id=disk.broker_id, what=what, led=broker.led)

    def inject(self) -> None:
        self._disk.inject()

    async def wait_noticed(self, client: ClusterClient) -> float | None:
        """Kill the processes once the disk's failure is noticed. Return the time (monotonic, in
        seconds) when the last failure was noticed; None after a timeout."""
        noticed_s = await self._disk.wait_noticed(client)
        if noticed_s is None:
            return None
        self._mark("the disk is offline", noticed_s)
        await self._wait_led_elsewhere(client, self._led_from_disk)
        noticed_s = await self._kill(client, self._controller, "the active controller")
        if noticed_s is None:
            return None
        self._mark("another controller is active", noticed_s)
        await self._controller.heal(client)
        self._mark("the killed controller is back", time.monotonic())
        await asyncio.sleep(_PAUSE_S)
        noticed_s = await self._kill(client, self._broker, f"broker {self._broker_id}")
        await self._wait_led_elsewhere(client, client.metadata.topic(self._topic).partitions)
        return noticed_s

    async def heal(self, client: ClusterClient) -> None:
        await self.undo(client)

    async def undo(self, client: ClusterClient) -> None:
        """Start the killed controller and the killed broker, then restore the disk. After a failed
        step the remaining steps run too.

        :raises StartupError: with the messages of the failed steps.
        """
        failures = []
        for fault in (self._controller, self._broker, self._disk):
            try:
                await fault.undo(client)
            except KraftJbodError as e:
                failures.append(str(e))
        if failures:
            raise StartupError("; ".join(failures))

    async def _kill(self, client: ClusterClient, fault: Fault, what: str) -> float | None:
        # Another controller may be active by now, and cluster.json has the pids of restarts.
        await fault.aim(client, self._topic)
        fault.inject()
        self._mark(f"{what} is killed", time.monotonic())
        return await fault.wait_noticed(client)

    async def _wait_led_elsewhere(self, client: ClusterClient, led: Iterable[int]) -> None:
        """Wait until other brokers lead the partitions ``led``, then let the load flow.

        A timeout is not an error here: the gaps and the read records show its effect.
        """

        def is_led_elsewhere(metadata: ClusterMetadata) -> bool:
            partitions = metadata.topic(self._topic).partitions
            return all(partitions[p].leader not in (_NO_LEADER, self._broker_id) for p in led)

        led_s = await seen(client, self._topic, is_led_elsewhere, NOTICE_TIMEOUT_S)
        if led_s is not None:
            self._mark("every partition has a new leader", led_s)
        await asyncio.sleep(_PAUSE_S)
