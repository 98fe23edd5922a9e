"""LOOP. Fetch sessions of followers (KIP-227): what a follower wants is remembered, not repeated.

A follower's loop may follow thousands of replicas of which few move. Its first fetch names them
all; after that it names those that changed on its side, and gets those that changed on ours.
Neither side goes through the rest.

* A session knows which of its partitions have *news*; whoever moves a replica says so to the
  sessions that watch it, and nothing else is looked at in the next fetch.
* One fetch of a session is served at a time. Its epoch grows by one with each.
* Consumers have sessions of their own (consumer_sessions.py), which give way to these.
* Sessions are bounded in all, per follower and in what they remember. Who opens one too many loses
  an old one of its own; only who has more than others gives way to them, and whoever says to be
  a follower that metadata does not know gives way to everybody (KIP-227's privileges).
* Ids are drawn, so that nobody goes on with a session that another one opened.
"""

from __future__ import annotations

import asyncio
from collections import Counter
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
#: ``replica_id`` of one who compares replicas, and reads any of them. Kafka's debugging consumer.
REPLICA_READER: Final = BrokerId(-2)
NO_EPOCH: Final = -1


class FetchFrom(NamedTuple):
    """What one fetch wants of one partition."""

    topic_partition: TopicPartition
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = ANY_EPOCH
    last_fetched_epoch: int = NO_EPOCH
    replica_id: BrokerId = CONSUMER
    replica_epoch: BrokerEpoch = BrokerEpoch(-1)
    log_start_offset: int = -1
    """Where a follower's log starts."""
    speaker: Speaker | None = None
    """The session of a follower, as its voice; None for everybody else."""
    is_committed_only: bool = False
    """A consumer who wants nothing of transactions that are open or aborted (KIP-98)."""


class SessionPart:
    """One partition of a session: what its follower said and heard last."""

    __slots__ = ("reported_high_watermark", "reported_log_start_offset", "wanted")

    def __init__(self, wanted: FetchFrom) -> None:
        self.wanted = wanted
        self.reported_high_watermark = -1
        self.reported_log_start_offset = -1


class Follower(NamedTuple):
    """Who has sessions: one incarnation of a broker."""

    broker_id: BrokerId
    epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """What all sessions together may be."""

    max_sessions: int = 10_000
    max_per_follower: int = 1_000
    max_idle_ms: int = 60_000
    max_partitions: int = 200_000
    """Of one session."""


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
        #: None if metadata knows of no such follower.
        self.follower = follower
        self.speaker = Speaker()
        self._max_partitions = max_partitions
        #: Of the next request.
        self.epoch = 1
        self.last_used_ms = now_ms
        self.parts: dict[TopicIdPartition, SessionPart] = {}
        #: Partitions to look at in the next answer, in the order in which they moved.
        self.news: dict[TopicIdPartition, None] = {}
        self._waiting: asyncio.Future[None] | None = None
        self._missing_bytes = 0

    def __repr__(self) -> str:
        return f"<FetchSession {self.session_id} parts={len(self.parts)} news={len(self.news)}>"

    def follow(self, key: TopicIdPartition, wanted: FetchFrom) -> None:
        """The follower wants this from now on, and shall hear of it next.

        :raises OperatingError: INVALID_REQUEST, if it wants too many partitions.
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
        """The partition has news; with ``size_bytes`` more to read, which may end a wait."""
        if key not in self.parts:
            return
        self.news[key] = None
        self._missing_bytes -= size_bytes
        if self._missing_bytes <= 0:
            self.wake()

    def noted(self, key: TopicIdPartition) -> None:
        """The partition has news that no wait ends for."""
        if key in self.parts:
            self.news[key] = None

    def take_news(self) -> list[TopicIdPartition]:
        """The partitions to look at; what moves from now on is news again."""
        news, self.news = list(self.news), {}
        return news

    def changed(self, key: TopicIdPartition) -> None:
        """The partition's role changed, or it is gone: to be answered at once."""
        if key in self.parts:
            self.news[key] = None
            self.wake()

    def wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait(self, missing_bytes: int, timeout_ms: int) -> None:
        """Wait until ``missing_bytes`` more can be read, a role changes, or the time is up."""
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
    """All sessions of this broker; one that was not used for ``max_idle_ms`` is forgotten."""

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
        #: The least recently used first.
        self._sessions: dict[int, FetchSession] = {}
        #: By follower; None: all whom metadata does not know.
        self._counts: Counter[Follower | None] = Counter()

    def __len__(self) -> int:
        return len(self._sessions)

    def partitions(self) -> int:
        """That all sessions remember."""
        return sum(len(session.parts) for session in self._sessions.values())

    def open(self, follower: Follower | None) -> tuple[FetchSession, list[FetchSession]]:
        """A new session, and those that had to go for it.

        :param follower: None for one that metadata does not know.
        :raises OverloadedError: there is no place for that one, as the known ones have it all.
        """
        now_ms = self._clock.now_ms()
        gone = [s for s in self._sessions.values() if self._is_over(s, follower, now_ms)]
        for session in gone:
            self.close(session.session_id)
        while (oldest := self._in_the_way(follower)) is not None:
            self.close(oldest.session_id)
            gone.append(oldest)
        opened = FetchSession(
            self._unused_id(),
            now_ms,
            follower=follower,
            max_partitions=self._limits.max_partitions,
        )
        self._sessions[opened.session_id] = opened
        self._counts[follower] += 1
        return opened, gone

    def _is_over(self, session: FetchSession, opening: Follower | None, now_ms: int) -> bool:
        """Idle for long, or of an earlier life of the broker that opens one now."""
        if now_ms - session.last_used_ms > self._limits.max_idle_ms:
            return True
        follower = session.follower
        return (
            follower is not None
            and opening is not None
            and follower.broker_id == opening.broker_id
            and follower.epoch != opening.epoch
        )

    def _in_the_way(self, opening: Follower | None) -> FetchSession | None:
        """The session that has to go before ``opening`` has another one; None if there is a
        place."""
        counts = self._counts
        if counts[opening] >= self._limits.max_per_follower:
            owner = opening
        elif len(self._sessions) < self._limits.max_sessions:
            return None
        elif counts[None]:
            owner = None
        elif opening is None:
            raise OverloadedError(f"{len(self._sessions)} fetch sessions are all followers'")
        else:
            owner = max(counts, key=counts.__getitem__)
            if counts[owner] == counts[opening]:
                owner = opening
        return next(s for s in self._sessions.values() if s.follower == owner)

    def _unused_id(self) -> int:
        while True:
            drawn = int.from_bytes(self._random_bytes(_ID_BYTES)) & _ID_MASK
            if drawn and drawn not in self._sessions:
                return drawn

    def take(self, session_id: int, epoch: int) -> FetchSession:
        """The session for its next fetch.

        :raises OperatingError: FETCH_SESSION_ID_NOT_FOUND or INVALID_FETCH_SESSION_EPOCH; the
            follower begins anew then.
        """
        session = self._sessions.pop(session_id, None)
        if session is None:
            raise OperatingError("", code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        self._sessions[session_id] = session
        if epoch != session.epoch:
            raise OperatingError("", code=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        session.epoch = session.epoch % _LAST_EPOCH + 1
        session.last_used_ms = self._clock.now_ms()
        return session

    def close(self, session_id: int) -> FetchSession | None:
        """Forget the session; its wait, if there is one, ends."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._counts[session.follower] -= 1
            if not self._counts[session.follower]:
                del self._counts[session.follower]
            session.wake()
        return session
