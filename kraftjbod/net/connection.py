"""LOOP. One TCP connection, for both protocols and both sides; all socket errors end here.

* Each ``OSError`` of a socket becomes a close reason, a :class:`ConnectionLostError` or, for a
  listener, a :class:`StartupError`.
* Bytes that violate the protocol cause one warning and close this connection only.
* No method waits. ``write`` never blocks; large writers must check ``is_write_paused``.
* Partially received frames and unread responses are reported to the daemon's memory budget, if it
  has one. Frames received at once and responses sent at once are not counted.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar, cast

from kraftjbod.core.errors import ConnectionLostError, RemoteProtocolError, StartupError
from kraftjbod.core.telemetry import get_logger
from kraftjbod.net.memory_budget import MemoryBudget
from kraftjbod.protocol.framing import SCRATCH_BYTES, Buffer, Frame, FrameSplitter

_log = get_logger()
_of_thread: Final = threading.local()
#: ``struct linger``: on, for no time, so that closing resets the connection.
_NO_LINGER: Final = struct.pack("ii", 1, 0)
_NO_SUCH_HOST: Final = frozenset({socket.EAI_NONAME, socket.EAI_NODATA})


def shared_scratch() -> bytearray:
    """Return the read buffer that all connections and TLS layers of this thread share.

    One buffer is enough, because each read is processed before the next one.
    """
    scratch: bytearray | None = getattr(_of_thread, "scratch", None)
    if scratch is None:
        scratch = _of_thread.scratch = bytearray(SCRATCH_BYTES)
    return scratch


class FrameReceiver(Protocol):
    """The owner of a connection, which receives its frames and its end."""

    def frame_received(self, frame: Frame) -> None:
        """Process a complete frame.

        :raises RemoteProtocolError: the frame violates the protocol; the connection is aborted.
        """

    def writing_resumed(self) -> None:
        """Called when the peer has read enough that ``is_write_paused`` is False again."""

    def connection_closed(self, reason: str) -> None:
        """Called once, after all other calls, when the connection is closed."""


R = TypeVar("R", bound=FrameReceiver)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Buffer limits of one connection."""

    #: A longer frame closes the connection.
    max_frame_bytes: int
    #: Number of unsent bytes beyond which ``is_write_paused`` is True.
    write_pause_bytes: int = 64 * 1024


