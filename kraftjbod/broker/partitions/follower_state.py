"""PURE. The progress of a follower, as its leader knows it from fetch requests alone.

A fetch reports the offset of the copy that the follower had when it sent the request. That copy can
be lost and replaced by an emptier copy, in the same directory, by the same broker, in the same
epochs. So the leader notes the moment of each event that invalidates earlier reports, and accepts a
fetch only if it was *sent* after that moment. A fetch that continues a session was sent after the
previous response. Nothing is known about the sending of a session's first fetch, so it counts only
if no report was accepted before. All moments are counted on this broker alone: they need no clock
and no wire field (ADR 60).
"""

from __future__ import annotations

from typing import Final

from kraftjbod.core.ids import UNKNOWN_BROKER_EPOCH, BrokerId, TopicIdPartition

UNKNOWN_OFFSET: Final = -1


class Moments:
    """A logical clock that orders events on this broker, such as fetches, responses and metadata
    changes. Each call of ``next`` returns a greater number.
    """

    __slots__ = ("_now",)

    def __init__(self) -> None:
        self._now = 0

    def next(self) -> int:
        self._now += 1
        return self._now


class Speaker:
    """One fetch session of a follower, as the sender of reports about the follower's log ends.

    Each request reports the log ends of its partitions. The next request of the session confirms
    that the response to the previous one arrived, and with it those reports.
    """

    __slots__ = ("answered_at", "since", "unheard")

    def __init__(self) -> None:
        #: The moment of the last response; 0 before the first.
        self.answered_at = 0
        #: The latest request was sent after this moment, so earlier reports of the session still
        #: hold then.
        self.since = 0
        #: Partitions whose report was not accepted yet. The next request of the session confirms
        #: them.
        self.unheard: dict[TopicIdPartition, None] = {}

    def spoke(self) -> list[TopicIdPartition]:
        """Note that a request arrived. Return the partitions whose earlier report it confirms."""
        self.since = self.answered_at
        proven, self.unheard = list(self.unheard), {}
        return proven


class FollowerState:
    """The progress of one follower in one leader epoch.

    ``last_caught_up_ms`` is the last time (monotonic ms) at which the follower is known to have had
    the whole log. A fetch from the log end counts for its own time. A fetch that reaches the log
    end of the previous fetch counts for the time of the previous fetch. So a follower that keeps up
    with a steady load counts as caught up although it never reaches the log end.
    """

    __slots__ = (
        "broker_epoch",
        "broker_id",
        "heard_at",
        "last_caught_up_ms",
        "last_fetch_leader_end_offset",
        "last_fetch_ms",
        "log_end_offset",
        "log_start_offset",
        "not_before",
        "sent_from",
        "speaker",
    )

    def __init__(self, broker_id: BrokerId, last_caught_up_ms: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch = UNKNOWN_BROKER_EPOCH
        #: The session of the last accepted report, and the moment of the report.
        self.speaker: Speaker | None = None
        self.heard_at = 0
        #: Reports sent before this moment may describe another copy.
        self.not_before = 0
        #: UNKNOWN_OFFSET until its first fetch in this leader epoch.
        self.log_end_offset = UNKNOWN_OFFSET
        #: The log start offset in its last fetch (KIP-107).
        self.log_start_offset = UNKNOWN_OFFSET
        self.last_caught_up_ms = last_caught_up_ms
        self.last_fetch_ms = 0
        self.last_fetch_leader_end_offset = UNKNOWN_OFFSET
        #: The offset from which records were last sent to it.
        self.sent_from = UNKNOWN_OFFSET

    def __repr__(self) -> str:
        return (
            f"<FollowerState {self.broker_id} end={self.log_end_offset} "
            f"caught_up_ms={self.last_caught_up_ms}>"
        )

    @property
    def is_current(self) -> bool:
        """Whether the last report describes the follower's present copy."""
        return self.speaker is not None and self.speaker.since >= self.not_before

    def hears(self, speaker: Speaker) -> bool:
        """Return whether a report of ``speaker`` is accepted.

        A report is not accepted if a copy or a fetch loop that no longer exists may have sent it.
        """
        after = self.not_before
        if speaker is not self.speaker:
            after = max(after, self.heard_at)
        return speaker.since >= after

    def fetched(self, fetch_offset: int, leader_end_offset: int, now_ms: int) -> None:
        """Note a fetch from ``fetch_offset``: the follower has all records before that offset.

        Updates ``last_caught_up_ms``: to ``now_ms`` if the follower has reached
        ``leader_end_offset``, or to the time of its previous fetch if it has reached the leader's
        end of that time.
        """
        if fetch_offset >= leader_end_offset:
            self.last_caught_up_ms = now_ms
        elif fetch_offset >= self.last_fetch_leader_end_offset:
            # It now has the log end of its previous fetch, so it was caught up at that time.
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.log_end_offset = fetch_offset
        self.last_fetch_ms = now_ms
        self.last_fetch_leader_end_offset = leader_end_offset
