"""``Stage``: the simulated cluster on which faults are played.

It counts for each broker the faults that keep it down, and starts brokers that none keeps down.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.testing.simulation.simulated_cluster import (
    SimulatedBroker,
    SimulatedCluster,
    SimulatedController,
)
from kraftjbod.testing.simulation.simulated_disk import SimulatedDisk
from tests.sim.search.cluster_view import ClusterView
from tests.sim.search.faults.schedule import Fault, Kind

#: Plays a fault from its beginning until its target is back in service.
Play = Callable[[Fault], Coroutine[Any, Any, None]]
Plays = Mapping[Kind, Play]

POLL_S: Final = 0.1
_NOTICED_S: Final = 20.0
#: Interval in which a controller writes at least once.
_STRUCK_S: Final = 2.0
_LATEST_OPERATION: Final = 8
#: Event loop iterations after which the result of a disk operation has been handled.
_RESULT_ITERATIONS: Final = 4


class Stage:
    """
    :param topics: number of partitions by topic, for moves and reassignments.
    :param note: called with one line for every action.
    :param loose: topics whose records may be lost: no producer uses acks=all.
    """

    def __init__(
        self,
        cluster: SimulatedCluster,
        view: ClusterView,
        *,
        topics: dict[str, int],
        note: Callable[[str], None],
        loose: Collection[str] = (),
    ) -> None:
        self.cluster = cluster
        self.view = view
        self.topics = topics
        self.note = note
        self.loose = frozenset(loose)
        #: By broker, the number of faults that keep it down.
        self.down: Counter[int] = Counter()
        #: Partitions and first offsets of the batches with a rotten bit.
        self.rotten: list[tuple[TopicPartition, int]] = []
        #: Controllers with a fault now, and those that are kept down.
        self._struck: set[str] = set()
        self._controllers_down: set[str] = set()

    # --- target of a fault -----------------------------------------------------------------------

    def host(self, fault: Fault) -> SimulatedBroker:
        return self.cluster.brokers[fault.broker]

    def path(self, fault: Fault) -> str:
        return self.host(fault).log_dirs[fault.dir]

    def disk(self, fault: Fault) -> SimulatedDisk:
        return self.cluster.disks[self.path(fault)]

    def replicas_in(self, broker: int, path: str) -> list[TopicPartition]:
        """Return the partitions of ``broker`` whose log is in ``path``."""
        return [
            replica.topic_partition
            for replica in self.view.replicas(broker)
            if replica.handle is not None and replica.handle.log_dir.path == path
        ]

    @property
    def loose_partitions(self) -> list[TopicPartition]:
        """Return the partitions of the topics whose records may be lost."""
        return [
            TopicPartition(topic, number)
            for topic in sorted(self.loose)
            for number in range(self.topics[topic])
        ]

    def some_partitions(self, rng: random.Random) -> list[TopicPartition]:
        every = [
            TopicPartition(topic, number)
            for topic, count in sorted(self.topics.items())
            for number in range(count)
        ]
        return rng.sample(every, rng.randint(1, len(every)))

    # --- daemons ---------------------------------------------------------------------------------

    async def stop_host(self, host: SimulatedBroker) -> None:
        """Stop the daemon, and return when its process has ended.

        Another fault may start the next process before this coroutine looks again.
        """
        process = host.process
        host.stop()
        while process is not None and host.process is process:
            await asyncio.sleep(POLL_S)

    @asynccontextmanager
    async def broker_down(self, broker: int) -> AsyncIterator[None]:
        """Keep the broker down during the context, and wait until it serves afterwards."""
        self.down[broker] += 1
        try:
            yield
        finally:
            self.down[broker] -= 1
        await self.until_serving(broker)

    async def until_serving(self, broker: int) -> None:
        while not self.view.is_serving(broker):
            self.start(broker)
            await asyncio.sleep(POLL_S)

    def start(self, broker: int) -> None:
        """Start the broker unless a fault keeps it down."""
        host = self.cluster.brokers[broker]
        if not self.down[broker] and not host.is_up:
            self.note(f"broker {broker} is started")
            host.start()

    # --- controllers -----------------------------------------------------------------------------

    def controller(self, fault: Fault) -> SimulatedController:
        """Return the leader, or the controller with its number; another one if it has a fault."""
        hosts = self.cluster.controllers
        by_number = hosts[(fault.controller - 1) % len(hosts)]
        chosen = by_number if fault.controller else self.view.active_host
        free = [host for host in hosts if self.is_free(host)]
        return chosen if chosen in free else (free or hosts)[0]

    def is_free(self, host: SimulatedController) -> bool:
        """Return whether the controller has no fault now."""
        return host.name not in self._struck

    @contextmanager
    def reserved(self, host: SimulatedController) -> Iterator[None]:
        """Keep other faults away from a controller that has none, during the context."""
        self._struck.add(host.name)
        try:
            yield
        finally:
            self._struck.discard(host.name)

    @asynccontextmanager
    async def struck_controller(self, fault: Fault) -> AsyncIterator[SimulatedController]:
        """Reserve a controller for a fault. Afterwards it runs and has all committed entries."""
        host = self.controller(fault)
        if len(self.cluster.controllers) > 1:
            self.note(f"#{fault.number} strikes {host.name}")
        self._struck.add(host.name)
        try:
            yield host
            while len(self.cluster.controllers) > 1 and self.view.controller_not_whole(host):
                self.start_controller(host)
                await asyncio.sleep(POLL_S)
        finally:
            self._struck.discard(host.name)

    @asynccontextmanager
    async def controller_down(self, host: SimulatedController) -> AsyncIterator[None]:
        """Keep the controller down during the context."""
        self._controllers_down.add(host.name)
        try:
            yield
        finally:
            self._controllers_down.discard(host.name)
            self.start_controller(host)

    @asynccontextmanager
    async def without_controller(
        self, fault: Fault, *, has_power: bool = True
    ) -> AsyncIterator[None]:
        async with self.struck_controller(fault) as host, self.controller_down(host):
            await self._strike(host, host.kill if has_power else host.power_cut, fault)
            yield

    async def _strike(
        self, host: SimulatedController, strike: Callable[[], None], fault: Fault
    ) -> None:
        """Strike at once, or, with several controllers, often at a later disk operation."""
        rng = fault.rng()
        if len(self.cluster.controllers) > 1 and rng.random() < 0.6:
            host.at_operation(rng.randint(1, _LATEST_OPERATION), strike)
            for _ in range(round(_STRUCK_S / POLL_S)):
                if not host.is_up:
                    return
                await asyncio.sleep(POLL_S)
            host.spare()
        strike()

    def start_controller(self, host: SimulatedController) -> None:
        """Start the controller unless a fault keeps it down."""
        if not host.is_up and host.name not in self._controllers_down:
            host.start()

    # --- directories -----------------------------------------------------------------------------

    async def until_offline_or_end(self, fault: Fault) -> bool:
        """Wait until the broker took the directory offline or ended; False if it did neither."""
        path = self.path(fault)
        for _ in range(round(_NOTICED_S / POLL_S)):
            state = self.view.dir_state(fault.broker, path)
            if state in (None, LogDirState.OFFLINE):
                return True
            await asyncio.sleep(POLL_S)
        return False

    async def until_results_arrived(self, fault: Fault) -> None:
        """Wait until the broker has handled the results of the disk operations that ended.

        With a late event loop a failed operation takes the directory offline only then.
        """
        await asyncio.sleep(_RESULT_ITERATIONS * self.host(fault).iteration_us / 1e6)


async def wait(fault: Fault) -> None:
    """Wait for the duration of the fault."""
    await asyncio.sleep(fault.for_ms / 1000)
