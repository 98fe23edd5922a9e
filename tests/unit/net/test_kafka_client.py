"""``KafkaConnection`` as a client of the Kafka server, and of brokers that misbehave."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import (
    ConnectionLostError,
    ErrorCode,
    OperatingError,
    OverloadedError,
    RequestTimedOutError,
)
from kraftjbod.net.kafka_client import KafkaConnection
from kraftjbod.net.kafka_server import kafka_server
from kraftjbod.net.listener import Listener
from kraftjbod.protocol.kafka_codec import (
    Message,
    RequestHeader,
    api_versions_response,
    decode_request,
    encode_response,
)
from kraftjbod.protocol.messages import ApiVersionsResponse, FetchRequest, FetchResponse

Broker = Callable[[bytes], bytes | None]


async def echo_session(header: RequestHeader, body: Message, info: object) -> Message | None:
    """Answer a Fetch with its session id and records, but never the session -1."""
    if body.session_id == -1:
        await asyncio.Event().wait()
    partition = FetchResponse.PartitionData(partition_index=0, records=bytes(1 << 20))
    topic = FetchResponse.FetchableTopicResponse(partitions=[partition])
    return FetchResponse(session_id=body.session_id, responses=[topic])  # type: ignore[no-any-return]  # generated


@asynccontextmanager
async def server() -> AsyncIterator[Listener]:
    made = kafka_server(host="127.0.0.1", port=0, handler=echo_session)
    await made.start()
    try:
        yield made
    finally:
        await made.close(timeout_ms=0)


@asynccontextmanager
async def broker(answer: Broker) -> AsyncIterator[int]:
    """Run a broker that answers each request frame with ``answer(frame)``, and return its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (length,) = struct.unpack(">i", await reader.readexactly(4))
                answered = answer(await reader.readexactly(length))
                if answered is None:
                    break
                writer.write(answered)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return
        finally:
            writer.close()

    made = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield made.sockets[0].getsockname()[1]
    finally:
        made.close()


def connect(port: int, **options: Any) -> Awaitable[KafkaConnection]:
    options = {"client_id": "test", "timeout_ms": 5000, **options}
    return KafkaConnection.connect("127.0.0.1", port, **options)


async def test_kafka_connection_pipelined_requests_get_their_responses() -> None:
    async with server() as made:
        client = await connect(made.port)
        asked = [client.request(FetchRequest(session_id=i), timeout_ms=5000) for i in range(5)]
        answers = await asyncio.gather(*asked)
        assert [a.session_id for a in answers] == list(range(5))
        records = answers[0].responses[0].partitions[0].records
        assert isinstance(records, memoryview)
        assert len(records) == 1 << 20
        assert "in_flight=0" in repr(client)
        client.close()
        with pytest.raises(ConnectionLostError):
            await client.request(FetchRequest(), timeout_ms=5000)


async def test_kafka_connection_request_uses_the_given_version() -> None:
    async with server() as made:
        client = await connect(made.port)
        answer = await client.request(FetchRequest(session_id=3), timeout_ms=5000, version=7)
        assert answer.session_id == 3
        client.close()


async def test_kafka_connection_request_timeout_closes_the_connection() -> None:
    async with server() as made:
        client = await connect(made.port)
        behind = asyncio.create_task(client.request(FetchRequest(session_id=-1), timeout_ms=60_000))
        with pytest.raises(RequestTimedOutError, match="Fetch was not answered within 20 ms"):
            await client.request(FetchRequest(session_id=-1), timeout_ms=20)
        with pytest.raises(ConnectionLostError):
            await behind
        assert not client.is_open


async def test_kafka_connection_refuses_requests_beyond_max_in_flight() -> None:
    async with server() as made:
        client = await connect(made.port, max_in_flight=1)
        first = asyncio.create_task(client.request(FetchRequest(session_id=-1), timeout_ms=60_000))
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            await client.request(FetchRequest(), timeout_ms=5000)
        client.close()
        with pytest.raises(ConnectionLostError, match="closed by this side"):
            await first


