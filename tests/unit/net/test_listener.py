"""``Listener``: number of connections, idle and silent connections, bound addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import StartupError
from kraftjbod.net.connection import Connection
from kraftjbod.net.connection_quotas import QuotaLimits
from kraftjbod.net.listener import Listener, ListenerLimits
from kraftjbod.net.request_session import PendingRequest, RequestSession, SessionLimits
from tests.unit.broker.gates import until
from tests.unit.net.closed_connections import is_closed


def listener(
    limits: ListenerLimits,
    hold: asyncio.Event,
    port: int = 0,
    received: list[PendingRequest] | None = None,
    delay_ms_of: Callable[[str], int] = lambda _host: 0,
) -> Listener:
    """Create a listener that answers when ``hold`` is set, and adds requests to ``received``."""

    async def answer(request: PendingRequest) -> list[bytes]:
        if received is not None:
            received.append(request)
        await hold.wait()
        return [b"ok"]

    def session(connection: Connection) -> RequestSession:
        return RequestSession(
            connection,
            answer=answer,
            in_order=True,
            limits=SessionLimits(max_in_flight_requests=5, max_in_flight_bytes=100),
        )

    return Listener(
        name="test",
        host="127.0.0.1",
        port=port,
        make_session=session,
        limits=limits,
        delay_ms_of=delay_ms_of,
    )


async def test_listener_closes_idle_connections_except_busy_ones() -> None:
    hold = asyncio.Event()
    server = listener(ListenerLimits(max_idle_ms=40), hold)
    await server.start()
    idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", server.port)
    busy_reader, busy_writer = await asyncio.open_connection("127.0.0.1", server.port)
    busy_writer.write(b"\x00\x00\x00\x01x")
    assert await idle_reader.read() == b""
    hold.set()
    assert await busy_reader.read() == b"ok"
    assert server.connection_count == 0
    for writer in (idle_writer, busy_writer):
        writer.close()
    await server.close(timeout_ms=0)


async def test_reset_silent_resets_connections_without_requests_since() -> None:
    """A reset is sent, because an end of stream waits for the peer's acknowledgements."""
    hold, received = asyncio.Event(), list[PendingRequest]()
    server = listener(ListenerLimits(), hold, received=received)
    await server.start()
    silent_reader, silent_writer = await asyncio.open_connection("127.0.0.1", server.port)
    silent_writer.write(b"\x00\x00\x00\x01x")
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await until(lambda: server.connection_count == 2 and len(received) == 1)
    loop = asyncio.get_running_loop()
    heard_s = loop.time()
    await until(lambda: loop.time() > heard_s)
    since_s = loop.time()
    writer.write(b"\x00\x00\x00\x01x")
    await until(lambda: len(received) == 2)
    assert await server.reset_silent(since_s) == 1
    with pytest.raises(ConnectionResetError):
        await silent_reader.read()
    hold.set()
    assert await reader.readexactly(2) == b"ok"
    for one in (silent_writer, writer):
        one.close()
    await server.close(timeout_ms=0)


async def test_listener_refuses_connections_beyond_max_connections() -> None:
    server = listener(ListenerLimits(quotas=QuotaLimits(max_connections=1)), asyncio.Event())
    await server.start()
    _, first = await asyncio.open_connection("127.0.0.1", server.port)
    with capture_logs() as logs:
        reader, second = await asyncio.open_connection("127.0.0.1", server.port)
        assert await is_closed(reader)
    assert [(e["event"], e["listener"]) for e in logs] == [("connection_turned_away", "test")]
    assert server.connection_count == 1
    assert "connections=1" in repr(server)
    first.close()
    second.close()
    await server.close(timeout_ms=5000)


