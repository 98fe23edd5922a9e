"""Outgoing connections with TLS, over real sockets and with both event loops."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import ConnectionLostError, ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerId, ConnectionId
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.core.node_principals import NodePrincipals
from kraftjbod.net.connection import Connection, ConnectionLimits
from kraftjbod.net.dialer import PLAIN, Dialer
from kraftjbod.net.rpc_client import RpcClient
from kraftjbod.net.rpc_server import rpc_server
from kraftjbod.net.tls.contexts import distinguished_name
from kraftjbod.net.tls_transport import TlsSettings
from kraftjbod.protocol.framing import Frame
from kraftjbod.protocol.rpc_messages import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    RpcRequest,
    RpcResponse,
)
from kraftjbod.protocol.rpc_quorum_messages import DescribeQuorumRequestRpc
from tests.certificates import Authority, Identity

TIMEOUT_MS = 10_000
PRINCIPALS = NodePrincipals.parse("User:broker-{id}")
ASK = AllocateProducerIdsRequest(broker_id=BrokerId(1), broker_epoch=0)
LIMITS = ConnectionLimits(max_frame_bytes=1024)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


class Receiver:
    """Receives nothing."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def frame_received(self, frame: Frame) -> None:
        raise AssertionError("nothing was requested")

    def writing_resumed(self) -> None:
        """Nothing waits for it."""

    def connection_closed(self, reason: str) -> None:
        """Nothing waits for it."""


class Rig:
    """An RPC listener with TLS that requires the certificates of nodes."""

    def __init__(self, authority: Authority, path: Path, host: str, *, is_plain: bool) -> None:
        self.authority = authority
        self._path = path
        self._host = host
        #: Connections that their peers closed, and whether by a reset.
        self.closed: list[tuple[ConnectionId, bool]] = []
        context = self._server_context()
        tls = TlsSettings(
            listener_name="CONTROLLER", context=lambda: context, principal_of=self._principal_of
        )
        self.listener = rpc_server(
            host=host,
            port=0,
            handler=self._handle,
            on_peer_closed=lambda connection, is_reset: self.closed.append((connection, is_reset)),
            tls=None if is_plain else tls,
            node_principals=None if is_plain else PRINCIPALS,
        )

    async def _handle(self, request: RpcRequest, _connection: ConnectionId) -> RpcResponse:
        assert isinstance(request, AllocateProducerIdsRequest)
        return AllocateProducerIdsResponse(producer_id_start=7, producer_id_count=1)

    def _principal_of(self, certificate: bytes | None) -> str:
        assert certificate is not None
        return f"User:{distinguished_name(certificate).removeprefix('CN=')}"

    def _server_context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.authority.issue().write_pem(self._path / "server.pem"))
        context.load_verify_locations(cadata=self.authority.pem.decode())
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def dialer(self, identity: Identity | None, trusted: Authority | None = None) -> Dialer:
        context = (trusted or self.authority).client_context()
        if identity is not None:
            context.load_cert_chain(identity.write_pem(self._path / "client.pem"))
        return Dialer(TlsSettings(listener_name="CONTROLLER", context=lambda: context))

    def client(self, dialer: Dialer) -> RpcClient:
        backoff = ExponentialBackoff(initial_ms=1, max_ms=10, random_unit=random.random)
        return RpcClient(self._host, self.listener.port, backoff=backoff, dialer=dialer)


@asynccontextmanager
async def serving(
    authority: Authority, path: Path, *, host: str = "127.0.0.1", is_plain: bool = False
) -> AsyncIterator[Rig]:
    rig = Rig(authority, path, host, is_plain=is_plain)
    await rig.listener.start()
    try:
        yield rig
    finally:
        await rig.listener.close(timeout_ms=1_000)


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_MS / 1000):
        while not is_true():
            await asyncio.sleep(0.005)


async def test_node_with_its_certificate_is_served(authority: Authority, tmp_path: Path) -> None:
    async with serving(authority, tmp_path) as rig:
        client = rig.client(rig.dialer(authority.issue("broker-1")))
        for _ in range(3):
            response = await client.call(ASK, timeout_ms=TIMEOUT_MS)
            assert response.producer_id_start == 7
        assert rig.listener.connection_count == 1
        client.close()


