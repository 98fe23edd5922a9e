"""LOOP. The requests of one connection: started in order, bounded, answered.

* Requests start in order of arrival, so code of a handler before its first await keeps the order
  of pipelined requests. A handler may return a :class:`Completion`; its response is written in the
  event loop iteration that completes it. Other handlers run as tasks.
* When too many requests or bytes are in flight, or the peer does not read its responses, no request
  is started and nothing is read.
* A request whose response may be large waits until earlier requests are answered and the daemon
  has memory for responses. A connection has one such response at a time.
* A handler that raises :class:`UnansweredError` has no response: the connection closes after the
  responses to earlier requests.
* With ``in_order`` responses leave in the order of the requests, as Kafka's clients expect.
  Otherwise each leaves when it is ready.
* When the connection closes, running tasks are cancelled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from kraftjbod.core import buggify
from kraftjbod.core.errors import RemoteProtocolError, UnansweredError
from kraftjbod.core.loop.completion import Completion
from kraftjbod.core.telemetry import get_logger
from kraftjbod.net.connection import Connection
from kraftjbod.net.memory_budget import Ledger, MemoryBudget, MemoryLimits
from kraftjbod.protocol.framing import Buffer, Frame

_log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """Limits of the requests in flight on one connection. One request is always allowed, even if it
    exceeds ``max_in_flight_bytes``.
    """

    max_in_flight_requests: int
    max_in_flight_bytes: int


class PendingRequest:
    """A request that was received and is not answered yet.

    The ``answer`` function of the session sets ``api``, the name for telemetry. It may also set
    ``encode``, which converts the function's result to buffers.
    """

    __slots__ = ("answer", "api", "close_reason", "encode", "frame", "is_answered", "size_bytes")

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.size_bytes = len(frame)
        self.api = "?"
        self.encode: Callable[[Any], Sequence[Buffer] | None] = as_it_is
        self.is_answered = False
        self.answer: Sequence[Buffer] | None = None
        #: Why the connection is closed instead of a response.
        self.close_reason: str | None = None


MayBeLarge = Callable[[Frame], bool]
"""Whether the response to a request can be much larger than the request."""


def never(_frame: Frame) -> bool:
    """Return False, for listeners all of whose responses are small."""
    return False


def as_it_is(answer: Sequence[Buffer] | None) -> Sequence[Buffer] | None:
    return answer


Answer = Callable[[PendingRequest], Awaitable[Any]]
"""Returns a :class:`Completion` if it needs no task, else a coroutine."""


class RequestSession:
    """Receiver of a server's connection: starts its requests and sends the responses.

    ``answer`` returns the buffers of the response to a request, or None if there is no response. It
    raises :class:`RemoteProtocolError` if the request is invalid, and :class:`UnansweredError` if
    the connection is to be closed without a response. Any other exception is a bug: it is logged
    and the connection is aborted.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        answer: Answer,
        in_order: bool,
        limits: SessionLimits,
        memory: MemoryBudget | None = None,
        may_be_large: MayBeLarge = never,
        on_closed: Callable[[], None] | None = None,
    ) -> None:
        """
        :param memory: budget of the daemon; without one only this connection's limits apply.
        :param on_closed: called once, when the connection is closed.
        """
        self._connection = connection
        self._answer = answer
        self._in_order = in_order
        self._limits = limits
        memory = memory or MemoryBudget(MemoryLimits())
        self._requests = memory.requests
        self._answers = memory.answers
        self._may_be_large = may_be_large
        self._on_closed = on_closed
        #: Held while a large response is in progress, if responses need not be in order.
        self._large_turn = asyncio.Lock()
        self._writable = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        #: Requests started and not yet written, in order of arrival.
        self._pending: deque[PendingRequest] = deque()
        self._in_flight = 0
        self._in_flight_bytes = 0
        #: Frames that wait for capacity. Reading is paused, so one read limits their number.
        self._backlog: deque[Frame] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        #: Requests whose tasks have not run yet, with their coroutines if those already exist.
        #: Later requests must start after them.
        self._unbegun: dict[PendingRequest, Coroutine[Any, Any, Any] | None] = {}
        self._is_starting_soon = False
        #: Fires at the end of a mute; None if the connection is not muted.
        self._unmute: asyncio.TimerHandle | None = None
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

    def memory_freed(self) -> None:
        """Start waiting requests: the daemon may have memory for this connection again."""
        self._writable.set()
        self._start_backlog()

    def connection_closed(self, reason: str) -> None:
        self._is_gone = True
        if self._unmute is not None:
            self._unmute.cancel()
        self._drop_backlog()
        self._requests.give(self._in_flight_bytes)
        for ledger in (self._requests, self._answers):
            ledger.forget(self)
        for task in self._tasks:
            task.cancel()
        for answering in self._unbegun.values():
            if answering is not None:
                answering.close()
        if self._on_closed is not None:
            self._on_closed()

    def mute(self, ms: int) -> None:
        """Read nothing and start no request for ``ms`` milliseconds (KIP-219).

        Requests in flight are answered. A mute that ends later stays.
        """
        until_s = self._loop.time() + ms / 1000
        if self._is_gone or (self._unmute is not None and self._unmute.when() >= until_s):
            return
        if self._unmute is not None:
            self._unmute.cancel()
        self._unmute = self._loop.call_at(until_s, self._end_mute)
        self._connection.pause_reading()

    def _end_mute(self) -> None:
        self._unmute = None
        self._start_backlog()

    def use_memory(self, memory: MemoryBudget) -> None:
        """Count the requests of this connection in another budget, those in flight included."""
        taken_bytes = self._in_flight_bytes + sum(map(len, self._backlog))
        self._requests.give(taken_bytes)
        for ledger in (self._requests, self._answers):
            ledger.forget(self)
        self._requests, self._answers = memory.requests, memory.answers
        self._requests.take(taken_bytes)

    def finish(self, reason: str) -> None:
        """Start no more requests, answer those in flight, then close."""
        self._is_finishing = True
        self._drop_backlog()
        self._connection.pause_reading()
        if self._in_flight == 0:
            self._connection.close(reason)

    def _has_capacity(self) -> bool:
        return (
            self._in_flight < self._limits.max_in_flight_requests
            and self._in_flight_bytes < self._limits.max_in_flight_bytes
            and not self._connection.is_write_paused
            and not self._is_finishing
            and self._unmute is None
            and self._has_memory(self._requests)
        )

    def _may_start(self, frame: Frame) -> bool:
        if self._in_order and self._may_be_large(frame):
            return self._in_flight == 0 and self._has_capacity() and self._has_memory(self._answers)
        return self._has_capacity()

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
                ledger.wait_for_memory(self)

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
        if (
            self._unbegun
            or (not self._in_order and self._may_be_large(frame))
            or (buggify.is_on and buggify.fires("net.late_request"))
        ):
            self._start_task(request, None)
            return
        try:
            answering = self._answer(request)
        except Exception as e:
            self._fail(request, e)
            return
        if isinstance(answering, Completion):
            answering.add_done_callback(partial(self._completed, request))
        else:
            self._start_task(request, cast("Coroutine[Any, Any, Any]", answering))

    def _start_task(
        self, request: PendingRequest, answering: Coroutine[Any, Any, Any] | None
    ) -> None:
        self._unbegun[request] = answering
        task = self._loop.create_task(self._run(request, answering))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _start_backlog_soon(self) -> None:
        """Start the backlog in a later call of the loop: the caller is still completing a
        request."""
        if not self._is_starting_soon:
            self._is_starting_soon = True
            self._loop.call_soon(self._start_backlog)

    def _start_backlog(self) -> None:
        self._is_starting_soon = False
        if self._is_gone:
            return
        while self._backlog and self._may_start(self._backlog[0]):
            frame = self._backlog.popleft()
            self._requests.give(len(frame))
            self._start(frame)
        if not self._backlog and self._has_capacity():
            self._connection.resume_reading()
        elif not self._is_finishing:
            self._wait_for_memory()

    async def _run(
        self, request: PendingRequest, answering: Coroutine[Any, Any, Any] | None
    ) -> None:
        del self._unbegun[request]
        try:
            if answering is not None:
                request.answer = request.encode(await answering)
            elif not self._in_order and self._may_be_large(request.frame):
                await self._answer_in_turn(request)
            else:
                answer = await self._answer(request)  # may set request.encode
                request.answer = request.encode(answer)
        except Exception as e:
            self._fail(request, e)
        else:
            self._settle(request)

    def _completed(self, request: PendingRequest, done: Completion[Any]) -> None:
        """Send the response of a completed request.

        Runs inside ``Completion.set_result``, so it starts no other request.
        """
        if self._is_gone:
            return
        try:
            request.answer = request.encode(done.result())
        except Exception as e:
            self._fail(request, e)
        else:
            self._settle(request)

    def _fail(self, request: PendingRequest, error: Exception) -> None:
        """Close the connection because of ``error``.

        RemoteProtocolError aborts it, and UnansweredError closes it after the earlier responses.
        Any other error is a bug: it is logged and aborts the connection.
        """
        if isinstance(error, RemoteProtocolError):
            self._connection.refuse(error)
            return
        if isinstance(error, UnansweredError):
            request.close_reason = error.message
            self._settle(request)
            return
        _log.error(
            "request_handler_failed", api=request.api, peer=self._connection.peer, exc_info=error
        )
        self._connection.abort(f"the handler of {request.api} failed")

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
            self._start_backlog_soon()

    def _write(self, request: PendingRequest) -> None:
        if self._is_gone:
            return
        self._in_flight -= 1
        self._in_flight_bytes -= request.size_bytes
        self._requests.give(request.size_bytes)
        if request.answer is not None:
            self._connection.write(request.answer)
        elif request.close_reason is not None:
            self._is_finishing = True
            self._drop_backlog()
            self._connection.close(request.close_reason)

    async def _answer_in_turn(self, request: PendingRequest) -> None:
        """Answer once earlier large responses were read and the daemon has memory for responses."""
        async with self._large_turn:
            while self._connection.is_write_paused or not self._has_memory(self._answers):
                self._writable.clear()
                self._wait_for_memory()
                await self._writable.wait()
            answer = await self._answer(request)
            request.answer = request.encode(answer)
