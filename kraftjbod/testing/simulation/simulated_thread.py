"""WIRE. ``SimulatedThread``: what a process runs beside its loop, one thing at a time.

A greenlet, not a thread: it runs until it waits, and while it waits virtual time goes on. It waits
where a real one would: for its queue, and for the disk (:func:`pause`, :class:`Gate`). What happens
between two file operations of one job, on the loop or in other threads, is so the seed's choice,
the same in each run. A thread of a process that died never runs again.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable
from typing import Any

try:
    from greenlet import GreenletExit, getcurrent, greenlet
except ModuleNotFoundError as e:
    raise ModuleNotFoundError(
        "the simulator needs the package greenlet: pip install 'kraftjbod[simulation]'", name=e.name
    ) from e

from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor
from kraftjbod.testing.simulation.virtual_loop import VirtualLoop


class SimulatedThread:
    """``work`` begins with the next turn of the loop; ``loop`` is the one of its process."""

    #: The one that runs now; there is at most one.
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
        """Let it run on, from where it waits."""
        if after_us:
            self.loop.call_after_us(after_us, self._switch)
        else:
            self.loop.call_soon(self._switch)

    def wait(self) -> None:
        """In the thread: wait for :meth:`go_on`.

        :raises GreenletExit: its process is dead, and it is being buried.
        """
        assert self._hub is not None and SimulatedThread.running is self, self
        if not self.loop.is_dead:
            self._hub.switch()
        if self.loop.is_dead:
            raise GreenletExit

    def _switch(self) -> None:
        self._hub, SimulatedThread.running = getcurrent(), self
        # What asks for the loop in a thread is a bug, here as there.
        events._set_running_loop(None)
        try:
            self._greenlet.switch()
        finally:
            SimulatedThread.running = None
            events._set_running_loop(self.loop)
        if self._greenlet.dead:
            self.loop.threads.pop(self, None)

    def bury(self) -> None:
        """After the end of its process: give up what it holds."""
        if self._greenlet and not self._greenlet.dead:
            self._hub, SimulatedThread.running = getcurrent(), self
            try:
                self._greenlet.throw(GreenletExit)
            finally:
                SimulatedThread.running = None


def pause(us: int) -> None:
    """Let ``us`` microseconds pass, if this is a simulated thread; nothing waits on a loop."""
    thread = SimulatedThread.running
    if thread is not None:
        thread.go_on(us)
        thread.wait()


class Gate:
    """What threads wait before while it is closed: a disk that hangs, for instance."""

    def __init__(self) -> None:
        self.is_closed = False
        self._waiting: deque[SimulatedThread] = deque()

    def __repr__(self) -> str:
        return f"<Gate {'closed' if self.is_closed else 'open'} waiting={len(self._waiting)}>"

    def close(self) -> None:
        self.is_closed = True

    def open(self) -> None:
        """Those that wait go on, in the order in which they came."""
        self.is_closed = False
        while self._waiting:
            self._waiting.popleft().go_on()

    def pass_through(self) -> None:
        """Return when it is open. On a loop it is: what runs there never waits for a disk."""
        thread = SimulatedThread.running
        while self.is_closed and thread is not None:
            self._waiting.append(thread)
            thread.wait()


class _Queue:
    """The jobs of one thread, in the place of a ``SimpleQueue``."""

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
        return item


class SimulatedExecutor(LogDirExecutor):
    """A :class:`LogDirExecutor` with a simulated thread; by ``Environment.make_executor``."""

    def _start(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop), loop
        queue = _Queue()
        while not self._jobs.empty():
            queue.put(self._jobs.get())
        self._jobs = queue  # type: ignore[assignment] # as much of one as is used
        SimulatedThread(loop, self._work, self._name)
