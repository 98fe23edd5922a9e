"""``RpcClient`` with a peer that is slow, absent, back again, or wrong."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgpack
import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import ConnectionLostError, OverloadedError, RequestTimedOutError
from kraftjbod.core.ids import ConnectionId
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.net.rpc_client import RpcClient
from kraftjbod.net.rpc_server import rpc_server
from kraftjbod.protocol.rpc_messages import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    RpcRequest,
    RpcResponse,
)

REQUEST = AllocateProducerIdsRequest.model_validate({"broker_id": 1, "broker_epoch": 0})
ANSWER = dict.fromkeys(AllocateProducerIdsResponse.model_fields, 4)


async def answers(_request: RpcRequest, _connection: ConnectionId) -> RpcResponse:
    return AllocateProducerIdsResponse.model_validate(ANSWER)


async def never(_request: RpcRequest, _connection: ConnectionId) -> RpcResponse:
    await asyncio.Event().wait()
    raise AssertionError


@asynccontextmanager
async def peer(answer: Callable[[int], bytes]) -> AsyncIterator[int]:
    """Run a peer that answers each request with ``answer(correlation_id)``, and return its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (length,) = struct.unpack(">I", await reader.readexactly(4))
                request = msgpack.unpackb(await reader.readexactly(length))
                frame = answer(request[1])
                writer.write(struct.pack(">I", len(frame)) + frame)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def new_client(port: int, waits: list[int] | None = None, **options: Any) -> RpcClient:
    class Noted(ExponentialBackoff):
        """Record the number of failures of each call."""

        def wait_ms(self, failures: int) -> int:
            if waits is not None:
                waits.append(failures)
            return super().wait_ms(failures)

    backoff = Noted(initial_ms=1, max_ms=2, random_unit=lambda: 0.5)
    return RpcClient("127.0.0.1", port, backoff=backoff, **options)


async def test_rpc_client_reconnects_with_backoff_when_the_peer_returns() -> None:
    waits: list[int] = []
    server = rpc_server(host="127.0.0.1", port=0, handler=answers)
    await server.start()
    port = server.port
    client = new_client(port, waits)
    await client.call(REQUEST, timeout_ms=5000)
    await server.close(timeout_ms=1000)
    # One call may still be sent before the loss is noticed; it causes no backoff.
    while len(waits) < 3:
        with pytest.raises(ConnectionLostError):
            await client.call(REQUEST, timeout_ms=5000)
    assert waits == [1, 2, 3]
    assert "failures=3" in repr(client)
    server = rpc_server(host="127.0.0.1", port=port, handler=answers)
    await server.start()
    assert isinstance(await client.call(REQUEST, timeout_ms=5000), AllocateProducerIdsResponse)
    await server.close(timeout_ms=1000)
    while len(waits) < 4:
        with pytest.raises(ConnectionLostError):
            await client.call(REQUEST, timeout_ms=5000)
    assert waits == [1, 2, 3, 1]
    client.close()
    with pytest.raises(ConnectionLostError, match="is closed"):
        await client.call(REQUEST, timeout_ms=5000)


async def test_rpc_client_late_answer_does_not_affect_later_calls() -> None:
    held: list[RpcRequest] = []
    go = asyncio.Event()

    async def first_waits(request: RpcRequest, _connection: ConnectionId) -> RpcResponse:
        if not held:
            held.append(request)
            await go.wait()
        return await answers(request, _connection)

    server = rpc_server(host="127.0.0.1", port=0, handler=first_waits)
    await server.start()
    client = new_client(server.port)
    with pytest.raises(RequestTimedOutError, match="AllocateProducerIds was not answered"):
        await client.call(REQUEST, timeout_ms=30)
    go.set()
    await client.call(REQUEST, timeout_ms=5000)
    await client.call(REQUEST, timeout_ms=5000)
    assert server.connection_count == 1
    client.close()
    await server.close(timeout_ms=1000)


async def test_rpc_client_limits_calls_in_flight_and_close_fails_them() -> None:
    server = rpc_server(host="127.0.0.1", port=0, handler=never)
    await server.start()
    client = new_client(server.port, max_in_flight=2)
    calls = [asyncio.create_task(client.call(REQUEST, timeout_ms=60_000)) for _ in range(3)]
    done, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    assert [type(call.exception()) for call in done] == [OverloadedError]
    client.close()
    for call in waiting:
        with pytest.raises(ConnectionLostError, match="closed by this side"):
            await call
    await server.close(timeout_ms=0)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda c: b"\xc1", "no msgpack"),
        (lambda c: msgpack.packb([1, c + 9, 0, "", ANSWER]), "not made"),
        (lambda c: msgpack.packb([1, c, 0, "", {"other": 1}]), "no AllocateProducerIdsResponse"),
    ],
)
async def test_rpc_client_closes_on_an_answer_that_breaks_the_protocol(
    answer: Callable[[int], bytes], reason: str
) -> None:
    waits: list[int] = []
    async with peer(answer) as port:
        client = new_client(port, waits)
        with capture_logs() as logs, pytest.raises(ConnectionLostError, match=reason):
            await client.call(REQUEST, timeout_ms=5000)
        assert [e["event"] for e in logs] == ["connection_broke_protocol"]
        client.close()