class Connection(asyncio.BufferedProtocol):
    """A TCP connection that passes frames to a receiver and writes buffers.

    ``make_receiver`` creates the receiver when the connection is open.
    """

    def __init__(
        self,
        *,
        make_receiver: Callable[[Connection], FrameReceiver],
        limits: ConnectionLimits,
        memory: MemoryBudget | None = None,
    ) -> None:
        self._make_receiver = make_receiver
        self._limits = limits
        self._memory = memory
        #: Bytes of a partial frame that were reported to the budget.
        self._held_bytes = 0
        #: Bytes written since ``is_write_paused``.
        self._unread_bytes = 0
        self._is_starved = False
        self._splitter = FrameSplitter(
            max_frame_bytes=limits.max_frame_bytes, scratch=shared_scratch()
        )
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        #: In CPython 3.12 and 3.13, ``writelines`` of asyncio's own transports never pauses the
        #: protocol, and fails on a lost connection. uvloop's does neither.
        self._has_faulty_writelines = isinstance(self._loop, asyncio.SelectorEventLoop)
        self._receiver: FrameReceiver | None = None
        self._close_reason: str | None = None
        #: "host:port" of the other side.
        self.peer = "?"
        #: Numeric address of the other side.
        self.peer_host = "?"
        self.is_write_paused = False
        #: Set by the receiver of the frames. The memory budget can pause reading separately.
        self.is_reading_paused = False
        #: The connection is a broker's: it neither waits for memory nor is closed to free memory.
        self.is_privileged = False
        #: Loop time of the last byte from the peer, in seconds.
        self.last_heard_s = 0.0
        #: Called last if this side did not close the connection. The argument is False after the
        #: end of the stream, as when the peer's process dies. It is True after a reset, which a
        #: firewall can also cause without the peer's knowledge.
        self.on_peer_closed: Callable[[bool], None] | None = None
        #: Called with the client's principal after a TLS handshake, before the first frame.
        self.on_handshake: Callable[[str], None] | None = None

    def __repr__(self) -> str:
        return f"<Connection {self.peer} {self._close_reason or 'open'}>"

    @property
    def descriptor(self) -> int:
        """The file descriptor of the socket; -1 if there is none."""
        found = None if self._transport is None else self._transport.get_extra_info("socket")
        return -1 if found is None else int(found.fileno())

    @property
    def is_open(self) -> bool:
        return self._transport is not None and self._close_reason is None

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Send ``buffers`` in order; they must not change until they are sent.

        Buffers written before the connection is open, or after it began to close, are dropped.
        """
        if self._transport is not None and self._close_reason is None:
            if self.is_write_paused and self._memory is not None:
                self._unread_bytes += sum(map(len, buffers))
            if self._has_faulty_writelines:
                self._transport.write(b"".join(buffers))
            else:
                self._transport.writelines(buffers)
            if self.is_write_paused:
                self._note_unread()

    def pause_reading(self) -> None:
        if self._transport is not None and not self.is_reading_paused and self.is_open:
            self.is_reading_paused = True
            if not self._is_starved:
                self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and self.is_reading_paused and self.is_open:
            self.is_reading_paused = False
            if not self._is_starved:
                self._transport.resume_reading()

    def stop_reading(self) -> None:
        """Read no more from the peer, not even a TLS handshake, until the connection is closed."""
        if self._transport is not None and self.is_open:
            self.is_reading_paused = True
            # A layer for TLS reads a handshake while reading of its connection is paused.
            getattr(self._transport, "stop_reading", self._transport.pause_reading)()

    def close(self, reason: str) -> None:
        """Send pending writes, then close. Only the first ``reason`` of several is kept."""
        if self._transport is not None and self._close_reason is None:
            self._close_reason = reason
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Close at once; unsent bytes are lost."""
        if self._close_reason is None:
            self._close_reason = reason
        if self._transport is not None:
            self._transport.abort()

    def reset(self, reason: str) -> None:
        """Close at once by a TCP reset, which is sent even if earlier bytes are unacknowledged.

        The FIN that :meth:`abort` sends waits for the retransmission of such bytes. After a network
        outage the retransmission can take as long as the outage took.
        """
        if self._transport is not None and (own := self._transport.get_extra_info("socket")):
            try:
                own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            except OSError as e:
                # The socket is already closed, and the kernel has notified the peer.
                reason = f"{reason} ({e})"
        self.abort(reason)

    def refuse(self, error: RemoteProtocolError) -> None:
        """Log that the peer violated the protocol, and close at once. No effect on a connection
        that is closing.
        """
        if self._close_reason is None:
            _log.warning("connection_broke_protocol", peer=self.peer, reason=str(error))
            self.abort(str(error))

    # --- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio's by shape only, not by class.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._limits.write_pause_bytes)
        address: Any = transport.get_extra_info("peername")
        if address:
            # Normalize IPv4-mapped IPv6, so that one machine has one address.
            self.peer_host = address[0].removeprefix("::ffff:")
            self.peer = f"{address[0]}:{address[1]}"
        self.last_heard_s = self._loop.time()
        self._receiver = self._make_receiver(self)

    def handshake_completed(self, principal: str) -> None:
        """Called by the TLS layer after the handshake, with the client's principal."""
        self.last_heard_s = self._loop.time()
        if self.on_handshake is not None:
            self.on_handshake(principal)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._splitter.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        assert self._receiver is not None
        self.last_heard_s = self._loop.time()
        try:
            for frame in self._splitter.buffer_updated(nbytes):
                if self._close_reason is not None:
                    return
                self._receiver.frame_received(frame)
        except RemoteProtocolError as e:
            self.refuse(e)
        if self._splitter.filled_bytes or self._held_bytes:
            self._note_partial()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.is_write_paused = True
        if self._memory is not None and self._transport is not None:
            self._unread_bytes = self._transport.get_write_buffer_size()
            self._note_unread()

    def resume_writing(self) -> None:
        self.is_write_paused = False
        if self._memory is not None:
            self._memory.answers.release(self)
        if self._receiver is not None:
            self._receiver.writing_resumed()

    def connection_lost(self, exc: Exception | None) -> None:
        peer_closed = self._close_reason is None and (
            exc is None or isinstance(exc, ConnectionError)
        )
        # EPIPE follows the end of the stream; it is not a reset.
        is_reset = exc is not None and not isinstance(exc, BrokenPipeError)
        if self._close_reason is None:
            self._close_reason = str(exc) if exc is not None else "closed by the peer"
        self._transport = None
        if self._memory is not None:
            self._memory.requests.release(self)
            self._memory.requests.forget(self)
            self._memory.answers.release(self)
        if self._receiver is not None:
            self._receiver.connection_closed(self._close_reason)
        if peer_closed and self.on_peer_closed is not None:
            self.on_peer_closed(is_reset)

    # --- memory

    def raise_limits(self, *, max_frame_bytes: int, memory: MemoryBudget) -> None:
        """Apply the limits of a client that logged in, from its next frame on."""
        if self._memory is not None:
            self._memory.requests.release(self)
            self._memory.requests.forget(self)
            self._memory.answers.release(self)
        self._splitter.max_frame_bytes = max_frame_bytes
        self._memory = memory
        self._held_bytes = 0
        if self.is_write_paused:
            self._note_unread()
        if self._is_starved:
            self.memory_freed()
        elif self._splitter.filled_bytes:
            self._note_partial()

    def note_taken(self) -> None:
        """Report to the memory budget how many response bytes the peer has read.

        Does nothing unless writing is paused.
        """
        if self.is_write_paused:
            self._note_unread()

    @property
    def is_held_up(self) -> bool:
        """Whether this side does not read from the peer at the moment."""
        return self.is_reading_paused or self._is_starved

    def memory_freed(self) -> None:
        """Called when the memory budget may have space for the rest of a partially received frame.
        Resumes reading if the limits allow it.
        """
        self._note_partial()
        if self.is_open and not self.is_held_up:
            assert self._transport is not None
            self._transport.resume_reading()

    def _note_partial(self) -> None:
        """Reserve memory for the next part of the frame, or pause reading until it is available."""
        memory, splitter = self._memory, self._splitter
        if memory is None or not self.is_open:
            return
        next_bytes = splitter.next_bytes
        has_memory = (
            next_bytes == splitter.held_bytes
            or next_bytes - self._held_bytes <= memory.requests.left_bytes
            or self.is_privileged
        )
        self._held_bytes = next_bytes if has_memory else splitter.held_bytes
        if self._held_bytes:
            memory.requests.hold(self, self._held_bytes, splitter.filled_bytes)
        else:
            memory.requests.release(self)
        if has_memory:
            self._is_starved = False
        else:
            self._pause_until_memory(memory)

    def _pause_until_memory(self, memory: MemoryBudget) -> None:
        assert self._transport is not None
        if not (self._is_starved or self.is_reading_paused):
            self._transport.pause_reading()
        self._is_starved = True
        memory.requests.wait_for_memory(self)

    def _note_unread(self) -> None:
        if self._memory is not None and self._transport is not None:
            size_bytes = self._transport.get_write_buffer_size()
            self._memory.answers.hold(self, size_bytes, self._unread_bytes - size_bytes)


