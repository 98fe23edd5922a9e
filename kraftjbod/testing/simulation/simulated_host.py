"""WIRE. ``SimulatedHost``: a machine with disks, and one process on it at a time.

* :meth:`SimulatedHost.kill` ends the process at once without cleanup. Its connections close, and
  the disks keep all written data.
* :meth:`SimulatedHost.power_cut` switches the machine off: peers are not notified, and disks lose
  unsynced data.
* :meth:`SimulatedHost.stop` is SIGTERM, and :meth:`SimulatedHost.pause_process` SIGSTOP.

A process gets its :class:`~kraftjbod.daemon.process.environment.Environment` from here: clock,
randomness, disks and threads. The wall clock can be set (:attr:`SimulatedHost.wall_offset_ms`).
The monotonic clock never jumps, but may go faster or slower than the world's
(:meth:`SimulatedHost.drift`).
"""

from __future__ import annotations

import asyncio
import inspect
import signal
from asyncio import events
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from kraftjbod.core.config import BrokerConfig, ControllerConfig
from kraftjbod.core.loop.wall_guard import PossibleNow, WallGuard
from kraftjbod.core.metadata_version import SUPPORTED_FEATURES
from kraftjbod.core.peer_warnings import PeerWarnings
from kraftjbod.core.telemetry import Metrics
from kraftjbod.daemon.process.environment import Environment
from kraftjbod.daemon.process.service_manager import ServiceManager
from kraftjbod.daemon.runner import Daemon, DaemonLife
from kraftjbod.testing.faults import ProcessFault
from kraftjbod.testing.simulation.memory_file import MemFile
from kraftjbod.testing.simulation.memory_network import MemoryNetwork
from kraftjbod.testing.simulation.simulated_disk import ProcessVfs, SimulatedDisk
from kraftjbod.testing.simulation.simulated_thread import SimulatedExecutor
from kraftjbod.testing.simulation.virtual_loop import DriftingClock, virtual_loop
from kraftjbod.testing.simulation.world import World

#: The faults of hosts, their processes and their network.
FAULTS: Final = tuple(ProcessFault)
#: Wall clock time at which every world begins: 2026-01-01 UTC.
WORLD_BEGAN_MS: Final = 1_767_225_600_000
#: Limit of close attempts for a coroutine that awaits again while it is closed.
_LAST_RITES: Final = 20
_MAX_OPEN_FILES: Final = 1_048_576


class HostClock:
    """The clock of a process: the host's monotonic clock, which may drift, and its wall clock,
    which may have an error. A :class:`~kraftjbod.core.loop.timing.Clock`."""

    def __init__(self, host: SimulatedHost) -> None:
        self._host = host
        self._guard = WallGuard()
        self.possible_now()

    def now_ms(self) -> int:
        clock = self._host.clock
        return (self._host.world.now_us if clock is None else int(clock.now_us())) // 1000

    def wall_ms(self) -> int:
        return WORLD_BEGAN_MS + self.now_ms() + self._host.wall_offset_ms

    def possible_now(self) -> PossibleNow:
        return self._guard.sample(self.now_ms(), self.wall_ms())


