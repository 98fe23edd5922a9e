"""``MemoryBudget`` for the memory of all connections, alone and in a listener."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections.abc import AsyncIterator

from structlog.testing import capture_logs

from kraftjbod.core.config_model import MIB
from kraftjbod.net.listener import Listener, ListenerLimits
from kraftjbod.net.memory_budget import Ledger, MemoryBudget, MemoryLimits
from kraftjbod.net.request_session import PendingRequest, RequestSession, SessionLimits


class Peer:
    def __init__(self, name: str) -> None:
        self.peer = name
        self.is_privileged = False
        self.is_held_up = False
        self.aborted: str | None = None

    def note_taken(self) -> None: ...

    def abort(self, reason: str) -> None:
        self.aborted = reason


class Waiter:
    def __init__(self) -> None:
        self.resumed = 0

    def memory_freed(self) -> None:
        self.resumed += 1


def ledger(limits: MemoryLimits) -> Ledger:
    return MemoryBudget(limits).requests


async def test_memory_ledger_closes_stalled_requests_but_not_slow_ones() -> None:
    limits = MemoryLimits(receive_timeout_ms=10_000, min_progress_bytes=100)
    held, now_s = ledger(limits), asyncio.get_running_loop().time()
    still, dribbling, slow, kept = (Peer(n) for n in ("still", "dribbling", "slow", "kept"))
    kept.is_held_up = True
    for second in range(60):
        for peer, moved in ((still, 1), (dribbling, second), (slow, 10 * second), (kept, 1)):
            if peer.aborted is None:
                held.hold(peer, 1000, moved)
        held.sweep(now_s + second + 0.5)
        assert (still.aborted is None) == (dribbling.aborted is None) == (second < 10)
        for peer in (still, dribbling):
            if peer.aborted:
                held.release(peer)
    assert still.aborted == "a half-sent request did not get on for 10 s"
    assert (slow.aborted, kept.aborted) == (None, None)


async def test_memory_ledger_closes_the_slowest_requests_while_others_wait_except_brokers() -> None:
    limits = MemoryLimits(max_request_bytes=1000, grace_ms=5000)
    held, now_s = ledger(limits), asyncio.get_running_loop().time()
    peers = [Peer(f"{number}") for number in range(10)]
    peers[0].is_privileged = True
    for number, peer in enumerate(peers):
        held.hold(peer, 100, number)
    waiter = Waiter()
    held.wait_for_memory(waiter)
    with capture_logs() as logs:
        held.sweep(now_s + 4)
        assert not any(peer.aborted for peer in peers)
        held.sweep(now_s + 6)
    assert [peer.peer for peer in peers if peer.aborted] == ["1", "2", "3", "4", "5"]
    assert [(e["event"], e["connections"], e["freed_bytes"]) for e in logs] == [
        ("memory_reclaimed", 5, 500)
    ]
    for peer in peers[1:6]:
        held.release(peer)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert waiter.resumed == 1


async def test_memory_ledger_closes_no_request_while_none_waits() -> None:
    held = ledger(MemoryLimits(max_request_bytes=10, grace_ms=0))
    peer = Peer("large")
    held.hold(peer, 1000, 0)
    held.sweep(asyncio.get_running_loop().time() + 1)
    assert peer.aborted is None


# --- in a listener -------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def serving(limits: MemoryLimits, *, answer_bytes: int = 10) -> AsyncIterator[Listener]:
    """Answer each frame with ``answer_bytes``, and a frame that begins with ``w`` with 10 bytes."""

    async def answer(request: PendingRequest) -> list[bytes]:
        await asyncio.sleep(0)
        if bytes(request.frame[:4]) == b"wait":
            await asyncio.sleep(0.01)
        size = 10 if bytes(request.frame[:1]) == b"w" else answer_bytes
        return [struct.pack(">i", size), b"x" * size]

    def session(connection: object) -> RequestSession:
        return RequestSession(
            connection,  # type: ignore[arg-type]  # the listener's
            answer=answer,
            in_order=True,
            limits=SessionLimits(max_in_flight_requests=5, max_in_flight_bytes=MIB),
            memory=made.memory,
            may_be_large=lambda frame: bytes(frame[:1]) != b"w",
        )

    made = Listener(
        name="test",
        host="127.0.0.1",
        port=0,
        make_session=session,
        limits=ListenerLimits(),
        memory=MemoryBudget(limits),
    )
    await made.start()
    try:
        yield made
    finally:
        await asyncio.sleep(0.01)
        await made.close(timeout_ms=0)
        for held in (made.memory.requests, made.memory.answers):
            assert (held.used_bytes, held.is_in_use) == (0, False), held


async def ask(listener: Listener, frame: bytes) -> int:
    """Send a frame, and return the size of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, limit=1 << 16)
    writer.write(struct.pack(">i", len(frame)) + frame)
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    await reader.readexactly(size)
    writer.close()
    return int(size)


