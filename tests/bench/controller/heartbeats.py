"""A relay between a broker and its controller that notes when each heartbeat passes."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_WANTED: Final = b"BrokerHeartbeat"
_CHUNK: Final = 64 * 1024
_START_S: Final = 10.0


class HeartbeatRelay:
    """Listens on ``port`` of the loopback interface and forwards all bytes to ``target``.

    A heartbeat is recognized by the request's name in a chunk of bytes. Heartbeats are small, rare
    and sent one at a time, so that none is split.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self.port = 0
        self.sent_at_s: list[float] = []
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat-relay", daemon=True)

    def intervals_ms(self, since_s: float, until_s: float) -> list[float]:
        """Times between heartbeats that passed between two instants of the monotonic clock."""
        inside = [at for at in self.sent_at_s if since_s <= at <= until_s]
        return [(later - sooner) * 1000 for sooner, later in itertools.pairwise(inside)]

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(_START_S), "the relay did not start"

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", self.port)
        )
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        try:
            await asyncio.gather(self._pass(reader, there[1]), self._pass(there[0], writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            there[1].close()
            writer.close()

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(_CHUNK):
            if _WANTED in data:
                self.sent_at_s.append(time.monotonic())
            target.write(data)
            await target.drain()
        target.write_eof()


@contextmanager
def heartbeat_relay(target: tuple[str, int]) -> Iterator[HeartbeatRelay]:
    relay = HeartbeatRelay(target)
    relay.start()
    try:
        yield relay
    finally:
        relay.stop()