class SimulatedProcess:
    """A process of a host, with its own event loop, threads and open files.

    ``exit_code`` is the result of the main coroutine. It is None while that runs, after a kill, and
    if it raised ``error``.
    """

    def __init__(self, host: SimulatedHost, name: str) -> None:
        self.name = name
        self.loop = virtual_loop(host.world, name)
        self.loop.clock = host.clock
        self.loop.iteration_us = host.iteration_us
        self.loop.us_per_byte = host.us_per_byte
        self.loop.us_per_call = host.us_per_call
        self.loop.sockets = host.network.sockets_of(host.place, self.loop)
        self._host = host
        #: Number of files that it may still open; None: unlimited.
        self.spare_descriptors: int | None = None
        self._vfs: list[ProcessVfs] = []
        self._tasks: list[asyncio.Task[Any]] = []
        #: Referenced here, because a loop does not keep its tasks alive.
        self._main: asyncio.Task[int | None] | None = None
        #: Result of the main coroutine once it has returned.
        self.exit_code: int | None = None
        #: Paths of files that were open at its end.
        self.left_open: list[str] = []
        #: Exception of the main coroutine, which is a bug.
        self.error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<SimulatedProcess {self.name}>"

    @property
    def is_alive(self) -> bool:
        return not self.loop.is_dead

    @property
    def thread_names(self) -> list[str]:
        """Return the names of the threads that have not ended."""
        return [thread.name for thread in self.loop.threads]

    @property
    def tasks(self) -> list[str]:
        """Return a description of each task that has not ended."""
        tasks = self._tasks if self.loop.is_dead else asyncio.all_tasks(self.loop)
        return [getattr(task.get_coro(), "__qualname__", "") for task in tasks]

    @property
    def open_files(self) -> list[tuple[str, MemFile]]:
        """Return the open files, each with the path by which it was opened, without locks."""
        return [opened for vfs in self._vfs for opened in vfs.open_files]

    def begin_main(self, main: Coroutine[Any, Any, int | None]) -> None:
        self._main = self.loop.create_task(main, name="main")
        self._main.add_done_callback(self._ended)

    def make_vfs(self) -> ProcessVfs:
        """Return a new view of the host's disks, usable until this process ends."""
        vfs = ProcessVfs(self._host.disks, may_open=self._take_descriptor)
        self._vfs.append(vfs)
        return vfs

    def _take_descriptor(self) -> bool:
        """Return whether a descriptor is left for one more file."""
        spare = self.spare_descriptors
        if spare is None:
            return True
        self.spare_descriptors = max(0, spare - 1)
        return spare > 0

    def _ended(self, main: asyncio.Task[int | None]) -> None:
        if not main.cancelled():
            self.error = main.exception()
            self.exit_code = None if self.error is not None else main.result()
        self._host.process_ended(self)

    def end(self) -> None:
        """End the process at once: none of its callbacks and threads runs again, and its files are
        closed."""
        self._tasks = sorted(asyncio.all_tasks(self.loop), key=hash)
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined] # as asyncio does it
        self.loop.is_dead = True
        # A stopping daemon does not wait for a slow disk, so files of unfinished jobs are no leak.
        is_busy = any(thread.is_busy for thread in self.loop.threads)
        self.left_open = [] if is_busy else [path for path, _ in self.open_files]
        for vfs in self._vfs:
            vfs.detach()

    def bury(self) -> None:
        """Release the resources of the ended process: run the ``finally`` blocks of its tasks and
        threads. Exceptions of tasks are discarded."""
        outside = events._get_running_loop()
        events._set_running_loop(self.loop)  # A stopped loop: tasks created in it never run.
        try:
            for thread in list(self.loop.threads):
                thread.bury()
            for task in self._tasks:
                _close(task)
        finally:
            events._set_running_loop(outside)


def _close(task: asyncio.Task[Any]) -> None:
    """Run the ``finally`` blocks of the task, and discard its exceptions.

    Of a task that never began, the coroutines among its arguments are closed as well.
    """
    coroutine = task.get_coro()
    if inspect.iscoroutine(coroutine):
        has_begun = inspect.getcoroutinestate(coroutine) != inspect.CORO_CREATED
        arguments = {} if has_begun else inspect.getcoroutinelocals(coroutine)
        for argument in filter(inspect.iscoroutine, arguments.values()):
            argument.close()
    for _ in range(_LAST_RITES):
        try:
            coroutine.close()
        except BaseException:  # noqa: S112 - exceptions of a dead process do not matter
            continue
        return


class Life(Protocol):
    """The main coroutine function of a host's processes, which runs a daemon or a client. Its
    result is the exit code, or None."""

    def __call__(self, process: SimulatedProcess) -> Coroutine[Any, Any, int | None]: ...