class SecuringTransport(Protocol):
    """A layer between an outgoing socket and its connection, such as TLS."""

    @property
    def secured(self) -> asyncio.Future[None]:
        """Future that completes when the connection is secured. It gets an ``OSError`` or a
        ``RemoteProtocolError`` if that fails.
        """

    def abort(self) -> None:
        """Close at once."""


async def connect(
    host: str,
    port: int,
    *,
    make_receiver: Callable[[Connection], R],
    limits: ConnectionLimits,
    timeout_ms: int,
    secure: Callable[[Connection], SecuringTransport] | None = None,
) -> R:
    """Connect to ``host:port`` and return the receiver that ``make_receiver`` creates.

    :param secure: creates the layer between the socket and the connection; None for no layer.
    :raises ConnectionLostError: the connection is not open, and secured, within ``timeout_ms``.
    """
    loop = asyncio.get_running_loop()
    made: list[R] = []
    layers: list[SecuringTransport] = []

    def make(connection: Connection) -> R:
        made.append(make_receiver(connection))
        return made[0]

    def factory() -> asyncio.BaseProtocol:
        connection = Connection(make_receiver=make, limits=limits)
        if secure is None:
            return connection
        layers.append(secure(connection))
        return cast(asyncio.BaseProtocol, layers[0])

    is_open = False
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await loop.create_connection(factory, host, port)
            for layer in layers:
                await layer.secured
        is_open = True
    except TimeoutError as e:
        raise ConnectionLostError(f"{host}:{port} did not answer within {timeout_ms} ms") from e
    except (OSError, RemoteProtocolError) as e:
        raise ConnectionLostError(f"cannot connect to {host}:{port}: {e}") from e
    finally:
        for layer in () if is_open else layers:
            layer.abort()
    return made[0]


