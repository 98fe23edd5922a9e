"""LOOP. ``MetadataLoader``: follows the committed metadata log and publishes changes.

* It long-polls the active controller, or a follower controller if that is not reachable. A failed
  poll is logged once and retried forever.
* It replays entries on the one state of :class:`MetadataCache`, so a broker reads records exactly
  as the controller does. A snapshot builds a new state, and the difference is published. Both are
  found in slices, and replace the former state in one event loop iteration.
* Entries of one response are published together, until they change so many partitions that the
  event loop has to run other tasks. Each published delta ends at an entry, so roles and metadata
  are those of one offset whenever a request is handled.
* Nothing is applied while this broker's session is expired: a late response could make it lead
  partitions that other brokers lead by now. Polls continue, because a controller that refuses this
  broker's metadata refuses its heartbeats as well.
* A log other than the followed one, or a shorter one, is refused (metadata_memory.py), logged at
  intervals, and polled again.

The publisher handles the consequences for this broker's replicas.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

from kraftjbod.broker.cluster.controller_channel import ControllerChannel
from kraftjbod.broker.cluster.lifecycle.lifecycle_manager import BrokerLifecycleManager
from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.cluster.metadata_memory import MetadataMemory
from kraftjbod.broker.metadata.metadata_publisher import BrokerMetadataPublisher
from kraftjbod.core import buggify
from kraftjbod.core.errors import (
    ErrorCode,
    OperatingError,
    RemoteProtocolError,
    RequestTimedOutError,
)
from kraftjbod.core.ids import BrokerEpoch, BrokerId
from kraftjbod.core.loop.outage import Outage
from kraftjbod.core.loop.timing import Clock, ExponentialBackoff
from kraftjbod.core.loop.work_slices import in_slices
from kraftjbod.core.telemetry import get_logger
from kraftjbod.metadata.record_codec import EntryReader, decode_entry
from kraftjbod.metadata.state import MetadataDelta, MetadataState
from kraftjbod.protocol.rpc_quorum_messages import (
    FetchMetadataRequest,
    FetchMetadataResponse,
    MetadataEntry,
)

#: Codes of a controller that lost its metadata; the second one is from logs without ids.
_REFUSALS: Final = frozenset({ErrorCode.FOREIGN_METADATA, ErrorCode.OFFSET_OUT_OF_RANGE})
_REFUSED_WAIT_MS: Final = 1_000
_SESSION_WAIT_MS: Final = 1_000
_REFUSAL_LOGGED_EVERY_MS: Final = 60_000
#: Limit of snapshot bytes per event loop iteration: some hundred records, some milliseconds.
_BYTES_PER_TURN: Final = 32 * 1024
#: Changed partitions after which a delta is published. Applying their roles takes about 20 ms. A
#: single entry with more partitions, as of a new topic, is published as a whole, because half an
#: entry must not be visible.
_PARTITIONS_PER_TURN: Final = 500
#: Delay of a response that a simulation applies late at random.
_LATE_S: Final = 0.8
#: Fetch size that a simulation uses at random: one entry, or a short piece of a snapshot.
_SMALL_FETCH_BYTES: Final = 200

K = TypeVar("K")
V = TypeVar("V")


class MetadataLoader:
    """Fetches the committed entries of the metadata log from the controllers, applies them to
    ``cache``, and passes the changes to ``publisher``.

    :meth:`run_loader` runs for the broker's lifetime.
    """

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        channel: ControllerChannel,
        cache: MetadataCache,
        publisher: BrokerMetadataPublisher,
        memory: MetadataMemory,
        lifecycle: BrokerLifecycleManager,
        clock: Clock,
        backoff: ExponentialBackoff,
        max_wait_ms: int = 5_000,
        max_bytes: int = 8 * 1024 * 1024,
    ) -> None:
        self._broker_id = broker_id
        self._channel = channel
        self._cache = cache
        self._publisher = publisher
        self._memory = memory
        self._lifecycle = lifecycle
        #: The reason why the controller's metadata is refused; None if it is accepted.
        self.refusal: str | None = None
        self._clock = clock
        self._backoff = backoff
        self._max_wait_ms = max_wait_ms
        self._max_bytes = max_bytes
        #: The controller's last committed offset; -1 before its first response.
        self._high_watermark = -1
        self._progress = asyncio.Event()
        self._log_again_at_ms = 0
        #: Outage of all controllers together.
        self._outage = Outage()
        self._log = get_logger(component="metadata_loader")

    async def run_loader(self) -> None:
        """Follow the metadata log until cancelled. Failed polls are retried."""
        while True:
            try:
                await self._poll()
                self._note_answer()
            except (OperatingError, RemoteProtocolError) as e:
                if isinstance(e, OperatingError) and e.code in _REFUSALS:
                    self._log_refusal(e)
                    await asyncio.sleep(_REFUSED_WAIT_MS / 1000)
                    continue
                if self._outage.failed(self._clock.now_ms()):
                    failures = self._outage.failures
                    self._log.warning("metadata_fetch_failed", reason=str(e), failures=failures)
                await asyncio.sleep(self._backoff.wait_ms(self._outage.failures) / 1000)

    def _note_answer(self) -> None:
        self.refusal = None
        lasted_ms = self._outage.ended(self._clock.now_ms())
        if lasted_ms is not None:
            self._log.info("metadata_fetch_resumed", lasted_ms=lasted_ms)

    def _log_refusal(self, error: OperatingError) -> None:
        """Note that the controller's metadata was refused, and log it once per minute."""
        now_ms = self._clock.now_ms()
        if self.refusal is None or now_ms >= self._log_again_at_ms:
            self._log_again_at_ms = now_ms + _REFUSAL_LOGGED_EVERY_MS
            self._log.error("metadata_refused", reason=error.message)
        self.refusal = error.message

    async def caught_up(self, at_least: int) -> None:
        """Wait until the local state has all entries that the controller has reported as committed.

        :param at_least: offset of an entry that the state must also have.
        """
        while True:
            offset = self._cache.state.offset
            if offset >= max(at_least, self._high_watermark):
                return
            self._progress.clear()
            await self._progress.wait()

    async def _poll(self) -> None:
        state = self._cache.state
        if not await self._has_session():
            await self._fetch(state.offset + 1, 0)
            return
        response = await self._fetch(state.offset + 1, self._max_wait_ms)
        if response.snapshot_offset >= 0:
            await self._load_snapshot(response)
        elif response.entries:
            await self._replay(response)
        self._high_watermark = response.high_watermark
        self._progress.set()

    async def _has_session(self) -> bool:
        try:
            async with asyncio.timeout(_SESSION_WAIT_MS / 1000):
                await self._lifecycle.session()
        except TimeoutError:
            return False
        return True

    async def _replay(self, response: FetchMetadataResponse) -> None:
        """Replay and publish the entries of ``response``, with a pause after many partitions.

        :raises RequestTimedOutError: this broker's session ended during a pause. The entries that
            were not replayed are fetched again.
        """
        entries = deque(response.entries)
        while entries:
            self._replay_some(entries)
            if entries:
                await asyncio.sleep(0)
                self._require_session()

    def _replay_some(self, entries: deque[MetadataEntry]) -> None:
        state, delta = self._cache.state, MetadataDelta()
        try:
            while entries and len(delta.partitions) < _PARTITIONS_PER_TURN:
                entry = entries.popleft()
                if entry.offset > state.offset:
                    records = decode_entry(entry.payload)
                    state.replay(records, offset=entry.offset, epoch=entry.epoch, delta=delta)
                    self._memory.note_applied(entry.offset, entry.epoch)
        finally:
            # Entries before an unreadable one are applied, and no later response repeats them.
            self._publisher.publish(delta)

    def _require_session(self) -> None:
        if self._lifecycle.is_session_over:
            raise RequestTimedOutError("metadata came after the end of this broker's session")

    async def _load_snapshot(self, first: FetchMetadataResponse) -> None:
        before, after = self._cache.state, MetadataState()
        reader, response = EntryReader(), first
        await _take_piece(reader, after, first.snapshot_offset, first.snapshot_chunk)
        while response.snapshot_next_position >= 0:
            response = await self._fetch(
                self._cache.state.offset + 1,
                0,
                snapshot_offset=first.snapshot_offset,
                snapshot_position=response.snapshot_next_position,
            )
            if _snapshot_of(response) != _snapshot_of(first):
                # The snapshot was replaced, or the response is from another controller; the next
                # poll starts again.
                return
            await _take_piece(reader, after, first.snapshot_offset, response.snapshot_chunk)
        reader.end()
        epoch = None if first.snapshot_epoch < 0 else first.snapshot_epoch
        delta = MetadataDelta()
        async for _ in in_slices(difference_steps(before, after, delta)):
            pass
        security = await self._publisher.prepare_security(after)
        # From here to the publication there is no pause, so that requests find one state.
        self._require_session()
        after.replay(
            (),
            offset=first.snapshot_offset,
            epoch=before.epoch if epoch is None else epoch,
            delta=MetadataDelta(),
        )
        self._cache.replace(after)
        self._memory.note_applied(after.offset, epoch)
        self._publisher.publish(delta, security)
        released = list(before.topics.values())
        del before
        async for _ in in_slices(range(len(released))):
            released.pop()

    async def _fetch(
        self,
        fetch_offset: int,
        max_wait_ms: int,
        *,
        snapshot_offset: int = -1,
        snapshot_position: int = 0,
    ) -> FetchMetadataResponse:
        known = self._cache.state.brokers.get(self._broker_id)
        followed = self._memory.followed
        max_bytes = self._max_bytes
        if buggify.is_on and buggify.fires("broker.small_metadata_fetch"):
            max_bytes = min(max_bytes, _SMALL_FETCH_BYTES)
        response = await self._channel.fetch_metadata(
            FetchMetadataRequest(
                broker_id=self._broker_id,
                broker_epoch=BrokerEpoch(-1) if known is None else known.epoch,
                fetch_offset=fetch_offset,
                max_wait_ms=max_wait_ms,
                max_bytes=max_bytes,
                snapshot_offset=snapshot_offset,
                snapshot_position=snapshot_position,
                metadata_log_id=followed.metadata_log_id,
                applied_metadata_offset=followed.offset,
                applied_metadata_epoch=followed.epoch,
            )
        )
        if buggify.is_on and buggify.fires("broker.late_metadata"):
            await asyncio.sleep(_LATE_S)
        self._require_session()
        self._memory.note_metadata_log_id(response.metadata_log_id)
        self._memory.require_complete(response.high_watermark)
        return response