async def test_memory_budget_half_sent_frames_do_not_block_other_requests() -> None:
    """They fill the budget; a large frame of another client is accepted after the grace period."""
    limits = MemoryLimits(max_request_bytes=MIB, grace_ms=0)
    async with serving(limits) as listener:
        writers = []
        for _ in range(40):
            _, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(struct.pack(">i", 100 * MIB) + b"x" * 60_000)
            writers.append(writer)
        while listener.memory.requests.left_bytes:
            await asyncio.sleep(0.01)
        with capture_logs() as logs:
            assert await ask(listener, b"w" * 400_000) == 10
        assert {e["event"] for e in logs} <= {"memory_reclaimed"}
        assert listener.memory.requests.used_bytes < 2 * MIB
        for writer in writers:
            writer.transport.abort()


async def test_memory_budget_bounds_unread_answers_and_others_are_served() -> None:
    limits = MemoryLimits(max_answer_bytes=20 * MIB, grace_ms=0)
    async with serving(limits, answer_bytes=8 * MIB) as listener:
        writers = []
        most_bytes = 0
        with capture_logs() as logs:
            for _ in range(30):
                _, writer = await asyncio.open_connection("127.0.0.1", listener.port, limit=1)
                for number in range(5):
                    writer.write(struct.pack(">i", 1) + b"%d" % number)
                writers.append(writer)
                await asyncio.sleep(0.01)
                most_bytes = max(most_bytes, listener.memory.answers.used_bytes)
            assert await ask(listener, b"r") == 8 * MIB
        # One more answer than fits may start, because its size is known at its end only.
        assert most_bytes <= 28 * MIB
        assert "memory_reclaimed" in {e["event"] for e in logs}
        for writer in writers:
            writer.transport.abort()


async def test_memory_budget_is_zero_after_all_connections_have_ended() -> None:
    """Clients read, stop and leave in random order; :func:`serving` checks the budget."""
    chance = random.Random(7)
    limits = MemoryLimits(max_request_bytes=2 * MIB, max_answer_bytes=3 * MIB, grace_ms=0)
    with capture_logs():
        async with serving(limits, answer_bytes=MIB) as listener:

            async def visit() -> None:
                reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
                for _ in range(chance.randrange(6)):
                    size = chance.choice([1, 100, 70_000, 600_000])
                    frame = chance.choice([b"w", b"wait", b"r"]) * size
                    sent = struct.pack(">i", len(frame)) + frame
                    writer.write(sent if chance.random() < 0.7 else sent[: len(sent) // 2])
                    if chance.random() < 0.4:
                        await asyncio.sleep(chance.random() / 50)
                    if chance.random() < 0.2:
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(reader.read(100_000), 0.05)
                if chance.random() < 0.5:
                    writer.close()
                    await asyncio.sleep(0.05)
                writer.transport.abort()

            for _ in range(6):
                visits = [visit() for _ in range(25)]
                await asyncio.gather(*visits, return_exceptions=True)
