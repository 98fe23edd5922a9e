"""PURE. What may happen to a consumer group, and what it wants done: events and actions.

Members of the classic protocol, which such a group may have as well, bring the events of
group_events.py. A ``token`` stands for a request that waits for its answer; each is answered once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from kraftjbod.broker.groups.classic.group_events import (
    Answer,
    HeartbeatReceived,
    JoinRequested,
    LeaveRequested,
    SyncRequested,
    TimePassed,
    Token,
    Unloaded,
)
from kraftjbod.broker.groups.consumer.group_topics import GroupTopics
from kraftjbod.broker.groups.records.consumer_group_records import Partitions
from kraftjbod.broker.groups.records.group_records import Fact, GroupMetadata
from kraftjbod.core.errors import ErrorCode
from kraftjbod.protocol.records import Record

#: What a member says in place of an epoch.
JOINING = 0
LEAVING = -1
AWAY = -2
"""A static member that will come back."""


class MigrationPolicy(Enum):
    """``group.consumer.migration.policy``: which groups with members may change their protocol."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def may_upgrade(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def may_downgrade(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupSettings:
    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int
    max_size: int
    assignors: tuple[str, ...]
    """The first one is that of members who do not say."""
    migration_policy: MigrationPolicy
    regex_refresh_ms: int
    classic_max_size: int
    """Of a group that goes back to the classic protocol."""


class Moment(NamedTuple):
    """When something happens, and the topics that there are then."""

    now_ms: int
    """Monotonic."""
    wall_ms: int
    topics: GroupTopics
    max_batch_bytes: int = 1 << 20
    """Largest batch that the partition of the group takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """``None``, and -1 of the time-out: as it was."""

    token: Token
    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topic_names: frozenset[str] | None = None
    topic_regex: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""

    @property
    def is_full(self) -> bool:
        """It says all that there is to say, as after an answer that was lost."""
        has_topics = self.topic_names is not None or self.topic_regex is not None
        return self.rebalance_timeout_ms != -1 and has_topics and self.owned is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerAnswer:
    code: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None
    """All that the member may have now; None if that is what it was told last."""


@dataclass(frozen=True, slots=True)
class FactsWritten:
    """What :class:`WriteFacts` asked for is replicated, or why nothing of it is in the log."""

    code: ErrorCode
    is_too_large: bool = False
    """The log does not take batches of that size."""


@dataclass(frozen=True, slots=True)
class DeletionRequested:
    """Forget the group, if it has no members."""

    token: Token


@dataclass(frozen=True, slots=True)
class DeletionAnswer:
    code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What somebody wants to commit, and says of itself."""

    member_id: str
    epoch: int
    partitions: Partitions
    knows_epochs: bool = True
    """It can be told that its epoch is stale (OffsetCommit since version 9)."""
    in_transaction: bool = False


ClassicRequest = JoinRequested | SyncRequested | HeartbeatReceived | LeaveRequested
MemberRequest = ConsumerHeartbeat | DeletionRequested | ClassicRequest
ConsumerGroupEvent = MemberRequest | FactsWritten | TimePassed | Unloaded


@dataclass(frozen=True, slots=True)
class WriteFacts:
    """Append them as one batch; :class:`FactsWritten` has to follow before there is another."""

    facts: Sequence[Fact]
    records: Sequence[Record]
    """The facts, encoded."""


@dataclass(frozen=True, slots=True)
class BecameClassic:
    """The group is classic from now on, and that is written; ``waiting`` go there.

    ``group`` is None if it has no members and begins anew.
    """

    group: GroupMetadata | None
    waiting: Sequence[MemberRequest]


ConsumerGroupAction = Answer | WriteFacts | BecameClassic
