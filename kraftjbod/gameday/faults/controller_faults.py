"""WIRE. Scenarios of the active controller: killed (SIGKILL), paused (SIGSTOP), or without disk.

They need a ``kraftjbod-local`` cluster with several controllers. An ended controller is restarted.
"""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import time
from typing import Final

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.gameday.faults.fault import CannotPlay, Target
from kraftjbod.gameday.faults.local_broker import ignores_modes
from kraftjbod.gameday.faults.local_daemons import (
    require_active_controller,
    require_local_cluster,
    wait_controller_back,
    wait_gone,
)
from kraftjbod.local.active_controller import activated_after
from kraftjbod.local.cluster_process import ClusterProcesses
from kraftjbod.local.daemon_process import DaemonProcess

_POLL_S: Final = 0.02
_NOTICED_S: Final = 60.0


class ControllerKill:
    """A fault: SIGKILL for the active controller."""

    how = "kill -9"

    def __init__(self) -> None:
        self._cluster: ClusterProcesses | None = None
        self._active: DaemonProcess | None = None
        self._pid = 0
        self._began_wall_s = 0.0
        self._is_broken = False

    async def prepare(self, client: ClusterClient) -> None:
        """Do nothing: the fault needs no preparation."""

    async def aim(self, client: ClusterClient, topic: str) -> Target:
        self._cluster = await require_local_cluster(client, topic)
        self._active = require_active_controller(self._cluster)
        self._pid = self._active.pid or 0
        what = f"the active controller, {self._active.files.name}, process {self._pid} ({self.how})"
        return Target(broker_id=-1, what=what, led=frozenset())

    def inject(self) -> None:
        self._is_broken = True
        self._began_wall_s = time.time()
        self._break(self._aimed)

    async def wait_noticed(self, client: ClusterClient) -> float | None:
        """Return the time (monotonic, in seconds) when another controller became active; None if
        none did within 60 s.
        """
        assert self._cluster is not None
        others = [one for one in self._cluster.controllers.values() if one is not self._active]
        deadline = time.monotonic() + _NOTICED_S
        while time.monotonic() < deadline:
            at_s = activated_after(others, self._began_wall_s)
            if at_s is not None:
                return at_s - time.time() + time.monotonic()
            await asyncio.sleep(_POLL_S)
        return None

    async def heal(self, client: ClusterClient) -> None:
        assert self._cluster is not None
        self._mend(self._aimed)
        await wait_gone(self._pid)
        self._aimed.start()
        self._cluster.write_cluster_json()
        self._is_broken = False
        await wait_controller_back(self._aimed)

    async def undo(self, client: ClusterClient) -> None:
        if self._is_broken:
            await self.heal(client)

    @property
    def _aimed(self) -> DaemonProcess:
        assert self._active is not None, "a fault is aimed before it is injected"
        return self._active

    def _break(self, active: DaemonProcess) -> None:
        active.kill()

    def _mend(self, active: DaemonProcess) -> None:
        """Do nothing: the process is dead."""


class ControllerPause(ControllerKill):
    """A fault: SIGSTOP for the active controller. Its connections stay open, and it answers none of
    them."""

    how = "SIGSTOP"

    async def heal(self, client: ClusterClient) -> None:
        os.kill(self._pid, signal.SIGCONT)
        self._is_broken = False
        await wait_controller_back(self._aimed)

    def _break(self, active: DaemonProcess) -> None:
        os.kill(self._pid, signal.SIGSTOP)


class ControllerDisk(ControllerKill):
    """A fault: ``chmod 000`` for the metadata directory of the active controller, which then
    ends."""

    how = "chmod 000 of its metadata directory"

    def __init__(self) -> None:
        super().__init__()
        self._mode: int | None = None

    async def aim(self, client: ClusterClient, topic: str) -> Target:
        target = await super().aim(client, topic)
        if ignores_modes(self._pid):
            raise CannotPlay(
                f"{self._aimed.files.name} ignores file modes, so chmod 000 is nothing to it: "
                "start it as another user than root, or without CAP_DAC_OVERRIDE"
            )
        return target

    def _break(self, active: DaemonProcess) -> None:
        path = active.files.metadata_dir
        self._mode = stat.S_IMODE(path.stat().st_mode)
        path.chmod(0)

    def _mend(self, active: DaemonProcess) -> None:
        if self._mode is not None:
            active.files.metadata_dir.chmod(self._mode)
            self._mode = None
        # A short fault may end before the controller has noticed it and ended.
        if active.is_running:
            active.terminate()
