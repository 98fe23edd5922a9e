"""How far a follower is, as its leader knows from the follower's fetches alone."""

from __future__ import annotations

from typing import Final

from kraftjbod.core.ids import UNKNOWN_BROKER_EPOCH, BrokerId

UNKNOWN_OFFSET: Final = -1


class FollowerState:
    """One follower in one leader epoch.

    It was *caught up* at the last instant at which it is known to have had all of the log: when it
    fetched from the end, or when it now has what was the end at its previous fetch. So a follower
    that keeps up with a steady load counts as caught up though it is never quite at the end.
    """

    __slots__ = (
        "broker_epoch",
        "broker_id",
        "last_caught_up_ms",
        "last_fetch_leader_end_offset",
        "last_fetch_ms",
        "log_end_offset",
        "log_start_offset",
        "sent_from",
    )

    def __init__(self, broker_id: BrokerId, last_caught_up_ms: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch = UNKNOWN_BROKER_EPOCH
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
