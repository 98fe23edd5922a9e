"""PURE. How far a follower is, as its leader knows from the follower's fetches alone.

What a follower said is true of the copy that it spoke for. A copy may be lost and another one, with
less in it, take its place: in the same directory, by the same broker, in the same epochs. So the
leader notes when it learned of anything after which former words are void, and hears a fetch only
if it was *sent* after that. A fetch that continues a session was sent after the answer before it;
of the first one of a session nothing is known, so it counts only where no word was heard before.
The moments of all this are those of this broker alone: no clock and no wire is needed for them.
"""

from __future__ import annotations

from typing import Final

from kraftjbod.core.ids import UNKNOWN_BROKER_EPOCH, BrokerId, TopicIdPartition

UNKNOWN_OFFSET: Final = -1


class Moments:
    """What comes after what on this broker: a number that grows with each thing of interest."""

    __slots__ = ("_now",)

    def __init__(self) -> None:
        self._now = 0

    def next(self) -> int:
        self._now += 1
        return self._now


class Speaker:
    """One fetch session as its follower's voice."""

    __slots__ = ("answered_at", "since", "unheard")

    def __init__(self) -> None:
        #: The moment of the last answer; 0 before the first.
        self.answered_at = 0
        #: Its latest request was sent after this moment; so all that it named before is still so.
        self.since = 0
        #: What it said that has to be proven by its next request.
        self.unheard: dict[TopicIdPartition, None] = {}

    def spoke(self) -> list[TopicIdPartition]:
        """A request came; what it proves of what was said before."""
        self.since = self.answered_at
        proven, self.unheard = list(self.unheard), {}
        return proven


class FollowerState:
    """One follower in one leader epoch.

    It was *caught up* at the last instant at which it is known to have had all of the log: when it
    fetched from the end, or when it now has what was the end at its previous fetch. So a follower
    that keeps up with a steady load counts as caught up though it is never quite at the end.
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
        #: Who said what is known, and the moment of it.
        self.speaker: Speaker | None = None
        self.heard_at = 0
        #: What was said before this moment may be true of another copy.
        self.not_before = 0
        #: UNKNOWN_OFFSET until its first fetch in this leader epoch.
        self.log_end_offset = UNKNOWN_OFFSET
        #: As it said in its last fetch (KIP-107).
        self.log_start_offset = UNKNOWN_OFFSET
        self.last_caught_up_ms = last_caught_up_ms
        self.last_fetch_ms = 0
        self.last_fetch_leader_end_offset = UNKNOWN_OFFSET
        #: The offset from which it was last sent records.
        self.sent_from = UNKNOWN_OFFSET

    def __repr__(self) -> str:
        return (
            f"<FollowerState {self.broker_id} end={self.log_end_offset} "
            f"caught_up_ms={self.last_caught_up_ms}>"
        )

    @property
    def is_current(self) -> bool:
        """Whether what is known is true of the copy that is there now."""
        return self.speaker is not None and self.speaker.since >= self.not_before

    def hears(self, speaker: Speaker) -> bool:
        """Whether ``speaker`` is not a late word of a copy, or a loop, that is gone."""
        after = self.not_before
        if speaker is not self.speaker:
            after = max(after, self.heard_at)
        return speaker.since >= after

    def fetched(self, fetch_offset: int, leader_end_offset: int, now_ms: int) -> None:
        """A fetch at ``fetch_offset`` means that everything before it is in the follower's log."""
        if fetch_offset >= leader_end_offset:
            self.last_caught_up_ms = now_ms
        elif fetch_offset >= self.last_fetch_leader_end_offset:
            # It has all that there was at its previous fetch, so it was caught up then.
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.log_end_offset = fetch_offset
        self.last_fetch_ms = now_ms
        self.last_fetch_leader_end_offset = leader_end_offset
