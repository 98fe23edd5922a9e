"""WIRE. Scenarios of disks: a dead one, by file modes, and a failing one, by ``FaultFs``.

``FaultFs`` is mounted over the live directory before the measurement. The broker detects another
device at its path and takes the directory offline. After a reattachment it uses the same files
through the mount. Unmounting works the same way.
"""

from __future__ import annotations

import asyncio
import stat
import tempfile
from pathlib import Path
from typing import Final

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.replica_admin import alter_replica_log_dirs
from kraftjbod.core.errors import StartupError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.gameday.faults.cluster_watch import Victim, victims
from kraftjbod.gameday.faults.directory_return import (
    ONLINE,
    bring_back,
    describe_log_dir,
    wait_log_dir,
    wait_offline,
)
from kraftjbod.gameday.faults.fault import NOTICE_TIMEOUT_S, RETURN_TIMEOUT_S, CannotPlay, Target
from kraftjbod.gameday.faults.local_broker import (
    first_breakable,
    ignores_modes,
    require_broker_process,
)
from kraftjbod.testing import fault_fs
from kraftjbod.testing.fault_fs import FaultFs
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.mounts import DiskKitError

_SLOW_S: Final = 0.2
_NOTICED_S: Final = 15.0


class DeadDisk:
    """A fault: ``chmod 000`` for a log directory, so that its broker can open no file in it."""

    def __init__(self) -> None:
        self._victim: Victim | None = None
        self._mode: int | None = None

    async def prepare(self, client: ClusterClient) -> None:
        """Do nothing: the fault needs no preparation."""

    async def aim(self, client: ClusterClient, topic: str) -> Target:
        victim = first_breakable(await victims(client, topic))
        node = client.metadata.brokers[victim.broker_id]
        pid = require_broker_process(victim.broker_id, node.port, [victim.path])
        if ignores_modes(pid):
            raise CannotPlay(
                f"broker {victim.broker_id} ignores file modes, so chmod 000 is nothing to it: "
                "start it as another user than root, or without CAP_DAC_OVERRIDE"
            )
        self._victim = victim
        return _target(victim, "chmod 000")

    def inject(self) -> None:
        victim = _aimed(self._victim)
        self._mode = stat.S_IMODE(victim.path.stat().st_mode)
        victim.path.chmod(0)

    async def wait_noticed(self, client: ClusterClient) -> float | None:
        return await _wait_noticed(client, _aimed(self._victim))

    async def heal(self, client: ClusterClient) -> None:
        await self.undo(client)

    async def undo(self, client: ClusterClient) -> None:
        if self._mode is not None:
            victim = _aimed(self._victim)
            victim.path.chmod(self._mode)
            await bring_back(client, victim.broker_id, victim.path, timeout_s=RETURN_TIMEOUT_S)
            self._mode = None


