"""LOOP. Incremental fetch sessions of consumers (KIP-227).

The first fetch of a session names all partitions. A later fetch names only the partitions that
changed at the consumer. The response has only partitions with records, with an error, or with
another high watermark or log start offset. The fetch itself reads all partitions of the session.
A fetch without a session costs nothing extra.

* A partition whose records were returned moves to the end of the fetch order, so that no partition
  is starved.
* Three numbers are limited: the sessions of consumers and followers together (those of followers
  have precedence), and the partitions that all sessions of consumers remember. When a limit is
  reached, the consumer gets a response without a session (KIP-227). A session that has been idle
  for long, or that is old and smaller, is evicted for a new session.
* Session ids are random, so that no client can continue the session of another client.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from kraftjbod.broker.partitions.fetch_sessions import FetchSessions
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.loop.completion import Completion
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.request_limits import MAX_ITEMS_PER_REQUEST
from kraftjbod.core.telemetry import Metrics
from kraftjbod.protocol.messages import FetchRequest, FetchResponse

#: Session epoch of a fetch that names all its partitions: it opens a session (INITIAL_EPOCH) or
#: uses none.
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
_LAST_EPOCH: Final = 2**31 - 1
_ID_MASK: Final = 2**31 - 1
_ID_BYTES: Final = 4
#: Offset that was not reported yet, or that must be reported again.
_UNKNOWN: Final = -1

#: Topic id, or topic name before version 13, and partition index.
Key = tuple[bytes | str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSessionLimits:
    max_sessions: int = 10_000
    """Sessions of consumers and followers together."""
    max_partitions: int = 200_000
    """Partitions that all sessions remember together. Each takes about half a kilobyte."""
    eviction_ms: int = 120_000
    """A session idle for longer than this can be evicted for any session. A session older than this
    can be evicted for a larger session."""


class _Part:
    """One partition of a session, as the consumer last requested it.

    It also has the offsets that were last reported to the consumer.
    """

    __slots__ = ("high_watermark", "log_start_offset", "topic", "wanted")

    def __init__(self, topic: FetchRequest.FetchTopic, wanted: FetchRequest.FetchPartition) -> None:
        self.topic = topic
        self.wanted = wanted
        self.high_watermark = _UNKNOWN
        self.log_start_offset = _UNKNOWN

    def hear(self, data: FetchResponse.PartitionData) -> bool:
        """Note the offsets in ``data``, which is about to be sent. Return whether ``data`` has
        news."""
        is_new = bool(
            data.records
            or data.error_code
            or data.diverging_epoch is not None
            or data.preferred_read_replica != _UNKNOWN
            or data.high_watermark != self.high_watermark
            or data.log_start_offset != self.log_start_offset
        )
        # Report the partition again as soon as its error is over.
        self.high_watermark = _UNKNOWN if data.error_code else data.high_watermark
        self.log_start_offset = data.log_start_offset
        return is_new


class ConsumerSession:
    def __init__(self, session_id: int, now_ms: int, *, is_by_id: bool) -> None:
        self.session_id = session_id
        self.is_by_id = is_by_id
        #: The epoch that the next request must have.
        self.epoch = 1
        self.opened_ms = now_ms
        self.last_used_ms = now_ms
        #: The number of partitions under which the session is registered for eviction; None while
        #: it is young.
        self.evictable_as: int | None = None
        #: In fetch order.
        self.parts: dict[Key, _Part] = {}

    def __repr__(self) -> str:
        return f"<ConsumerSession {self.session_id} parts={len(self.parts)}>"

    def update(self, request: FetchRequest) -> None:
        """Add, change and remove partitions as ``request`` names them."""
        for topic in request.topics:
            name = topic.topic_id if self.is_by_id else topic.topic
            for wanted in topic.partitions:
                part = self.parts.get((name, wanted.partition))
                if part is None:
                    self.parts[name, wanted.partition] = _Part(topic, wanted)
                else:
                    part.wanted = wanted
        for forgotten in request.forgotten_topics_data:
            name = forgotten.topic_id if self.is_by_id else forgotten.topic
            for index in forgotten.partitions:
                self.parts.pop((name, index), None)

    def topics(self) -> list[FetchRequest.FetchTopic]:
        """Return all partitions of the session in the form of a request, in fetch order."""
        topics: list[FetchRequest.FetchTopic] = []
        before: bytes | str | None = None
        wanted: list[FetchRequest.FetchPartition] = []
        for (name, _), part in self.parts.items():
            if name != before:
                before, wanted = name, []
                topic = part.topic
                topics.append(
                    FetchRequest.FetchTopic(
                        topic=topic.topic, topic_id=topic.topic_id, partitions=wanted
                    )
                )
            wanted.append(part.wanted)
        return topics

    def leave_out_known(self, response: FetchResponse, *, is_first: bool) -> FetchResponse:
        """Remove the partitions without news for the consumer from ``response``, and return
        ``response``.

        Partitions with records move to the end of the fetch order.

        :param is_first: the request opened the session, so every partition is reported.
        """
        topics = []
        read: list[Key] = []
        for topic in response.responses:
            name = topic.topic_id if self.is_by_id else topic.topic
            news = []
            for data in topic.partitions:
                part = self.parts.get((name, data.partition_index))
                # A later request of the session may have removed the partition.
                if (part is not None and part.hear(data)) or is_first:
                    news.append(data)
                if data.records:
                    read.append((name, data.partition_index))
            if news:
                topic.partitions = news
                topics.append(topic)
        for key in read:
            if (part := self.parts.pop(key, None)) is not None:
                self.parts[key] = part
        response.session_id = self.session_id
        response.responses = topics
        return response


class ConsumerSessions:
    """All incremental fetch sessions of consumers on this broker (KIP-227). Finds or opens the
    session of each fetch, within the limits of sessions and of their partitions.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
        followers: FetchSessions,
        metrics: Metrics,
        limits: ConsumerSessionLimits = ConsumerSessionLimits(),
    ) -> None:
        self._clock = clock
        self._random_bytes = random_bytes
        self._followers = followers
        self._metrics = metrics
        self._limits = limits
        #: In order of use, least recently used first.
        self._sessions: dict[int, ConsumerSession] = {}
        #: Sessions that are too young to be evicted for a larger one, oldest first.
        self._young: dict[int, ConsumerSession] = {}
        #: The other sessions by their number of partitions. The limit of all partitions together
        #: bounds the different numbers to a few hundred.
        self._evictable: dict[int, dict[int, ConsumerSession]] = {}
        self._partitions = 0
        metrics.gauge("NumIncrementalFetchSessions", lambda: len(self) + len(followers))
        metrics.count("IncrementalFetchSessionEvictionsPerSec", 0)
        metrics.gauge(
            "NumIncrementalFetchPartitionsCached", lambda: self._partitions + followers.partitions()
        )

    def __len__(self) -> int:
        return len(self._sessions)

    def fetch(
        self,
        request: FetchRequest,
        serve: Callable[[], Awaitable[FetchResponse]],
        *,
        is_by_id: bool,
    ) -> Awaitable[FetchResponse]:
        """Answer ``request``, which opens or continues a session.

        :param serve: answers ``request`` without a session, after the session's topics were added
            to the request.
        :param is_by_id: whether the request names topics by id.
        :return: a response with an error code if the session cannot be continued.
        """
        is_first = request.session_epoch == INITIAL_EPOCH
        try:
            if is_first:
                session = self._open(request, is_by_id=is_by_id)
            else:
                session = self._continue_session(request, is_by_id=is_by_id)
        except OperatingError as e:
            return Completion.of(FetchResponse(error_code=e.code))
        if session is None:
            return serve()
        if not is_first:
            request.topics = session.topics()
        epoch = session.epoch
        answer = serve()
        if isinstance(answer, Completion):
            return Completion.of(_settled(session, epoch, answer.result(), is_first=is_first))
        return _settle_later(session, epoch, answer, is_first=is_first)

    def close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.parts)
            if session.evictable_as is None:
                del self._young[session_id]
            else:
                self._remove_evictable(session)

    def _open(self, request: FetchRequest, *, is_by_id: bool) -> ConsumerSession | None:
        """Return a new session. None at a limit, or if the request names no partition."""
        self.close(request.session_id)
        named = sum(len(topic.partitions) for topic in request.topics)
        now_ms = self._clock.now_ms()
        if not 0 < named <= MAX_ITEMS_PER_REQUEST or not self._make_place(named, now_ms):
            return None
        session = ConsumerSession(self._unused_id(), now_ms, is_by_id=is_by_id)
        session.update(request)
        self._sessions[session.session_id] = self._young[session.session_id] = session
        self._partitions += len(session.parts)
        return session

    def _continue_session(self, request: FetchRequest, *, is_by_id: bool) -> ConsumerSession | None:
        """Update the session that ``request`` continues and return it; None if no partition
        remains.

        :raises OperatingError: the session is unknown, its epoch or its topic naming does not
            match, or it has grown too large. The consumer then starts a full fetch.
        """
        session = self._sessions.get(request.session_id)
        if session is None:
            raise OperatingError(code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            raise OperatingError(code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.is_by_id != is_by_id:
            raise OperatingError(code=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        before = len(session.parts)
        session.update(request)
        grown = len(session.parts) - before
        self._partitions += grown
        if grown and session.evictable_as is not None:
            self._remove_evictable(session)
            self._add_evictable(session)
        if not session.parts:
            self.close(session.session_id)
            return None
        is_too_much = grown > 0 and self._partitions > self._limits.max_partitions
        if len(session.parts) > MAX_ITEMS_PER_REQUEST or is_too_much:
            # The session is too large. The error makes the consumer start with a full fetch, which
            # may get a response without a session.
            self.close(session.session_id)
            raise OperatingError(code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        session.epoch = session.epoch % _LAST_EPOCH + 1
        session.last_used_ms = self._clock.now_ms()
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        return session

    def _make_place(self, partitions: int, now_ms: int) -> bool:
        limits = self._limits
        while (
            len(self._sessions) + len(self._followers) >= limits.max_sessions
            or self._partitions + partitions > limits.max_partitions
        ):
            victim = self._session_to_evict(partitions, now_ms)
            if victim is None:
                return False
            self.close(victim.session_id)
            self._metrics.count("IncrementalFetchSessionEvictionsPerSec")
        return True

    def _session_to_evict(self, partitions: int, now_ms: int) -> ConsumerSession | None:
        """Return the session to evict for a new one with ``partitions`` partitions; None if none
        may be."""
        eviction_ms = self._limits.eviction_ms
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or now_ms - oldest.last_used_ms > eviction_ms:
            return oldest
        while (first := next(iter(self._young.values()), None)) is not None:
            if now_ms - first.opened_ms <= eviction_ms:
                break
            self._add_evictable(self._young.pop(first.session_id))
        smallest = min(self._evictable, default=partitions)
        return next(iter(self._evictable[smallest].values())) if smallest < partitions else None

    def _add_evictable(self, session: ConsumerSession) -> None:
        size = session.evictable_as = len(session.parts)
        self._evictable.setdefault(size, {})[session.session_id] = session

    def _remove_evictable(self, session: ConsumerSession) -> None:
        assert session.evictable_as is not None, session
        same_size = self._evictable[session.evictable_as]
        del same_size[session.session_id]
        if not same_size:
            del self._evictable[session.evictable_as]

    def _unused_id(self) -> int:
        while True:
            drawn = int.from_bytes(self._random_bytes(_ID_BYTES)) & _ID_MASK
            if drawn and drawn not in self._sessions:
                return drawn


async def _settle_later(
    session: ConsumerSession, epoch: int, answer: Awaitable[FetchResponse], *, is_first: bool
) -> FetchResponse:
    return _settled(session, epoch, await answer, is_first=is_first)


def _settled(
    session: ConsumerSession, epoch: int, response: FetchResponse, *, is_first: bool
) -> FetchResponse:
    if session.epoch != epoch:
        # The consumer sent another request before this response was ready, so it ignores this
        # response and the session must not count its contents as known.
        return FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    return session.leave_out_known(response, is_first=is_first)
