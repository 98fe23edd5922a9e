"""LOOP. ``MetadataFetches``: answers metadata fetches of brokers, with committed entries only.

A committed entry is the same on every controller. So a controller that follows the active one
answers too, if the broker allows that and the controller has all entries that the broker has. That
helps brokers that cannot reach the active controller. Such a fetch waits only a short time, because
the active controller has new entries first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from kraftjbod.controller.brokers.foreign_metadata import require_same_entry, require_same_log
from kraftjbod.controller.quorum.metadata_followers import MetadataFollowers
from kraftjbod.core import buggify
from kraftjbod.core.errors import OffsetOutOfRangeError
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.metadata_version import LATEST_METADATA_VERSION
from kraftjbod.metadata.record_codec import encode_entry
from kraftjbod.metadata.state import MetadataState
from kraftjbod.protocol.rpc_quorum_messages import (
    FetchMetadataRequest,
    FetchMetadataResponse,
    MetadataEntry,
)
from kraftjbod.raft.driver import RaftDriver
from kraftjbod.raft.log.snapshot_files import SNAPSHOT_PIECE_BYTES
from kraftjbod.raft.machine.messages import Entry, EntryKind

#: Longest wait if this controller is not the active one.
_MAX_WAIT_MS: Final = 1_000
_NO_RECORDS: Final = encode_entry((), LATEST_METADATA_VERSION)


def _payload(entry: Entry) -> bytes:
    """Return the entry's payload for brokers: no records if the entry is about voters."""
    return entry.payload if entry.kind is EntryKind.DATA else _NO_RECORDS


class MetadataFetches:
    """Answers the metadata fetches of brokers. Use it in the event loop's thread only."""

    def __init__(
        self,
        *,
        driver: RaftDriver,
        clock: Clock,
        followers: MetadataFollowers,
        state: Callable[[], MetadataState],
        require_up_to_date: Callable[[int | None], bool],
        max_fetch_bytes: Callable[[], int],
    ) -> None:
        """:param state: returns the present metadata.
        :param require_up_to_date: returns whether this controller is active. Raises if it neither
            is active nor follows the active one with all entries up to the given offset.
        :param max_fetch_bytes: returns the present limit of a response.
        """
        self._driver = driver
        self._clock = clock
        self._followers = followers
        self._state = state
        self._require_up_to_date = require_up_to_date
        self._max_fetch_bytes = max_fetch_bytes

    async def fetch(self, request: FetchMetadataRequest) -> FetchMetadataResponse:
        """Answer a fetch, after a wait of at most ``max_wait_ms`` for the entry at its offset.

        :raises NotControllerError: this controller is not active and may not answer instead.
        :raises OffsetOutOfRangeError: the offset is after the log's end.
        :raises OverloadedError, KafkaStorageError: as :meth:`CommittedLog.read`.
        :raises ForeignMetadataError: the broker follows another log.
        :raises CorruptRecordError: the snapshot is damaged; a repeated request gets another one.
        """
        is_active = self._require_up_to_date(request.applied_metadata_offset)
        require_same_log(
            self._state(), request.broker_id, request.metadata_log_id, request.fetch_offset - 1
        )
        require_same_entry(request, self._committed_term_at(request.applied_metadata_offset))
        if is_active:
            self._followers.fetched(
                request.broker_id,
                max(0, request.fetch_offset),
                end=self._driver.committed_offset + 1,
                wall_ms=self._clock.wall_ms(),
            )
        max_bytes = min(request.max_bytes, self._max_fetch_bytes())
        if request.snapshot_offset >= 0:
            return await self._snapshot_piece(
                request.snapshot_offset, request.snapshot_position, max_bytes, is_active
            )
        max_wait_ms = request.max_wait_ms if is_active else min(request.max_wait_ms, _MAX_WAIT_MS)
        if buggify.is_on and buggify.fires("controller.early_metadata_answer"):
            max_wait_ms = 0
        await self._driver.wait_for(request.fetch_offset, max_wait_ms)
        is_active = self._require_up_to_date(request.applied_metadata_offset)
        metadata_log_id = self._state().metadata_log_id
        committed = self._driver.committed_offset
        if request.fetch_offset > committed + 1:
            raise OffsetOutOfRangeError(
                f"broker {request.broker_id} asks for metadata from {request.fetch_offset}, "
                f"but the log ends at {committed}"
            )
        entries: Sequence[Entry] = ()
        if request.fetch_offset <= committed:
            entries = await self._driver.committed.read(max(0, request.fetch_offset), max_bytes)
            if not entries:
                return await self._snapshot_piece(-1, 0, max_bytes, is_active)
        return FetchMetadataResponse(
            high_watermark=self._driver.committed_offset,
            controller_id=self._driver.node_id,
            controller_epoch=self._driver.term,
            is_active=is_active,
            metadata_log_id=metadata_log_id,
            entries=tuple(
                MetadataEntry(offset=entry.offset, epoch=entry.term, payload=_payload(entry))
                for entry in entries
            ),
            controllers=self._controllers(),
        )

    def _committed_term_at(self, offset: int | None) -> int | None:
        """Return the term of the entry at ``offset``; None if it is unknown or not committed."""
        if offset is None or offset > self._driver.committed_offset:
            return None
        return self._driver.core.log.term_at(offset)

    def _controllers(self) -> tuple[str, ...]:
        """Return the voters as ``id@host:port`` once the log names them.

        Empty before that: brokers then use the controllers in their files.
        """
        voters = self._driver.voters
        if voters.is_static:
            return ()
        return tuple(
            f"{key.node_id}@{endpoint.partition('://')[2]}"
            for key in voters
            for endpoint in voters.endpoints_of(key)[:1]
        )

    async def _snapshot_piece(
        self, last_offset: int, position: int, max_bytes: int, is_active: bool
    ) -> FetchMetadataResponse:
        """Return a response with a piece of the snapshot that ends at ``last_offset``.

        If that snapshot is gone, or ``last_offset`` is negative, the piece is the first of the
        newest one.

        :param position: position of the piece in bytes.
        :raises CorruptRecordError: the snapshot is damaged; a repeated request gets another one.
        :raises OffsetOutOfRangeError: no snapshot exists, or ``position`` is after its end.
        """
        # Read the term first: after a change of leader the next piece comes from another snapshot.
        term, snapshot_term = self._driver.term, -1
        found, max_bytes = None, min(max_bytes, SNAPSHOT_PIECE_BYTES)
        if last_offset >= 0:
            found = await self._driver.committed.read_snapshot(last_offset, position, max_bytes)
        while found is None:
            newest = await self._driver.committed.newest_snapshot()
            if newest is None:
                raise OffsetOutOfRangeError("the metadata log has no snapshot to give")
            last_offset, snapshot_term, position = newest.last_offset, newest.term, 0
            found = await self._driver.committed.read_snapshot(last_offset, position, max_bytes)
        chunk = found.data
        if position and not chunk:
            raise OffsetOutOfRangeError(
                f"the metadata snapshot up to {last_offset} ends before byte {position}"
            )
        return FetchMetadataResponse(
            high_watermark=self._driver.committed_offset,
            controller_id=self._driver.node_id,
            controller_epoch=term,
            is_active=is_active,
            metadata_log_id=self._state().metadata_log_id,
            snapshot_offset=last_offset,
            snapshot_epoch=snapshot_term,
            snapshot_chunk=chunk,
            snapshot_next_position=found.next_position,
            snapshot_crc=found.snapshot.crc,
        )