async def is_refused(host: str, port: int, *, timeout_ms: int = 500) -> bool:
    """Return whether ``host:port`` refuses connections (ECONNREFUSED).

    False if it accepts one, is unreachable or unknown, or does not answer within ``timeout_ms``.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            transport, _ = await loop.create_connection(asyncio.Protocol, host, port)
    except TimeoutError:
        return False
    except OSError as e:
        return e.errno == errno.ECONNREFUSED
    transport.abort()
    return False


async def addresses_of(host: str, *, timeout_ms: int) -> tuple[str, ...] | None:
    """Resolve a host name, in a thread of the event loop's executor.

    :returns: its addresses; empty for an unknown host, None if the name service fails or does not
        answer in time.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError:
        return ()  # The name is malformed.
    except OSError as e:  # includes TimeoutError
        return () if e.errno in _NO_SUCH_HOST else None
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


async def listen(
    host: str,
    port: int,
    *,
    make_connection: Callable[[], asyncio.BaseProtocol],
    backlog: int,
    start_serving: bool = True,
) -> asyncio.Server:
    """Return a server that accepts connections on ``host:port``; with port 0 the system chooses
    one.

    :param start_serving: False only binds the address; connections are refused until the server
        starts to serve.
    :raises StartupError: the address cannot be bound.
    """
    loop = asyncio.get_running_loop()
    try:
        return await loop.create_server(
            make_connection, host, port, backlog=backlog, start_serving=start_serving
        )
    except OSError as e:
        raise StartupError(f"cannot listen on {host}:{port}: {e}") from e


async def start_serving(server: asyncio.Server) -> None:
    """Accept connections on an address that was only bound before.

    :raises StartupError: another process listens there. Several can bind one address with
        ``SO_REUSEADDR``, but only one can listen.
    """
    try:
        await server.start_serving()
    except OSError as e:
        server.close()
        raise StartupError(f"cannot listen: {e}") from e
    # uvloop closes the socket and reports the reason only to the loop's exception handler.
    if any(listener.fileno() < 0 for listener in server.sockets):
        server.close()
        raise StartupError("cannot listen: the address is in use")


def stop_listening(server: asyncio.Server) -> None:
    """Accept no more connections, even if this process cannot exit.

    Closing alone is not enough: a thread stuck in the kernel keeps the socket of a killed process
    alive, and its port accepts connections. ``shutdown`` prevents that.
    """
    for listener in server.sockets if server.is_serving() else ():
        with listener.dup() as duplicate:
            try:
                duplicate.shutdown(socket.SHUT_RDWR)
            except OSError as e:
                _log.warning("listener_shutdown_failed", reason=str(e))
    server.close()
