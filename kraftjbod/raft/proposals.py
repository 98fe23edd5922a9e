"""LOOP. ``Proposals``: entries in flight, and the futures that complete when they are committed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from kraftjbod.core.errors import OperatingError, OverloadedError
from kraftjbod.raft.entry_cache import ENTRY_OVERHEAD_BYTES, size_bytes_of
from kraftjbod.raft.log.log_space import LogSpace
from kraftjbod.raft.machine.messages import Entry


class Proposal(NamedTuple):
    """A proposed entry that is not committed yet.

    ``committed`` completes when the entry is committed. It gets an error if this node loses the
    leadership, stops, or cannot write its log.
    """

    entry: Entry
    committed: asyncio.Future[None]


class Proposals:
    """The entries that this node has proposed as the leader and that are not committed yet. Limits
    their number and completes them.

    Must be used in the event loop's thread.
    """

    def __init__(self, *, space: LogSpace, max_pending: int) -> None:
        self._space = space
        self._max_pending = max_pending
        self._waiters: dict[int, asyncio.Future[None]] = {}
        self.last_offset = -1

    def require_space(self, payloads: Sequence[bytes], *, grows: bool) -> None:
        """Raise an error unless entries with ``payloads`` may be proposed now.

        :param grows: whether the entries make the metadata grow permanently.
        :raises OverloadedError: too many entries are in flight.
        :raises LogDirImpairedError: the disk is full.
        """
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
        """Complete the proposal at ``offset``, which is committed, if its caller still waits."""
        waiter = self._waiters.pop(offset, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def fail(self, error: OperatingError) -> None:
        """Fail all proposals with ``error``.

        Whether their entries will be committed is not known.
        """
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_exception(error)
        self._waiters.clear()
        self._space.forget_pending()


def _mark_seen(committed: asyncio.Future[None]) -> None:
    """Mark the outcome as read, because a cancelled proposer does not read it."""
    if not committed.cancelled():
        committed.exception()
