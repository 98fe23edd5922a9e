"""The login of a connection over real sockets: order, limits, failures, expiry, hostile clients."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from kraftjbod.core.errors import ErrorCode
from kraftjbod.net.authentication import SaslSettings
from kraftjbod.net.connection import ConnectionLimits
from kraftjbod.net.connection_context import ConnectionContext
from kraftjbod.net.listener import Listener, ListenerLimits
from kraftjbod.net.memory_budget import MemoryBudget, MemoryLimits
from kraftjbod.net.sasl_mechanism import LoginFailedError, SaslStep
from kraftjbod.protocol import messages as m
from kraftjbod.protocol.kafka_codec import (
    ApiKey,
    Message,
    RequestHeader,
    decode_response,
    encode_request,
    request_api_key,
)
from tests.unit.net.test_kafka_server import answer_of, ask, framed_ask, framed_write, serving

CANARY = "canary-password"


class Sesame:
    """A mechanism of two messages: any first one, then ``sesame``, a blank and the user's name."""

    def __init__(self, lifetime_ms: int | None = None) -> None:
        self._lifetime_ms = lifetime_ms
        self._is_first = True

    def respond(self, message: bytes) -> SaslStep:
        if self._is_first:
            self._is_first = False
            return SaslStep(token=b"challenge")
        word, _, user = message.decode(errors="replace").partition(" ")
        if word != "sesame":
            raise LoginFailedError("the word is wrong", shown="wrong word")
        return SaslStep(token=b"welcome", user=user, lifetime_ms=self._lifetime_ms)


class Handler:
    """Records the name of the topic and the principal of each request."""

    def __init__(self) -> None:
        self.began: list[tuple[str, str]] = []
        self.protocols: set[str] = set()

    async def __call__(
        self, header: RequestHeader, body: Message, info: ConnectionContext
    ) -> Message | None:
        if header.api_key == ApiKey.SASL_HANDSHAKE:
            return m.SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])
        is_write = header.api_key == ApiKey.PRODUCE
        name = body.topic_data[0].name if is_write else body.topics[0].name
        self.began.append((name, info.principal))
        self.protocols.add(info.security_protocol)
        return m.ProduceResponse() if is_write else m.MetadataResponse(cluster_id=name)