def versions_answer(frame: bytes, *ranges: tuple[int, int, int], error: int = 0) -> bytes:
    header, _ = decode_request(frame)
    keys = [
        ApiVersionsResponse.ApiVersion(api_key=k, min_version=a, max_version=b)
        for k, a, b in ranges
    ]
    body = ApiVersionsResponse(api_keys=keys, error_code=error)
    return b"".join(encode_response(header, body))


async def test_kafka_connection_version_of_returns_the_highest_common_version() -> None:
    async with broker(lambda f: versions_answer(f, (1, 0, 11), (3, 99, 99), (999, 0, 1))) as port:
        client = await connect(port)
        assert client.version_of(1) == 11
        for api_key in (3, 0, 999):
            with pytest.raises(OperatingError) as caught:
                client.version_of(api_key)
            assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
        client.close()


async def test_kafka_connection_falls_back_to_api_versions_0() -> None:
    def old(frame: bytes) -> bytes:
        header, _ = decode_request(frame)
        if header.api_version > 0:
            header = header._replace(api_version=99)
        return b"".join(api_versions_response(header))

    async with broker(old) as port:
        client = await connect(port)
        assert client.version_of(1) == 16
        client.close()


async def test_kafka_connection_fails_if_api_versions_is_refused() -> None:
    async with broker(lambda f: versions_answer(f, error=58)) as port:
        with pytest.raises(OperatingError, match="error 58"):
            await connect(port)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda f: struct.pack(">ii", 4, 77), "a response is to request 77, expected 0"),
        (lambda f: struct.pack(">ih", 2, 0), "names no request"),
        (lambda f: struct.pack(">iih", 6, 0, 0), "ApiVersionsResponse v4 is malformed"),
        (lambda f: struct.pack(">i", -1), "a frame of -1 bytes"),
    ],
)
async def test_kafka_connection_closes_on_a_response_that_breaks_the_protocol(
    answer: Broker, reason: str
) -> None:
    async with broker(answer) as port:
        with capture_logs() as logs, pytest.raises(ConnectionLostError, match=reason):
            await connect(port)
        assert [e["event"] for e in logs] == ["connection_broke_protocol"]


async def test_kafka_connection_closes_on_an_unexpected_response() -> None:
    async with broker(lambda f: versions_answer(f, (1, 0, 11)) * 2) as port:
        with capture_logs() as logs:
            client = await connect(port)
            with pytest.raises(ConnectionLostError):
                await client.request(FetchRequest(), timeout_ms=5000)
        assert [e["reason"] for e in logs] == ["a response came that answers no request"]


async def test_kafka_connection_fails_if_the_broker_closes() -> None:
    async with broker(lambda f: None) as port:
        with pytest.raises(ConnectionLostError, match="closed by the peer"):
            await connect(port)


async def test_kafka_connection_logs_in_again_once_for_requests_late_in_the_session() -> None:
    lifetimes_ms = iter([1, 600_000])
    logins = 0

    async def log_in(_connection: KafkaConnection, _timeout_ms: int) -> int:
        nonlocal logins
        logins += 1
        # Other requests come during the login.
        await asyncio.sleep(0.01)
        return next(lifetimes_ms)

    async with server() as listener:
        connection = await KafkaConnection.connect(
            "127.0.0.1", listener.port, client_id="test", timeout_ms=5000, login=log_in
        )
        assert logins == 1
        requests = [FetchRequest(session_id=number) for number in range(5)]
        answers = await asyncio.gather(
            *(connection.request(one, timeout_ms=5000) for one in requests)
        )
        assert [answer.session_id for answer in answers] == [0, 1, 2, 3, 4]
        assert logins == 2
        connection.close()


async def test_kafka_connection_is_closed_if_the_later_login_fails() -> None:
    is_valid = True

    async def log_in(_connection: KafkaConnection, _timeout_ms: int) -> int:
        if not is_valid:
            raise OperatingError("no such user", code=ErrorCode.SASL_AUTHENTICATION_FAILED)
        return 1

    async with server() as listener:
        connection = await KafkaConnection.connect(
            "127.0.0.1", listener.port, client_id="test", timeout_ms=5000, login=log_in
        )
        await asyncio.sleep(0.01)
        is_valid = False
        with pytest.raises(ConnectionLostError, match="no such user"):
            await connection.request(FetchRequest(session_id=1), timeout_ms=5000)
        assert not connection.is_open
