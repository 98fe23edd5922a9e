"""PURE. Events and actions of a consumer group.

Members with the classic protocol use the events of group_events.py. A ``token`` identifies a
request that waits for its answer; each is answered once.
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

#: Special values of the member epoch in a heartbeat.
JOINING = 0
LEAVING = -1
AWAY = -2
"""A static member that leaves temporarily."""


class MigrationPolicy(Enum):
    """``group.consumer.migration.policy``: the directions in which a group with members may change
    its protocol. UPGRADE is from the classic to the consumer protocol.
    """

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
    """The first one is the default."""
    migration_policy: MigrationPolicy
    regex_refresh_ms: int
    classic_max_size: int
    """Size limit of a group that is converted to the classic protocol."""


class Moment(NamedTuple):
    """The clocks, the topics and the batch limit at the time of an event."""

    now_ms: int
    """Monotonic milliseconds."""
    wall_ms: int
    topics: GroupTopics
    max_batch_bytes: int = 1 << 20
    """Limit of batches in the group's partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """A ConsumerGroupHeartbeat request, with its fields.

    ``epoch`` is the member epoch: 0 to join, negative to leave. A field that is None, or a timeout
    of -1, means unchanged since the last heartbeat.
    """

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
        """Whether the heartbeat has a rebalance timeout, topics and owned partitions.

        A member sends such a heartbeat after it got no response.
        """
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
    """The complete assignment; None if unchanged since the last response."""


@dataclass(frozen=True, slots=True)
class FactsWritten:
    """Event: the batch of :class:`WriteFacts` is replicated (NONE), or it failed with ``code`` and
    is not in the log.
    """

    code: ErrorCode
    is_too_large: bool = False
    """The log does not accept batches of that size."""


@dataclass(frozen=True, slots=True)
class DeletionRequested:
    """Event: delete the group if it has no members. It is answered with ``DeletionAnswer``."""

    token: Token


@dataclass(frozen=True, slots=True)
class DeletionAnswer:
    code: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """An offset commit to be checked: its partitions, and the member id and member epoch that its
    sender claims.
    """

    member_id: str
    epoch: int
    partitions: Partitions
    knows_epochs: bool = True
    """The sender knows STALE_MEMBER_EPOCH (OffsetCommit since version 9)."""
    in_transaction: bool = False


ClassicRequest = JoinRequested | SyncRequested | HeartbeatReceived | LeaveRequested
MemberRequest = ConsumerHeartbeat | DeletionRequested | ClassicRequest
ConsumerGroupEvent = MemberRequest | FactsWritten | TimePassed | Unloaded


@dataclass(frozen=True, slots=True)
class WriteFacts:
    """Action: append the facts as one batch. :class:`FactsWritten` must follow before the next
    write.
    """

    facts: Sequence[Fact]
    records: Sequence[Record]
    """The encoded facts."""


@dataclass(frozen=True, slots=True)
class BecameClassic:
    """Action: replace the consumer group by a classic group, and handle the ``waiting`` requests
    there. The records of the change are replicated.

    ``group`` is None for a group without members, which starts as a new classic group.
    """

    group: GroupMetadata | None
    waiting: Sequence[MemberRequest]


ConsumerGroupAction = Answer | WriteFacts | BecameClassic
