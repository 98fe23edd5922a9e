"""WIRE. ``SimulatedThread``: a thread of a process beside its loop.

It is a greenlet that runs until it waits, and virtual time passes while it waits. It waits
where a real thread would: for its queue, and for the disk (:func:`pause`, :class:`Gate`). So the
seed decides which callbacks and threads run between two file operations of one job, and
each run is the same. A thread of a dead process never runs again.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

try:
    from greenlet import GreenletExit, getcurrent, greenlet
except ModuleNotFoundError as e:
    raise ModuleNotFoundError(
        "the simulator needs the package greenlet: pip install 'kraftjbod[simulation]'", name=e.name
    ) from e

from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor
from kraftjbod.testing.simulation.virtual_loop import VirtualLoop

T = TypeVar("T")


class SimulatedThread:
    """A thread of a simulated process: a greenlet that runs ``work`` on ``loop``, that of the
    process.

    ``work`` begins with the next event loop iteration.
    """

    #: The thread that runs now; there is at most one.
    running: SimulatedThread | None = None

    def __init__(self, loop: VirtualLoop, work: Callable[[], None], name: str) -> None:
        self.loop = loop
        self.name = name
        self.is_busy = True
        self._greenlet = greenlet(work)
        self._hub: greenlet | None = None
        loop.threads[self] = None
        self.go_on()

    def __repr__(self) -> str:
        return f"<SimulatedThread {self.loop.name} {self.name}>"

    def go_on(self, after_us: int = 0) -> None:
        """Schedule that the thread continues after ``after_us`` virtual microseconds; 0 is the next
        event loop iteration."""
        if after_us:
            self.loop.call_after_us(after_us, self._switch)
        else:
            self.loop.call_soon(self._switch)

    def end_operation(self, after_us: int = 0) -> None:
        """Schedule that the thread continues after ``after_us`` virtual microseconds, when its disk
        operation ends. A pause of the process does not delay it."""
        self.loop.call_in_kernel(after_us, self._switch)

    def take_cost_us(self) -> int:
        """Return the virtual time, in microseconds, of the Python calls since the last wait, and
        count from 0 again; 0 if calls take no time."""
        meter = self.loop.world.meter
        return 0 if meter is None else int(meter.take() * self.loop.us_per_call)

    def wait(self) -> None:
        """Wait for :meth:`go_on`; called in the thread.

        :raises GreenletExit: its process is dead, and its resources are released.
        """
        assert self._hub is not None and SimulatedThread.running is self, self
        if not self.loop.is_dead:
            self._hub.switch()
        if self.loop.is_dead:
            raise GreenletExit

    def _switch(self) -> None:
        self._hub, SimulatedThread.running = getcurrent(), self
        # A thread that uses the event loop is a bug, also in production.
        events._set_running_loop(None)
        try:
            self._greenlet.switch()
        finally:
            SimulatedThread.running = None
            events._set_running_loop(self.loop)
        if self._greenlet.dead:
            self.loop.threads.pop(self, None)

    def bury(self) -> None:
        """End the thread by GreenletExit, to release its resources after the end of its process."""
        if self._greenlet and not self._greenlet.dead:
            self._hub, SimulatedThread.running = getcurrent(), self
            try:
                self._greenlet.throw(GreenletExit)
            finally:
                SimulatedThread.running = None


def pause(us: int) -> None:
    """Let ``us`` virtual microseconds pass in the running simulated thread, and the time of its
    Python calls. Return at once if no such thread runs."""
    thread = SimulatedThread.running
    if thread is not None:
        us += thread.take_cost_us()
        # A paused process begins no operation: its thread ended one, and came here without a wait.
        (thread.go_on if thread.loop.held is not None else thread.end_operation)(us)
        thread.wait()


def _carry_out_at_cost(op: Callable[[], T]) -> T:
    """Carry out a job of a thread, and let the time pass that it computed after its last wait."""
    result = op()
    thread = SimulatedThread.running
    if thread is not None and (cost_us := thread.take_cost_us()):
        pause(cost_us)
    return result


class Gate:
    """A gate before which threads wait while it is closed, for example for a hung disk."""

    def __init__(self) -> None:
        self.is_closed = False
        self._waiting: deque[SimulatedThread] = deque()

    def __repr__(self) -> str:
        return f"<Gate {'closed' if self.is_closed else 'open'} waiting={len(self._waiting)}>"

    def close(self) -> None:
        self.is_closed = True

    def open(self) -> None:
        """Resume the waiting threads in the order of their arrival."""
        self.is_closed = False
        while self._waiting:
            self._waiting.popleft().end_operation()

    def pass_through(self) -> None:
        """Wait in a simulated thread until the gate is open. Return at once on an event loop, which
        never waits for a disk."""
        thread = SimulatedThread.running
        while self.is_closed and thread is not None:
            self._waiting.append(thread)
            thread.wait()


class _Queue:
    """The jobs of one thread, as a replacement of ``SimpleQueue``."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiting: SimulatedThread | None = None

    def put(self, item: Any) -> None:
        self._items.append(item)
        thread, self._waiting = self._waiting, None
        if thread is not None:
            thread.is_busy = item is not None
            thread.go_on()

    def get(self) -> Any:
        thread = SimulatedThread.running
        assert thread is not None, "only the thread itself takes from its queue"
        while not self._items or thread.loop.is_dead:
            self._waiting = thread
            thread.is_busy = False
            thread.wait()
        item = self._items.popleft()
        thread.is_busy = item is not None
        if item is not None and thread.loop.us_per_call:
            item.op = partial(_carry_out_at_cost, item.op)
        return item


class SimulatedExecutor(LogDirExecutor):
    """A :class:`LogDirExecutor` with a simulated thread, for ``Environment.make_executor``."""

    def _start(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop), loop
        queue = _Queue()
        while not self._jobs.empty():
            queue.put(self._jobs.get())
        self._jobs = queue  # type: ignore[assignment] # as much of one as is used
        SimulatedThread(loop, self._work, self._name)
