"""The RPC server and its client over real sockets."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgpack
import pytest
from structlog.testing import capture_logs

from kraftjbod.core.allowed_hosts import AllowedHosts
from kraftjbod.core.errors import ConnectionLostError, ErrorCode, NotControllerError, OperatingError
from kraftjbod.core.ids import BrokerId, ConnectionId
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.net.cluster_peers import ClusterPeers
from kraftjbod.net.listener import Listener, ListenerLimits
from kraftjbod.net.request_session import SessionLimits
from kraftjbod.net.rpc_client import RpcClient
from kraftjbod.net.rpc_server import rpc_server
from kraftjbod.protocol import rpc_codec
from kraftjbod.protocol.rpc_codec import encode_request
from kraftjbod.protocol.rpc_messages import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    RpcRequest,
    RpcResponse,
)
from tests.unit.net.closed_connections import is_closed


def ask(broker_id: int) -> AllocateProducerIdsRequest:
    return AllocateProducerIdsRequest.model_validate({"broker_id": broker_id, "broker_epoch": 0})


class Handler:
    """Answer a broker with its own id; 1 waits for ``held``, 2 is refused, 3 raises an error."""

    def __init__(self) -> None:
        self.held = asyncio.Event()
        self.started: asyncio.Queue[int] = asyncio.Queue()
        #: The last connection of each broker.
        self.connections: dict[int, ConnectionId] = {}

    async def __call__(self, request: RpcRequest, connection: ConnectionId) -> RpcResponse:
        assert isinstance(request, AllocateProducerIdsRequest)
        self.connections[request.broker_id] = connection
        self.started.put_nowait(request.broker_id)
        match request.broker_id:
            case 1:
                await self.held.wait()
            case 2:
                raise NotControllerError("ask the other one")
            case 3:
                raise KeyError("bug")
        fields = dict.fromkeys(AllocateProducerIdsResponse.model_fields, request.broker_id)
        return AllocateProducerIdsResponse.model_validate(fields)


def answered(response: Any) -> int:
    assert isinstance(response, AllocateProducerIdsResponse)
    return int(next(iter(response.model_dump().values())))


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[tuple[Listener, RpcClient, Handler]]:
    handler = Handler()
    server = rpc_server(host="127.0.0.1", port=0, handler=handler, **options)
    await server.start()
    client = new_client(server.port)
    try:
        yield server, client, handler
    finally:
        client.close()
        await server.close(timeout_ms=0)


def new_client(port: int, **options: Any) -> RpcClient:
    backoff = ExponentialBackoff(initial_ms=1, max_ms=4, random_unit=lambda: 0.5)
    return RpcClient("127.0.0.1", port, backoff=backoff, **options)


async def test_rpc_server_answers_calls_in_order_of_completion() -> None:
    async with serving() as (_, client, handler):
        slow = asyncio.create_task(client.call(ask(1), timeout_ms=5000))
        assert await handler.started.get() == 1
        assert answered(await client.call(ask(7), timeout_ms=5000)) == 7
        assert not slow.done()
        handler.held.set()
        assert answered(await slow) == 1


async def test_rpc_server_error_reaches_the_client_with_code_and_message() -> None:
    async with serving() as (server, client, _):
        with pytest.raises(OperatingError, match="ask the other one") as caught:
            await client.call(ask(2), timeout_ms=5000)
        assert caught.value.code is ErrorCode.NOT_CONTROLLER
        assert answered(await client.call(ask(7), timeout_ms=5000)) == 7
        assert server.connection_count == 1


async def test_rpc_server_refuses_requests_of_hosts_that_are_no_members() -> None:
    members = ClusterPeers(AllowedHosts.parse(["127.0.0.66"]))
    async with serving(peers=members) as (server, client, handler):
        with pytest.raises(OperatingError, match=r"from 127\.0\.0\.1 is refused") as caught:
            await client.call(ask(8), timeout_ms=5000)
        assert caught.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert handler.started.empty()
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", server.port, local_addr=("127.0.0.66", 0)
        )
        writer.write(rpc_codec.encode_request(3, ask(7)))
        (length,) = struct.unpack(">I", await reader.readexactly(4))
        answer = rpc_codec.decode_response(await reader.readexactly(length))
        assert answered(answer.parse(AllocateProducerIdsResponse)) == 7
        writer.close()


async def test_rpc_server_refuses_without_decoding_the_body() -> None:
    """Only a member breaks the protocol by a body that is not msgpack; other hosts are refused."""
    members = ClusterPeers(AllowedHosts.parse(["127.0.0.66"]))
    async with serving(peers=members) as (server, _, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        frame = b"\x95\x00\x07" + msgpack.packb("BrokerHeartbeat") + b"\x01" + b"\xc1" * 100
        with capture_logs() as logs:
            writer.write(struct.pack(">I", len(frame)) + frame)
            (length,) = struct.unpack(">I", await reader.readexactly(4))
            answer = rpc_codec.decode_response(await reader.readexactly(length))
        assert answer.correlation_id == 7
        assert answer.error is not None
        assert answer.error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        writer.close()
    (logged,) = [event for event in logs if event["event"] == "cluster_action_refused"]
    assert (logged["api"], logged["log_level"]) == ("BrokerHeartbeat", "warning")


async def test_rpc_server_failing_handler_closes_only_its_connection() -> None:
    async with serving() as (server, client, _):
        other = new_client(server.port)
        assert answered(await other.call(ask(7), timeout_ms=5000)) == 7
        with capture_logs() as logs, pytest.raises(ConnectionLostError):
            await client.call(ask(3), timeout_ms=5000)
        failed = [("request_handler_failed", "AllocateProducerIds")]
        assert [(e["event"], e["api"]) for e in logs] == failed
        assert answered(await other.call(ask(8), timeout_ms=5000)) == 8
        other.close()


async def test_rpc_server_limits_requests_in_flight() -> None:
    limits = SessionLimits(max_in_flight_requests=1, max_in_flight_bytes=1 << 20)
    async with serving(limits=ListenerLimits(session=limits)) as (_, client, handler):
        first = asyncio.create_task(client.call(ask(1), timeout_ms=5000))
        assert await handler.started.get() == 1
        second = asyncio.create_task(client.call(ask(7), timeout_ms=5000))
        await asyncio.sleep(0.02)
        assert handler.started.empty()
        handler.held.set()
        assert [answered(await first), answered(await second)] == [1, 7]


async def test_rpc_server_answers_an_unknown_api_with_unsupported_version() -> None:
    async with serving() as (server, _, _handler):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for correlation_id, api, version in ((5, "NoSuchApi", 0), (6, "BrokerHeartbeat", 999)):
            frame = msgpack.packb([0, correlation_id, api, version, {}])
            writer.write(struct.pack(">I", len(frame)) + frame)
            (length,) = struct.unpack(">I", await reader.readexactly(4))
            answer = msgpack.unpackb(await reader.readexactly(length))
            assert answer[:3] == [1, correlation_id, ErrorCode.UNSUPPORTED_VERSION]
            assert api in answer[3]
        writer.close()


async def test_rpc_server_bad_client_is_logged_once_and_other_clients_are_served() -> None:
    chance = random.Random(21)
    bad = [
        struct.pack(">I", 1 << 31),
        struct.pack(">I", 1 << 30),
        struct.pack(">I", 5) + b"\xdd\xff\xff\xff\xff",
        *(struct.pack(">I", 40) + chance.randbytes(40) for _ in range(20)),
    ]
    async with serving() as (server, client, _):
        for stream in bad:
            await client.call(ask(7), timeout_ms=5000)
            with capture_logs() as logs:
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(stream)
                assert await is_closed(reader)
                writer.close()
            assert [e["event"] for e in logs] == ["connection_broke_protocol"]
        assert server.connection_count == 1


async def test_rpc_server_reports_a_connection_closed_by_the_peer() -> None:
    """It is reported once with the handler's connection id, and no further request is handled."""
    closed: asyncio.Queue[tuple[ConnectionId, bool]] = asyncio.Queue()
    async with serving(on_peer_closed=lambda *end: closed.put_nowait(end)) as (
        server,
        client,
        handler,
    ):
        lost: list[str] = []
        leaving = new_client(server.port, on_lost=lambda: lost.append("by this side"))
        assert answered(await leaving.call(ask(7), timeout_ms=5000)) == 7
        waiting = asyncio.create_task(client.call(ask(1), timeout_ms=5000))
        while 1 not in (seen := handler.connections):
            await asyncio.sleep(0)
        assert seen[1] != seen[7]
        leaving.close()
        assert await closed.get() == (seen[7], False)
        waiting.cancel()
        client.close()
        assert await closed.get() == (seen[1], False)
        stays = new_client(server.port, on_lost=lambda: lost.append("by the other side"))
        assert answered(await stays.call(ask(8), timeout_ms=5000)) == 8
        await server.close(timeout_ms=1_000)
        while not lost:
            await asyncio.sleep(0)
        assert lost == ["by the other side"]
        assert closed.empty(), "this side closed it"
        stays.close()


