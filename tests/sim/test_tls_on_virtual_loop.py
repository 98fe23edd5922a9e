"""TLS between nodes on the event loop of the simulation: handshakes, calls, and ends of hosts."""

from __future__ import annotations

import random
import ssl
from pathlib import Path

import pytest

from kraftjbod.core.errors import ConnectionLostError, RequestTimedOutError
from kraftjbod.core.ids import BrokerId, ConnectionId
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.net.dialer import Dialer
from kraftjbod.net.rpc_client import RpcClient
from kraftjbod.net.rpc_server import rpc_server
from kraftjbod.net.tls_transport import TlsSettings
from kraftjbod.protocol.rpc_messages import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    RpcRequest,
    RpcResponse,
)
from tests.certificates import Authority
from tests.sim.net_rig import Net

_PORT = 9090
ASK = AllocateProducerIdsRequest(broker_id=BrokerId(1), broker_epoch=0)


class TlsNet(Net):
    """Host ``b`` serves the RPC over TLS, and host ``a`` has a client."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        authority = Authority()
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(authority.issue("b").write_pem(path / "b.pem"))
        server.load_verify_locations(cadata=authority.pem.decode())
        server.verify_mode = ssl.CERT_REQUIRED
        client = authority.client_context()
        client.check_hostname = False
        client.load_cert_chain(authority.issue("a").write_pem(path / "a.pem"))
        #: Ids of connections that the client closed, and whether by a reset.
        self.closed: list[tuple[ConnectionId, bool]] = []
        self.run(self._serve(server), "b")
        self.client: RpcClient = self.run(self._make_client(client), "a")

    async def _serve(self, context: ssl.SSLContext) -> None:
        listener = rpc_server(
            host="b",
            port=_PORT,
            handler=self._handle,
            on_peer_closed=lambda connection, is_reset: self.closed.append((connection, is_reset)),
            tls=TlsSettings(listener_name="CONTROLLER", context=lambda: context),
        )
        await listener.start()

    async def _handle(self, _request: RpcRequest, _connection: ConnectionId) -> RpcResponse:
        return AllocateProducerIdsResponse(producer_id_start=7, producer_id_count=1)

    async def _make_client(self, context: ssl.SSLContext) -> RpcClient:
        dialer = Dialer(TlsSettings(listener_name="CONTROLLER", context=lambda: context))
        backoff = ExponentialBackoff(initial_ms=10, max_ms=100, random_unit=random.Random(1).random)
        return RpcClient("b", _PORT, backoff=backoff, dialer=dialer)

    def call(self) -> RpcResponse:
        response: RpcResponse = self.run(self.client.call(ASK, timeout_ms=500), "a")
        return response


def test_calls_are_answered_over_tls(tmp_path: Path) -> None:
    net = TlsNet(tmp_path)
    for _ in range(3):
        assert net.call() == AllocateProducerIdsResponse(producer_id_start=7, producer_id_count=1)
    assert net.closed == []


def test_killed_client_is_reported_as_closed_by_the_peer(tmp_path: Path) -> None:
    net = TlsNet(tmp_path)
    net.call()
    net.loops["a"].is_dead = True
    net.network.end_process(net.loops["a"], says_so=True)
    net.run_for(1)
    assert [is_reset for _, is_reset in net.closed] == [False]


def test_partition_during_the_handshake_ends_the_call_at_its_timeout(tmp_path: Path) -> None:
    net = TlsNet(tmp_path)
    net.network.partition("a", "b")
    with pytest.raises((RequestTimedOutError, ConnectionLostError)):
        net.call()
    net.network.heal("a", "b")
    net.run_for(1)
    assert net.call() == AllocateProducerIdsResponse(producer_id_start=7, producer_id_count=1)
