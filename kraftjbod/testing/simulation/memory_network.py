"""WIRE. ``MemoryNetwork``: hosts with names, the links between them, and faults of the links.

The model of TCP:

* Bytes of one connection arrive in order, each piece after its own delay. Pieces of different
  connections overtake each other.
* A partition loses no bytes of a connection: they wait until it heals. A connection attempt hangs
  meanwhile (a firewall that drops), or is refused at once (a firewall that rejects). With a one-way
  partition, bytes in the other direction arrive without acknowledgements, until the window is full.
* A killed process closes its connections, and bytes that it had written still arrive. A host
  without power sends nothing. After its return it resets the connections on which peers send.
* A port without listener refuses connections. An unknown host name is an error at once.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from typing import Any, Final, Self

from kraftjbod.testing.simulation.memory_transport import (
    Link,
    Mark,
    MemoryTransport,
    Place,
    connect_ends,
)
from kraftjbod.testing.simulation.virtual_loop import ProtocolFactory, VirtualLoop, virtual_loop
from kraftjbod.testing.simulation.world import World

_FIRST_EPHEMERAL_PORT: Final = 40_000
_MOST_HOSTS: Final = 250
_EVERYWHERE: Final = ("", "0.0.0.0", "::")  # noqa: S104 - what daemons bind to
_CONNECT_TIMEOUT_US: Final = 127_000_000
#: Time until a firewall rejects a connection.
_REJECT_US: Final = 100


class MemoryNetwork:
    """The simulated network of a world: its hosts, the links between them, listeners and
    connections.

    ``a`` and ``b`` are names of hosts in the methods that inject faults.
    """

    def __init__(self, world: World) -> None:
        self.loop = virtual_loop(world, "network")
        self._world = world
        self._rng = world.rng_of("network")
        self._places: dict[str, Place] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._listeners: dict[tuple[str, int], MemoryServer] = {}
        #: Open connection ends of living processes.
        self._ends: dict[MemoryTransport, None] = {}
        self._next_ports: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<MemoryNetwork hosts={len(self._places)} ends={len(self._ends)}>"

    def add(self, name: str) -> Place:
        """Add a host, whose name must be new; return its place in the network, with an address."""
        assert name not in self._places and len(self._places) < _MOST_HOSTS, name
        address = f"10.0.0.{len(self._places) + 1}"
        place = self._places[name] = Place(name, address)
        self._next_ports[name] = _FIRST_EPHEMERAL_PORT
        return place

    # --- faults --------------------------------------------------------------------------------

    def link(self, a: str, b: str) -> Link:
        """Return the link that carries data from ``a`` to ``b``; the first call creates it."""
        found = self._links.get((a, b))
        if found is None:
            found = Link(self.loop, self._rng, self._places[a], self._places[b])
            self._links[a, b] = found
        return found

    def partition(self, a: str, b: str, *, one_way: bool = False, rejects: bool = False) -> None:
        """Cut the link from ``a`` to ``b`` and, unless ``one_way``, the link back.

        :param rejects: connection attempts over a cut link fail with ECONNREFUSED, as with the
            REJECT target of a firewall. Open connections stay open and carry nothing.
        """
        how = f"{'>' if one_way else '<>'} {b}{' rejects' if rejects else ''}"
        self._say("partition", f"{a} {how}")
        links = [self.link(a, b), *(() if one_way else (self.link(b, a),))]
        for link in links:
            link.is_cut, link.rejects = True, rejects

    def isolate(self, a: str) -> None:
        """Cut the links between ``a`` and all hosts that were added so far, in both directions."""
        for name in self._places:
            if name != a:
                self.partition(a, name)

    def heal(self, a: str | None = None, b: str | None = None) -> None:
        """Restore the links that were cut between ``a`` and ``b``; without ``b`` all links of
        ``a``, and without both all links. Delays stay."""
        self._say("heal", f"{a or 'all'} {b or 'all'}")
        for (source, target), link in list(self._links.items()):
            ends = {source, target}
            if link.is_cut and (a is None or a in ends) and (b is None or b in ends):
                link.is_cut = link.rejects = False
                link.release()

    def delay(self, a: str, b: str, ms: float) -> Callable[[], None]:
        """Delay each piece in both directions by a random time from ``ms`` to 1.5 times ``ms``.

        :return: a function that removes the delay.
        """
        self._say("delay", f"{a} <> {b} {ms} ms")
        links = (self.link(a, b), self.link(b, a))
        slowed = [link.slow(int(ms * 1000), int(ms * 1500)) for link in links]

        def undo() -> None:
            for quicken in slowed:
                quicken()

        return undo

    def reset_connections(self, a: str, b: str) -> int:
        """Reset all connections between the two hosts at both ends; return the number of these
        ends, at most two per connection."""
        found = [end for end in self._ends if {end.place.name, end.peer.place.name} == {a, b}]
        self._say("reset", f"{a} <> {b} {len(found)} ends")
        for end in found:
            end.reset()
        return len(found)

    def break_one_side(self, a: str, b: str, *, by_fin: bool = False) -> int:
        """Break every connection between the two, and let only the ends on ``a`` know.

        The ends on ``b`` stay open. What processes write there gets lost without an answer, as
        behind a firewall that lost its state and drops packets of connections it does not know.

        :param by_fin: the ends on ``a`` see an orderly close instead of a reset, as from a proxy.
        :return: the number of connections.
        """
        ends = [end for end in self._ends if (end.place.name, end.peer.place.name) == (a, b)]
        self._say("break one side", f"{a} > {b} {len(ends)} ends")
        for end in ends:
            end.cut_off(Mark.FIN if by_fin else Mark.RST)
        return len(ends)

    def _say(self, what: str, text: str) -> None:
        self._world.trace.note("network", "fault", f"{what} {text}")

    # --- what processes do -----------------------------------------------------------------------

    def sockets_of(self, place: Place, loop: VirtualLoop) -> ProcessSockets:
        """Return the object by which the process of ``loop`` on the host ``place`` connects and
        listens."""
        return ProcessSockets(self, place, loop)

    def place_of(self, host: str) -> Place:
        """Return the host with this name or address.

        :raises OSError: the host name is unknown.
        """
        found = self._places.get(host)
        for place in self._places.values():
            if found is None and place.address == host:
                found = place
        if found is None:
            raise socket.gaierror(socket.EAI_NONAME, f"no host is called {host}")
        return found

    def free_port(self, place: Place) -> int:
        port = self._next_ports[place.name]
        self._next_ports[place.name] = port + 1
        return port

    def bind(self, server: MemoryServer) -> None:
        """Register the server at its address.

        :raises OSError: EADDRINUSE, if another server has the address.
        """
        key = (server.place.name, server.port)
        if key in self._listeners:
            raise _error(errno.EADDRINUSE)
        self._listeners[key] = server

    def unbind(self, server: MemoryServer) -> None:
        if self._listeners.get((server.place.name, server.port)) is server:
            del self._listeners[server.place.name, server.port]

    def listener(self, place: Place, port: int) -> MemoryServer | None:
        """Return the listener that serves ``port`` of a host. None if there is none, or if it does
        not serve yet: connections are refused then."""
        found = self._listeners.get((place.name, port))
        return found if found is not None and found.is_serving() else None

    def note(self, end: MemoryTransport) -> None:
        self._ends[end] = None
        if len(self._ends) % 64 == 0:
            self._ends = {end: None for end in self._ends if not end.is_gone}

    def end_process(self, loop: VirtualLoop, *, says_so: bool) -> None:
        """End the listeners and connections of a dead process.

        :param says_so: whether the peers see that connections are closed. Otherwise peers are not
            notified, as after a power cut.
        """
        for server in [one for one in self._listeners.values() if one.loop is loop]:
            self.unbind(server)
        for end in [end for end in self._ends if end.loop is loop]:
            end.die(says_so=says_so)
            del self._ends[end]

    def set_power(self, place: Place, *, is_on: bool) -> None:
        """Switch a host's power. Bytes sent to a host without power arrive once power is back."""
        place.is_powered = is_on
        if is_on:
            for link in list(self._links.values()):
                if link.target is place:
                    link.release()