def _snapshot_of(response: FetchMetadataResponse) -> tuple[int, int, int, int | None]:
    """Return the identity of the snapshot that ``response`` has a piece of: its sender and
    contents."""
    controller = response.controller_id, response.controller_epoch
    return *controller, response.snapshot_offset, response.snapshot_crc


async def _take_piece(reader: EntryReader, state: MetadataState, offset: int, piece: bytes) -> None:
    """Replay a piece of a snapshot on ``state``, a limited number of bytes per event loop
    iteration."""
    for at in range(0, len(piece), _BYTES_PER_TURN):
        records = reader.feed(piece[at : at + _BYTES_PER_TURN])
        state.replay_part(records, offset=offset, delta=MetadataDelta())
        await asyncio.sleep(0)


def difference_steps(
    before: MetadataState, after: MetadataState, delta: MetadataDelta
) -> Iterator[None]:
    """Add the changes from ``before`` to ``after`` to ``delta``, with a yield after each object.

    The delta differs from that of a replay: ``registered`` has all brokers of ``after``, and
    objects that came and went in between are absent.
    """
    delta.features = before.features != after.features
    yield from _compare(before.brokers, after.brokers, delta.brokers)
    # Registrations in between cannot be found by a comparison.
    delta.registered = set(after.brokers)
    for topic_id, topic in before.topics.items():
        if topic_id not in after.topics:
            delta.deleted_topics[topic_id] = topic
        yield
    for topic_id in after.topics:
        if topic_id not in before.topics:
            delta.created_topics.add(topic_id)
        yield
    for key, partition in after.partitions():
        earlier = before.partition(key)
        if earlier != partition:
            delta.partitions[key] = earlier
        yield
    yield from _compare(before.configs, after.configs, delta.configs)
    yield from _compare(before.client_quotas, after.client_quotas, delta.client_quotas)
    for acl_id, binding in after.acls.items():
        if acl_id not in before.acls:
            delta.added_acls[acl_id] = binding
        yield
    for acl_id, binding in before.acls.items():
        if acl_id not in after.acls:
            delta.removed_acls[acl_id] = binding
        yield


def _compare(before: Mapping[K, V], after: Mapping[K, V], changed: set[K]) -> Iterator[None]:
    """Add the keys whose values differ to ``changed``, with a yield after each key."""
    for key, value in after.items():
        if before.get(key) != value:
            changed.add(key)
        yield
    for key in before:
        if key not in after:
            changed.add(key)
        yield
