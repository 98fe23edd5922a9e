"""Two hosts on a memory network, for its tests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from kraftjbod.testing.simulation.memory_network import MemoryNetwork
from kraftjbod.testing.simulation.memory_transport import Place
from kraftjbod.testing.simulation.virtual_loop import VirtualLoop, virtual_loop
from kraftjbod.testing.simulation.world import World

PORT = 9092


class Peer(asyncio.BufferedProtocol):
    """A protocol that records received bytes and notifications."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.received = bytearray()
        self.callbacks: list[str] = []
        self._buffer = bytearray(1000)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]

    def pause_writing(self) -> None:
        self.callbacks.append("pause")

    def resume_writing(self) -> None:
        self.callbacks.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.callbacks.append("lost" if exc is None else type(exc).__name__)


class Net:
    """Hosts ``a`` and ``b``; ``b`` listens."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.network = MemoryNetwork(self.world)
        self.places: dict[str, Place] = {name: self.network.add(name) for name in "ab"}
        self.loops: dict[str, VirtualLoop] = {}
        self.guests: list[Peer] = []
        for name in "ab":
            self.boot(name)

    def boot(self, name: str) -> None:
        loop = self.loops[name] = virtual_loop(self.world, name)
        loop.sockets = self.network.sockets_of(self.places[name], loop)
        if name == "b":
            self.run(loop.create_server(self._guest, "b", PORT))

    def _guest(self) -> Peer:
        self.guests.append(Peer())
        return self.guests[-1]

    def begin(self, work: Coroutine[Any, Any, Any], name: str = "a") -> asyncio.Task[Any]:
        return self.loops[name].create_task(work)

    def run(self, work: Coroutine[Any, Any, Any], name: str = "b") -> Any:
        task = self.begin(work, name)
        self.run_for(1)
        return task.result()

    def run_for(self, s: float) -> None:
        self.world.run_until(self.world.now_us + int(s * 1e6))

    def connect(self) -> asyncio.Task[Any]:
        return self.begin(self.loops["a"].create_connection(Peer, "b", PORT))

    def connected(self) -> tuple[Peer, Peer]:
        task = self.connect()
        self.run_for(0.1)
        return task.result()[1], self.guests[-1]