class ProcessSockets:
    """The connections and listeners of one process: an implementation of
    :class:`~.virtual_loop.Sockets`.
    """

    def __init__(self, network: MemoryNetwork, place: Place, loop: VirtualLoop) -> None:
        self._network = network
        self._place = place
        self._loop = loop

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Connect to a server.

        :raises OSError: connection refused, unknown host, or no answer within the timeout of TCP.
        """
        target = self._network.place_of(host)
        attempt = _Attempt(self._network, self._loop, self._place, target, port)
        try:
            transport = await attempt.made
        except asyncio.CancelledError:
            attempt.give_up()
            raise
        protocol = factory()
        transport.begin_delivery(protocol)
        return transport, protocol

    def listen(
        self, factory: ProtocolFactory, host: str, port: int, *, start_serving: bool
    ) -> MemoryServer:
        """Create a server at the address.

        :raises OSError: the address is in use, or belongs to another host.
        """
        if host not in _EVERYWHERE and self._network.place_of(host) is not self._place:
            raise _error(errno.EADDRNOTAVAIL)
        port = port or self._network.free_port(self._place)
        server = MemoryServer(self._network, self._loop, self._place, port, factory)
        self._network.bind(server)
        if start_serving:
            server.serve()
        return server


class _Attempt:
    """One connection attempt: request and answer, each when its link carries it."""

    def __init__(
        self, network: MemoryNetwork, loop: VirtualLoop, source: Place, target: Place, port: int
    ) -> None:
        self.made: asyncio.Future[MemoryTransport] = loop.create_future()
        self._network = network
        self._forth = network.link(source.name, target.name)
        self._back = network.link(target.name, source.name)
        self._end = MemoryTransport(loop, source, network.free_port(source))
        self._port = port
        self._is_over = False
        self._timer = loop.call_after_us(_CONNECT_TIMEOUT_US, self._refuse, _error(errno.ETIMEDOUT))
        if self._forth.rejects:
            # The firewall in between answers, so that the link back does not matter.
            refusal = _error(errno.ECONNREFUSED)
            loop.call_after_us(_REJECT_US, lambda: self._answer(lambda: self._refuse(refusal)))
        else:
            self._forth.carry(self._knock)

    def give_up(self) -> None:
        """Abandon the attempt: its caller was cancelled."""
        self._is_over = True
        self._timer.cancel()
        if self.made.done() and not self.made.cancelled() and self.made.exception() is None:
            self.made.result().abort()

    def _knock(self) -> None:
        listener = self._network.listener(self._forth.target, self._port)
        if listener is None:
            refusal = _error(errno.ECONNREFUSED)
            self._back.carry(lambda: self._answer(lambda: self._refuse(refusal)))
            return
        there = MemoryTransport(listener.loop, self._forth.target, self._port)
        connect_ends(self._end, there, self._forth, self._back)
        listener.accept(there)
        self._back.carry(lambda: self._answer(self._settle))

    def _answer(self, settle: Any) -> None:
        """Deliver the answer to the process on its own loop, if the process is alive."""
        if not self._end.loop.is_dead:
            self._end.loop.call_soon(settle)
        else:
            self._hang_up()

    def _settle(self) -> None:
        if self._is_over or self.made.done():
            self._hang_up()
            return
        self._timer.cancel()
        self._network.note(self._end)
        self.made.set_result(self._end)

    def _refuse(self, error: OSError) -> None:
        self._timer.cancel()
        if not self.made.done():
            self.made.set_exception(error)
        self._is_over = True

    def _hang_up(self) -> None:
        """Close the other side's connection of an abandoned attempt."""
        if self._end.peer is not self._end:
            self._end.die(says_so=True)


