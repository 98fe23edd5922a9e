"""LOOP. Incremental fetch sessions of followers (KIP-227).

A follower's fetch loop may follow thousands of replicas of which few change. The first fetch of a
session names all of them. A later fetch names the partitions that changed at the follower, and the
response has the partitions that changed at the leader. No side iterates over the rest.

* A session knows which of its partitions have *news*. The code that changes a partition notifies
  the sessions that contain it, and the next fetch looks at these partitions only.
* A session serves one fetch at a time. Its epoch grows by one with each fetch.
* Sessions of consumers (consumer_sessions.py) are separate and have lower precedence.
* The number of sessions is limited in total and per follower, and so are the partitions of a
  session. At its own limit a follower replaces its oldest session. At the total limit the follower
  with the most sessions loses one. Followers that are missing in the metadata lose theirs first
  (KIP-227's privileges).
* Session ids are random, so that no client can continue the session of another client.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from kraftjbod.broker.partitions.follower_state import Speaker
from kraftjbod.broker.partitions.partition import ANY_EPOCH
from kraftjbod.core.errors import ErrorCode, OperatingError, OverloadedError
from kraftjbod.core.ids import BrokerEpoch, BrokerId, TopicIdPartition, TopicPartition
from kraftjbod.core.loop.timing import Clock

_LAST_EPOCH: Final = 2**31 - 1
_ID_MASK: Final = 2**31 - 1
_ID_BYTES: Final = 4


#: ``replica_id`` of a consumer.
CONSUMER: Final = BrokerId(-1)
#: ``replica_id`` of a client that compares replicas and may read any replica (Kafka's debugging
#: consumer).
REPLICA_READER: Final = BrokerId(-2)
NO_EPOCH: Final = -1


class FetchFrom(NamedTuple):
    """One partition of a fetch request: the offset and the limits, and the sender's replica id and
    epochs.

    ``replica_id`` is ``CONSUMER`` if the sender is not a follower. ``last_fetched_epoch`` is the
    leader epoch of the sender's last record, by which the leader detects diverging logs;
    ``NO_EPOCH`` if not sent.
    """

    topic_partition: TopicPartition
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = ANY_EPOCH
    last_fetched_epoch: int = NO_EPOCH
    replica_id: BrokerId = CONSUMER
    replica_epoch: BrokerEpoch = BrokerEpoch(-1)
    log_start_offset: int = -1
    """The log start offset of a follower."""
    speaker: Speaker | None = None
    """The identity of a follower's fetch session; None for consumers."""
    is_committed_only: bool = False
    """A consumer with ``isolation.level=read_committed`` (KIP-98)."""


class SessionPart:
    """One partition of a session, as the follower last requested it.

    It also has the offsets that were last reported to the follower.
    """

    __slots__ = ("reported_high_watermark", "reported_log_start_offset", "wanted")

    def __init__(self, wanted: FetchFrom) -> None:
        self.wanted = wanted
        self.reported_high_watermark = -1
        self.reported_log_start_offset = -1


class Follower(NamedTuple):
    """The owner of sessions: one incarnation of a broker."""

    broker_id: BrokerId
    epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """Limits of the fetch sessions of followers."""

    max_sessions: int = 10_000
    max_per_follower: int = 1_000
    max_idle_ms: int = 60_000
    max_partitions: int = 200_000
    """Partitions of one session."""


class FetchSession:
    def __init__(
        self,
        session_id: int,
        now_ms: int,
        *,
        follower: Follower | None = None,
        max_partitions: int = SessionLimits().max_partitions,
    ) -> None:
        self.session_id = session_id
        #: None if the metadata has no such broker in this epoch.
        self.follower = follower
        self.speaker = Speaker()
        self._max_partitions = max_partitions
        #: The epoch that the next request must have.
        self.epoch = 1
        self.last_used_ms = now_ms
        self.parts: dict[TopicIdPartition, SessionPart] = {}
        #: Partitions to look at for the next response, in the order in which they changed.
        self.news: dict[TopicIdPartition, None] = {}
        self._waiting: asyncio.Future[None] | None = None
        self._missing_bytes = 0

    def __repr__(self) -> str:
        return f"<FetchSession {self.session_id} parts={len(self.parts)} news={len(self.news)}>"

    def follow(self, key: TopicIdPartition, wanted: FetchFrom) -> None:
        """Add or update a partition, and mark it as changed, so that the next fetch looks at it.

        :raises OperatingError: INVALID_REQUEST, if the session would have too many partitions.
        """
        part = self.parts.get(key)
        if part is not None:
            part.wanted = wanted
        elif len(self.parts) < self._max_partitions:
            self.parts[key] = SessionPart(wanted)
        else:
            raise OperatingError(
                f"a fetch session remembers {self._max_partitions} partitions and no more",
                code=ErrorCode.INVALID_REQUEST,
            )
        self.news[key] = None

    def moved(self, key: TopicIdPartition, size_bytes: int) -> None:
        """Mark the partition as changed, and count ``size_bytes`` new readable bytes for the wait.

        No effect if the session does not contain the partition; so too for :meth:`noted` and
        :meth:`changed`.
        """
        if key not in self.parts:
            return
        self.news[key] = None
        self._missing_bytes -= size_bytes
        if self._missing_bytes <= 0:
            self.wake()

    def noted(self, key: TopicIdPartition) -> None:
        """Mark the partition as changed without ending a wait."""
        if key in self.parts:
            self.news[key] = None

    def take_news(self) -> list[TopicIdPartition]:
        """Return and clear the changed partitions. Later changes are for the next fetch."""
        news, self.news = list(self.news), {}
        return news

    def changed(self, key: TopicIdPartition) -> None:
        """Mark the partition as changed and end the wait: its role changed, or it was removed."""
        if key in self.parts:
            self.news[key] = None
            self.wake()

    def wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait(self, missing_bytes: int, timeout_ms: int) -> None:
        """Wait for ``missing_bytes`` more readable bytes, a change of a role, or the timeout."""
        loop = asyncio.get_running_loop()
        self._missing_bytes = missing_bytes
        self._waiting = loop.create_future()
        timer = loop.call_later(timeout_ms / 1000, self.wake)
        try:
            await self._waiting
        finally:
            timer.cancel()
            self._waiting = None


