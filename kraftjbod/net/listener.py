"""LOOP. A listening port and its connections; used for Kafka and for RPC.

* Connections are limited in total and per address (connection_quotas.py). Client connections are
  refused before the process runs out of descriptors (core/descriptor_budget.py).
* A connection from an address that opens too many per second is read no further, and closed after a
  delay (KIP-612). The number of such held connections is limited.
* Some slots are reserved for brokers. When the other slots are taken, a new connection is pending
  for a few seconds. It stays if it is identified as a broker's in that time.
* A connection without requests in flight that was silent for ``max_idle_ms`` is closed.
* Until a client logs in, its connection can have other limits (``LoginBounds``).
* ``reset_silent`` resets connections that were silent during a network outage.
* Closing first stops accepting, then lets sessions finish until a deadline, then aborts the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from kraftjbod.core import buggify
from kraftjbod.core.loop.work_slices import in_slices
from kraftjbod.core.telemetry import get_logger
from kraftjbod.net.connection import (
    Connection,
    ConnectionLimits,
    FrameReceiver,
    listen,
    start_serving,
    stop_listening,
)
from kraftjbod.net.connection_quotas import ConnectionQuotas, QuotaLimits
from kraftjbod.net.memory_budget import MemoryBudget, MemoryLimits
from kraftjbod.net.request_session import Answer, MayBeLarge, RequestSession, SessionLimits, never
from kraftjbod.net.tls_transport import HandshakeTurns, TlsSettings, TlsTransport
from kraftjbod.protocol.framing import Frame

_log = get_logger()
_PENDING_CHECK_S: Final = 0.5
#: Connections that are held until they are closed. Beyond this the oldest one is closed at once.
MAX_HELD: Final = 500
_SHORT: Final = "descriptors are short: raise the limit of open files (RLIMIT_NOFILE)"
_FULL: Final = "all places are taken"
_TOO_FAST: Final = "the address opens connections faster than its connection_creation_rate"
_CONNECTION_LIMITS: Final = ConnectionLimits(max_frame_bytes=104_857_600)
_SESSION_LIMITS: Final = SessionLimits(
    max_in_flight_requests=100, max_in_flight_bytes=128 * 1024 * 1024
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerLimits:
    """Limits of one listening port and of each of its connections.

    ``max_idle_ms``: a silent connection without requests in flight is closed after this time.
    ``backlog`` is the number of connections that the kernel queues before they are accepted.
    """

    connection: ConnectionLimits = _CONNECTION_LIMITS
    session: SessionLimits = _SESSION_LIMITS
    quotas: QuotaLimits = field(default_factory=QuotaLimits)
    max_idle_ms: int = 600_000
    backlog: int = 512
    max_client_descriptor: int = 2**31 - 1
    """A higher descriptor number means that the process is short of descriptors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginBounds:
    """Limits of connections whose clients have not logged in."""

    max_frame_bytes: int
    memory: MemoryBudget