class Client:
    """A client that sends single requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def request(self, body: Any, version: int) -> Any:
        self.writer.write(framed(body, version))
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        answer = await self.reader.readexactly(size)
        return decode_response(answer, api_key=request_api_key(body), version=version)

    async def handshake(self, mechanism: str = "SESAME") -> Any:
        return await self.request(m.SaslHandshakeRequest(mechanism=mechanism), 1)

    async def authenticate(self, message: bytes) -> Any:
        return await self.request(m.SaslAuthenticateRequest(auth_bytes=message), 2)

    async def log_in(self, user: str = "ali") -> Any:
        assert (await self.handshake()).error_code == 0
        assert (await self.authenticate(b"hello")).auth_bytes == b"challenge"
        return await self.authenticate(b"sesame " + user.encode())

    async def is_closed(self) -> bool:
        """Wait until the other side closes, and return whether it sent nothing before."""
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True


def framed(body: Any, version: int, correlation_id: int = 1) -> bytes:
    return b"".join(
        encode_request(body, version=version, correlation_id=correlation_id, client_id="test")
    )


def sasl(lifetime_ms: int | None = None, **changed: Any) -> SaslSettings:
    values: dict[str, Any] = {
        "mechanisms": {
            "SESAME": lambda: Sesame(lifetime_ms),
            "OTHER": lambda: Sesame(lifetime_ms),
        },
        "memory": MemoryBudget(MemoryLimits()),
        "failure_delay_ms": 0,
    }
    return SaslSettings(**(values | changed))


@contextlib.asynccontextmanager
async def client_of(server: Listener) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


async def test_requests_after_login_have_the_principal() -> None:
    handler = Handler()
    async with serving(handler, sasl=sasl()) as server, client_of(server) as client:
        assert (await client.request(m.ApiVersionsRequest(), 3)).error_code == 0
        answer = await client.log_in()
        assert (answer.error_code, answer.auth_bytes) == (0, b"welcome")
        assert answer.session_lifetime_ms == 0
        assert (await client.request(ask("a"), 9)).cluster_id == "a"
    assert handler.began == [("a", "User:ali")]
    assert handler.protocols == {"SASL_PLAINTEXT"}


async def test_login_and_requests_in_one_packet_are_answered_in_order() -> None:
    handler = Handler()
    async with serving(handler, sasl=sasl()) as server, client_of(server) as client:
        client.writer.write(
            framed(m.ApiVersionsRequest(), 3, 1)
            + framed(m.SaslHandshakeRequest(mechanism="SESAME"), 1, 2)
            + framed(m.SaslAuthenticateRequest(auth_bytes=b"hello"), 2, 3)
            + framed(m.SaslAuthenticateRequest(auth_bytes=b"sesame ali"), 2, 4)
            + framed_write("a", 5)
            + framed_ask("b", 6)
        )
        assert [await answer_of(client.reader) for _ in range(6)] == [1, 2, 3, 4, 5, 6]
    assert handler.began == [("a", "User:ali"), ("b", "User:ali")]


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(framed_ask("a", 1), id="metadata"),
        pytest.param(framed_write("a", 1), id="produce"),
        pytest.param(framed(m.SaslAuthenticateRequest(auth_bytes=b""), 2), id="no-handshake"),
        pytest.param(framed(m.ApiVersionsRequest(), 3) * 2, id="api-versions-twice"),
        pytest.param(
            framed(m.SaslHandshakeRequest(mechanism="SESAME"), 1) * 2, id="handshake-twice"
        ),
        pytest.param(
            framed(m.SaslHandshakeRequest(mechanism="SESAME"), 1) + framed_write("a", 1),
            id="produce-after-handshake",
        ),
        pytest.param(framed(m.SaslHandshakeRequest(mechanism="SESAME"), 0), id="handshake-v0"),
        pytest.param(b"\0\0\0\2\0\0", id="too-short"),
        pytest.param(struct.pack(">i", 1001) + b"\0\x12", id="frame-too-large"),
    ],
)
async def test_unexpected_request_before_login_closes_the_connection(sent: bytes) -> None:
    handler = Handler()
    async with (
        serving(handler, sasl=sasl(max_receive_bytes=1000)) as server,
        client_of(server) as client,
    ):
        with capture_logs() as lines:
            client.writer.write(sent)
            await client.is_closed()
    assert [line["event"] for line in lines] == ["connection_broke_protocol"]
    assert handler.began == []


async def test_request_before_login_is_refused_without_decoding_its_body() -> None:
    malformed = struct.pack(">hhih", ApiKey.METADATA, 9, 1, -1) + b"\xff" * 50
    async with serving(Handler(), sasl=sasl()) as server, client_of(server) as client:
        with capture_logs() as lines:
            client.writer.write(struct.pack(">i", len(malformed)) + malformed)
            assert await client.is_closed()
    assert lines[0]["reason"].startswith("Metadata came before the login was complete")


async def test_unsupported_api_versions_before_login_may_be_repeated() -> None:
    async with serving(Handler(), sasl=sasl()) as server, client_of(server) as client:
        for _ in range(3):
            header = struct.pack(">hhih", ApiKey.API_VERSIONS, 99, 1, -1)
            client.writer.write(struct.pack(">i", len(header)) + header)
            (size,) = struct.unpack(">i", await client.reader.readexactly(4))
            answer = await client.reader.readexactly(size)
            assert answer[4:6] == struct.pack(">h", ErrorCode.UNSUPPORTED_VERSION)
        assert (await client.request(m.ApiVersionsRequest(), 3)).error_code == 0
        assert (await client.log_in()).error_code == 0


async def test_failed_login_is_answered_and_logged_once_with_the_address() -> None:
    handler = Handler()
    async with (
        serving(handler, listener_name="OUTER", sasl=sasl()) as server,
        client_of(server) as client,
    ):
        await client.handshake()
        await client.authenticate(b"hello")
        with capture_logs() as lines:
            client.writer.write(
                framed(m.SaslAuthenticateRequest(auth_bytes=CANARY.encode()), 2)
                + framed_write("a", 2)
            )
            (size,) = struct.unpack(">i", await client.reader.readexactly(4))
            answer = decode_response(
                await client.reader.readexactly(size), api_key=ApiKey.SASL_AUTHENTICATE, version=2
            )
            assert await client.is_closed()
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer.error_message == "wrong word"
    (line,) = lines
    assert (line["event"], line["listener"]) == ("authentication_failed", "OUTER")
    assert line["mechanism"] == "SESAME"
    assert line["peer"].startswith("127.0.0.1:")
    assert CANARY not in str(lines)
    assert handler.began == []


async def test_unknown_mechanism_is_answered_with_the_enabled_ones() -> None:
    async with serving(Handler(), sasl=sasl()) as server, client_of(server) as client:
        with capture_logs() as lines:
            answer = await client.handshake("GSSAPI")
            assert await client.is_closed()
    assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert list(answer.mechanisms) == ["SESAME", "OTHER"]
    assert [line["event"] for line in lines] == ["authentication_failed"]


async def test_user_named_as_the_acl_wildcard_cannot_log_in() -> None:
    async with serving(Handler(), sasl=sasl()) as server, client_of(server) as client:
        answer = await client.log_in("*")
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer.error_message.startswith("Authentication failed during authentication due")
        assert await client.is_closed()


async def test_login_that_takes_too_long_closes_the_connection() -> None:
    async with serving(Handler(), sasl=sasl(timeout_ms=30)) as server, client_of(server) as client:
        with capture_logs() as lines:
            assert await client.is_closed()
    assert "the login took longer than 30 ms" in lines[0]["reason"]


class Delay:
    """Takes the place of ``asyncio.sleep``: the test ends the delay."""

    def __init__(self) -> None:
        self.asked_s: list[float] = []
        self.is_over = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.asked_s.append(seconds)
        await self.is_over.wait()


async def test_failed_login_is_answered_after_the_delay() -> None:
    delay = Delay()
    settings = sasl(failure_delay_ms=100, sleep=delay)
    async with serving(Handler(), sasl=settings) as server, client_of(server) as client:
        await client.handshake()
        await client.authenticate(b"hello")
        client.writer.write(framed(m.SaslAuthenticateRequest(auth_bytes=b"wrong"), 2))
        answer = asyncio.create_task(answer_of(client.reader))
        await _until(lambda: delay.asked_s)
        async with client_of(server) as other:
            assert (await other.log_in()).error_code == 0
        assert delay.asked_s == [0.1]
        assert not answer.done()
        delay.is_over.set()
        assert await answer == 1
        assert await client.is_closed()


async def test_connection_is_not_read_while_the_answer_to_a_failed_login_is_delayed() -> None:
    delay, memory = Delay(), MemoryBudget(MemoryLimits())
    settings = sasl(sleep=delay, memory=memory)
    async with serving(Handler(), sasl=settings) as server, client_of(server) as client:
        await client.handshake()
        await client.authenticate(b"hello")
        client.writer.write(framed(m.SaslAuthenticateRequest(auth_bytes=b"wrong"), 2))
        await _until(lambda: delay.asked_s)
        used_bytes = memory.requests.used_bytes
        client.writer.write(struct.pack(">i", 90_000) + bytes(80_000))
        async with client_of(server) as other:
            assert (await other.log_in()).error_code == 0
        assert memory.requests.used_bytes <= used_bytes
        delay.is_over.set()
        with contextlib.suppress(ConnectionResetError):
            await client.reader.read()


async def test_frame_limit_and_budget_change_with_the_login() -> None:
    before, after = MemoryBudget(MemoryLimits()), MemoryBudget(MemoryLimits())
    limits = ListenerLimits(connection=ConnectionLimits(max_frame_bytes=300_000))
    handler = Handler()
    async with (
        serving(
            handler,
            sasl=sasl(max_receive_bytes=100_000, memory=before),
            memory=after,
            limits=limits,
        ) as server,
        client_of(server) as client,
    ):
        client.writer.write(struct.pack(">i", 90_000) + bytes(80_000))
        await _until(lambda: before.requests.used_bytes > 0)
        assert after.requests.used_bytes == 0
        async with client_of(server) as other:
            await other.log_in()
            assert (await other.request(ask("b" * 30_000), 9)).cluster_id == "b" * 30_000
            large = framed_ask("a" * 32_000, 1) + framed_ask("c", 2)[:2]
            other.writer.write(large)
            assert await answer_of(other.reader) == 1
            other.writer.write(framed_ask("c", 2)[2:])
            assert await answer_of(other.reader) == 2
            other.writer.write(struct.pack(">i", 200_000) + bytes(150_000))
            await _until(lambda: after.requests.used_bytes > 0)
        await _until(lambda: after.requests.used_bytes == 0)
    assert before.requests.used_bytes == 0


async def test_full_budget_of_unauthenticated_connections_does_not_delay_authenticated_ones() -> (
    None
):
    before = MemoryBudget(MemoryLimits(max_request_bytes=200_000))
    handler = Handler()
    async with serving(handler, sasl=sasl(memory=before)) as server:
        async with client_of(server) as known:
            await known.log_in()
            async with contextlib.AsyncExitStack() as opened:
                for _ in range(10):
                    client = await opened.enter_async_context(client_of(server))
                    client.writer.write(struct.pack(">i", 100_000) + bytes(70_000))
                await _until(lambda: before.requests.left_bytes < 100_000)
                assert (await known.request(ask("a"), 9)).cluster_id == "a"
                assert before.requests.used_bytes <= 200_000 + 10 * 65_536
        await _until(lambda: before.requests.used_bytes == 0)


async def _until(is_true: Any) -> None:
    while not is_true():
        await asyncio.sleep(0.001)


# --- sessions with a lifetime --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lifetime_ms", "max_reauth_ms", "announced"),
    [
        (None, 0, 0),
        (None, 5000, 5000),
        (7000, 0, 7000),
        (7000, 5000, 5000),
        (3000, 5000, 3000),
        (-1, 5000, 0),
        (1 << 70, 0, (1 << 63) - 1),
    ],
)
async def test_session_lifetime_is_the_smaller_of_the_mechanisms_and_the_listeners_limit(
    lifetime_ms: int | None, max_reauth_ms: int, announced: int
) -> None:
    settings = sasl(lifetime_ms, max_reauth_ms=max_reauth_ms)
    async with serving(Handler(), sasl=settings) as server, client_of(server) as client:
        assert (await client.log_in()).session_lifetime_ms == announced


async def test_expired_session_closes_the_connection_at_its_next_request() -> None:
    handler = Handler()
    async with serving(handler, sasl=sasl(0)) as server, client_of(server) as client:
        await client.log_in()
        await asyncio.sleep(0.001)
        with capture_logs() as lines:
            client.writer.write(framed_ask("a", 1))
            assert await client.is_closed()
    assert [line["event"] for line in lines] == ["authentication_expired"]
    assert handler.began == []


async def test_client_authenticates_again_as_the_same_user() -> None:
    handler = Handler()
    async with (
        serving(handler, sasl=sasl(60_000, least_reauth_ms=0)) as server,
        client_of(server) as client,
    ):
        for name in "abc":
            assert (await client.log_in()).error_code == 0
            await client.request(ask(name), 9)
    assert handler.began == [(name, "User:ali") for name in "abc"]


async def test_client_cannot_authenticate_again_as_another_user() -> None:
    async with (
        serving(Handler(), sasl=sasl(60_000, least_reauth_ms=0)) as server,
        client_of(server) as client,
    ):
        await client.log_in()
        answer = await client.log_in("bob")
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert "during re-authentication" in answer.error_message
        assert await client.is_closed()


async def test_client_cannot_authenticate_again_with_another_mechanism() -> None:
    async with (
        serving(Handler(), sasl=sasl(60_000, least_reauth_ms=0)) as server,
        client_of(server) as client,
    ):
        await client.log_in()
        assert (await client.handshake("OTHER")).error_code == 0
        answer = await client.authenticate(b"hello")
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await client.is_closed()


async def test_other_request_while_a_client_authenticates_again_closes_the_connection() -> None:
    handler = Handler()
    async with (
        serving(handler, sasl=sasl(60_000, least_reauth_ms=0)) as server,
        client_of(server) as client,
    ):
        await client.log_in()
        await client.handshake()
        client.writer.write(framed_write("a", 1))
        assert await client.is_closed()
    assert handler.began == []


@pytest.mark.parametrize("lifetime_ms", [None, 60_000])
async def test_handshake_after_login_without_expiry_or_too_soon_reaches_the_handler(
    lifetime_ms: int | None,
) -> None:
    async with serving(Handler(), sasl=sasl(lifetime_ms)) as server, client_of(server) as client:
        await client.log_in()
        assert (await client.handshake()).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert (await client.request(ask("a"), 9)).cluster_id == "a"


# --- hostile clients -----------------------------------------------------------------------------

login_frames = st.one_of(
    st.binary(max_size=40).map(lambda b: framed(m.SaslAuthenticateRequest(auth_bytes=b), 2)),
    st.text(max_size=10).map(lambda t: framed(m.SaslHandshakeRequest(mechanism=t), 1)),
    st.just(framed(m.SaslHandshakeRequest(mechanism="SESAME"), 1)),
    st.just(framed(m.ApiVersionsRequest(), 3)),
    st.just(framed_write("a", 1)),
    st.just(framed_ask("a", 1)),
    st.binary(max_size=40),
    st.tuples(st.sampled_from([17, 18, 36]), st.integers(-1, 4), st.binary(max_size=40)).map(
        lambda t: struct.pack(">ihhih", 10 + len(t[2]), t[0], t[1], 1, -1) + t[2]
    ),
)


@settings(deadline=None)
@given(st.lists(login_frames, max_size=6))
def test_random_frames_before_login_do_not_reach_the_handler_or_block_another_login(
    frames: list[bytes],
) -> None:
    handler = Handler()

    async def run() -> None:
        async with serving(handler, sasl=sasl()) as server, client_of(server) as one:
            one.writer.write(b"".join(frames))
            one.writer.write_eof()
            with contextlib.suppress(ConnectionResetError):
                await one.reader.read()
            async with client_of(server) as other:
                assert (await other.log_in()).error_code == 0

    with capture_logs() as lines:
        asyncio.run(run())
    assert handler.began == []
    assert {line["event"] for line in lines} <= {
        "connection_broke_protocol",
        "authentication_failed",
        "connections_aborted_at_stop",
    }


class Refusing:
    """Refuses the first message, as OAUTHBEARER does: the second one confirms the failure."""

    def __init__(self) -> None:
        self._has_failed = False

    def respond(self, message: bytes) -> SaslStep:
        if self._has_failed:
            raise LoginFailedError("confirmed", shown="refused")
        self._has_failed = True
        return SaslStep(token=b"refused", failure="bad token")


async def test_failure_that_the_client_has_to_confirm_is_logged_once() -> None:
    settings = sasl(mechanisms={"SESAME": Refusing})
    async with serving(Handler(), sasl=settings) as server, client_of(server) as client:
        await client.handshake()
        with capture_logs() as lines:
            answer = await client.authenticate(b"token")
            assert (answer.error_code, answer.auth_bytes) == (0, b"refused")
            assert [line["reason"] for line in lines] == ["bad token"]
            answer = await client.authenticate(b"\x01")
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert answer.error_message == "refused"
            assert await client.is_closed()
    assert [line["event"] for line in lines] == ["authentication_failed"]


async def test_request_after_a_refused_token_closes_the_connection() -> None:
    handler = Handler()
    settings = sasl(mechanisms={"SESAME": Refusing})
    async with serving(handler, sasl=settings) as server, client_of(server) as client:
        await client.handshake()
        await client.authenticate(b"token")
        client.writer.write(framed(ask("a"), 9))
        assert await client.is_closed()
    assert handler.began == []
