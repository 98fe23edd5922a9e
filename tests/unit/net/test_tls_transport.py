"""TLS of accepted connections, over real sockets and with both event loops."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from kraftjbod.net.connection import Connection, ConnectionLimits
from kraftjbod.net.connection_context import ANONYMOUS, ConnectionContext
from kraftjbod.net.connection_quotas import QuotaLimits
from kraftjbod.net.kafka_server import kafka_server
from kraftjbod.net.listener import Listener, ListenerLimits
from kraftjbod.net.memory_budget import MemoryBudget, MemoryLimits
from kraftjbod.net.tls_transport import SLICE_BYTES, HandshakeTurns, TlsSettings, TlsTransport
from kraftjbod.protocol.kafka_codec import Message, RequestHeader, encode_request
from kraftjbod.protocol.messages import MetadataRequest, MetadataResponse
from tests.certificates import Authority, Identity
from tests.unit.net.closed_connections import is_closed

_LENGTH = struct.Struct(">i")
Handler = Callable[[RequestHeader, Message, ConnectionContext], Awaitable[Message | None]]


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def server_context(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> ssl.SSLContext:
    path = authority.issue().write_pem(tmp_path_factory.mktemp("tls") / "server.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    context.load_verify_locations(cadata=authority.pem.decode())
    return context


async def echo_principal(
    _header: RequestHeader, _body: Message, info: ConnectionContext
) -> Message | None:
    return MetadataResponse(cluster_id=f"{info.security_protocol} {info.principal}")


async def answer_40_mib(
    _header: RequestHeader, _body: Message, _info: ConnectionContext
) -> Message | None:
    return MetadataResponse(cluster_id="x" * 30_000, topics=_topics(1400))


def _topics(count: int) -> list[MetadataResponse.MetadataResponseTopic]:
    topic = MetadataResponse.MetadataResponseTopic
    return [topic(name="t" * 30_000, partitions=[]) for _ in range(count)]


def principal_of(certificate: bytes | None) -> str:
    return ANONYMOUS if certificate is None else "User:known"


@asynccontextmanager
async def serving(
    context: ssl.SSLContext,
    handler: Handler = echo_principal,
    *,
    handshake_timeout_ms: int = 10_000,
    principal: Callable[[bytes | None], str] = principal_of,
    **parameters: Any,
) -> AsyncIterator[Listener]:
    server = kafka_server(
        host="127.0.0.1",
        port=0,
        handler=handler,
        listener_name="SECURE",
        tls=TlsSettings(
            listener_name="SECURE",
            context=lambda: context,
            principal_of=principal,
            handshake_timeout_ms=handshake_timeout_ms,
        ),
        **parameters,
    )
    await server.start()
    try:
        yield server
    finally:
        await server.close(timeout_ms=0)


async def connected(
    server: Listener, context: ssl.SSLContext
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(
        "127.0.0.1", server.port, ssl=context, server_hostname="localhost"
    )


def ask(correlation_id: int = 1) -> bytes:
    body = MetadataRequest(topics=[])
    return b"".join(
        encode_request(body, version=9, correlation_id=correlation_id, client_id="test")
    )


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    (length,) = _LENGTH.unpack(await reader.readexactly(4))
    return await reader.readexactly(length)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def only_failure(logs: list[Any]) -> str:
    (event,) = [one for one in logs if one["event"] == "tls_handshake_failed"]
    assert event["listener"] == "SECURE"
    assert event["peer"].startswith("127.0.0.1:")
    return str(event["reason"])


def of_version(context: ssl.SSLContext, version: ssl.TLSVersion) -> ssl.SSLContext:
    context.minimum_version = context.maximum_version = version
    return context


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_requests_over_tls_are_answered_in_order(
    authority: Authority, server_context: ssl.SSLContext, version: ssl.TLSVersion
) -> None:
    async with serving(server_context) as server:
        reader, writer = await connected(server, of_version(authority.client_context(), version))
        writer.write(ask(1) + ask(2) + ask(3))
        for number in (1, 2, 3):
            answer = await read_answer(reader)
            assert _LENGTH.unpack_from(answer)[0] == number
            assert b"SSL User:ANONYMOUS" in answer
        writer.close()
        await until(lambda: server.connection_count == 0)


async def test_frame_of_many_tls_records_arrives_whole(
    authority: Authority, server_context: ssl.SSLContext
) -> None:
    topic = MetadataRequest.MetadataRequestTopic
    names = [topic(name=f"{number:05}" + "n" * 20_000) for number in range(300)]
    seen: list[list[str]] = []

    async def note(_h: RequestHeader, body: Message, _c: ConnectionContext) -> Message | None:
        seen.append([one.name for one in body.topics])
        return MetadataResponse()

    body = MetadataRequest(topics=names)
    frame = b"".join(encode_request(body, version=9, correlation_id=1, client_id="t"))
    async with serving(server_context, note) as server:
        reader, writer = await connected(server, authority.client_context())
        writer.write(frame)
        await read_answer(reader)
        writer.close()
    assert seen == [[one.name for one in names]]


async def test_half_open_handshakes_count_as_connections(
    authority: Authority, server_context: ssl.SSLContext
) -> None:
    limits = ListenerLimits(quotas=QuotaLimits(max_connections=3))
    async with serving(server_context, limits=limits) as server:
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
        await until(lambda: server.connection_count == 3)
        with capture_logs() as logs:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            assert await is_closed(reader)
        assert "connection_turned_away" in {one["event"] for one in logs}
        for _, old in [*silent, (reader, writer)]:
            old.close()
        await until(lambda: server.connection_count == 0)
        reader, writer = await connected(server, authority.client_context())
        writer.write(ask())
        assert await read_answer(reader)
        writer.close()


async def test_handshake_beyond_its_deadline_is_closed_and_logged(
    server_context: ssl.SSLContext,
) -> None:
    async with serving(server_context, handshake_timeout_ms=20) as server:
        with capture_logs() as logs:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            assert await is_closed(reader)
        writer.close()
    assert only_failure(logs) == "it took longer than 20 ms"


async def test_probe_that_sends_nothing_is_not_logged(server_context: ssl.SSLContext) -> None:
    async with serving(server_context) as server:
        with capture_logs() as logs:
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            await until(lambda: server.connection_count == 1)
            writer.close()
            await until(lambda: server.connection_count == 0)
    assert logs == []


async def test_plaintext_client_is_refused_with_a_hint(server_context: ssl.SSLContext) -> None:
    async with serving(server_context) as server:
        with capture_logs() as logs:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(ask())
            await reader.read()
        writer.close()
    assert "may use security.protocol=PLAINTEXT" in only_failure(logs)


async def test_client_that_leaves_during_the_handshake_is_logged(
    authority: Authority, server_context: ssl.SSLContext
) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = authority.client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        hello.do_handshake()
    async with serving(server_context) as server:
        with capture_logs() as logs:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(outgoing.read())
            await reader.readexactly(5)
            writer.close()
            await until(lambda: server.connection_count == 0)
    assert only_failure(logs) == "the client closed the connection"


async def test_client_that_distrusts_the_authority_is_logged(
    server_context: ssl.SSLContext,
) -> None:
    async with serving(server_context) as server:
        with capture_logs() as logs:
            # uvloop's client sends no alert, so a blocking one connects here.
            with pytest.raises(ssl.SSLCertVerificationError):
                await asyncio.to_thread(shake_hands, server.port, Authority("other"))
            await until(lambda: server.connection_count == 0)
    assert "does not trust the certificate of this listener" in only_failure(logs)


def shake_hands(port: int, authority: Authority) -> None:
    with blocking_client(port, authority):
        return


@contextmanager
def blocking_client(port: int, authority: Authority) -> Iterator[ssl.SSLSocket]:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as raw,
        authority.client_context().wrap_socket(raw, server_hostname="localhost") as client,
    ):
        yield client


def client_context(authority: Authority, identity: Identity, path: Path) -> ssl.SSLContext:
    context = authority.client_context()
    context.load_cert_chain(identity.write_pem(path))
    return context


def requiring(authority: Authority, path: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue().write_pem(path))
    context.load_verify_locations(cadata=authority.pem.decode())
    context.verify_mode = ssl.CERT_REQUIRED
    return context


async def test_client_certificate_gives_the_principal(authority: Authority, tmp_path: Path) -> None:
    client = client_context(authority, authority.issue("alice"), tmp_path / "c.pem")
    async with serving(requiring(authority, tmp_path / "s.pem")) as server:
        reader, writer = await connected(server, client)
        writer.write(ask())
        assert b"SSL User:known" in await read_answer(reader)
        writer.close()


@pytest.mark.parametrize(
    ("identity", "reason"),
    [
        (None, "ssl.client.auth=required demands one"),
        (Authority("other").issue("mallory"), "not signed by a certificate of the truststore"),
        (-1, "or expired"),
    ],
)
async def test_missing_or_invalid_client_certificate_is_refused(
    authority: Authority, tmp_path: Path, identity: Identity | int | None, reason: str
) -> None:
    if isinstance(identity, int):
        identity = authority.issue("late", days=identity)
    client = authority.client_context()
    if identity is not None:
        client.load_cert_chain(identity.write_pem(tmp_path / "c.pem"))
    async with serving(requiring(authority, tmp_path / "s.pem")) as server:
        with capture_logs() as logs:
            try:
                reader, writer = await connected(server, client)
                writer.write(ask())
                assert await reader.read() == b""
            except (ssl.SSLError, ConnectionError):
                # In TLS 1.3 the client notices the refusal at its first read.
                pass
            await until(lambda: server.connection_count == 0)
    assert reason in only_failure(logs)


async def test_certificate_without_principal_is_refused(
    authority: Authority, tmp_path: Path
) -> None:
    def refuse(_certificate: bytes | None) -> str:
        raise ValueError("no rule of ssl.principal.mapping.rules matches CN=bob")

    client = client_context(authority, authority.issue("bob"), tmp_path / "c.pem")
    server_side = requiring(authority, tmp_path / "s.pem")
    async with serving(server_side, principal=refuse) as server:
        with capture_logs() as logs:
            reader, writer = await connected(server, client)
            assert await is_closed(reader)
            writer.close()
    assert "matches CN=bob" in only_failure(logs)


async def test_tls_encrypts_a_large_answer_only_as_the_client_reads_it(
    authority: Authority, server_context: ssl.SSLContext
) -> None:
    """An answer of 40 MiB is counted in the budget, and encrypted only as the client reads."""
    memory = MemoryBudget(MemoryLimits())
    async with serving(server_context, answer_40_mib, memory=memory) as server:
        raw = socket.create_connection(("127.0.0.1", server.port))
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        reader, writer = await asyncio.open_connection(
            sock=raw, ssl=authority.client_context(), server_hostname="localhost"
        )
        writer.transport.pause_reading()
        writer.write(ask())
        await until(lambda: memory.answers.used_bytes > 30 * 1024 * 1024)
        (connection,) = server._sessions
        tls = connection._transport
        assert isinstance(tls, TlsTransport)
        unencrypted = tls._queued_bytes
        encrypted = tls.get_write_buffer_size() - unencrypted
        assert unencrypted > 30 * 1024 * 1024
        assert encrypted <= SLICE_BYTES
        writer.transport.resume_reading()
        answer = await read_answer(reader)
        assert len(answer) > 42_000_000
        await until(lambda: memory.answers.used_bytes == 0)
        writer.close()


async def test_stream_without_close_notify_ends_and_truncated_frame_is_dropped(
    authority: Authority, server_context: ssl.SSLContext
) -> None:
    seen: list[int] = []

    async def note(header: RequestHeader, _b: Message, _c: ConnectionContext) -> Message | None:
        seen.append(header.correlation_id)
        return MetadataResponse()

    async with serving(server_context, note) as server:
        reader, writer = await connected(server, authority.client_context())
        writer.write(ask(1) + ask(2)[:-1])
        await read_answer(reader)
        # The end of the TCP stream without close_notify, as an attacker or a dying process sends.
        with writer.get_extra_info("socket").dup() as raw:
            raw.shutdown(socket.SHUT_RDWR)
        await until(lambda: server.connection_count == 0)
        writer.transport.abort()
    assert seen == [1]


async def test_close_sends_close_notify_after_pending_answers(
    authority: Authority, server_context: ssl.SSLContext
) -> None:
    started = asyncio.Event()

    async def answer(h: RequestHeader, b: Message, c: ConnectionContext) -> Message | None:
        started.set()
        return await answer_40_mib(h, b, c)

    def read_all() -> int:
        with blocking_client(server.port, authority) as client:
            client.sendall(ask())
            count = 0
            # Without close_notify, recv() raises ssl.SSLEOFError.
            while received := client.recv(65536):
                count += len(received)
            return count

    async with serving(server_context, answer) as server:
        reading = asyncio.create_task(asyncio.to_thread(read_all))
        await started.wait()
        await server.close(timeout_ms=60_000)
        assert await reading > 42_000_000


async def test_invalid_record_after_the_handshake_closes_and_is_logged(
    authority: Authority, server_context: ssl.SSLContext
) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = authority.client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    async with serving(server_context) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(outgoing.read())
                incoming.write(await reader.read(65536))
        client.write(ask())
        broken = bytearray(outgoing.read())
        broken[-1] ^= 1
        with capture_logs() as logs:
            writer.write(broken)
            await until(lambda: server.connection_count == 0)
        writer.close()
    assert [one["event"] for one in logs] == ["tls_record_refused"]


async def test_tls_client_of_plaintext_listener_is_refused_with_a_hint(
    authority: Authority,
) -> None:
    server = kafka_server(host="127.0.0.1", port=0, handler=echo_principal)
    await server.start()
    with capture_logs() as logs:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await connected(server, authority.client_context())
        await server.close(timeout_ms=0)
    (event,) = [one for one in logs if one["event"] == "connection_broke_protocol"]
    assert "the client may use TLS" in event["reason"]


async def test_handshake_turns_run_few_steps_in_each_iteration() -> None:
    turns, done = HandshakeTurns(), list[int]()
    for number in range(5):
        turns.add(lambda number=number: done.append(number))  # type: ignore[misc]
    assert done == []
    await asyncio.sleep(0)
    assert done == [0, 1]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert done == [0, 1, 2, 3, 4]
    assert len(turns) == 0


async def test_pause_of_reading_from_the_start_holds_back_frames_but_not_the_handshake(
    authority: Authority, server_context: ssl.SSLContext
) -> None:
    frames: list[bytes] = []
    made: list[Connection] = []

    class Paused:
        def __init__(self, connection: Connection) -> None:
            made.append(connection)
            connection.pause_reading()

        def frame_received(self, frame: Any) -> None:
            frames.append(bytes(frame))

        def writing_resumed(self) -> None: ...

        def connection_closed(self, reason: str) -> None: ...

    settings = TlsSettings(
        listener_name="SECURE", context=lambda: server_context, principal_of=principal_of
    )
    turns = HandshakeTurns()

    def make() -> TlsTransport:
        limits = ConnectionLimits(max_frame_bytes=1_000_000)
        return TlsTransport(Connection(make_receiver=Paused, limits=limits), settings, turns)

    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    _, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=authority.client_context(), server_hostname="localhost"
    )
    sent = b"".join(_LENGTH.pack(1000) + bytes([number]) * 1000 for number in range(200))
    writer.write(sent)
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert frames == []
    made[0].resume_reading()
    await until(lambda: len(frames) == 200)
    assert [frame[0] for frame in frames] == list(range(200))
    writer.close()
    server.close()


async def test_stop_of_reading_from_the_start_holds_back_the_handshake_until_the_end(
    authority: Authority, server_context: ssl.SSLContext
) -> None:
    """For connections above the rate of their address: they cost no handshake."""
    made: list[Connection] = []

    class Held:
        def __init__(self, connection: Connection) -> None:
            loop = asyncio.get_running_loop()
            made.append(connection)
            loop.call_soon(connection.stop_reading)
            loop.call_later(0.05, connection.abort, "held for too long")

        def frame_received(self, frame: Any) -> None: ...

        def writing_resumed(self) -> None: ...

        def connection_closed(self, reason: str) -> None: ...

    settings = TlsSettings(
        listener_name="SECURE", context=lambda: server_context, principal_of=principal_of
    )
    turns = HandshakeTurns()

    def make() -> TlsTransport:
        limits = ConnectionLimits(max_frame_bytes=1_000_000)
        return TlsTransport(Connection(make_receiver=Held, limits=limits), settings, turns)

    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await until(lambda: made != [])
    for _ in range(3):
        await asyncio.sleep(0)
    outgoing = ssl.MemoryBIO()
    client = authority.client_context().wrap_bio(
        ssl.MemoryBIO(), outgoing, server_hostname="localhost"
    )
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    writer.write(outgoing.read())
    assert await is_closed(reader), "without an answer"
    writer.close()
    server.close()
