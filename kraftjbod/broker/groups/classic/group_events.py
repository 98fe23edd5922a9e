"""PURE. Events and actions of a classic group.

Names and fields are those of Kafka's requests. A ``token`` identifies a request that waits for its
answer; each is answered once.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from kraftjbod.broker.groups.records.group_records import GroupMetadata
from kraftjbod.core.errors import ErrorCode

Token = Hashable
NO_GENERATION = -1


class GroupState(Enum):
    """States of a group, with Kafka's names as in DescribeGroups and ListGroups."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    ASSIGNING = "Assigning"
    """Consumer groups only: the group has changed, and its assignment is not computed yet."""
    RECONCILING = "Reconciling"
    """Consumer groups only: members are reconciling to their assignment."""
    STABLE = "Stable"
    DEAD = "Dead"


# --- events -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequested:
    """Event: a member sent JoinGroup. It is answered with ``JoinAnswer``."""

    token: Token
    member_id: str
    """Empty for a new member."""
    fresh_member_id: str
    """The member id for a new member."""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Name and metadata, in order of preference."""
    asks_again: bool = True
    """A new dynamic member gets its id and sends JoinGroup again (since version 4)."""
    knows_skipping: bool = True
    """A returning leader can be asked to skip the assignment (since version 9)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequested:
    """Event: a member sent SyncGroup. It is answered with ``SyncAnswer``."""

    token: Token
    member_id: str
    instance_id: str | None = None
    generation: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReceived:
    """Event: a member sent Heartbeat. It is answered with ``HeartbeatAnswer``."""

    token: Token
    member_id: str
    instance_id: str | None = None
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRequested:
    """Event: ``members`` leave the group. It is answered with ``LeaveAnswer``."""

    token: Token
    members: Sequence[tuple[str, str | None]]
    """Member id and instance id of each member."""


@dataclass(frozen=True, slots=True)
class GroupWritten:
    """Event: the write of :class:`WriteGroup` is replicated, or failed with ``code``."""

    write_id: int
    code: ErrorCode


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Event: a deadline of the group may have passed."""


@dataclass(frozen=True, slots=True)
class RebalanceRequired:
    """Event: the members changed while the group was a consumer group, so a stable group must
    rebalance."""


@dataclass(frozen=True, slots=True)
class Unloaded:
    """Event: the group ends here: another broker coordinates it, or its type changes.

    Waiting requests are answered with ``code``.
    """

    code: ErrorCode = ErrorCode.NOT_COORDINATOR


GroupEvent = (
    JoinRequested
    | SyncRequested
    | HeartbeatReceived
    | LeaveRequested
    | GroupWritten
    | TimePassed
    | RebalanceRequired
    | Unloaded
)


# --- actions ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    """The answer to ``JoinRequested``, with the fields of JoinGroup's response."""

    code: ErrorCode = ErrorCode.NONE
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    member_id: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    """Member id, instance id and metadata of each member; only in the leader's answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswer:
    """The answer to ``SyncRequested``, with the fields of SyncGroup's response."""

    code: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """The answer to ``HeartbeatReceived``."""

    code: ErrorCode


@dataclass(frozen=True, slots=True)
class LeaveAnswer:
    """The answer to ``LeaveRequested``: a code for each member, in the order of the request."""

    codes: tuple[ErrorCode, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """Action: send ``answer`` to the request with this ``token``."""

    token: Token
    answer: object
    """For example a ``JoinAnswer`` to a ``JoinRequested``."""


@dataclass(frozen=True, slots=True)
class WriteGroup:
    """Action: append the group metadata to the log. :class:`GroupWritten` with ``write_id`` must
    follow."""

    write_id: int
    group: GroupMetadata


GroupAction = Answer | WriteGroup
