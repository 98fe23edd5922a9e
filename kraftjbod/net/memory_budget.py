"""LOOP. Limits the memory of all connections of a daemon: unanswered requests, unread responses.

* Two ledgers with separate limits, such as Kafka's ``queued.max.request.bytes``. When a ledger is
  full, connections wait for memory in order of arrival. Connections of brokers never wait.
* A *holding* is memory that waits for a peer: a partially received request or a partially read
  response. A peer that moves fewer than ``min_progress_bytes`` within the time limit is closed.
* While connections wait for memory, the slowest holdings are closed after a short grace period.

Bytes of requests in progress are counted, but are no holding: the peer does not delay them.
ADR 53 has the alternatives.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, Protocol

from kraftjbod.core.telemetry import get_logger

_MIB: Final = 1024 * 1024
_SWEEP_S: Final = 1.0
#: Closing holdings stops when this share of the limit is in use.
_RELIEVED: Final = 0.5

_log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimits:
    """Limits of the memory that a daemon's connections occupy, and of the time of their
    transfers."""

    max_request_bytes: int = 256 * _MIB
    max_answer_bytes: int = 256 * _MIB
    receive_timeout_ms: int = 60_000
    """A partially received frame must make progress within this time."""
    read_timeout_ms: int = 300_000
    """A partially read response must make progress within this time."""
    min_progress_bytes: int = 16 * 1024
    """Bytes that count as progress within a time limit. The end of a transfer also counts."""
    grace_ms: int = 5_000
    """Age before which a holding is not closed for the sake of others."""


class Peer(Protocol):
    """A connection that holds memory of the daemon and can be closed to free it.

    ``peer`` is ``host:port`` of the other side. ``is_privileged`` is set for a broker's connection.
    """

    peer: str
    is_privileged: bool

    @property
    def is_held_up(self) -> bool:
        """Whether this side does not read from the peer, so that the peer cannot make progress."""
        ...

    def note_taken(self) -> None:
        """Report to the budget how many bytes of its responses the peer has read."""
        ...

    def abort(self, reason: str) -> None: ...


class Waiter(Protocol):
    """An object that waits for memory of a ledger. ``memory_freed`` is called once, when memory is
    available.
    """

    def memory_freed(self) -> None: ...


class Holding:
    """Memory that is occupied until one peer has sent the rest of a request or read the rest of a
    response, with the progress of that transfer.
    """

    __slots__ = ("began_s", "moved_bytes", "seen_bytes", "seen_s", "size_bytes")

    def __init__(self, now_s: float) -> None:
        self.size_bytes = 0
        #: Bytes that the peer has sent or read so far.
        self.moved_bytes = 0
        self.began_s = now_s
        #: ``moved_bytes`` at the last progress, and the time of it.
        self.seen_bytes = 0
        self.seen_s = now_s

    def rate(self, now_s: float) -> float:
        return self.moved_bytes / max(0.001, now_s - self.began_s)


class Ledger:
    """Counts the memory of one kind, and closes peers that hold it too long. Not thread-safe.

    The kinds are requests and responses.
    """

    def __init__(
        self,
        *,
        name: str,
        max_bytes: int,
        timeout_ms: int,
        may_be_held_up: bool,
        limits: MemoryLimits,
        budget: _Sweeps,
    ) -> None:
        self._name = name
        self._may_be_held_up = may_be_held_up
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self._timeout_s = timeout_ms / 1000
        self._limits = limits
        self._budget = budget
        self._holdings: dict[Peer, Holding] = {}
        self._waiters: dict[Waiter, None] = {}
        self._is_resuming = False

    def __repr__(self) -> str:
        return (
            f"<Ledger {self._name} used={self.used_bytes} of={self.max_bytes} "
            f"holdings={len(self._holdings)} waiting={len(self._waiters)}>"
        )

    @property
    def left_bytes(self) -> int:
        return max(0, self.max_bytes - self.used_bytes)

    def take(self, size_bytes: int) -> None:
        """Count ``size_bytes`` of a request in progress as used, even beyond the limit."""
        self.used_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        """Release bytes counted by :meth:`take`."""
        self.used_bytes -= size_bytes
        if self._waiters:
            self._resume_soon()

    def hold(self, peer: Peer, size_bytes: int, moved_bytes: int) -> None:
        """Record the progress of a transfer.

        :param size_bytes: memory that the transfer occupies until it ends.
        :param moved_bytes: bytes that ``peer`` has sent or read so far.
        """
        holding = self._holdings.get(peer)
        if holding is None:
            holding = self._holdings[peer] = Holding(asyncio.get_running_loop().time())
            self._budget.begin_sweeps()
        self.used_bytes += size_bytes - holding.size_bytes
        holding.size_bytes = size_bytes
        holding.moved_bytes = moved_bytes

    def release(self, peer: Peer) -> None:
        """End the transfer of ``peer``, if any, and release its memory."""
        holding = self._holdings.pop(peer, None)
        if holding is not None:
            self.give(holding.size_bytes)

    def wait_for_memory(self, waiter: Waiter) -> None:
        """Call ``memory_freed`` of ``waiter`` once, when memory is available."""
        self._waiters[waiter] = None
        self._budget.begin_sweeps()

    def forget(self, waiter: Waiter) -> None:
        self._waiters.pop(waiter, None)

    # --- the sweep -------------------------------------------------------------------------------

    @property
    def is_in_use(self) -> bool:
        return bool(self._holdings or self._waiters)

    def peers(self) -> list[Peer]:
        """The peers with a transfer in progress."""
        return list(self._holdings)

    def sweep(self, now_s: float) -> None:
        """Abort peers without progress in the time limit, unless this side does not read from them.

        If connections wait for memory, also abort the slowest peers that are no brokers, and
        resume waiting connections while memory is free.

        :param now_s: event loop time.
        """
        for peer, holding in list(self._holdings.items()):
            if (self._may_be_held_up and peer.is_held_up) or (
                holding.moved_bytes - holding.seen_bytes >= self._limits.min_progress_bytes
            ):
                holding.seen_bytes, holding.seen_s = holding.moved_bytes, now_s
            elif now_s - holding.seen_s >= self._timeout_s:
                peer.abort(f"{self._name} did not get on for {self._timeout_s:.0f} s")
        if self._waiters:
            self._relieve(now_s)
            self._resume_soon()

    def _relieve(self, now_s: float) -> None:
        """Close the holdings with the lowest transfer rates until enough memory is free."""
        grace_s = self._limits.grace_ms / 1000
        old = [
            (holding.rate(now_s), -holding.size_bytes, peer.peer, peer, holding)
            for peer, holding in self._holdings.items()
            if now_s - holding.began_s >= grace_s and not peer.is_privileged
        ]
        enough = self.max_bytes * _RELIEVED
        freed_bytes = count = 0
        for _, _, _, peer, holding in sorted(old, key=lambda one: one[:3]):
            if self.used_bytes - freed_bytes <= enough:
                break
            freed_bytes += holding.size_bytes
            count += 1
            peer.abort(f"others need the memory of {self._name}")
        if count:
            _log.warning(
                "memory_reclaimed",
                kind=self._name,
                connections=count,
                freed_bytes=freed_bytes,
                waiting=len(self._waiters),
            )

    def _resume_soon(self) -> None:
        if not self._is_resuming:
            self._is_resuming = True
            asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        self._is_resuming = False
        for waiter in list(self._waiters):
            if self.used_bytes >= self.max_bytes:
                return
            if waiter in self._waiters:
                del self._waiters[waiter]
                waiter.memory_freed()


class _Sweeps(Protocol):
    def begin_sweeps(self) -> None: ...


class MemoryBudget:
    """The memory of all connections of a daemon.

    ``requests`` counts bytes that were received and not answered, ``answers`` counts bytes of
    responses that the peers have not read.
    """

    def __init__(self, limits: MemoryLimits) -> None:
        self.requests = Ledger(
            name="a half-sent request",
            max_bytes=limits.max_request_bytes,
            timeout_ms=limits.receive_timeout_ms,
            may_be_held_up=True,
            limits=limits,
            budget=self,
        )
        self.answers = Ledger(
            name="an unread answer",
            max_bytes=limits.max_answer_bytes,
            timeout_ms=limits.read_timeout_ms,
            may_be_held_up=False,
            limits=limits,
            budget=self,
        )
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<MemoryBudget {self.requests!r} {self.answers!r}>"

    def begin_sweeps(self) -> None:
        """Sweep once per second while memory is held or waited for."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        for peer in self.answers.peers():
            peer.note_taken()
        for ledger in (self.requests, self.answers):
            ledger.sweep(now_s)
        if self.requests.is_in_use or self.answers.is_in_use:
            self.begin_sweeps()
