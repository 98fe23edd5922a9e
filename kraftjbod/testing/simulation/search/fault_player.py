"""WIRE. ``FaultPlayer``: carries out a schedule on a simulated cluster: break, wait, mend, have it
back.

A fault ends when its owner has what was broken again, whatever else happens meanwhile: a broker
that ended by itself is started, a directory that is offline is reattached until it is online.
Nothing here gives up; whoever waits for the end of it all has a limit.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.config_admin import (
    ConfigChange,
    ConfigOperation,
    ConfigResource,
    ResourceType,
    incremental_alter_configs,
)
from kraftjbod.cli.clients.log_dir_changes import LogDirChange, change_log_dir
from kraftjbod.cli.clients.replica_admin import (
    Reassignment,
    alter_partition_reassignments,
    alter_replica_log_dirs,
)
from kraftjbod.core.errors import ErrorCode, KraftJbodError, OperatingError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.testing.simulation.disk_faults import DiskFault
from kraftjbod.testing.simulation.search.budget import Budget
from kraftjbod.testing.simulation.search.cluster_view import ClusterView
from kraftjbod.testing.simulation.search.gap_law import Struck
from kraftjbod.testing.simulation.search.schedule import Fault, Kind, Schedule
from kraftjbod.testing.simulation.simulated_cluster import SimulatedBroker, SimulatedCluster
from kraftjbod.testing.simulation.simulated_disk import SimulatedDisk

T = TypeVar("T")

_POLL_S: Final = 0.1
_NOTICED_S: Final = 20.0
#: One question to a broker that may be in trouble.
_TRY_MS: Final = 4_000
_LOOKS_S: Final = 0.25
#: For so long the cluster has to be whole until it counts as that.
_WHOLE_LOOKS: Final = 4
#: After that a daemon that ended by itself is started again, as by systemd.
_RESTART_LOOKS: Final = 4
#: A move of little takes half a second then.
_MOVES_SLOWNESS: Final = 60.0
_MOVES_S: Final = 0.4
_MOVE_HANG_S: Final = (1.5, 4.5)
_SWAP_LOOKS: Final = 200
_SWAP_LOOK_S: Final = 0.005
#: Until something late arrives, or answers, after all is well again.
_LATE_S: Final = 0.3
_DISK_FAULTS: Final = {
    Kind.EIO: DiskFault.EIO,
    Kind.LOST_TAIL: DiskFault.EIO,
    Kind.EIO_ONCE: DiskFault.EIO_ONCE,
    Kind.HANG: DiskFault.HANG,
    Kind.SLOW: DiskFault.SLOW,
    Kind.FULL: DiskFault.FULL,
    Kind.VANISH: DiskFault.VANISH,
}


class FaultPlayer:
    """:param note: told of everything that is done, one line each."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        view: ClusterView,
        budget: Budget,
        *,
        topics: dict[str, int],
        dirs: int,
        make_client: Callable[[str], ClusterClient],
        note: Callable[[str], None],
    ) -> None:
        """
        :param make_client: of a name, one that is closed by who asked for it.
        :param topics: partitions by name, of what moves and reassignments are about.
        """
        self._cluster = cluster
        self._view = view
        self.budget = budget
        self._topics = topics
        self._dirs = dirs
        self._make_client = make_client
        self._note = note
        #: Brokers that are meant to be down, and how many faults mean it.
        self._down: Counter[int] = Counter()
        self._controller_down = 0
        self.played: Counter[Kind] = Counter()
        self.skipped: Counter[Kind] = Counter()
        #: Those that ended.
        self.history: list[Struck] = []

    async def play(self, schedule: Schedule) -> None:
        """Return when the last fault is over."""
        began_ms = self._now_ms()
        tasks: list[asyncio.Task[None]] = []
        try:
            for fault in schedule:
                await asyncio.sleep(max(0, began_ms + fault.at_ms - self._now_ms()) / 1000)
                why_not = self.budget.why_not(fault)
                if why_not:
                    self.skipped[fault.kind] += 1
                    self._note(f"{fault} is left out: {why_not}")
                    continue
                self.played[fault.kind] += 1
                tasks.append(asyncio.create_task(self._strike(fault), name=str(fault)))
            for task in tasks:
                await task
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _strike(self, fault: Fault) -> None:
        self.budget.begun(fault)
        began_ms = self._now_ms()
        self._note(f"{fault} begins")
        try:
            await self._how(fault.kind)(fault)
        finally:
            self.budget.mended(fault)
            self.history.append(Struck(fault, began_ms, self._now_ms()))
            self._note(f"{fault} is over")

    async def supervise(self) -> None:
        """Start what ended by itself, and tell the budget when all is well; until cancelled."""
        whole, ended = 0, Counter[int]()
        while True:
            await asyncio.sleep(_LOOKS_S)
            for broker, host in self._cluster.brokers.items():
                ended[broker] = 0 if host.is_up else ended[broker] + 1
                if ended[broker] >= _RESTART_LOOKS:
                    self._start(broker)
            whole = 0 if self._view.not_whole(self._dirs) else whole + 1
            if whole >= _WHOLE_LOOKS:
                self.budget.all_in_sync()

    def _how(self, kind: Kind) -> Callable[[Fault], Coroutine[Any, Any, None]]:
        return {
            Kind.KILL: self._kill,
            Kind.STOP: self._stop,
            Kind.POWER_CUT: self._power_cut,
            Kind.CONTROLLER_KILL: self._controller_away,
            Kind.CONTROLLER_POWER_CUT: self._controller_away,
            Kind.EIO: self._break_dir,
            Kind.EIO_ONCE: self._disturb_dir,
            Kind.UNHEARD_EIO: self._unheard_eio,
            Kind.LOST_TAIL: self._break_dir,
            Kind.HANG: self._disturb_dir,
            Kind.SLOW: self._disturb_dir,
            Kind.FULL: self._disturb_dir,
            Kind.VANISH: self._break_dir,
            Kind.WIPE: self._wipe,
            Kind.REMOVED: self._remove,
            Kind.ALL_STOPPED: self._stop_all,
            Kind.SWAPPED: self._swap_disks,
            Kind.MOVE_HANG: self._hang_move,
            Kind.MOVES: self._move,
            Kind.CORDON: self._cordon,
            Kind.DRAIN: self._drain,
            Kind.REATTACH: self._reattach,
            Kind.CONFIG: self._configure,
            Kind.REASSIGN: self._reassign,
            Kind.CLOCK_JUMP: self._jump,
            Kind.PARTITION: self._disturb_link,
            Kind.ONE_WAY: self._disturb_link,
            Kind.RESET: self._reset,
            Kind.SLOW_LINK: self._disturb_link,
        }[kind]

    # --- daemons ---------------------------------------------------------------------------------

    async def _kill(self, fault: Fault) -> None:
        async with self._broker_down(fault.broker):
            self._cluster.brokers[fault.broker].kill()
            await _wait(fault)

    async def _power_cut(self, fault: Fault) -> None:
        async with self._broker_down(fault.broker):
            self._cluster.brokers[fault.broker].power_cut()
            await _wait(fault)

    async def _stop(self, fault: Fault) -> None:
        async with self._broker_down(fault.broker):
            await self._stop_host(self._cluster.brokers[fault.broker])
            await _wait(fault)

    async def _stop_host(self, host: SimulatedBroker) -> None:
        host.stop()
        while host.is_up:
            await asyncio.sleep(_POLL_S)

    @asynccontextmanager
    async def _broker_down(self, broker: int) -> AsyncIterator[None]:
        """Meant to be down meanwhile; afterwards it serves again."""
        self._down[broker] += 1
        try:
            yield
        finally:
            self._down[broker] -= 1
        await self._until_serving(broker)

    async def _until_serving(self, broker: int) -> None:
        while not self._view.is_serving(broker):
            self._start(broker)
            await asyncio.sleep(_POLL_S)

    def _start(self, broker: int) -> None:
        """Unless somebody means it to be down."""
        host = self._cluster.brokers[broker]
        if not self._down[broker] and not host.is_up:
            self._note(f"broker {broker} is started")
            host.start()

    async def _controller_away(self, fault: Fault) -> None:
        async with self._without_controller(has_power=fault.kind is Kind.CONTROLLER_KILL):
            await _wait(fault)

    @asynccontextmanager
    async def _without_controller(self, *, has_power: bool = True) -> AsyncIterator[None]:
        host = self._cluster.controller()
        if has_power:
            host.kill()
        else:
            host.power_cut()
        try:
            yield
        finally:
            host.start()

    # --- disks -----------------------------------------------------------------------------------

    async def _break_dir(self, fault: Fault) -> None:
        """Until the broker has noticed, and then for a while."""
        disk = self._disk(fault)
        disk.faults.begin(_DISK_FAULTS[fault.kind])
        is_given_up = await self._until_given_up(fault)
        await _wait(fault)
        if fault.kind is Kind.LOST_TAIL and is_given_up:
            disk.power_cut()
        disk.faults.heal()
        await self._until_back(fault)

    async def _disturb_dir(self, fault: Fault) -> None:
        disk = self._disk(fault)
        disk.faults.begin(_DISK_FAULTS[fault.kind])
        await _wait(fault)
        disk.faults.heal()
        await self._until_back(fault)

    async def _unheard_eio(self, fault: Fault) -> None:
        """The return is asked for while the controller, which knows of nothing, is still down."""
        disk = self._disk(fault)
        async with self._without_controller():
            disk.faults.begin(DiskFault.EIO)
            is_given_up = await self._until_given_up(fault)
            if fault.rng().random() < 0.7 and is_given_up:
                disk.power_cut()
            disk.faults.heal()
            asking = asyncio.create_task(self._order_once(fault, "reattach"))
            await _wait(fault)
        await asking
        await self._until_back(fault)

    async def _wipe(self, fault: Fault) -> None:
        """Sometimes what the old copies had asked of another broker arrives after the new ones."""
        rng, network = fault.rng(), self._cluster.network
        me = self._cluster.brokers[fault.broker].name
        others = [host.name for host in self._cluster.brokers.values() if host.name != me]
        is_late, other = rng.random() < 0.4, rng.choice(others)
        if is_late:
            network.partition(me, other)
        self._disk(fault).faults.replace()
        await self._until_given_up(fault)
        if not is_late:
            await _wait(fault)
        await self._order(fault, "forget", but=ErrorCode.LOG_DIR_NOT_FOUND)
        await self._order(fault, "add", but=ErrorCode.INVALID_REQUEST)
        if is_late:
            await asyncio.sleep(rng.random() * _LATE_S)
            network.heal(me, other)
        await self._until_back(fault)

    async def _remove(self, fault: Fault) -> None:
        """Copies that others in sync have too; a move may have another one of them begun here."""
        async with self._broker_down(fault.broker):
            self._cluster.brokers[fault.broker].kill()
            self._remove_some(fault, self._covered(fault.broker))
            await _wait(fault)

    async def _stop_all(self, fault: Fault) -> None:
        """One after the other, and back one after the other: whoever is first may have to lead."""
        rng, covered = fault.rng(), self._covered(fault.broker)
        brokers = rng.sample(self._view.broker_ids, len(self._view.broker_ids))
        # Often it is the worst one: the last to stop is the first to start, and lacks replicas.
        is_worst = rng.random() < 0.6
        if is_worst:
            brokers.sort(key=lambda broker: broker == fault.broker)
        self._down.update(brokers)
        try:
            for broker in brokers:
                if broker == fault.broker and rng.random() < 0.6:
                    await self._stop_midst_moves(fault, sorted(covered))
                await self._stop_host(self._cluster.brokers[broker])
            self._remove_some(fault, covered)
        finally:
            for broker in reversed(brokers) if is_worst else brokers:
                self._down[broker] -= 1
                self._start(broker)
                await asyncio.sleep(rng.random() * fault.for_ms / 1000)
        for broker in brokers:
            await self._until_serving(broker)

    async def _stop_midst_moves(self, fault: Fault, which: list[TopicPartition]) -> None:
        """To a disk so slow that they are not over yet."""
        rng, host = fault.rng(), self._cluster.brokers[fault.broker]
        target = rng.choice(host.log_dirs)
        disk = self._cluster.disks[target]
        disk.slowness *= _MOVES_SLOWNESS
        await self._move_to(fault.broker, target, which)
        await asyncio.sleep(rng.random() * _MOVES_S)
        await self._stop_host(host)
        disk.slowness /= _MOVES_SLOWNESS

    def _covered(self, broker: int) -> set[TopicPartition]:
        """What others that serve hold too, in sync."""
        return {
            tp
            for tp, one in self._view.partitions()
            if any(other != broker and self._view.is_serving(other) for other in one.isr)
        }

    def _remove_some(self, fault: Fault, covered: set[TopicPartition]) -> None:
        doomed = covered & set(self._some_partitions(fault.rng()))
        for path in self._cluster.brokers[fault.broker].log_dirs:
            vfs = self._cluster.disks[path].vfs
            for tp in sorted(doomed):
                if vfs.is_dir(f"{path}/{tp}"):
                    self._note(f"{path}/{tp} is removed")
                    vfs.remove_tree(f"{path}/{tp}")
                    vfs.sync_dir(path)

    async def _swap_disks(self, fault: Fault) -> None:
        """Each is found where the other was."""
        host = self._cluster.brokers[fault.broker]
        async with self._broker_down(fault.broker):
            host.kill()
            a, b = (self._cluster.disks[path] for path in fault.rng().sample(host.log_dirs, 2))
            a.swap_with(b)
            await _wait(fault)

    async def _hang_move(self, fault: Fault) -> None:
        """At the rename that ends it, on the disk that takes, or on both: that one answers last."""
        rng, here = fault.rng(), self._path(fault)
        paths = self._cluster.brokers[fault.broker].log_dirs
        source, target = here, rng.choice([one for one in paths if one != here])
        moved = [
            replica.topic_partition
            for replica in self._view.replicas(fault.broker)
            if replica.handle is not None and replica.handle.log_dir.path == source
        ]
        await self._move_to(fault.broker, target, moved)
        taking, giving = self._cluster.disks[target], self._cluster.disks[source]
        first = giving if rng.random() < 0.6 else taking
        first.faults.begin(DiskFault.HANG_AT_SWAP)
        for _ in range(_SWAP_LOOKS):
            if first.gate.is_closed:
                break
            await asyncio.sleep(_SWAP_LOOK_S)
        taking.faults.begin(DiskFault.HANG)
        await asyncio.sleep(rng.uniform(*_MOVE_HANG_S))
        giving.faults.heal(DiskFault.HANG, DiskFault.HANG_AT_SWAP)
        await asyncio.sleep(rng.random() * _LATE_S)
        taking.faults.heal(DiskFault.HANG, DiskFault.HANG_AT_SWAP)
        await self._until_back(fault)

    async def _until_given_up(self, fault: Fault) -> bool:
        """Until the broker has noticed, or does not run; False if it takes no notice."""
        path = self._path(fault)
        for _ in range(round(_NOTICED_S / _POLL_S)):
            state = self._view.dir_state(fault.broker, path)
            if state in (None, LogDirState.OFFLINE):
                return True
            await asyncio.sleep(_POLL_S)
        return False

    async def _until_back(self, fault: Fault) -> None:
        broker, path = fault.broker, self._path(fault)
        while True:
            self._start(broker)
            state = self._view.dir_state(broker, path)
            if state is LogDirState.ONLINE and self._view.is_serving(broker):
                return
            if state is LogDirState.OFFLINE and self._view.is_serving(broker):
                await self._order_once(fault, "reattach")
            elif state is None and self._view.is_serving(broker):
                await self._order_once(fault, "add")
            await asyncio.sleep(_POLL_S)

    async def _order(self, fault: Fault, operation: str, *, but: ErrorCode) -> None:
        """Until it is done; ``but`` says that it is so already."""
        while True:
            self._start(fault.broker)
            code = await self._order_once(fault, operation)
            if code is None or code is but:
                return
            await asyncio.sleep(_POLL_S)

    async def _order_once(self, fault: Fault, operation: str) -> ErrorCode | None:
        change = LogDirChange(operation=operation, broker=fault.broker, target=self._path(fault))

        async def order(client: ClusterClient) -> None:
            await change_log_dir(client, change, timeout_ms=_TRY_MS)

        return await self._ask(f"{operation} {self._path(fault)}", order)

    # --- an operator's work ----------------------------------------------------------------------

    async def _move(self, fault: Fault) -> None:
        """Some replicas to other directories, and some of them on or back soon."""
        rng = fault.rng()
        for _ in range(rng.randint(1, 3)):
            target = self._cluster.brokers[fault.broker].log_dirs[rng.randrange(self._dirs)]
            await self._move_to(fault.broker, target, self._some_partitions(rng))
            await asyncio.sleep(fault.for_ms / 2000)

    async def _move_to(self, broker: int, target: str, which: list[TopicPartition]) -> None:
        async def move(client: ClusterClient) -> None:
            refusals = await alter_replica_log_dirs(client, broker, {target: which})
            for tp, error in refusals.items():
                self._note(f"the move of {tp} to {target} is refused: {error}")

        await self._ask(f"move {' '.join(map(str, which))} to {target}", move)

    async def _cordon(self, fault: Fault) -> None:
        await self._set_cordon(fault, ConfigOperation.APPEND)
        await _wait(fault)
        await self._lift_cordon(fault)

    async def _drain(self, fault: Fault) -> None:
        rng, path = fault.rng(), self._path(fault)
        await self._set_cordon(fault, ConfigOperation.APPEND)
        others = [one for one in self._cluster.brokers[fault.broker].log_dirs if one != path]
        here = [
            replica.topic_partition
            for replica in self._view.replicas(fault.broker)
            if replica.handle is not None and replica.handle.log_dir.path == path
        ]
        for tp in here:
            await self._move_to(fault.broker, rng.choice(others), [tp])
        await _wait(fault)
        await self._lift_cordon(fault)

    async def _lift_cordon(self, fault: Fault) -> None:
        while await self._set_cordon(fault, ConfigOperation.SUBTRACT) is not None:
            await asyncio.sleep(_POLL_S)

    async def _set_cordon(self, fault: Fault, operation: ConfigOperation) -> ErrorCode | None:
        resource = ConfigResource(ResourceType.BROKER, str(fault.broker))
        change = ConfigChange("cordoned.log.dirs", self._path(fault), operation)
        return await self._alter(resource, change)

    async def _reattach(self, fault: Fault) -> None:
        await self._order_once(fault, "reattach")

    async def _configure(self, fault: Fault) -> None:
        rng = fault.rng()
        topic = rng.choice(sorted(self._topics))
        name, value = rng.choice(
            (
                ("segment.bytes", "2048"),
                ("segment.bytes", "16384"),
                ("min.insync.replicas", "3"),
                ("min.insync.replicas", "2"),
                ("flush.messages", "1"),
            )
        )
        resource = ConfigResource(ResourceType.TOPIC, topic)
        await self._alter(resource, ConfigChange(name, value))
        await _wait(fault)
        back = ConfigChange(name, None, ConfigOperation.DELETE)
        while await self._alter(resource, back) is not None:
            await asyncio.sleep(_POLL_S)

    async def _alter(self, resource: ConfigResource, change: ConfigChange) -> ErrorCode | None:
        async def alter(client: ClusterClient) -> None:
            await incremental_alter_configs(client, {resource: [change]})

        what = f"{resource}: {change.operation.name.lower()} {change.name}={change.value}"
        return await self._ask(what, alter)

    async def _reassign(self, fault: Fault) -> None:
        rng = fault.rng()
        tp = rng.choice(self._some_partitions(rng))
        replicas = rng.sample(self._view.broker_ids, 3)

        async def reassign(client: ClusterClient) -> None:
            wish = Reassignment(topic_partition=tp, replicas=replicas)
            for error in (await alter_partition_reassignments(client, [wish])).values():
                raise error

        await self._ask(f"reassign {tp} to {replicas}", reassign)
        await _wait(fault)

    def _some_partitions(self, rng: random.Random) -> list[TopicPartition]:
        every = [
            TopicPartition(topic, number)
            for topic, count in sorted(self._topics.items())
            for number in range(count)
        ]
        return rng.sample(every, rng.randint(1, len(every)))

    # --- the rest --------------------------------------------------------------------------------

    async def _jump(self, fault: Fault) -> None:
        """Forwards or backwards, and not back."""
        host = self._cluster.brokers[fault.broker]
        host.wall_offset_ms += fault.rng().randint(-3_600_000, 3_600_000)

    async def _disturb_link(self, fault: Fault) -> None:
        network = self._cluster.network
        a, b = self._ends(fault)
        usual = {link: link.delay_us for link in (network.link(a, b), network.link(b, a))}
        if fault.kind is Kind.SLOW_LINK:
            network.delay(a, b, fault.rng().randint(20, 400))
        else:
            network.partition(a, b, one_way=fault.kind is Kind.ONE_WAY)
        await _wait(fault)
        network.heal(a, b)
        for link, delay_us in usual.items():
            link.delay_us = delay_us

    async def _reset(self, fault: Fault) -> None:
        self._cluster.network.reset_connections(*self._ends(fault))

    def _ends(self, fault: Fault) -> tuple[str, str]:
        brokers, controller = self._cluster.brokers, self._cluster.controller()
        far = brokers[fault.other] if fault.other else controller
        ends = [brokers[fault.broker].name, far.name]
        fault.rng().shuffle(ends)
        return ends[0], ends[1]

    # --- shared ----------------------------------------------------------------------------------

    def _path(self, fault: Fault) -> str:
        return self._cluster.brokers[fault.broker].log_dirs[fault.dir]

    def _disk(self, fault: Fault) -> SimulatedDisk:
        return self._cluster.disks[self._path(fault)]

    async def _ask(
        self, what: str, question: Callable[[ClusterClient], Awaitable[None]]
    ) -> ErrorCode | None:
        """Once; the code of what went wrong, UNKNOWN_SERVER_ERROR for what has none."""
        client = self._make_client("operator")
        try:
            async with asyncio.timeout(_TRY_MS * 2 / 1000):
                await client.refresh_metadata()
                await question(client)
        except (KraftJbodError, TimeoutError) as e:
            self._note(f"{what}: {type(e).__name__} {e}")
            code = e.code if isinstance(e, OperatingError) else None
            return code or ErrorCode.UNKNOWN_SERVER_ERROR
        else:
            self._note(f"{what}: done")
            return None
        finally:
            await client.close()

    def _now_ms(self) -> int:
        return self._cluster.now_ms


async def _wait(fault: Fault) -> None:
    await asyncio.sleep(fault.for_ms / 1000)
