"""WIRE. ``World``: virtual time, and the order of all callbacks.

One thread, no sleep, no real clock. Every future action is a handle of a
:class:`~kraftjbod.testing.simulation.virtual_loop.VirtualLoop`, of which each process has its own:

* ready handles run in the order in which they became ready;
* when no handle is ready, time jumps to the next handle that is due, of any process;
* handles that are due at the same microsecond run in the order of their creation;
* computing takes time if a loop has a cost (``iteration_us``): all handles of a process that are
  ready at one instant are one iteration of its event loop, and handles that become ready meanwhile
  wait for its end. With a :class:`~kraftjbod.testing.simulation.call_meter.CallMeter` an iteration
  also takes the time of its Python calls (``us_per_call``).

Randomness comes only from the seed. Each user has a separate, named generator
(:meth:`World.rng_of`), so that its draws do not change those of other users.
"""

from __future__ import annotations

import asyncio
import gc
import random
from asyncio import events
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager, nullcontext
from heapq import heapify, heappop, heappush
from itertools import count
from sys import get_asyncgen_hooks, set_asyncgen_hooks
from typing import Any, Final, Protocol

from kraftjbod.core import buggify
from kraftjbod.core.errors import KraftJbodError
from kraftjbod.testing.simulation.call_meter import CallMeter
from kraftjbod.testing.simulation.trace import Trace

#: Number of callbacks at one instant that counts as an endless loop.
MAX_CALLBACKS_AT_ONCE: Final = 200_000
#: Number of callbacks between garbage collections. Collecting at no other time makes runs
#: reproducible.
_CALLBACKS_PER_COLLECTION: Final = 200_000
#: Cancelled timers are removed from the heap when they exceed this number and half of the heap.
_MANY_CANCELLED: Final = 1_000

_Entry = tuple[int, int, asyncio.Handle]


class ProcessLoop(Protocol):
    """The attributes and methods of a
    :class:`~kraftjbod.testing.simulation.virtual_loop.VirtualLoop` that the world uses.
    """

    name: str
    is_dead: bool
    held: list[asyncio.Handle] | None
    iteration_us: int
    iteration_began_us: int
    busy_until_us: int
    us_per_call: float

    def spend_us(self, us: float) -> None: ...

    def close_agen(self, agen: AsyncGenerator[Any, Any]) -> None: ...


class EndlessLoopError(KraftJbodError):
    """Virtual time does not advance, because callbacks schedule each other endlessly."""