class MountedDisk:
    """A fault: a full, hung or slow disk, by a fault file system that is mounted over a log
    directory."""

    def __init__(self, fault: DiskFault) -> None:
        self._fault = fault
        self._victim: Victim | None = None
        self._home: tempfile.TemporaryDirectory[str] | None = None
        self._disk: FaultFs | None = None
        self._is_in_use = False
        self._was_slow = False

    async def prepare(self, client: ClusterClient) -> None:
        if (reason := fault_fs.why_not()) is not None:
            raise CannotPlay(f"a disk cannot be made {self._fault} here: {reason}")
        victim = first_breakable(await victims(client, None))
        self._home = tempfile.TemporaryDirectory(prefix="kraftjbod-gameday-")
        self._victim = victim
        await self._mount(victim.path, Path(self._home.name))
        await wait_offline(client, victim.broker_id, victim.path, timeout_s=NOTICE_TIMEOUT_S)
        self._is_in_use = True
        await bring_back(client, victim.broker_id, victim.path, timeout_s=RETURN_TIMEOUT_S)

    async def aim(self, client: ClusterClient, topic: str) -> Target:
        """Move a fair share of the broker's leaders into the directory that `prepare` chose.

        :raises StartupError: the moves did not succeed, or no partition is led from the directory.
        """
        chosen = _aimed(self._victim)
        await _share_leaders(client, topic, chosen)
        found = [one for one in await victims(client, topic) if one.path == chosen.path]
        mine = [one for one in found if one.broker_id == chosen.broker_id]
        if not mine or not mine[0].led:
            raise StartupError(
                f"no partition of {topic} is led from {chosen.path}: use more --partitions"
            )
        described = await describe_log_dir(client, chosen.broker_id, chosen.path)
        self._was_slow = described is not None and described.is_slow
        return _target(mine[0], f"{self._fault}, by a fault file system")

    def inject(self) -> None:
        assert self._disk is not None
        self._disk.fail(self._fault, delay_s=_SLOW_S)

    async def wait_noticed(self, client: ClusterClient) -> float | None:
        return await _wait_noticed(client, _aimed(self._victim), was_slow=self._was_slow)

    async def heal(self, client: ClusterClient) -> None:
        victim = _aimed(self._victim)
        assert self._disk is not None
        try:
            self._disk.heal()
        except DiskKitError as e:
            raise StartupError(str(e)) from e
        await bring_back(client, victim.broker_id, victim.path, timeout_s=RETURN_TIMEOUT_S)

    async def undo(self, client: ClusterClient) -> None:
        """Unmount the fault file system, if it is mounted, and reattach the directory below it.

        :raises StartupError: the file system cannot be unmounted, or the directory does not return.
        """
        disk, self._disk = self._disk, None
        if disk is not None:
            victim = _aimed(self._victim)
            try:
                await asyncio.to_thread(disk.unmount)
            except DiskKitError as e:
                raise StartupError(str(e)) from e
            if self._is_in_use:
                await wait_offline(
                    client, victim.broker_id, victim.path, timeout_s=NOTICE_TIMEOUT_S
                )
            await bring_back(client, victim.broker_id, victim.path, timeout_s=RETURN_TIMEOUT_S)
        if self._home is not None:
            self._home.cleanup()
            self._home = None

    async def _mount(self, path: Path, home: Path) -> None:
        """Mount in a thread. A cancelled call completes the mount, so that undo can remove it."""
        mounting = asyncio.create_task(
            asyncio.to_thread(FaultFs.mount, path, backing=path, home=home)
        )
        try:
            await asyncio.wait({mounting})
        finally:
            try:
                self._disk = await mounting
            except DiskKitError as e:
                raise StartupError(str(e)) from e


def _aimed(victim: Victim | None) -> Victim:
    assert victim is not None, "a fault is aimed before it is injected"
    return victim


def _target(victim: Victim, how: str) -> Target:
    return Target(
        broker_id=victim.broker_id,
        what=f"{victim.path} of broker {victim.broker_id} ({how})",
        led=victim.led,
    )


async def _wait_noticed(
    client: ClusterClient, victim: Victim, *, was_slow: bool = False
) -> float | None:
    """Wait until the broker reports the fault; return the time, or None.

    :param was_slow: the broker reported a slow directory before the fault, so slowness is no sign.
    """
    try:
        return await wait_log_dir(
            client,
            victim.broker_id,
            victim.path,
            lambda found: found.state != ONLINE or (found.is_slow and not was_slow),
            what="noticed",
            timeout_s=_NOTICED_S,
        )
    except StartupError:
        # A slow disk may stay within normal latencies. The report says that it was not noticed.
        return None


async def _share_leaders(client: ClusterClient, topic: str, chosen: Victim) -> None:
    """Move replicas that the broker leads into ``chosen`` until it has a fair share of leaders.

    :raises StartupError: the broker refused, or the moves did not complete in time.
    """
    mine = [one for one in await victims(client, topic) if one.broker_id == chosen.broker_id]
    led = frozenset().union(*(one.led for one in mine))
    there = frozenset().union(*(one.led for one in mine if one.path == chosen.path))
    lacking = -(-len(led) // len(mine)) - len(there)
    moved = [
        TopicPartition(topic, partition) for partition in sorted(led - there)[: max(0, lacking)]
    ]
    if not moved:
        return
    refused = await alter_replica_log_dirs(client, chosen.broker_id, {str(chosen.path): moved})
    if refused:
        raise StartupError("; ".join(str(error) for error in refused.values()))
    wanted = {key.partition for key in moved}
    await wait_log_dir(
        client,
        chosen.broker_id,
        chosen.path,
        lambda found: (
            wanted <= {r.partition for r in found.replicas if r.topic == topic and not r.is_future}
        ),
        what=f"the home of {len(moved)} leaders",
        timeout_s=RETURN_TIMEOUT_S,
    )