async def test_listener_closes_connections_above_their_rate_after_the_delay_unanswered() -> None:
    delays, received, hold = [0, 50, 0], list[PendingRequest](), asyncio.Event()
    hold.set()
    server = listener(ListenerLimits(), hold, received=received, delay_ms_of=lambda _: delays.pop())
    await server.start()
    loop = asyncio.get_running_loop()
    with capture_logs() as logs:
        for is_accepted in (True, False, True):
            began_s = loop.time()
            reader, client = await asyncio.open_connection("127.0.0.1", server.port)
            client.write(b"\x00\x00\x00\x01x")
            if is_accepted:
                assert await reader.readexactly(2) == b"ok"
            else:
                assert await is_closed(reader)
                assert loop.time() - began_s > 0.045
            client.close()
    assert len(received) == 2
    ((event, reason),) = [(e["event"], e["reason"]) for e in logs]
    assert event == "connection_turned_away" and "connection_creation_rate" in reason
    await server.close(timeout_ms=5000)


async def test_listener_closes_the_oldest_delayed_connection_above_the_limit_and_all_at_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kraftjbod.net.listener.MAX_HELD", 1)
    server = listener(ListenerLimits(), asyncio.Event(), delay_ms_of=lambda _: 3_600_000)
    await server.start()
    oldest, one = await asyncio.open_connection("127.0.0.1", server.port)
    newest, other = await asyncio.open_connection("127.0.0.1", server.port)
    assert await is_closed(oldest)
    await server.close(timeout_ms=0)
    assert await is_closed(newest)
    for client in (one, other):
        client.close()


async def test_listener_refuses_clients_while_descriptors_are_short() -> None:
    """Disks need the remaining descriptors; a connection that may be a broker's is pending."""
    short = ListenerLimits(max_client_descriptor=2)
    server = listener(short, asyncio.Event())
    await server.start()
    with capture_logs() as logs:
        reader, client = await asyncio.open_connection("127.0.0.1", server.port)
        assert await is_closed(reader)
    (event,) = logs
    assert event["event"] == "connection_turned_away"
    assert "RLIMIT_NOFILE" in event["reason"]
    client.close()
    await server.close(timeout_ms=5000)

    quotas = QuotaLimits(max_connections=4, reserved=2, pending=1)
    server = listener(ListenerLimits(max_client_descriptor=2, quotas=quotas), asyncio.Event())
    await server.start()
    _, maybe_broker = await asyncio.open_connection("127.0.0.1", server.port)
    maybe_broker.write(b"\x00\x00\x00\x01x")
    while not server.quotas.has_pending:
        await asyncio.sleep(0.001)
    maybe_broker.close()
    await server.close(timeout_ms=5000)


async def test_listener_refuses_connections_until_start_and_another_bind_after_it() -> None:
    server = listener(ListenerLimits(), asyncio.Event())
    await server.bind()
    rival = listener(ListenerLimits(), asyncio.Event(), port=server.port)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", server.port)
    await server.start()
    with pytest.raises(StartupError, match=f"cannot listen on 127.0.0.1:{server.port}"):
        await rival.bind()
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.close()
    await server.close(timeout_ms=0)


async def test_listener_close_after_bind_logs_nothing_and_the_address_can_be_bound_again() -> None:
    server = listener(ListenerLimits(), asyncio.Event())
    await server.bind()
    with capture_logs() as logs:
        await server.close(timeout_ms=0)
    assert logs == []
    again = listener(ListenerLimits(), asyncio.Event(), port=server.port)
    await again.bind()
    await again.close(timeout_ms=0)


async def test_listeners_bound_to_port_0_have_distinct_ports_before_they_start() -> None:
    servers = [listener(ListenerLimits(), asyncio.Event()) for _ in range(50)]
    for server in servers:
        await server.bind()
    assert len({server.port for server in servers}) == len(servers)
    for server in servers:
        await server.close(timeout_ms=0)


async def test_listener_start_fails_if_another_bound_listener_started_first() -> None:
    first = listener(ListenerLimits(), asyncio.Event())
    await first.bind()
    second = listener(ListenerLimits(), asyncio.Event(), port=first.port)
    await second.bind()
    await second.start()
    with pytest.raises(StartupError, match="cannot listen"):
        await first.start()
    for server in (first, second):
        await server.close(timeout_ms=0)
