"""The requests of one connection: started in order, bounded, answered.

* Each request is a task, started in order of arrival.
  What a handler does before its first await therefore keeps the order of pipelined requests.
* Beyond a number of requests or bytes in flight, or while the peer does not take its answers,
  nothing more is started and nothing more is read.
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


Answer = Callable[[PendingRequest], Awaitable[Sequence[Buffer] | None]]


class RequestSession:
    """The receiver of a server's connection.

    ``answer`` turns a request into the buffers of its response, or None if none is due.
    It raises :class:`RemoteProtocolError` if the peer is at fault.
    Anything else that it raises is a bug: it is reported, and the connection closed.
    """

    def __init__(
        self, connection: Connection, *, answer: Answer, in_order: bool, limits: SessionLimits
    ) -> None:
        self._connection = connection
        self._answer = answer
        self._in_order = in_order
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        #: Started and not yet written; in order of arrival.
        self._pending: deque[PendingRequest] = deque()
        self._in_flight = 0
        self._in_flight_bytes = 0
        #: Not started for lack of room. Not more than one read brings, as reading is paused then.
        self._backlog: deque[Frame] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_finishing = False

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def frame_received(self, frame: Frame) -> None:
        if self._has_room() and not self._backlog:
            self._start(frame)
        else:
            self._backlog.append(frame)
            self._connection.pause_reading()

    def writing_resumed(self) -> None:
        self._start_backlog()

    def connection_closed(self, reason: str) -> None:
        self._backlog.clear()
        for task in self._tasks:
            task.cancel()

    def finish(self, reason: str) -> None:
        """Answer what was started, start nothing more, then close."""
        self._is_finishing = True
        self._backlog.clear()
        self._connection.pause_reading()
        if self._in_flight == 0:
            self._connection.close(reason)

    def _has_room(self) -> bool:
        return (
            self._in_flight < self._limits.max_in_flight_requests
            and self._in_flight_bytes < self._limits.max_in_flight_bytes
            and not self._connection.is_write_paused
            and not self._is_finishing
        )

    def _start(self, frame: Frame) -> None:
        request = PendingRequest(frame)
        self._in_flight += 1
        self._in_flight_bytes += request.size_bytes
        if self._in_order:
            self._pending.append(request)
        task = self._loop.create_task(self._run(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _start_backlog(self) -> None:
        while self._backlog and self._has_room():
            self._start(self._backlog.popleft())
        if not self._backlog and self._has_room():
            self._connection.resume_reading()

    async def _run(self, request: PendingRequest) -> None:
        try:
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
        self._in_flight -= 1
        self._in_flight_bytes -= request.size_bytes
        if request.answer is not None:
            self._connection.write(request.answer)
