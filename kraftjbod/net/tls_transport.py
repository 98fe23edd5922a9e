"""LOOP. TLS of one connection: a layer between the socket's transport and ``Connection``.

* An accepted connection exists before its handshake, so that the limits of connections include it.
  An outgoing one (dialer.py) is created after its handshake.
* Records are encrypted as the socket drains, at most :data:`SLICE_BYTES` at once. The size of the
  write buffer includes bytes that are not encrypted yet, so that the memory budget is exact within
  256 KiB per connection.
* At most :data:`STEPS_PER_ITERATION` handshakes advance in one iteration of the event loop, so that
  thousands of clients that reconnect at once delay no heartbeat.
* A pause of reading holds back decrypted bytes from the beginning on, but never the handshake.
* A failed handshake of an accepted connection is logged with address, listener and reason.

A stream that ends without close_notify ends like any other one: every frame has a length, so that
no truncated request is processed. ADR 109 has the alternatives.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, cast

from kraftjbod.core.errors import RemoteProtocolError
from kraftjbod.core.telemetry import get_logger
from kraftjbod.net.connection import Connection, shared_scratch
from kraftjbod.protocol.framing import Buffer

_log = get_logger()
#: Bytes that are encrypted in one iteration of the event loop: less than a millisecond with AES-NI,
#: less than 10 ms without.
SLICE_BYTES: Final = 256 * 1024
#: Bytes that are passed to the socket at once.
_CHUNK_BYTES: Final = 64 * 1024
#: Largest payload of a TLS record.
_RECORD_BYTES: Final = 16 * 1024
#: A handshake takes two steps; one of them signs, which takes 0.1 ms (P-256) to 5 ms (RSA-4096).
STEPS_PER_ITERATION: Final = 2
#: First byte of each record of a handshake.
_HANDSHAKE: Final = 0x16
_ACCEPTED_HINTS: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": (
        "the client sent no certificate, and ssl.client.auth=required demands one"
    ),
    "CERTIFICATE_VERIFY_FAILED": (
        "the client's certificate is not signed by a certificate of the truststore, or expired"
    ),
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust the certificate of this listener",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client refused the certificate of this listener",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client refused the certificate of this listener",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the certificate of this listener expired",
    "NO_SHARED_CIPHER": "client and listener have no cipher suite in common",
    "UNSUPPORTED_PROTOCOL": "the client's TLS versions are not in ssl.enabled.protocols",
}
_DIALED_HINTS: Final = {
    "CERTIFICATE_VERIFY_FAILED": (
        "the certificate of the listener is not signed by a certificate of this node's truststore, "
        "expired, or has another host name"
    ),
    "WRONG_VERSION_NUMBER": "the listener does not speak TLS: it may be PLAINTEXT",
    "TLSV1_ALERT_UNKNOWN_CA": "the listener does not trust this node's certificate",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the listener demands a certificate: set a keystore",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the listener refused this node's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the listener refused this node's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "this node's certificate expired",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": (
        "listener and node have no cipher suite in common, or the listener demands a certificate"
    ),
}


class HandshakeTurns:
    """Queues the steps of all TLS handshakes of a listener, and runs a few of them in each event
    loop iteration, so that many handshakes do not delay other work.
    """

    def __init__(self) -> None:
        self._steps: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: Callable[[], None]) -> None:
        """Run ``step`` in a later iteration, after the steps that were added before."""
        self._steps.append(step)
        self._schedule()

    def _schedule(self) -> None:
        if self._steps and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        try:
            for _ in range(min(STEPS_PER_ITERATION, len(self._steps))):
                self._steps.popleft()()
        finally:
            self._schedule()


def _no_principal(_certificate: bytes | None) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """The TLS context of one listener, or of connections to it, and how a client's certificate is
    mapped to its principal.
    """

    listener_name: str
    context: Callable[[], ssl.SSLContext]
    """Returns the context for a new connection."""
    principal_of: Callable[[bytes | None], str] = _no_principal
    """Maps the client's certificate (DER; None without one) to a principal. Raises ``ValueError``
    if there is none for it."""
    handshake_timeout_ms: int = 10_000
    """A connection is closed if its handshake takes longer."""


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """The TLS layer between the transport of a socket and a :class:`Connection`: decrypts received
    bytes for the connection, and encrypts the bytes that it writes.
    """

    def __init__(
        self,
        connection: Connection,
        settings: TlsSettings,
        turns: HandshakeTurns,
        *,
        dialed_host: str | None = None,
    ) -> None:
        """:param dialed_host: host name of an outgoing connection; None for an accepted one."""
        super().__init__()
        self._dialed_host = dialed_host
        #: Whether the connection was notified of its begin.
        self._is_made = False
        self._connection = connection
        self._settings = settings
        self._turns = turns
        self._loop = asyncio.get_running_loop()
        #: Completed after the handshake of an outgoing connection. It gets a
        #: ``RemoteProtocolError`` or an ``OSError`` if the handshake fails.
        self.secured: asyncio.Future[None] = self._loop.create_future()
        self._socket: asyncio.Transport | None = None
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        #: None before the first byte of the client, so that a silent client costs no memory of it.
        self._tls: ssl.SSLObject | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._first_byte: int | None = None
        self._is_secured = False
        #: A step of the handshake waits for its turn.
        self._is_in_line = False
        self._failure: RemoteProtocolError | None = None
        self._is_closing = False
        self._is_finished = False
        self._has_ended = False
        self._is_reading_paused = False
        self._is_stopped = False
        self._is_socket_reading = True
        self._is_resuming = False
        #: Bytes to encrypt.
        self._queue: deque[memoryview] = deque()
        self._queued_bytes = 0
        self._high_bytes = _CHUNK_BYTES
        self._is_socket_full = False
        self._is_writing_paused = False
        self._is_flush_scheduled = False

    def __repr__(self) -> str:
        return f"<TlsTransport {self._connection.peer} secured={self._is_secured}>"

    @property
    def _peer_kind(self) -> str:
        return "client" if self._dialed_host is None else "listener"

    # --- transport of the connection -------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self._socket is None else self._socket.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._is_closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_bytes = _CHUNK_BYTES if high is None else high
        if self._socket is not None:
            self._socket.set_write_buffer_limits(high=self._high_bytes, low=low)

    def get_write_buffer_size(self) -> int:
        sent = 0 if self._socket is None else self._socket.get_write_buffer_size()
        return self._queued_bytes + self._outgoing.pending + sent

    def write(self, data: Buffer) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        if self._is_closing:
            return
        for data in list_of_data:
            if data:
                self._queue.append(memoryview(data))
                self._queued_bytes += len(data)
        self._flush()

    def pause_reading(self) -> None:
        self._is_reading_paused = True
        self._set_socket_reading()

    def stop_reading(self) -> None:
        """Read no more from the socket, not even the bytes of a handshake."""
        self._is_stopped = True
        self._set_socket_reading()

    def resume_reading(self) -> None:
        self._is_reading_paused = False
        if not self._is_resuming:
            # Not at once, because the caller may be processing bytes of this connection.
            self._is_resuming = True
            self._loop.call_soon(self._resume)

    def close(self) -> None:
        """Send pending bytes and close_notify, then close the socket."""
        if not self._is_closing:
            self._is_closing = True
            self._set_socket_reading()
            self._flush()

    def abort(self) -> None:
        self._is_closing = self._is_finished = True
        self._drop_queue()
        if not self.secured.cancel() and not self.secured.cancelled():
            self.secured.exception()  # The caller may have stopped waiting for it.
        if self._socket is not None:
            self._socket.abort()

    # --- protocol of the socket ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)
        if self._is_closing:  # The caller stopped waiting for an outgoing connection.
            self._socket.abort()
            return
        self._deadline = self._loop.call_later(
            self._settings.handshake_timeout_ms / 1000, self._time_out
        )
        if self._dialed_host is None:
            self._make_connection()
        else:
            self._is_in_line = True
            self._turns.add(self._advance_handshake)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(shared_scratch())

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_closing:
            return
        scratch = shared_scratch()
        if self._first_byte is None:
            self._first_byte = scratch[0]
        self._incoming.write(memoryview(scratch)[:nbytes])
        if self._is_secured:
            self._decrypt()
        elif not self._is_in_line:
            self._is_in_line = True
            self._set_socket_reading()
            self._turns.add(self._advance_handshake)

    def eof_received(self) -> bool:
        self._has_ended = True
        if self._is_secured:
            self._end_if_read()
        elif self._first_byte is not None and not self._is_in_line:
            # A client that sent nothing is a probe of the port, such as a health check.
            self._fail(f"the {self._peer_kind} closed the connection")
        return self._is_secured or self._is_in_line

    def pause_writing(self) -> None:
        self._is_socket_full = True

    def resume_writing(self) -> None:
        self._is_socket_full = False
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing = self._is_finished = True
        self._socket = self._tls = None
        self._drop_queue()
        if self._deadline is not None:
            self._deadline.cancel()
        if self._dialed_host is not None and not self.secured.done():
            end = ConnectionResetError("the listener closed the connection during the handshake")
            self.secured.set_exception(self._failure or exc or end)
        if self._is_made:
            self._connection.connection_lost(self._failure or exc)

    # --- handshake -------------------------------------------------------------------------------

    def _make_connection(self) -> None:
        self._is_made = True
        self._connection.connection_made(self)

    def _advance_handshake(self) -> None:
        self._is_in_line = False
        if self._is_closing:
            return
        try:
            if self._tls is None:
                self._tls = self._settings.context().wrap_bio(
                    self._incoming,
                    self._outgoing,
                    server_side=self._dialed_host is None,
                    server_hostname=self._dialed_host,
                )
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
            if self._has_ended:
                self._fail(f"the {self._peer_kind} closed the connection")
            self._set_socket_reading()
            return
        except ssl.SSLError as e:
            self._fail(self._reason_of(e))
            return
        except ValueError as e:
            self._fail(f"{self._dialed_host} is no host name: {e}")
            return
        self._complete_handshake(self._tls)

    def _complete_handshake(self, tls: ssl.SSLObject) -> None:
        self._send()
        if self._deadline is not None:
            self._deadline.cancel()
        try:
            principal = self._settings.principal_of(tls.getpeercert(binary_form=True))
        except ValueError as e:
            self._fail(str(e))
            return
        self._is_secured = True
        if not self._is_made:
            self._make_connection()
        self._connection.handshake_completed(principal)
        if not self.secured.done():
            self.secured.set_result(None)
        self._flush()
        self._resume()

    def _time_out(self) -> None:
        self._fail(f"it took longer than {self._settings.handshake_timeout_ms} ms")

    def _fail(self, reason: str) -> None:
        """Log the failed handshake, send the alert if there is one, and close."""
        if self._is_closing:
            return
        if self._dialed_host is None:
            _log.warning(
                "tls_handshake_failed",
                peer=self._connection.peer,
                listener=self._settings.listener_name,
                reason=reason,
            )
        self._failure = RemoteProtocolError(f"the TLS handshake failed: {reason}")
        self._is_closing = self._is_finished = True
        self._send()
        if self._socket is not None:
            self._socket.close()

    def _reason_of(self, error: ssl.SSLError) -> str:
        if self._first_byte != _HANDSHAKE and self._dialed_host is None:
            return "the first byte is not TLS: the client may use security.protocol=PLAINTEXT"
        reason = getattr(error, "reason", None) or str(error)
        hints = _ACCEPTED_HINTS if self._dialed_host is None else _DIALED_HINTS
        hint = hints.get(reason)
        if isinstance(error, ssl.SSLCertVerificationError):
            reason = f"{reason}: {error.verify_message}"
        return reason if hint is None else f"{hint} ({reason})"

    # --- reading ---------------------------------------------------------------------------------

    def _set_socket_reading(self) -> None:
        """Pause or resume reading from the socket, so that received bytes do not accumulate in this
        layer.
        """
        is_held = self._is_reading_paused if self._is_secured else self._is_in_line
        is_reading = not (is_held or self._is_closing or self._is_stopped)
        if is_reading is self._is_socket_reading or self._socket is None:
            return
        self._is_socket_reading = is_reading
        if self._socket.is_closing():
            return
        if is_reading:
            self._socket.resume_reading()
        else:
            self._socket.pause_reading()

    def _resume(self) -> None:
        self._is_resuming = False
        if self._is_secured and not self._is_closing:
            self._decrypt()
            self._set_socket_reading()
            if self._has_ended:
                self._end_if_read()

    def _decrypt(self) -> None:
        """Pass decrypted bytes to the connection: at most what one read of the socket brought, and
        what a pause held back before it."""
        is_drained = False
        while not (is_drained or self._is_reading_paused or self._is_closing):
            tls = self._tls
            assert tls is not None
            buffer = self._connection.get_buffer(-1)[:SLICE_BYTES]
            count, is_end = 0, False
            try:
                while count < len(buffer) and not (is_drained or is_end):
                    size = cast(int, tls.read(len(buffer) - count, buffer[count:]))
                    count += size
                    is_end = not size
                    # Spares an exception per request: the next read would raise SSLWantReadError.
                    is_drained = not (self._incoming.pending or tls.pending())
            except ssl.SSLWantReadError:
                is_drained = True
            except ssl.SSLZeroReturnError:
                is_end = True
            except ssl.SSLError as e:
                self._break_off(e)
                return
            if count:
                self._connection.buffer_updated(count)
            if is_end:
                self._has_ended = is_drained = True
                self._end()

    def _break_off(self, error: ssl.SSLError) -> None:
        # Under TLS 1.3 a node learns only here that its certificate was refused.
        reason = self._reason_of(error)
        _log.warning(
            "tls_record_refused",
            peer=self._connection.peer,
            listener=self._settings.listener_name,
            reason=reason,
        )
        self._failure = RemoteProtocolError(f"a TLS record was refused: {reason}")
        self.abort()

    def _end_if_read(self) -> None:
        """End the stream, unless a pause holds back bytes before its end."""
        if not self._is_reading_paused:
            self._end()

    def _end(self) -> None:
        if not (self._is_closing or self._connection.eof_received()):
            self.close()

    # --- writing ---------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Encrypt queued bytes while the socket takes them, at most :data:`SLICE_BYTES`."""
        left = SLICE_BYTES if self._is_secured else 0
        while self._queue and left > 0 and not (self._is_socket_full or self._is_finished):
            left -= self._encrypt_chunk()
        is_over = not self._queue or self._is_socket_full or self._is_finished
        if not (is_over or self._is_flush_scheduled) and self._is_secured:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._continue_flush)
        self._update_pause()
        if self._is_closing and not (self._queue and self._is_secured):
            self._finish()

    def _continue_flush(self) -> None:
        self._is_flush_scheduled = False
        self._flush()

    def _encrypt_chunk(self) -> int:
        """Encrypt up to 64 KiB and pass them to the socket; return the number of plain bytes."""
        assert self._tls is not None
        size_bytes = 0
        while self._queue and size_bytes < _CHUNK_BYTES:
            record = self._next_record()
            self._tls.write(record)
            size_bytes += len(record)
        self._queued_bytes -= size_bytes
        self._send()
        return size_bytes

    def _next_record(self) -> Buffer:
        """Take the bytes of the next record off the queue. Small buffers share a record."""
        first = self._queue.popleft()
        if len(first) > _RECORD_BYTES:
            self._queue.appendleft(first[_RECORD_BYTES:])
            return first[:_RECORD_BYTES]
        if not self._queue or len(first) == _RECORD_BYTES:
            return first
        if self._queued_bytes <= _RECORD_BYTES:
            record = b"".join((first, *self._queue))
            self._queue.clear()
            return record
        joined = bytearray(first)
        while self._queue and len(joined) < _RECORD_BYTES:
            room = _RECORD_BYTES - len(joined)
            following = self._queue.popleft()
            joined += following[:room]
            if len(following) > room:
                self._queue.appendleft(following[room:])
        return joined

    def _send(self) -> None:
        if self._outgoing.pending and self._socket is not None:
            self._socket.write(self._outgoing.read())

    def _update_pause(self) -> None:
        """Pause or resume the connection's writing.

        The socket's transport has the same limits, so its callbacks report the end of a pause.
        """
        if not self._is_writing_paused:
            if self.get_write_buffer_size() > self._high_bytes:
                self._is_writing_paused = True
                self._connection.pause_writing()
        elif not (self._queue or self._is_socket_full):
            self._is_writing_paused = False
            self._connection.resume_writing()

    def _drop_queue(self) -> None:
        self._queue.clear()
        self._queued_bytes = 0

    def _finish(self) -> None:
        """Send close_notify and close the socket; all bytes of the connection were passed to it."""
        if self._is_finished:
            return
        self._is_finished = True
        if self._is_secured and self._tls is not None:
            # Raised in any case, because the close_notify of the client is not awaited.
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()
            self._send()
        if self._socket is not None:
            self._socket.close()
