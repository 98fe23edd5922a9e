"""``LateControllers``: controllers that return after the others have removed entries they lack.

Such a controller receives a snapshot. Its transfer takes one message in most seeds. Here the slices
are small and the links slow, so that another fault can happen in between.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Final

from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.simulated_cluster import SimulatedController
from tests.sim.search.faults.schedule import Fault, Kind
from tests.sim.search.faults.snapshot_rot import SnapshotRot
from tests.sim.search.faults.stage import POLL_S, Plays, Stage, wait

#: Probability of a snapshot after each entry, so that entries are removed from the log.
_SNAPSHOT_IS_DUE: Final = 0.5
#: Time limit until the leader's log starts after the end of the stopped controller's log.
_LATE_S: Final = 8.0
#: Time limit until the returning controller receives the first slice, and until it has the last.
_RECEIVES_S: Final = 6.0
_RECEIVED_S: Final = 12.0
_QUICK_POLL_S: Final = 0.002
_DELAY_MS: Final = (5, 60)
_HANG_S: Final = (0.3, 3.0)
_CUT_S: Final = (0.2, 3.0)


class LateControllers:
    """:param rot: rots snapshots, and restores them."""

    def __init__(self, stage: Stage, rot: SnapshotRot) -> None:
        self._stage = stage
        self._rot = rot

    def plays(self) -> Plays:
        return {
            Kind.LATE_FOLLOWER: self._return_late,
            Kind.LATE_REGISTRATION: self._register_late,
        }

    # --- snapshots -------------------------------------------------------------------------------

    async def _return_late(self, fault: Fault) -> None:
        rng, stage = fault.rng(), self._stage
        points, network = stage.cluster.world.points, stage.cluster.network
        assert points is not None
        async with stage.struck_controller(fault) as host:
            async with stage.controller_down(host):
                _, end = stage.view.log_span(host)
                host.kill()
                with points.forced("raft.early_snapshot", _SNAPSHOT_IS_DUE):
                    await self._until_log_starts_after(end)
            with ExitStack() as stack:
                stack.enter_context(points.forced("raft.small_slice", 1.0))
                for other in stage.cluster.controllers:
                    if other is not host:
                        delay_ms = rng.randint(*_DELAY_MS)
                        stack.callback(network.delay(host.name, other.name, delay_ms))
                if await self._within(_RECEIVES_S, lambda: stage.view.receives_snapshot(host)):
                    await asyncio.sleep(rng.random())
                    await self._disturb(host, fault, rng)
                await self._within(
                    _RECEIVED_S, lambda: host.is_up and not stage.view.receives_snapshot(host)
                )

    async def _until_log_starts_after(self, end: int) -> None:
        def starts_after() -> bool:
            leader = self._stage.view.active_host
            return leader is not None and self._stage.view.log_span(leader)[0] > end

        if not await self._within(_LATE_S, starts_after):
            self._stage.note("the leader's log still has the entries that the controller lacks")

    async def _within(self, limit_s: float, is_so: Callable[[], bool]) -> bool:
        for _ in range(round(limit_s / _QUICK_POLL_S)):
            if is_so():
                return True
            await asyncio.sleep(_QUICK_POLL_S)
        return False

    async def _disturb(self, host: SimulatedController, fault: Fault, rng: random.Random) -> None:
        disturbances: list[Callable[[SimulatedController, Fault, random.Random], Awaitable[None]]]
        disturbances = [self._rot_sent, self._rot_sent, self._kill, self._fill, self._cut]
        await rng.choice(disturbances)(host, fault, rng)

    async def _rot_sent(self, host: SimulatedController, fault: Fault, rng: random.Random) -> None:
        """Rot a bit of the snapshot that is being sent, unless its controller has a fault."""
        leader = self._stage.view.active_host
        if leader is None or not self._stage.is_free(leader):
            return
        with self._stage.reserved(leader), self._rot.rotten(leader, rng) as is_rotten:
            leader.metadata_disk.vfs.drop_caches()
            if is_rotten:
                await wait(fault)

    async def _kill(self, host: SimulatedController, fault: Fault, _: random.Random) -> None:
        """Leave a part of a snapshot behind."""
        async with self._stage.controller_down(host):
            host.kill()
            await wait(fault)

    async def _fill(self, host: SimulatedController, fault: Fault, _: random.Random) -> None:
        faults = host.metadata_disk.faults
        faults.begin_fault(DiskFault.FULL)
        await wait(fault)
        faults.heal(DiskFault.FULL)

    async def _cut(self, host: SimulatedController, _: Fault, rng: random.Random) -> None:
        leader, network = self._stage.view.active_host, self._stage.cluster.network
        if leader is None or leader is host:
            return
        network.partition(host.name, leader.name, rejects=rng.random() < 0.5)
        await asyncio.sleep(rng.uniform(*_CUT_S))
        network.heal(host.name, leader.name)

    # --- registrations ---------------------------------------------------------------------------

    async def _register_late(self, fault: Fault) -> None:
        """Let the disk hang once the controller follows: it is registered, and cannot know it."""
        rng, stage = fault.rng(), self._stage
        async with stage.struck_controller(fault) as host:
            async with stage.controller_down(host):
                host.kill()
                await asyncio.sleep(POLL_S)
            if not await self._within(_RECEIVES_S, lambda: stage.view.follows(host)):
                return
            faults = host.metadata_disk.faults
            faults.begin_fault(DiskFault.HANG)
            await asyncio.sleep(rng.uniform(*_HANG_S))
            faults.heal(DiskFault.HANG)
