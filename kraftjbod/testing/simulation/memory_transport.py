"""WIRE. ``MemoryTransport``: one end of a connection in memory, with flow control like TCP's.
:class:`Link` is one direction between two hosts.

A link has a delay, and may be slow or cut. Pieces for a cut link wait; once the link is whole they
are sent again in order.

Written bytes are sent while the window has space for bytes in flight and bytes that the other end
has not read. The rest is buffered here, and the protocol is paused and resumed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from kraftjbod.protocol.framing import Buffer
from kraftjbod.testing.simulation.virtual_loop import VirtualLoop

#: Default delay in microseconds from one host to another, minimum and maximum.
DELAY_US: Final = (80, 600)
DELAY_TO_ITSELF_US: Final = (5, 40)
#: Delay in microseconds until waiting pieces are sent again after a link heals.
_RESEND_US: Final = (1_000, 200_000)

Arrival = Callable[[], None]
#: Limit of bytes in flight or not yet read, per direction.
_WINDOW_BYTES: Final = 256 * 1024
#: Share of pieces that arrive split in two.
_SPLIT: Final = 0.05
_DEFAULT_HIGH_BYTES: Final = 64 * 1024


@dataclass(slots=True, eq=False)
class Place:
    """A host in the simulated network: its name, its address, and whether it has power."""

    name: str
    address: str
    #: Packets to a host without power wait until it has power again. Their sender is not notified.
    is_powered: bool = True


class Link:
    """One direction of the network between two hosts: carries data with a random delay.

    While the link is cut or the target has no power, data waits. None is lost.

    :param loop: the network's own loop, which outlives every process.
    """

    def __init__(self, loop: VirtualLoop, rng: random.Random, source: Place, target: Place) -> None:
        self.source = source
        self.target = target
        self._delays_us = [DELAY_TO_ITSELF_US if source is target else DELAY_US]
        self.bytes_per_us: float = 1_000.0
        self.is_cut = False
        #: While the link is cut: whether connection attempts are refused instead of ignored.
        self.rejects = False
        self._loop = loop
        self._rng = rng
        self._waiting: list[Arrival] = []

    def __repr__(self) -> str:
        return f"<Link {self.source.name}>{self.target.name}{' cut' if self.is_cut else ''}>"

    @property
    def is_dark(self) -> bool:
        """Whether no packet can arrive now, because the link is cut or the target has no power."""
        return self.is_cut or not self.target.is_powered

    def slow(self, least_us: int, most_us: int) -> Callable[[], None]:
        """Set a delay between ``least_us`` and ``most_us``. Returns a function that removes it.

        The newest delay that was not removed applies.
        """
        delay_us = (least_us, most_us)
        self._delays_us.append(delay_us)
        return lambda: self._delays_us.remove(delay_us)

    def carry(self, arrive: Arrival, size: int = 0) -> None:
        """Call ``arrive`` on the network's loop after the time that ``size`` bytes take.

        If no packet can arrive then, it is called after the link is whole and the target has power.
        """
        low, high = self._delays_us[-1]  # Drawn in the cheapest way: this is done for every piece.
        took_us = low + int(self._rng.random() * (high - low) + size / self.bytes_per_us)
        self._loop.call_after_us(took_us, self._arrive, arrive)

    def release(self) -> None:
        """Send the waiting data again, if the link is whole and the target has power; else do
        nothing."""
        if self._waiting and not self.is_dark:
            after_us = self._rng.randint(*_RESEND_US)
            waiting, self._waiting = self._waiting, []
            for arrive in waiting:
                self._loop.call_after_us(after_us, self._arrive, arrive)

    def _arrive(self, arrive: Arrival) -> None:
        if self.is_dark:
            self._waiting.append(arrive)
        else:
            arrive()

    def draw(self) -> float:
        """Return a random number from 0 (inclusive) to 1 (exclusive), determined by the world's
        seed."""
        return self._rng.random()


class Mark(Enum):
    """The end of one direction of a connection: FIN closes it in order, RST resets it."""

    FIN = "fin"
    RST = "rst"


Item = bytes | Mark


@dataclass(slots=True)
class _Pipe:
    """One direction of a connection: pieces in flight."""

    link: Link
    target: MemoryTransport
    flight: deque[Item]
    #: Bytes sent that the other end has not read or acknowledged.
    open_bytes: int = 0

    def send(self, item: Item) -> None:
        self.flight.append(item)
        self.link.carry(self.arrive, len(item) if isinstance(item, bytes) else 0)

    def arrive(self) -> None:
        """Deliver the oldest piece, regardless of which one this arrival was for, to keep order."""
        self.target.take(self.flight.popleft())


class MemoryTransport(asyncio.Transport):
    """One end of a simulated TCP connection; :func:`connect_ends` joins two of them.

    ``loop`` is the event loop of the process that has this end, on the host ``place``.
    """

    def __init__(self, loop: VirtualLoop, place: Place, port: int) -> None:
        super().__init__()
        self.loop = loop
        self.place = place
        self.port = port
        #: The protocol was notified of the end, or the process is dead.
        self.is_gone = False
        self._peer: MemoryTransport = self
        self._pipe: _Pipe
        self._protocol: asyncio.BaseProtocol | None = None
        self._unsent = bytearray()
        self._unread: deque[Item] = deque()
        self._is_feeding = False
        self._is_closing = False
        #: The end of this direction was sent or is scheduled.
        self._has_ended = False
        #: No byte reaches the other end any more, and none from there is acknowledged.
        self._is_cut_off = False
        self._is_reading = True
        self._is_write_paused = False
        self._high, self._low = _DEFAULT_HIGH_BYTES, _DEFAULT_HIGH_BYTES // 4

    def __repr__(self) -> str:
        return f"<MemoryTransport {self.label}{' gone' if self.is_gone else ''}>"

    @property
    def label(self) -> str:
        """Name and port of both hosts, this end's first: ``client:40000-broker-1:9092``."""
        peer = self._peer
        return f"{self.place.name}:{self.port}-{peer.place.name}:{peer.port}"

    @property
    def peer(self) -> MemoryTransport:
        return self._peer

    def begin_delivery(self, protocol: asyncio.BaseProtocol) -> None:
        """Attach ``protocol``, call its ``connection_made``, and schedule the delivery of bytes
        that have arrived already."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._feed_soon()

    # --- what asyncio.Transport says -------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return self._peer.place.address, self._peer.port
        if name == "sockname":
            return self.place.address, self.port
        return default

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None, self
        return self._protocol

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return self._is_reading and not self._is_closing

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._feed_soon()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _DEFAULT_HIGH_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def write(self, data: Buffer) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        if self._is_closing or self.is_gone:
            return
        for data in list_of_data:
            self._unsent += data
        self._pump()
        if len(self._unsent) > self._high and not self._is_write_paused:
            self._is_write_paused = True
            self.get_protocol().pause_writing()

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._end_if_sent()

    def abort(self) -> None:
        if self.is_gone:
            return
        self._unsent.clear()
        self._is_closing = True
        self._end_if_sent()

    # --- the way out -----------------------------------------------------------------------------

    def _pump(self) -> None:
        pipe = self._pipe
        if self._is_cut_off:
            self._unsent.clear()
        while self._unsent and pipe.open_bytes < _WINDOW_BYTES:
            piece = bytes(self._unsent[: _WINDOW_BYTES - pipe.open_bytes])
            del self._unsent[: len(piece)]
            pipe.open_bytes += len(piece)
            if len(piece) > 1 and pipe.link.draw() < _SPLIT:
                cut = 1 + int(pipe.link.draw() * (len(piece) - 1))
                pipe.send(piece[:cut])
                piece = piece[cut:]
            pipe.send(piece)

    def _end_if_sent(self) -> None:
        if self._unsent or self.is_gone or self._has_ended:
            return
        self._has_ended = True
        self._send_end()
        self.loop.call_soon(self._lose, None)

    def _send_end(self) -> None:
        """Send the end. Like a kernel, send a reset if received bytes were never read."""
        if self._is_cut_off:
            return
        has_unread = any(isinstance(item, bytes) for item in self._unread)
        self._pipe.send(Mark.RST if has_unread else Mark.FIN)

    def acknowledge(self, size: int) -> None:
        """Free ``size`` bytes of the send window, because the other end has read them, and schedule
        the sending of bytes that waited for it."""
        self._pipe.open_bytes -= size
        if self._unsent and not self.loop.is_dead:
            self.loop.call_soon(self._resume_sending)

    def _resume_sending(self) -> None:
        if self.is_gone:
            return
        self._pump()
        if self._is_write_paused and len(self._unsent) <= self._low:
            self._is_write_paused = False
            self.get_protocol().resume_writing()
        if self._is_closing:
            self._end_if_sent()

    # --- the way in ------------------------------------------------------------------------------

    def take(self, item: Item) -> None:
        """Receive ``item``, bytes or the end of the direction, on the network's loop.

        An end that is gone answers bytes with a reset. An end that was cut off drops ``item``.
        """
        if self._is_cut_off:
            return
        if self.is_gone:
            if isinstance(item, bytes):
                self._pipe.send(Mark.RST)
            return
        if isinstance(item, bytes):
            size, check = len(item), zlib.crc32(item)
            self.loop.world.trace.note(self.place.name, "net", f"{self.label} {size} {check:08x}")
        else:
            self.loop.world.trace.note(self.place.name, "net", f"{self.label} {item.value}")
        if item is Mark.RST:
            # Like in a kernel, a reset discards unread bytes.
            self.reset()
            return
        self._unread.append(item)
        self._feed_soon()

    def _feed_soon(self) -> None:
        if self._unread and not self._is_feeding:
            self._is_feeding = True
            self.loop.call_soon(self._feed)

    def _feed(self) -> None:
        self._is_feeding = False
        while self._unread and self._protocol is not None and not self.is_gone:
            if self._is_closing or not self._is_reading:
                return
            item = self._unread.popleft()
            if item is Mark.FIN:
                if not self._protocol.eof_received():  # type: ignore[attr-defined] # a stream's
                    self.close()
            else:
                assert isinstance(item, bytes), item
                self.loop.spend_on(len(item))
                self._hand_over(item)

    def _hand_over(self, data: bytes) -> None:
        """Pass ``data`` to the protocol.

        If a BufferedProtocol pauses reading or closes, the remaining bytes stay unread. Any other
        protocol gets all bytes at once.
        """
        protocol, at = self._protocol, 0
        try:
            if not isinstance(protocol, asyncio.BufferedProtocol):
                protocol.data_received(data)  # type: ignore[union-attr] # it is a Protocol
                at = len(data)
            while at < len(data) and self._is_reading and not self._is_closing:
                buffer = protocol.get_buffer(-1)  # type: ignore[union-attr] # a BufferedProtocol
                size = min(len(buffer), len(data) - at)
                buffer[:size] = data[at : at + size]
                at += size
                protocol.buffer_updated(size)  # type: ignore[union-attr] # likewise
        except Exception as e:
            self.loop.call_exception_handler(
                {"message": f"the protocol of {self!r} failed", "exception": e, "transport": self}
            )
            self.abort()
        self._acknowledge_to_peer(at)
        if at < len(data):
            self._unread.appendleft(data[at:])

    def _acknowledge_to_peer(self, size: int) -> None:
        """Acknowledge read bytes without delay, if the link back is not cut."""
        if self._pipe.link.is_dark:
            self._pipe.link.carry(lambda: self._peer.acknowledge(size))
        else:
            self._peer.acknowledge(size)

    # --- the end ---------------------------------------------------------------------------------

    def reset(self) -> None:
        """Schedule that this end loses the connection with ECONNRESET. Unsent and unread bytes are
        lost. No effect on an end that is gone."""
        if not self.is_gone and not self.loop.is_dead:
            self.loop.call_soon(self._lose, _reset())

    def cut_off(self, says: Mark) -> None:
        """Let a middlebox forget the connection, with ``says`` as the notice for this end only.

        The other end keeps a connection on which all written bytes are lost.
        """
        self.take(says)
        self._is_cut_off = True
        self._unsent.clear()

    def die(self, *, says_so: bool) -> None:
        """Handle the death of the process; with ``says_so`` the kernel closes the connection. No
        effect if the connection has ended already."""
        if not self.is_gone:
            self.is_gone = True
            if says_so:
                self._send_end()

    def _lose(self, error: Exception | None) -> None:
        if self.is_gone:
            return
        self.is_gone = self._is_closing = True
        self._unsent.clear()
        self._unread.clear()
        if self._protocol is not None:
            self._protocol.connection_lost(error)


def connect_ends(a: MemoryTransport, b: MemoryTransport, forth: Link, back: Link) -> None:
    """Make ``a`` and ``b`` the two ends of one connection; ``forth`` leads from ``a`` to ``b``."""
    a._peer, b._peer = b, a
    a._pipe = _Pipe(forth, b, deque())
    b._pipe = _Pipe(back, a, deque())


def _reset() -> ConnectionResetError:
    return ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
