"""LOOP. ``Dialer``: opens the outgoing connections of a node or a tool, with TLS or without.

A dialer for the RPC has the credential with which ``RpcClient`` logs in on each connection.

All clients of this package use it, so that one place decides how connections are secured. The
handshake is part of connecting: its failure is a :class:`ConnectionLostError` with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from kraftjbod.net.connection import Connection, ConnectionLimits, FrameReceiver, connect
from kraftjbod.net.plain_credential import PlainCredential
from kraftjbod.net.tls_transport import HandshakeTurns, TlsSettings, TlsTransport

R = TypeVar("R", bound=FrameReceiver)


class Dialer:
    """Opens outgoing connections with one security: plain TCP or the given TLS, and with the
    credential for RPC connections, if any. Not thread-safe.
    """

    def __init__(
        self, tls: TlsSettings | None = None, *, credential: PlainCredential | None = None
    ) -> None:
        """:param tls: a client's TLS settings; None for plaintext.
        :param credential: for listeners of the RPC with SASL; None: no login.
        """
        self._tls = tls
        self.credential = credential
        self._handshakes = HandshakeTurns()

    def __repr__(self) -> str:
        login = "" if self.credential is None else f" as {self.credential.user}"
        return f"<Dialer {'PLAINTEXT' if self._tls is None else 'SSL'}{login}>"

    def with_credential(self, credential: PlainCredential) -> Dialer:
        """Return a dialer with the same TLS, whose RPC connections log in with ``credential``."""
        return Dialer(self._tls, credential=credential)

    async def connect(
        self,
        host: str,
        port: int,
        *,
        make_receiver: Callable[[Connection], R],
        limits: ConnectionLimits,
        timeout_ms: int,
    ) -> R:
        """Connect to ``host:port`` and return the receiver that ``make_receiver`` creates.

        :raises ConnectionLostError: the connection is not open, with its TLS handshake complete,
            within ``timeout_ms``.
        """
        return await connect(
            host,
            port,
            make_receiver=make_receiver,
            limits=limits,
            timeout_ms=timeout_ms,
            secure=None if self._tls is None else partial(self._secure, self._tls, host),
        )

    def _secure(self, tls: TlsSettings, host: str, connection: Connection) -> TlsTransport:
        return TlsTransport(connection, tls, self._handshakes, dialed_host=host)


#: Opens connections without TLS.
PLAIN: Final = Dialer()