class MemoryServer(asyncio.AbstractServer):
    """An asyncio server in the simulated network, which listens on ``port`` of the host ``place``.

    ``factory`` creates the protocol of each accepted connection. Nothing is accepted before
    :meth:`serve`.
    """

    def __init__(
        self,
        network: MemoryNetwork,
        loop: VirtualLoop,
        place: Place,
        port: int,
        factory: ProtocolFactory,
    ) -> None:
        self.loop = loop
        self.place = place
        self.port = port
        self._network = network
        self._factory = factory
        self._serves = False
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<MemoryServer {self.place.name}:{self.port}>"

    @property
    def sockets(self) -> tuple[MemorySocket, ...]:
        return () if self._is_closed else (MemorySocket(self),)

    def accept(self, end: MemoryTransport) -> None:
        """Accept the connection with this server's end ``end``. Called on the network's loop; the
        protocol is created in the next event loop iteration of the server's process."""
        self._network.note(end)
        self.loop.call_soon(self._let_in, end)

    def _let_in(self, end: MemoryTransport) -> None:
        end.begin_delivery(self._factory())

    def serve(self) -> None:
        self._serves = True

    async def start_serving(self) -> None:
        self.serve()

    def is_serving(self) -> bool:
        return self._serves and not self._is_closed

    def close(self) -> None:
        self._is_closed = True
        self._network.unbind(self)

    async def serve_forever(self) -> None:
        """Wait to be cancelled. Bound protocols are served without this call."""
        await asyncio.get_running_loop().create_future()

    async def wait_closed(self) -> None:
        return

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.loop


class MemorySocket:
    """Stand-in for the listening socket of a :class:`MemoryServer`, with the methods that daemons
    call."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server

    def getsockname(self) -> tuple[str, int]:
        return self._server.place.address, self._server.port

    def fileno(self) -> int:
        return self._server.port

    def dup(self) -> Self:
        return self

    def shutdown(self, _how: int) -> None:
        self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
