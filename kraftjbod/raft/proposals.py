"""LOOP. ``Proposals``: entries on their way, and who waits for them to be committed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from kraftjbod.core.errors import OperatingError, OverloadedError
from kraftjbod.raft.entry_cache import ENTRY_OVERHEAD_BYTES, size_bytes_of
from kraftjbod.raft.log.log_space import LogSpace
from kraftjbod.raft.machine.messages import Entry


class Proposal(NamedTuple):
    """An entry on its way; ``committed`` is done when it is."""

    entry: Entry
    committed: asyncio.Future[None]


class Proposals:
    """Of one leader at a time. For the loop's thread."""

    def __init__(self, *, space: LogSpace, max_pending: int) -> None:
        self._space = space
        self._max_pending = max_pending
        self._waiters: dict[int, asyncio.Future[None]] = {}
        self.last_offset = -1

    def require_space(self, payloads: Sequence[bytes], *, grows: bool) -> None:
        """:raises OverloadedError: too many are in flight, or the disk is full."""
        if len(self._waiters) + len(payloads) > self._max_pending:
            raise OverloadedError(f"{len(self._waiters)} metadata entries are being written")
        size_bytes = sum(len(payload) + ENTRY_OVERHEAD_BYTES for payload in payloads)
        self._space.require(size_bytes, grows=grows)

    def add(self, entry: Entry) -> Proposal:
        self.last_offset = entry.offset
        self._space.note_proposed(size_bytes_of(entry))
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        committed.add_done_callback(_mark_seen)
        self._waiters[entry.offset] = committed
        return Proposal(entry, committed)

    def note_written(self, entry: Entry) -> None:
        if entry.offset in self._waiters:
            self._space.note_written(size_bytes_of(entry))

    def answer(self, offset: int) -> None:
        """It is committed."""
        waiter = self._waiters.pop(offset, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def fail(self, error: OperatingError) -> None:
        """Nobody waits any longer; what was proposed may be written, or never."""
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_exception(error)
        self._waiters.clear()
        self._space.forget_pending()


def _mark_seen(committed: asyncio.Future[None]) -> None:
    """A proposer that went away need not read its outcome."""
    if not committed.cancelled():
        committed.exception()
