"""``HostFaults``: daemons are killed, stopped, paused, and lose power.

Sometimes their disks have changed when they return.
"""

from __future__ import annotations

import asyncio
from typing import Final

from kraftjbod.core.ids import TopicPartition
from kraftjbod.storage.dir_names import CLEAN_SHUTDOWN_FILE
from kraftjbod.testing.simulation.simulated_cluster import SimulatedBroker
from tests.sim.search.faults.operator_work import OperatorWork
from tests.sim.search.faults.schedule import Fault, Kind
from tests.sim.search.faults.stage import Plays, Stage, wait

#: With this slowness a move of a small replica takes half a second.
_MOVES_SLOWNESS: Final = 60.0
_MOVES_S: Final = 0.4
#: Less than ``message.timestamp.after.max.ms``: a broker whose clock is an hour late refuses the
#: records of clients.
_WRONG_MS: Final = 3_000_000
#: Duration of an event loop iteration on an overloaded machine, minimum and maximum.
LATE_ITERATION_US: Final = (5_000, 900_000)
#: Limit of files that can still be opened once descriptors run out.
_MOST_SPARE_DESCRIPTORS: Final = 3
#: The same for a starting process, which opens some hundred.
_MOST_AT_START: Final = 80
#: Share of the lacks of descriptors that begin with a start.
_LACKS_AT_START: Final = 0.4
#: Share of the stops of all brokers after which the first one to start lacks descriptors, and how
#: long, in seconds.
_FIRST_LACKS: Final = 0.3
_LACKS_S: Final = (0.2, 3.0)