async def test_rpc_server_reports_a_reset_connection_as_reset() -> None:
    """A firewall may send a reset, which the peer need not know; only its kernel sends an end."""
    closed: asyncio.Queue[tuple[ConnectionId, bool]] = asyncio.Queue()
    async with serving(on_peer_closed=lambda *end: closed.put_nowait(end)) as (
        server,
        client,
        handler,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(encode_request(0, ask(7)))
        await reader.readexactly(4)
        reset = writer.get_extra_info("socket")
        reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        assert answered(await client.call(ask(8), timeout_ms=5000)) == 8
        assert await closed.get() == (handler.connections[BrokerId(7)], True)
        client.close()
        assert await closed.get() == (handler.connections[BrokerId(8)], False)


async def test_rpc_server_close_answers_requests_in_flight() -> None:
    async with serving() as (server, client, handler):
        slow = asyncio.create_task(client.call(ask(1), timeout_ms=5000))
        assert await handler.started.get() == 1
        closing = asyncio.create_task(server.close(timeout_ms=60_000))
        await asyncio.sleep(0)
        handler.held.set()
        assert answered(await slow) == 1
        await closing
        with pytest.raises(ConnectionLostError):
            await client.call(ask(7), timeout_ms=5000)
        assert "rpc" in repr(server)
