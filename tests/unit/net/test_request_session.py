"""``RequestSession``: responses in order of completion, or in order of the requests."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable
from enum import Enum
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.core.errors import UnansweredError
from kraftjbod.core.loop.completion import Completion
from kraftjbod.net.connection import Connection, ConnectionLimits, connect, listen
from kraftjbod.net.request_session import PendingRequest, RequestSession, SessionLimits
from kraftjbod.protocol.framing import Frame


class Replies:
    """The client side."""

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


async def test_request_session_without_order_sends_responses_as_they_complete() -> None:
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


class Handling(Enum):
    """The handling in which a handler answers a request."""

    AT_ONCE = "a"
    COMPLETED = "c"
    TASK = "t"


@given(st.data())
def test_request_session_in_order_starts_and_answers_requests_in_order(data: st.DataObject) -> None:
    """The handlers are of all kinds, and complete in any order."""
    handlings = data.draw(st.lists(st.sampled_from(Handling), min_size=1, max_size=12))
    ends = data.draw(
        st.permutations(
            [n for n, handling in enumerate(handlings) if handling is not Handling.AT_ONCE]
        )
    )
    reads = data.draw(st.lists(st.integers(1, len(handlings)), max_size=3))
    limit = data.draw(st.integers(1, len(handlings)))
    asyncio.run(_answered_in_order(handlings, ends, reads, limit))


async def _answered_in_order(
    handlings: list[Handling], ends: list[int], reads: list[int], limit: int
) -> None:
    begun: list[int] = []
    waiting: dict[int, Completion[int]] = {n: Completion() for n in ends}

    def answer(request: PendingRequest) -> Awaitable[int]:
        number = request.frame[0]
        request.encode = lambda answered: [struct.pack(">ib", 1, answered)]
        if handlings[number] is Handling.TASK:
            return in_task(number)
        begun.append(number)
        return Completion.of(number) if handlings[number] is Handling.AT_ONCE else waiting[number]

    async def in_task(number: int) -> int:
        begun.append(number)
        return await waiting[number]

    def session(connection: Connection) -> RequestSession:
        limits = SessionLimits(max_in_flight_requests=limit, max_in_flight_bytes=1000)
        return RequestSession(connection, answer=answer, in_order=True, limits=limits)

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
    frames = [struct.pack(">ib", 1, number) for number in range(len(handlings))]
    for start, end in pairwise(sorted({0, *reads, len(handlings)})):
        replies.connection.write([b"".join(frames[start:end])])
        await asyncio.sleep(0)
    while ends and not replies.closed.done():
        # Requests in flight can complete; the others have not started.
        number = next((n for n in ends if n in begun), None)
        if number is not None:
            ends = [n for n in ends if n != number]
            waiting[number].set_result(number)
        await asyncio.sleep(0)
    async with asyncio.timeout(10):
        answers = [(await replies.frames.get())[0] for _ in handlings]
    assert begun == answers == list(range(len(handlings)))
    replies.connection.close("done")
    await replies.closed
    server.close()


async def test_request_session_unanswered_request_closes_after_earlier_responses() -> None:
    """A request that has no response closes the connection after the responses before it."""
    first: Completion[bytes] = Completion()

    def answer(request: PendingRequest) -> Awaitable[bytes]:
        request.encode = lambda answered: [struct.pack(">i", len(answered)) + answered]
        if bytes(request.frame) == b"first":
            return first
        failed: Completion[bytes] = Completion()
        failed.set_exception(UnansweredError("the producer expects no answer"))
        return failed

    def session(connection: Connection) -> RequestSession:
        limits = SessionLimits(max_in_flight_requests=2, max_in_flight_bytes=100)
        return RequestSession(connection, answer=answer, in_order=True, limits=limits)

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
    for name in (b"first", b"failed", b"held back"):
        replies.ask(name)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not replies.closed.done()
    first.set_result(b"answered")
    await replies.closed
    assert await replies.frames.get() == b"answered"
    assert replies.frames.empty()
    server.close()