class World:
    """The virtual time and the scheduler of a simulation, which all its hosts share.

    :param seed: seed of all random choices.
    :param trace: receives the lines; by default a new trace.
    """

    def __init__(self, seed: int, trace: Trace | None = None) -> None:
        self.seed = seed
        self.trace = trace or Trace()
        self.trace.now_us = lambda: self.now_us
        #: Microseconds since the world began.
        self.now_us = 0
        #: The active fault points of the daemons (core/buggify.py); None: none.
        self.points: buggify.Points | None = None
        #: Counts the calls of loops with a cost per call; None: no loop has one.
        self.meter: CallMeter | None = None
        #: Number of callbacks that ran.
        self.callbacks = 0
        self.ready: deque[asyncio.Handle] = deque()
        self._due: list[_Entry] = []
        self._cancelled = 0
        self._sequence = count()
        #: The process whose callback or thread runs now.
        self.running: ProcessLoop | None = None
        self._agens: dict[int, ProcessLoop] = {}
        #: Count of callbacks at which time must have advanced.
        self._most_callbacks = MAX_CALLBACKS_AT_ONCE

    def __repr__(self) -> str:
        return f"<World seed={self.seed} at {self.now_us / 1e6:.3f} s>"

    def rng_of(self, name: str) -> random.Random:
        """Return a separate generator for ``name``; the same for the same seed and name."""
        return random.Random(f"{self.seed}/{name}")

    def push(self, at_us: int, handle: asyncio.Handle) -> None:
        """Schedule ``handle`` for ``at_us``, in microseconds since the world began, or for now if
        that time has passed."""
        now_us = self.now_us
        heappush(self._due, (at_us if at_us > now_us else now_us, next(self._sequence), handle))

    def note_cancelled(self) -> None:
        """Count a cancelled timer that is still in the heap; remove all of them if there are
        many."""
        self._cancelled += 1
        if self._cancelled > _MANY_CANCELLED and self._cancelled > len(self._due) // 2:
            self._due = [entry for entry in self._due if not entry[2].cancelled()]
            heapify(self._due)
            self._cancelled = 0

    def run_until(self, until_us: int, stop: asyncio.Future[Any] | None = None) -> None:
        """Run everything that is due by the simulated time ``until_us``, or until ``stop`` is done.

        The clock is at ``until_us`` afterwards, unless ``stop`` ended the run.

        :raises EndlessLoopError: time does not advance.
        """
        with self._running():
            while True:
                self._run_ready(stop)
                if stop is not None and stop.done():
                    return
                due = self._due
                while due and due[0][2]._cancelled:
                    heappop(due)
                if not due or due[0][0] > until_us:
                    self.now_us = max(self.now_us, until_us)
                    return
                self._advance_to(due[0][0])

    def _advance_to(self, now_us: int) -> None:
        if now_us > self.now_us:
            self._most_callbacks = self.callbacks + MAX_CALLBACKS_AT_ONCE
        self.now_us = now_us
        self.trace.step(now_us, self.callbacks)
        due = self._due
        while due and due[0][0] <= now_us:
            self.ready.append(heappop(due)[2])

    def _run_ready(self, stop: asyncio.Future[Any] | None) -> None:
        # Keep the loop of the last handle, because entering a loop costs a call.
        ready, current, meter = self.ready, self.running, self.meter
        take, enter = ready.popleft, events._set_running_loop
        handle: Any  # Any: asyncio.Handle does not declare ``_loop``, here a ProcessLoop.
        while ready:
            handle = take()
            loop = handle._loop
            if handle._cancelled or loop.is_dead:
                continue
            if loop.held is not None and not handle.is_in_kernel:
                loop.held.append(handle)
                continue
            if loop.iteration_us and self._has_to_wait(loop, handle):
                continue
            if loop is not current:
                current = self.running = loop
                enter(loop)
            try:
                handle._context.run(handle._callback, *handle._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as e:
                loop.call_exception_handler(
                    {"message": f"Exception in {handle!r}", "exception": e, "handle": handle}
                )
            if meter is not None:
                loop.spend_us(meter.take() * loop.us_per_call)
            self.callbacks += 1
            if self.callbacks % _CALLBACKS_PER_COLLECTION == 0:
                gc.collect()
            if self.callbacks > self._most_callbacks:
                raise EndlessLoopError(f"{handle!r} and others keep {loop!r} busy for ever")
            if stop is not None and stop.done():
                break

    def _has_to_wait(self, loop: ProcessLoop, handle: asyncio.Handle) -> bool:
        """Return whether ``loop`` computes still; ``handle`` then runs in the next iteration."""
        if loop.iteration_began_us == self.now_us:
            return False
        if loop.busy_until_us > self.now_us:
            self.push(loop.busy_until_us, handle)
            return True
        loop.iteration_began_us = self.now_us
        loop.busy_until_us = self.now_us + loop.iteration_us
        return False

    @contextmanager
    def _running(self) -> Iterator[None]:
        outside, hooks, collects = events._get_running_loop(), get_asyncgen_hooks(), gc.isenabled()
        set_asyncgen_hooks(firstiter=self._note_agen, finalizer=self._close_agen)
        points = buggify.use(self.points)
        gc.disable()
        try:
            with nullcontext() if self.meter is None else self.meter.counting():
                yield
        finally:
            buggify.use(points)
            if collects:
                gc.enable()
            set_asyncgen_hooks(*hooks)
            self.running = None
            events._set_running_loop(outside)

    def _note_agen(self, agen: AsyncGenerator[Any, Any]) -> None:
        if self.running is not None:
            self._agens[id(agen)] = self.running

    def _close_agen(self, agen: AsyncGenerator[Any, Any]) -> None:
        """Close an unfinished generator on its loop, as asyncio does."""
        loop = self._agens.pop(id(agen), None)
        if loop is not None and not loop.is_dead:
            loop.close_agen(agen)