class SimulatedHost:
    """A host with disks and a place in the network, which runs one process at a time.

    :param life: the main coroutine function of the processes.
    """

    def __init__(self, world: World, network: MemoryNetwork, name: str, life: Life) -> None:
        self.world = world
        self.network = network
        self.name = name
        self.place = network.add(name)
        #: Disks by mount point.
        self.disks: dict[str, SimulatedDisk] = {}
        self.process: SimulatedProcess | None = None
        #: Error of its wall clock.
        self.wall_offset_ms = 0
        #: Its monotonic clock, once it has drifted.
        self.clock: DriftingClock | None = None
        #: Ended processes, the newest last.
        self.past: list[SimulatedProcess] = []
        #: Virtual time of one event loop iteration of its processes; 0: computing takes no time.
        self.iteration_us = 0
        #: Virtual time per received byte, if iterations take time.
        self.us_per_byte = 0.0
        #: Virtual time per Python call, if iterations take time and the world has a meter.
        self.us_per_call = 0.0
        #: Feature levels that its software supports from its next start on.
        self.features: dict[str, tuple[int, int]] = SUPPORTED_FEATURES
        self._life = life
        #: Operations until ``_strike`` is called; 0 if none is planned.
        self._operations_left = 0
        self._strike: Callable[[], None] = self.kill
        self._rng = world.rng_of(f"host {name}")

    def __repr__(self) -> str:
        return f"<SimulatedHost {self.name} {'up' if self.is_up else 'down'}>"

    @property
    def is_up(self) -> bool:
        """Whether a process runs on the host."""
        return self.process is not None

    @property
    def exit_code(self) -> int | None:
        """Exit code of the newest ended process; None without one, or if it was killed or raised an
        error.
        """
        return self.past[-1].exit_code if self.past else None

    def add_disk(self, path: str, number: int) -> SimulatedDisk:
        disk = self.disks[path] = SimulatedDisk(self.world, self.name, path, number)
        disk.on_operation = self._count_operation
        return disk

    def at_operation(self, number: int, strike: Callable[[], None]) -> None:
        """Call ``strike`` in place of a coming file operation. A later call replaces this one.

        :param number: 1 for the next operation on any disk of the host, 2 for the second, and so
            on.
        :param strike: :meth:`kill` or :meth:`power_cut`; the operation then has no effect.
        """
        assert number > 0, number
        self._operations_left, self._strike = number, strike

    def spare(self) -> None:
        """Cancel the call that :meth:`at_operation` planned, if it is still to come."""
        self._operations_left = 0

    def _count_operation(self) -> None:
        if self._operations_left > 0:
            self._operations_left -= 1
            if self._operations_left == 0:
                self._strike()

    def drift(self, rate: float) -> None:
        """Let its monotonic clock go ``rate`` times as fast as the world's from now on."""
        self._say(f"drift {rate:.3f}")
        if self.clock is None:
            self.clock = DriftingClock(lambda: self.world.now_us)
        self.clock.set_rate(rate)
        if self.process is not None:
            self.process.loop.clock = self.clock

    def compute_slowly(self, iteration_us: int) -> None:
        """Let each event loop iteration take ``iteration_us`` from now on, as on a busy machine."""
        self._say(f"iterations take {iteration_us} us")
        self.iteration_us = iteration_us
        if self.process is not None:
            self.process.loop.iteration_us = iteration_us

    def start(self) -> None:
        """Start the host's process, which must not run, and switch the power on if it is off."""
        assert self.process is None, f"{self.name} is up"
        self._say("start")
        if not self.place.is_powered:
            self.network.set_power(self.place, is_on=True)
        process = self.process = SimulatedProcess(self, self.name)
        process.begin_main(self._life(process))

    def stop(self) -> None:
        """Send SIGTERM: a daemon stops in order, and at the second signal at once. A process
        without a handler ends at once. No effect if no process runs."""
        if self.process is not None:
            self._say("stop")
            # At a second signal the daemon's handler calls os._exit, which would end the test.
            handler = self.process.loop.signal_handlers.pop(signal.SIGTERM, None)
            if handler is None:
                self._end(says_so=True)  # So does one that knows nothing of signals.
            else:
                self.process.loop.call_soon(handler)

    def kill(self) -> None:
        """End the process, if one runs, as by SIGKILL."""
        if self.process is not None:
            self._say("kill")
            self._end(says_so=True)

    def power_cut(self) -> None:
        """Cut the host's power: its process ends, peers are not notified, and its disks may lose
        unsynced data. :meth:`start` switches the power on again."""
        self._say("power cut")
        if self.process is not None:
            self._end(says_so=False)
        self.network.set_power(self.place, is_on=False)
        for disk in self.disks.values():
            disk.power_cut()

    def pause_process(self) -> Callable[[], None]:
        """Pause the process as by SIGSTOP. Its connections stay open.

        Disk operations in flight take effect. The process sees their results once it continues.

        :return: a function that continues this process as by SIGCONT.
        """
        self._say("pause")
        if self.process is None:
            return lambda: None
        loop = self.process.loop
        loop.pause_process()
        return loop.go_on

    def process_ended(self, process: SimulatedProcess) -> None:
        """Handle the normal end of the process. No effect if another process replaced it."""
        if self.process is process:
            self._say(f"ended {process.exit_code}")
            if process.error is not None:
                self.world.trace.note(self.name, "bug", repr(process.error))
            self._end(says_so=True)

    def _end(self, *, says_so: bool) -> None:
        process, self.process = self.process, None
        assert process is not None
        process.end()
        self.past.append(process)
        self.network.end_process(process.loop, says_so=says_so)
        for path, disk in self.disks.items():
            disk.vfs.let_go(path)

    def environment(self, process: SimulatedProcess) -> Environment:
        """Return the environment of a daemon in ``process``: the host's clock, random generator,
        disks and simulated threads."""
        return Environment(
            clock=HostClock(self),
            random_bytes=self._rng.randbytes,
            rng=self._rng,
            metrics=Metrics(),
            # All processes of the simulation share one telemetry level.
            set_telemetry_level=lambda _: None,
            make_vfs=process.make_vfs,
            make_executor=SimulatedExecutor,
            max_open_files=_MAX_OPEN_FILES,
            features=self.features,
        )

    def _say(self, what: str) -> None:
        self.world.trace.note(self.name, "host", what)


async def live(
    host: SimulatedHost,
    name: str,
    daemon: Daemon,
    config: BrokerConfig | ControllerConfig,
    environment: Environment,
) -> int:
    """Run a daemon as ``run_daemon`` does, and return its exit code."""
    loop = asyncio.get_running_loop()
    life = DaemonLife(
        name,
        daemon,
        config,
        environment.metrics,
        ServiceManager(None, None),
        PeerWarnings(loop.time),
        say=lambda line: host.world.trace.note(host.name, "says", line.rstrip()),
    )
    return await life.live()
