"""WIRE. ``VirtualLoop``: the event loop of one simulated process, in virtual time.

Tasks, futures and timers are asyncio's own. Time and order come from the :class:`World`,
connections and listeners from the memory network. A dead loop runs no scheduled callback: this is
how a killed process ends.

The hash of a task or future is its number and not its address, so that sets of them have the same
order in each run.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, TypeVarTuple

from kraftjbod.testing.simulation.world import World

if TYPE_CHECKING:
    from concurrent.futures import Executor

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

ExceptionHandler = Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object]
ProtocolFactory = Callable[[], asyncio.BaseProtocol]


class Sockets(Protocol):
    """Source of a process's connections and listeners: the network as one process sees it."""

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]: ...

    def listen(
        self, factory: ProtocolFactory, host: str, port: int, *, start_serving: bool
    ) -> asyncio.AbstractServer: ...


class Thread(Protocol):
    """A thread of a simulated process, as the process's event loop uses it."""

    name: str
    is_busy: bool
    """The thread runs a job or has one in its queue."""

    def bury(self) -> None: ...


class VirtualTask(asyncio.Task[T]):
    """A task whose hash is its number and not its address, so that sets of tasks have the same
    order in each run."""

    def __init__(
        self, coro: Coroutine[Any, Any, T], loop: VirtualLoop, name: str, context: Context | None
    ) -> None:
        self.number = loop.next_number()
        super().__init__(coro, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self.number


class VirtualFuture(asyncio.Future[T]):
    """A future whose hash is its number and not its address, so that sets of futures have the same
    order in each run."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class VirtualHandle(asyncio.Handle):
    """A handle without debug support, which is created in a third of the time."""

    __slots__ = ()
    _source_traceback = None
    #: Whether the callback runs even if SIGSTOP paused the process.
    is_in_kernel = False

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[object, ...],
        loop: VirtualLoop,
        context: Context | None = None,
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._cancelled = False
        self._callback: Callable[..., object] | None = callback
        self._args = args
        self._repr = None


class KernelHandle(VirtualHandle):
    """The completion of a disk operation, which the kernel delivers even while the process is
    paused."""

    __slots__ = ()
    is_in_kernel = True


class VirtualTimer(VirtualHandle, asyncio.TimerHandle):
    """A timer with a fast ``cancel``: most waits cancel the timer of their limit."""

    __slots__ = ()
    _loop: VirtualLoop

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[object, ...],
        loop: VirtualLoop,
        context: Context | None = None,
    ) -> None:
        super().__init__(callback, args, loop, context)
        self._when = when
        self._scheduled = False

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._callback, self._args = None, ()
            self._loop.world.note_cancelled()


class DriftingClock:
    """A host's monotonic clock that goes faster or slower than the world's.

    It goes like the world's clock until :meth:`set_rate`, and never jumps.

    :param world_now_us: returns the microseconds since the world began.
    """

    def __init__(self, world_now_us: Callable[[], int]) -> None:
        self._world_now_us = world_now_us
        #: When the rate was set last, by the world's clock and by this one.
        self._since_us = 0
        self._own_us = 0.0
        self._rate = 1.0

    def set_rate(self, rate: float) -> None:
        """Let ``rate`` seconds pass per second of the world. Existing timers do not change."""
        assert rate > 0, rate
        self._own_us, self._since_us, self._rate = self.now_us(), self._world_now_us(), rate

    def now_us(self) -> float:
        return self._at(self._world_now_us())

    def world_us(self, own_us: float) -> int:
        """Return the earliest world time at which this clock shows at least ``own_us``."""
        at_us = self._since_us + math.ceil((own_us - self._own_us) / self._rate)
        while self._at(at_us) < own_us:
            at_us += 1
        return at_us

    def _at(self, world_us: int) -> float:
        return self._own_us + (world_us - self._since_us) * self._rate


class VirtualLoop(asyncio.AbstractEventLoop):
    """The event loop of a simulated process, which runs in the virtual time of ``world``.

    :param name: name of the process, for error messages.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_dead = False
        #: Handles that became ready since the process was paused; None if it is not paused.
        self.held: list[asyncio.Handle] | None = None
        self.sockets: Sockets | None = None
        #: Virtual time of one event loop iteration, including its threads.
        self.iteration_us = 0
        #: Virtual time per received byte, if iterations take time.
        self.us_per_byte = 0.0
        #: Virtual time per Python call of an iteration or a thread, if the world has a meter.
        self.us_per_call = 0.0
        #: When the last iteration began, and when it ends, by the world's clock.
        self.iteration_began_us = -1
        self.busy_until_us = 0
        #: The host's clock, once it differs from the world's.
        self.clock: DriftingClock | None = None
        #: Handlers of the process by signal number.
        self.signal_handlers: dict[int, Callable[[], object]] = {}
        #: Threads of this process in the order of their start.
        self.threads: dict[Thread, None] = {}
        #: Contexts of unhandled exceptions: each is a bug.
        self.complaints: list[dict[str, Any]] = []
        self._exception_handler: ExceptionHandler | None = None
        self._numbers = 0

    def __repr__(self) -> str:
        return f"<VirtualLoop {self.name}{' dead' if self.is_dead else ''}>"

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def spend_on(self, size_bytes: int) -> None:
        """Extend the current iteration by the cost of ``size_bytes`` received bytes."""
        self.spend_us(size_bytes * self.us_per_byte)

    def spend_us(self, us: float) -> None:
        """Extend the current iteration by ``us`` microseconds."""
        if us:
            self.busy_until_us = max(self.busy_until_us, self.world.now_us) + int(us)

    def pause_process(self) -> None:
        """Pause as by SIGSTOP: callbacks, timers and threads wait while time passes.

        Disk operations in flight complete.
        """
        if self.held is None:
            self.held = []

    def go_on(self) -> None:
        """Continue a paused process: callbacks that became ready during the pause run in their
        order."""
        held, self.held = self.held, None
        self.world.ready.extend(held or ())

    # --- time ------------------------------------------------------------------------------------

    def time(self) -> float:
        return self.world.now_us / 1e6 if self.clock is None else self.clock.now_us() / 1e6

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        handle = VirtualHandle(callback, args, self, context)
        if not self.is_dead:
            self.world.ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = VirtualTimer(when, callback, args, self, context)
        if not self.is_dead and self.clock is not None:
            self.world.push(self.clock.world_us(when * 1e6), timer)
        elif not self.is_dead:
            # Rounded up: an early callback would schedule the rest of its delay again and again.
            at_us = math.ceil(when * 1e6 - 1e-3)
            self.world.push(at_us if at_us / 1e6 >= when else at_us + 1, timer)
        return timer

    def call_after_us(
        self, delay_us: int, callback: Callable[[*Ts], object], *args: *Ts
    ) -> asyncio.Handle:
        """Schedule a callback after ``delay_us`` microseconds of the world's clock, regardless of
        the drift of the host's clock."""
        return self._push(delay_us, VirtualHandle(callback, args, self))

    def call_in_kernel(self, delay_us: int, callback: Callable[[], object]) -> None:
        """Schedule ``callback`` after ``delay_us`` virtual microseconds, at the end of a disk
        operation. It runs even while the process is paused."""
        self._push(delay_us, KernelHandle(callback, (), self))

    def _push(self, delay_us: int, handle: VirtualHandle) -> asyncio.Handle:
        if not self.is_dead:
            self.world.push(self.world.now_us + delay_us, handle)
        return handle

    def _timer_handle_cancelled(self, _timer: asyncio.TimerHandle) -> None:
        self.world.note_cancelled()

    # --- tasks and futures -----------------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        future: VirtualFuture[Any] = VirtualFuture(loop=self)
        future.number = self.next_number()
        return future

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
        **_: object,
    ) -> asyncio.Task[T]:
        assert isinstance(coro, Coroutine), coro
        if self.is_dead:
            coro.close()  # It never begins, and needs no warning about that.
        return VirtualTask(coro, self, str(name or f"Task-{self._numbers + 1}"), context)

    def close_agen(self, agen: AsyncGenerator[Any, Any]) -> None:
        """Schedule the closing of a generator that is no longer iterated."""
        self.call_soon(lambda: self.create_task(agen.aclose()))

    def run_in_executor(
        self,
        executor: Executor | None,
        func: Callable[[*Ts], T],
        *args: *Ts,
    ) -> asyncio.Future[T]:
        assert executor is not None, "there are no threads but those of executors handed in"
        return asyncio.wrap_future(executor.submit(func, *args), loop=self)

    # --- connections, signals --------------------------------------------------------------------

    async def create_connection(  # type: ignore[override] # so much of it as is used
        self, protocol_factory: ProtocolFactory, host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        assert self.sockets is not None, self
        return await self.sockets.connect(protocol_factory, host, port)

    async def create_server(  # type: ignore[override] # so much of it as is used
        self,
        protocol_factory: ProtocolFactory,
        host: str,
        port: int,
        *,
        backlog: int = 100,
        start_serving: bool = True,
    ) -> asyncio.AbstractServer:
        assert self.sockets is not None, self
        return self.sockets.listen(protocol_factory, host, port, start_serving=start_serving)

    def add_signal_handler(self, sig: int, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        self.signal_handlers[sig] = lambda: callback(*args)

    # --- the rest --------------------------------------------------------------------------------

    def is_running(self) -> bool:
        return self.world.running is self

    def is_closed(self) -> bool:
        return self.is_dead

    def get_debug(self) -> bool:
        return False

    def set_exception_handler(self, handler: ExceptionHandler | None) -> None:
        self._exception_handler = handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.complaints.append(context)
        self.world.trace.note(
            self.name, "bug", f"{context.get('message')} {context.get('exception')!r}"
        )

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.is_dead:
            return
        if self._exception_handler is None:
            self.default_exception_handler(context)
        else:
            self._exception_handler(self, context)


def virtual_loop(world: World, name: str) -> VirtualLoop:
    """Create the loop of the process ``name``. Functions of asyncio's loops that daemons do not
    use, such as pipes, raise NotImplementedError."""
    return VirtualLoop(world, name)  # type: ignore[abstract] # see above
