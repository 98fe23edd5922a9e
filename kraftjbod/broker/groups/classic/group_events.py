"""PURE. What may happen to a classic group, and what it wants done: events and actions.

Names and fields are those of Kafka's requests. A ``token`` stands for a request that waits for its
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
    """Kafka's names, as DescribeGroups and ListGroups say them."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    ASSIGNING = "Assigning"
    """Of a consumer group: it has changed, and its assignment is not made yet."""
    RECONCILING = "Reconciling"
    """Of a consumer group: members are on their way to their assignment."""
    STABLE = "Stable"
    DEAD = "Dead"


# --- events -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequested:
    token: Token
    member_id: str
    """Empty for one that is new."""
    fresh_member_id: str
    """What a new one is called from now on."""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Name and metadata, the preferred one first."""
    asks_again: bool = True
    """A new dynamic member is told its id and comes again with it (since version 4)."""
    knows_skipping: bool = True
    """A leader that comes back can be told to assign nothing (since version 9)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequested:
    token: Token
    member_id: str
    instance_id: str | None = None
    generation: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReceived:
    token: Token
    member_id: str
    instance_id: str | None = None
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRequested:
    token: Token
    members: Sequence[tuple[str, str | None]]
    """Member id and instance id of each."""


@dataclass(frozen=True, slots=True)
class GroupWritten:
    """What :class:`WriteGroup` asked for is replicated, or why it is not."""

    write_id: int
    code: ErrorCode


@dataclass(frozen=True, slots=True)
class TimePassed:
    """It may be time for something."""


@dataclass(frozen=True, slots=True)
class RebalanceWanted:
    """Its members have changed while the group was a consumer group."""


@dataclass(frozen=True, slots=True)
class Unloaded:
    """This group ends here: another broker coordinates it, or it is of another kind from now on.

    Whoever waits for it is answered ``code``.
    """

    code: ErrorCode = ErrorCode.NOT_COORDINATOR


GroupEvent = (
    JoinRequested
    | SyncRequested
    | HeartbeatReceived
    | LeaveRequested
    | GroupWritten
    | TimePassed
    | RebalanceWanted
    | Unloaded
)


# --- actions ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    code: ErrorCode = ErrorCode.NONE
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    member_id: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    """Member id, instance id and metadata of each; for the leader alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswer:
    code: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    code: ErrorCode


@dataclass(frozen=True, slots=True)
class LeaveAnswer:
    codes: tuple[ErrorCode, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    token: Token
    answer: object
    """A ``JoinAnswer`` to a ``JoinRequested``, and so on."""


@dataclass(frozen=True, slots=True)
class WriteGroup:
    """Append the group as it shall be; :class:`GroupWritten` has to follow."""

    write_id: int
    group: GroupMetadata


GroupAction = Answer | WriteGroup