class FetchSessions:
    """All fetch sessions of followers on this broker.

    A session that was idle for ``max_idle_ms`` is removed when another session opens.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
        limits: SessionLimits = SessionLimits(),
    ) -> None:
        self._clock = clock
        self._random_bytes = random_bytes
        self._limits = limits
        #: In order of use, least recently used first.
        self._sessions: dict[int, FetchSession] = {}
        #: The same sessions by follower, each in order of use. The key None has those of followers
        #: that the metadata does not have.
        self._by_follower: defaultdict[Follower | None, dict[int, FetchSession]] = defaultdict(dict)

    def __len__(self) -> int:
        return len(self._sessions)

    def partitions(self) -> int:
        """Return the number of partitions that all sessions remember."""
        return sum(len(session.parts) for session in self._sessions.values())

    def open(self, follower: Follower | None) -> tuple[FetchSession, list[FetchSession]]:
        """Open a session. Return it and the sessions that were removed for it.

        :param follower: None for a follower that the metadata does not have.
        :raises OverloadedError: known followers use all sessions and ``follower`` is None.
        """
        now_ms = self._clock.now_ms()
        gone = self._close_idle(now_ms)
        if follower is not None:
            gone += self._close_earlier_incarnations(follower)
        while (oldest := self._session_to_remove(follower)) is not None:
            self.close(oldest.session_id)
            gone.append(oldest)
        opened = FetchSession(
            self._unused_id(),
            now_ms,
            follower=follower,
            max_partitions=self._limits.max_partitions,
        )
        self._sessions[opened.session_id] = opened
        self._by_follower[follower][opened.session_id] = opened
        return opened, gone

    def _close_idle(self, now_ms: int) -> list[FetchSession]:
        """Close the sessions that were idle for too long, and return them."""
        closed: list[FetchSession] = []
        while (oldest := next(iter(self._sessions.values()), None)) is not None:
            if now_ms - oldest.last_used_ms <= self._limits.max_idle_ms:
                break
            self.close(oldest.session_id)
            closed.append(oldest)
        return closed

    def _close_earlier_incarnations(self, opening: Follower) -> list[FetchSession]:
        """Close the sessions of earlier incarnations of the broker, and return them."""
        closed = [
            session
            for follower, sessions in self._by_follower.items()
            if follower is not None
            and follower.broker_id == opening.broker_id
            and follower.epoch != opening.epoch
            for session in sessions.values()
        ]
        for session in closed:
            self.close(session.session_id)
        return closed

    def _session_to_remove(self, opening: Follower | None) -> FetchSession | None:
        """Return the session to remove before ``opening`` can open one; None below the limits.

        :raises OverloadedError: see :meth:`open`.
        """
        sessions = self._by_follower
        opened = len(sessions.get(opening, ()))
        if opened >= self._limits.max_per_follower:
            owner = opening
        elif len(self._sessions) < self._limits.max_sessions:
            return None
        elif None in sessions:
            owner = None
        elif opening is None:
            raise OverloadedError(f"{len(self._sessions)} fetch sessions are all followers'")
        else:
            owner = max(sessions, key=lambda follower: len(sessions[follower]))
            if len(sessions[owner]) == opened:
                owner = opening
        return next(iter(sessions[owner].values()))

    def _unused_id(self) -> int:
        while True:
            drawn = int.from_bytes(self._random_bytes(_ID_BYTES)) & _ID_MASK
            if drawn and drawn not in self._sessions:
                return drawn

    def take(self, session_id: int, epoch: int) -> FetchSession:
        """Return the session for its next fetch and advance its epoch.

        :raises OperatingError: FETCH_SESSION_ID_NOT_FOUND or INVALID_FETCH_SESSION_EPOCH. The
            follower then opens a new session.
        """
        session = self._sessions.get(session_id)
        if session is None:
            raise OperatingError("", code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if epoch != session.epoch:
            raise OperatingError("", code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        for sessions in (self._sessions, self._by_follower[session.follower]):
            sessions[session_id] = sessions.pop(session_id)
        session.epoch = session.epoch % _LAST_EPOCH + 1
        session.last_used_ms = self._clock.now_ms()
        return session

    def close(self, session_id: int) -> FetchSession | None:
        """Remove the session and end its wait, if any. Return it, or None if it is unknown."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            of_follower = self._by_follower[session.follower]
            del of_follower[session_id]
            if not of_follower:
                del self._by_follower[session.follower]
            session.wake()
        return session