class Listener:
    """A listening port and its connections. ``make_session`` creates the session of each accepted
    connection, which handles its requests.
    """

    def __init__(
        self,
        *,
        name: str,
        host: str,
        port: int,
        make_session: Callable[[Connection], RequestSession],
        limits: ListenerLimits,
        memory: MemoryBudget | None = None,
        tls: TlsSettings | None = None,
        before_login: LoginBounds | None = None,
        delay_ms_of: Callable[[str], int] = lambda _host: 0,
    ) -> None:
        """
        :param memory: budget shared by all listeners of the daemon; a separate one if None.
        :param tls: settings of a listener with TLS; None for plaintext.
        :param before_login: limits of each connection until :meth:`logged_in`; None if no client
            logs in.
        :param delay_ms_of: counts a new connection from an address. Returns the ms after which the
            connection is to be closed; 0 to accept it.
        """
        self._name = name
        self._host = host
        self._port = port
        self._make_session = make_session
        self._limits = limits
        self._tls = tls
        self._before_login = before_login
        self._delay_ms_of = delay_ms_of
        self._handshakes = HandshakeTurns()
        self.memory = memory or MemoryBudget(MemoryLimits())
        self.quotas = ConnectionQuotas(limits.quotas)
        self._refused = 0
        self._reported_s = float("-inf")
        self._server: asyncio.Server | None = None
        self._is_closing = False
        self._sessions: dict[Connection, RequestSession] = {}
        #: Held connections and the timers that close them, oldest first.
        self._held: dict[Connection, asyncio.TimerHandle] = {}
        self._idle_timer: asyncio.TimerHandle | None = None
        self._pending_timer: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    def __repr__(self) -> str:
        return f"<Listener {self._name} port={self._port} connections={len(self._sessions)}>"

    def session(
        self,
        connection: Connection,
        answer: Answer,
        *,
        in_order: bool,
        may_be_large: MayBeLarge = never,
        on_closed: Callable[[], None] | None = None,
    ) -> RequestSession:
        """Create a session with this listener's limits, for use in ``make_session``."""
        before = self._before_login
        return RequestSession(
            connection,
            answer=answer,
            in_order=in_order,
            limits=self._limits.session,
            memory=self.memory if before is None else before.memory,
            may_be_large=may_be_large,
            on_closed=on_closed,
        )

    def logged_in(self, connection: Connection) -> None:
        """Apply the limits of all clients to a connection whose client logged in."""
        connection.raise_limits(
            max_frame_bytes=self._limits.connection.max_frame_bytes, memory=self.memory
        )
        self._sessions[connection].use_memory(self.memory)

    @property
    def port(self) -> int:
        """The port in use. Before ``bind`` it can be 0."""
        return self._port

    @property
    def connection_count(self) -> int:
        return len(self._sessions)

    async def bind(self) -> None:
        """Bind the address, and with port 0 learn the port. Connections are refused until
        :meth:`start`.

        The kernel does not choose the port of a bound socket for another one. A process that names
        the port can bind it too (``SO_REUSEADDR``), and the listener that starts first keeps it.
        Listening at once would exclude that, but clients would wait for a daemon that is starting,
        and not ask another one.

        :raises StartupError: the address cannot be bound, or another process listens there.
        """
        self._server = await listen(
            self._host,
            self._port,
            make_connection=self._connection,
            backlog=self._limits.backlog,
            start_serving=False,
        )
        if self._port == 0:
            self._port = self._server.sockets[0].getsockname()[1]

    async def start(self) -> None:
        """Accept connections; bind the address first if that was not done.

        :raises StartupError: the address cannot be bound, or another process listens there, perhaps
            only since :meth:`bind`.
        """
        if self._server is None:
            await self.bind()
        assert self._server is not None
        await start_serving(self._server)
        self._watch_idle()

    async def close(self, *, timeout_ms: int) -> None:
        """Stop accepting, and close each connection after its requests in flight are answered.

        Connections that are still open after ``timeout_ms`` are aborted.
        """
        self._is_closing = True
        if self._server is not None:
            stop_listening(self._server)
            self._server = None
        for timer in (self._idle_timer, self._pending_timer):
            if timer is not None:
                timer.cancel()
        for connection in list(self._held):
            connection.abort("the server is stopping")
        for session in list(self._sessions.values()):
            session.finish("the server is stopping")
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._empty.wait()
        except TimeoutError:
            _log.warning(
                "connections_aborted_at_stop", listener=self._name, count=len(self._sessions)
            )
            for connection in list(self._sessions):
                connection.abort("the server is stopping")
            await self._empty.wait()

    def _connection(self) -> asyncio.BaseProtocol:
        before, limits = self._before_login, self._limits.connection
        connection = Connection(
            make_receiver=self._accept,
            limits=limits
            if before is None
            else replace(limits, max_frame_bytes=before.max_frame_bytes),
            memory=self.memory if before is None else before.memory,
        )
        if self._tls is None:
            return connection
        return TlsTransport(connection, self._tls, self._handshakes)

    def _accept(self, connection: Connection) -> FrameReceiver:
        loop = asyncio.get_running_loop()
        is_short = connection.descriptor > self._limits.max_client_descriptor or (
            buggify.is_on and buggify.fires("net.connection_refused")
        )
        if not self._is_closing and not is_short:
            delay_ms = self._delay_ms_of(connection.peer_host)
            if delay_ms > 0:
                return self._hold(connection, delay_ms)
        accepted = _Accepted(self, connection, self._make_session(connection))
        if self._is_closing or not self.quotas.admit(
            connection, loop.time(), are_descriptors_short=is_short
        ):
            self._log_refused(connection, loop.time(), _SHORT if is_short else _FULL)
            connection.abort("too few descriptors" if is_short else "too many connections")
            return accepted
        self._sessions[connection] = accepted.session
        self._empty.clear()
        if self.quotas.has_pending and self._pending_timer is None:
            self._pending_timer = loop.call_later(_PENDING_CHECK_S, self._watch_pending)
        return accepted

    def _hold(self, connection: Connection, delay_ms: int) -> FrameReceiver:
        """Read nothing from the connection, and close it after a delay."""
        loop = asyncio.get_running_loop()
        self._log_refused(connection, loop.time(), _TOO_FAST)
        if len(self._held) >= MAX_HELD:
            oldest = next(iter(self._held))
            self._held.pop(oldest).cancel()
            oldest.abort(_TOO_FAST)
        self._held[connection] = loop.call_later(delay_ms / 1000, connection.abort, _TOO_FAST)
        # uvloop begins to read after this call, so that a pause has no effect before.
        loop.call_soon(connection.stop_reading)
        return _Held(self, connection)

    def release_held(self, connection: Connection) -> None:
        timer = self._held.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def release(self, connection: Connection) -> None:
        self.quotas.release(connection)
        self._sessions.pop(connection, None)
        if not self._sessions:
            self._empty.set()

    def _log_refused(self, connection: Connection, now_s: float, reason: str) -> None:
        """Log refused connections at most once per second, with their number."""
        self._refused += 1
        if now_s - self._reported_s >= 1:
            self._reported_s = now_s
            _log.warning(
                "connection_turned_away",
                listener=self._name,
                peer=connection.peer,
                count=self._refused,
                open=len(self._sessions),
                reason=reason,
            )
            self._refused = 0

    def _watch_pending(self) -> None:
        loop = asyncio.get_running_loop()
        self.quotas.evict_pending(loop.time())
        self._pending_timer = (
            loop.call_later(_PENDING_CHECK_S, self._watch_pending)
            if self.quotas.has_pending
            else None
        )

    async def reset_silent(self, since_s: float) -> int:
        """Reset the connections that have been open and silent since ``since_s``.

        :param since_s: event loop time.
        :return: number of connections that were reset.
        """
        count = 0
        async for connection in in_slices(list(self._sessions)):
            if connection.is_open and connection.last_heard_s < since_s:
                connection.reset("silent during a network outage")
                count += 1
        return count

    def _watch_idle(self) -> None:
        loop = asyncio.get_running_loop()
        max_idle_s = self._limits.max_idle_ms / 1000
        heard_since_s = loop.time() - max_idle_s
        for connection, session in list(self._sessions.items()):
            if session.in_flight == 0 and connection.last_heard_s <= heard_since_s:
                connection.close("idle for too long")
        self._idle_timer = loop.call_later(max_idle_s / 4, self._watch_idle)


class _Accepted:
    """The receiver of an accepted connection: passes events to its session.

    The listener is notified when the connection closes.
    """

    def __init__(self, listener: Listener, connection: Connection, session: RequestSession) -> None:
        self._listener = listener
        self._connection = connection
        self.session = session
        self.frame_received: Callable[[Frame], None] = session.frame_received
        self.writing_resumed: Callable[[], None] = session.writing_resumed

    def connection_closed(self, reason: str) -> None:
        self.session.connection_closed(reason)
        self._listener.release(self._connection)


class _Held:
    """The receiver of a held connection: ignores frames received before the pause."""

    def __init__(self, listener: Listener, connection: Connection) -> None:
        self._listener = listener
        self._connection = connection

    def frame_received(self, frame: Frame) -> None: ...

    def writing_resumed(self) -> None: ...

    def connection_closed(self, reason: str) -> None:
        self._listener.release_held(self._connection)
