"""Sends thousands of frames over many connections at once and counts the outcomes.

A burst is a series of valid frames, sent at once; its last frame may be malformed.
The daemon must answer each frame that our codec decodes. A broker answers in order and with the
frame's correlation id; a controller may answer in any order.
The daemon must close the connection after a frame that our codec refuses.
A Produce request with acks=0 has no answer, and ends the connection if it fails, as in Kafka.
Some connections are abandoned: in the middle of a frame, with unread answers, or by a reset.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from kraftjbod.core.errors import RemoteProtocolError
from kraftjbod.protocol import kafka_codec as codec
from kraftjbod.protocol import rpc_codec
from tests.fuzz.kafka_frames import Frame

BURST: Final = 40
#: Share of malformed frames that are sent together with the valid frames before them.
_TRUNCATED: Final = 0.3
#: Wait for the answers of a burst. Some requests wait longer; then the connection is closed.
PATIENCE_S: Final = 3.0
_LEFT: Final = 0.1
#: Share of malformed frames that are not sent: they end their connection and test the decoder only.
_SPARED: Final = 0.93
_DECODED: Final = 0.05
_KEPT: Final = 20


@dataclass(slots=True)
class Figures:
    """Counts of the flood. ``wrong`` holds frames that the daemon handled incorrectly."""

    frames: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    by_api: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def blame(self, what: str, frame: Frame) -> None:
        self.outcomes[what] += 1
        if len(self.wrong) < _KEPT:
            self.wrong.append(f"{what}: {frame.api} v{frame.version} {frame.data[:300].hex()}")


@dataclass(frozen=True, slots=True)
class ListenerTarget:
    """A listener of a daemon and the source of frames for it."""

    address: tuple[str, int]
    next_frame: Callable[[], Frame]
    is_kafka: bool


class _Ended(Exception):
    """The daemon closed the connection, and the outcome is already counted."""


@dataclass(slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    #: A Produce request with acks=0 was sent: if it failed, the daemon closes the connection.
    may_close: bool = False


class Flood:
    """Runs until ``frames`` frames were sent, with ``connections`` connections per listener."""

    def __init__(
        self, targets: list[ListenerTarget], *, frames: int, connections: int, rng: random.Random
    ) -> None:
        self._targets = targets
        self._left_to_send = frames
        self._connections = connections
        self._rng = rng
        self.figures = Figures()

    async def run(self, on_progress: Callable[[Figures], None] = lambda _: None) -> Figures:
        workers = [
            asyncio.ensure_future(self._work(target))
            for target in self._targets
            for _ in range(self._connections)
        ]
        try:
            while not all(worker.done() for worker in workers):
                await asyncio.wait(workers, timeout=5)
                on_progress(self.figures)
        finally:
            for worker in workers:
                worker.cancel()
        for worker in workers:
            worker.result()
        return self.figures

    async def _work(self, target: ListenerTarget) -> None:
        while self._left_to_send > 0:
            await self._visit(target)

    async def _visit(self, target: ListenerTarget) -> None:
        """Open one connection and send bursts until it ends."""
        try:
            reader, writer = await asyncio.wait_for(
                asyncio.open_connection(*target.address), PATIENCE_S
            )
        except (OSError, TimeoutError):
            self.figures.outcomes["no connection"] += 1
            await asyncio.sleep(0.1)
            return
        try:
            async with asyncio.timeout(30):
                connection = _Connection(reader, writer)
                while self._left_to_send > 0 and await self._burst(target, connection):
                    pass
        except TimeoutError:
            self.figures.outcomes["connection given up"] += 1
        except _Ended:
            pass
        except ConnectionError:
            self.figures.outcomes["reset"] += 1
        finally:
            writer.close()

    async def _burst(self, target: ListenerTarget, connection: _Connection) -> bool:
        """Send one burst and read the answers. Return whether the connection is still usable."""
        reader, writer = connection.reader, connection.writer
        burst = self._drawn(target)
        data = b"".join(frame.framed for frame in burst)
        if self._rng.random() < _LEFT:
            self._leave(writer, data)
            return False
        breaking = burst.pop() if burst[-1].breaks else None
        is_truncated = breaking is not None and self._rng.random() < _TRUNCATED
        writer.write(data if is_truncated else b"".join(frame.framed for frame in burst))
        sound = [frame for frame in burst if frame.has_answer]
        connection.may_close |= len(sound) < len(burst)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._answers(target, connection, sound, is_truncated=is_truncated)
                if breaking is None:
                    return True
                if not is_truncated:
                    writer.write(breaking.framed)
                await self._end(reader, breaking)
        except TimeoutError:
            self.figures.outcomes["not answered in time"] += 1
        return False

    def _drawn(self, target: ListenerTarget) -> list[Frame]:
        burst: list[Frame] = []
        for _ in range(min(BURST, max(1, self._left_to_send))):
            frame = target.next_frame()
            while frame.breaks and self._rng.random() < _SPARED:
                frame = target.next_frame()
            burst.append(frame)
            self.figures.by_api[frame.api] += 1
            if frame.breaks:
                break
        self.figures.frames += len(burst)
        self._left_to_send -= len(burst)
        return burst

    async def _answers(
        self,
        target: ListenerTarget,
        connection: _Connection,
        sound: list[Frame],
        *,
        is_truncated: bool,
    ) -> None:
        """Read the answers of ``sound`` and record wrong ones.

        :param is_truncated: a malformed frame was sent behind ``sound``. The daemon may then close
            the connection before it answers all of them.
        :raises _Ended: the daemon closed the connection.
        """
        waiting = {} if target.is_kafka else {frame.correlation_id: frame for frame in sound}
        for frame in sound:
            try:
                answer = await _read_frame(connection.reader)
            except (asyncio.IncompleteReadError, ConnectionError):
                if is_truncated or connection.may_close:
                    self.figures.outcomes["closed as due"] += 1
                else:
                    self.figures.blame("closed though sound", frame)
                raise _Ended from None
            self.figures.outcomes["answered"] += 1
            number = _correlation_id(answer, is_kafka=target.is_kafka)
            if target.is_kafka and number != frame.correlation_id:
                self.figures.blame("answer under another number", frame)
            elif not target.is_kafka and number not in waiting:
                self.figures.blame("answer to nothing", frame)
            if target.is_kafka and self._rng.random() < _DECODED:
                self._check(frame, answer)

    def _check(self, frame: Frame, answer: bytes) -> None:
        try:
            codec.decode_response(answer, api_key=frame.api_key, version=frame.version)
        except RemoteProtocolError:
            self.figures.blame("malformed answer", frame)

    async def _end(self, reader: asyncio.StreamReader, frame: Frame) -> None:
        """Record whether the daemon closes the connection without an answer to ``frame``."""
        try:
            is_answered = bool(await reader.read(1))
        except ConnectionError:
            is_answered = False
        if is_answered:
            self.figures.blame("answered though broken", frame)
        self.figures.outcomes["closed as due"] += not is_answered

    def _leave(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        self.figures.outcomes["left"] += 1
        way = self._rng.randrange(4)
        writer.write(data[: self._rng.randrange(len(data) + 1)] if way == 0 else data)
        if way == 1:
            writer.write_eof()
        elif way == 2:
            # The length of a frame without the frame.
            writer.write(struct.pack(">i", self._rng.choice((1 << 20, 50 << 20, 2**31 - 1, -1, 0))))
        elif way == 3:
            _reset(writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close the connection with a TCP reset, so that answers in flight meet a closed port."""
    connection: Any = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


def _correlation_id(answer: bytes, *, is_kafka: bool) -> int:
    if is_kafka:
        return codec.correlation_id_of(answer)
    return rpc_codec.decode_response(answer).correlation_id


def rate(figures: Figures, since_s: float) -> float:
    """Return the frames per second since ``since_s`` (``time.monotonic()``)."""
    return figures.frames / max(0.001, time.monotonic() - since_s)
