"""Connections that came through a port: counted, closed when idle."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import StartupError
from kraftjbod.net.connection import Connection
from kraftjbod.net.connection_quotas import QuotaLimits
from kraftjbod.net.listener import Listener, ListenerLimits
from kraftjbod.net.request_session import PendingRequest, RequestSession, SessionLimits
from tests.unit.broker.gates import until


def listener(limits: ListenerLimits, hold: asyncio.Event, port: int = 0) -> Listener:
    async def answer(request: PendingRequest) -> list[bytes]:
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
    )


async def test_idle_connections_are_closed_and_busy_ones_are_not() -> None:
    hold = asyncio.Event()
    door = listener(ListenerLimits(max_idle_ms=40), hold)
    await door.start()
    idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", door.port)
    busy_reader, busy_writer = await asyncio.open_connection("127.0.0.1", door.port)
    busy_writer.write(b"\x00\x00\x00\x01x")
    assert await idle_reader.read() == b""
    hold.set()
    assert await busy_reader.read() == b"ok"
    assert door.connection_count == 0
    for writer in (idle_writer, busy_writer):
        writer.close()
    await door.close(timeout_ms=0)


async def test_reset_silent_resets_connections_without_requests_since() -> None:
    """A reset, not an end of stream: that waits for what the peer has not acknowledged."""
    hold = asyncio.Event()
    door = listener(ListenerLimits(), hold)
    await door.start()
    silent_reader, silent_writer = await asyncio.open_connection("127.0.0.1", door.port)
    silent_writer.write(b"\x00\x00\x00\x01x")
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
    await until(lambda: door.connection_count == 2)
    loop = asyncio.get_running_loop()
    await until(lambda: loop.time() > max(one.last_heard_s for one in door._sessions))
    since_s = loop.time()
    writer.write(b"\x00\x00\x00\x01x")
    await until(lambda: any(one.last_heard_s >= since_s for one in door._sessions))
    assert await door.reset_silent(since_s) == 1
    with pytest.raises(ConnectionResetError):
        await silent_reader.read()
    hold.set()
    assert await reader.readexactly(2) == b"ok"
    for one in (silent_writer, writer):
        one.close()
    await door.close(timeout_ms=0)


async def test_no_more_connections_than_allowed() -> None:
    door = listener(ListenerLimits(quotas=QuotaLimits(max_connections=1)), asyncio.Event())
    await door.start()
    _, first = await asyncio.open_connection("127.0.0.1", door.port)
    with capture_logs() as logs:
        reader, second = await asyncio.open_connection("127.0.0.1", door.port)
        try:
            assert await reader.read() == b""
        except ConnectionResetError as e:
            assert e  # as good as an end of file
    assert [(e["event"], e["door"]) for e in logs] == [("connection_turned_away", "test")]
    assert door.connection_count == 1
    assert "connections=1" in repr(door)
    first.close()
    second.close()
    await door.close(timeout_ms=5000)


async def test_client_is_refused_while_descriptors_are_short() -> None:
    """Disks need those that are left; a connection that may be a broker's is pending."""
    short = ListenerLimits(max_client_descriptor=2)
    door = listener(short, asyncio.Event())
    await door.start()
    with capture_logs() as logs:
        reader, client = await asyncio.open_connection("127.0.0.1", door.port)
        try:
            assert await reader.read() == b""
        except ConnectionResetError as e:
            assert e  # as good as an end of file
    (event,) = logs
    assert event["event"] == "connection_turned_away"
    assert "RLIMIT_NOFILE" in event["reason"]
    client.close()
    await door.close(timeout_ms=5000)

    quotas = QuotaLimits(max_connections=4, reserved=2, pending=1)
    door = listener(ListenerLimits(max_client_descriptor=2, quotas=quotas), asyncio.Event())
    await door.start()
    _, maybe_broker = await asyncio.open_connection("127.0.0.1", door.port)
    maybe_broker.write(b"\x00\x00\x00\x01x")
    while not door.quotas.has_pending:
        await asyncio.sleep(0.001)
    maybe_broker.close()
    await door.close(timeout_ms=5000)


async def test_an_address_that_is_bound_is_taken_and_refuses_until_the_start() -> None:
    door = listener(ListenerLimits(), asyncio.Event())
    await door.bind()
    rival = listener(ListenerLimits(), asyncio.Event(), port=door.port)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", door.port)
    await door.start()
    with pytest.raises(StartupError, match=f"cannot listen on 127.0.0.1:{door.port}"):
        await rival.bind()
    _, writer = await asyncio.open_connection("127.0.0.1", door.port)
    writer.close()
    await door.close(timeout_ms=0)


async def test_an_address_that_was_only_bound_is_given_back_without_a_word() -> None:
    door = listener(ListenerLimits(), asyncio.Event())
    await door.bind()
    with capture_logs() as logs:
        await door.close(timeout_ms=0)
    assert logs == []
    again = listener(ListenerLimits(), asyncio.Event(), port=door.port)
    await again.bind()
    await again.close(timeout_ms=0)


async def test_who_listens_first_on_an_address_that_two_have_bound() -> None:
    first = listener(ListenerLimits(), asyncio.Event())
    await first.bind()
    second = listener(ListenerLimits(), asyncio.Event(), port=first.port)
    await second.bind()
    await second.start()
    with pytest.raises(StartupError, match="cannot listen"):
        await first.start()
    for door in (first, second):
        await door.close(timeout_ms=0)
