"""LOOP. The requests of one connection: started in order, bounded, answered.

* Each request is a task, started in order of arrival.
  What a handler does before its first await therefore keeps the order of pipelined requests.
* Beyond a number of requests or bytes in flight, or while the peer does not take its answers,
  nothing more is started and nothing more is read.
* A request whose answer may be large waits until those before it are answered, and until the
  daemon has room for answers; a connection has one such answer at a time.
* With ``in_order`` answers leave in the order of the requests, as Kafka's clients expect;
  else as soon as they are there.
* When the connection goes, the tasks that still run are cancelled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from kraftjbod.core.errors import RemoteProtocolError
from kraftjbod.core.telemetry import get_logger
from kraftjbod.net.connection import Buffer, Connection
from kraftjbod.net.memory_budget import Ledger, MemoryBudget, MemoryLimits
from kraftjbod.protocol.framing import Frame

_log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """What one connection may have in flight; one request may always be."""

    max_in_flight_requests: int
    max_in_flight_bytes: int


class PendingRequest:
    """One request on its way; ``answer`` sets ``api`` as soon as it knows it, for telemetry."""

    __slots__ = ("answer", "api", "frame", "is_answered", "size_bytes")

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.size_bytes = len(frame)
        self.api = "?"
        self.is_answered = False
        self.answer: Sequence[Buffer] | None = None


MayBeLarge = Callable[[Frame], bool]
"""Whether the answer to a request may be much larger than the request."""


def _never(_frame: Frame) -> bool:
    return False


Answer = Callable[[PendingRequest], Awaitable[Sequence[Buffer] | None]]


class RequestSession:
    """The receiver of a server's connection.

    ``answer`` turns a request into the buffers of its response, or None if none is due.
    It raises :class:`RemoteProtocolError` if the peer is at fault.
    Anything else that it raises is a bug: it is reported, and the connection closed.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        answer: Answer,
        in_order: bool,
        limits: SessionLimits,
        memory: MemoryBudget | None = None,
        may_be_large: MayBeLarge = _never,
    ) -> None:
        """:param memory: of the daemon; without one this connection's limits are all."""
        self._connection = connection
        self._answer = answer
        self._in_order = in_order
        self._limits = limits
        memory = memory or MemoryBudget(MemoryLimits())
        self._requests = memory.requests
        self._answers = memory.answers
        self._may_be_large = may_be_large
        #: Held while a request with a large answer is at work, where answers are not in order.
        self._large_turn = asyncio.Lock()
        self._writable = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        #: Started and not yet written; in order of arrival.
        self._pending: deque[PendingRequest] = deque()
        self._in_flight = 0
        self._in_flight_bytes = 0
        #: Not started for lack of room. Not more than one read brings, as reading is paused then.
        self._backlog: deque[Frame] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_finishing = False
        self._is_gone = False

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def frame_received(self, frame: Frame) -> None:
        if not self._backlog and self._may_start(frame):
            self._start(frame)
        else:
            self._hold_back(frame)

    def writing_resumed(self) -> None:
        self._writable.set()
        self._start_backlog()

    def room_again(self) -> None:
        """The daemon has memory for what had to wait."""
        self._writable.set()
        self._start_backlog()

    def connection_closed(self, reason: str) -> None:
        self._is_gone = True
        self._drop_backlog()
        self._requests.give(self._in_flight_bytes)
        for ledger in (self._requests, self._answers):
            ledger.forget(self)
        for task in self._tasks:
            task.cancel()

    def finish(self, reason: str) -> None:
        """Answer what was started, start nothing more, then close."""
        self._is_finishing = True
        self._drop_backlog()
        self._connection.pause_reading()
        if self._in_flight == 0:
            self._connection.close(reason)

    def _has_room(self) -> bool:
        return (
            self._in_flight < self._limits.max_in_flight_requests
            and self._in_flight_bytes < self._limits.max_in_flight_bytes
            and not self._connection.is_write_paused
            and not self._is_finishing
            and self._has_memory(self._requests)
        )

    def _may_start(self, frame: Frame) -> bool:
        if self._in_order and self._may_be_large(frame):
            return self._in_flight == 0 and self._has_room() and self._has_memory(self._answers)
        return self._has_room()

    def _has_memory(self, ledger: Ledger) -> bool:
        return ledger.used_bytes < ledger.max_bytes or self._connection.is_privileged

    def _hold_back(self, frame: Frame) -> None:
        self._backlog.append(frame)
        self._requests.take(len(frame))
        self._connection.pause_reading()
        self._wait_for_memory()

    def _wait_for_memory(self) -> None:
        for ledger in (self._requests, self._answers):
            if not self._has_memory(ledger):
                ledger.wait_for_room(self)

    def _drop_backlog(self) -> None:
        while self._backlog:
            self._requests.give(len(self._backlog.popleft()))

    def _start(self, frame: Frame) -> None:
        request = PendingRequest(frame)
        self._in_flight += 1
        self._in_flight_bytes += request.size_bytes
        self._requests.used_bytes += request.size_bytes
        if self._in_order:
            self._pending.append(request)
        task = self._loop.create_task(self._run(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _start_backlog(self) -> None:
        while self._backlog and self._may_start(self._backlog[0]):
            frame = self._backlog.popleft()
            self._requests.give(len(frame))
            self._start(frame)
        if not self._backlog and self._has_room():
            self._connection.resume_reading()
        elif not self._is_finishing:
            self._wait_for_memory()

    async def _run(self, request: PendingRequest) -> None:
        try:
            if not self._in_order and self._may_be_large(request.frame):
                await self._answer_in_turn(request)
            else:
                request.answer = await self._answer(request)
        except RemoteProtocolError as e:
            self._connection.refuse(e)
        except Exception as e:
            _log.error(
                "request_handler_failed", api=request.api, peer=self._connection.peer, exc_info=e
            )
            self._connection.abort(f"the handler of {request.api} failed")
        else:
            self._settle(request)

    def _settle(self, request: PendingRequest) -> None:
        request.is_answered = True
        if self._in_order:
            while self._pending and self._pending[0].is_answered:
                self._write(self._pending.popleft())
        else:
            self._write(request)
        if self._is_finishing and self._in_flight == 0:
            self._connection.close("finished")
        elif self._backlog or self._connection.is_reading_paused:
            self._start_backlog()

    def _write(self, request: PendingRequest) -> None:
        if self._is_gone:
            return
        self._in_flight -= 1
        self._in_flight_bytes -= request.size_bytes
        self._requests.give(request.size_bytes)
        if request.answer is not None:
            self._connection.write(request.answer)

    async def _answer_in_turn(self, request: PendingRequest) -> None:
        """One large answer after the other, each when the one before it was taken, and when the
        daemon has room."""
        async with self._large_turn:
            while self._connection.is_write_paused or not self._has_memory(self._answers):
                self._writable.clear()
                self._wait_for_memory()
                await self._writable.wait()
            request.answer = await self._answer(request)
