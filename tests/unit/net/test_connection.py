"""``Connection``: frames in both directions, flow control, and errors of sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import struct

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import ConnectionLostError, RemoteProtocolError, StartupError
from kraftjbod.net.connection import (
    Connection,
    ConnectionLimits,
    connect,
    is_refused,
    listen,
    stop_listening,
)
from kraftjbod.protocol.framing import Frame

LIMITS = ConnectionLimits(max_frame_bytes=1 << 20, write_pause_bytes=1 << 16)


class Recorder:
    """Record the calls of the connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.resumed = asyncio.Event()

    def frame_received(self, frame: Frame) -> None:
        if frame == b"bad":
            raise RemoteProtocolError("that was bad")
        self.frames.put_nowait(bytes(frame))

    def writing_resumed(self) -> None:
        self.resumed.set()

    def connection_closed(self, reason: str) -> None:
        self.closed.set_result(reason)


class Pair:
    """A server, and the recorders of both ends of the first connection to it."""

    async def __aenter__(self) -> Pair:
        accepted: asyncio.Future[Recorder] = asyncio.get_running_loop().create_future()

        def accept(connection: Connection) -> Recorder:
            recorder = Recorder(connection)
            if not accepted.done():
                accepted.set_result(recorder)
            return recorder

        self.server = await listen(
            "127.0.0.1",
            0,
            make_connection=lambda: Connection(make_receiver=accept, limits=LIMITS),
            backlog=5,
        )
        self.port = self.server.sockets[0].getsockname()[1]
        self.near = await connect(
            "127.0.0.1", self.port, make_receiver=Recorder, limits=LIMITS, timeout_ms=5000
        )
        self.far = await accepted
        return self

    async def __aexit__(self, *_: object) -> None:
        self.near.connection.abort("done")
        self.far.connection.abort("done")
        await asyncio.gather(self.near.closed, self.far.closed)
        self.server.close()


def framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


async def test_connection_delivers_frames_of_several_sizes_in_order() -> None:
    async with Pair() as pair:
        frames = [b"", b"a" * 10, b"b" * 900_000, b"c" * 70_000, b"last"]
        for frame in frames:
            pair.near.connection.write([struct.pack(">i", len(frame)), memoryview(frame)])
        assert [await pair.far.frames.get() for _ in frames] == frames
        assert pair.far.connection.peer.startswith("127.0.0.1:")
        assert pair.near.connection.peer == f"127.0.0.1:{pair.port}"


async def test_connection_sets_tcp_nodelay() -> None:
    async with Pair() as pair:
        delays = nodelay_of_sockets(pair.port)
        assert len(delays) == 2
        assert 0 not in delays


def nodelay_of_sockets(port: int) -> list[int]:
    """Return TCP_NODELAY of each socket of this process that is connected to or from ``port``."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            # A descriptor that is no socket or that was closed meanwhile, or a listener.
            if not stat.S_ISSOCK(os.stat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as sock:
                if sock.family is not socket.AF_INET:
                    continue
                if port in (sock.getsockname()[1], sock.getpeername()[1]):
                    found.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
    return found


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (struct.pack(">i", -1), "a frame of -1 bytes"),
        (struct.pack(">i", (1 << 20) + 1), "a frame of 1048577 bytes, the limit is 1048576"),
        (framed(b"bad") + framed(b"never seen"), "that was bad"),
    ],
)
async def test_connection_protocol_error_is_logged_once_and_closes_the_connection(
    sent: bytes, reason: str
) -> None:
    async with Pair() as pair:
        pair.near.connection.write([framed(b"good")])
        assert await pair.far.frames.get() == b"good"
        with capture_logs() as logs:
            pair.near.connection.write([sent])
            assert reason in await pair.far.closed
        assert [(e["event"], e["log_level"]) for e in logs] == [
            ("connection_broke_protocol", "warning")
        ]
        assert reason in logs[0]["reason"]
        assert logs[0]["peer"] == pair.far.connection.peer
        assert pair.far.frames.empty()


async def test_connection_close_sends_pending_data_and_keeps_the_first_reason() -> None:
    async with Pair() as pair:
        pair.near.connection.write([framed(b"x" * 500_000)])
        pair.near.connection.close("enough")
        pair.near.connection.close("no, this")
        assert not pair.near.connection.is_open
        pair.near.connection.write([framed(b"forgotten")])
        assert await pair.near.closed == "enough"
        assert await pair.far.closed == "closed by the peer"
        assert len(await pair.far.frames.get()) == 500_000
        assert pair.far.frames.empty()
        assert "enough" in repr(pair.near.connection)


async def test_connection_writing_pauses_while_the_peer_does_not_read() -> None:
    async with Pair() as pair:
        pair.far.connection.pause_reading()
        pair.far.connection.pause_reading()
        written = 0
        while not pair.near.connection.is_write_paused:
            pair.near.connection.write([framed(b"x" * 500_000)])
            written += 1
            await asyncio.sleep(0)
        assert not pair.near.resumed.is_set()
        pair.far.connection.resume_reading()
        pair.far.connection.resume_reading()
        await pair.near.resumed.wait()
        assert not pair.near.connection.is_write_paused
        for _ in range(written):
            await pair.far.frames.get()


async def test_connect_to_a_closed_port_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(ConnectionLostError, match=f"cannot connect to 127.0.0.1:{port}"):
        await connect("127.0.0.1", port, make_receiver=Recorder, limits=LIMITS, timeout_ms=5000)


async def test_connect_without_handshake_times_out() -> None:
    """A listener with a full backlog does not answer the handshake."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        fillers = []
        for _ in range(3):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
            fillers.append(filler)
        with pytest.raises(ConnectionLostError, match="did not answer within 50 ms"):
            await connect("127.0.0.1", port, make_receiver=Recorder, limits=LIMITS, timeout_ms=50)
        for filler in fillers:
            filler.close()


async def test_listen_on_a_used_address_fails() -> None:
    async with Pair() as pair:
        with pytest.raises(StartupError, match=f"cannot listen on 127.0.0.1:{pair.port}"):
            await listen(
                "127.0.0.1",
                pair.port,
                make_connection=lambda: Connection(make_receiver=Recorder, limits=LIMITS),
                backlog=1,
            )


async def test_stop_listening_refuses_connections_although_a_duplicate_socket_exists() -> None:
    """After kill -9, a thread stuck in the kernel may keep the socket open."""
    async with Pair() as pair:
        with pair.server.sockets[0].dup():
            assert not await is_refused("127.0.0.1", pair.port)
            with capture_logs() as logs:
                stop_listening(pair.server)
            assert await is_refused("127.0.0.1", pair.port)
            with pytest.raises(ConnectionLostError):
                await connect(
                    "127.0.0.1", pair.port, make_receiver=Recorder, limits=LIMITS, timeout_ms=5000
                )
        assert logs == []


async def test_stop_listening_logs_a_socket_that_is_already_shut_down() -> None:
    async with Pair() as pair:
        with pair.server.sockets[0].dup() as duplicate:
            duplicate.shutdown(socket.SHUT_RDWR)
        with capture_logs() as logs:
            stop_listening(pair.server)
        assert [e["event"] for e in logs] == ["listener_shutdown_failed"]