class HostFaults:
    """Faults of one broker, of all of them, or of the controller."""

    def __init__(self, stage: Stage, operator: OperatorWork) -> None:
        self._stage = stage
        self._operator = operator

    def plays(self) -> Plays:
        return {
            Kind.KILL: self._kill,
            Kind.STOP: self._stop,
            Kind.POWER_CUT: self._power_cut,
            Kind.STAND_STILL: self._stand_still,
            Kind.LATE_LOOP: self._compute_slowly,
            Kind.DESCRIPTORS: self._run_out_of_descriptors,
            Kind.CONTROLLER_KILL: self._controller_away,
            Kind.CONTROLLER_POWER_CUT: self._controller_away,
            Kind.REMOVED: self._remove,
            Kind.ALL_STOPPED: self._stop_all,
            Kind.LAST_STANDING: self._last_standing,
            Kind.SWAPPED: self._swap_disks,
            Kind.CLOCK_JUMP: self._jump,
        }

    async def _kill(self, fault: Fault) -> None:
        async with self._stage.broker_down(fault.broker):
            self._stage.host(fault).kill()
            await wait(fault)

    async def _power_cut(self, fault: Fault) -> None:
        async with self._stage.broker_down(fault.broker):
            self._stage.host(fault).power_cut()
            await wait(fault)

    async def _stop(self, fault: Fault) -> None:
        async with self._stage.broker_down(fault.broker):
            await self._stage.stop_host(self._stage.host(fault))
            await wait(fault)

    async def _stand_still(self, fault: Fault) -> None:
        resume = self._stage.host(fault).pause_process()
        await wait(fault)
        resume()
        await self._stage.until_serving(fault.broker)

    async def _compute_slowly(self, fault: Fault) -> None:
        host = self._stage.host(fault)
        usual_us = host.iteration_us
        host.compute_slowly(fault.rng().randint(*LATE_ITERATION_US))
        await wait(fault)
        host.compute_slowly(usual_us)
        await self._stage.until_serving(fault.broker)

    async def _run_out_of_descriptors(self, fault: Fault) -> None:
        rng, stage, host = fault.rng(), self._stage, self._stage.host(fault)
        most = _MOST_SPARE_DESCRIPTORS
        if rng.random() < _LACKS_AT_START and not stage.down[fault.broker]:
            await stage.stop_host(host)
            stage.start(fault.broker)
            most = _MOST_AT_START
        await self._lack_descriptors(host, rng.randint(0, most), fault.for_ms / 1000)
        await stage.until_serving(fault.broker)

    async def _lack_descriptors(self, host: SimulatedBroker, spare: int, for_s: float) -> None:
        """Let the running process open only ``spare`` more files for ``for_s`` seconds."""
        process = host.process
        if process is not None:
            process.spare_descriptors = spare
            await asyncio.sleep(for_s)
            process.spare_descriptors = None

    async def _controller_away(self, fault: Fault) -> None:
        has_power = fault.kind is Kind.CONTROLLER_KILL
        async with self._stage.without_controller(fault, has_power=has_power):
            await wait(fault)

    async def _remove(self, fault: Fault) -> None:
        """Remove replicas that other brokers in sync have. A pending move may recreate one."""
        async with self._stage.broker_down(fault.broker):
            self._stage.host(fault).kill()
            self._remove_some(fault, self._covered(fault.broker))
            await wait(fault)

    async def _stop_all(self, fault: Fault) -> None:
        """Stop all brokers one after the other, and start them one after the other."""
        rng, covered = fault.rng(), self._covered(fault.broker)
        brokers = rng.sample(self._stage.view.broker_ids, len(self._stage.view.broker_ids))
        # The worst order: the last broker to stop is the first to start, and lacks replicas.
        is_worst = rng.random() < 0.6
        if is_worst:
            brokers.sort(key=lambda broker: broker == fault.broker)
        self._stage.down.update(brokers)
        try:
            for broker in brokers:
                if broker == fault.broker and rng.random() < 0.6:
                    await self._stop_midst_moves(fault, sorted(covered))
                await self._stage.stop_host(self._stage.cluster.brokers[broker])
            # Where this one was in sync alone by then, one of the others has to be eligible.
            last_other = [broker for broker in brokers if broker != fault.broker][-1]
            is_short = rng.random() < _FIRST_LACKS
            if self._ended_cleanly(last_other) and not is_short:
                self._remove_some(fault, covered)
        finally:
            for broker in reversed(brokers) if is_worst else brokers:
                self._stage.down[broker] -= 1
                self._stage.start(broker)
                if is_short:
                    host, spare = (
                        self._stage.cluster.brokers[broker],
                        rng.randint(0, _MOST_AT_START),
                    )
                    await self._lack_descriptors(host, spare, rng.uniform(*_LACKS_S))
                    is_short = False
                await asyncio.sleep(rng.random() * fault.for_ms / 1000)
        for broker in brokers:
            await self._stage.until_serving(broker)

    async def _last_standing(self, fault: Fault) -> None:
        """Cut the power of the last running broker, which returns before the others.

        It may lose records that it had acknowledged together with the others.
        """
        rng, brokers = fault.rng(), self._stage.view.broker_ids
        others = rng.sample([one for one in brokers if one != fault.broker], len(brokers) - 1)
        self._stage.down.update(brokers)
        try:
            for broker in others:
                await self._stage.stop_host(self._stage.cluster.brokers[broker])
            self._stage.host(fault).power_cut()
            self._stage.down[fault.broker] -= 1
            await self._stage.until_serving(fault.broker)
            await wait(fault)
        finally:
            for broker in others:
                self._stage.down[broker] -= 1
                self._stage.start(broker)
        for broker in brokers:
            await self._stage.until_serving(broker)

    async def _stop_midst_moves(self, fault: Fault, which: list[TopicPartition]) -> None:
        """Stop during moves to a disk that is too slow to finish them."""
        rng, host = fault.rng(), self._stage.host(fault)
        target = rng.choice(host.log_dirs)
        disk = self._stage.cluster.disks[target]
        disk.slowness *= _MOVES_SLOWNESS
        await self._operator.move_to(fault.broker, target, which)
        await asyncio.sleep(rng.random() * _MOVES_S)
        await self._stage.stop_host(host)
        disk.slowness = max(1.0, disk.slowness / _MOVES_SLOWNESS)

    def _ended_cleanly(self, broker: int) -> bool:
        """Whether the broker ended cleanly in all directories; a full one does not tell."""
        return all(
            self._stage.cluster.disks[path].vfs.exists(f"{path}/{CLEAN_SHUTDOWN_FILE}")
            for path in self._stage.cluster.brokers[broker].log_dirs
        )

    def _covered(self, broker: int) -> set[TopicPartition]:
        """Return the partitions that other serving brokers have in sync."""
        return {
            tp
            for tp, one, _ in self._stage.view.partitions()
            if any(other != broker and self._stage.view.is_serving(other) for other in one.isr)
        }

    def _remove_some(self, fault: Fault, covered: set[TopicPartition]) -> None:
        doomed = covered & set(self._stage.some_partitions(fault.rng()))
        for path in self._stage.host(fault).log_dirs:
            vfs = self._stage.cluster.disks[path].vfs
            for tp in sorted(doomed):
                if vfs.is_dir(f"{path}/{tp}"):
                    self._stage.note(f"{path}/{tp} is removed")
                    vfs.remove_tree(f"{path}/{tp}")
                    vfs.sync_dir(path)

    async def _swap_disks(self, fault: Fault) -> None:
        """Swap the contents of two disks."""
        host = self._stage.host(fault)
        async with self._stage.broker_down(fault.broker):
            host.kill()
            a, b = (
                self._stage.cluster.disks[path] for path in fault.rng().sample(host.log_dirs, 2)
            )
            a.swap_with(b)
            await wait(fault)

    async def _jump(self, fault: Fault) -> None:
        """Let the wall clock jump forwards or backwards permanently."""
        self._stage.host(fault).wall_offset_ms = fault.rng().randint(-_WRONG_MS, _WRONG_MS)
