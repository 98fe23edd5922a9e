"""``ControllerFaults``: faults of controllers, and their return.

A fault is over when the controller follows or leads, and has all committed entries.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from itertools import combinations
from typing import Final, Protocol

from kraftjbod.raft.driver import RaftDriver
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.simulated_cluster import SimulatedController
from tests.sim.search.faults.host_faults import LATE_ITERATION_US
from tests.sim.search.faults.link_faults import REJECTS
from tests.sim.search.faults.log_end_damage import damage_log_end
from tests.sim.search.faults.schedule import DISK_FAULTS, OF_THE_CONTROLLER, Fault, Kind
from tests.sim.search.faults.snapshot_rot import SnapshotRot
from tests.sim.search.faults.stage import POLL_S, Plays, Stage, wait

#: Time limit for a daemon to end after its disk failed; there are always writes.
_NOTICED_S: Final = 8.0
#: How long a leader that is cut off writes to one follower: longer than the client's pause.
_LAST_WRITES_S: Final = 0.5
#: Delay of votes meanwhile, each way, so that a new leader's first entry can be intercepted.
_SLOW_VOTES_MS: Final = 40
_ELECTED_S: Final = 1.5
#: Numbers of successive leaders that are cut off, besides the first.
_CUT_LEADERS: Final = (3, 5)
#: A former leader learns the present term by a first attempt, and is elected by the next one.
_ELECTED_AGAIN_S: Final = 5.0
_ELECTION_POLL_S: Final = 0.005
_RATES: Final = (0.8, 0.95, 1.05, 1.25)
#: Share of the splits that also reset the open connections across.
_RESETS: Final = 0.5
#: Share of the failed writebacks that a power cut follows.
_POWER_CUTS: Final = 0.6
#: Share of the faults of a controller that another one of the same controller accompanies.
_ACCOMPANIED: Final = 0.35
#: Share of the rotten snapshots that a broker reads at once, because it is restarted.
_ASKED_FOR: Final = 0.6
#: Share of the resets between controllers that only one side sees, and of these by a FIN.
_ONE_SIDED: Final = 0.5


Companion = Callable[[SimulatedController, random.Random], AbstractContextManager[None]]


class NotifiedInvariants(Protocol):
    """Invariants that receive the names of hosts that a fault strikes."""

    def cut_off(self, name: str) -> None: ...

    def connected(self, name: str) -> None: ...

    def loses_end(self, name: str, proven_end: int | None) -> None: ...


class ControllerFaults:
    """
    :param invariants: notified of controllers that are cut off or lose the end of their log.
    :param rot: rots snapshots, and restores them.
    """

    def __init__(self, stage: Stage, invariants: NotifiedInvariants, rot: SnapshotRot) -> None:
        self._stage = stage
        self._invariants = invariants
        self._rot = rot

    def plays(self) -> Plays:
        return {
            Kind.CONTROLLER_STOP: self._stop,
            Kind.CONTROLLER_STAND_STILL: self._stand_still,
            Kind.CONTROLLER_LATE_LOOP: self._compute_slowly,
            **{kind: self._disturb_disk for kind in DISK_FAULTS if kind in OF_THE_CONTROLLER},
            Kind.METADATA_HANG_OF_FOLLOWER: self._hang_while_leaders_change,
            Kind.METADATA_LOST_TAIL: self._lose_tail,
            Kind.METADATA_WRITEBACK: self._fail_writeback,
            Kind.METADATA_ROT: self._rot_snapshot,
            Kind.METADATA_LOST_END: self._damage_end,
            Kind.QUORUM_CUT: self._cut,
            Kind.QUORUM_ONE_WAY: self._cut,
            Kind.CONTROLLER_ISOLATED: self._cut,
            Kind.LEADERS_CUT_OFF: self._cut_off_leaders,
            Kind.SPLIT: self._split,
            Kind.QUORUM_RESET: self._reset,
            Kind.QUORUM_SLOW_LINK: self._slow,
            Kind.CLOCK_DRIFT: self._drift,
        }

    async def _stop(self, fault: Fault) -> None:
        stage = self._stage
        async with stage.struck_controller(fault) as host, stage.controller_down(host):
            host.stop()
            while host.is_up:
                await asyncio.sleep(POLL_S)
            await wait(fault)

    async def _stand_still(self, fault: Fault) -> None:
        async with self._stage.struck_controller(fault) as host:
            resume = host.pause_process()
            await wait(fault)
            resume()

    async def _compute_slowly(self, fault: Fault) -> None:
        rng = fault.rng()
        async with self._stage.struck_controller(fault) as host:
            usual_us = host.iteration_us
            host.compute_slowly(rng.randint(*LATE_ITERATION_US))
            async with self._accompanied(host, rng, self._slow_disk, self._cut_off):
                await wait(fault)
            host.compute_slowly(usual_us)

    # --- two faults of one controller ------------------------------------------------------------

    @asynccontextmanager
    async def _accompanied(
        self, host: SimulatedController, rng: random.Random, *companions: Companion
    ) -> AsyncIterator[None]:
        """In some cases let one of ``companions`` strike ``host`` too, which leaves a majority."""
        if rng.random() >= _ACCOMPANIED:
            yield
            return
        with rng.choice(companions)(host, rng):
            yield

    @contextmanager
    def _late_loop(self, host: SimulatedController, rng: random.Random) -> Iterator[None]:
        usual_us = host.iteration_us
        host.compute_slowly(rng.randint(*LATE_ITERATION_US))
        yield
        host.compute_slowly(usual_us)

    @contextmanager
    def _slow_disk(self, host: SimulatedController, _: random.Random) -> Iterator[None]:
        host.metadata_disk.faults.begin_fault(DiskFault.SLOW)
        yield
        host.metadata_disk.faults.heal(DiskFault.SLOW)

    @contextmanager
    def _cut_off(self, host: SimulatedController, rng: random.Random) -> Iterator[None]:
        network, rejects = self._stage.cluster.network, rng.random() < REJECTS
        for other in self._peers(host):
            network.partition(host.name, other, rejects=rejects)
        yield
        for other in self._peers(host):
            network.heal(host.name, other)
            # Another fault may have cut off that controller: this one reaches it again.
            self._invariants.connected(other)

    # --- disks -----------------------------------------------------------------------------------

    async def _disturb_disk(self, fault: Fault) -> None:
        async with self._stage.struck_controller(fault) as host:
            faults = host.metadata_disk.faults
            faults.begin_fault(DISK_FAULTS[fault.kind])
            async with self._accompanied(host, fault.rng(), self._late_loop, self._cut_off):
                await wait(fault)
            faults.heal(DISK_FAULTS[fault.kind])

    async def _lose_tail(self, fault: Fault) -> None:
        """Lose the end of the log. The process ends at the first write that fails."""
        stage = self._stage
        async with stage.struck_controller(fault) as host, stage.controller_down(host):
            host.metadata_disk.faults.begin_fault(DiskFault.EIO)
            await self._until_ended(host)
            host.kill()
            host.metadata_disk.power_cut()
            host.metadata_disk.faults.heal(DiskFault.EIO)

    async def _fail_writeback(self, fault: Fault) -> None:
        """End the process, let the next one find the lost pages in memory, and cut the power."""
        rng, stage = fault.rng(), self._stage
        async with stage.struck_controller(fault) as host:
            host.metadata_disk.faults.begin_fault(DiskFault.WRITEBACK)
            async with stage.controller_down(host):
                await self._until_ended(host)
                host.metadata_disk.faults.heal(DiskFault.WRITEBACK)
            await wait(fault)
            if rng.random() < _POWER_CUTS:
                host.power_cut()

    async def _damage_end(self, fault: Fault) -> None:
        """Damage the log's end. An orderly stop records the end, so that damage is recognized."""
        rng, stage = fault.rng(), self._stage
        async with stage.struck_controller(fault) as host, stage.controller_down(host):
            await self._end(host, rng)
            disks = [one.metadata_disk for one in stage.cluster.controllers if one is not host]
            holders = len(stage.cluster.controllers) // 2 + 1
            damage = damage_log_end(host.metadata_disk, disks, holders, rng)
            if damage is None:
                stage.note(f"{host.name} lacks entries that may be damaged")
                return
            self._invariants.loses_end(host.name, damage.proven_end)
            stage.note(damage.text)

    async def _end(self, host: SimulatedController, rng: random.Random) -> None:
        match rng.randrange(3):
            case 0:
                host.kill()
            case 1:
                host.power_cut()
            case _:
                host.stop()
        while host.is_up:
            await asyncio.sleep(POLL_S)

    async def _until_ended(self, host: SimulatedController) -> None:
        for _ in range(round(_NOTICED_S / POLL_S)):
            if not host.is_up:
                return
            await asyncio.sleep(POLL_S)

    async def _hang_while_leaders_change(self, fault: Fault) -> None:
        """Let a follower's disk hang in a write whose entry is replaced by another leader's entry
        and then restored."""
        view, rng = self._stage.view, fault.rng()
        number = fault.controller or rng.randint(1, len(self._stage.cluster.controllers))
        async with self._stage.struck_controller(replace(fault, controller=number)) as host:
            first, disk_faults = view.active_host, host.metadata_disk.faults
            disk_faults.begin_fault(DiskFault.HANG)
            if first is not None and first is not host:
                await self._replace_and_restore(first.name, host.name)
            disk_faults.heal(DiskFault.HANG)

    async def _replace_and_restore(self, first: str, follower: str) -> None:
        """Let ``follower`` alone receive the last entries of the leader ``first``, and then the
        first entry of the next leader. ``first`` leads again afterwards if it wrote anything."""
        network = self._stage.cluster.network
        names = [one.name for one in self._stage.cluster.controllers]
        others = [name for name in names if name not in (first, follower)]
        for other in others:
            network.partition(first, other, rejects=True)
        await asyncio.sleep(_LAST_WRITES_S)
        slow = [network.delay(*ends, _SLOW_VOTES_MS) for ends in combinations(others, 2)]
        second = await self._next_leader(after=first, resets=others)
        # Its first entry is still in flight to the others, and lost with the connections.
        rest = [name for name in (first, *others) if name != second]
        for other in rest:
            network.partition(second, other, rejects=True)
            network.reset_connections(second, other)
        for undo in slow:
            undo()
        for other in others:
            if other != second:
                network.heal(first, other)
        await asyncio.sleep(_LAST_WRITES_S)
        await self._next_leader(after=second, resets=[])
        await asyncio.sleep(_LAST_WRITES_S)
        for other in rest:
            network.heal(second, other)

    async def _cut_off_leaders(self, fault: Fault) -> None:
        """Cut off the leader, each leader after it, and connect the former one again.

        A former leader has entries that no other controller has, so it can be elected again, but
        no other one by it.
        """
        rng, view, network = fault.rng(), self._stage.view, self._stage.cluster.network
        names = [one.name for one in self._stage.cluster.controllers]
        async with self._stage.struck_controller(replace(fault, controller=0)):
            if view.active_host is None:
                return
            leader = view.active_host.name
            self._isolate(leader)
            await asyncio.sleep(_LAST_WRITES_S)
            for _ in range(rng.randint(*_CUT_LEADERS)):
                slow = [network.delay(*ends, _SLOW_VOTES_MS) for ends in combinations(names, 2)]
                others = [name for name in names if name != leader]
                following = await self._next_leader(
                    after=leader, resets=others, limit_s=_ELECTED_AGAIN_S
                )
                if following != leader:
                    # Its first entry is still in flight, and lost with the connections.
                    self._isolate(following)
                    for other in names:
                        if other != following:
                            network.reset_connections(following, other)
                    self._reconnect(leader, [name for name in others if name != following])
                for undo in slow:
                    undo()
                if following == leader:
                    break
                leader = following
            await self._next_leader(after=leader, resets=[], limit_s=_ELECTED_AGAIN_S)
            self._reconnect(leader, [name for name in names if name != leader])

    def _isolate(self, name: str) -> None:
        """Cut off a controller from all others. Brokers and clients still reach it."""
        for other in self._stage.cluster.controllers:
            if other.name != name:
                self._stage.cluster.network.partition(name, other.name, rejects=True)
        self._invariants.cut_off(name)

    def _reconnect(self, name: str, others: Sequence[str]) -> None:
        for other in others:
            self._stage.cluster.network.heal(name, other)
            self._invariants.connected(other)
        self._invariants.connected(name)

    async def _next_leader(
        self, *, after: str, resets: Sequence[str], limit_s: float = _ELECTED_S
    ) -> str:
        """Break connections of the leader ``after`` to ``resets``; return the leader after that,
        which is ``after`` if no other controller is elected in time."""
        terms = [driver.term for name, driver in self._running() if name == after]
        term = max(terms, default=0)
        for other in resets:
            self._stage.cluster.network.reset_connections(after, other)
        for _ in range(round(limit_s / _ELECTION_POLL_S)):
            for name, driver in self._running():
                if driver.core.leadership is not None and driver.term > term:
                    return name
            await asyncio.sleep(_ELECTION_POLL_S)
        return after

    def _running(self) -> list[tuple[str, RaftDriver]]:
        return [found for found in self._stage.view.drivers() if found[1]._core is not None]

    async def _rot_snapshot(self, fault: Fault) -> None:
        """Rot a bit of a snapshot. A restart skips the snapshot, any other read detects the damage.

        A starting broker reads it.
        """
        rng = fault.rng()
        async with self._stage.struck_controller(fault) as host:
            with self._rot.rotten(host, rng) as is_rotten:
                if is_rotten:
                    async with asyncio.TaskGroup() as tasks:
                        tasks.create_task(self._restart(fault.broker, rng))
                        await wait(fault)

    async def _restart(self, broker: int, rng: random.Random) -> None:
        """In some cases, restart a broker that no fault keeps down."""
        stage = self._stage
        if rng.random() < _ASKED_FOR and not any(stage.down.values()):
            async with stage.broker_down(broker):
                await stage.stop_host(stage.cluster.brokers[broker])

    # --- network ---------------------------------------------------------------------------------

    async def _cut(self, fault: Fault) -> None:
        """Cut it off from all others or one of them; one-way cuts block one direction."""
        rng, network = fault.rng(), self._stage.cluster.network
        async with self._stage.struck_controller(fault) as host:
            me, others = host.name, self._peers(host)
            is_whole = fault.kind is Kind.CONTROLLER_ISOLATED or rng.random() < 0.7
            if fault.kind is Kind.CONTROLLER_ISOLATED:
                others += [broker.name for broker in self._stage.cluster.brokers.values()]
            chosen = others if is_whole else [rng.choice(others)]
            one_way, hears = fault.kind is Kind.QUORUM_ONE_WAY, rng.random() < 0.5
            rejects = rng.random() < REJECTS
            for other in chosen:
                ends = (other, me) if one_way and not hears else (me, other)
                network.partition(*ends, one_way=one_way, rejects=rejects)
            if is_whole and not one_way:
                self._invariants.cut_off(me)
            async with self._accompanied(host, rng, self._late_loop, self._slow_disk):
                await wait(fault)
            self._invariants.connected(me)
            for other in chosen:
                network.heal(me, other)
                # Another fault may have cut off that one, which is connected from now on.
                self._invariants.connected(other)

    async def _split(self, fault: Fault) -> None:
        rng, network = fault.rng(), self._stage.cluster.network
        async with self._stage.struck_controller(fault) as host:
            brokers = [broker.name for broker in self._stage.cluster.brokers.values()]
            near = [host.name, *rng.sample(brokers, rng.randint(1, len(brokers) - 1))]
            far = [*self._peers(host), *(name for name in brokers if name not in near)]
            rejects, resets = rng.random() < REJECTS, rng.random() < _RESETS
            for observer in self._stage.cluster.observers:
                # Or it reaches both sides, like clients.
                rng.choice((near, far, [])).append(observer.name)
            across = [(one, other) for one in near for other in far]
            for ends in across:
                network.partition(*ends, rejects=rejects)
                if resets:
                    network.reset_connections(*ends)
            self._invariants.cut_off(host.name)
            async with self._accompanied(host, rng, self._late_loop, self._slow_disk):
                await wait(fault)
            for name in (*near, *far):
                self._invariants.connected(name)
            for ends in across:
                network.heal(*ends)

    async def _reset(self, fault: Fault) -> None:
        rng, network = fault.rng(), self._stage.cluster.network
        async with self._stage.struck_controller(fault) as host:
            is_one_sided = rng.random() < _ONE_SIDED
            for other in self._peers(host):
                if not is_one_sided:
                    network.reset_connections(host.name, other)
                    continue
                ends = [host.name, other]
                rng.shuffle(ends)
                network.break_one_side(*ends, by_fin=rng.random() < _ONE_SIDED)

    async def _slow(self, fault: Fault) -> None:
        rng, network = fault.rng(), self._stage.cluster.network
        async with self._stage.struck_controller(fault) as host:
            delays = [
                network.delay(host.name, other, rng.randint(20, 400)) for other in self._peers(host)
            ]
            await wait(fault)
            for undo in delays:
                undo()

    def _peers(self, host: SimulatedController) -> list[str]:
        return [one.name for one in self._stage.cluster.controllers if one is not host]

    # --- clocks ----------------------------------------------------------------------------------

    async def _drift(self, fault: Fault) -> None:
        """Change the rate of a controller's or broker's clock. Its offset is never corrected."""
        rng = fault.rng()
        is_broker = rng.random() < 0.3
        host = (
            self._stage.cluster.brokers[fault.broker]
            if is_broker
            else self._stage.controller(fault)
        )
        host.drift(rng.choice(_RATES))
        await wait(fault)
        host.drift(1.0)
