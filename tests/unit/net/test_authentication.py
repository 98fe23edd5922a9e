"""SASL authentication of a listener: requests that wait for it, its failures and its limits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from kraftjbod.net.authentication import AuthenticationFailedError, AuthenticationLimits
from kraftjbod.net.connection_context import ConnectionContext
from kraftjbod.protocol.kafka_codec import ApiKey, Message, RequestHeader, encode_request
from kraftjbod.protocol.messages import (
    ApiVersionsRequest,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tests.unit.net.test_kafka_server import (
    answer_of,
    echo_name,
    framed_ask,
    framed_write,
    serving,
)

SASL_AUTHENTICATION_FAILED = 58


class WaitingAuthenticator:
    """Accept the password ``sesame``, after ``opens`` is set."""

    def __init__(self, opens: asyncio.Event) -> None:
        self._opens = opens
        self.principal: str | None = None

    async def authenticate(self, header: RequestHeader, body: Message) -> Message:
        if header.api_key == ApiKey.SASL_HANDSHAKE:
            return SaslHandshakeResponse(mechanisms=["PLAIN"])
        await self._opens.wait()
        if body.auth_bytes != b"sesame":
            answer = SaslAuthenticateResponse(error_code=SASL_AUTHENTICATION_FAILED)
            raise AuthenticationFailedError("wrong word", answer)
        self.principal = "User:ali"
        return SaslAuthenticateResponse()


class Handler:
    """Record topic and principal of each request when its handling starts."""

    def __init__(self) -> None:
        self.began: list[tuple[str, str]] = []

    async def __call__(
        self, header: RequestHeader, body: Message, info: ConnectionContext
    ) -> Message | None:
        is_write = header.api_key == ApiKey.PRODUCE
        name = body.topic_data[0].name if is_write else body.topics[0].name
        self.began.append((name, info.principal))
        return await echo_name(header, body, info)


def framed(body: Any, version: int, correlation_id: int) -> bytes:
    return b"".join(
        encode_request(body, version=version, correlation_id=correlation_id, client_id="test")
    )


def authentication_frame(password: bytes, correlation_id: int) -> bytes:
    return framed(SaslAuthenticateRequest(auth_bytes=password), 2, correlation_id)


def authentication_options(opens: asyncio.Event, **limits: int) -> dict[str, Any]:
    return {
        "authenticator": lambda _context: WaitingAuthenticator(opens),
        "authentication_limits": AuthenticationLimits(**limits),
    }


async def answers(reader: asyncio.StreamReader, count: int) -> list[int]:
    return [await answer_of(reader) for _ in range(count)]


async def test_requests_before_authentication_are_handled_in_order_as_the_principal() -> None:
    opens, handler = asyncio.Event(), Handler()
    async with serving(handler, **authentication_options(opens)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(
            framed(SaslHandshakeRequest(mechanism="PLAIN"), 1, 1)
            + framed(ApiVersionsRequest(), 3, 2)
            + framed_ask("a", 3)
            + framed_write("b", 4)
            + authentication_frame(b"sesame", 5)
            + framed_ask("c", 6)
        )
        # A client needs the supported versions before it can authenticate.
        assert await answers(reader, 2) == [1, 2]
        await asyncio.sleep(0.02)
        assert handler.began == []
        opens.set()
        writer.write(framed_write("d", 7))
        assert await answers(reader, 5) == [3, 4, 5, 6, 7]
        writer.write(framed_ask("e", 8))
        assert await answer_of(reader) == 8
        assert handler.began == [(name, "User:ali") for name in "abcde"]
        writer.close()


async def test_failed_authentication_is_answered_and_no_waiting_request_is_handled() -> None:
    opens, handler = asyncio.Event(), Handler()
    opens.set()
    async with serving(handler, **authentication_options(opens)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        with capture_logs() as lines:
            writer.write(framed_ask("a", 1) + authentication_frame(b"please", 2))
            assert await answer_of(reader) == 2
            assert await reader.read() == b""
        assert [line["event"] for line in lines] == ["authentication_failed"]
        assert handler.began == []
        writer.close()


@pytest.mark.parametrize(
    ("limits", "sent", "why"),
    [
        ({"max_held_requests": 2}, lambda: framed_ask("a", 1) * 3, "before the authentication"),
        ({"max_held_bytes": 200}, lambda: framed_ask("a" * 99, 1) * 2, "before the authentication"),
        ({"timeout_ms": 30}, lambda: b"", "took longer than 30 ms"),
    ],
    ids=["requests", "bytes", "time"],
)
async def test_unauthenticated_connection_is_limited_in_requests_bytes_and_time(
    limits: dict[str, int], sent: Callable[[], bytes], why: str
) -> None:
    handler = Handler()
    async with serving(handler, **authentication_options(asyncio.Event(), **limits)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        with capture_logs() as lines:
            writer.write(sent())
            assert await _ended(reader.read())
        (line,) = lines
        assert line["event"] == "connection_broke_protocol" and why in line["reason"]
        assert handler.began == []
        writer.close()


async def _ended(reading: Awaitable[bytes]) -> bool:
    """Return whether the other side closed the connection."""
    try:
        return await reading == b""
    except ConnectionResetError:
        return True
