"""Sessions whose answers may overtake each other; ordered ones are tested at the Kafka door."""

from __future__ import annotations

import asyncio
import struct

from kraftjbod.net.connection import Connection, ConnectionLimits, connect, listen
from kraftjbod.net.request_session import PendingRequest, RequestSession, SessionLimits
from kraftjbod.protocol.framing import Frame


class Replies:
    """The asking side."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def ask(self, frame: bytes) -> None:
        self.connection.write([struct.pack(">i", len(frame)) + frame])

    def frame_received(self, frame: Frame) -> None:
        self.frames.put_nowait(bytes(frame))

    def writing_resumed(self) -> None: ...

    def connection_closed(self, reason: str) -> None:
        self.closed.set_result(reason)


async def test_unordered_answers_leave_when_they_are_there() -> None:
    held = asyncio.Event()
    sessions: list[RequestSession] = []

    async def answer(request: PendingRequest) -> list[bytes] | None:
        name = bytes(request.frame)
        if name == b"held":
            await held.wait()
        return None if name == b"mute" else [struct.pack(">i", len(name)), name]

    def session(connection: Connection) -> RequestSession:
        limits = SessionLimits(max_in_flight_requests=2, max_in_flight_bytes=100)
        made = RequestSession(connection, answer=answer, in_order=False, limits=limits)
        sessions.append(made)
        return made

    limits = ConnectionLimits(max_frame_bytes=100)
    server = await listen(
        "127.0.0.1",
        0,
        make_connection=lambda: Connection(make_receiver=session, limits=limits),
        backlog=1,
    )
    port = server.sockets[0].getsockname()[1]
    replies = await connect(
        "127.0.0.1", port, make_receiver=Replies, limits=limits, timeout_ms=5000
    )
    for name in (b"held", b"mute", b"quick", b"quicker"):
        replies.ask(name)
    assert [await replies.frames.get() for _ in range(2)] == [b"quick", b"quicker"]
    assert sessions[0].in_flight == 1
    sessions[0].finish("enough")
    replies.ask(b"too late")
    held.set()
    assert await replies.frames.get() == b"held"
    await replies.closed
    assert replies.frames.empty()
    server.close()