async def test_request_of_another_node_is_refused_and_its_connection_closed(
    authority: Authority, tmp_path: Path
) -> None:
    async with serving(authority, tmp_path) as rig:
        client = rig.client(rig.dialer(authority.issue("broker-2")))
        with capture_logs() as logs, pytest.raises(OperatingError, match="only for node 1") as one:
            await client.call(ASK, timeout_ms=TIMEOUT_MS)
        assert one.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert [event["event"] for event in logs] == ["node_principal_refused"]
        await until(lambda: rig.listener.connection_count == 0)
        client.close()


async def test_request_of_a_client_that_is_no_node_is_refused(
    authority: Authority, tmp_path: Path
) -> None:
    async with serving(authority, tmp_path) as rig:
        client = rig.client(rig.dialer(authority.issue("alice")))
        with pytest.raises(OperatingError, match="only for a broker or controller") as refused:
            await client.call(DescribeQuorumRequestRpc(), timeout_ms=TIMEOUT_MS)
        assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        client.close()


@pytest.mark.parametrize("credentials", ["no-certificate", "untrusted", "plaintext"])
async def test_peer_without_trusted_certificate_gets_no_response(
    authority: Authority, tmp_path: Path, credentials: str
) -> None:
    async with serving(authority, tmp_path) as rig:
        dialer = {
            "no-certificate": rig.dialer(None),
            "untrusted": rig.dialer(Authority("other").issue("broker-1")),
            "plaintext": PLAIN,
        }[credentials]
        client = rig.client(dialer)
        with pytest.raises(ConnectionLostError):
            await client.call(ASK, timeout_ms=TIMEOUT_MS)
        await until(lambda: rig.listener.connection_count == 0)
        client.close()


async def test_connect_fails_if_another_authority_signed_the_listeners_certificate(
    authority: Authority, tmp_path: Path
) -> None:
    async with serving(authority, tmp_path) as rig:
        client = rig.client(rig.dialer(authority.issue("broker-1"), Authority("other")))
        with pytest.raises(ConnectionLostError, match="certificate of the listener is not signed"):
            await client.call(ASK, timeout_ms=TIMEOUT_MS)
        client.close()


async def test_connect_fails_if_the_certificate_has_another_host_name(
    authority: Authority, tmp_path: Path
) -> None:
    async with serving(authority, tmp_path, host="127.0.0.2") as rig:
        client = rig.client(rig.dialer(authority.issue("broker-1")))
        with pytest.raises(ConnectionLostError, match="IP address mismatch"):
            await client.call(ASK, timeout_ms=TIMEOUT_MS)
        client.close()


async def test_connect_to_a_plaintext_listener_fails(authority: Authority, tmp_path: Path) -> None:
    async with serving(authority, tmp_path, is_plain=True) as rig:
        client = rig.client(rig.dialer(authority.issue("broker-1")))
        with pytest.raises(ConnectionLostError, match="cannot connect"):
            await client.call(ASK, timeout_ms=TIMEOUT_MS)
        client.close()


async def test_tls_connect_to_a_silent_listener_fails_at_its_timeout(
    authority: Authority, tmp_path: Path
) -> None:
    """The socket of the attempt is closed, and no exception stays unretrieved."""
    ended = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(4096):
            pass
        ended.set()
        writer.close()

    context = authority.client_context()
    dialer = Dialer(TlsSettings(listener_name="CONTROLLER", context=lambda: context))
    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(ConnectionLostError, match="did not answer within 50 ms"):
        await dialer.connect(
            "127.0.0.1",
            port,
            make_receiver=lambda _connection: pytest.fail("no connection is open"),
            limits=LIMITS,
            timeout_ms=50,
        )
    async with asyncio.timeout(TIMEOUT_MS / 1000):
        await ended.wait()
    server.close()


async def test_closed_tls_connection_is_reported_as_closed_by_the_peer(
    authority: Authority, tmp_path: Path
) -> None:
    """As after the death of a process, whose kernel ends the stream without close_notify."""
    async with serving(authority, tmp_path) as rig:
        dialer = rig.dialer(authority.issue("broker-1"))
        receiver = await dialer.connect(
            "127.0.0.1",
            rig.listener.port,
            make_receiver=Receiver,
            limits=LIMITS,
            timeout_ms=TIMEOUT_MS,
        )
        await until(lambda: rig.listener.connection_count == 1)
        with socket.socket(fileno=os.dup(receiver.connection.descriptor)) as own:
            own.shutdown(socket.SHUT_WR)
        await until(lambda: bool(rig.closed))
        assert [is_reset for _, is_reset in rig.closed] == [False]
        await until(lambda: not receiver.connection.is_open)
